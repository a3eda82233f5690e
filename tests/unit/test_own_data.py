"""One's own arrays, data sets, folders and files; clients that are given; and the book's page about
them."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedlearn as fl
from fedlearn import cli
from fedlearn.data import partition as P
from fedlearn.errors import DataError
from fedlearn.models import multiply_adds
from fedlearn.tasks.classification import default_network

PAGE = Path(__file__).resolve().parents[2] / "book" / "own_data.md"
DRAW = np.random.default_rng(0)
X = DRAW.integers(0, 256, (60, 6, 8, 3), np.uint8)  # channel last
Y = np.arange(60) % 3


def all_of(source):
    return torch.cat([source.train_x, source.test_x]), torch.cat([source.train_y, source.test_y])


def digits(n=200):
    source = fl.data.sources.load("digits")
    return source.train_x[:n].numpy(), source.train_y[:n].numpy()


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (X, (3, 6, 8)),
        (X.transpose(0, 3, 1, 2), (3, 6, 8)),
        (torch.from_numpy(X.transpose(0, 3, 1, 2)), (3, 6, 8)),
        (X[..., 0], (1, 6, 8)),
        (X[..., :1], (1, 6, 8)),
        (X[:, 0, 0].tolist(), (1, 1, 3)),
        (X / 255, (3, 6, 8)),
        (X > 100, (3, 6, 8)),
    ],
)
def test_arrays_of_every_layout(x, shape):
    source = fl.data.from_arrays(x, Y)
    assert source.train_x.shape[1:] == shape and (len(source.train_x), len(source.test_x)) == (
        48,
        12,
    )
    assert source.train_x.dtype in (torch.uint8, torch.float32) and source.classes == 3
    assert source.train_x.is_contiguous() and source.train_y.dtype == torch.int64
    x, y = all_of(source)
    # nothing lost, nothing twice, and labels stay with their samples
    first = np.asarray(torch.as_tensor(np.asarray(X)).permute(0, 3, 1, 2)).reshape(60, -1)
    if x.dtype == torch.uint8 and shape == (3, 6, 8) and x.max() > 1:
        rows = {tuple(row): int(label) for row, label in zip(first.tolist(), Y, strict=True)}
        assert all(
            rows.pop(tuple(row)) == int(k) for row, k in zip(x.flatten(1).tolist(), y, strict=True)
        )
    task = fl.tasks.classification(source, 2)
    inputs = task.inputs(task.train[0])
    dims = (0,) if shape[:2] == (1, 1) else (0, 2, 3)
    assert inputs.mean(dims).abs().max() < 1e-4
    assert (inputs.std(dims, correction=0) - 1).abs().max() < 1e-3


def test_a_constant_channel_is_not_divided_by_zero():
    source = fl.data.from_arrays(np.full((20, 4, 4, 3), 7, np.uint8), np.arange(20) % 2)
    assert source.std == (1.0, 1.0, 1.0) and source.mean == (7.0, 7.0, 7.0)
    assert np.isfinite(fl.run("fedavg", fl.tasks.classification(source, 2), 1).final["loss"])


def test_texts_are_numbered_alphabetically():
    names = np.array(["dog", "cat", "Ant"])[Y]
    source = fl.data.from_arrays(X, names, test=(X[:3], names[:3]))
    assert source.names == ("Ant", "cat", "dog") and source.train_y.tolist()[:3] == [2, 1, 0]
    assert source.test_y.tolist() == [2, 1, 0]


def test_the_split_is_the_same_for_every_seed_and_keeps_every_class():
    a, b = (fl.tasks.classification((X, Y), 2, seed=seed) for seed in (0, 1))
    assert torch.equal(a.test[0], b.test[0]) and a.digests["images"] == b.digests["images"]
    assert torch.bincount(a.test[1]).tolist() == [4, 4, 4]
    rare = np.array([0] * 30 + [1] * 2)
    source = fl.data.from_arrays(X[:32], rare, test=0.5)
    assert torch.bincount(source.train_y).tolist() == [15, 1]


class Pictures:
    """A data set in torchvision's style."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return self.make(X[i]), int(Y[i])


def test_a_data_set_in_torchvisions_style():
    from PIL import Image

    ways = Image.fromarray, np.asarray, lambda x: torch.from_numpy(x).permute(2, 0, 1)
    sources = [fl.data.from_dataset(Pictures(make)) for make in ways]
    for source in sources[1:]:
        assert torch.equal(source.train_x, sources[0].train_x)
        assert torch.equal(source.test_y, sources[0].test_y)
    both = fl.data.from_dataset(Pictures(np.asarray), test=Pictures(np.asarray))
    assert len(both.train_x) == len(both.test_x) == 60
    assert fl.tasks.classification(Pictures(np.asarray), 3).sizes == [16, 16, 16]
    with pytest.raises(ValueError, match="dataset.i. is an image and its label"):
        fl.data.from_dataset([1, 2, 3])


