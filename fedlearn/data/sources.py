"""The image sets of the book as uint8 tensors, from the first place that has them.

Order: beside this file (digits), ``$FEDLEARN_DATA``, ``data/cache``, then a download by
torchvision. ``FEDLEARN_OFFLINE=1`` forbids the download. ``data/README.md`` lists the
sources, licences and accepted files."""

import gzip
import io
import os
import shutil
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
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
IMAGES = ".png .jpg .jpeg .bmp .gif .webp .ppm .pgm .pbm .tif .tiff".split()
Listing = Sequence[tuple[Path, int]]  # files and their labels


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """What a task takes: samples and their y, to train and to test.

    Samples are uint8 or float32 [n, channels, height, width]; vectors are [n, 1, 1,
    features]. y is a label for each, int64 [n], or whatever a task's loss takes. mean
    and std are of the raw training values, for each channel, or for each feature of
    vectors."""

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
    test_users: np.ndarray | None = None  # the same of test samples; -1: of nobody
    labels: np.ndarray | None = None  # the main class, if ``train_y`` is no label
    counts: np.ndarray | None = None  # int [n]: how many objects a picture shows
    columns: tuple = ()  # the names of a table's features
    user_names: tuple = ()
    channels: str | None = None  # as the samples were given: "first" or "last"

    def column(self, name: str) -> torch.Tensor:
        """Of each training sample what a partition goes by: "labels" or "counts"."""
        if name == "labels" and self.labels is None:
            return self.train_y
        values = getattr(self, name)
        if values is None:
            raise ValueError(
                f"{self.name} has one object an image: there is nothing to count."
            )
        return torch.as_tensor(values)


def data_path(*parts: str) -> Path:
    """A path below the book's ``data``: ``data_path("partitions",
    "rpn_table4.csv")``."""
    return DATA.joinpath(*parts)


# ---- what is known of a data set before it is there


class Known(NamedTuple):
    """How large a data set is, and where it comes from."""

    classes: int
    shape: tuple[int, int, int]  # channels, height, width
    train: int  # images
    test: int
    site: str = ""  # where it comes from, with so many megabytes
    megabytes: int = 0
    torchvision: str | None = None  # its class there, which fetches it
    places: tuple[str, ...] = ()  # what to look for in a folder, the usual one first


AMAZON = "ossci-datasets.s3.amazonaws.com/mnist"
ZALANDO = "fashion-mnist.s3-website.eu-central-1.amazonaws.com"
TORONTO = "www.cs.toronto.edu/~kriz/cifar.html"
EDINBURGH = "datashare.ed.ac.uk/handle/10283/3192"
STANFORD = "cs231n.stanford.edu/tiny-imagenet-200.zip"
SETS = {
    "digits": Known(10, (1, 8, 8), 1347, 450),
    "mnist": Known(
        10,
        (1, 28, 28),
        60000,
        10000,
        AMAZON,
        12,
        "MNIST",
        ("MNIST/raw/t10k-labels-idx1-ubyte*",),
    ),
    "fashion_mnist": Known(
        10,
        (1, 28, 28),
        60000,
        10000,
        ZALANDO,
        31,
        "FashionMNIST",
        ("FashionMNIST/raw/t10k-labels-idx1-ubyte*",),
    ),
    "cifar10": Known(
        10,
        (3, 32, 32),
        50000,
        10000,
        TORONTO,
        170,
        "CIFAR10",
        ("cifar-10-batches-py", "cifar10/cifar10_index.npz"),
    ),
    "cifar100": Known(
        100,
        (3, 32, 32),
        50000,
        10000,
        TORONTO,
        169,
        "CIFAR100",
        ("cifar-100-python", "cifar100.npz", "cifar100/cifar100_avif62.npz"),
    ),
    "cinic10": Known(
        10,
        (3, 32, 32),
        90000,
        90000,
        EDINBURGH,
        688,
        None,
        ("CINIC-10", "cinic-10", "cinic10"),
    ),
    "tiny_imagenet": Known(
        200,
        (3, 64, 64),
        100000,
        10000,
        STANFORD,
        248,
        None,
        ("tiny-imagenet-200",),
    ),
}
ANNOTATED: dict[str, Known] = {}  # with boxes or masks: fedlearn.seeing adds its own


