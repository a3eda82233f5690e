"""The embedded set is fixed, packed copies load, and an absent or damaged one says so in a
sentence."""

import gzip
import os
import struct
import threading
import time
import urllib.error

import numpy as np
import pytest
import torch

import fedlearn as fl
from fedlearn.data import published, sources
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


def picture(path, colour, size, mode="RGB"):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size, size), colour).save(path)


def write_cinic10(folder, per_class=2):
    """Pictures of one colour: red is the class, green the number, blue the subset."""
    names = "airplane automobile bird cat deer dog frog horse ship truck".split()
    for s, subset in enumerate(("train", "valid", "test")):
        for c, name in enumerate(names):
            for i in range(per_class):
                picture(folder / subset / name / f"cifar10-{subset}-{i}.png", (20 * c, i, s), 32)


def write_tiny_imagenet(folder, classes=3):
    """Two training pictures a class, the second one grey; a test picture a class, in an order of
    its own. A lossy format: colours are met nearly."""
    names = [f"n0{9 - c}" for c in range(classes)]  # wnids.txt is in no order
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(names) + "\n")
    lines = []
    for c, name in enumerate(sorted(names)):
        images = folder / "train" / name / "images"
        picture(images / f"{name}_0.JPEG", (60 * c, 100, 200), 64)
        picture(images / f"{name}_1.JPEG", 60 * c, 64, "L")
        (folder / "train" / name / f"{name}_boxes.txt").write_text("0\t0\t63\t63\n")
        picture(folder / "val" / "images" / f"val_{9 - c}.JPEG", (60 * c, 0, 0), 64)
        lines.insert(0, f"val_{9 - c}.JPEG\t{name}\t0\t32\t44\t62")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("folder", ["CINIC-10", "cinic-10", "cinic10"])
def test_cinic10_folders(empty, folder):
    assert not sources.available("cinic10")
    write_cinic10(empty / "mine" / folder)
    d = sources.load("cinic10")
    assert d.train_x.shape == d.test_x.shape == (20, 3, 32, 32) and d.classes == 10
    assert d.train_y.tolist() == d.test_y.tolist() == [c for c in range(10) for _ in range(2)]
    assert (d.train_x[:, 0, 0, 0] == 20 * d.train_y).all() and d.train_x[:, 1].max() == 1
    assert d.train_x[:, 2].unique().tolist() == [0]  # the validation set (1) is left alone
    assert d.test_x[:, 2].unique().tolist() == [2]
    assert d.mean == pytest.approx((90, 0.5, 0))
    part = "a part of cinic10: 20 of 90,000 images to train, 20 of 90,000 to test"
    assert d.note == sources.note("cinic10") == part
    (empty / "mine" / folder / "test" / "cat").rename(empty / "gone")
    assert sources.note("cinic10") == ""  # what is wrong is said where it is read


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_too_little_memory_is_not_the_copys_fault(empty, monkeypatch, error):
    write_cinic10(empty / "mine" / "CINIC-10")

    def fails(*args):
        raise error

    monkeypatch.setattr(sources, "moments", fails)
    with pytest.raises(MemoryError, match="There is not enough memory to read cinic10."):
        sources.load("cinic10")


def test_tiny_imagenet_folders(empty, monkeypatch):
    assert not sources.available("tiny_imagenet")
    write_tiny_imagenet(empty / "mine" / "tiny-imagenet-200")
    names = empty / "mine" / "tiny-imagenet-200" / "wnids.txt"
    names.write_text(names.read_text(), encoding="utf-8-sig")  # as some editors save it
    d = sources.load("tiny_imagenet")
    assert d.train_x.shape == (6, 3, 64, 64) and d.test_x.shape == (3, 3, 64, 64)
    assert d.classes == 200 and d.train_y.tolist() == [0, 0, 1, 1, 2, 2]
    assert d.test_y.tolist() == [2, 1, 0]  # by the annotations, not by the files' names
    for x, y in ((d.train_x, d.train_y), (d.test_x, d.test_y)):
        assert (x[:, 0, 32, 32] - 60.0 * y).abs().max() <= 3
    grey = d.train_x[1::2].int()
    assert (grey[:, 0] == grey[:, 1]).all() and (grey[:, 0] == grey[:, 2]).all()
    # a task on it: the network is built for 64 x 64 pixels and 200 classes
    task = fl.tasks.classification("tiny_imagenet", 2, network="resnet8")
    assert fl.initial_network(fl.methods.fedavg(), task)(torch.zeros(1, 3, 64, 64)).shape == (
        1,
        200,
    )


def test_damaged_folders(empty):
    folder = empty / "mine" / "CINIC-10"
    write_cinic10(folder)
    picture(folder / "test" / "cat" / "cifar10-test-0.png", (0, 0, 0), 16)
    with pytest.raises(DataError, match="cifar10-test-0.png is 16 x 16 pixels"):
        sources.load("cinic10")
    (folder / "train" / "cat" / "cifar10-train-0.png").write_text("no picture")
    with pytest.raises(DataError, match="cifar10-train-0.png"):
        sources.load("cinic10")
    for file in (folder / "train" / "cat").iterdir():
        file.unlink()
    with pytest.raises(DataError, match="cat has no picture"):
        sources.load("cinic10")
    (folder / "train" / "cat").rmdir()
    with pytest.raises(DataError, match="train has 9 folders"):
        sources.load("cinic10")


