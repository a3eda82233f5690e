"""One's own arrays, data sets, folders and files; clients that are given; and the book's page about
them."""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fedlearn as fl
from fedlearn import cli
from fedlearn.data import partition as P
from fedlearn.errors import DataError
from fedlearn.tasks import Classification

PAGE = Path(__file__).resolve().parents[2] / "book" / "own_data.md"
DRAW = np.random.default_rng(0)
X = DRAW.integers(0, 256, (60, 6, 8, 3), np.uint8)  # channel last
Y = np.arange(60) % 3


def all_of(source):
    return torch.cat([source.train_x, source.test_x]), torch.cat([source.train_y, source.test_y])


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (X, (3, 6, 8)),
        (torch.from_numpy(X.transpose(0, 3, 1, 2)), (3, 6, 8)),
        (X[..., :1], (1, 6, 8)),
        (X[:, 0, 0].tolist(), (1, 1, 3)),
        (X / 255, (3, 6, 8)),
        (X > 100, (3, 6, 8)),
    ],
)
def test_arrays_of_every_layout(x, shape):
    source = fl.data.from_arrays(x, Y)
    assert source.train_x.shape == (48, *shape) and source.test_x.shape == (12, *shape)
    assert source.train_x.dtype in (torch.uint8, torch.float32) and source.classes == 3
    assert source.train_x.is_contiguous() and source.train_y.dtype == torch.int64
    assert torch.bincount(source.test_y).tolist() == [4, 4, 4]
    both, y = all_of(source)
    if both.dtype == torch.uint8 and shape == (3, 6, 8) and both.max() > 1:
        # nothing lost, nothing twice, and labels stay with their samples
        first = X.transpose(0, 3, 1, 2).reshape(60, -1).tolist()
        rows = {tuple(row): int(label) for row, label in zip(first, Y, strict=True)}
        found = [rows.pop(tuple(row)) for row in both.flatten(1).tolist()]
        assert found == y.tolist() and not rows
    inputs = fl.tasks.classification(source, 2).inputs(source.train_x)
    dims = (0,) if shape[:2] == (1, 1) else (0, 2, 3)
    assert inputs.mean(dims).abs().max() < 1e-4
    assert (inputs.std(dims, correction=0) - 1).abs().max() < 1e-3


def test_labels_and_splits():
    names = np.array(["dog", "cat", "Ant"])[Y]
    source = fl.data.from_arrays(X, names, test=(X[:3], names[:3]))
    assert source.names == ("Ant", "cat", "dog") and source.train_y.tolist()[:3] == [2, 1, 0]
    assert source.test_y.tolist() == [2, 1, 0]
    a, b = (fl.tasks.classification((X, Y), 2, seed=seed) for seed in (0, 1))
    assert torch.equal(a.test[0], b.test[0]) and a.digests["images"] == b.digests["images"]
    rare = np.array([0] * 30 + [1] * 2)
    source = fl.data.from_arrays(X[:32], rare, test=0.9)
    assert torch.bincount(source.train_y).tolist() == [3, 1], "never all of a class"
    grey = fl.data.from_arrays(np.full((20, 4, 4, 3), 7, np.uint8), np.arange(20) % 2)
    assert grey.std == (1.0, 1.0, 1.0) and grey.mean == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"x": X[:50]}, "50 samples cannot have labels"),
        ({"x": X.astype(str)}, "numbers"),
        ({"x": np.where(np.arange(60)[:, None] > 5, np.nan, 1.0)}, "NaN"),
        ({"x": np.full((60, 2), 1e60)}, "infinite"),
        ({"x": [[1], [2, 3]] * 30}, "one shape"),
        ({"y": np.eye(3)[Y]}, "one-hot"),
        ({"y": Y - 1}, "not -1 to 1"),
        ({"y": Y / 2}, "whole number"),
        ({"y": Y * 0}, "at least two classes"),
        ({"y": Y * 100}, "201 classes"),
        ({"test": 1.0}, "share"),
        ({"test": (X[:5, :4], Y[:5])}, "test set's samples"),
        ({"test": (X[:5], ["a"] * 5)}, "test set's labels"),
        ({"test": (X[:5], Y[:5], Y[:5])}, "test set's users"),
        ({"test": (X[:5], Y[:5], ["a"] * 5), "users": Y}, "test set's users"),
        ({"users": Y[:7]}, "60 samples cannot have users"),
        ({"x": X[:1], "y": [0]}, "too few"),
    ],
)
def test_arrays_that_cannot_be_learned_from(how, says):
    with pytest.raises(ValueError, match=says):
        fl.data.from_arrays(**{"x": X, "y": Y} | how)


