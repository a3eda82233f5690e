"""Pictures with boxes or masks as a ``Source``.

Boxes are x1, y1, x2, y2 in pixels, measured at the pixels' edges: (0, 0, 64, 64) is all of a
picture of 64 x 64. As ``train_y`` they are float32 [n, objects, 6]: box, class (0, 1, ...), and
what training and evaluation make of it: 0 if it counts, 1 for an object to be ignored (difficult,
in VOC), 2 for a crowd of them (COCO). A row without an object has class -1. Masks are uint8 [n,
height, width], the class of each pixel; 0 is the background, and ``VOID`` counts for nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..arguments import short
from ..errors import DataError
from ..settings import whole_number
from .makers import split_off
from .sources import Source, moments
from .values import samples_of

NOTHING = -1.0  # the class of a row that holds no object
CROWD = 2  # in place of 1 where a row is not one object, but many
VOID = 255  # the class of a pixel that counts for nothing, such as VOC's borders



def from_boxes(
    x: Any,
    objects: Any,
    classes: int,
    test: Any = 0.2,
    name: str = "own",
    files: Sequence[str] = (),
    empty: bool = False,
    **more: Any,
) -> Source:
    """Pictures with boxes: ``objects`` are for each rows x1, y1, x2, y2, class (below ``classes``)
    and maybe 1 or 2 for what evaluation ignores; ``test`` is a share, or (x, objects).

    ``files`` names the pictures in messages, those of the test last; with ``empty`` a picture may
    be without an object; ``more`` are fields of ``Source``, such as ``names`` of the classes.

    Examples
    --------
    >>> import numpy as np
    >>> source = from_boxes(np.zeros((5, 64, 64), np.uint8), [[[20, 10, 36, 30, 0]]] * 5, classes=1)
    >>> source.train_y[0].tolist()
    [[20.0, 10.0, 36.0, 30.0, 0.0, 0.0]]
    """
    whole_number("classes", classes)
    x, rows, test = _pictures(x, objects, test, _rows)
    counts, areas = np.array(list(map(len, rows))), np.zeros((len(rows), classes))
    y = np.zeros((len(rows), max(1, counts.max()), 6), np.float32)
    y[..., 4] = NOTHING
    for i, boxes in enumerate(rows):
        if problem := wrong_object(boxes, x.shape[3], x.shape[2], classes):
            raise DataError(f"{_picture(i, files)} has {problem}")
        y[i, : len(boxes)] = boxes
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        areas[i] = np.bincount(boxes[:, 4].astype(int), area, classes)
    return _annotated(name, x, y, areas, counts, test, classes, files, empty, more)


def from_masks(
    x: Any,
    masks: Any,
    classes: int,
    test: Any = 0.2,
    name: str = "own",
    files: Sequence[str] = (),
    empty: bool = False,
    **more: Any,
) -> Source:
    """The same with ``masks[i]``, [height, width] of whole numbers below ``classes``, which count
    the background, or ``VOID``."""
    if classes not in range(2, VOID + 1):
        raise ValueError(f"Masks have 2 to {VOID} classes with the background, not {classes!r}.")
    x, masks, test = _pictures(x, masks, test, np.asarray)
    for i, mask in enumerate(masks):
        fits = mask.shape == x.shape[2:] and mask.dtype.kind in "biu"
        if not fits or not (((mask >= 0) & (mask < classes)) | (mask == VOID)).all():
            raise DataError(
                f"{_picture(i, files)} has a mask of {mask.dtype} {list(mask.shape)}, {mask.min()} "
                f"to {mask.max()}: it needs whole numbers {list(x.shape[2:])}, 0 (background) to "
                f"{classes - 1}, or {VOID}."
            )
    y = np.stack(masks).astype(np.uint8)
    areas = np.stack([np.bincount(m[m != VOID], minlength=classes)[1:] for m in y])
    counts = (areas > 0).sum(1)
    return _annotated(name, x, y, areas, counts, test, classes, files, empty, more)


def wrong_object(rows: np.ndarray, width: int, height: int, classes: int, slack: float = 0) -> str:
    """What is wrong with the first of the objects [k, 6] that cannot be, as the rest of a sentence;
    empty if none is. ``slack``: how many pixels a box may reach beyond its picture."""
    x1, y1, x2, y2, kind, ignored = rows.T
    right = (x1 < x2) & (y1 < y2) & (np.minimum(x1, y1) >= -slack)
    right &= (x2 <= width + slack) & (y2 <= height + slack)
    right &= np.isin(kind, np.arange(classes)) & np.isin(ignored, (0, 1, CROWD))
    if right.all():
        return ""
    return (
        f"an object {rows[~right][0].tolist()}, which is no x1 < x2 and y1 < y2 inside {width} x "
        f"{height} pixels, a class from 0 to {classes - 1}, and 0, 1 or {CROWD}."
    )


def _annotated(name, x, y, areas, counts, test, classes, files, empty, more):
    """The ``Source`` of pictures with so many objects, of which each class fills ``areas`` [n,
    classes]. ``test`` is a share, or which are of the test."""
    if not empty and not counts.all():
        picture = _picture(counts.argmin(), files)
        raise DataError(f"{picture} has no object: leave it out, or allow empty=True.")
    label = np.where(counts > 0, areas.argmax(1), classes)  # a class for those without objects
    chosen = test if isinstance(test, np.ndarray) else split_off(label, test)
    if not chosen.any() or chosen.all():
        raise DataError(f"{len(x)} images, {chosen.sum()} of them to test, are too few.")
    parts = [torch.from_numpy(a[part]) for part in (~chosen, chosen) for a in (x, y)]
    more = {"labels": label[~chosen], "counts": counts[~chosen], **more}
    return Source(name, *parts, *moments(parts[0]), classes, **more)


def _pictures(x, targets, test, read):
    """Pictures and their targets, a given test set's last; and the share, or which are its."""
    x, targets = samples_of(x), list(map(read, targets))
    if len(x) == len(targets) and isinstance(test, tuple | list) and len(test) == 2:
        trained = len(x)
        x, targets = np.concatenate([x, samples_of(test[0])]), [*targets, *map(read, test[1])]
        test = np.arange(len(x)) >= trained
    if len(x) != len(targets):
        raise DataError(f"{len(x)} images cannot have boxes or masks for {len(targets)}.")
    return x, targets, test


def _rows(objects: Any) -> np.ndarray:
    """float32 [k, 6]."""
    try:
        rows = np.asarray(objects, np.float32)
        rows = rows.reshape(-1, 6 if not rows.size else rows.shape[-1])
    except ValueError:
        rows = np.empty((1, 0))
    if rows.shape[1] not in (5, 6):
        raise DataError(
            "Objects are rows of x1, y1, x2, y2, class, and maybe 1 or 2 for what is ignored, not "
            f"{short(objects)}."
        )
    return np.pad(rows, ((0, 0), (0, 6 - rows.shape[1])))


def _picture(i: int, files: Sequence[str]) -> str:
    return f"Image {i}" + (f" ({files[i]})" if files else "")