def pictures(folder, sizes=((8, 6),), mode="RGB", names=("cats", "dogs"), each=10):
    from PIL import Image

    for c, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            image = Image.fromarray(X[i + 20 * c]).resize(sizes[i % len(sizes)])
            image.convert(mode).save(folder / name / f"{i}.png")
        (folder / name / "notes.txt").write_text("no image")
    return folder


def test_a_folder_of_images(tmp_path):
    source = fl.data.from_folder(pictures(tmp_path / "pets"))
    assert (source.name, source.names, source.note) == ("pets", ("cats", "dogs"), "")
    assert source.train_x.shape == (16, 3, 6, 8) and source.train_x.dtype == torch.uint8
    x, y = all_of(source)
    assert {tuple(a.tolist()) for a in x[y == 1].permute(0, 2, 3, 1).flatten(1)} == {
        tuple(a.tolist()) for a in X[20:30].reshape(10, -1)
    }
    grey = fl.data.from_folder(pictures(tmp_path / "grey", mode="L"))
    assert grey.train_x.shape == (16, 1, 6, 8)
    small = fl.data.from_folder(tmp_path / "pets", size=5)
    assert small.train_x.shape == (16, 3, 5, 5)
    mixed = fl.data.from_folder(pictures(tmp_path / "mixed", sizes=((8, 6), (20, 9))))
    assert mixed.train_x.shape == (16, 3, 32, 32) and "2 sizes, scaled to 32 x 32" in mixed.note


def test_a_folder_with_train_and_test(tmp_path):
    pictures(tmp_path / "pets" / "train")
    pictures(tmp_path / "pets" / "test", each=3)
    source = fl.data.from_folder(tmp_path / "pets")
    assert (len(source.train_y), len(source.test_y), source.classes) == (20, 6, 2)
    (tmp_path / "pets" / "test" / "eels").mkdir()
    with pytest.raises(DataError, match="classes that train has not: .'eels'."):
        fl.data.from_folder(tmp_path / "pets")


def test_a_folder_and_a_file_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pictures(Path("photos"))
    few = ["--clients", "2", "--rounds", "1", "--out", "-"]
    assert not cli.main(["run", "fedavg", "--dataset", "photos/", *few])
    history = fl.History.from_json(capsys.readouterr().out)
    task = history.meta["task"]
    assert (task["dataset"], task["network"], task["train"]) == ("photos", "digits_cnn", 16)
    x, y = digits(60)
    np.savez("mine.npz", x=x, y=y, users=[f"user {i % 3}" for i in range(60)])
    words = ["run", "fedavg", "--dataset", "mine.npz", "--clients", "users", *few[2:]]
    assert not cli.main([*words, "--metric", "per_client", "--metric", "worst_client"])
    history = fl.History.from_json(capsys.readouterr().out)
    assert history.meta["task"]["clients"] == 3
    assert history.worst_client[0] == history.per_client[0].min()


def test_a_file_that_changed_is_read_again(tmp_path):
    x, y = digits(60)
    for n in (40, 60):
        np.savez(tmp_path / "mine.npz", x=x[:n], y=y[:n], test_x=x[:5], test_y=y[:5])
        task = fl.tasks.classification(tmp_path / "mine.npz", 2)
        assert len(task.train[1]) == n and task is not fl.tasks.classification("digits", 2)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 1, 30), "mlp"),
        ((3, 2, 40), "mlp"),
        ((3, 4, 4), "digits_cnn"),
        ((1, 16, 16), "digits_cnn"),
        ((1, 28, 28), "mcmahan_cnn"),
        ((3, 32, 32), "cifar_cnn"),
        ((4, 17, 9), "cifar_cnn"),
        ((3, 33, 20), "digits_resnet"),
        ((3, 224, 224), "digits_resnet"),
    ],
)
def test_every_shape_has_a_network_that_takes_it(shape, name):
    source = fl.data.from_arrays(np.zeros((6, *shape), np.uint8), np.arange(6) % 2, test=0.4)
    assert default_network(source) == name
    assert multiply_adds(fl.models.NETWORKS[name](shape, 2), shape) > 0


