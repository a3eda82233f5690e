"""The image sets of the book as uint8 tensors, from the first place that has them.

Order: beside this file (digits), ``$FEDLEARN_DATA``, ``data/cache``, then a download by
torchvision. ``FEDLEARN_OFFLINE=1`` forbids the download. ``data/README.md`` lists the
sources, licences and accepted files."""

import gzip
import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from ..errors import DataError, extra, pick

# A checkout keeps its data beside the package. An installed wheel has a copy inside it,
# and may not be writable.
_REPO = Path(__file__).resolve().parents[2] / "data"
INSTALLED = not (_REPO / "partitions").is_dir()
DATA = Path(__file__).resolve().parents[1] / "bookdata" if INSTALLED else _REPO
CACHE = Path.home() / ".cache" / "fedlearn" if INSTALLED else DATA / "cache"
DIGITS = Path(__file__).with_name("digits.npz")
# CIFAR-100's super-class of each class, both in alphabetical order (Krizhevsky 2009),
# one base-20 digit each.
COARSE = [
    int(digit, 20)
    for digit in (
        "41e80677i33e9i7b397b6b5a76df3f0b1aceg9b55j88fdehiag4h420h4iha32ccgc19j2a01gc9dfdgj246j558ji12f60h8ed"
    )
]
TIMEOUT = 12  # seconds without an answer after which a download is given up
LOSSY = "CIFAR-100 from a lossy AVIF copy (quality 62)"


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """The input of a task: samples and their y, to train and to test.

    Samples are uint8 or float32 [n, channels, height, width]; vectors are [n, 1, 1,
    features]. y is a label for each, int64 [n], or another input of the task's loss.
    mean and std are those of the raw training values, for each channel, or for each
    feature of vectors."""

    name: str
    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    mean: tuple
    std: tuple
    classes: int
    coarse: np.ndarray | None = None  # int64 [classes]: the super-class of each class
    note: str = ""  # stands beside every figure that is made with this copy
    names: tuple = ()  # of the classes, if they are not 0, 1, ...
    users: np.ndarray | None = None  # int64 [n]: the user of each training sample
    test_users: np.ndarray | None = None  # the same of test samples; -1: no user
    labels: np.ndarray | None = None  # the main class, if ``train_y`` is no label
    columns: tuple = ()  # the names of a table's features
    user_names: tuple = ()
    channels: str | None = None  # the layout of the original arrays: "first" or "last"


def data_path(*parts: str) -> Path:
    """A path below the book's ``data``: ``data_path("partitions",
    "rpn_table4.csv")``."""
    return DATA.joinpath(*parts)


# ---- the sets


class Known(NamedTuple):
    """The size of a data set, and its origin."""

    classes: int
    origin: str = ""  # the size and the site of the download
    torchvision: str | None = None  # its class there, which fetches it
    places: tuple[str, ...] = ()  # patterns of files in a folder, the usual one first
    train: int = 0  # pictures of a set of which there are copies in part
    test: int = 0


SETS = {
    "digits": Known(10),
    "mnist": Known(
        10,
        "12 MB from ossci-datasets.s3.amazonaws.com/mnist",
        "MNIST",
        ("MNIST/raw/t10k-labels-idx1-ubyte*",),
    ),
    "fashion_mnist": Known(
        10,
        "31 MB from fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "FashionMNIST",
        ("FashionMNIST/raw/t10k-labels-idx1-ubyte*",),
    ),
    "cifar10": Known(
        10,
        "170 MB from www.cs.toronto.edu/~kriz/cifar.html",
        "CIFAR10",
        ("cifar-10-batches-py",),
    ),
    "cifar100": Known(
        100,
        "169 MB from www.cs.toronto.edu/~kriz/cifar.html",
        "CIFAR100",
        ("cifar-100-python", "cifar100.npz"),
    ),
}
ANNOTATED: dict[str, Known] = {}  # with boxes or masks: fedlearn.seeing adds its own


def facts(name: str) -> Known:
    """Size and origin of a data set, whose name may have a size behind it, such as
    "voc:96"."""
    return pick(name.partition(":")[0], SETS | ANNOTATED, "data set")


# ---- where it is


def _folders() -> list[Path]:
    """Those that may hold data."""
    folder = os.environ.get("FEDLEARN_DATA")
    return [Path(folder).expanduser(), CACHE] if folder else [CACHE]


def find_copy(name: str) -> Path | None:
    """The first copy on this machine; the network is not asked, and no image read."""
    if name.partition(":")[0] == "digits":
        return DIGITS
    for folder in _folders():
        for pattern in facts(name).places:
            copies = sorted(folder.glob(pattern))
            if copies:
                return copies[0]
    return None


def unpacked(name: str, origin: str) -> Path:
    """A folder that was fetched and unpacked by hand; ``DataError`` if there is none."""
    places = [folder / name for folder in _folders()]
    for place in places:
        if place.is_dir():
            return place
    raise DataError(f"{name} ({origin}) is to be unpacked as {places[0]}.")


def locate(name: str) -> Path:
    """The place of a data set, which is fetched if it is not on this machine;
    ``DataError`` if it cannot be."""
    if not find_copy(name):
        _fetch(name)
    place = find_copy(name)
    assert place is not None  # ``_fetch`` raises where it brings nothing
    return place


