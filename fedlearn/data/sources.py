"""The image sets of the book as uint8 tensors, from the first place that has them.

Order: inside scikit-learn (digits), ``$FEDLEARN_DATA``, ``data/cache``, then a download by
torchvision. ``FEDLEARN_OFFLINE=1`` forbids the download. ``data/README.md`` lists the sources,
licences and accepted files."""

import gzip
import io
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedlearn.errors import DataError, no_memory, pick

from ..files import claim, claimed
from .folders import cinic10, counted, tiny_imagenet

# A checkout keeps its data beside the package; an installed wheel carries a copy inside it and may
# not be writable.
_REPO = Path(__file__).resolve().parents[2] / "data"
INSTALLED = not (_REPO / "partitions").is_dir()
DATA = Path(__file__).resolve().parents[1] / "bookdata" if INSTALLED else _REPO
CACHE = Path.home() / ".cache" / "fedlearn" if INSTALLED else DATA / "cache"

# CIFAR-100's super-class of each class, both in alphabetical order (Krizhevsky 2009), one base-20
# digit each.
COARSE = [
    int(d, 20)
    for d in "41e80677i33e9i7b397b6b5a76df3f0b1aceg9b55j88fdehia"
    "g4h420h4iha32ccgc19j2a01gc9dfdgj246j558ji12f60h8ed"
]
PATIENCE = 12  # seconds without a byte after which a download is given up
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


def _digits(folder=None):
    """1,797 images of 8 x 8 with values 0..16. The split belongs to the set: no experiment seed
    moves it."""
    x, y = _digits_table()
    order = np.random.RandomState(0).permutation(
        len(y)
    )  # RandomState: numpy has frozen this stream for good
    order = order[
        np.argsort(y[order], kind="stable")
    ]  # grouped by class: every fourth is a stratified 450
    test = np.isin(np.arange(len(order)), order[::4])
    x = x.reshape(-1, 8, 8, 1).astype(np.uint8)
    return x[~test], y[~test], x[test], y[test]


