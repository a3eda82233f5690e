"""Your own arrays, folders, files, boxes and masks; clients that are given; the page about them."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fedlearn as fl
from fedlearn import DataError, cli
from fedlearn.data import partition as P
from fedlearn.data.arrays import CROWD, NOTHING, VOID, from_boxes, from_masks

PAGE = Path(__file__).resolve().parents[2] / "book" / "own_data.md"
X = np.random.default_rng(0).integers(0, 256, (60, 6, 8, 3), np.uint8)  # channel last
Y = np.arange(60) % 3


def rows(x):
    return [tuple(row) for row in x.reshape(len(x), -1).tolist()]


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (X, (3, 6, 8)),
        (torch.from_numpy(X.transpose(0, 3, 1, 2)), (3, 6, 8)),
        (X[..., 0], (1, 6, 8)),
        (X[:, 0, 0].tolist(), (1, 1, 3)),
        (X > 100, (3, 6, 8)),
    ],
)
def test_arrays_of_every_layout(x, shape):
    source = fl.data.from_arrays(x, Y)
    assert source.train_x.shape == (48, *shape) and source.test_x.shape == (12, *shape)
    assert torch.bincount(source.test_y).tolist() == [4, 4, 4]
    inputs = fl.tasks.classification(source, 2).inputs(source.train_x)
    dims = (0,) if shape[:2] == (1, 1) else (0, 2, 3)
    assert inputs.mean(dims).abs().max() < 1e-4
    assert (inputs.std(dims, correction=0) - 1).abs().max() < 1e-3


def test_labels_stay_with_their_samples_and_every_class_gives_its_share():
    names = np.array(["dog", "cat", "Ant"])[Y]
    source = fl.data.from_arrays(X, names[:, None], test=0.5)
    x, y = torch.cat([source.train_x, source.test_x]), torch.cat([source.train_y, source.test_y])
    labels = dict(zip(rows(X.transpose(0, 3, 1, 2)), 2 - Y, strict=True))  # by the alphabet
    assert [labels.pop(row) for row in rows(x)] == y.tolist() and not labels
    assert source.names == ("Ant", "cat", "dog") and len(source.test_y) == 30
    source = fl.data.from_arrays(X, names.astype(object), test=(X[:3], names[:3]))
    assert source.train_y[:3].tolist() == source.test_y.tolist() == [2, 1, 0]
    a, b = (fl.tasks.classification((X, Y), 2, seed=seed) for seed in (0, 1))
    assert a.digests["images"] == b.digests["images"]
    rare = fl.data.from_arrays(X[:32], np.array([0] * 30 + [1.0] * 2), test=0.9)
    assert torch.bincount(rare.train_y).tolist() == [3, 1], "never all of a class"
    grey = fl.data.from_arrays(np.full((20, 4, 4, 3), 7, np.uint8), np.arange(20) % 2)
    assert grey.std == (1.0, 1.0, 1.0) and grey.mean == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"x": X[:50]}, "50 samples cannot have labels"),
        ({"x": X.astype(str)}, "numbers"),
        ({"x": np.where(np.arange(60)[:, None] > 5, np.nan, 1.0)}, "NaN"),
        ({"x": [[1], [2, 3]] * 30}, "one shape"),
        ({"y": np.eye(3)[Y]}, "one-hot"),
        ({"y": Y - 1}, "not -1 to 1"),
        ({"y": Y * 0}, "two classes"),
        ({"y": Y * 100}, "201 classes"),
        ({"test": 0}, "share"),
        ({"test": (X[:5, :4], Y[:5])}, "test set's samples"),
        ({"test": (X[:5], Y[:5], ["a"] * 5), "users": Y}, "test set's users"),
        ({"clients": "users"}, "names no users"),
        ({"clients": Y[:5]}, "column"),
        ({"clients": [[0], [[1]]]}, "Client 1"),
        ({"clients": Y, "partition": "iid"}, "leave no choice"),
        ({"clients": 2, "augment": "crop", "dataset": (X[:, 0, 0], Y)}, "vectors"),
    ],
)
def test_arrays_and_clients_that_cannot_be(how, says):
    with pytest.raises(ValueError, match=says):
        if "clients" in how:
            fl.tasks.classification(**{"dataset": (X, Y)} | how)
        else:
            fl.data.from_arrays(**{"x": X, "y": Y} | how)


def test_a_data_set_in_torchvisions_style():
    ways = Image.fromarray, np.asarray, lambda x: torch.from_numpy(x).permute(2, 0, 1)
    sets = [[(make(x), torch.tensor(y)) for x, y in zip(X, Y, strict=True)] for make in ways]
    first, *others = map(fl.data.from_dataset, sets)
    for source in others:
        assert torch.equal(source.train_x, first.train_x)
        assert torch.equal(source.test_y, first.test_y)
    with pytest.raises(ValueError, match="an image and its label"):
        fl.data.from_dataset([1, 2, 3])


def pictures(folder, sizes=((8, 6),), mode="RGB", each=10):
    for c, name in enumerate(("cats", "dogs")):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            image = Image.fromarray(X[i + 20 * c]).resize(sizes[i % len(sizes)])
            image.convert(mode).save(folder / name / f"{i}.png")
        (folder / name / "notes.txt").write_text("no image")
    (folder / ".hidden").mkdir()
    return folder


def test_folders_of_images(tmp_path):
    source = fl.data.from_folder(pictures(tmp_path / "pets"))
    assert source.names == ("cats", "dogs") and source.train_x.shape == (16, 3, 6, 8)
    dogs = torch.cat([source.train_x[source.train_y == 1], source.test_x[source.test_y == 1]])
    assert {*rows(dogs)} == {*rows(X[20:30].transpose(0, 3, 1, 2))}
    grey = fl.data.from_folder(pictures(tmp_path / "grey", mode="L"))
    assert grey.train_x.shape == (16, 1, 6, 8)
    mixed = fl.data.from_folder(pictures(tmp_path / "mixed", sizes=((8, 6), (20, 9))))
    assert mixed.train_x.shape == (16, 3, 32, 32) and "2 sizes, scaled to 32 x 32" in mixed.note
    for part, each in (("train", 10), ("test", 3)):
        pictures(tmp_path / "two" / part, each=each)
    source = fl.data.from_folder(tmp_path / "two")
    assert (len(source.train_y), len(source.test_y)) == (20, 6)
    (tmp_path / "two" / "test" / "eels").mkdir()
    (tmp_path / "pets" / "cats" / "x.png").write_text("no image")
    for name, says in (("two", "eels"), ("none", "no folder"), ("pets", "x.")):
        with pytest.raises(DataError, match=says):
            fl.data.from_folder(tmp_path / name)


def test_files_and_paths(tmp_path):
    file, x = tmp_path / "mine.npz", X[..., 0]
    for n in (40, 60):  # a file that changed is read again
        np.savez(file, x=x[:n], y=Y[:n], test_x=x[:5], test_y=Y[:5])
        assert fl.tasks.classification(file, 2).sizes == [n // 2, n // 2]
    pictures(tmp_path / "pets")
    assert fl.tasks.classification(str(tmp_path / "pets"), 2).sizes == [8, 8]
    for arrays, says in (
        ({"x": x}, "'y'"),
        ({"x": x, "y": Y, "test_x": x}, "test_y"),
        ({"x": x, "y": Y[:5]}, "mine.npz: 60 samples"),
    ):
        np.savez(file, **arrays)
        with pytest.raises((DataError, ValueError), match=says):
            fl.tasks.classification(str(file), 2)
    file.write_text("no file of numpy")
    for path, error in ((file, "can be read"), ("a/b", "no file"), (3, "3")):
        with pytest.raises((DataError, ValueError), match=error):
            fl.tasks.classification(path, 2)


@pytest.mark.parametrize(
    "shape, name",
    [((1, 1, 30), "mlp"), ((3, 4, 4), "digits_cnn"), ((1, 28, 28), "mcmahan_cnn"),
     ((4, 17, 9), "cifar_cnn"), ((3, 33, 20), "digits_resnet")],
)  # fmt: skip
def test_every_shape_has_a_network_that_takes_it(shape, name):
    source = fl.data.from_arrays(np.zeros((6, *shape), np.uint8), np.arange(6) % 2, test=0.4)
    task = fl.tasks.classification(source, 2)
    assert type(task).default_network(source) == name
    assert task.network()(torch.zeros(2, *shape)).shape == (2, 2)


def test_users_and_lists_are_clients():
    names = np.array(["eve", "ann", "bob"])[Y]
    named = fl.data.from_arrays(X, Y, users=names)
    for data, column in (((X, Y), names), (named, "users")):
        task = fl.tasks.classification(data, column)
        assert task.sizes == [16, 16, 16], "every user gives the same share to the test set"
        # users are numbered in the order of their names, and Y happens to be the user here
        assert [set(task.train[1][i].tolist()) for i in task.owned] == [{1}, {2}, {0}]
    lists = [[5, 3, 8], torch.arange(10, 30), range(40, 60)]
    task = fl.tasks.classification(((X, Y), (X[:9], Y[:9])), lists)
    assert [i.tolist() for i in task.owned] == [[3, 5, 8], [*range(10, 30)], [*range(40, 60)]]
    # of arrays that are split here, positions are of the whole
    task = fl.tasks.classification((np.arange(60)[:, None] * 1.0, Y), [range(30), range(30, 50)])
    held = [{*task.train[0][i].flatten().tolist()} for i in task.owned]
    assert held[0] < {*range(30)} and held[1] < {*range(30, 50)} and len(held[0]) == 24


@settings(max_examples=60)
@given(st.data())
def test_lists_are_a_partition_or_are_refused(data):
    n = data.draw(st.integers(1, 12))
    lists = data.draw(st.lists(st.lists(st.integers(-1, n), max_size=4), min_size=1, max_size=4))
    flat = [i for positions in lists for i in positions]
    fine = all(lists) and len(set(flat)) == len(flat) and all(0 <= i < n for i in flat)
    try:
        split = P.given(lists, n)(np.zeros(n, int), len(lists), None)
    except ValueError as error:
        assert not fine and "\n" not in str(error)
    else:
        assert fine and [i.tolist() for i in split.indices] == [sorted(i) for i in lists]


class EveryOther:
    """What the adapter needs of a partitioner, without the package: client i mod K."""

    def __init__(self, num_partitions):
        self.num_partitions, self.dataset = num_partitions, None

    def load_partition(self, k):
        assert self.dataset["label"][:3].tolist() == [0, 1, 2]
        return {"index": self.dataset["index"][k :: self.num_partitions]}


def test_a_partitioner_of_flwr_datasets(monkeypatch):
    module = SimpleNamespace(Dataset=SimpleNamespace(from_dict=dict))
    monkeypatch.setitem(sys.modules, "datasets", module)
    part = fl.partition.flwr(EveryOther(3))
    for _ in range(2):  # it is used again
        task = fl.tasks.classification(((X, Y), (X, Y)), 3, part)
        assert [set(task.train[1][i].tolist()) for i in task.owned] == [{0}, {1}, {2}]
    with pytest.raises(ValueError, match="makes 3 partitions, not 4"):
        fl.tasks.classification((X, Y), 4, part)


PLAIN = np.zeros((3, 8, 10), np.uint8)
BOXES = [[1, 2, 5, 6, 0, 0], [0, 0, 10, 8, 1, 1]]
MASK = np.ones((8, 10), int)


def test_boxes_are_padded_and_the_largest_class_is_the_main_one():
    source = from_boxes(PLAIN, [BOXES, [], BOXES[:1]], 2, (PLAIN[:1], [BOXES]), empty=True)
    assert source.train_y.shape == (3, 2, 6) and source.train_y[0, 1].tolist() == BOXES[1]
    assert (source.train_y[1, :, 4] == NOTHING).all() and source.train_y[2, 1, 4] == NOTHING
    assert source.labels.tolist() == [1, 2, 0] and source.counts.tolist() == [2, 0, 1]
    both = [[0, 0, 2, 6, 0], [1, 1, 4, 6, 1]]  # 12 pixels and 15
    source = from_boxes(np.float32(X[:4] / 9), [both] * 4, 2, 0.5)
    assert len(source.test_x) == 2 and source.labels.tolist() == [1, 1]
    assert source.mean == pytest.approx(source.train_x.mean((0, 2, 3)).tolist())
    masks = [MASK, MASK * 0 + VOID, MASK * 2]
    source = from_masks(PLAIN, masks, 3, (PLAIN[:1], [MASK]), empty=True)
    assert source.labels.tolist() == [0, 3, 1] and source.counts.tolist() == [1, 0, 1]
    for make, wrong in ((from_boxes, ([BOXES, BOXES], 2)), (from_masks, ([MASK] * 3, 1))):
        with pytest.raises((DataError, ValueError), match="3 images|2 to 255 classes"):
            make(PLAIN, *wrong)


@pytest.mark.parametrize(
    "bad, says",
    [
        ([], "no object"),
        ([[1, 2, 1, 6, 0]], "1.0, 2.0, 1.0, 6.0, 0.0, 0.0.*inside 10 x 8 pixels"),
        ([[np.nan, 2, 1, 6, 0]], "nan"),
        ([[1, 2, 5, 6, 2]], "class from 0 to 1"),
        ([[1, 2, 5, 6, 0, CROWD + 1]], "3.0"),
        (MASK * VOID, "no object"),
        (MASK.T, r"\[10, 8\]"),
        (MASK * 2, "2 to 2: .* to 1, or 255"),
    ],
)
def test_pictures_that_cannot_be_learned_from(bad, says):
    make, good = (from_boxes, BOXES[:1]) if isinstance(bad, list) else (from_masks, MASK)
    with pytest.raises(DataError, match=rf"^Image 2 \(c.png\) has .*{says}"):
        make(PLAIN, [good, good, bad], 2, 0.4, files=["a.png", "b.png", "c.png"])


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
    commands = [line[1:] for line in lines if line and line[0] == "fedlearn"]
    assert len(commands) >= 3
    for command in commands:
        assert not cli.main([*command, "--rounds", "1"])
