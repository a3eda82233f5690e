"""Readers of published image sets. Each takes a file or folder and gives the arrays train x, train
y, test x, test y: images uint8 [n, height, width, channels], and the labels 0, 1, ..."""

import gzip
import io
import struct
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError

Listing = Sequence[tuple[Any, int]]  # files and their labels
PICTURES = ".png", ".jpeg", ".jpg"


def reason(error: BaseException) -> str:
    """What an error says, in one line without its full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def open_image(path: str | Path) -> Any:
    """A PIL image that is in memory; ``DataError`` names the file that is none."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
            return image
    except MemoryError:
        raise
    except Exception as error:
        raise DataError(f"{path} is no picture that can be read ({reason(error)}).") from None


def digits(folder: Any = None) -> tuple:
    """scikit-learn's 1,797 images of 8 x 8 with values 0..16, from its file (to import it takes
    longer than a round). The split is part of the set: no experiment seed moves it."""
    path = Path(find_spec("sklearn").origin).parent / "datasets" / "data" / "digits.csv.gz"  # type: ignore
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    x, y = table[:, :-1].reshape(-1, 8, 8, 1).astype(np.uint8), table[:, -1]
    order = np.random.RandomState(0).permutation(len(y))  # numpy keeps this stream for good
    order = order[np.argsort(y[order], kind="stable")]
    test = np.isin(np.arange(len(order)), order[::4])  # every fourth of each class: 450
    return x[~test], y[~test], x[test], y[test]


def idx(file: Path) -> tuple:
    """The four files of MNIST and Fashion-MNIST beside this one, as they are or gzipped."""

    def array(stem, header):
        path = file.parent / f"{stem}-ubyte"
        zipped = path.with_name(f"{path.name}.gz")
        data = path.read_bytes() if path.exists() else gzip.decompress(zipped.read_bytes())
        shape = struct.unpack_from(f">{header}I", data)[1:]  # after the magic number
        return np.frombuffer(data, np.uint8, offset=4 * header).reshape(shape)

    kinds = ("images-idx3", 4), ("labels-idx1", 2)
    x, y, test_x, test_y = (
        array(f"{part}-{kind}", header) for part in ("train", "t10k") for kind, header in kinds
    )
    return x[..., None], y, test_x[..., None], test_y


def cifar_batches(folder: Path) -> tuple:
    """The official CIFAR batches. torchvision compares their md5 before it unpickles them."""
    from torchvision import datasets

    kind = datasets.CIFAR10 if folder.name == "cifar-10-batches-py" else datasets.CIFAR100
    sets = [kind(folder.parent, train=train) for train in (True, False)]
    return tuple(a for s in sets for a in (s.data, np.array(s.targets)))


def _sheet(file):
    """A 3200 x 3200 sheet of 100 x 100 tiles, row by row: uint8 [10000, 32, 32, 3]."""
    pixels = np.asarray(open_image(file).convert("RGB"))
    return pixels.reshape(100, 32, 100, 32, 3).swapaxes(1, 2).reshape(10000, 32, 32, 3)


def cifar10_sheets(index: Path) -> tuple:
    """CIFAR-10 as six lossless WebP sheets beside an index with the labels, training first."""
    y = np.load(index)["labels"]
    stems = *(f"data_batch_{k}" for k in range(1, 6)), "test_batch"
    *train, test = (_sheet(index.parent / f"{stem}.webp") for stem in stems)
    return np.concatenate(train), y[:50000], test, y[50000:]


def cifar100_npz(file: Path) -> tuple:
    """CIFAR-100's lossy copy: six AVIF sheets with labels, or the arrays unpacked from them."""
    z = np.load(file)
    if "x_train" in z:
        return z["x_train"], z["y_train"], z["x_test"], z["y_test"]
    from PIL import features

    if not features.check("avif"):
        raise DataError("AVIF needs Pillow 11.3 or later")
    data, y, train = z["avif"], z["labels"], z["split"] == 0
    sheets = (io.BytesIO(data[a:b].tobytes()) for a, b in pairwise(z["offsets"]))
    x = np.concatenate([_sheet(sheet) for sheet in sheets])
    return x[train], y[train], x[~train], y[~train]


def _listing(folder: Path, classes: Sequence[str]) -> Listing:
    """The pictures in the folder of each class, but for what the operating system hides."""
    from torchvision.datasets.folder import make_dataset

    def shown(path):
        return Path(path).suffix.lower() in PICTURES and not Path(path).name.startswith(".")

    return make_dataset(folder, {name: i for i, name in enumerate(classes)}, is_valid_file=shown)


def _arrays(size: int, *listings: Listing) -> tuple:
    """The pictures of each listing in RGB, grey ones too, and their labels."""
    arrays: list[np.ndarray] = []
    for listing in listings:
        x = np.empty((len(listing), size, size, 3), np.uint8)
        for row, (file, _) in zip(x, listing, strict=True):
            image = open_image(file)
            if image.size != (size, size):
                raise DataError(f"{file} is {image.width} x {image.height} pixels.")
            row[:] = np.asarray(image.convert("RGB"))
        arrays += [x, np.array([label for _, label in listing])]
    return tuple(arrays)


def cinic10_files(folder: Path) -> tuple[Listing, Listing]:
    """The pictures of CINIC-10, to train and to test."""
    classes = sorted(p.name for p in (folder / "train").iterdir() if p.is_dir())
    classes = [name for name in classes if not name.startswith(".")]
    if len(classes) != 10:
        raise DataError(f"train has {len(classes)} folders, not one for each of 10 classes.")
    return _listing(folder / "train", classes), _listing(folder / "test", classes)


def cinic10(folder: Path) -> tuple:
    """``{train,test}/<class>/*.png`` of 32 x 32 pixels, 90,000 each; as the authors of FedGKT do,
    the 90,000 of ``valid`` are left alone."""
    return _arrays(32, *cinic10_files(folder))


def tiny_imagenet_files(folder: Path) -> tuple[Listing, Listing]:
    """The pictures of Tiny ImageNet, to train and to test."""
    classes = sorted({*(folder / "wnids.txt").read_text(encoding="utf-8-sig").split()})
    file, test = folder / "val" / "val_annotations.txt", {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            picture, name, *_ = *line.split("\t"), ""
            if name not in classes or picture in test or Path(picture).name != picture:
                raise DataError(
                    f"Line {number} of {file} is no new picture and class: {line!r:.80}"
                )
            test[picture] = classes.index(name)
    if not test:
        raise DataError(f"{file} names no picture.")
    files = [(folder / "val" / "images" / picture, label) for picture, label in test.items()]
    return _listing(folder / "train", classes), files


def tiny_imagenet(folder: Path) -> tuple:
    """``train/<class>/images/*.JPEG`` of 64 x 64 pixels, 500 of each of the classes in
    ``wnids.txt``. The published test pictures have no labels, so those of ``val`` are the test."""
    return _arrays(64, *tiny_imagenet_files(folder))


def count_files(name: str, folder: Path) -> tuple[int, int]:
    """How many pictures a copy of "cinic10" or "tiny_imagenet" has, to train and to test; none is
    opened."""
    train, test = {"cinic10": cinic10_files, "tiny_imagenet": tiny_imagenet_files}[name](folder)
    return len(train), sum(Path(file).exists() for file, _ in test)