class Pictures:
    """A data set in torchvision's style."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return self.make(X[i]), int(Y[i])


def test_a_data_set_in_torchvisions_style():
    assert {"coco", "digit_scenes", "from_dataset", "from_masks", "voc"} < {*fl.data.__all__}
    ways = Image.fromarray, np.asarray, lambda x: torch.from_numpy(x).permute(2, 0, 1)
    sources = [fl.data.from_dataset(Pictures(make)) for make in ways]
    for source in sources[1:]:
        assert torch.equal(source.train_x, sources[0].train_x)
        assert torch.equal(source.test_y, sources[0].test_y)
    both = fl.data.from_dataset(Pictures(np.asarray), test=Pictures(np.asarray))
    assert len(both.train_x) == len(both.test_x) == 60
    assert fl.tasks.classification(Pictures(np.asarray), 3).sizes == [16, 16, 16]
    with pytest.raises(ValueError, match="an image and its label"):
        fl.data.from_dataset([1, 2, 3])


def pictures(folder, sizes=((8, 6),), mode="RGB", each=10):
    for c, name in enumerate(("cats", "dogs")):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            image = Image.fromarray(X[i + 20 * c]).resize(sizes[i % len(sizes)])
            image.convert(mode).save(folder / name / f"{i}.png")
        (folder / name / "notes.txt").write_text("no image")
    return folder


def test_folders_of_images(tmp_path):
    source = fl.data.from_folder(pictures(tmp_path / "pets"))
    assert (source.name, source.names, source.note) == ("pets", ("cats", "dogs"), "")
    assert source.train_x.shape == (16, 3, 6, 8) and source.train_x.dtype == torch.uint8
    x, y = all_of(source)
    dogs = {tuple(a.tolist()) for a in x[y == 1].permute(0, 2, 3, 1).flatten(1)}
    assert dogs == {tuple(a.tolist()) for a in X[20:30].reshape(10, -1)}
    assert fl.data.from_folder(tmp_path / "pets", size=5).train_x.shape == (16, 3, 5, 5)
    grey = fl.data.from_folder(pictures(tmp_path / "grey", mode="L"))
    assert grey.train_x.shape == (16, 1, 6, 8)
    mixed = fl.data.from_folder(pictures(tmp_path / "mixed", sizes=((8, 6), (20, 9))))
    assert mixed.train_x.shape == (16, 3, 32, 32) and "2 sizes, scaled to 32 x 32" in mixed.note
    pictures(tmp_path / "two" / "train")
    pictures(tmp_path / "two" / "test", each=3)
    source = fl.data.from_folder(tmp_path / "two")
    assert (len(source.train_y), len(source.test_y), source.classes) == (20, 6, 2)
    (tmp_path / "two" / "test" / "eels").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "pets" / "cats" / "x.png").write_text("no image")
    for name, says in (("two", "eels"), ("none", "no folder"), ("empty", "images"), ("pets", "x.")):
        with pytest.raises(DataError, match=says):
            fl.data.from_folder(tmp_path / name)


def test_files_and_paths(tmp_path):
    file, x = tmp_path / "mine.npz", X[..., 0]
    for n in (40, 60):  # a file that changed is read again
        np.savez(file, x=x[:n], y=Y[:n], test_x=x[:5], test_y=Y[:5])
        assert fl.tasks.classification(file, 2).sizes == [n // 2, n // 2]
    for arrays, says in (
        ({"x": x}, "'y'"),
        ({"x": x, "y": Y, "z": Y}, "'z'"),
        ({"x": x, "y": Y, "test_x": x}, "test_y"),
        ({"x": x, "y": Y, "users": Y, "test_users": Y}, "test_x"),
        ({"x": x, "y": Y[:5]}, "mine.npz: 60 samples"),
    ):
        np.savez(file, **arrays)
        with pytest.raises((DataError, ValueError), match=says):
            fl.tasks.classification(str(file), 2)
    file.write_text("no file of numpy")
    for path, error in ((file, "cannot|can be read"), ("a/b", "no file or folder"), (3, "not 3")):
        with pytest.raises((DataError, ValueError), match=error):
            fl.tasks.classification(path, 2)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 1, 30), "mlp"),
        ((3, 4, 4), "digits_cnn"),
        ((1, 28, 28), "mcmahan_cnn"),
        ((4, 17, 9), "cifar_cnn"),
        ((3, 33, 20), "digits_resnet"),
    ],
)
def test_every_shape_has_a_network_that_takes_it(shape, name):
    source = fl.data.from_arrays(np.zeros((6, *shape), np.uint8), np.arange(6) % 2, test=0.4)
    assert Classification.default_network(source) == name
    assert fl.tasks.classification(source, 2).network()(torch.zeros(2, *shape)).shape == (2, 2)


# ---- clients that are given


def test_users_and_lists_are_clients():
    names = np.array(["eve", "ann", "bob"])[np.arange(60) % 3]
    task = fl.tasks.classification((X, Y), names)
    assert task.clients == 3 and repr(task.partition) == "Given(3 clients, 48 samples)"
    assert task.sizes == [16, 16, 16], "every user gives the same share to the test set"
    # users are numbered in the order of their names, and Y happens to be the user here
    assert [set(task.train[1][own].tolist()) for own in task.owned] == [{1}, {2}, {0}]
    whole = fl.data.from_arrays(X, Y, (X, Y))
    assert fl.tasks.classification(whole, list(names)).sizes == [20, 20, 20]
    named = fl.data.from_arrays(X, Y, users=names)
    assert fl.tasks.classification(named, "users").sizes == [16, 16, 16]

    lists = [[5, 3, 8], torch.arange(10, 30), range(40, 60)]
    task = fl.tasks.classification(((X, Y), (X[:9], Y[:9])), lists)
    assert [own.tolist() for own in task.owned] == [[3, 5, 8], [*range(10, 30)], [*range(40, 60)]]
    again = fl.tasks.classification(((X, Y), (X[:9], Y[:9])), lists[::-1])
    assert task.digests["clients"] != again.digests["clients"]
    # of arrays that are split here, positions are of the whole
    task = fl.tasks.classification((np.arange(60)[:, None] * 1.0, Y), [range(30), range(30, 50)])
    held = [sorted(task.train[0][own].flatten().tolist()) for own in task.owned]
    assert set(held[0]) < set(range(30)) and set(held[1]) < set(range(30, 50))
    assert [len(h) for h in held] == [24, 16]


@settings(max_examples=60)
@given(st.data())
def test_lists_are_a_partition_or_are_refused(data):
    n = data.draw(st.integers(1, 12))
    lists = data.draw(st.lists(st.lists(st.integers(-1, n), max_size=4), min_size=1, max_size=4))
    flat = [i for own in lists for i in own]
    fine = all(lists) and len(set(flat)) == len(flat) and all(0 <= i < n for i in flat)
    try:
        split = P.given(lists, n)(np.zeros(n, int), len(lists), None)
    except ValueError as error:
        assert not fine and "\n" not in str(error)
    else:
        assert fine and [i.tolist() for i in split.indices] == [sorted(own) for own in lists]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"clients": 0}, "whole number"),
        ({"clients": True}, "whole number"),
        ({"clients": 2.5}, "whole number"),
        ({"clients": "user"}, "users"),
        ({"clients": "users"}, "names no users"),
        ({"clients": Y[:5]}, "column"),
        ({"clients": Y + 0.5}, "column"),
        ({"clients": Y, "partition": "iid"}, "leave no choice"),
        ({"clients": [[0], [1]], "train": 5}, "leave no choice"),
        ({"clients": 2, "partition": 3}, "no partition"),
        ({"clients": 2, "augment": "crop", "dataset": (X[:, 0, 0], Y)}, "vectors"),
    ],
)
def test_clients_that_cannot_be(how, says):
    with pytest.raises(ValueError, match=says):
        fl.tasks.classification(**{"dataset": (X, Y)} | how)


def test_users_without_samples_and_other_numbers_of_samples_are_refused():
    with pytest.raises(ValueError, match="client 1"):
        P.Given(np.array([0, 0, 2]))(np.zeros(3, int), 3, None)
    with pytest.raises(ValueError, match="3 training samples"):
        P.Given(np.array([0, 0, 1]))(np.zeros(4, int), 2, None)


class EveryOther:
    """What the adapter needs of a partitioner, without the package: client i mod K."""

    def __init__(self, num_partitions):
        self.num_partitions, self._scale, self.dataset = num_partitions, np.array([1.0]), None

    def load_partition(self, k):
        assert set(self.dataset.column_names) == {"label", "index"}
        return self.dataset.select(range(k, len(self.dataset), self.num_partitions))


def test_a_partitioner_of_flwr_datasets():
    pytest.importorskip("datasets", reason="flwr-datasets is not installed")
    part = fl.partition.flwr(EveryOther(3))
    assert repr(part) == "Flwr(EveryOther(num_partitions=3, scale=[1.0]))"
    task = fl.tasks.classification(((X, Y), (X, Y)), 3, part)
    assert [set(task.train[1][own].tolist()) for own in task.owned] == [{0}, {1}, {2}]
    with pytest.raises(ValueError, match="makes 3 partitions, not 4"):
        fl.tasks.classification((X, Y), 4, part)
    theirs = pytest.importorskip("flwr_datasets.partitioner", reason="it is not installed")
    part = fl.partition.flwr(theirs.PathologicalPartitioner(4, "label", 2))
    first, again = (fl.tasks.classification("digits", 4, part, train=200) for _ in range(2))
    assert first.digests == again.digests and sum(first.sizes) <= 200
    assert all(len(first.train[1][own].unique()) == 2 for own in first.owned)


# ---- the page


@pytest.mark.slow
def test_the_page_runs_as_it_stands(tmp_path, monkeypatch):
    page = PAGE.read_text(encoding="utf-8")
    python, bash = (re.findall(rf"```{k}\n(.*?)```", page, re.DOTALL) for k in ("python", "bash"))
    monkeypatch.chdir(tmp_path)
    pictures(Path("photos"), each=12)
    names = {}
    for code in python:
        if "flwr_datasets" not in code or find_spec("flwr_datasets"):
            exec(compile(code, "own_data.md", "exec"), names)
    lines = [line.split("#")[0].split() for block in bash for line in block.splitlines()]
    commands = [words[1:] for words in lines if words and words[0] == "fedlearn"]
    assert len(commands) >= 3
    for words in commands:
        assert not cli.main([*words, "--rounds", "1"])