def _fetch(name: str) -> None:
    """Download into a folder of this process, then move the set, without its archive,
    into the cache in one step."""
    kind = facts(name).torchvision
    if kind is None:
        raise _absent(name, "has to be fetched by hand")
    if os.environ.get("FEDLEARN_OFFLINE", "0") not in ("", "0"):
        raise _absent(name, "FEDLEARN_OFFLINE forbids to fetch it")
    with extra("data"):
        from torchvision import datasets

    print(f"Fetching {name} into {CACHE}, once.", file=sys.stderr)
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # torchvision sets none: it would wait for ever
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=CACHE) as folder:
            getattr(datasets, kind)(folder, download=True)
            for path in Path(folder).iterdir():
                if path.is_dir() and not find_copy(name):  # else another was faster
                    shutil.rmtree(CACHE / path.name, ignore_errors=True)
                    path.replace(CACHE / path.name)
    except Exception as error:
        raise _absent(name, f"fetching it failed ({reason(error)})") from error
    finally:
        socket.setdefaulttimeout(timeout)


def _absent(name: str, why: str) -> DataError:
    folders = " and ".join(map(str, _folders()))
    entry = facts(name)
    network = ", or connect to the network once" if entry.torchvision else ""
    return DataError(
        f"The data set {name} ({entry.origin}) is not in {folders} and {why}: set "
        f"FEDLEARN_DATA to a folder that holds {entry.places[0]}{network}."
    )


# ---- readers: train x, train y, test x, test y from a file or folder
# Images are uint8 [n, height, width, channels], labels 0, 1, ...


def reason(error: BaseException) -> str:
    """The message of an error, in one line without its full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def open_image(path: Any) -> Any:
    """A PIL image that is in memory; ``DataError`` names a file that is none."""
    with extra("data"):
        from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
            return image
    except MemoryError:
        raise
    except Exception as error:
        raise DataError(
            f"{path} is no picture that can be read ({reason(error)})."
        ) from None


def digits(place: Any = None) -> tuple:
    """1,797 images of 8 x 8 with values 0..16. The split is part of the set: no seed
    moves it."""
    with np.load(DIGITS) as file:
        x = file["images"][..., None]
        y = file["labels"].astype(np.int64)
    order = np.random.RandomState(0).permutation(len(y))  # a stream that numpy keeps
    order = order[np.argsort(y[order], kind="stable")]
    test = np.isin(np.arange(len(order)), order[::4])  # every fourth of each class: 450
    return x[~test], y[~test], x[test], y[test]


def mnist(file: Path) -> tuple:
    """The four files of MNIST and Fashion-MNIST beside this one, as they are or
    gzipped."""

    arrays = []
    for part in ("train", "t10k"):
        for stem, header in (("images-idx3", 16), ("labels-idx1", 8)):
            path = file.parent / f"{part}-{stem}-ubyte"
            if path.exists():
                data = path.read_bytes()
            else:
                data = gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes())
            arrays.append(np.frombuffer(data, np.uint8, offset=header))
    x, y, test_x, test_y = arrays
    return x.reshape(-1, 28, 28, 1), y, test_x.reshape(-1, 28, 28, 1), test_y


def _batches(kind: str, folder: Path) -> tuple:
    """The official CIFAR batches. torchvision compares their md5 before it unpickles
    them."""
    with extra("data"):
        from torchvision import datasets

    make = getattr(datasets, kind)
    train, test = (make(folder.parent, train=part) for part in (True, False))
    return train.data, np.array(train.targets), test.data, np.array(test.targets)


def cifar100(place: Path) -> tuple:
    """The official batches, or arrays in a file of numpy: a lossy copy."""
    if place.is_dir():
        return _batches("CIFAR100", place)
    arrays = np.load(place)
    return tuple(arrays[name] for name in ("x_train", "y_train", "x_test", "y_test"))


READERS: dict[str, Callable[[Path], tuple]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": mnist,
    "cifar10": partial(_batches, "CIFAR10"),
    "cifar100": cifar100,
}


def moments(x: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation (1 if it is 0) of each channel, or of each feature of
    vectors [n, 1, 1, features]."""
    if x.shape[1:3] == (1, 1):
        x = x.transpose(1, 3)
    if x.dtype == torch.uint8:
        # Counts of the 256 values give both exactly, with no float copy of the images.
        bands = [torch.bincount(band.flatten(), minlength=256) for band in x.unbind(1)]
        share = torch.stack(bands).double()
        share = share / share.sum(1, keepdim=True)
        value = torch.arange(256.0, dtype=torch.float64)
        mean = share @ value
        std = (share @ value**2 - mean**2).sqrt()
    else:
        std, mean = torch.std_mean(x.double(), (0, 2, 3), correction=0)
    return tuple(mean.tolist()), tuple(value or 1.0 for value in std.tolist())


@lru_cache
def load(name: str) -> Source:
    """The `Source` called ``name``; every caller gets the same tensors, so change none
    of them in place.

    Raises ValueError for an unknown name and DataError for a set that is absent or
    damaged."""
    classes = pick(name, SETS, "data set").classes
    place = locate(name)
    try:
        x, y, other_x, other_y = READERS[name](place)
        train_x, train_y = _tensors(x, y, classes)
        test_x, test_y = _tensors(other_x, other_y, classes)
        mean, std = moments(train_x)
    except MemoryError:
        raise
    except Exception as error:
        why = f"cannot be read ({reason(error)}): replace or remove it."
        raise DataError(f"The copy of {name} at {place} {why}") from error
    return Source(
        name,
        train_x,
        train_y,
        test_x,
        test_y,
        mean,
        std,
        classes,
        coarse=np.array(COARSE) if name == "cifar100" else None,
        note=LOSSY if place.name == "cifar100.npz" else "",
    )


def _tensors(x: np.ndarray, y: np.ndarray, classes: int) -> tuple:
    """Images [n, height, width, channels] and labels as tensors, channels first."""
    images = torch.from_numpy(np.array(x.transpose(0, 3, 1, 2), order="C"))
    labels = torch.from_numpy(y.astype(np.int64))
    fits = images.dtype == torch.uint8 and 0 < len(images) == len(labels)
    if not fits or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError("images and labels do not fit together")
    return images, labels
