"""The embedded set is fixed, packed copies load, and an absent or damaged one says so in a
sentence."""

import gzip
import os
import struct
import urllib.error

import numpy as np
import pytest
import torch

from fedlearn.data import sources
from fedlearn.errors import DataError

FOLDER = os.environ.get("FEDLEARN_DATA")


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A machine without data and without a network."""
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    sources.load.cache_clear()
    yield tmp_path
    sources.load.cache_clear()


def write_mnist(folder, packed, n=12):
    """A tiny set in MNIST's format; image i holds the value i everywhere."""
    folder.mkdir(parents=True)
    for s, size in (("train", n), ("t10k", n // 2)):
        images = np.repeat(np.arange(size, dtype=np.uint8), 28 * 28).tobytes()
        labels = (np.arange(size) % 10).astype(np.uint8).tobytes()
        for stem, data in (
            (f"{s}-images-idx3-ubyte", struct.pack(">4I", 2051, size, 28, 28) + images),
            (f"{s}-labels-idx1-ubyte", struct.pack(">2I", 2049, size) + labels),
        ):
            (folder / (stem + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)


def test_digits_is_fixed():
    d = sources.load("digits")
    assert d.train_x.shape == (1347, 1, 8, 8) and d.test_x.shape == (450, 1, 8, 8)
    assert d.train_x.dtype == torch.uint8 and d.train_y.dtype == torch.int64
    assert d.train_x.max() == 16 and d.classes == 10 and d.coarse is None
    assert set(torch.bincount(d.test_y).tolist()) <= {44, 45, 46}
    # The split belongs to the set's definition: these two sums change if it ever moves.
    assert (int(d.test_x.sum()), int((d.test_y * torch.arange(450)).sum())) == (140556, 453816)
    x = d.train_x.double()
    assert d.mean == pytest.approx((x.mean().item(),)) and d.std == pytest.approx(
        (x.std(correction=0).item(),)
    )
    assert sources.load("digits") is d and sources.available("digits")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name, sub", [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_files(empty, packed, name, sub):
    assert not sources.available(name)
    write_mnist(empty / "mine" / sub / "raw", packed)
    assert sources.available(name)
    d = sources.load(name)
    assert d.train_x.shape == (12, 1, 28, 28) and d.test_x.shape == (6, 1, 28, 28)
    assert (
        (d.train_x[7] == 7).all()
        and d.train_y.tolist() == [*range(10), 0, 1]
        and d.mean == pytest.approx((5.5,))
    )


def test_cache_comes_second(empty):
    write_mnist(empty / "cache" / "MNIST" / "raw", True)
    assert len(sources.load("mnist").train_y) == 12
    sources.load.cache_clear()
    write_mnist(empty / "mine" / "MNIST" / "raw", True, n=20)
    assert len(sources.load("mnist").train_y) == 20


def test_cifar10_sheets(empty):
    image = pytest.importorskip("PIL.Image")
    folder = empty / "mine" / "cifar10"
    folder.mkdir(parents=True)
    for k, stem in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        sheet = np.zeros((3200, 3200, 3), np.uint8)
        sheet[32:64, 64:96] = (10 * k, 1, 2)  # the tile in row 1, column 2: image 102
        image.fromarray(sheet).save(folder / f"{stem}.webp", lossless=True, method=0, quality=0)
    np.savez(folder / "cifar10_index.npz", labels=(np.arange(60000) % 10).astype(np.uint8))
    d = sources.load("cifar10")
    assert d.train_x.shape == (50000, 3, 32, 32) and d.test_x.shape == (10000, 3, 32, 32)
    assert (d.train_x[30102].permute(1, 2, 0) == torch.tensor([30, 1, 2])).all() and d.train_x[
        30103
    ].sum() == 0
    assert d.test_x[102, 0].unique().tolist() == [50] and d.note == ""


def test_cifar100_arrays(empty):
    (empty / "mine").mkdir()
    x, y = np.zeros((100, 32, 32, 3), np.uint8), np.arange(100)
    np.savez(empty / "mine" / "cifar100.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    d = sources.load("cifar100")
    assert (
        d.classes == 100
        and "lossy" in d.note
        and np.array_equal(np.bincount(d.coarse), np.full(20, 5))
    )


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100"])
def test_absent_and_offline(empty, name):
    assert not sources.available(name)
    with pytest.raises(DataError) as caught:
        sources.load(name)
    text = str(caught.value)
    assert name in text and str(empty / "mine") in text and str(empty / "cache") in text
    assert "set FEDLEARN_DATA" in text and "\n" not in text and text.count(". ") == 0


def test_failing_download(empty, monkeypatch, capfd):
    datasets = pytest.importorskip("torchvision.datasets")

    def refuse(*args, **kwargs):
        print("noise")
        raise urllib.error.URLError("no route\nto host")

    monkeypatch.setenv("FEDLEARN_OFFLINE", "0")
    monkeypatch.setattr(datasets, "MNIST", refuse)
    with pytest.raises(DataError, match="no route to host"):
        sources.load("mnist")
    assert "noise" not in capfd.readouterr().out


@pytest.mark.parametrize("harm", [lambda b: b[: len(b) // 2], lambda b: b"not gzip", lambda b: b""])
def test_damaged_file(empty, harm):
    folder = empty / "mine" / "MNIST" / "raw"
    write_mnist(folder, True)
    file = folder / "train-images-idx3-ubyte.gz"
    file.write_bytes(harm(file.read_bytes()))
    with pytest.raises(DataError, match="cannot be read"):
        sources.load("mnist")


def test_missing_file_foreign_batches_and_labels_out_of_range(empty):
    folder = empty / "mine" / "MNIST" / "raw"
    write_mnist(folder, False)
    (folder / "train-labels-idx1-ubyte").write_bytes(
        struct.pack(">2I", 2049, 12) + bytes([10] * 12)
    )
    with pytest.raises(DataError, match="do not fit together"):
        sources.load("mnist")
    (folder / "train-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        sources.load("mnist")
    (empty / "mine" / "cifar-10-batches-py").mkdir()  # an md5 that differs is never unpickled
    (empty / "mine" / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"foreign")
    with pytest.raises(DataError, match="cannot be read"):
        sources.load("cifar10")


def test_unknown_name():
    for call in (sources.load, sources.available):
        with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
            call("cifar-10")


def test_data_path():
    assert sources.data_path("partitions", "rpn_table4.csv").is_file()


@pytest.mark.parametrize(
    "name, train, test, shape",
    [
        ("mnist", 60000, 10000, (1, 28, 28)),
        ("fashion_mnist", 60000, 10000, (1, 28, 28)),
        ("cifar10", 50000, 10000, (3, 32, 32)),
        ("cifar100", 50000, 10000, (3, 32, 32)),
    ],
)
def test_real_copies(name, train, test, shape):
    if not FOLDER or not sources.available(name):
        print(reason := f"{name}: FEDLEARN_DATA is unset or does not hold it")
        pytest.skip(reason)
    d = sources.load(name)
    assert d.train_x.shape == (train, *shape) and d.test_x.shape == (test, *shape)
    assert torch.bincount(d.train_y).tolist() == (
        [train // d.classes] * d.classes
        if name != "mnist"
        else [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    )
    sources.load.cache_clear()  # 180 MB each