def about(name: str) -> Known:
    """What is known of a data set, whose name may have a size behind it, such as
    "voc:96"."""
    return pick(name.partition(":")[0], SETS | ANNOTATED, "data set")


# ---- where it is


def _folders() -> list[Path]:
    """Those that may hold data."""
    folder = os.environ.get("FEDLEARN_DATA")
    return [Path(folder).expanduser(), CACHE] if folder else [CACHE]


def _find(name: str) -> Path | None:
    """The first local copy."""
    if name.partition(":")[0] == "digits":
        return DIGITS
    for folder in _folders():
        for pattern in about(name).places:
            copies = sorted(folder.glob(pattern))
            if copies:
                return copies[0]
    return None


def available(name: str) -> bool:
    """Is there a copy on this machine? Never asks the network and reads no image."""
    return _find(name) is not None


def locate(name: str) -> Path:
    """Where a data set lies, which is fetched if it has to be; ``DataError`` if it
    cannot be."""
    if not available(name):
        _fetch(name)
    place = _find(name)
    assert place is not None  # ``_fetch`` raises where it brings nothing
    return place


def note(name: str) -> str:
    """What to print beside figures made with the copy on this machine; empty for
    most."""
    place = _find(name)
    if place and name in LISTINGS:  # which may be a part
        with suppress(OSError, ValueError, DataError):  # said where it is read
            return _part(name, *count_listed(name, place))
    return LOSSY if place and _lossy(name, place) else ""


def _lossy(name: str, place: Path) -> bool:
    return name == "cifar100" and place.suffix == ".npz"


def _part(name: str, train: int, test: int) -> str:
    """What to say of a copy with so many images; empty if it is whole."""
    whole = about(name)
    if (train, test) == (whole.train, whole.test):
        return ""
    return (
        f"a part of {name}: {train:,} of {whole.train:,} images to train, {test:,} of "
        f"{whole.test:,} to test"
    )


def missing(names: Iterable[str]) -> list[str]:
    """A line for each data set that is not on this machine: which, how large, where
    from."""
    names = dict.fromkeys(name.partition(":")[0] for name in names)
    absent = [name for name in names if not available(name)]
    return [f"{name}: {origin(name, not about(name).torchvision)}" for name in absent]


def origin(name: str, by_hand: bool = True) -> str:
    """How large a data set is and where from, and where it has to lie."""
    entry = about(name)
    folder = (
        f", to be unpacked as {entry.places[0]} in FEDLEARN_DATA" if by_hand else ""
    )
    return f"{entry.megabytes} MB from {entry.site}{folder}"


def offline() -> bool:
    """Whether ``FEDLEARN_OFFLINE`` forbids to fetch anything."""
    return os.environ.get("FEDLEARN_OFFLINE", "0") not in ("", "0")


def _absent(name: str, why: str) -> DataError:
    entry = about(name)
    folders = " and ".join(map(str, _folders()))
    remedy = f" as {entry.places[0]}."
    if entry.torchvision:
        remedy = ", or connect to the network once."
    return DataError(
        f"The data set {name} ({entry.megabytes} MB, from {entry.site}) is not in "
        f"{folders} and {why}: set FEDLEARN_DATA to a folder that holds it{remedy}"
    )


def _fetch(name: str) -> None:
    """Download into a folder of this process, then put it into the cache in one
    step."""
    kind = about(name).torchvision
    if kind is None:
        raise _absent(name, "has to be fetched by hand")
    if offline():
        raise _absent(name, "FEDLEARN_OFFLINE forbids to fetch it")
    with extra("data"):
        from torchvision import datasets

    print(f"Fetching {name} into {CACHE}, once.", file=sys.stderr)
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # torchvision sets none: it would wait for ever
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=CACHE) as folder:
            with (
                open(os.devnull, "w") as null,
                redirect_stdout(null),
                redirect_stderr(null),
            ):
                getattr(datasets, kind)(folder, download=True)
            for path in Path(folder).iterdir():
                if path.is_dir() and not available(name):  # nobody was faster
                    shutil.rmtree(CACHE / path.name, ignore_errors=True)
                    path.replace(CACHE / path.name)
    except Exception as error:
        raise _absent(name, f"fetching it failed ({reason(error)})") from error
    finally:
        socket.setdefaulttimeout(timeout)


