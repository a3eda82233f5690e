"""The recipes of ``fedlearn reproduce``: what they run, that a stopped run goes on, what waits for
data, that stored runs are the recipes' and come out again."""

import json
import math
from dataclasses import replace

import pytest

import fedlearn as fl
from fedlearn import cli, recipes, reproduce, results
from fedlearn.cli import main
from fedlearn.core import federation as rounds
from fedlearn.core import local
from fedlearn.data import sources
from fedlearn.errors import DataError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where runs are kept."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize("scale", recipes.SCALES)
def test_every_run_can_be_made_and_has_a_name_of_its_own(scale):
    listed = recipes.runs(None, scale)
    assert len({(run.folder, run.name) for run in listed}) == len({run.key for run in listed})
    for run in (run for run in listed if run.turn[0] == 0):  # of the first seed
        assert run.method().parts() and json.dumps(run.options(), allow_nan=False)
        fl.partition.parse(run.experiment.partition)
        assert len(run.tries) in (0, 2, 3)
        for e in (each.experiment for each in run.tries):
            assert e.validation and e.test is None and e.train == run.experiment.train
            assert 4 * e.rounds >= run.experiment.rounds and e.seed >= 1000


def test_the_key_is_of_what_is_run_and_not_of_where():
    one = {"only": ("FedAvg",), "seeds": (0,), "split": ("iid",)}
    [run] = recipes.runs("fed_kgf_figure3", "full", **one)
    [on_gpu] = recipes.runs("fed_kgf_figure3", "full", **one, device="cuda")
    assert on_gpu.experiment.precision == "bf16" and on_gpu.key == run.key
    others = [replace(run, experiment=replace(run.experiment, **{n: 3})) for n in ("rounds", "lr")]
    more = {"label": "x"}, {"but": {"server": "x"}}, {"short": True}, {"newcomers": 2}
    others += [replace(run, **how) for how in more]
    assert len({run.key, *(other.key for other in others)}) == 7


def made(monkeypatch, rows, **block):
    """The runs of a recipe "made" of one block on a few digits."""
    few = {"partition": ["iid"], "rounds": 1, "train": 40, "test": 20, "clients": 2, "rows": rows}
    quick = {"seeds": [0], "runs": [few | block]}
    recipe = {"paper": "rpn", "shows": "nothing", "quick": quick}
    monkeypatch.setitem(recipes.RECIPES, "made", recipe)
    return recipes.runs("made")


def test_stored_runs_are_their_recipes_runs():
    """And what was run is what their lines state."""
    for scale, count in (("quick", 2593), ("small", 268)):
        listed = recipes.runs(None, scale)
        lines = {
            (name, results.place_of(line["experiment"])): line
            for name in dict.fromkeys(run.folder for run in listed)
            for line in results.packed(name)
        }
        assert sum(run.place in lines for run in listed) >= count
        for run in (r for whole in listed for r in (*whole.tries, whole)):
            if (line := lines.get(run.place)) is None:
                continue
            e, meta, task = run.experiment, line["meta"], line["meta"]["task"]
            best = {run.tuned: meta["options"].get(run.tuned)} if run.tries else {}
            options = json.loads(json.dumps(run.options() | best))
            assert meta["options"].items() <= options.items()  # a later option is at its default
            assert e.options.keys() <= meta["options"].keys()
            assert (line["method"], len(line["rows"]), task["seed"]) == (e.method, e.rounds, e.seed)
            assert task["partition"] == repr(fl.partition.parse(e.partition))
            whole = sum(run.images) if not e.validation else run.images[0]
            assert task["train"] + task["test"] == whole
            assert meta["settings"].items() <= vars(e.settings).items()


FEW = "--rounds 2 --seed 3 --partition iid --train 100 --test 50 --only FedAvg --only Fed-KGF"
TWO = ["reproduce", "fed_kgf_figure3", *FEW.split(), "--no-progress"]
ONE = {"split": ("iid",), "rounds": 1, "train": 60, "test": 30, "progress": False}


def labels(name="fed_kgf_digits"):
    return sorted(line["experiment"]["label"] for line in results.recent(name).values())


def test_finished_runs_are_kept_and_stopped_runs_go_on(folder, monkeypatch, capsys):
    trained, real = [], rounds.one_round

    def counted(server, engine, t, *rest, **how):
        trained.append((server.method.name, t))
        if len(trained) == 4:  # the last round of the second method
            raise KeyboardInterrupt
        return real(server, engine, t, *rest, **how)

    monkeypatch.setattr(rounds, "one_round", counted)
    assert main(TWO) == 130 and labels() == ["Fed-KGF"]
    assert len(list(folder.glob("*/*.checkpoint"))) == 1
    assert not main(TWO)
    assert trained == [("fed_kgf", 1), ("fed_kgf", 2), ("fedavg", 1), ("fedavg", 2), ("fedavg", 2)]
    assert not main(TWO) and len(trained) == 5  # all is there
    assert {path.suffix for path in folder.glob("*/*")} == {".json"}
    for line in results.recent("fed_kgf_digits").values():
        task = line["meta"]["task"]
        assert (len(line["rows"]), task["seed"], task["train"]) == (2, 3, 100)
    assert not main([*TWO, "--plan", "--seed", "4"])
    assert "4 runs, 2 stored" in capsys.readouterr().out


