"""Your own arrays, folders, files, boxes and masks; clients that are given; the page about them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fedlearn as fl
from fedlearn import DataError
from fedlearn.data import partition as P

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
        (np.tile(X, (1, 6, 4, 1)), (3, 36, 32)),
    ],
)
def test_arrays_of_every_layout(x, shape):
    source = fl.data.from_arrays(x, Y)
    assert source.train_x.shape == (48, *shape) and source.test_x.shape == (12, *shape)
    assert torch.bincount(source.test_y).tolist() == [4, 4, 4]
    task = fl.tasks.classification(source, 2)
    inputs = task.inputs(source.train_x)
    assert task.network()(inputs[:2]).shape == (2, 3)
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
    a, b = (fl.tasks.classification((X, Y), 2, seed=seed) for seed in (0, 1))
    assert a.digests["images"] == b.digests["images"]
    rare = fl.data.from_arrays(X[:32], np.array([0] * 30 + [1.0] * 2), test=0.9)
    assert torch.bincount(rare.train_y).tolist() == [3, 1], "never all of a class"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"x": X[:50]}, "50 samples cannot have labels"),
        ({"x": np.where(np.arange(60)[:, None] > 5, np.nan, 1.0)}, "NaN"),
        ({"x": [[1], [2, 3]] * 30}, "one shape"),
        ({"y": np.eye(3)[Y]}, "one-hot"),
        ({"y": Y - 1}, "not -1 to 1"),
        ({"test": 0}, "share"),
        ({"test": (X[:5, :4], Y[:5])}, "test set's samples"),
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
    first, *others = (fl.tasks.classification(data, clients=2) for data in sets)
    assert all(task.digests == first.digests for task in others)
    with pytest.raises(ValueError, match="an image and its label"):
        fl.tasks.classification([1, 2, 3])


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
    mixed = fl.data.from_folder(pictures(tmp_path / "mixed", ((8, 6), (20, 9)), "L"))
    assert mixed.train_x.shape == (16, 1, 32, 32) and "2 sizes, scaled to 32 x 32" in mixed.note
    for part, each in (("train", 10), ("test", 3)):
        pictures(tmp_path / "two" / part, each=each)
    source = fl.data.from_folder(tmp_path / "two")
    assert (len(source.train_y), len(source.test_y)) == (20, 6)
    (tmp_path / "two" / "test" / "eels").mkdir()
    (tmp_path / "pets" / "cats" / "x.png").write_text("no image")
    for name, says in (("two", "eels"), ("none", "no folder"), ("pets", "x.")):
        with pytest.raises(DataError, match=says):
            fl.data.from_folder(tmp_path / name)


def test_a_file_that_changed_is_read_again(tmp_path):
    file, x = tmp_path / "mine.npz", X[..., 0]
    for n in (40, 60):
        np.savez(file, x=x[:n], y=Y[:n], test_x=x[:5], test_y=Y[:5])
        assert fl.tasks.classification(file, 2).sizes == [n // 2, n // 2]
    np.savez(file, x=x, y=Y[:5])
    with pytest.raises(DataError, match="mine.npz: 60 samples"):
        fl.tasks.classification(file, 2)


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
