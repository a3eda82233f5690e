"""The embedded set is fixed, copies load, and an absent or damaged one says so in a sentence."""

import gzip
import struct
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from fedlearn.data import images, makers
from fedlearn.errors import DataError


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A machine without data and without a network."""
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setattr(images, "CACHE", tmp_path / "cache")
    images.load.cache_clear()
    yield tmp_path
    images.load.cache_clear()


def write_mnist(folder, packed, n=12):
    """A tiny set in MNIST's format; image i holds the value i everywhere."""
    folder.mkdir(parents=True)
    for part, size in (("train", n), ("t10k", n // 2)):
        pixels = np.repeat(np.arange(size, dtype=np.uint8), 28 * 28).tobytes()
        labels = (np.arange(size) % 10).astype(np.uint8).tobytes()
        for stem, data in (
            (
                f"{part}-images-idx3-ubyte",
                struct.pack(">4I", 2051, size, 28, 28) + pixels,
            ),
            (f"{part}-labels-idx1-ubyte", struct.pack(">2I", 2049, size) + labels),
        ):
            (folder / (stem + ".gz" * packed)).write_bytes(
                gzip.compress(data) if packed else data
            )


def picture(path, colour, size, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size, size), colour).save(path)


def write_cinic10(folder):
    """Two pictures a class of one colour: red is the class, green the number, blue the subset."""
    names = "airplane automobile bird cat deer dog frog horse ship truck".split()
    for s, subset in enumerate(("train", "valid", "test")):
        for c, name in enumerate(names):
            for i in range(2):
                picture(
                    folder / subset / name / f"cifar10-{subset}-{i}.png",
                    (20 * c, i, s),
                    32,
                )


def write_tiny_imagenet(folder):
    """Two training pictures a class, the second one grey; a test picture a class, in no order."""
    names = ["n09", "n08", "n07"]  # wnids.txt is in no order
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(names) + "\n", encoding="utf-8-sig")
    lines = []
    for c, name in enumerate(sorted(names)):
        place = folder / "train" / name / "images"
        picture(place / f"{name}_0.JPEG", (60 * c, 100, 200), 64)
        picture(place / f"{name}_1.JPEG", 60 * c, 64, "L")
        picture(folder / "val" / "images" / f"val_{9 - c}.JPEG", (60 * c, 0, 0), 64)
        lines.insert(0, f"val_{9 - c}.JPEG\t{name}\t0\t32\t44\t62")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")


def test_digits_is_fixed():
    images.load.cache_clear()  # another test may have called it a part of a larger set
    d = images.load("digits")
    assert d.train_x.shape == (1347, 1, 8, 8) and d.test_x.shape == (450, 1, 8, 8)
    assert d.train_x.dtype == torch.uint8 and d.train_y.dtype == torch.int64
    # The split belongs to the set's definition: these two sums change if it ever moves.
    assert (int(d.test_x.sum()), int((d.test_y * torch.arange(450)).sum())) == (
        140556,
        453816,
    )
    x = d.train_x.double()
    assert d.mean == pytest.approx((x.mean().item(),))
    assert d.std == pytest.approx((x.std(correction=0).item(),))


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_files_and_the_cache_comes_second(empty, packed):
    assert not images.find_copy("mnist")
    for place in (
        empty / "mine",
        empty / "cache",
    ):  # it says where it looked, and what to bring
        with pytest.raises(DataError, match=f"mnist.*{place}"):
            images.load("mnist")
    write_mnist(empty / "cache" / "MNIST" / "raw", packed)
    d = images.load("mnist")
    assert d.train_x.shape == (12, 1, 28, 28) and (d.train_x[7] == 7).all()
    assert d.train_y.tolist() == [*range(10), 0, 1] and d.test_y.tolist() == [*range(6)]
    images.load.cache_clear()
    write_mnist(empty / "mine" / "MNIST" / "raw", packed, n=20)
    assert len(images.load("mnist").train_y) == 20


def test_cifar100_arrays(empty):
    x, y = np.zeros((100, 32, 32, 3), np.uint8), np.arange(100)
    (empty / "mine").mkdir()
    np.savez(
        empty / "mine" / "cifar100.npz",
        x_train=x,
        y_train=y,
        x_test=x[:5],
        y_test=y[:5],
    )
    d = images.load("cifar100")
    assert d.classes == 100 and "lossy" in d.note
    assert np.array_equal(np.bincount(d.coarse), np.full(20, 5)) and len(d.test_y) == 5


def test_folders_of_pictures(empty):
    mine = empty / "mine"
    cinic = f"{images.data_path('fed_gkt', 'cinic10.py')}:pictures"
    with pytest.raises(DataError, match=f"688 MB.*{mine}"):
        makers.find(cinic)
    write_cinic10(mine / "CINIC-10")
    write_tiny_imagenet(mine / "tiny-imagenet-200")
    d = makers.find(cinic)
    assert (
        d.train_y.tolist()
        == d.test_y.tolist()
        == [c for c in range(10) for _ in range(2)]
    )
    assert (d.train_x[:, 0, 0, 0] == 20 * d.train_y).all()
    assert not d.train_x[:, 2].any(), "the validation set (1) is left alone"
    assert (d.test_x[:, 2] == 2).all()
    d = makers.find(f"{images.data_path('fed_repopt', 'tiny_imagenet.py')}:pictures")
    assert d.train_y.tolist() == [0, 0, 1, 1, 2, 2]
    assert d.test_y.tolist() == [2, 1, 0], "by the annotations, not by the files' names"
    for x, y in ((d.train_x, d.train_y), (d.test_x, d.test_y)):
        assert (x[:, 0, 32, 32] - 60.0 * y).abs().max() <= 3
    assert torch.equal(d.train_x[1::2, 0], d.train_x[1::2, 2]), (
        "grey ones have three channels"
    )


RAW = "MNIST/raw/train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    "file, harm, says",
    [
        (RAW, lambda p: p.write_bytes(p.read_bytes()[:40]), "cannot be read"),
        (RAW.replace("images-idx3", "labels-idx1"),
         lambda p: p.write_bytes(gzip.compress(struct.pack(">2I", 2049, 12) + bytes([10] * 12))),
         "do not fit together"),
    ],
)  # fmt: skip
def test_damaged_copies_are_named(empty, file, harm, says):
    write_mnist(empty / "mine" / "MNIST" / "raw", True)
    harm(empty / "mine" / file)
    with pytest.raises(
        DataError, match=f"copy of mnist at .*{says}.*replace or remove"
    ):
        images.load("mnist")


def test_a_download_appears_whole_or_not_at_all(empty, monkeypatch):
    monkeypatch.setenv("FEDLEARN_OFFLINE", "0")
    # what a broken-off download has left
    (empty / "cache" / "MNIST" / "raw").mkdir(parents=True)

    def fetch(folder, download):
        assert not images.find_copy("mnist") and Path(folder).parent == empty / "cache"
        write_mnist(Path(folder) / "MNIST" / "raw", False)
        if fails:
            raise urllib.error.URLError("no route\nto host")

    monkeypatch.setattr(datasets, "MNIST", fetch)
    fails = True
    with pytest.raises(DataError, match="no route to host"):
        images.load("mnist")
    assert not images.find_copy("mnist")
    fails = False
    assert len(images.load("mnist").train_y) == 12
    assert [path.name for path in (empty / "cache").iterdir()] == ["MNIST"]
