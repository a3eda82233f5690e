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
from .own import _images, _split
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
    """``objects[i]`` is [k, 5] or [k, 6]: x1, y1, x2, y2, class and maybe 1 or 2 for what
    evaluation ignores. ``test`` is a share, or (x, objects). ``files`` names the pictures, those of
    the test behind the others, for the sentence of the ``DataError`` that says what is wrong with
    one of them. A picture without an object is wrong unless ``empty``. ``more`` are fields of
    ``Source``."""
    whole_number("classes", classes)
    x, rows = _images(x), list(map(_rows, objects))
    test_x, test_rows = (
        (_images(test[0]), list(map(_rows, test[1]))) if _pair(test) else (x[:0], [])
    )
    pictures, both = [*x, *test_x], rows + test_rows
    _same_length(len(pictures), len(both), "lists of objects")
    label = np.full(len(both), classes)  # a class of its own for those without objects
    for i, own in enumerate(both):
        problem = _problem(own, pictures[i].shape[1:], classes, empty)
        if problem:
            raise DataError(f"{_named(i, files)} {problem}")
        if len(own):
            area = (own[:, 2] - own[:, 0]) * (own[:, 3] - own[:, 1])
            label[i] = np.bincount(own[:, 4].astype(int), area).argmax()
    y = np.zeros((len(both), max(1, max(map(len, both))), 6), np.float32)
    y[..., 4] = NOTHING
    for row, own in zip(y, both, strict=True):
        row[: len(own)] = own
    return _source(name, x, test_x, y, label, np.array(list(map(len, both))), classes, test, more)


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
    x, masks = _images(x), [np.asarray(mask) for mask in masks]
    test_x, rest = (
        (_images(test[0]), list(map(np.asarray, test[1]))) if _pair(test) else (x[:0], [])
    )
    pictures, both = [*x, *test_x], masks + rest
    _same_length(len(pictures), len(both), "masks")
    label, seen = np.full(len(both), classes), np.zeros(len(both), int)
    for i, mask in enumerate(both):
        height, width = pictures[i].shape[1:]
        if mask.shape != (height, width):
            size = " x ".join(map(str, mask.shape[::-1]))
            raise DataError(f"{_named(i, files)} is {width} x {height}, but its mask is {size}.")
        if mask.dtype.kind not in "biu":
            raise DataError(f"{_named(i, files)} has a mask of {mask.dtype}, not of whole numbers.")
        wrong = mask[((mask < 0) | (mask >= classes)) & (mask != VOID)]
        if wrong.size:
            raise DataError(
                f"{_named(i, files)} has a pixel of class {wrong[0]}; classes are 0 (background) "
                f"to {classes - 1}, and {VOID} counts for nothing."
            )
        areas = np.bincount(mask[(mask != VOID) & (mask > 0)].astype(int))
        seen[i] = np.count_nonzero(areas)
        if seen[i]:
            label[i] = areas.argmax() - 1
        elif not empty:
            raise DataError(f"{_named(i, files)} has no object: {ALLOW}")
    y = np.stack(both).astype(np.uint8)
    return _source(name, x, test_x, y, label, seen, classes, test, more)


ALLOW = "leave it out, or allow empty=True."


def _problem(own: np.ndarray, size: Sequence[int], classes: int, empty: bool) -> str:
    """What is wrong with the objects of a picture, as the rest of a sentence; empty if nothing."""
    height, width = size
    if not len(own):
        return "" if empty else f"has no object: {ALLOW}"
    for x1, y1, x2, y2, kind, ignored in own:
        box = f"a box ({x1:g}, {y1:g}, {x2:g}, {y2:g})"
        if not (x2 > x1 and y2 > y1):  # NaN, too
            return f"has {box} of no area; boxes are x1, y1, x2, y2."
        if min(x1, y1) < 0 or x2 > width or y2 > height:
            return f"has {box} that is not inside its {width} x {height} pixels."
        if not (0 <= kind < classes and kind == int(kind)):
            return f"has an object of class {kind:g}; classes are 0 to {classes - 1}."
        if ignored not in (0, 1, CROWD):
            return f"has an object that is ignored as {ignored:g}: that is 0, 1 or {CROWD}."
    return ""


def _rows(own: Any) -> np.ndarray:
    """float32 [k, 6]."""
    try:
        rows = np.asarray(own, np.float32)
        rows = rows.reshape(-1, 6 if not rows.size else rows.shape[-1])
    except ValueError:
        rows = np.empty((1, 0))
    if rows.shape[1] not in (5, 6):
        raise DataError(
            "Objects are rows of x1, y1, x2, y2, class, and maybe 1 or 2 for what is ignored, not "
            f"{short(own)}."
        )
    return np.pad(rows, ((0, 0), (0, 6 - rows.shape[1])))


def _pair(test: Any) -> bool:
    return isinstance(test, tuple | list) and len(test) == 2


def _named(i: int, files: Sequence[str]) -> str:
    return f"Image {i}" + (f" ({files[i]})" if files else "")


def _same_length(pictures: int, targets: int, what: str) -> None:
    if pictures != targets:
        raise DataError(f"{pictures} images cannot have {targets} {what}.")


def _source(name, x, test_x, y, label, counts, classes, test, more):
    """Split, and with what a ``Source`` says of its pictures."""
    chosen = np.arange(len(y)) >= len(x) if _pair(test) else _split(label, test)
    x = np.concatenate([x, test_x])
    if not chosen.any() or chosen.all():
        raise DataError(f"{len(x)} images, {chosen.sum()} of them to test, are too few.")
    parts = (torch.from_numpy(a[part]) for part in (~chosen, chosen) for a in (x, y))
    train_x, train_y, test_x, test_y = parts
    more = {"labels": label[~chosen], "counts": counts[~chosen]} | more
    m, s = moments(train_x)
    s = tuple(std or 1.0 for std in s)
    return Source(name, train_x, train_y, test_x, test_y, m, s, classes, **more)


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
