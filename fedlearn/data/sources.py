"""The image sets of the book as uint8 tensors, from the first place that has them.

Order: inside scikit-learn (digits), ``$FEDLEARN_DATA``, ``data/cache``, then a download by
torchvision. ``FEDLEARN_OFFLINE=1`` forbids the download. ``data/README.md`` lists the sources,
licences and accepted files."""

import os
import shutil
import socket
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from ..errors import DataError, no_memory, pick
from . import readers
from .readers import count_files, reason

# A checkout keeps its data beside the package; an installed wheel carries a copy inside it and may
# not be writable.
_REPO = Path(__file__).resolve().parents[2] / "data"
INSTALLED = not (_REPO / "partitions").is_dir()
DATA = Path(__file__).resolve().parents[1] / "bookdata" if INSTALLED else _REPO
CACHE = Path.home() / ".cache" / "fedlearn" if INSTALLED else DATA / "cache"

# CIFAR-100's super-class of each class, both in alphabetical order (Krizhevsky 2009), one base-20
# digit each.
_COARSE = (
    "41e80677i33e9i7b397b6b5a76df3f0b1aceg9b55j88fdehiag4h420h4iha32ccgc19j2a01gc9dfdgj246j558ji"
)
_COARSE += "12f60h8ed"
COARSE = [int(digit, 20) for digit in _COARSE]
PATIENCE = 12  # seconds without an answer after which a download is given up
LOSSY = "CIFAR-100 from a lossy AVIF copy (quality 62)"


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """Images uint8 (your own: or float32) [n, channels, height, width], labels int64 [n]; mean, std
    per channel of the raw training values, per feature if they are vectors."""

    name: str
    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    mean: tuple
    std: tuple
    classes: int
    coarse: np.ndarray | None = None  # int64 [classes]: the super-class of each class
    note: str = ""  # print it beside every figure made with this copy
    names: tuple[str, ...] = ()  # of the classes, if they have any
    users: np.ndarray | None = None  # whose each training sample is: whole numbers or texts [n]
    test_users: np.ndarray | None = None  # the same of the test samples
    labels: np.ndarray | None = None  # the main class of each, if ``train_y`` has more than that
    counts: np.ndarray | None = None  # how many objects it shows, int [n]

    def column(self, name: str) -> torch.Tensor:
        """Of each training sample what a partition goes ``by``: "labels" or "counts"."""
        if name == "labels" and self.labels is None:
            return self.train_y
        if getattr(self, name) is None:
            raise ValueError(f"{self.name} has one object an image: there is nothing to count.")
        return torch.as_tensor(getattr(self, name))


def data_path(*parts: str) -> Path:
    """A path below the book's ``data`` folder: ``data_path("partitions", "rpn_table4.csv")``."""
    return DATA.joinpath(*parts)


class Known(NamedTuple):
    """What is known of a data set before it is there."""

    classes: int
    shape: tuple[int, int, int]  # channels, height, width
    train: int  # images
    test: int
    site: str = ""  # where it comes from, with so many megabytes
    megabytes: int = 0
    torchvision: str | None = None  # its class there, which fetches it
    places: tuple = ()  # what to look for in a folder, how to read it, a note


def _mnist(folder, *rest):
    place = f"{folder}/raw/t10k-labels-idx1-ubyte*", readers.idx, ""
    return Known(10, (1, 28, 28), 60000, 10000, *rest, folder, (place,))


def _folders(reader, *names):
    return tuple((name, reader, "") for name in names)


