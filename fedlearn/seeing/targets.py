"""Pictures with boxes or with masks as a ``Source``.

The y of boxes is float32 [n, objects, 6]: x1, y1, x2, y2 in pixels, measured at the
edges of pixels; the class, ``NOTHING`` for padding; and 1 for an ignored object, else
0. The y of masks is uint8 [n, height, width]: the class of each pixel, or ``VOID``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..data.images import Source, moments
from ..data.makers import split_off
from ..data.values import samples_of
from ..errors import DataError, check_whole, short

NOTHING = -1.0
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
        For each picture rows x1, y1, x2, y2, class, and maybe 1 for an ignored object,
        inside which a prediction is neither right nor wrong.
    classes
        Their number.
    test
        The share of the pictures to test on, or (x, objects).
    name
        Of the data set, in histories.
    files
        The pictures' files, for error messages; those of the test set last.
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
    x, objects, test = with_test(x, objects, test)
    counts = np.array([len(rows) for rows in objects])
    areas = np.zeros((len(x), classes))
    longest = max(1, counts.max())
    y = np.zeros((len(x), longest, 6), np.float32)
    y[..., 4] = NOTHING
    for i, rows in enumerate(objects):
        boxes = boxes_of(rows, x.shape, classes, title(i, files))
        y[i, : len(boxes)] = boxes
        sides = boxes[:, 2:4] - boxes[:, :2]
        kinds = boxes[:, 4].astype(int)
        areas[i] = np.bincount(kinds, sides.prod(1), classes)
    return source_of(name, x, y, areas, counts, test, classes, fields)


def from_masks(
    x: Any,
    masks: Any,
    classes: int,
    test: Any = 0.2,
    name: str = "own",
    files: Sequence[str] = (),
    **fields: Any,
) -> Source:
    """A data set of pictures with masks, for ``fl.seeing.segmentation``.

    Parameters
    ----------
    x
        Pictures, such as uint8 [n, height, width, 3].
    masks
        For each picture the class of every pixel [height, width]: 0 for the background,
        255 for void.
    classes
        Their number, the background included.
    test
        The share of the pictures to test on, or (x, masks).
    name, files, fields
        As of ``from_boxes``.

    Examples
    --------
    >>> import numpy as np
    >>> import fedlearn as fl
    >>> pictures, masks = np.zeros((5, 8, 8), np.uint8), np.ones((5, 8, 8), np.uint8)
    >>> fl.seeing.from_masks(pictures, masks, classes=2).labels.tolist()
    [0, 0, 0, 0]
    """
    check_whole("classes", classes, 2, VOID)
    x, masks, test = with_test(x, masks, test)
    y = np.zeros((len(x), *x.shape[2:]), np.uint8)
    areas = np.zeros((len(x), classes - 1), int)
    for i, mask in enumerate(masks):
        mask = np.asarray(mask)
        allowed = np.isin(mask, (*range(classes), VOID))
        if mask.shape != y[i].shape or not allowed.all():
            raise DataError(
                f"{title(i, files)} has a mask {list(mask.shape)} with values up to "
                f"{mask.max()}: it needs whole numbers {list(y[i].shape)}, 0 "
                f"(background) to {classes - 1}, or {VOID}."
            )
        y[i] = mask
        pixels = np.bincount(y[i].ravel(), minlength=classes)
        areas[i] = pixels[1:classes]
    counts = (areas > 0).sum(1)
    return source_of(name, x, y, areas, counts, test, classes, fields)


def with_test(x: Any, targets: Any, test: Any) -> tuple[np.ndarray, list, Any]:
    """Pictures, their targets, and ``test``. A test set (x, targets) is appended, and
    ``test`` becomes an array that is true for its pictures."""
    x = samples_of(x)
    targets = list(targets)
    if isinstance(test, tuple):
        trained = len(x)
        x = np.concatenate([x, samples_of(test[0])])
        targets.extend(test[1])
        test = np.arange(len(x)) >= trained
    if len(x) != len(targets):
        raise DataError(f"{len(x)} pictures cannot have targets for {len(targets)}.")
    return x, targets, test


def boxes_of(
    objects: Any, shape: Sequence[int], classes: int, picture: str
) -> np.ndarray:
    """float32 [objects, 6]; ``DataError`` unless every object lies in the picture and
    has a class."""
    height, width = shape[2:]
    rows = np.zeros((len(objects), 6), np.float32)
    for row, values in zip(rows, objects, strict=True):
        if np.size(values) in (
            5,
            6,
        ):  # a row of another length stays zero, without area
            row[: len(values)] = values
    x1, y1, x2, y2, kind, ignored = rows.T
    right = (0 <= x1) & (x1 < x2) & (x2 <= width)
    right &= (0 <= y1) & (y1 < y2) & (y2 <= height)
    right &= np.isin(kind, np.arange(classes))
    right &= np.isin(ignored, (0, 1))
    if not right.all():
        raise DataError(
            f"{picture} has an object {short(objects[right.argmin()])}: a row needs x1 "
            f"< x2 and y1 < y2 inside {width} x {height} pixels, a class from 0 to "
            f"{classes - 1}, and maybe 1 for an object that is ignored."
        )
    return rows


def title(i: int, files: Sequence[str]) -> str:
    """The name of a picture in error messages."""
    return f"Image {i} ({files[i]})" if files else f"Image {i}"


def source_of(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    areas: np.ndarray,
    counts: np.ndarray,
    test: Any,
    classes: int,
    fields: dict[str, Any],
) -> Source:
    """The data set of pictures with ``counts`` objects [n]. A split by labels goes by
    the class with the largest of ``areas`` [n, classes]; pictures without an object are
    one more class."""
    labels = areas.argmax(1)
    labels[counts == 0] = classes
    tested = test if isinstance(test, np.ndarray) else split_off(labels, test)
    if not tested.any() or tested.all():
        raise DataError(
            f"{len(x)} images, {tested.sum()} of them to test, are too few."
        )
    arrays = x[~tested], y[~tested], x[tested], y[tested]
    tensors = [torch.from_numpy(array) for array in arrays]
    mean, std = moments(tensors[0])
    values: dict[str, Any] = {
        "mean": mean,
        "std": tuple(s or 1.0 for s in std),
        "classes": classes,
        "labels": labels[~tested],
        **fields,
    }
    return Source(name, *tensors, **values)
