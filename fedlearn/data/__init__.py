"""The data: `sources` finds and loads a set, `arrays` makes one of your data, `scenes` draws one,
`published` reads VOC and COCO, `partition` says which client holds which sample."""

from importlib import import_module
from typing import Any

_ARRAYS = "from_arrays", "from_boxes", "from_dataset", "from_folder", "from_masks", "from_npz"
_MODULES = {"coco": "published", "digit_scenes": "scenes", "voc": "published"}
_MODULES |= dict.fromkeys(_ARRAYS, "arrays")
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """``from_arrays`` and the others, loaded when they are first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
