"""Your own data as a ``Source``: arrays, a data set in torchvision's style, a folder of images, an
``.npz`` file; pictures with boxes or masks.

x is images [n, channels, height, width], [n, height, width, channels] with 1, 3 or 4 channels,
[n, height, width], or vectors [n, features], which become [n, 1, 1, features]; uint8 stays uint8,
other numbers become float32. y is one label a sample: 0, 1, ... or texts, which are numbered in
alphabetical order. ``test`` is a share that is split off, the same whatever the seed of an
experiment, or (x, y), or (x, y, users).

Boxes are x1, y1, x2, y2 in pixels, measured at the pixels' edges: (0, 0, 64, 64) is all of a
picture of 64 x 64. As ``train_y`` they are float32 [n, objects, 6]: box, class (0, 1, ...), and
what training and evaluation make of it: 0 if it counts, 1 for an object to be ignored (difficult,
in VOC), 2 for a crowd of them (COCO). A row without an object has class -1. Masks are uint8 [n,
height, width], the class of each pixel; 0 is the background, and ``VOID`` counts for nothing.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch

from ..arguments import check_value, checked, short
from ..errors import DataError, pick
from ..settings import whole_number
from . import sources
from .sources import SETS, Source, moments, open_image, reason

IMAGES = ".png .jpg .jpeg .bmp .gif .webp .ppm .pgm .pbm .tif .tiff".split()
TESTS = "test_x", "test_y", "test_users"  # arrays in a file
NOTHING = -1.0  # the class of a row that holds no object
CROWD = 2  # in place of 1 where a row is not one object, but many
VOID = 255  # the class of a pixel that counts for nothing, such as VOC's borders


# ---- samples with one label


@checked
def from_arrays(
    x: Any, y: Any, test: Any = 0.2, name: str = "own", users: Any = None, note: str = ""
) -> Source:
    """A data set of arrays, tensors or lists, called ``name`` in histories. ``users``: whose each
    sample is, whole numbers or texts [n]; ``test`` is then a share of every user's samples, else of
    every class.

    Examples
    --------
    >>> import numpy as np
    >>> source = from_arrays(np.zeros((10, 4)), ["a", "b"] * 5)
    >>> source.names, tuple(source.train_x.shape)
    (('a', 'b'), (8, 1, 1, 4))
    """
    train = _columns(x, y, users)
    if isinstance(test, tuple | list) and len(test) in (2, 3):
        other = _columns(*test)
        for part, a, b in zip(("samples", "labels", "users"), train, other, strict=True):
            if b is not None and (a is None or _kind(a) != _kind(b)):
                raise ValueError(f"The test set's {part} are not of the kind of the others.")
    else:
        chosen = split_off(train[1] if users is None else train[2], test)
        other = tuple(None if a is None else a[chosen] for a in train)
        train = tuple(None if a is None else a[~chosen] for a in train)
    (x, y, users), (test_x, test_y, test_users) = train, other
    if not len(x) or not len(test_x):
        raise ValueError(f"{len(x)} samples to train and {len(test_x)} to test are too few.")
    labels, names = np.concatenate([y, test_y]), ()
    if labels.dtype.kind == "U":
        kinds, labels = np.unique(labels, return_inverse=True)
        names = tuple(kinds.tolist())
    classes = int(labels.max()) + 1
    if labels.min() == 1:
        warnings.warn("No sample has label 0: from labels 1, 2, ... subtract 1.", stacklevel=2)
    if not 2 <= classes <= len(labels):
        raise ValueError(
            f"Labels are 0 to the number of classes less 1, of at least two classes; {len(labels)} "
            f"samples with {classes} classes are not learned from."
        )
    arrays = x, labels[: len(y)], test_x, labels[len(y) :]
    x, y, test_x, test_y = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)
    mean, std = _statistics(x)
    more: dict[str, Any] = {"note": note, "names": names, "users": users, "test_users": test_users}
    return Source(name, x, y, test_x, test_y, mean, std, classes, **more)


def from_dataset(dataset: Any, test: Any = 0.2, name: str = "own") -> Source:
    """A data set in torchvision's style: ``len`` and ``dataset[i]``, an image (PIL, array or
    tensor) and its label. ``test`` may be another one."""
    if hasattr(test, "__getitem__") and not isinstance(test, tuple):
        test = _items(test)
    x, y = _items(dataset)
    return from_arrays(x, y, test, name)


@checked
def from_folder(path: str | Path, size: int | None = None, test: Any = 0.2) -> Source:
    """A folder with a folder of images for each class, or two such folders, ``train`` and ``test``.
    ``size`` is the side of the squares that all images are scaled to; by default they stay as they
    are if they are all of one size, else it is 32."""
    if size is not None and not 1 <= size <= 4096:
        raise ValueError(f"size is a number of pixels from 1 to 4096, not {size!r}.")
    path = Path(path).resolve()
    if not path.is_dir():
        raise DataError(f"There is no folder {path}.")
    parts = [path / "train", path / "test"]
    parts = parts if all(part.is_dir() for part in parts) else [path]
    if new := {c.name for c in _folders(parts[-1])} - {c.name for c in _folders(parts[0])}:
        raise DataError(f"{parts[1]} has classes that train has not: {short(sorted(new))}.")
    files = [f for part in parts for c in _folders(part) for f in _images(c)]
    if not files:
        raise DataError(f"{path} has no folders with images in them, one for each class.")
    images = [open_image(file) for file in files]
    sizes, note = {image.size for image in images}, ""
    if size is None and len(sizes) > 1:
        size, note = 32, f"images of {len(sizes)} sizes, scaled to 32 x 32"
    grey = all(image.mode in ("1", "L", "LA") for image in images)
    images = [image.convert("L" if grey else "RGB") for image in images]
    if size is not None:
        images = [image.resize((size, size)) for image in images]
    x, y = np.stack(images), np.array([file.parent.name for file in files])
    train = np.array([file.parents[1] == parts[0] for file in files])
    if len(parts) == 2:
        test = x[~train], y[~train]
    return from_arrays(x[train], y[train], test, path.name, note=note)


def from_npz(path: str | Path) -> Source:
    """A file of ``numpy.savez`` with x and y, and maybe test_x and test_y, users and test_users."""
    path = Path(path)
    if not path.is_file() or not is_zipfile(path):
        raise DataError(
            f"{path} is no file of numpy.savez; read a table yourself, such as with pandas, and "
            "give its columns as (x, y)."
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:
        why = "an array holds objects" if "allow_pickle" in str(error) else reason(error)
        raise DataError(f"{path} is not a file of numpy.savez that can be read ({why}).") from None
    for key in ("x", "y", *arrays):
        pick(key, arrays, f"array in {path}")
        pick(key, dict.fromkeys(("x", "y", *TESTS, "users")), "array of a data set")
    test = tuple(arrays[key] for key in TESTS if key in arrays)
    if test and not {"test_x", "test_y"} <= arrays.keys():
        raise DataError(f"{path} needs both test_x and test_y for a test set of its own.")
    try:
        return from_arrays(arrays["x"], arrays["y"], test or 0.2, path.stem, arrays.get("users"))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def labelled(dataset: Any, users: Any = None) -> Source:
    """A ``Source`` from what classification takes: its name, a ``Source``, (x, y) or ((x, y), (x,
    y)), a data set, or the path of a folder or an ``.npz`` file. ``users``, of arrays only: whose
    each sample is."""
    if isinstance(dataset, Source):
        return dataset
    if isinstance(dataset, tuple) and len(dataset) == 2:
        if all(isinstance(part, tuple) and len(part) == 2 for part in dataset):
            (x, y), test = dataset
            return from_arrays(x, y, test, users=users)
        return from_arrays(*dataset, users=users)
    if isinstance(dataset, str | Path):
        path, name = Path(dataset).expanduser(), str(dataset)
        if name in SETS or not (path.exists() or path.suffix == ".npz" or "/" in name):
            return sources.load(name)
        if not path.exists():
            raise DataError(f"There is no file or folder {path.absolute()}.")
        places = (path, *path.rglob("*")) if path.is_dir() else (path,)
        return _read(path.resolve(), max(place.stat().st_mtime_ns for place in places))
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return from_dataset(dataset)
    raise ValueError(
        "A data set is a name, a Source, (x, y), ((x, y), (test x, test y)), or the path of a "
        f"folder or an .npz file, not {short(dataset)}."
    )


@lru_cache(2)
def _read(path: Path, changed: int) -> Source:
    return from_folder(path) if path.is_dir() else from_npz(path)


# ---- pictures with boxes or masks


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


def annotated(dataset: Any, known: dict[str, Callable[[str], Source]], make: Callable) -> Source:
    """A ``Source`` from what detection or segmentation takes: itself, one of the ``known`` names,
    with an argument behind a colon where it takes one, or the arguments of ``make``."""
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
    return Source(name, *parts, *_statistics(parts[0]), classes, **more)


def _pictures(x, targets, test, read):
    """Pictures and what belongs to each, those of a given test set behind the others; and ``test``,
    a share, or which of them are of that set."""
    x, targets = images_of(x), list(map(read, targets))
    if len(x) == len(targets) and isinstance(test, tuple | list) and len(test) == 2:
        trained = len(x)
        x, targets = np.concatenate([x, images_of(test[0])]), [*targets, *map(read, test[1])]
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


# ---- columns that can be learned from


def images_of(x: Any) -> np.ndarray:
    """uint8 or finite float32 [n, channels, height, width]."""
    names = list(getattr(x, "columns", ()))  # of a table of pandas
    if texts := [name for name in names if x[name].dtype.kind not in "buif"]:
        raise ValueError(f"Samples are numbers, unlike the columns {short(texts)}.")
    x = _numpy(x)
    if x.dtype.kind not in "buif":
        raise ValueError(f"Samples are numbers, not {x.dtype}.")
    if x.dtype.kind == "b":
        x = x.astype(np.uint8)
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, x.shape[3]):
        x = x.transpose(0, 3, 1, 2)
    while x.ndim in (2, 3):
        x = x[:, None]
    if x.ndim != 4 or not x.size:
        raise ValueError(
            "Samples are images [n, channels, height, width], [n, height, width, channels] or "
            f"[n, height, width], or vectors [n, features], not {list(x.shape)}."
        )
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            columns = np.flatnonzero(~np.isfinite(x).all((0, 1, 2))) if x.shape[2] == 1 else ()
            where = f" in columns {short([names[i] if names else int(i) for i in columns])}"
            raise ValueError(
                "Samples hold NaN, or numbers that are infinite in float32"
                f"{where if len(columns) else ''}."
            )
    return x


def _labels(y: Any) -> np.ndarray:
    """int64 or texts [n]."""
    y = _numpy(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "O" and all(isinstance(label, str) for label in y.flat):
        y = y.astype(str)
    if y.dtype.kind == "U" and y.ndim == 1:
        return y
    whole = y.dtype.kind in "biu" or (y.dtype.kind == "f" and (y == np.floor(y)).all())
    if y.ndim != 1 or not whole:
        raise ValueError(
            "Labels are one whole number or text for each sample, not "
            f"{y.dtype} {list(y.shape)}" + (" (one-hot?)." if y.ndim == 2 else ".")
        )
    if len(y) and not 0 <= y.min() <= y.max() < 2**31:
        raise ValueError(f"Labels are 0, 1, 2, ..., not {y.min()} to {y.max()}.")
    return y.astype(np.int64)


def _columns(x: Any, y: Any, users: Any = None) -> tuple:
    """Samples, labels and users (whole numbers or texts [n], or None) that fit together."""
    x, y = images_of(x), _labels(y)
    users = None if users is None else np.array(_numpy(users).tolist())
    for part, column in (("labels", y), ("users", users)):
        if column is not None and column.shape != (len(x),):
            raise ValueError(f"{len(x)} samples cannot have {part} {list(column.shape)}.")
    return x, y, users


def _numpy(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        try:
            return values.detach().cpu().numpy()
        except (TypeError, NotImplementedError):  # sparse, bfloat16, quantised, without data
            raise ValueError(
                "Samples are dense tensors of numbers that numpy has, such as x.to_dense().float() "
                f"makes them, not {values.dtype} with the layout {values.layout}."
            ) from None
    if hasattr(values, "toarray"):
        raise ValueError(
            f"Samples are dense arrays: give x.toarray(), not a {type(values).__name__}."
        )
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError("Samples are not all of one shape: resize them.") from None


def _items(dataset: Any) -> tuple[np.ndarray, list]:
    try:
        pairs = [dataset[i] for i in range(len(dataset))]
        x, y = zip(*pairs, strict=True)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise ValueError(
            f"A data set has a length, and dataset[i] is an image and its label ({error})."
        ) from None
    labels = list(map(np.asarray, y))
    if any(label.size != 1 for label in labels):
        raise ValueError(
            "dataset[i] is one image and its label; of arrays for each client make one (x, y), and "
            "say with clients whose each sample is."
        )
    return _numpy([_numpy(image) for image in x]), [label.item() for label in labels]


def _kind(a: np.ndarray) -> tuple:
    return a.dtype.kind, a.shape[1:]


def _statistics(x: torch.Tensor) -> tuple:
    """Mean and standard deviation, 1 where a channel or feature is constant."""
    mean, std = moments(x)
    return mean, tuple(s or 1.0 for s in std)


def split_off(groups: np.ndarray, test: Any) -> np.ndarray:
    """Which samples are for the test: of every group that share, and never all of them."""
    check_value("test", test, float)
    if not 0 < test < 1:
        raise ValueError(f"test is a share above 0 and below 1, or (x, y), not {test!r}.")
    chosen, random = np.zeros(len(groups), bool), np.random.RandomState(0)
    for group in np.unique(groups):
        members = random.permutation(np.flatnonzero(groups == group))
        chosen[members[: min(int(len(members) * test + 0.5), len(members) - 1)]] = True
    return chosen


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGES and p.is_file())
