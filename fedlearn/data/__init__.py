"""The data: `sources` finds and loads a set, `own` makes one of your data, `partition` says which
client holds which sample."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .own import from_arrays, from_dataset, from_folder, from_npz

__all__ = ["from_arrays", "from_dataset", "from_folder", "from_npz"]


def __getattr__(name: str) -> Any:
    """``from_arrays`` and the others, loaded when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.own"), name)
