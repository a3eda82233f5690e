"""The recipes of ``fedlearn reproduce``: what they run, that they go on where they stopped, that
results name their origin."""

import json

import pytest

import fedlearn as fl
from fedlearn import reproduce
from fedlearn import round as rounds
from fedlearn.cli import main

TABLE_1 = [
    "Fed-KGF",
    "Fed-KGF without MU",
    "FedCAMS",
    "SmartIdx",
    "DGC",
    "FedPM",
    "FedCOM",
    "FedAvg",
]


def test_full_scale_is_table_1(monkeypatch):
    monkeypatch.setattr(reproduce.tasks, "classification", lambda **options: options)
    listed = list(reproduce.jobs("fed_kgf", "full", device="cuda"))
    assert [label for label, *_ in listed] == 2 * TABLE_1
    assert {task["partition"] for _, _, task, _ in listed} == {"iid", "main_class:0.8"}
    for _, _, task, how in listed:
        assert (task["dataset"], task["network"], how["rounds"], how["precision"]) == (
            "cifar10",
            "resnet18",
            400,
            "bf16",
        )


@pytest.mark.parametrize("paper", reproduce.RECIPES)
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_row_of_every_recipe_can_be_made(paper, scale, monkeypatch):
    monkeypatch.setattr(reproduce.tasks, "classification", lambda **options: options)
    listed = list(reproduce.jobs(paper, scale))
    places = {(label, str(task), str(how)) for label, _, task, how in listed}
    assert listed and len(places) == len(listed)
    for _, method, task, how in listed:
        assert method.parts() and how["rounds"] > 0 and how["batch_size"] > 0
        fl.partition.parse(task["partition"])


def test_options_for_all_rows_go_where_they_are_known():
    row = {"method": "fedavg", "but": {"optimizer": {"SGD": {"lr": 0.5, "decay": 0.9}}}}
    shared = {"lr": 0.3, "decay": 0.8}
    assert reproduce.make(row, shared) == fl.methods.fedavg().but(optimizer=fl.SGD(0.5, decay=0.9))
    assert reproduce.make({"method": "fedmmd"}, shared) == fl.methods.fedmmd(0.3, decay=0.8)
    assert reproduce.make({"method": "fedmmd", "lr": 1.0}, shared).optimizer.lr == 1.0


def arguments(path, *more):
    return [
        "reproduce",
        "fed_kgf",
        "--rounds",
        "2",
        "--seed",
        "3",
        "--partition",
        "iid",
        "--train",
        "100",
        "--test",
        "50",
        "--only",
        "FedAvg",
        "--only",
        "Fed-KGF",
        "--no-progress",
        "--out",
        str(path),
        *more,
    ]


def test_finished_runs_are_kept_and_stopped_runs_go_on(tmp_path, monkeypatch, capsys):
    path, trained = tmp_path / "kgf.json", []
    real = rounds.one_round

    def counted(server, engine, t, *rest, **how):
        trained.append((server.method.name, t))
        if len(trained) == 4:  # the last round of the second method
            raise KeyboardInterrupt
        return real(server, engine, t, *rest, **how)

    monkeypatch.setattr(rounds, "one_round", counted)
    assert main(arguments(path)) == 130
    assert [d["method"] for d in json.loads(path.read_text())] == ["fed_kgf"]
    assert not main(arguments(path))
    assert trained == [("fed_kgf", 1), ("fed_kgf", 2), ("fedavg", 1), ("fedavg", 2), ("fedavg", 2)]
    assert "there already" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [path]  # no checkpoint left behind

    monkeypatch.setattr(reproduce, "data_path", lambda *parts: path)
    for history in map(fl.History.from_dict, json.loads(path.read_text())):
        assert (
            len(history) == 2
            and history.meta["task"]["seed"] == 3
            and history.meta["task"]["train"] == 100
        )
        assert history.meta["label"] in TABLE_1
        assert set(history.meta["provenance"]) == {"command", "date", "commit"}
        assert {"device", "torch", "python", "settings"} <= history.meta.keys()


@pytest.mark.parametrize(
    "change, sentence",
    [
        (("--only", "FedProx"), "There is no row 'FedProx'"),
        (("--scale", "huge"), "There is no scale 'huge'"),
        (("--rounds", "0"), "rounds must be a whole number"),
    ],
)
def test_wrong_choices(tmp_path, capsys, change, sentence):
    assert main([*arguments(tmp_path / "x.json"), *change]) == 2
    assert sentence in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_shorter_run_does_not_go_into_the_books_file(capsys):
    assert main(["reproduce", "fed_kgf", "--rounds", "2"]) == 2
    assert "name a file of your own" in capsys.readouterr().err


def test_another_learning_rate_is_another_run(tmp_path, monkeypatch, capsys):
    path = tmp_path / "x.json"
    assert not main(arguments(path, "--only", "FedAvg"))
    monkeypatch.setitem(
        reproduce.RECIPES["fed_kgf"]["quick"]["runs"][0]["rows"]["FedAvg"], "lr", 0.05
    )
    assert not main(arguments(path))
    assert [d["meta"]["label"] for d in json.loads(path.read_text())] == [
        "Fed-KGF",
        "FedAvg",
        "FedAvg",
    ]


def test_no_such_recipe(capsys):
    assert main(["reproduce", "fed_kg"]) == 2
    assert "Did you mean 'fed_kgf'" in capsys.readouterr().err