TORONTO = "www.cs.toronto.edu/~kriz/cifar.html"
SETS = {
    "digits": Known(10, (1, 8, 8), 1347, 450),
    "mnist": _mnist("MNIST", "ossci-datasets.s3.amazonaws.com/mnist", 12),
    "fashion_mnist": _mnist(
        "FashionMNIST", "fashion-mnist.s3-website.eu-central-1.amazonaws.com", 31
    ),
    "cifar10": Known(
        *(10, (3, 32, 32), 50000, 10000, TORONTO, 170, "CIFAR10"),
        (
            ("cifar-10-batches-py", readers.cifar_batches, ""),
            ("cifar10/cifar10_index.npz", readers.cifar10_sheets, ""),
        ),
    ),
    "cifar100": Known(
        *(100, (3, 32, 32), 50000, 10000, TORONTO, 169, "CIFAR100"),
        (
            ("cifar-100-python", readers.cifar_batches, ""),
            ("cifar100.npz", readers.cifar100_npz, LOSSY),
            ("cifar100/cifar100_avif62.npz", readers.cifar100_npz, LOSSY),
        ),
    ),
    "cinic10": Known(
        *(10, (3, 32, 32), 90000, 90000, "datashare.ed.ac.uk/handle/10283/3192", 688, None),
        _folders(readers.cinic10, "CINIC-10", "cinic-10", "cinic10"),
    ),
    "tiny_imagenet": Known(
        *(200, (3, 64, 64), 100000, 10000, "cs231n.stanford.edu/tiny-imagenet-200.zip", 248, None),
        _folders(readers.tiny_imagenet, "tiny-imagenet-200"),
    ),
}
# For detection (fedlearn.data.published reads them), whole or a packed part, of 160 x 160 pixels.
ANNOTATED = {
    "voc": Known(
        *(20, (3, 160, 160), 5717, 5823, "host.robots.ox.ac.uk/pascal/VOC/voc2012", 1999),
        *("VOCDetection", _folders(None, "VOCdevkit", "voc_subset.zip")),
    ),
    "coco": Known(
        *(80, (3, 160, 160), 118287, 5000, "cocodataset.org", 19900, None),
        _folders(None, "coco", "coco_subset.zip"),
    ),
}


def about(name: str) -> Known:
    """What is known of a data set, whose name may have a size behind it, such as "voc:96"."""
    return pick(name.partition(":")[0], SETS | ANNOTATED, "data set")


def _places():
    """The folders that may hold data."""
    named = os.environ.get("FEDLEARN_DATA")
    return [Path(named).expanduser(), CACHE] if named else [CACHE]


def _find(name):
    """(file or folder, reader, note) of the first local copy, or None."""
    if name.partition(":")[0] == "digits":
        return Path("scikit-learn"), readers.digits, ""
    copies = (
        (path, read, note)
        for folder in _places()
        for look, read, note in about(name).places
        for path in sorted(folder.glob(look))
    )
    return next(copies, None)


def available(name: str) -> bool:
    """Is there a copy on this machine? Never asks the network and reads no image."""
    return _find(name) is not None


def note(name: str) -> str:
    """What to print beside figures made with the copy on this machine; empty for most."""
    copy = _find(name)
    if copy and name in ("cinic10", "tiny_imagenet"):  # which may be a part
        with suppress(OSError, ValueError, DataError):  # said where it is read
            return _part(name, *count_files(name, copy[0]))
    return copy[2] if copy else ""


def _part(name, train, test):
    """What to say of a copy with so many images; empty if it is whole."""
    whole = about(name)
    if (train, test) == (whole.train, whole.test):
        return ""
    images = f"{train:,} of {whole.train:,} images to train, {test:,} of {whole.test:,} to test"
    return f"a part of {name}: {images}"


def found(name: str) -> Path:
    """Where a data set lies, which is fetched if it has to be; ``DataError`` if it cannot be."""
    if _find(name) is None:
        _fetch(name)
    return Path(_find(name)[0])


def missing(names: Iterable[str]) -> list[str]:
    """A line for each data set that is not on this machine, whatever the size of its pictures:
    which, how large, where from."""
    names = dict.fromkeys(name.partition(":")[0] for name in names)
    wanted = [name for name in names if not available(name)]
    return [f"{name}: {origin(name, not about(name).torchvision)}" for name in wanted]