def test_a_choice_is_made_on_validation_images_and_goes_on_beyond_its_ends(monkeypatch):
    tune = {"options": {"lr": [1e-6, 1e-5, 0.1]}}
    rows = {"A": {"method": "fedavg"}, "B": {"method": "fedprox", "tune": {"as": "A"}}}
    [run, _] = made(monkeypatch, rows, tune=tune, rounds=4, train=200)
    monkeypatch.setattr(recipes, "MORE", 1)
    reproduce.reproduce("made", progress=False, seeds=(3, 4))
    lines = list(results.recent("rpn_digits").values())
    short = [line for line in lines if line["experiment"].get("short")]
    tries = {line["meta"]["options"]["lr"]: line for line in short}
    assert tries.keys() == {1e-6, 1e-5, 0.1, 0.3} and len(short) == 4  # of two seeds and two rows
    for line in short:
        task = line["meta"]["task"]
        assert (task["train"], task["test"], task["seed"]) == (180, 20, 1000)
        assert len(line["rows"]) == 1 and task["validation"]
        assert line["meta"]["provenance"]["command"].startswith("fedlearn reproduce made --scale")
    whole = [line for line in lines if line not in short]
    best = max(sorted(tries), key=lambda value: tries[value]["rows"][-1]["accuracy"])
    assert len(whole) == 4 and best > 0.01
    for line in whole:
        assert f"lr={best}," in line["meta"]["parts"]["optimizer"]
        assert line["meta"]["chosen_on"] == "validation" and line["meta"]["task"]["test"] == 20
        tuned = {float(v): a for v, a in line["meta"]["tuned"]["lr"].items()}
        assert tuned == {v: t["rows"][-1]["accuracy"] for v, t in tries.items()}
    a, b = (recipes.runs("made", only=(label,))[0] for label in "AB")
    assert a.tries == b.tries and (a.stated["tune"] | {"as": "A"}) == b.stated["tune"]


def test_the_next_value_and_the_best():
    rates, nan = [0.03, 0.1, 0.3], math.nan
    ladder, known = [], dict(zip(rates, (0.1, 0.2, 0.3), strict=True))
    while (value := recipes.wider("lr", rates, known)) is not None:
        known[value] = 0.4 + value
        ladder.append(value)
    assert ladder == [1.0, 3.0, 10.0] and recipes.best(known) == 10
    assert recipes.wider("server_lr", rates, {0.03: 0.5, 0.1: 0.2, 0.3: nan}) == 0.01
    assert recipes.wider("lr", rates, {0.03: 0.1, 0.1: 0.2, 0.3: nan}) is None
    assert recipes.wider("mu", [1, 2], {1: 0.1, 2: 0.2}) == 4
    assert recipes.wider("mu", [1, 2], {1: 0.2, 2: 0.2}) == 0.5  # of equal ones the smallest
    with pytest.raises(ValueError, match="gave an accuracy"):
        recipes.best(dict.fromkeys(rates, nan))


def test_a_runs_own_command_makes_that_run():
    few = {"only": ("FedAvg",), "seeds": (3,), "rounds": 2, "train": 100, "split": ("iid",)}
    every = recipes.runs("fed_kgf_figure3", **few)
    for scale, step in (("quick", 301), ("small", 61), ("full", 61)):
        every += recipes.runs(None, scale)[::step]
    for run in every:
        typed = cli.parse(run.command[1:]).keywords["recipe"]
        choice = vars(typed) | {"seeds": sum(typed.seeds, ())}
        assert run.key in {again.key for again in recipes.runs(**choice)}


