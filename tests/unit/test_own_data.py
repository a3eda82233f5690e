"""One's own data: each maker keeps what it is given, and refuses what is not sure.

Most inputs here are after public bug reports of data loaders; the right value is in the test."""

import enum
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from scipy.sparse import csr_array
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.transforms import Compose, Grayscale, Resize, ToTensor

import fedlearn as fl
from fedlearn.errors import DataError
from fedlearn.lab import cli

PAGE = Path(__file__).resolve().parents[2] / "book" / "own_data.md"
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 4))
Y = np.arange(60) % 3
NAMES = np.array(["low", "mid", "high"])[Y]
PICTURES = DRAW.integers(0, 256, (60, 8, 8, 3), np.uint8)
FRAME = pandas.DataFrame(X, columns=["age", "dose", "weight", "size"]).assign(
    label=NAMES, site=["01", "1", "001", "2"] * 15
)


def refused(noun, make, *args, **options):
    with pytest.raises((ValueError, DataError), match=f"(?s){noun}") as caught:
        make(*args, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def rows(x):
    return sorted(np.asarray(x).reshape(len(x), -1).tolist())


def whole(data):
    """All samples of the data, those to train first, and their labels' names."""
    y = torch.cat([data.train_y, data.test_y])
    labels = np.array(data.names)[y] if data.names else y.numpy()
    return torch.cat([data.train_x, data.test_x]).numpy(), labels


def items(x, y=Y):
    return list(zip(x, y, strict=True))


def folder(path, pictures, classes="ab"):
    for i, picture in enumerate(pictures):
        place = path / classes[i % len(classes)]
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{i}.png")
    return str(path)


# ---- samples


@pytest.mark.parametrize(
    ("x", "channels", "shape"),
    [
        (PICTURES, None, (3, 8, 8)),
        (PICTURES[..., 0], None, (1, 8, 8)),
        (PICTURES[:, 0, 0].tolist(), None, (1, 1, 3)),
        (DRAW.random((60, 16, 16, 13)), "last", (13, 16, 16)),  # h06
        (DRAW.random((60, 3, 9, 3)), "first", (3, 9, 3)),
    ],
)
def test_arrays_of_every_layout(x, channels, shape):
    data = fl.data.arrays(x, Y, channels=channels)
    assert data.train_x.shape == (48, *shape)
    assert data.test_x.shape == (12, *shape)
    assert torch.bincount(data.test_y).tolist() == [4, 4, 4]
    task = fl.tasks.classification(data, 2)
    inputs = task.inputs(data.train_x)
    dims = (0,) if shape[:2] == (1, 1) else (0, 2, 3)
    assert inputs.mean(dims).abs().max() < 1e-4
    assert (inputs.std(dims, correction=0) - 1).abs().max() < 1e-3


def test_bands_stay_bands_and_what_does_not_show_them_is_refused():
    x = DRAW.random((60, 16, 16, 13)) * np.arange(1, 14)  # h06
    data = fl.data.arrays(x, Y, channels="last")
    assert rows(whole(data)[0]) == rows(np.float32(x).transpose(0, 3, 1, 2))
    assert np.diff(data.mean).min() > 0, "a mean for each band"
    for shape in ((60, 16, 16, 13), (60, 3, 9, 3)):
        refused("channels=", fl.data.arrays, np.zeros(shape), Y)


def picture(mode, i=0):
    return Image.fromarray(PICTURES[i]).convert(mode)


def test_pictures_of_16_bits_keep_their_values(tmp_path):  # h01
    x = DRAW.integers(0, 65536, (20, 8, 8)).astype(np.uint16)
    root = folder(tmp_path, map(Image.fromarray, x))
    refused("loader=PIL.Image.open", fl.data.dataset, ImageFolder(root))
    data = fl.data.dataset(ImageFolder(root, loader=Image.open))
    assert data.train_x.shape[1:] == (1, 8, 8)
    assert rows(whole(data)[0]) == rows(x)
    assert data.names == ("a", "b")


def test_a_transform_that_cuts_16_bits_or_takes_indices_for_pixels_is_refused(tmp_path):
    x = DRAW.integers(0, 65536, (20, 8, 8)).astype(np.uint16)
    deep = folder(tmp_path / "deep", map(Image.fromarray, x))
    flat = folder(tmp_path / "flat", [picture("P", i) for i in range(20)])
    grey = Grayscale()
    small = Compose([Resize((4, 4)), grey, np.asarray])
    for root, transform, noun in (
        (deep, grey, "16 bits"),
        (deep, small, "16 bits"),
        (flat, np.asarray, "palette"),
        (flat, ToTensor(), "palette"),
    ):
        data = ImageFolder(root, transform, loader=Image.open)
        refused(noun, fl.data.dataset, data)
    scaled = ImageFolder(
        deep, lambda p: np.uint8(np.asarray(p) // 257), loader=Image.open
    )
    assert rows(whole(fl.data.dataset(scaled))[0]) == rows(x // 257)
    assert fl.data.dataset(ImageFolder(flat, grey, loader=Image.open)).names
    few = folder(tmp_path / "few", [Image.fromarray(row // 257) for row in x])
    assert fl.data.dataset(
        ImageFolder(few)
    ).names  # 16 bits a pixel, of which 8 are used


@pytest.mark.parametrize("mode", ["P", "CMYK"])
def test_a_palette_becomes_colours(mode):  # h02
    pictures = [picture(mode, i) for i in range(60)]
    colours = [np.asarray(p.convert("RGB")).transpose(2, 0, 1) for p in pictures]
    for data in (fl.data.dataset(items(pictures)), fl.data.arrays(pictures, Y)):
        assert rows(whole(data)[0]) == rows(colours)


def test_transparency_is_said(tmp_path):
    clear = [Image.fromarray(np.dstack([p, p[..., 0]])) for p in PICTURES]
    refused("transparency", fl.data.dataset, items(clear))
    with pytest.warns(UserWarning, match="transparency"):
        fl.data.dataset(ImageFolder(folder(tmp_path, clear[:20])))
    data = fl.data.arrays([np.asarray(p) for p in clear], Y)  # as a channel
    assert data.train_x.shape[1:] == (4, 8, 8)
    clear = [picture("P", i) for i in range(60)]
    for image in clear:
        image.info["transparency"] = 0
    refused("RGBA", fl.data.dataset, items(clear))
    colours = [p.convert("RGB") for p in clear]
    for image in colours:
        image.info["transparency"] = (0, 0, 0)
    refused("RGBA", fl.data.dataset, items(colours))
    opaque = [p.convert("RGBA").convert("RGB") for p in clear]
    assert fl.data.dataset(items(opaque)).train_x.shape[1:] == (3, 8, 8)


def test_pictures_of_several_kinds_or_sizes_are_refused():
    sixteen = Image.fromarray(PICTURES[0, ..., 0].astype(np.uint16) * 257)
    refused("types", fl.data.dataset, items([picture("L"), sixteen] * 30))
    refused("shape", fl.data.dataset, items([picture("L"), picture("RGB")] * 30))
    refused("shape", fl.data.arrays, [[1], [2, 3]] * 30, Y)


class Drawn:
    """A data set whose transform draws, from one generator or another."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return (PICTURES[i][:, ::-1] if self.draw() < 0.5 else PICTURES[i]), i % 3


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), np.random.rand])
def test_a_random_transform_is_refused(draw):  # h05
    refused("augment=", fl.data.dataset, Drawn(draw))
    refused("augment=", fl.data.clients, [Drawn(draw), items(PICTURES)])


def test_masked_values_are_refused():  # h16
    x = X.copy()
    x[5, 2] = -9999.0
    masked = np.ma.masked_equal(x, -9999.0)
    refused(r"columns \[2\]", fl.data.arrays, masked, Y)
    refused(r"columns \[2\]", fl.data.clients, {"a": (X, Y), "b": (masked, Y)})
    refused(
        r"positions \[4\]", fl.data.arrays, X, np.ma.masked_array(Y, np.arange(60) == 4)
    )


@pytest.mark.parametrize("value", [np.nan, 1e39])
def test_values_that_are_no_numbers_are_refused_by_column(value):
    x = X.copy()
    x[7, 1] = value
    refused(r"columns \[1\]", fl.data.arrays, x, Y)
    frame = FRAME.assign(dose=x[:, 1])
    refused("'dose'", fl.data.table, frame, target="label", user="site")


def test_a_large_offset_is_refused_not_rounded_away():  # h25
    when = 1.7e9 + 60.0 * np.arange(60)
    x = np.c_[when, X[:, 0]]
    refused(r"columns \[0\]: subtract the mean", fl.data.arrays, x, Y)
    refused("subtract the mean", fl.data.arrays, np.int64(1e9 * when)[:, None], Y)
    data = fl.data.arrays(x - x.mean(0), Y)
    assert len(np.unique(whole(data)[0][..., 0])) == 60
    constant = np.c_[np.full(60, 0.1), X]
    assert fl.data.arrays(constant, Y).std[0] == 1


@pytest.mark.parametrize(
    ("x", "noun"),
    [
        (csr_array(X), "toarray"),
        (NAMES, "numbers"),
        (X[:50], "50 samples"),
        (X[:, 0], "Samples"),
        (FRAME, "fl.data.table"),
    ],
)
def test_samples_that_cannot_be(x, noun):
    refused(noun, fl.data.arrays, x, Y)


# ---- labels, users, the test set


@pytest.mark.parametrize(
    "y",
    [
        NAMES,
        pandas.Series(NAMES, dtype="category"),
        Y + 3,
        pandas.Series(Y + 3, dtype="Int64"),
        Y == 0,
        ["01", "1", "001"] * 20,
    ],
)
def test_labels_keep_their_names(y):
    data = fl.data.arrays(X, y)
    labels = np.asarray([v.item() if hasattr(v, "item") else v for v in y]).reshape(-1)
    table = {
        tuple(row): label
        for row, label in zip(np.float32(X).tolist(), labels, strict=True)
    }
    x, back = whole(data)
    assert [table[tuple(row)] for row in x[:, 0, 0].tolist()] == back.tolist()
    task = fl.tasks.classification(data, 2)
    assert {*task.predict(task.network(), X).tolist()} <= {*np.unique(labels).tolist()}


@pytest.mark.parametrize(
    ("y", "noun"),
    [
        (np.eye(3)[Y], "one-hot"),
        (Y - 1, "-1"),
        (X[:, 0], "extend.md"),
        (np.arange(60), "60 classes"),
        (Y.astype(np.uint64) + np.uint64(2**63), "2.*63"),
        ([0, "high"] * 30, "one kind"),
        ([[1], [2, 3]] * 30, "list"),
        ([None, *NAMES[1:]], r"positions \[0\]"),
        (pandas.date_range("2026", periods=60), "texts"),
        (np.arange(60).astype("datetime64[ns]"), "texts"),
        (Y[:50], "50 labels"),
    ],
)
def test_labels_that_cannot_be(y, noun):
    refused(noun, fl.data.arrays, X, y)


def test_labels_of_two_kinds_among_clients_are_refused():  # h36
    refused(
        "(?=.*'eve')(?=.*texts)", fl.data.clients, {"ann": (X, Y), "eve": (X, NAMES)}
    )
    refused("kind", fl.data.arrays, X, Y, test=(X, NAMES))


def test_users_are_clients_under_their_names():
    pairs = [(site, int(site) % 2) for site in FRAME["site"]]
    floats = (np.arange(60) % 4).astype(float)
    for users, names in (
        (FRAME["site"], ("001", "01", "1", "2")),  # h26
        (floats, (0, 1, 2, 3)),  # h21
        (pairs, (("001", 1), ("01", 1), ("1", 1), ("2", 0))),  # h22
        ([1, "1", "a", 2] * 15, (1, "1", "a", 2)),  # h36
    ):
        data = fl.data.arrays(X, Y, users=users)
        task = fl.tasks.classification(data, metrics="per_client")
        assert data.user_names == names
        assert task.clients == 4
        assert task.sizes == [12] * 4
    for users, noun in (
        ([np.nan, *floats[1:]], r"positions \[0\]"),
        (floats + 0.5, "0.5"),
        (floats[:9], "9 users"),
        ("site", "user="),
    ):
        refused(noun, fl.data.arrays, X, Y, users=users)


def test_what_each_client_holds():
    parts = {
        ("h1", 2): (X[:20], Y[:20]),
        ("h1", 1): (X[20:40], Y[20:40]),
        "h2": (X[40:], Y[40:]),
    }
    data = fl.data.clients(parts)  # h22: as groupby of two columns gives them
    assert data.user_names == (*parts,)
    task = fl.tasks.classification(data)
    assert task.sizes == [16] * 3
    assert torch.bincount(task.owners).tolist() == [4] * 3
    for k, (x, _) in enumerate(parts.values()):
        samples = task.train[0][task.owned[k]], task.test[0][task.owners == k]
        assert rows(np.concatenate(samples)) == rows(np.float32(x))
    three = fl.data.clients({1: (X, Y), "1": (X, Y)}, test=(X[:9], Y[:9]))  # h36
    assert three.user_names == (1, "1")
    assert len(three.test_y) == 9
    assert fl.tasks.classification(three).owners is None


@pytest.mark.parametrize(
    ("data", "noun"),
    [
        ({"train": (X, Y), "test": (X, Y)}, "test="),  # h13
        ({"a": FRAME, "b": FRAME}, "Client 'a'.*fl.data.table"),
        ([(X, Y), (X[:0], Y[:0])], "Client 1"),
        ({"a": (X, Y), "b": (X[:, 1:], Y)}, "Client 'b'"),
        ([(X, Y[:5])], "Client 0.*60 samples"),
        ({}, "list or a dictionary"),
        ((X, Y), "fl.data.arrays"),
        ({np.nan: (X, Y)}, "rows"),
        (
            [DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)))] * 2,
            "map-style",
        ),  # h35
        ([(X[i : i + 1], Y[i : i + 1]) for i in range(20)], "test="),
    ],
)
def test_clients_that_cannot_be(data, noun):
    refused(noun, fl.data.clients, data)


def test_the_test_set_is_a_share_or_is_given():
    data = fl.data.arrays(X, NAMES, test=0.5)
    assert len(data.test_y) == 30
    assert data.names == ("high", "low", "mid")
    rare = fl.data.arrays(X[:32], [0] * 30 + [1] * 2, test=0.9)
    assert torch.bincount(rare.train_y).tolist() == [3, 1], "never all of a class"
    users = ["b", "a"] * 30
    data = fl.data.arrays(X, Y, test=(X[:4], Y[:4], ["a", "b", "c", "a"]), users=users)
    assert data.test_users.tolist() == [0, 1, -1, 0]
    assert rows(data.test_x) == rows(np.float32(X[:4]))
    with pytest.warns(UserWarning, match="'new'"):
        fl.data.arrays(X, NAMES, test=(X[:2], ["low", "new"]))
    for test in (1, 0.001, (X, Y, Y, Y), (X[:5, :3], Y[:5])):
        refused("test|samples", fl.data.arrays, X, Y, test=test)


# ---- data sets


class Hub:
    """A data set as those of Hugging Face look from outside."""

    class Labels:
        names = ("cat", "ant", "bee")

    features = {"kind": Labels}
    column_names = ("picture", "kind")

    def __len__(self):
        return 60

    def __getitem__(self, i):
        if isinstance(i, str):
            return [self[k][i] for k in range(60)]
        return {"picture": picture("P", i), "kind": i % 3}


def test_data_sets_of_every_library(tmp_path):
    keys = ("picture", "kind")
    data = fl.data.clients({0: Hub(), 1: Hub()}, keys=keys)
    assert data.names == ("cat", "ant", "bee"), "in the order of their numbers"
    assert data.user_names == (0, 1)  # h24
    refused("keys=", fl.data.dataset, Hub())
    ways = Image.fromarray, np.asarray, lambda x: torch.from_numpy(x).permute(2, 0, 1)
    first, *sets = (fl.data.dataset(items(map(way, PICTURES))) for way in ways)
    assert all(torch.equal(first.train_x, other.train_x) for other in sets)
    root = folder(tmp_path, map(Image.fromarray, PICTURES[:20]))
    data = fl.data.dataset(ImageFolder(root))
    assert rows(whole(data)[0]) == rows(PICTURES[:20].transpose(0, 3, 1, 2))
    part = fl.data.dataset(Subset(ImageFolder(root), range(0, 20, 3)), test=0.4)
    assert part.names == ("a", "b")
    assert len(part.train_y) + len(part.test_y) == 7
    triples = [(x, y, i) for i, (x, y) in enumerate(items(PICTURES))]
    refused("keys=", fl.data.dataset, triples)  # h35
    assert len(fl.data.dataset(triples, keys=(0, 1)).train_y) == 48


def test_classes_of_several_folders_are_matched_by_name(tmp_path):  # h34
    pictures = [Image.fromarray(p) for p in PICTURES[:20]]
    sites = {
        c: ImageFolder(folder(tmp_path / c, pictures, c)) for c in ("ab", "b", "ca")
    }
    data = fl.data.clients(sites)
    assert data.names == ("a", "b", "c")
    assert fl.tasks.classification(data).sizes == [16] * 3
    x, labels = whole(data)
    assert (labels == "b").sum() == 30
    assert (labels == "a").sum() == 20
    with pytest.warns(UserWarning, match="'c'"):
        fl.data.dataset(sites["ab"], sites["ca"])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(items(PICTURES))

    def __len__(self):
        return 60


@pytest.mark.parametrize(
    "data", [Stream(), DataLoader(Stream()), iter([]), [1, 2, 3], X, "photos", FRAME]
)
def test_what_is_no_data_set_is_refused(data):  # h35
    refused("item|map-style", fl.data.dataset, data)


# ---- tables


def test_a_table_goes_by_its_columns_names():  # h04
    data = fl.data.table(FRAME, target="label", user="site")
    assert data.columns == ("age", "dose", "weight", "size")
    assert data.user_names == ("001", "01", "1", "2")
    assert data.names == ("high", "low", "mid")
    task = fl.tasks.classification(data)
    net = fl.run("fedavg", task, 2, progress=False).network()
    features = FRAME[list(data.columns)]
    answers = task.predict(net, features)
    assert {*answers} <= {*NAMES}
    assert len({*answers}) > 1
    assert (
        task.predict(net, FRAME[["size", "age", "weight", "dose"]]) == answers
    ).all()
    refused("size", task.predict, net, features.drop(columns="size"))
    refused("site", task.predict, net, FRAME)
    shuffled = FRAME.sample(frac=1, random_state=0)[[*FRAME.columns[::-1]]]
    tested = fl.data.table(FRAME, target="label", user="site", test=shuffled)
    assert rows(tested.test_x) == rows(tested.train_x)
    assert tested.test_users.min() >= 0


@pytest.mark.parametrize(
    ("frame", "target", "user", "noun"),
    [
        (FRAME, "labels", None, "Did you mean 'label'"),
        (FRAME, "label", None, "'site'"),  # texts are no features
        (FRAME[:0], "label", "site", "rows"),
        (
            FRAME.assign(label=[None, *NAMES[1:]]),
            "label",
            "site",
            "keep_default_na",
        ),  # h15
        (FRAME.assign(site=[1, "1"] * 30), "label", "site", "dtype="),
        (FRAME.assign(age=["1,5"] * 60), "label", "site", "decimal="),  # h29
        (FRAME.assign(age=["1,234.5"] * 60), "label", "site", "thousands="),
        (FRAME.assign(age=["a, b"] * 60), "label", "site", "get_dummies"),
        (FRAME.reset_index(names="Unnamed: 0"), "label", "site", "index_col=0"),
        (
            FRAME.set_axis(["0.5", "0.5.1", "-1.2", "3", "1", "7"], axis=1),
            "1",
            "7",
            "header",
        ),  # h14
        ("patients.csv.gz", "label", "site", "read_csv"),  # h28
        (X, "label", "site", "DataFrame"),
    ],
)
def test_tables_that_cannot_be(frame, target, user, noun):
    refused(noun, fl.data.table, frame, target=target, user=user)


def test_a_table_of_another_library_is_refused():  # h19
    class DataFrame:
        columns = ["a", "label"]
        __len__ = lambda self: 60  # noqa: E731
        __getitem__ = lambda self, name: [0, 1] * 30  # noqa: E731

    for make in (fl.tasks.classification, fl.data.dataset, fl.data.clients):
        refused("to_pandas", make, DataFrame())
    refused("to_pandas", fl.data.table, DataFrame(), target="label")


# ---- what a task takes


@pytest.mark.parametrize(
    ("data", "noun"),
    [
        ((X, Y), "fl.data.arrays"),
        ([(X, Y), (X, Y)], "fl.data.clients"),
        ({"train": FRAME, "test": FRAME}, "fl.data.table"),
        (FRAME, "fl.data.table"),
        (Hub(), "fl.data.dataset"),
        ("patients.csv:label", "fl.data.table"),
        ("photos/", "fl.data.dataset"),
        ("mnits", "Did you mean 'mnist'"),
        (3.5, "fl.data"),
        ("lost.py:data", "lost.py"),
    ],
)
def test_a_task_names_the_maker(data, noun):
    refused(noun, fl.tasks.classification, data)


DATA = fl.data.arrays(X, Y)


@pytest.mark.parametrize(
    ("options", "noun"),
    [
        ({"clients": "ward"}, "users="),
        ({"clients": [(X, Y), (X, Y)]}, "fl.data.clients"),
        ({"clients": [[0], [[1]]]}, "Client 1"),
        ({"clients": 0}, "clients"),
        ({"clients": [[0], [1, 2]], "partition": "iid"}, "neither partition"),
        ({"clients": 2, "augment": "crop"}, "vectors"),
        ({"dataset": fl.data.arrays(X, Y, users=Y), "partition": "iid"}, "clients=10"),
    ],
)
def test_clients_of_a_task_that_cannot_be(options, noun):
    refused(noun, fl.tasks.classification, **{"dataset": DATA} | options)


def test_a_function_in_a_file_makes_data(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\nimport fedlearn as fl\n\ndef wards():\n"
        "    x, y = np.eye(40), np.arange(40) % 2\n"
        "    return fl.data.arrays(x, y, users=np.arange(40) % 4, name='wards')\n\n"
        "def nothing():\n    return 3\n"
    )
    task = fl.Experiment(dataset=f"{file}:wards", clients="users").make_task()
    assert task.sizes == [8] * 4
    assert task.describe()["dataset"] == "wards"
    refused("maker", fl.tasks.classification, f"{file}:nothing")


# ---- the pages


def printed(text):
    """Words, whole numbers and marks as they are, other numbers as floats."""
    found = re.findall(r"\d+\.\d+|\w+|\S", text)
    return [float(part) if re.match(r"\d+\.", part) else part for part in found]


def test_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    """And each program prints what stands under it, up to a tenth: processors differ."""
    page = PAGE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = {}
    program = r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?"
    for code, shown in re.findall(program, page, re.DOTALL):
        exec(compile(code, "own_data.md", "exec"), names)
        assert printed(capsys.readouterr().out) == [
            pytest.approx(part, abs=0.1) if isinstance(part, float) else part
            for part in printed(shown)
        ]
    assert page.count("```text") >= 8
    lines = [
        line
        for text in re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
        for line in text.splitlines()
    ]
    assert lines
    for line in lines:
        assert not cli.main([*line.split()[1:], "--rounds", "1", "--no-progress"])


def test_a_task_of_ones_own():
    page = PAGE.with_name("extend.md").read_text(encoding="utf-8")
    names = {"fl": fl, "torch": torch}
    ends = []
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        if "fl.tasks.Task" in code:
            exec(compile(code, "extend.md", "exec"), names)
            ends.append((names["task"], names["history"]))
    (numbers, regression), (plays, letters) = ends
    assert regression.accuracy[-1] > 0.8
    assert numbers.class_counts.sum() == 480
    assert letters.accuracy[-1] > 1 / len(names["letters"])
    assert plays.clients == 2
    assert fl.run("fedavg", plays, 1) == fl.run("fedavg", plays, 1)


def test_a_prediction_is_compared_with_the_training_set():
    when = 1.7e9 + 1e6 * np.arange(60)
    task = fl.tasks.classification(fl.data.arrays(np.c_[when, X], NAMES), 2)
    close = np.c_[when[0] + np.arange(5.0), X[:5]]
    assert len(task.predict(task.network(), close)) == 5
    assert task.predict(task.network(), close[:1]).shape == (1,)
    task = fl.tasks.classification(fl.data.arrays(np.c_[when - when[0], X], NAMES), 2)
    refused("subtract the mean", task.predict, task.network(), 1e6 * close)
    refused("5", task.predict, task.network(), close[:, 1:])
    refused("array", task.predict, task.network(), {"x": close})
    refused("network", task.predict, {"net": task.network()}, close)


def test_a_column_that_stands_twice_in_a_prediction_is_refused():
    task = fl.tasks.classification(fl.data.table(FRAME, "label", "site"))
    twice = FRAME[["age", "age", "dose", "weight", "size"]]
    refused("different names", task.predict, task.network(), twice)


def test_a_network_with_more_scores_than_classes_names_a_class():
    def wide(shape, classes):
        layer = torch.nn.Linear(4, classes + 5)
        layer.bias.data[classes:] = 100.0
        return torch.nn.Sequential(torch.nn.Flatten(), layer)

    task = fl.tasks.classification(fl.data.arrays(X, NAMES), 2, network=wide)
    assert {*task.predict(task.network(), X)} <= {*NAMES}


def test_to_tensor_does_not_turn_pictures_of_16_bits_around(tmp_path):
    x = np.full((20, 8, 8), 60000, np.uint16)
    root = folder(tmp_path, map(Image.fromarray, x))
    photos = ImageFolder(root, ToTensor(), loader=Image.open)
    if Image.open(photos.samples[0][0]).mode == "I":  # of Pillow before 11
        assert fl.data.dataset(photos).train_x.min() == 60000
    else:
        refused("ToTensor", fl.data.dataset, photos)


# ---- images of two scales

UNIT = DRAW.random((60, 8, 8))
TWO_SCALES = [
    (PICTURES, PICTURES / 255),  # h27
    (UNIT, 2 * UNIT - 1),
    (255 * UNIT, DRAW.normal(size=(60, 8, 8))),
    (255 * UNIT, 65535 * UNIT),
]
ONE_SCALE = [
    (60000 * UNIT, 1200 * UNIT),
    (2 * UNIT - 1, 0.5 + UNIT / 2),
    (UNIT[:, 0], 2 * UNIT[:, 0] - 1),  # vectors have units of their own
]


@pytest.mark.parametrize(("x", "other"), TWO_SCALES)
def test_images_of_two_scales_are_refused(x, other):
    zeros = np.zeros_like(x)
    parts = {"a": (zeros, Y), "b": (x, Y), "c": (other, Y)}
    refused("(?=.*'c')(?=.*scale)", fl.data.clients, parts)
    refused("scale", fl.data.arrays, x, Y, test=(other, Y))
    task = fl.tasks.classification(fl.data.arrays(x, Y), 2)
    refused("scale", task.predict, task.network(), other)
    assert len(task.predict(task.network(), x[:1])) == 1


@pytest.mark.parametrize(("x", "other"), ONE_SCALE)
def test_images_of_one_scale_may_be_dark_or_bright(x, other):
    parts = {"a": (x, Y), "b": (other, Y)}
    assert fl.data.clients(parts).user_names == ("a", "b")


class Wrapped(Dataset):
    """A wrapper that keeps its data set under a name of its own."""

    def __init__(self, subset):
        self.subset = subset

    def __len__(self):
        return len(self.subset)

    def __getitem__(self, i):
        return self.subset[i]


def test_a_folder_inside_a_wrapper_is_checked(tmp_path):
    x = DRAW.integers(0, 65536, (20, 8, 8)).astype(np.uint16)
    root = folder(tmp_path, map(Image.fromarray, x))
    refused("16 bits", fl.data.dataset, Wrapped(ImageFolder(root)))
    read = DatasetFolder(root, lambda path: np.asarray(Image.open(path)), (".png",))
    assert rows(whole(fl.data.dataset(read))[0]) == rows(x)


@pytest.mark.parametrize(
    "samples", [[(PICTURES[0], 0)], np.zeros(3), 5, [("lost.png", 1)]]
)
def test_samples_of_a_data_set_of_ones_own_are_no_files(samples):
    data = Wrapped(items(PICTURES))
    data.samples = samples
    data.loader = Image.open
    assert len(fl.data.dataset(data).train_y) + 12 == 60


def test_a_random_transform_of_one_part_is_refused():
    parts = ConcatDataset([Wrapped(items(PICTURES)), Drawn(np.random.rand)])
    refused("twice", fl.data.dataset, parts)


def test_labels_of_other_kinds_are_no_random_transform():
    labels = [{"class": i} for i in range(60)]
    refused("Labels", fl.data.dataset, items(PICTURES, labels))
    kinds = enum.Enum("Kind", {"LOW": "low", "HIGH": "high"}, type=str)
    low, high = kinds
    assert fl.data.arrays(X, [low, high] * 30).names == ("high", "low")
    refused("Labels", fl.data.arrays, X, None)


def test_the_data_are_a_copy():
    x = PICTURES.copy()
    data = fl.data.arrays(x, Y, test=(x, Y))
    x[...] = 0
    assert data.train_x.any()


def test_parts_and_users_that_do_not_meet_are_refused():
    for first, second in (("training_set", "test_set"), ("X_train", "X_test")):
        refused("parts", fl.data.clients, {first: (X, Y), second: (X, Y)})
    data = {"test ward": (X, Y), "ward 2": (X, Y)}
    assert fl.data.clients(data).user_names == ("test ward", "ward 2")
    data = {"site1_train": (X, Y), "site2_train": (X, Y)}
    assert len(fl.data.clients(data).user_names) == 2
    users = np.arange(60) % 4
    test = (X, Y, users.astype(str))
    refused("users", fl.data.arrays, X, Y, users=users, test=test)


@pytest.mark.parametrize("names", [["30", " 0.5", "yes"], ["3", "7", "yes"]])
def test_a_first_row_is_no_header(names):
    frame = pandas.DataFrame({names[0]: X[:, 0], names[1]: X[:, 1], names[2]: NAMES})
    refused("header", fl.data.table, frame, target="yes")
    frame.columns = ["0", "1", "label"]
    assert fl.data.table(frame, target="label").columns == ("0", "1")


def test_a_data_set_may_reuse_its_array():
    class Reused(Wrapped):
        def __getitem__(self, i):
            page[:] = PICTURES[i]
            return page, i % 3

    page = np.empty_like(PICTURES[0])
    images = PICTURES.transpose(0, 3, 1, 2)
    assert rows(whole(fl.data.dataset(Reused(PICTURES)))[0]) == rows(images)


def test_two_classes_of_one_name_are_refused():
    data = Wrapped(items(PICTURES))
    data.classes = ["crane", "dog", "crane"]
    refused("different names", fl.data.dataset, data)


@pytest.mark.parametrize("steps", [[Resize((4, 4))], []])
def test_a_palette_that_a_transform_resolves_is_taken(tmp_path, steps):
    clear = [picture("P", i) for i in range(20)]
    for i, image in enumerate(clear):
        image.save(tmp_path / f"{i}.png", transparency=0)
    pictures = [Image.open(tmp_path / f"{i}.png") for i in range(20)]
    root = folder(tmp_path / "root", pictures)
    transform = Compose([*steps, lambda p: np.asarray(p.convert("RGBA"))])
    data = ImageFolder(root, transform, loader=Image.open)
    assert fl.data.dataset(data, channels="last").train_x.shape[1] == 4