@pytest.mark.parametrize("wrong", ["unknown class", "no annotations", "missing class"])
def test_damaged_tiny_imagenet(empty, wrong):
    folder = empty / "mine" / "tiny-imagenet-200"
    write_tiny_imagenet(folder)
    annotations = folder / "val" / "val_annotations.txt"
    if wrong == "unknown class":
        annotations.write_text(annotations.read_text().replace("n09", "n99"))
    elif wrong == "no annotations":
        annotations.unlink()
    else:
        (folder / "wnids.txt").write_text("n05\n" + (folder / "wnids.txt").read_text())
    about = {"unknown class": "n99", "no annotations": "val_annotations", "missing class": "n05"}
    with pytest.raises(DataError, match=f"tiny_imagenet at .*{about[wrong]}"):
        sources.load("tiny_imagenet")


def test_one_process_fetches_and_others_wait(empty, monkeypatch):
    """Also for one that comes while files are being unpacked."""
    place, order = empty / "cache" / "MNIST", []

    def fetch(name):
        place.mkdir()
        order.append("begun")
        time.sleep(0.2)
        order.append("done")

    monkeypatch.setattr(sources, "CACHE", place.parent)
    monkeypatch.setattr(sources, "_find", lambda name: (place, None, "") if order else None)
    monkeypatch.setattr(sources, "_fetch", fetch)
    monkeypatch.delenv("FEDLEARN_OFFLINE", raising=False)

    def ask():
        assert sources.found("mnist") == place
        order.append("found")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert order == ["begun", "done", "found", "found", "found"]
    assert [p.name for p in place.parent.iterdir()] == ["MNIST"]


def test_the_systems_own_files_are_left_alone(empty):
    folders = [empty / "mine" / name for name in ("CINIC-10", "tiny-imagenet-200")]
    write_cinic10(folders[0])
    write_tiny_imagenet(folders[1])
    for inside in (
        *(folders[0] / "train", folders[0] / "train" / "cat", folders[0] / "test" / "cat"),
        *(folders[1] / "train" / "n09" / "images", folders[1] / "val" / "images"),
    ):
        inside.mkdir(parents=True, exist_ok=True)
        for name in (".DS_Store", "Thumbs.db", "list.txt"):
            (inside / name).write_text("x")
    (folders[0] / "train" / ".hidden").mkdir()
    assert len(sources.load("cinic10").train_y) == len(sources.load("cinic10").test_y) == 20
    assert published.there("classification", "cinic10") == (20, 20)
    assert published.there("classification", "tiny_imagenet") == (6, 3)
    assert len(sources.load("tiny_imagenet").train_y) == 6


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda text: text.replace("\tn09\t", "\tn99\t"), "line . of .*, not 'val_.*n99"),
        (lambda text: text + "val_9.JPEG\n", "line 4 of .*, not 'val_9.JPEG'"),
        (lambda text: text.replace("val_9.JPEG", "../../x.JPEG"), "line . of .*, not '../../x.JP"),
        (lambda text: text + text[:11] + "n08\n", "line 4 of .* names val_7.JPEG once more"),
        (lambda text: text.replace("val_9.JPEG", ".."), "line . of .*, not '..\\\\tn"),
        (lambda text: text.replace("val_9.JPEG", ""), "line . of .*, not '\\\\tn"),
        (lambda text: "", "val_annotations.txt names no picture"),
        (lambda text: "\n\n", "val_annotations.txt names no picture"),
    ],
)
def test_wrong_annotations_of_tiny_imagenet(empty, change, says):
    folder = empty / "mine" / "tiny-imagenet-200"
    write_tiny_imagenet(folder)
    picture(folder / "x.JPEG", (0, 0, 0), 64)
    file = folder / "val" / "val_annotations.txt"
    file.write_text(change(file.read_text()))
    with pytest.raises(DataError, match=says):
        sources.load("tiny_imagenet")


def test_a_class_twice_and_half_a_picture(empty):
    folder = empty / "mine" / "tiny-imagenet-200"
    write_tiny_imagenet(folder)
    assert published.there("classification", "tiny_imagenet") == (6, 3)
    file = sorted((folder / "val" / "images").iterdir())[0]
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DataError, match=f"{file.name} is no picture: image file is truncated"):
        sources.load("tiny_imagenet")
    names = folder / "wnids.txt"
    first = names.read_text().split()[0]
    names.write_text(names.read_text() + f"\n{first}\n")
    with pytest.raises(DataError, match=f"wnids.txt has the class {first} twice"):
        sources.load("tiny_imagenet")


@pytest.mark.parametrize("name, size", [("cinic10", 688), ("tiny_imagenet", 248)])
def test_what_is_fetched_by_hand_says_which_where_from_how_large(empty, monkeypatch, name, size):
    monkeypatch.delenv("FEDLEARN_OFFLINE")  # no network is asked, with or without it
    with pytest.raises(DataError) as caught:
        sources.load(name)
    text = str(caught.value)
    assert f"{name} ({size} MB, from " in text and "fetched by hand" in text
    assert "set FEDLEARN_DATA" in text and "connect" not in text
    [line] = sources.missing([name, "digits", name])
    assert line.startswith(f"{name}: {size} MB from ") and "to be unpacked as" in line


@pytest.mark.parametrize(
    "name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "cinic10", "tiny_imagenet"]
)
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
