"""Data in the forms people have them in: by client, tables, Hugging Face, torchvision, LEAF."""

import json

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset, random_split

import fedlearn as fl

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
WARDS = np.array(["a", "b", "c"])[DRAW.integers(0, 3, 60)]
NAMES = np.array(["x", "y", "z"])
TABLE = pandas.DataFrame(X, columns=list("pqrs")).assign(kind=NAMES[Y], ward=WARDS)
SET = TensorDataset(torch.tensor(X), torch.tensor(Y))


class HuggingFace:
    """What their data sets have, and no more."""

    def __init__(self, **columns):
        self.columns_ = columns
        self.features = {"label": type("ClassLabel", (), {"names": ["cat", "ant", "bee"]})()}

    column_names = property(lambda self: list(self.columns_))
    __len__ = lambda self: 60  # noqa: E731
    __getitem__ = lambda self, name: self.columns_[name]  # noqa: E731


NO_WARD = TABLE.drop(columns="ward")
FILES = ["a.csv", "b.csv"]


@pytest.mark.parametrize(
    "how",
    [
        {"clients": [(X, Y), (X[:30], Y[:30])]},
        {"clients": ((X, Y), (X[:30], Y[:30]))},
        {"clients": zip([X, X[:30]], [Y, Y[:30]], strict=True)},
        {"dataset": [(torch.tensor(X), Y.tolist()), [X[:30], Y[:30]]]},
        {"dataset": {"ann": (X, Y), "eve": (X[:30], Y[:30])}, "clients": "users"},
        {"dataset": [SET, TensorDataset(*SET[:30])], "clients": 2},
        {"dataset": [(TABLE[list("pqrs")], Y), (TABLE[list("pqrs")][:30], Y[:30])]},
        {"clients": [NO_WARD, NO_WARD[:30]]},
        {"clients": {"ann": (NO_WARD, "kind"), "eve": (NO_WARD[:30], "kind")}},
        {"clients": FILES},
    ],
)
@pytest.mark.filterwarnings("ignore:The last column")
def test_data_of_each_client(how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file, count in zip(FILES, (60, 30), strict=True):
        NO_WARD[:count].to_csv(file, index=False)
    task = fl.tasks.classification(**how, metrics="per_client")
    assert task.sizes == [48, 24] and torch.bincount(task.owners).tolist() == [12, 6]
    held = {tuple(row) for row in task.train[0][task.owned[1]].flatten(1).tolist()}
    assert held <= {tuple(row) for row in X[:30].tolist()}


def test_splits_of_torch_are_clients_and_pairs_are_training_and_test():
    parts = random_split(SET, [30, 20, 10], torch.Generator().manual_seed(0))
    for clients in (parts, ((X[:30], Y[:30]), (X[:20], Y[:20]), (X[:10], Y[:10]))):
        assert fl.tasks.classification(clients=clients).sizes == [24, 16, 8]
    for pair in ((SET, TensorDataset(*SET[:5])), ((X, Y), (X[:5], Y[:5]))):
        task = fl.tasks.classification(pair, clients=2)
        assert (len(task.train[1]), len(task.test[1])) == (60, 5)


def test_tables_and_their_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("beds.csv")  # with the numbers of the rows, as people do
    column = fl.tasks.classification((TABLE[list("pqrs")], TABLE["kind"]), TABLE["ward"])
    for data in ((TABLE, "kind"), ("beds.csv", "kind"), "beds.csv:kind"):
        task = fl.tasks.classification(data, clients="ward")
        assert task.digests == column.digests and task.source.names == ("x", "y", "z")
        assert task.shape == (1, 1, 4)
    assert fl.tasks.classification((NO_WARD, "kind"), clients=3, test=5).shape == (1, 1, 4)
    with pytest.warns(UserWarning, match="'s'"):
        assert fl.tasks.regression(NO_WARD.drop(columns="kind"), clients=2).shape == (1, 1, 3)


def test_hugging_face(monkeypatch):
    images = [Image.fromarray(DRAW.integers(0, 255, (8, 8), np.uint8)) for _ in Y]
    data = HuggingFace(image=images, writer=list(WARDS), hsf=list(range(60)), label=Y.tolist())
    task = fl.tasks.classification(data, clients="writer")
    assert task.clients == 3 and task.shape == (1, 8, 8), "not the scalars beside an image"
    assert task.source.names == ("cat", "ant", "bee"), "in the order of their numbers"
    task = fl.tasks.classification({"train": data, "test": data}, clients=2)
    assert (len(task.train[1]), len(task.test[1])) == (60, 60)
    columns = HuggingFace(a=X[:, 0].tolist(), b=X[:, 1].tolist(), label=Y.tolist())
    assert fl.tasks.classification(columns, clients=2).shape == (1, 1, 2)


def leaf(folder, sample, part="train", users=("f1", "f0"), count=8):
    (folder / part).mkdir(parents=True)
    mine = {u: {"x": [sample(i)[0] for i in range(count)]} for u in users}
    for entry in mine.values():
        entry["y"] = [sample(i)[1] for i in range(count)]
    table = {"users": list(users), "num_samples": [count] * len(users), "user_data": mine}
    (folder / part / "all_data_0.json").write_text(json.dumps(table))


def test_folders_of_leaf(tmp_path):
    def digit(i):
        return DRAW.random(784).tolist(), i % 4

    leaf(tmp_path / "femnist" / "data", digit)
    leaf(tmp_path / "femnist" / "data", digit, "test", ("f0", "f2"), 3)
    task = fl.tasks.classification(tmp_path / "femnist", "users", metrics="per_client")
    assert task.shape == (1, 28, 28) and task.sizes == [8, 8]
    assert task.owners.tolist() == [0] * 3 + [-1] * 3, "f2 trains nobody"
    leaf(tmp_path / "plays", lambda i: ("to be or not"[i:], "!"))
    task = fl.tasks.sequences(tmp_path / "plays", "users")
    letters = "".join(task.source.names[i] for i in task.train[1][task.owned[0]][0])
    assert letters.rstrip()[-1] in "!t" and task.sizes == [6, 6]
    (tmp_path / "empty" / "train").mkdir(parents=True)
    for users in ({"v": {"x": [], "y": []}}, {}):
        made = {"users": [*users], "user_data": users}
        (tmp_path / "empty" / "train" / "a.json").write_text(json.dumps(made))
        with pytest.raises(fl.DataError, match="user"):
            fl.tasks.classification(tmp_path / "empty", "users")


def test_texts(tmp_path):
    (tmp_path / "play.txt").write_text("to be or not to be, " * 40)
    TABLE.assign(text="some words ").to_csv(tmp_path / "plays.csv", index=False)
    texts = ["abc " * 50, "cab " * 50]
    tokens = DRAW.integers(0, 9, (40, 12))
    for how, sizes in (
        ({"dataset": dict(zip("ab", texts, strict=True))}, [2, 2]),
        ({"dataset": texts * 2, "clients": list("abab")}, [4, 4]),
        ({"dataset": str(tmp_path / "play.txt"), "clients": 2}, [4, 4]),
        ({"dataset": tmp_path / "plays.csv", "clients": "ward"}, None),
        ({"dataset": tokens, "clients": 2}, [16, 16]),
        ({"dataset": (tokens, tokens), "clients": 2}, [16, 16]),
        ({"dataset": [(tokens, tokens)] * 2}, [32, 32]),
        ({"dataset": tokens.tolist(), "clients": [0, 1] * 20}, [16, 16]),
    ):
        task = fl.tasks.sequences(**how)
        assert sizes is None or task.sizes == sizes
        x, y = task.train
        assert x.dtype == torch.int64 and task.inputs(x) is x, "token ids are left as they are"
        assert y.shape == x.shape and (len(x[0]) == 12 or torch.equal(x[0, 1:], y[0, :-1]))


def test_columns_of_other_kinds_and_names(tmp_path):
    """Truth values beside floats, pandas' own kinds, names that are numbers, other separators."""
    for table in (TABLE.assign(new=Y > 0), TABLE.convert_dtypes()):
        task = fl.tasks.classification((table, "kind"), clients="ward")
        assert task.source.train_x.dtype == torch.float32
    numbered = pandas.DataFrame(np.c_[X, Y])
    for column in (4, "4"):
        assert fl.tasks.classification((numbered, column), clients=2).shape == (1, 1, 4)
    for sep in (";", ", ", "\t"):
        text = TABLE.to_csv(index=False).replace(",", sep)
        (tmp_path / "own.csv").write_text("\ufeff" + text, encoding="utf-8")
        task = fl.tasks.classification(f"{tmp_path / 'own.csv'}:kind", clients="ward")
        assert task.clients == 3


def test_data_sets_with_arrays_as_targets():
    tokens = torch.from_numpy(DRAW.integers(0, 9, (20, 7)))
    assert fl.tasks.sequences(clients=[TensorDataset(tokens, tokens)] * 2).shape == (7,)
    numbers = TensorDataset(SET.tensors[0], SET.tensors[0][:, :2])
    assert fl.tasks.regression(clients=[numbers] * 2).source.classes == 2
    assert fl.tasks.sequences([*tokens], clients=2).shape == (6,)


@pytest.mark.parametrize(
    "call, noun",
    [
        (lambda: fl.tasks.classification(TABLE[:0]), "rows"),
        (lambda: fl.tasks.classification((TABLE[["kind"]], "kind")), "column"),
        (lambda: fl.tasks.classification(clients=[SET, torch.utils.data.Subset(SET, [])]), "1 has"),
        (lambda: fl.tasks.sequences({"ann": "", "eve": "to be" * 99}, "users"), "ann"),
        (lambda: fl.tasks.sequences("to be"), "shakespeare"),
        (lambda: fl.tasks.sequences(augment="flip"), "none"),
        (lambda: fl.run("split_learning", fl.tasks.classification((X, Y), 2), 1), "vectors"),
    ],
)
def test_what_is_missing_is_named(call, noun):
    with pytest.raises(ValueError, match=noun):
        call()