def test_a_search_is_done_once_goes_on_and_its_scales_are_kept(folder, monkeypatch):
    block = recipes.RECIPES["fed_repopt_table1"]["quick"]["runs"][0]
    spec = {"dataset": "digits", "train": 60, "rounds": 3, "lr": 0.1}
    how = {"only": ("RepVGG CSLA", "RepVGG RepOpt"), "seeds": (0,), **ONE}
    for label in how["only"]:
        monkeypatch.setitem(block["rows"][label], "scales", spec)
    trained, real = [], rounds.one_round

    def stops(server, engine, t, *rest, **more):
        if server.method.name == "search":
            trained.append(t)
            if trained == [1, 2, 3]:
                raise KeyboardInterrupt
        return real(server, engine, t, *rest, **more)

    monkeypatch.setattr(rounds, "one_round", stops)
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce("fed_repopt_table1", **how)
    reproduce.reproduce("fed_repopt_table1", **how)
    assert trained == [1, 2, 3, 3] and not list(folder.glob("*/*.checkpoint"))
    lines = results.recent("fed_repopt_digits").values()
    [found] = [line for line in lines if "scales" in line]
    csla, repopt = (line for line in lines if "rows" in line)
    assert csla["rows"][-1]["loss"] == pytest.approx(repopt["rows"][-1]["loss"], rel=1e-3)


def test_newcomers_train_from_where_the_others_stopped(tmp_path, monkeypatch):
    rows = {"Multi": {"method": "fedfusion"}}
    [run] = made(monkeypatch, rows, partition=["permuted"], newcomers=2, epochs=2)
    real, states = rounds.run, []

    def kept(*args, **how):
        states.append(real(*args, **how))
        return states[-1]

    monkeypatch.setattr(rounds, "run", kept)
    curves = reproduce.do(run, {}, False, tmp_path)["meta"]["newcomers"]
    assert [len(c) for c in curves] == 3 * [3]
    # by hand: a client of its own, from the same weights
    task = replace(run.experiment, clients=1, train=20, seed=1000).make_task()
    net = local.new_network(run.method().model, task)
    local.load(fl.models.state_of(net), states[0].state)
    assert task.evaluate(net, client=0)["accuracy"] == curves[0][0]


@pytest.mark.parametrize(
    "tune, noun",
    [
        ({"options": {"lr": []}}, "values"),
        ({"options": {"bogus": [1, 2]}}, "bogus"),
        ({"options": {"lr": [0.1, 0.2]}, "validation": False}, "validation"),
    ],
)
def test_a_choice_among_nothing_or_on_other_images_is_refused(monkeypatch, tune, noun):
    with pytest.raises(ValueError, match=noun):
        made(monkeypatch, {"A": {"method": "fedavg"}}, tune=tune)


def test_a_run_that_fails_stops_those_that_need_it_and_no_others(monkeypatch, capsys):
    tune = {"options": {"lr": [0.1]}}
    rows = {"A": {"method": "fedavg"}, "B": {"method": "fedprox", "tune": {"mu": [0.5]}}}
    made(monkeypatch, rows, tune=tune)
    real, tried = reproduce.do, []

    def do(run, *how):
        tried.append(run.label)
        if run.label == "A, lr 0.1":
            raise MemoryError
        return real(run, *how)

    monkeypatch.setattr(reproduce, "do", do)
    with pytest.raises(ValueError, match="A, lr 0.1 .*A digits iid 0"):
        reproduce.reproduce("made", progress=False, seeds=(0, 1))
    assert labels("rpn_digits") == ["B", "B", "B, mu 0.5"] and tried.count("A, lr 0.1") == 1
    assert "needs A, lr 0.1" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, row", [("fed_kgf_figure3", "Fed-KGF"), ("fed_repopt_table1", "RepVGG RepOpt")]
)
def test_stored_runs_come_out_again(recipe, row):
    """Their first rounds: bytes exactly, accuracies but for what another processor rounds."""
    chosen = {"only": (row,), "seeds": (0,), "split": ("iid",)}
    reproduce.reproduce(recipe, rounds=2, progress=False, **chosen)
    short, whole = (recipes.runs(recipe, **chosen, **n)[0] for n in ({"rounds": 2}, {}))
    again, before = (reproduce.stored([run])[run.key] for run in (short, whole))
    for now, then in zip(again["rows"], before["rows"][:2], strict=True):
        assert all(now[c] == then[c] for c in ("bytes_up", "bytes_down", "clients"))
        assert now["accuracy"] == pytest.approx(then["accuracy"], abs=0.05)


def test_missing_data_is_named_and_does_not_keep_other_runs(monkeypatch, capsys):
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setattr(sources, "available", lambda name: name == "digits")
    with pytest.raises(DataError, match=r"cifar10: 170 MB from .*cifar100: 169 MB from "):
        reproduce.reproduce("fed_repopt_table1", "small", seeds=(9,))
    made(monkeypatch, {"A": {"method": "fedavg"}}, network="mlp")
    runs = recipes.RECIPES["made"]["quick"]["runs"]
    runs.append(runs[0] | {"dataset": "cinic10"})
    reproduce.reproduce("made", progress=False)
    assert "missing: cinic10: 688 MB" in capsys.readouterr().out
    assert labels("rpn_digits") == ["A"]