def _digits_table():
    """Pixels [1797, 64] and labels, from scikit-learn's file: importing scikit-learn to read it
    takes longer than a round."""
    path = Path(find_spec("sklearn").origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path.exists():
        table = np.loadtxt(path, delimiter=",", dtype=np.int64)
        return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def _idx(folder):
    """MNIST's and Fashion-MNIST's four files, as they are or gzipped."""

    def array(stem, header):
        raw = folder / stem
        data = (
            raw.read_bytes()
            if raw.exists()
            else gzip.decompress((folder / f"{stem}.gz").read_bytes())
        )
        shape = struct.unpack_from(f">{header}I", data)[1:]  # after the magic number
        return np.frombuffer(data, np.uint8, offset=4 * header).reshape(
            shape
        )  # fails where the length does not fit

    kinds = (("images-idx3", 4), ("labels-idx1", 2))
    x, y, test_x, test_y = (
        array(f"{s}-{kind}-ubyte", n) for s in ("train", "t10k") for kind, n in kinds
    )
    return x[..., None], y, test_x[..., None], test_y


def _torchvision(folder):
    """The official CIFAR batches. torchvision compares their md5 before it unpickles them."""
    from torchvision import datasets

    kind = datasets.CIFAR10 if folder.name == "cifar-10-batches-py" else datasets.CIFAR100
    sets = [kind(folder.parent, train=train) for train in (True, False)]
    return tuple(a for s in sets for a in (s.data, np.array(s.targets)))


def _sheet(file):
    """One 3200 x 3200 sheet of 100 x 100 tiles, read row by row: uint8 [10000, 32, 32, 3]."""
    from PIL import Image

    pixels = np.asarray(Image.open(file).convert("RGB"))
    return pixels.reshape(100, 32, 100, 32, 3).swapaxes(1, 2).reshape(10000, 32, 32, 3)


def _webp(index):
    """CIFAR-10 as six lossless WebP sheets, training batches first, and an index with the
    labels."""
    y = np.load(index)["labels"]
    sheets = [
        index.parent / f"{s}.webp"
        for s in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
    ]
    return np.concatenate([_sheet(s) for s in sheets[:5]]), y[:50000], _sheet(sheets[5]), y[50000:]


def _npz(file):
    """CIFAR-100's lossy copy: six AVIF sheets with labels, or the arrays unpacked from them."""
    from PIL import features

    z = np.load(file)
    if "x_train" in z:
        return z["x_train"], z["y_train"], z["x_test"], z["y_test"]
    if not features.check("avif"):
        raise ValueError("AVIF needs Pillow 11.3 or later")
    data, at, y, train = z["avif"], z["offsets"], z["labels"], z["split"] == 0
    x = np.concatenate([_sheet(io.BytesIO(data[a:b].tobytes())) for a, b in pairwise(at)])
    return x[train], y[train], x[~train], y[~train]


class Known(NamedTuple):
    """What is known of a data set before it is there."""

    classes: int
    shape: tuple[int, int, int]  # channels, height, width
    train: int  # images
    test: int
    site: str = ""  # where it comes from, with so many megabytes
    megabytes: int = 0
    torchvision: str | None = None  # its class there, which fetches it
    # what to look for in a folder, how to read it, a note. For the MNISTs that is the file
    # torchvision fetches last, so that a broken-off download is taken up again.
    places: tuple = ()


def _mnist(folder, *rest):
    look = f"{folder}/raw/t10k-labels-idx1-ubyte*"
    place = look, lambda f: _idx(f.parent), ""
    return Known(10, (1, 28, 28), 60000, 10000, *rest, folder, (place,))


TORONTO = "www.cs.toronto.edu/~kriz/cifar.html"
SETS = {
    "digits": Known(10, (1, 8, 8), 1347, 450),
    "mnist": _mnist("MNIST", "ossci-datasets.s3.amazonaws.com/mnist", 12),
    "fashion_mnist": _mnist(
        "FashionMNIST", "fashion-mnist.s3-website.eu-central-1.amazonaws.com", 31
    ),
    "cifar10": Known(
        *(10, (3, 32, 32), 50000, 10000, TORONTO, 170, "CIFAR10"),
        (("cifar-10-batches-py", _torchvision, ""), ("cifar10/cifar10_index.npz", _webp, "")),
    ),
    "cifar100": Known(
        *(100, (3, 32, 32), 50000, 10000, TORONTO, 169, "CIFAR100"),
        (
            ("cifar-100-python", _torchvision, ""),
            ("cifar100.npz", _npz, LOSSY),
            ("cifar100/cifar100_avif62.npz", _npz, LOSSY),
        ),
    ),
    "cinic10": Known(
        *(10, (3, 32, 32), 90000, 90000, "datashare.ed.ac.uk/handle/10283/3192", 688, None),
        (("CINIC-10", cinic10, ""), ("cinic-10", cinic10, ""), ("cinic10", cinic10, "")),
    ),
    "tiny_imagenet": Known(
        *(200, (3, 64, 64), 100000, 10000, "cs231n.stanford.edu/tiny-imagenet-200.zip", 248, None),
        (("tiny-imagenet-200", tiny_imagenet, ""),),
    ),
}
# For detection (fedlearn.data.published reads them), whole or a packed part, of 160 x 160 pixels.
ANNOTATED = {
    "voc": Known(
        *(20, (3, 160, 160), 5717, 5823, "host.robots.ox.ac.uk/pascal/VOC/voc2012", 1999),
        *("VOCDetection", (("VOCdevkit", None, ""), ("voc_subset.zip", None, ""))),
    ),
    "coco": Known(
        *(80, (3, 160, 160), 118287, 5000, "cocodataset.org", 19900, None),
        (("coco", None, ""), ("coco_subset.zip", None, "")),
    ),
}


def about(name: str) -> Known:
    """What is known of a data set, whose name may have a size behind it, such as "voc:96"."""
    return pick(name.partition(":")[0], SETS | ANNOTATED, "data set")


def _folders():
    named = os.environ.get("FEDLEARN_DATA")
    try:
        return [Path(named).expanduser(), CACHE] if named else [CACHE]
    except RuntimeError:
        raise DataError(f"FEDLEARN_DATA names the home of nobody: {named}.") from None


def _find(name):
    """(file or folder, reader, note) of the first local copy, or None."""
    hits = (
        (f, read, note)
        for d in _folders()
        for look, read, note in about(name).places
        for f in sorted(d.glob(look))
    )
    digits = name.partition(":")[0] == "digits"
    return (Path("scikit-learn"), _digits, "") if digits else next(hits, None)


def available(name: str) -> bool:
    """Is there a copy on this machine? Never asks the network and reads no image."""
    return _find(name) is not None


def note(name: str) -> str:
    """What to print beside figures made with the copy on this machine; empty for most."""
    its = _find(name)
    if its and its[1] in (cinic10, tiny_imagenet):  # whose copy may be a part
        with suppress(OSError, ValueError):  # what is wrong with it is said where it is read
            return _part(name, *counted(name, its[0]))
    return its[2] if its else ""


def _part(name, train, test):
    """What to say of a copy with so many images; empty if it is whole."""
    of = about(name)
    if (train, test) == (of.train, of.test):
        return ""
    return (
        f"a part of {name}: {train:,} of {of.train:,} images to train, {test:,} of {of.test:,} "
        "to test"
    )


def found(name: str) -> Path:
    """Where a data set lies, which is fetched if it has to be, by one process, while others wait;
    ``DataError`` if it cannot be."""
    path = CACHE / f"{name.partition(':')[0]}.claim"
    while _find(name) is None or claimed(path):
        if _find(name) is None:
            _can_be_fetched(name)
        try:
            with claim(path) as mine:
                if mine and _find(name) is None:
                    _fetch(name)
        except OSError as error:
            raise _absent(name, f"fetching it failed ({_reason(error)})") from error
        if not mine:
            time.sleep(1)
    return Path(_find(name)[0])


def missing(names: Iterable[str]) -> list[str]:
    """A line for each data set that is not on this machine, whatever the size of its pictures:
    which, how large, where from."""
    names = dict.fromkeys(name.partition(":")[0] for name in names)
    wanted = [name for name in names if not available(name)]
    return [f"{name}: {origin(name, not about(name).torchvision)}" for name in wanted]


def origin(name: str, by_hand: bool = True) -> str:
    """How large a data set is and where from, and where it has to lie."""
    of = about(name)
    where = f", to be unpacked as {of.places[0][0]} in FEDLEARN_DATA" if by_hand else ""
    return f"{of.megabytes} MB from {of.site}{where}"


def _reason(error):
    return " ".join(str(error).split()) or type(error).__name__


def _absent(name, why):
    where, known = " and ".join(map(str, _folders())), about(name)
    by_hand = f" as {known.places[0][0]}."
    remedy = ", or connect to the network once." if known.torchvision else by_hand
    return DataError(
        f"The data set {name} ({known.megabytes} MB, from {known.site}) is not in {where} "
        f"and {why}: set FEDLEARN_DATA to a folder that holds it{remedy}"
    )


def _while_it_grows(folder, work):
    """``work()`` in a thread, which is left alone if for ``PATIENCE`` seconds nothing is written to
    the folder: a name server, or a chain of mirrors, may be silent for minutes."""
    errors, size, now, since = [], 0, 0, time.monotonic()

    def attempt():
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        with suppress(OSError):  # a file that was there a moment ago
            now = sum(f.stat().st_size for f in folder.rglob("*"))
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            raise TimeoutError(f"nothing came for {PATIENCE:g} s")
    if errors:
        raise errors[0]


def offline() -> bool:
    """Whether ``FEDLEARN_OFFLINE`` forbids to fetch anything."""
    return os.environ.get("FEDLEARN_OFFLINE", "0") not in ("", "0")


def _can_be_fetched(name):
    if about(name).torchvision is None:
        raise _absent(name, "has to be fetched by hand")
    if offline():
        raise _absent(name, "FEDLEARN_OFFLINE forbids to fetch it")


def _fetch(name):
    """Download once into the cache."""
    from torchvision import datasets

    kind = about(name).torchvision
    print(f"Fetching {name} into {CACHE}, once.", file=sys.stderr)
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)  # torchvision sets none: it would wait for ever
    try:
        with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
            _while_it_grows(CACHE, lambda: getattr(datasets, kind)(CACHE, download=True))
    except Exception as error:
        raise _absent(name, f"fetching it failed ({_reason(error)})") from error
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
    first = share @ value
    return tuple(first.tolist()), tuple((share @ value**2 - first**2).sqrt().tolist())


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
        train_x, test_x = (
            torch.from_numpy(np.array(a.transpose(0, 3, 1, 2), order="C")) for a in arrays[::2]
        )
        train_y, test_y = (torch.from_numpy(a.astype(np.int64)) for a in arrays[1::2])
        for x, y in ((train_x, train_y), (test_x, test_y)):
            if (
                x.dtype != torch.uint8
                or len(x) != len(y)
                or not 0 <= int(y.min()) <= int(y.max()) < classes
            ):
                raise ValueError("images and labels do not fit together")
        mean, std = moments(train_x)
    except Exception as error:
        if no_memory(error):
            raise MemoryError(f"There is not enough memory to read {name}.") from error
        why = f"cannot be read ({_reason(error)}): replace or remove it."
        raise DataError(f"The copy of {name} at {place} {why}") from error
    note = note or _part(name, len(train_y), len(test_y))
    coarse = np.array(COARSE) if name == "cifar100" else None
    return Source(name, train_x, train_y, test_x, test_y, mean, std, classes, coarse, note)
