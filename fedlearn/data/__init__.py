"""The data: `sources` finds and loads a set, `own` and `annotated` make one of your data, `scenes`
draws one, `published` reads VOC and COCO, `partition` says which client holds which sample."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .annotated import from_boxes, from_masks
    from .own import from_arrays, from_dataset, from_folder, from_npz
    from .published import coco, voc
    from .scenes import digit_scenes

_ROOMS = dict.fromkeys(("from_arrays", "from_dataset", "from_folder", "from_npz"), "own")
_ROOMS |= {"from_boxes": "annotated", "from_masks": "annotated", "digit_scenes": "scenes"}
_ROOMS |= {"coco": "published", "voc": "published"}
__all__ = [
    "coco",
    "digit_scenes",
    "from_arrays",
    "from_boxes",
    "from_dataset",
    "from_folder",
    "from_masks",
    "from_npz",
    "voc",
]


def __getattr__(name: str) -> Any:
    """``from_arrays`` and the others, loaded when they are first asked for."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