def test_vectors_train_stacked_as_one_by_one():
    x = DRAW.normal(size=(200, 5)) * [1, 100, 1, 1e-3, 1]
    y = np.where(x[:, 0] + x[:, 1] / 100 > 0, "above", "below")
    task = fl.tasks.classification((x, y), 4, metrics=("per_class", "worst_class_mix"))
    one, together = (fl.run("fedavg", task, 8, engine=e) for e in ("sequential", "stacked"))
    assert one.final["accuracy"] == together.final["accuracy"] > 0.85
    assert one.final["per_class"] == together.final["per_class"]
    assert abs(one.final["loss"] - together.final["loss"]) < 1e-5


# ---- clients that are given


def test_users_are_clients():
    names = np.array(["eve", "ann", "bob"])[np.arange(60) % 3]
    task = fl.tasks.classification((X, Y), names)
    assert task.clients == 3 and repr(task.partition) == "Given(3 clients, 48 samples)"
    assert task.sizes == [16, 16, 16], "every user gives the same share to the test set"
    # users are numbered in the order of their names, and Y happens to be the user here
    held = [set(task.train[1][own].tolist()) for own in task.owned]
    assert held == [{1}, {2}, {0}]
    source = fl.data.from_arrays(X, Y, (X, Y))
    assert fl.tasks.classification(source, list(names)).sizes == [20, 20, 20]
    assert fl.tasks.classification(fl.data.from_arrays(X, Y, users=names), "users").sizes == [
        16,
        16,
        16,
    ]


def test_lists_of_positions():
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


def test_a_user_without_training_samples_is_refused():
    with pytest.raises(ValueError, match="Client 1 is given no training sample"):
        P.Given(np.array([0, 0, 2]))(np.zeros(3, int), 3, None)
    with pytest.raises(ValueError, match="tells of 3 training samples"):
        P.Given(np.array([0, 0, 1]))(np.zeros(4, int), 2, None)


def test_a_run_goes_on_only_with_the_same_data_and_clients(tmp_path):
    x, y = digits(60)
    halves = [range(30), range(30, 60)]
    fl.run(
        "fedavg", fl.tasks.classification(((x, y), (x, y)), halves), 1, checkpoint=tmp_path / "c"
    )
    for other in (
        fl.tasks.classification(((x, y), (x, y)), [range(29), range(29, 60)]),
        fl.tasks.classification(((x, (y + 1) % 10), (x, y)), halves),
    ):
        with pytest.raises(ValueError, match="belongs to another run: data differ"):
            fl.run("fedavg", other, 2, checkpoint=tmp_path / "c")


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


@pytest.mark.parametrize(
    "name", ["IidPartitioner", "DirichletPartitioner", "PathologicalPartitioner"]
)
def test_the_partitioners_of_flwr_datasets_themselves(name):
    theirs = pytest.importorskip("flwr_datasets.partitioner", reason="it is not installed")
    more = {
        "IidPartitioner": {},
        "DirichletPartitioner": {"partition_by": "label", "alpha": 0.5, "min_partition_size": 2},
        "PathologicalPartitioner": {"partition_by": "label", "num_classes_per_partition": 2},
    }[name]
    part = fl.partition.flwr(getattr(theirs, name)(num_partitions=4, **more))
    first, again = (fl.tasks.classification("digits", 4, part, train=200) for _ in range(2))
    assert first.digests == again.digests and sum(first.sizes) <= 200
    if name == "PathologicalPartitioner":
        assert all(len(first.train[1][own].unique()) == 2 for own in first.owned)
    else:  # pathological clients may leave whole classes out
        assert sum(first.sizes) == 200
    if name == "DirichletPartitioner":
        assert "alpha=[0.5, 0.5, 0.5, 0.5]" in repr(part)


def test_a_partitioner_is_one():
    with pytest.raises(ValueError, match="has load_partition"):
        fl.partition.flwr("iid")


# ---- the page


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pictures(Path("photos"), each=12)
    names = {}
    for code in blocks("python"):
        if "flwr_datasets" in code:
            if find_spec("flwr_datasets") is None:
                print("left out, as flwr-datasets is not installed:", code)
                continue
        exec(compile(code, "own_data.md", "exec"), names)
    lines = [line for block in blocks("bash") for line in block.splitlines() if line]
    commands = [line.split("#")[0].split() for line in lines if line.startswith("fedlearn ")]
    assert len(commands) >= 3
    for words in commands:
        assert not cli.main([*words[1:], "--rounds", "1"])


def test_nothing_of_torchvision_is_loaded_for_it():
    code = (
        "import sys, fedlearn as fl; 'torch' in sys.modules and sys.exit(3); "
        "fl.data.from_arrays; sys.exit('torchvision' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    offered = ("arrays", "boxes", "dataset", "folder", "masks", "npz")
    made = [f"from_{name}" for name in offered]
    assert sorted(fl.data.__all__) == ["coco", "digit_scenes", *made, "voc"]
