"""The recipes of ``fedlearn reproduce``: which runs they list, how these are done and stored."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn.core import federation as rounds
from fedlearn.data import images
from fedlearn.lab import recipes, results
from fedlearn.lab.cli import main

ROOT = Path(__file__).parents[2]

COUNTS = {"quick": 2310, "small": 301, "full": 12}  # stored runs, at least


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """New runs are written into ``runs/`` below it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def made(monkeypatch, rows, seeds=(0,), **block):
    """The runs of a recipe "made" of one block on a few digits."""
    fields = {
        "partition": ["iid"],
        "rounds": 1,
        "train": 40,
        "test": 20,
        "clients": 2,
        "rows": rows,
    }
    quick = {"seeds": list(seeds), "runs": [fields | block]}
    recipe = {"paper": "rpn", "shows": "nothing", "quick": quick}
    monkeypatch.setitem(recipes.RECIPES, "made", recipe)
    return recipes.runs("made")


def labels(name="rpn_digits"):
    return sorted(line["experiment"]["label"] for line in results.recent(name).values())


@pytest.mark.parametrize("scale", recipes.SCALES)
def test_every_run_can_be_made_and_stored_runs_are_found(scale):
    listed = recipes.runs(None, scale)
    lines = recipes.stored(listed)
    assert len({str(run.row) for run in listed}) == len({run.key for run in listed})
    assert sum(run.key in lines for run in listed) >= COUNTS[scale]
    for run in listed[::10]:
        assert run.method().parts()
        fl.partition.parse(run.experiment.partition)
    for trial in (trial for run in listed for trial in run.trials):
        e = trial.experiment
        assert e.validation
        assert e.test is None
        assert e.seed >= 1000


def test_stored_runs_are_what_their_recipes_state():
    for scale in ("quick", "small"):
        listed = recipes.runs(None, scale)
        lines = recipes.stored(listed)
        for run in (run for run in listed if run.key in lines):
            e = run.experiment
            line = lines[run.key]
            meta = line["meta"]
            assert (line["method"], len(line["rows"])) == (e.method, e.rounds)
            assert meta["task"]["seed"] == e.seed
            assert meta["task"]["partition"] == repr(fl.partition.parse(e.partition))
            assert meta["settings"].items() <= vars(e.settings).items()
            options = json.loads(json.dumps(e.options)).items() - {(run.tuned, None)}
            for name, value in options:
                assert meta["options"][name] == (
                    "inf" if value == float("inf") else value
                )
            if run.trials:  # the choice comes out again
                value = meta["options"][run.tuned]
                assert value in [
                    trial.experiment.options[run.tuned] for trial in run.trials
                ]
                accuracy = {
                    float(v): float(a) for v, a in meta["tuned"][run.tuned].items()
                }
                assert recipes.best(accuracy) == value


def test_the_key_is_of_the_experiment_and_not_of_the_machine():
    one = {"row": ("FedAvg",), "seed": (0,), "partition": ("iid",)}
    [run] = recipes.runs("fed_kgf_figure3", "full", **one)
    assert run.experiment.precision == "bf16"
    on_gpu = replace(run, experiment=replace(run.experiment, device="cuda"))
    assert on_gpu.key == run.key
    longer = replace(run, experiment=replace(run.experiment, rounds=3))
    variants = [longer, replace(run, label="x"), replace(run, kind="trial")]
    assert len({run.key, *(other.key for other in variants)}) == 4


def test_finished_runs_are_left_alone_and_stopped_runs_go_on(
    folder, monkeypatch, capsys
):
    rows = {name: {"method": name} for name in ("rpn", "fedavg", "stc")}
    made(monkeypatch, rows, seeds=(3, 4), rounds=2)
    choice = "--seed 3 --partition iid --only rpn --only fedavg --no-progress"
    words = ["reproduce", "made", *choice.split()]
    trained = []
    real = rounds.one_round

    def counted(server, engine, t, *arguments, **options):
        trained.append((server.method.name, t))
        if len(trained) == 4:  # the last round of the second method
            raise KeyboardInterrupt
        return real(server, engine, t, *arguments, **options)

    monkeypatch.setattr(rounds, "one_round", counted)
    assert main(words) == 130
    assert labels() == ["rpn"]
    assert not main(words)
    assert trained == [
        ("rpn", 1),
        ("rpn", 2),
        ("fedavg", 1),
        ("fedavg", 2),
        ("fedavg", 2),
    ]
    assert not main(words)
    assert len(trained) == 5
    assert {path.suffix for path in folder.glob("*/*")} == {".json"}
    assert not main([*words, "--plan", "--seed", "4"])
    assert "4 runs, 2 stored" in capsys.readouterr().out


def test_a_plan_lists_runs_on_data_of_a_file(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert not main(["reproduce", "rpn_pretrained", "--plan", "--no-progress"])
    assert "60 runs" in capsys.readouterr().out


def test_a_rate_is_chosen_on_validation_images(monkeypatch):
    tune = {"options": {"lr": [1e-6, 1e-5, 0.1]}}
    rows = {"A": {"method": "fedavg"}, "B": {"method": "fedprox", "tune": {"as": "A"}}}
    runs = made(monkeypatch, rows, seeds=(3, 4), tune=tune, rounds=4, train=200)
    assert len({tuple(trial.key for trial in run.trials) for run in runs}) == 1
    recipes.reproduce("made", progress=False)
    lines = list(results.recent("rpn_digits").values())
    trials = [line for line in lines if line["experiment"].get("short")]
    whole = [line for line in lines if line not in trials]
    assert (len(trials), len(whole)) == (3, 4)  # for two seeds and two rows
    for line in trials:
        task = line["meta"]["task"]
        assert (task["train"], task["test"], task["seed"]) == (180, 20, 1003)
        assert task["validation"]
        assert len(line["rows"]) == 1
    tried = {x["meta"]["options"]["lr"]: x["rows"][-1]["accuracy"] for x in trials}
    for line in whole:
        meta = line["meta"]
        assert meta["options"]["lr"] == recipes.best(tried)
        assert meta["chosen_on"] == "validation"
        assert meta["task"]["test"] == 20
        assert {float(v): a for v, a in meta["tuned"]["lr"].items()} == tried
    with pytest.raises(ValueError, match="accuracy"):
        recipes.best({0.1: float("nan")})


def test_missing_data_are_named_before_the_first_run(monkeypatch):
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setattr(images, "find_copy", lambda name: None)
    made(monkeypatch, {"A": {"method": "fedavg"}}, network="mlp")
    runs = recipes.RECIPES["made"]["quick"]["runs"]
    runs.append(runs[0] | {"dataset": "mnist"})
    with pytest.raises(fl.DataError, match="mnist"):
        recipes.reproduce("made", progress=False)
    assert labels() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "row"),
    [("fed_kgf_figure3", "Fed-KGF"), ("fed_repopt_table1", "RepVGG RepOpt")],
)
def test_stored_runs_come_out_again(recipe, row):
    """Their first rounds: bytes exactly, accuracies but for what another processor rounds."""
    [run] = recipes.runs(recipe, row=(row,), seed=(0,), partition=("iid",))
    short = replace(run, experiment=replace(run.experiment, rounds=2))
    recipes.make(short, {}, progress=False)
    again, before = (recipes.stored([r])[r.key] for r in (short, run))
    for now, then in zip(again["rows"], before["rows"][:2], strict=True):
        assert all(now[c] == then[c] for c in ("bytes_up", "bytes_down", "clients"))
        assert now["accuracy"] == pytest.approx(then["accuracy"], abs=0.05)
