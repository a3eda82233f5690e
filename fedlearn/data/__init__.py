"""The data: `sources` finds and loads a set, `own` and `annotated` make one of your data, `scenes`
draws one, `published` reads VOC and COCO, `partition` says which client holds which sample."""

from importlib import import_module
from typing import Any

_MODULES = {
    "own": ("from_arrays", "from_dataset", "from_folder", "from_npz"),
    "annotated": ("from_boxes", "from_masks"),
    "scenes": ("digit_scenes",),
    "published": ("coco", "voc"),
}
__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str) -> Any:
    """``from_arrays`` and the others, loaded when they are first asked for."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
