"""Pictures with boxes or with masks as a ``Source``.

Boxes are y float32 [n, objects, 6]: x1, y1, x2, y2 in pixels, measured at the edges of
pixels; the class, ``NOTHING`` for padding; and 0, or 1 (difficult) or ``CROWD`` for an
object that is ignored. Masks are y uint8 [n, height, width], the class of each pixel or
``VOID``. A picture without an object is background.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..data.images import Source, moments
from ..data.makers import split_off
from ..data.values import samples_of
from ..errors import DataError, check_whole, short

NOTHING = -1.0
CROWD = 2
VOID = 255


def from_boxes(
    x: Any,
    objects: Any,
    classes: int,
    test: Any = 0.2,
    name: str = "own",
    files: Sequence[str] = (),
    **fields: Any,
) -> Source:
    """A data set of pictures with boxes, for ``fl.seeing.detection``.

    Parameters
    ----------
    x
        Pictures, such as uint8 [n, height, width, 3].
    objects
        For each picture rows x1, y1, x2, y2, class and maybe 1 or 2 for an object that
        evaluation ignores.
    classes
        Their number.
    test
        The share of the pictures to test on, or (x, objects).
    name
        Of the data set, in histories.
    files
        The pictures' files, for messages; those of the test last.
    fields
        Of ``Source``, such as ``names`` of the classes.

    Examples
    --------
    >>> import numpy as np
    >>> import fedlearn as fl
    >>> pictures, boxes = np.zeros((5, 64, 64), np.uint8), [[[20, 10, 36, 30, 0]]] * 5
    >>> fl.seeing.from_boxes(pictures, boxes, classes=1).train_y[0].tolist()
    [[20.0, 10.0, 36.0, 30.0, 0.0, 0.0]]
    """
    check_whole("classes", classes)
    x, rows, test = _pictures(x, objects, test, _rows)
    counts = np.array([len(boxes) for boxes in rows])
    areas = np.zeros((len(rows), classes))
    y = np.zeros((len(rows), max(1, counts.max()), 6), np.float32)
    y[..., 4] = NOTHING
    for i, boxes in enumerate(rows):
        _check_objects(boxes, x.shape, classes, _picture(i, files))
        y[i, : len(boxes)] = boxes
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        areas[i] = np.bincount(boxes[:, 4].astype(int), area, classes)
    return _source(name, x, y, areas, counts, test, classes, fields)


def from_masks(
    x: Any,
    masks: Any,
    classes: int,
    test: Any = 0.2,
    name: str = "own",
    files: Sequence[str] = (),
    **fields: Any,
) -> Source:
    """A data set of pictures with masks, for ``fl.seeing.segmentation``: ``masks[i]``
    [height, width] are whole numbers below ``classes``, which count the background 0,
    or ``VOID``. The other arguments are those of ``from_boxes``."""
    if classes not in range(2, VOID + 1):
        raise ValueError(
            f"Masks have 2 to {VOID} classes with the background, not {classes!r}."
        )
    x, masks, test = _pictures(x, masks, test, np.asarray)
    for i, mask in enumerate(masks):
        fits = mask.shape == x.shape[2:] and mask.dtype.kind in "biu"
        if not fits or not (((mask >= 0) & (mask < classes)) | (mask == VOID)).all():
            raise DataError(
                f"{_picture(i, files)} has a mask of {mask.dtype} {list(mask.shape)}, "
                f"{mask.min()} to {mask.max()}: it needs whole numbers "
                f"{list(x.shape[2:])}, 0 (background) to {classes - 1}, or {VOID}."
            )
    y = np.stack(masks).astype(np.uint8)
    areas = np.stack([np.bincount(m[m != VOID], minlength=classes)[1:] for m in y])
    counts = (areas > 0).sum(1)
    return _source(name, x, y, areas, counts, test, classes, fields)


def _pictures(
    x: Any, targets: Any, test: Any, read: Callable
) -> tuple[np.ndarray, list, Any]:
    """Pictures and their targets; of a stated test set they come last, and ``test``
    becomes an array that is true for them."""
    x = samples_of(x)
    targets = [read(target) for target in targets]
    if isinstance(test, tuple):
        trained = len(x)
        x = np.concatenate([x, samples_of(test[0])])
        targets += [read(target) for target in test[1]]
        test = np.arange(len(x)) >= trained
    if len(x) != len(targets):
        raise DataError(
            f"{len(x)} images cannot have boxes or masks for {len(targets)}."
        )
    return x, targets, test


def _rows(objects: Any) -> np.ndarray:
    """float32 [objects, 6]."""
    if not len(objects):
        return np.zeros((0, 6), np.float32)
    try:
        rows = np.asarray(objects, np.float32).reshape(len(objects), -1)
    except ValueError:
        rows = np.zeros((1, 0))
    if rows.shape[1] not in (5, 6):
        raise DataError(
            "Objects are rows of x1, y1, x2, y2, class, and maybe 1 or 2 for an "
            f"ignored one, not {short(objects)}."
        )
    return np.pad(rows, ((0, 0), (0, 6 - rows.shape[1])))


def _check_objects(
    rows: np.ndarray, shape: Sequence[int], classes: int, picture: str
) -> None:
    """``DataError`` unless all objects [k, 6] lie in the picture and have a class."""
    height, width = shape[2:]
    x1, y1, x2, y2, kind, ignored = rows.T
    right = (0 <= x1) & (x1 < x2) & (x2 <= width)
    right &= (0 <= y1) & (y1 < y2) & (y2 <= height)
    right &= np.isin(kind, np.arange(classes)) & np.isin(ignored, (0, 1, CROWD))
    if not right.all():
        raise DataError(
            f"{picture} has an object {rows[~right][0].tolist()}, which is no x1 < x2 "
            f"and y1 < y2 inside {width} x {height} pixels, a class from 0 to "
            f"{classes - 1}, and 0, 1 or {CROWD}."
        )


def _picture(i: int, files: Sequence[str]) -> str:
    return f"Image {i} ({files[i]})" if files else f"Image {i}"


def _source(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    areas: np.ndarray,
    counts: np.ndarray,
    test: Any,
    classes: int,
    fields: dict[str, Any],
) -> Source:
    """The data set of pictures with so many objects, of which each class fills
    ``areas`` [n, classes]. A split by "labels" goes by the class that fills most."""
    labels = np.where(
        counts > 0, areas.argmax(1), classes
    )  # a class for empty pictures
    chosen = test if isinstance(test, np.ndarray) else split_off(labels, test)
    if not chosen.any() or chosen.all():
        raise DataError(
            f"{len(x)} images, {chosen.sum()} of them to test, are too few."
        )
    arrays = x[~chosen], y[~chosen], x[chosen], y[chosen]
    train_x, train_y, test_x, test_y = map(torch.from_numpy, arrays)
    mean, std = moments(train_x)
    std = tuple(s or 1.0 for s in std)
    fields = {"labels": labels[~chosen], **fields}
    return Source(name, train_x, train_y, test_x, test_y, mean, std, classes, **fields)