# ---- readers: train x, train y, test x, test y from a file or folder
# Images are uint8 [n, height, width, channels], labels 0, 1, ...


def reason(error: BaseException) -> str:
    """What an error says, in one line without its full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def open_image(path: Any) -> Any:
    """A PIL image that is in memory; ``DataError`` names the file that is none."""
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
        x, y = file["images"][..., None], file["labels"].astype(np.int64)
    order = np.random.RandomState(0).permutation(
        len(y)
    )  # numpy keeps this stream for good
    order = order[np.argsort(y[order], kind="stable")]
    test = np.isin(np.arange(len(order)), order[::4])  # every fourth of each class: 450
    return x[~test], y[~test], x[test], y[test]


def mnist(file: Path) -> tuple:
    """The four files of MNIST and Fashion-MNIST beside this one, as they are or
    gzipped."""

    def array(stem, header):
        path = file.parent / f"{stem}-ubyte"
        zipped = path.with_name(f"{path.name}.gz")
        data = (
            path.read_bytes() if path.exists() else gzip.decompress(zipped.read_bytes())
        )
        shape = struct.unpack_from(f">{header}I", data)[1:]  # after the magic number
        return np.frombuffer(data, np.uint8, offset=4 * header).reshape(shape)

    x, test_x = (
        array(f"{part}-images-idx3", 4)[..., None] for part in ("train", "t10k")
    )
    y, test_y = (array(f"{part}-labels-idx1", 2) for part in ("train", "t10k"))
    return x, y, test_x, test_y


def _batches(kind: str, folder: Path) -> tuple:
    """The official CIFAR batches. torchvision compares their md5 before it unpickles
    them."""
    with extra("data"):
        from torchvision import datasets

    train, test = (
        getattr(datasets, kind)(folder.parent, train=part) for part in (True, False)
    )
    return train.data, np.array(train.targets), test.data, np.array(test.targets)


def _sheet(file: Any) -> np.ndarray:
    """A 3200 x 3200 sheet of 100 x 100 tiles, row by row: uint8 [10000, 32, 32, 3]."""
    pixels = np.asarray(open_image(file).convert("RGB"))
    return pixels.reshape(100, 32, 100, 32, 3).swapaxes(1, 2).reshape(10000, 32, 32, 3)


def cifar10(place: Path) -> tuple:
    """The official batches, or six lossless WebP sheets, training first, and an index
    of labels."""
    if place.suffix != ".npz":
        return _batches("CIFAR10", place)
    y = np.load(place)["labels"]
    stems = *(f"data_batch_{k}" for k in range(1, 6)), "test_batch"
    *train, test = (_sheet(place.parent / f"{stem}.webp") for stem in stems)
    return np.concatenate(train), y[:50000], test, y[50000:]


def cifar100(place: Path) -> tuple:
    """The official batches, or a lossy copy: six AVIF sheets, or the arrays unpacked
    from them."""
    if not _lossy("cifar100", place):
        return _batches("CIFAR100", place)
    z = np.load(place)
    if "x_train" in z:
        return z["x_train"], z["y_train"], z["x_test"], z["y_test"]
    with extra("data"):
        from PIL import features

    if not features.check("avif"):
        raise DataError("AVIF needs Pillow 11.3 or later")
    data, y, train = z["avif"], z["labels"], z["split"] == 0
    sheets = (io.BytesIO(data[a:b].tobytes()) for a, b in pairwise(z["offsets"]))
    x = np.concatenate([_sheet(sheet) for sheet in sheets])
    return x[train], y[train], x[~train], y[~train]


def folders(path: Path) -> list[Path]:
    """Those in a folder, but for what the operating system hides."""
    return sorted(
        p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")
    )


def images(path: Path) -> list[Path]:
    """The files of images in a folder, likewise."""
    visible = (
        p for p in path.iterdir() if p.suffix.lower() in IMAGES and p.name[0] != "."
    )
    return sorted(p for p in visible if p.is_file())


def _labelled(classes: Sequence[Path]) -> Listing:
    """The pictures in the folder of each class, of which none may be empty."""
    listing = [(file, i) for i, place in enumerate(classes) for file in images(place)]
    if empty := {*range(len(classes))} - {i for _, i in listing}:
        raise DataError(f"{classes[min(empty)]} has no pictures.")
    return listing


def _cinic10(folder: Path) -> tuple[Listing, Listing]:
    """``{train,test}/<class>/*.png``, 90,000 each; as the authors of FedGKT do, the
    90,000 of ``valid`` are left alone."""
    classes = [path.name for path in folders(folder / "train")]
    if len(classes) != 10:
        raise DataError(
            f"train has {len(classes)} folders, not one for each of 10 classes."
        )
    train, test = (
        _labelled([folder / part / c for c in classes]) for part in ("train", "test")
    )
    return train, test


def _tiny_imagenet(folder: Path) -> tuple[Listing, Listing]:
    """``train/<class>/images/*.JPEG``, 500 of each of the classes in ``wnids.txt``;
    copies without ``images`` are read, too. The published test pictures have no labels,
    so those of ``val`` are the test."""
    classes = sorted({*(folder / "wnids.txt").read_text(encoding="utf-8-sig").split()})
    lines = (
        (folder / "val" / "val_annotations.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    rows = (line.split("\t")[:2] for line in lines if line.strip())
    test = [
        (folder / "val" / "images" / file, classes.index(name)) for file, name in rows
    ]
    places = [folder / "train" / name / "images" for name in classes]
    return _labelled(
        [place if place.is_dir() else place.parent for place in places]
    ), test


LISTINGS = {
    "cinic10": _cinic10,
    "tiny_imagenet": _tiny_imagenet,
}  # their pictures, with labels


def count_listed(name: str, folder: Path) -> tuple[int, int]:
    """How many pictures a copy of one of ``LISTINGS`` has, to train and to test; none
    is opened."""
    train, test = LISTINGS[name](folder)
    return len(train), sum(file.exists() for file, _ in test)


def _pictures(name: str, folder: Path) -> tuple:
    """Those of one of ``LISTINGS`` in RGB, grey ones too."""
    size, arrays = SETS[name].shape[1], []
    for listing in LISTINGS[name](folder):
        x = np.empty((len(listing), size, size, 3), np.uint8)
        for row, (file, _) in zip(x, listing, strict=True):
            image = open_image(file)
            if image.size != (size, size):
                raise DataError(f"{file} is {image.width} x {image.height} pixels.")
            row[:] = np.asarray(image.convert("RGB"))
        arrays += [x, np.array([label for _, label in listing])]
    return tuple(arrays)


READERS: dict[str, Callable[[Path], tuple]] = {
    **{"digits": digits, "mnist": mnist, "fashion_mnist": mnist},
    **{"cifar10": cifar10, "cifar100": cifar100},
    **{name: partial(_pictures, name) for name in LISTINGS},
}


def moments(x: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation (1 if it is 0) of each channel, or of each feature of
    vectors [n, 1, 1, features]."""
    if x.shape[1:3] == (1, 1):
        x = x.transpose(1, 3)
    if x.dtype == torch.uint8:
        # Counts of the 256 values give both exactly, with no float copy of the images.
        counts = [
            torch.bincount(channel.flatten(), minlength=256) for channel in x.unbind(1)
        ]
        share = torch.stack(counts).double()
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
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise MemoryError(f"There is not enough memory to read {name}.") from error
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
        note=LOSSY if _lossy(name, place) else _part(name, len(train_y), len(test_y)),
    )


def _tensors(x: np.ndarray, y: np.ndarray, classes: int) -> tuple:
    """Images [n, height, width, channels] and labels as tensors, channels first."""
    images = torch.from_numpy(np.array(x.transpose(0, 3, 1, 2), order="C"))
    labels = torch.from_numpy(y.astype(np.int64))
    fits = images.dtype == torch.uint8 and 0 < len(images) == len(labels)
    if not fits or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError("images and labels do not fit together")
    return images, labels
