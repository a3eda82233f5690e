"""Your own data as a ``Source``: arrays, a data set in torchvision's style, a folder of images, an
``.npz`` file.

x is images [n, channels, height, width], [n, height, width, channels] with 1, 3 or 4 channels,
[n, height, width], or vectors [n, features], which become [n, 1, 1, features]; uint8 stays uint8,
other numbers become float32. y is one label a sample: 0, 1, ... or texts, which are numbered in
alphabetical order. ``test`` is a share that is split off, the same whatever the seed of an
experiment, or (x, y), or (x, y, users).
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..arguments import check_value, short
from ..errors import DataError, pick
from . import sources
from .readers import open_image, reason
from .sources import SETS, Source

IMAGES = ".png .jpg .jpeg .bmp .gif .webp .ppm .pgm .pbm .tif .tiff".split()
TESTS = "test_x", "test_y", "test_users"  # arrays in a file


def from_arrays(
    x: Any, y: Any, test: Any = 0.2, name: str = "own", users: Any = None, note: str = ""
) -> Source:
    """A data set of arrays, tensors or lists.

    Parameters
    ----------
    x, y
        Samples, images or vectors, and a label for each (``fedlearn.data.own`` has the shapes).
    test
        A share of every class, or of every user, above 0 and below 1; or (x, y), or (x, y, users).
    name, note
        What histories and figures call the data, and say of them.
    users
        Each sample's user: whole numbers or texts [n].

    Returns
    -------
    Source
        What a task takes.

    Raises
    ------
    ValueError
        In one sentence, for what cannot be learned from.

    Examples
    --------
    >>> import numpy as np
    >>> source = from_arrays(np.zeros((10, 4)), ["a", "b"] * 5)
    >>> source.names, tuple(source.train_x.shape)
    (('a', 'b'), (8, 1, 1, 4))
    """
    check_value("name", name, str)
    x, y, users = kept = _checked(x, y, users)
    if isinstance(test, tuple | list) and len(test) in (2, 3):
        test_x, test_y, test_users = _checked(*test)
        other = test_x, test_y, test_users
        for part, a, b in zip(("samples", "labels", "users"), kept, other, strict=True):
            if b is not None and (a is None or _kind(a) != _kind(b)):
                raise ValueError(f"The test set's {part} are not of the kind of the others.")
    else:
        chosen = split_off(y if users is None else users, test)
        test_x, test_y, test_users = (None if a is None else a[chosen] for a in kept)
        x, y, users = (None if a is None else a[~chosen] for a in kept)
    if not len(x) or not len(test_x):
        raise ValueError(f"{len(x)} samples to train and {len(test_x)} to test are too few.")
    names: tuple[str, ...] = ()
    if y.dtype.kind == "U":
        kinds, numbers = np.unique(np.concatenate([y, test_y]), return_inverse=True)
        names, y, test_y = tuple(kinds.tolist()), numbers[: len(y)], numbers[len(y) :]
    classes = len(names) or int(max(y.max(), test_y.max())) + 1
    if not 2 <= classes <= len(y) + len(test_y):
        raise ValueError(
            f"Labels are 0 to the number of classes less 1, of at least two classes; {len(y)} "
            f"samples with {classes} classes are not learned from."
        )
    axes = (0, 1, 2) if x.shape[1:3] == (1, 1) else (0, 2, 3)
    mean, std = x.mean(axes, np.float64), x.std(axes, np.float64)
    m, s = tuple(mean.tolist()), tuple(np.where(std > 0, std, 1).tolist())
    x, y, test_x, test_y = (
        torch.from_numpy(np.ascontiguousarray(a)) for a in (x, y, test_x, test_y)
    )
    about = note, names, users, test_users
    return Source(name, x, y, test_x, test_y, m, s, classes, None, *about)


def from_dataset(dataset: Any, test: Any = 0.2, name: str = "own") -> Source:
    """A data set in torchvision's style: ``len`` and ``dataset[i]``, an image (PIL, array or
    tensor) and its label. ``test`` may be another one."""
    if hasattr(test, "__getitem__") and not isinstance(test, tuple):
        test = _items(test)
    x, y = _items(dataset)
    return from_arrays(x, y, test, name)


def from_folder(path: str | Path, size: int | None = None, test: Any = 0.2) -> Source:
    """A folder with a folder of images for each class, or two such folders, ``train`` and ``test``.
    ``size`` is the side of the squares that all images are scaled to; by default they stay as they
    are if they are all of one size, else it is 32."""
    check_value("size", size, int | None)
    if size is not None and not 1 <= size <= 4096:
        raise ValueError(f"size is a number of pixels from 1 to 4096, not {size!r}.")
    path = Path(path).resolve()
    if not path.is_dir():
        raise DataError(f"There is no folder {path}.")
    parts = [path / "train", path / "test"]
    parts = parts if all(part.is_dir() for part in parts) else [path]
    if new := {c.name for c in _folders(parts[-1])} - {c.name for c in _folders(parts[0])}:
        raise DataError(f"{parts[1]} has classes that train has not: {short(sorted(new))}.")
    listing = [(f, c.name, part) for part in parts for c in _folders(part) for f in _files(c)]
    if not listing:
        raise DataError(f"{path} has no folders with images in them, one for each class.")
    images = [open_image(file) for file, _, _ in listing]
    sizes, note = {image.size for image in images}, ""
    if size is None and len(sizes) > 1:
        size, note = 32, f"images of {len(sizes)} sizes, scaled to 32 x 32"
    grey = all(image.mode in ("1", "L", "LA") for image in images)
    images = [image.convert("L" if grey else "RGB") for image in images]
    if size is not None:
        images = [image.resize((size, size)) for image in images]
    x, y = np.stack([np.asarray(image) for image in images]), np.array([c for _, c, _ in listing])
    train = np.array([part == parts[0] for _, _, part in listing])
    if len(parts) == 2:
        test = x[~train], y[~train]
    return from_arrays(x[train], y[train], test, path.name, note=note)


def from_npz(path: str | Path) -> Source:
    """A file of ``numpy.savez`` with x and y, and maybe test_x and test_y, users and test_users."""
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:
        raise DataError(
            f"{path} is not a file of numpy.savez that can be read ({reason(error)})."
        ) from None
    for key in ("x", "y", *arrays):
        pick(key, dict.fromkeys(arrays), f"array in {path}")
        pick(key, dict.fromkeys(("x", "y", *TESTS, "users")), "array of a data set")
    test = tuple(arrays[key] for key in TESTS if key in arrays)
    if test and not {"test_x", "test_y"} <= arrays.keys():
        raise DataError(f"{path} needs both test_x and test_y for a test set of its own.")
    try:
        return from_arrays(arrays["x"], arrays["y"], test or 0.2, path.stem, arrays.get("users"))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def source_of(dataset: Any, users: Any = None) -> Source:
    """A ``Source`` from what a task takes: its name, a ``Source``, (x, y) or ((x, y), (x, y)), a
    data set, or the path of a folder or an ``.npz`` file. ``users``, of arrays only: whose each
    sample is."""
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


def _numpy(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError("Samples are not all of one shape: resize them.") from None


def images_of(x: Any) -> np.ndarray:
    """uint8 or finite float32 [n, channels, height, width]."""
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
            raise ValueError("Samples hold NaN, or numbers that are infinite in float32.")
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


def _checked(x: Any, y: Any, users: Any = None) -> tuple:
    """Samples, labels and users (whole numbers or texts [n], or None) that fit together."""
    x, y = images_of(x), _labels(y)
    users = None if users is None else np.array(_numpy(users).tolist())
    for part, column in (("labels", y), ("users", users)):
        if column is not None and column.shape != (len(x),):
            raise ValueError(f"{len(x)} samples cannot have {part} {list(column.shape)}.")
    return x, y, users


def _kind(a: np.ndarray) -> tuple:
    return a.dtype.kind, a.shape[1:]


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


def _items(dataset: Any) -> tuple[np.ndarray, list]:
    try:
        pairs = [dataset[i] for i in range(len(dataset))]
        x, y = zip(*pairs, strict=True)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise ValueError(
            f"A data set has a length, and dataset[i] is an image and its label ({error})."
        ) from None
    labels = [getattr(label, "item", lambda label=label: label)() for label in y]
    return _numpy([_numpy(image) for image in x]), labels


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _files(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGES and p.is_file())
