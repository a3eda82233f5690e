"""Pictures with boxes or with masks as a ``Source``: what detection and segmentation learn from.

Boxes are x1, y1, x2, y2 in pixels, measured at the pixels' edges: (0, 0, 64, 64) is all of a
picture of 64 x 64. As ``train_y`` they are float32 [n, objects, 6]: box, class (0, 1, ...), and
what training and evaluation make of it: 0 if it counts, 1 for an object to be ignored (difficult,
in VOC), 2 for a crowd of them (COCO). A row without an object has class -1. Masks are uint8 [n,
height, width], the class of each pixel; 0 is the background, and ``VOID`` counts for nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..arguments import short
from ..errors import DataError, pick
from ..settings import whole_number
from .own import images_of, split_off
from .sources import Source, moments

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
    """A data set for detection.

    Parameters
    ----------
    x
        Pictures, as for ``from_arrays``.
    objects
        For each picture rows x1, y1, x2, y2, class and maybe 1 or 2 for what evaluation ignores.
    classes
        Their number.
    test
        A share, or (x, objects).
    files
        Names of the pictures for error messages, those of the test behind the others.
    empty
        Whether a picture may be without an object.
    **more
        Fields of ``Source``, such as ``names`` of the classes.

    Examples
    --------
    >>> import numpy as np
    >>> source = from_boxes(np.zeros((5, 64, 64), np.uint8), [[[20, 10, 36, 30, 0]]] * 5, classes=1)
    >>> source.train_y[0].tolist()
    [[20.0, 10.0, 36.0, 30.0, 0.0, 0.0]]
    """
    whole_number("classes", classes)
    x, rows, trained = _together(x, objects, test, _rows)
    label = np.full(len(rows), classes)  # a class of its own for those without objects
    y = np.zeros((len(rows), max(1, max(map(len, rows))), 6), np.float32)
    y[..., 4] = NOTHING
    for i, boxes in enumerate(rows):
        problem = wrong_object(boxes, x.shape[3], x.shape[2], classes)
        if problem or not (len(boxes) or empty):
            raise DataError(f"{_picture(i, files)} has {problem or NO_OBJECT}")
        if len(boxes):
            area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
            label[i] = np.bincount(boxes[:, 4].astype(int), area).argmax()
            y[i, : len(boxes)] = boxes
    return _source(name, x, y, trained, test, classes, label, np.array(list(map(len, rows))), more)


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
    x, masks, trained = _together(x, masks, test, np.asarray)
    label, counts = np.full(len(masks), classes), np.zeros(len(masks), int)
    for i, mask in enumerate(masks):
        if problem := _wrong_mask(mask, x.shape[2:], classes):
            raise DataError(f"{_picture(i, files)} has {problem}")
        areas = np.bincount(mask[(mask != VOID) & (mask > 0)].astype(int))
        counts[i] = np.count_nonzero(areas)
        if counts[i]:
            label[i] = areas.argmax() - 1
        elif not empty:
            raise DataError(f"{_picture(i, files)} has {NO_OBJECT}")
    y = np.stack(masks).astype(np.uint8)
    return _source(name, x, y, trained, test, classes, label, counts, more)


NO_OBJECT = "no object: leave it out, or allow empty=True."


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


def _wrong_mask(mask: np.ndarray, size: Sequence[int], classes: int) -> str:
    fits = mask.shape == tuple(size) and mask.dtype.kind in "biu"
    if fits and (((mask >= 0) & (mask < classes)) | (mask == VOID)).all():
        return ""
    return (
        f"a mask of {mask.dtype} {list(mask.shape)}, {mask.min()} to {mask.max()}: it needs whole "
        f"numbers {list(size)}, 0 (background) to {classes - 1}, or {VOID}."
    )


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


def _pair(test: Any) -> bool:
    return isinstance(test, tuple | list) and len(test) == 2


def _picture(i: int, files: Sequence[str]) -> str:
    return f"Image {i}" + (f" ({files[i]})" if files else "")


def _together(x, y, test, read):
    """Pictures and what belongs to each, those of a given test behind the others, of which there
    are so many."""
    x, y = images_of(x), list(map(read, y))
    trained = len(x)
    if len(x) == len(y) and _pair(test):
        x, y = np.concatenate([x, images_of(test[0])]), [*y, *map(read, test[1])]
    if len(x) != len(y):
        raise DataError(f"{len(x)} images cannot have boxes or masks for {len(y)}.")
    return x, y, trained


def _source(name, x, y, trained, test, classes, label, counts, more):
    """Split, and with what a ``Source`` says of its pictures."""
    chosen = np.arange(len(y)) >= trained if _pair(test) else split_off(label, test)
    if not chosen.any() or chosen.all():
        raise DataError(f"{len(x)} images, {chosen.sum()} of them to test, are too few.")
    parts = [torch.from_numpy(a[part]) for part in (~chosen, chosen) for a in (x, y)]
    mean, std = moments(parts[0])
    more = {"labels": label[~chosen], "counts": counts[~chosen]} | more
    return Source(name, *parts, mean, tuple(s or 1.0 for s in std), classes, **more)


def source_of(dataset: Any, known: dict[str, Callable[[str], Source]], make: Callable) -> Source:
    """A ``Source`` from what such a task takes: itself, one of the ``known`` names, with an
    argument behind a colon where it takes one, or the arguments of ``make``."""
    if isinstance(dataset, Source):
        return dataset
    if isinstance(dataset, str):
        name, _, argument = dataset.partition(":")
        return pick(name, known, "data set of this task")(argument)
    if isinstance(dataset, tuple) and len(dataset) in (3, 4):
        return make(*dataset)
    raise ValueError(
        f"A data set is a name ({', '.join(known)}), a Source, or the first arguments of "
        f"{make.__name__}, not {short(dataset)}."
    )