def origin(name: str, by_hand: bool = True) -> str:
    """How large a data set is and where from, and where it has to lie."""
    known = about(name)
    folder = f", to be unpacked as {known.places[0][0]} in FEDLEARN_DATA" if by_hand else ""
    return f"{known.megabytes} MB from {known.site}{folder}"


def offline() -> bool:
    """Whether ``FEDLEARN_OFFLINE`` forbids to fetch anything."""
    return os.environ.get("FEDLEARN_OFFLINE", "0") not in ("", "0")


def _absent(name, why):
    places, known = " and ".join(map(str, _places())), about(name)
    by_hand = f" as {known.places[0][0]}."
    remedy = ", or connect to the network once." if known.torchvision else by_hand
    return DataError(
        f"The data set {name} ({known.megabytes} MB, from {known.site}) is not in {places} "
        f"and {why}: set FEDLEARN_DATA to a folder that holds it{remedy}"
    )


def _fetch(name):
    """Download into a folder of this process's own, then put it into the cache in one step."""
    kind = about(name).torchvision
    if kind is None:
        raise _absent(name, "has to be fetched by hand")
    if offline():
        raise _absent(name, "FEDLEARN_OFFLINE forbids to fetch it")
    from torchvision import datasets

    print(f"Fetching {name} into {CACHE}, once.", file=sys.stderr)
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)  # torchvision sets none: it would wait for ever
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=CACHE) as folder:
            with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
                getattr(datasets, kind)(folder, download=True)
            for path in Path(folder).iterdir():
                if path.is_dir() and _find(name) is None:  # nobody was faster
                    shutil.rmtree(CACHE / path.name, ignore_errors=True)
                    path.replace(CACHE / path.name)
    except Exception as error:
        raise _absent(name, f"fetching it failed ({reason(error)})") from error
    finally:
        socket.setdefaulttimeout(timeout)


def moments(x: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, x [n, channels, height, width]."""
    if x.dtype != torch.uint8:
        std, mean = torch.std_mean(x.double(), (0, 2, 3), correction=0)
        return tuple(mean.tolist()), tuple(std.tolist())
    # Counts of the 256 values give both exactly, with no float copy of the images.
    counts = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in x.unbind(1)]).double()
    value, share = torch.arange(256.0, dtype=torch.float64), counts / counts.sum(1, keepdim=True)
    mean = share @ value
    return tuple(mean.tolist()), tuple((share @ value**2 - mean**2).sqrt().tolist())


@lru_cache
def load(name: str) -> Source:
    """The `Source` called ``name``; every caller gets the same tensors, so change none of them in
    place.

    Raises ValueError for an unknown name and DataError for a set that is absent or damaged.
    """
    classes = pick(name, SETS, "data set").classes
    found(name)
    place, read, note = _find(name)
    try:
        arrays = read(place)
        images = (np.array(x.transpose(0, 3, 1, 2), order="C") for x in arrays[::2])
        train_x, test_x = map(torch.from_numpy, images)
        train_y, test_y = (torch.from_numpy(y.astype(np.int64)) for y in arrays[1::2])
        for x, y in ((train_x, train_y), (test_x, test_y)):
            fits = x.dtype == torch.uint8 and len(x) == len(y)
            if not fits or not 0 <= int(y.min()) <= int(y.max()) < classes:
                raise ValueError("images and labels do not fit together")
        mean, std = moments(train_x)
    except Exception as error:
        if no_memory(error):
            raise MemoryError(f"There is not enough memory to read {name}.") from error
        why = f"cannot be read ({reason(error)}): replace or remove it."
        raise DataError(f"The copy of {name} at {place} {why}") from error
    note = note or _part(name, len(train_y), len(test_y))
    coarse = np.array(COARSE) if name == "cifar100" else None
    return Source(name, train_x, train_y, test_x, test_y, mean, std, classes, coarse, note)
