"""The data: `sources` finds and loads a set, `arrays` makes one of your arrays, `forms` of tables,
files and data sets, `partition` says which client holds which sample."""

from importlib import import_module
from typing import Any

_NAMES = {
    "arrays": "from_arrays from_numbers from_texts from_tokens",
    "forms": "from_folder",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """``from_arrays`` and the others, loaded when they are first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
