"""The recipes of ``fedlearn reproduce``: what they run, that each run has one file, that a stopped
run goes on, that stored runs are the recipes' and come out again."""

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import fedlearn as fl
from fedlearn import recipes, reproduce, results
from fedlearn import round as rounds
from fedlearn.cli import main
from fedlearn.data import sources
from fedlearn.errors import DataError

TABLE_1 = [
    "Fed-KGF",
    "FedAvg",
    "Fed-KGF without MU",
    "FedCAMS",
    "SmartIdx",
    "DGC",
    "FedPM",
    "FedCOM",
]
EVERY = [
    (name, scale) for name, r in recipes.RECIPES.items() for scale in recipes.SCALES if scale in r
]


def test_full_scale_is_table_1():
    listed = recipes.runs("fed_kgf_figure3", "full", device="cuda")
    shorter = [f"{label}, 80 rounds" for label in TABLE_1]
    assert [run.label for run in listed] == 2 * shorter + 2 * TABLE_1  # a fifth of the rounds first
    assert {run.experiment.partition for run in listed} == {"iid", "main_class:0.8"}
    for run in listed:
        e = run.experiment
        assert (e.dataset, e.network) == ("cifar10", "resnet18")
        assert (e.precision, e.device) == ("bf16", "cuda")
        assert e.rounds == (80 if run.label in shorter else 400)


@pytest.mark.parametrize("name, scale", EVERY)
def test_every_run_of_every_recipe_can_be_made(name, scale):
    listed = recipes.runs(name, scale)
    assert listed and recipes.RECIPES[name]["shows"]
    for run in listed:
        assert run.method().parts() and json.dumps(run.options(), allow_nan=False)
        tuned = scale == "small" and run.experiment.task == "classification"
        # with that rate beside the best of three
        tuned &= run.label not in ("FedFusion+Conv, lr 0.03", "Fed-KGF, lr 0.3")
        assert len(run.tries) == (3 if tuned else 0)
        fl.partition.parse(run.experiment.partition)
        for each in run.tries:
            e = each.experiment
            assert e.rounds == min(10, run.experiment.rounds) and e.options[run.tuned] > 0
            assert e.train * 5 == run.experiment.train


@pytest.mark.parametrize("scale", recipes.SCALES)
def test_a_name_stands_for_one_run(scale):
    listed = recipes.runs(None, scale)
    assert len({(r.folder, r.name) for r in listed}) == len({(r.folder, r.key) for r in listed})
    seeds = [run.turn for run in listed]
    assert seeds == sorted(seeds)  # the first seed of all, then the second


def test_a_papers_name_stands_for_its_recipes():
    assert recipes.chosen("fed_gkt", "quick") == [f"fed_gkt_table{n}" for n in (1, 2, 3, 4, 5)]
    assert recipes.chosen("fed_gkt_table2", "full") == ["fed_gkt_table2"]
    for paper in ("rpn", "fed_kgf", "fed_mmd_fusion", "fed_gkt", "fed_repopt"):
        for scale in recipes.SCALES:
            assert recipes.chosen(paper, scale)


def test_options_for_all_rows_go_where_they_are_known(monkeypatch):
    rows = {
        "a": {"method": "fedavg", "but": {"optimizer": {"SGD": {"lr": 0.5, "decay": 0.9}}}},
        "b": {"method": "fedmmd"},
        "c": {"method": "fedmmd", "lr": 1.0},
    }
    block = {"partition": ["iid"], "rounds": 2, "rows": rows, "suffix": "!"}
    block["all"] = {"lr": 0.3, "decay": 0.8}
    made = {"paper": "rpn", "quick": {"seeds": [0], "runs": [block]}}
    monkeypatch.setitem(recipes.RECIPES, "made", made)
    a, b, c = recipes.runs("made")
    assert [run.label for run in (a, b, c)] == ["a!", "b!", "c!"] and a.name == "a! digits iid 0"
    assert a.method() == fl.methods.fedavg(0.3).but(optimizer=fl.SGD(0.5, decay=0.9))
    assert b.method() == fl.methods.fedmmd(0.3, decay=0.8)
    assert c.method().optimizer.lr == 1.0 and c.method(lr=2.0).optimizer.lr == 2.0
    assert (b.options()["lr"], c.options(lr=2.0)["lr"]) == (0.3, 2.0)
    assert a.experiment.network == "digits_cnn" and a.images == (1347, 450)


def test_detection_and_segmentation_share_a_folder():
    """Recipes of two papers, and runs of two tasks on one data set."""
    rpn, kgf = (recipes.runs(name, "quick") for name in ("rpn_detection", "fed_kgf_detection"))
    assert {r.folder for r in (*rpn, *kgf)} == {"seeing_digits"}
    assert {r.name for r in rpn} & {r.name for r in kgf} == {
        f"{label} detection digits iid {seed}" for label in ("FedAvg", "STC") for seed in (0, 1, 2)
    }
    masks = recipes.runs("rpn_segmentation", "quick")
    assert not {r.name for r in rpn} & {r.name for r in masks}
    assert {r.images for r in masks} == {(1000, 200)}
    [full] = recipes.runs("rpn_segmentation", "full", only=("RPN",))
    assert full.images == (1464, 1449) and full.name == "RPN segmentation voc:320 iid 0"


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_scale_without_runs_says_why(name):
    without = recipes.RECIPES[name].get("without", {})
    assert {*without} == {s for s in recipes.SCALES if s not in recipes.RECIPES[name]}
    assert all(len(why) > 20 for why in without.values())
    assert ("full" in without) == (name == "deviations")
    for scale, why in without.items():
        with pytest.raises(ValueError) as error:
            recipes.runs(name, scale)
        assert str(error.value) == f"{name} has no runs of scale {scale}: {why}."


def test_the_status_lists_what_is_not_run():
    table = reproduce.status("fed_repopt")
    last = table.xs("none", level="scale")
    assert list(last["command"].str.partition(":")[0]) == 3 * ["no recipe"]
    assert {what.partition(",")[0] for what in last.index} == {
        *("Tables 1 and 5", "Table 7", "Table 8")
    }
    assert list(table.xs("small", level="scale")["runs"] > 0) == 8 * [True]
    deep = reproduce.status("fed_gkt").loc[("Table 1, ResNet-110", ["quick", "small"]), :]
    assert not deep["runs"].any() and all(deep["command"].str.startswith("not run: "))


def test_the_full_scale_trains_as_the_authors_programs_do():
    """The options that their defaults leave out."""
    full = {(r.folder, r.label, r.experiment.dataset): r for r in recipes.runs(None, "full")}
    options = {key[1:]: r.options() for key, r in full.items()}
    forms = [r for r in full.values() if r.experiment.method == "fed_repopt"]
    for run in forms:
        o, e = run.options(), run.experiment
        assert (o["smoothing"], o["spare"], o["lr"]) == (0.1, True, 0.01)
        assert e.network == o["network"]
        searched = o["form"] in ("csla", "repopt")
        assert bool(run.search) == searched
        if searched:
            its = {"repvgg_b1": (240, 0.1, 4e-5, 128), "repghost_05": (600, 0.6, 1e-5, 512)}
            names = "rounds", "lr", "weight_decay", "batch_size"
            assert tuple(run.search.spec[n] for n in names) == its[e.network]
            assert tuple(run.search.spec[n] for n in ("warmup", "clip", "spare")) == (10, 5.0, True)
            assert run.search.spec["dataset"] != e.dataset
    assert options["FedMMD, lr 0.0001", "mnist"]["lr"] == 0.0001
    for dataset in ("mnist", "cifar10"):
        assert options["FedMMD", dataset]["least"] == 0.0001
        its = options["FedFusion+Multi, momentum", dataset]
        goes_on = dataset == "mnist"
        assert (its["momentum"], its["weight_decay"], its["keep"]) == (0.9, 0.0005, goes_on)
        assert (its["decay"], its["floor"]) == (0.99, 0.0001)
        part = full["fed_mmd_fusion_full", "FedAvg, momentum", dataset].method().optimizer
        assert isinstance(part, fl.parts.Continued) == goes_on and "momentum=0.9" in str(part)
    for dataset in ("cifar10", "cifar100"):
        its = options["FedCAMS", dataset]
        assert (its["scale"], its["corrected"]) == ("model", True)
        its = options["FedPM", dataset]
        assert its["scaled"] and its["softened"] and its["keep"]
        alone = full["fed_gkt_full", "centralised, large", dataset].method().optimizer
        assert alone == fl.parts.Continued(fl.parts.Adam(0.003, weight_decay=1e-4, amsgrad=True))
    gkt = [r.options() for r in full.values() if r.experiment.method == "fed_gkt"]
    assert all(o["keep"] for o in gkt)
    split = ("iid", "table:fedgkt_table6")
    both = recipes.runs("fed_gkt_table1", "full", only=("FedGKT",), split=split)
    assert [r.options()["optimizer"] for r in both] == ["amsgrad", "nesterov"]


def test_newcomers_train_from_where_the_others_stopped(tmp_path, monkeypatch):
    block = {"partition": ["permuted"], "rounds": 1, "train": 200, "test": 50, "clients": 4}
    block |= {"rows": {"Multi": {"method": "fedfusion"}}, "newcomers": 2, "epochs": 2}
    made = {"paper": "rpn", "quick": {"seeds": [0], "runs": [block]}}
    monkeypatch.setitem(recipes.RECIPES, "made", made)
    [run] = recipes.runs("made")
    real, states = rounds.run, []

    def kept(*args, **how):
        history = real(*args, **how)
        states.append(history.state)
        return history

    monkeypatch.setattr(rounds, "run", kept)
    its = reproduce.do(run, {}, False, tmp_path)["meta"]["newcomers"]
    assert [len(curve) for curve in its] == 3 * [3] and all(0 <= a <= 1 for c in its for a in c)
    assert replace(run, newcomers=0).key != run.key
    # by hand: a client of its own, from the same weights
    e = run.experiment
    task = replace(e, clients=1, train=50, seed=1000).make_task()
    net = fl.local.new_network(run.method().model, task)
    fl.local.load(fl.models.state_of(net), states[0])
    assert task.evaluate(net, client=0)["accuracy"] == its[0][0]


def test_two_tables_of_fed_repopt():
    """Table 4 has more local epochs and fewer rounds, Table 6 other shares of 100 clients."""
    four = {run.experiment.epochs: run for run in recipes.runs("fed_repopt_table4", "full")}
    assert {e: run.experiment.rounds for e, run in four.items()} == {5: 48, 10: 24}
    for run in recipes.runs("fed_repopt_table6", "full"):
        e = run.experiment
        assert (e.clients, e.epochs, e.rounds, e.dataset) == (100, 5, 1000, "tiny_imagenet")
        assert e.participation in (0.5, 0.05)
        plain = e.options["form"] in ("tr", "inf")
        assert (run.search is None) == plain
        assert plain or run.search.spec["dataset"] == "cifar100"


def test_the_key_is_of_what_is_run_and_not_of_where():
    [run] = recipes.runs("fed_kgf_figure3", "full", ("FedAvg",), (0,), split=("iid",))
    [on_gpu] = recipes.runs(
        "fed_kgf_figure3", "full", ("FedAvg",), (0,), split=("iid",), device="cuda"
    )
    assert on_gpu.experiment.precision == "bf16" and on_gpu.key == run.key
    others = [replace(run, experiment=replace(run.experiment, **{n: 3})) for n in ("rounds", "lr")]
    others += [replace(run, label="x"), replace(run, but={"server": "x"}), replace(run, short=True)]
    assert len({run.key, *(other.key for other in others)}) == 6


# ---- running -------------------------------------------------------------------------------------

FEW = "--rounds 2 --seed 3 --partition iid --train 100 --test 50 --only FedAvg --only Fed-KGF"
TWO = ["reproduce", "fed_kgf_figure3", *FEW.split(), "--no-progress"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where runs are kept."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def tuned(monkeypatch, *rates):
    """The digits' runs of Figure 3 choose among these rates."""
    block = recipes.RECIPES["fed_kgf_figure3"]["quick"]["runs"][0]
    tune = {"rounds": 1, "share": 0.5, "options": {"lr": list(rates)}}
    monkeypatch.setitem(block, "tune", tune)


def own_recipe(monkeypatch, *datasets):
    """A recipe "own": a short run of FedAvg on each data set."""
    rows = {"FedAvg": {"method": "fedavg"}}
    its = {"partition": ["iid"], "rounds": 1, "train": 40, "test": 20, "clients": 2, "rows": rows}
    blocks = [its | {"dataset": name, "network": "mlp"} for name in datasets]
    recipe = {"paper": "rpn", "shows": "nothing", "quick": {"seeds": [0], "runs": blocks}}
    monkeypatch.setitem(recipes.RECIPES, "own", recipe)


def labels(name="fed_kgf_digits"):
    return sorted(line["experiment"]["label"] for line in results.recent(name).values())


def test_finished_runs_are_kept_and_stopped_runs_go_on(folder, monkeypatch, capsys):
    trained, real = [], rounds.one_round

    def counted(server, engine, t, *rest, **how):
        trained.append((server.method.name, t))
        if len(trained) == 4:  # the last round of the second method
            raise KeyboardInterrupt
        state, row = real(server, engine, t, *rest, **how)
        return state, row | {"seconds": 10.0}

    monkeypatch.setattr(rounds, "one_round", counted)
    assert main(TWO) == 130 and labels() == ["Fed-KGF"]
    assert len(list(folder.glob("*/*.checkpoint"))) == 1
    assert not main(TWO)
    assert trained == [("fed_kgf", 1), ("fed_kgf", 2), ("fedavg", 1), ("fedavg", 2), ("fedavg", 2)]
    assert not main(TWO) and len(trained) == 5  # all is there
    assert capsys.readouterr().out.count("FedAvg") == 3  # the run, and twice the table
    assert {path.suffix for path in folder.glob("*/*")} == {".json"}
    for line in results.recent("fed_kgf_digits").values():
        meta = line["meta"]
        assert len(line["rows"]) == 2 and (meta["task"]["seed"], meta["task"]["train"]) == (3, 100)
        assert float(meta["provenance"]["seconds"]) >= 20
        keys = {"command", "date", "commit", "hardware", "seconds"}
        assert set(meta["provenance"]) == keys
        assert {"device", "torch", "python", "settings"} <= meta.keys()


def test_several_at_a_time(capsys):
    assert not main([*TWO, "--jobs", "2"]) and labels() == ["Fed-KGF", "FedAvg"]
    assert capsys.readouterr().out.count("accuracy 0.") == 2


def test_an_installed_package_is_never_written_into(tmp_path):
    """What it brings is read; a run that it lacks goes below the working directory."""
    book, site, here = sources.DATA, tmp_path / "site", tmp_path / "here"
    shutil.copytree(book.parent / "fedlearn", site / "fedlearn")
    shutil.copytree(book, site / "fedlearn/bookdata", ignore=shutil.ignore_patterns("cache"))
    here.mkdir()
    before = {p: p.read_bytes() for p in site.rglob("*") if p.is_file()}
    command = [sys.executable, "-m", "fedlearn", "reproduce", "fed_kgf_figure4", "--only", "FedAvg"]
    few = ["--partition", "iid", "--seed", "0", "--rounds", "1", "--train", "60", "--test", "50"]
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*command, *few], cwd=here, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len([p for p in (here / "runs").rglob("*.json")]) == 1, done.stdout
    assert {p: p.read_bytes() for p in site.rglob("*") if p.is_file()} == before


def test_the_best_of_three_is_taken_and_all_are_kept(monkeypatch):
    tuned(monkeypatch, 1e-6, 0.2, 1e-5)
    reproduce.reproduce("fed_kgf_figure3", only=("QSGD",), seeds=(3, 4), split=("iid",), **SMALL)
    lines = list(results.recent("fed_kgf_digits").values())
    tries = [line for line in lines if line["experiment"].get("short")]
    assert {t["meta"]["task"]["train"] for t in tries} == {30} and len(tries) == 3  # of two seeds
    assert {t["meta"]["task"]["seed"] for t in tries} == {0}
    for line in (line for line in lines if line not in tries):
        reached = line["meta"]["tuned"]["lr"]
        assert list(reached) == ["1e-06", "0.2", "1e-05"] and max(reached, key=reached.get) == "0.2"
        assert "lr=0.2" in line["meta"]["parts"]["optimizer"]


SMALL = {"rounds": 1, "train": 60, "test": 30, "report": str, "progress": False}


def test_a_search_is_done_once_goes_on_and_its_scales_are_kept(folder, monkeypatch):
    block = recipes.RECIPES["fed_repopt_table1"]["quick"]["runs"][0]
    spec = {"dataset": "digits", "train": 60, "rounds": 3, "lr": 0.1}
    only = "RepVGG CSLA", "RepVGG RepOpt"
    for label in only:
        monkeypatch.setitem(block["rows"][label], "scales", spec)
    how = {"only": only, "seeds": (0,), "split": ("iid",), **SMALL}
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
    assert found["experiment"] == {"method": "search", "network": "digits_repvgg", **spec}
    csla, repopt = (line for line in lines if "rows" in line)
    for run in (csla, repopt):
        assert "scales=Scales(digest=" in run["meta"]["parts"]["model"]
    assert csla["rows"][-1]["loss"] == pytest.approx(repopt["rows"][-1]["loss"], rel=1e-3)


@pytest.mark.parametrize(
    "change, noun",
    [
        (("--only", "FedProx"), "row 'FedProx'"),
        (("--scale", "huge"), "scale 'huge'"),
        (("--rounds", "0"), "rounds"),
        (("--partition", "shards:2"), "partition"),
        (("--seed", "-1"), "seed"),
        (("--train", "0"), "train"),
        (("--test", "451"), "test"),
        (("--jobs", "0"), "jobs"),
        (("--device", "bogus"), "device"),
    ],
)
def test_wrong_choices(folder, capsys, change, noun):
    assert main([*TWO, *change]) == 2
    error = capsys.readouterr().err
    assert noun in error and error.count("\n") == 1 and not folder.exists()


def test_a_row_and_a_partition_that_no_run_has(capsys):
    command = ["reproduce", "fed_gkt_table1", "--only", "centralised, large"]
    assert main([*command, "--partition", "dirichlet:0.5"]) == 2
    assert "centralised, large" in capsys.readouterr().err


def test_no_such_recipe(capsys):
    assert main(["reproduce", "fed_kg"]) == 2
    assert "fed_kgf" in capsys.readouterr().err


@pytest.mark.parametrize(
    "choice", [{"seeds": 5}, {"only": "RPN"}, {"split": "iid"}, {"rounds": 1.5}]
)
def test_wrong_choices_in_python(choice):
    for function in (reproduce.reproduce, reproduce.plan):
        with pytest.raises(ValueError, match=next(iter(choice))):
            function("rpn", **choice)


def test_a_run_that_fails_does_not_stop_the_others(monkeypatch, capsys):
    rows = recipes.RECIPES["fed_kgf_figure3"]["quick"]["runs"][0]["rows"]
    monkeypatch.setitem(rows["Fed-KGF"], "base_kernels", 999)
    assert main(TWO) == 2
    said = capsys.readouterr()
    assert "Fed-KGF digits iid 3" in said.err and "999" in said.out and labels() == ["FedAvg"]


def test_what_needs_a_run_that_failed_fails(monkeypatch):
    tuned(monkeypatch, 0.1, 0.2)
    real = reproduce.do

    def do(run, *how):
        if run.short:
            raise MemoryError
        return real(run, *how)

    monkeypatch.setattr(reproduce, "do", do)
    with pytest.raises(ValueError, match="Not done.*STC digits iid 3"):
        reproduce.reproduce("fed_kgf_figure3", only=("STC",), seeds=(3,), split=("iid",), **SMALL)
    assert labels() == []


def test_a_try_that_diverged_is_not_the_best(monkeypatch, tmp_path):
    tuned(monkeypatch, 0.1, 0.2, 0.3)
    how = {"only": ("FedAvg",), "seeds": (3,), "split": ("iid",)}
    [run] = recipes.runs("fed_kgf_figure3", rounds=1, train=60, test=30, **how)
    ends = [float("nan"), 0.2, 0.1]

    def stored(runs, root):
        lines = [{"rows": [{"accuracy": a}]} for a in ends]
        return {(t.folder, t.key): x for t, x in zip(run.tries, lines, strict=True)}

    monkeypatch.setattr(reproduce, "stored", stored)
    line = reproduce.do(run, {}, False, tmp_path)
    assert line["meta"]["options"]["lr"] == 0.2
    ends[:] = 3 * [float("nan")]
    with pytest.raises(ValueError, match="no value of lr"):
        reproduce.do(run, {}, False, tmp_path)


# ---- stored --------------------------------------------------------------------------------------


def test_stored_runs_are_their_recipes_runs():
    """And what was run is what their lines state."""
    for scale, count in (("quick", 717), ("small", 255)):
        listed = recipes.runs(None, scale)
        there = reproduce.stored(listed, None)
        assert sum((run.folder, run.key) in there for run in listed) >= count
        for run in [r for whole in listed for r in (*whole.tries, whole)]:
            line = there.get((run.folder, run.key))
            if line is None:
                continue
            e, meta, history = run.experiment, line["meta"], fl.History.from_dict(line)
            its = run.options() | {run.tuned: meta["options"].get(run.tuned)} if run.tuned else {}
            assert meta["options"] == json.loads(json.dumps(its or run.options()))
            assert (meta["label"], history.method, len(history)) == (run.label, e.method, e.rounds)
            task = meta["task"]
            assert task["partition"] == repr(fl.partition.parse(e.partition))
            assert (task["train"], task["test"]) == run.images and task["seed"] == e.seed
            assert task["clients"] == e.clients
            settings = vars(e.settings)
            assert meta["settings"] == {name: settings[name] for name in meta["settings"]}


@pytest.mark.parametrize(
    "recipe, labels",
    [
        ("fed_kgf_figure3", ("FedAvg", "Fed-KGF", "RPN", "signSGD")),
        ("fed_mmd_fusion_table1", ("FedFusion+Conv",)),
        ("fed_gkt_table1", ("FedGKT",)),
        ("fed_repopt_table1", ("RepVGG RepOpt",)),
    ],
)
def test_stored_runs_come_out_again(recipe, labels):
    """Their first rounds: bytes exactly, accuracies but for what another processor rounds."""
    chosen = {"only": labels, "seeds": (0,), "split": ("iid",)}
    reproduce.reproduce(recipe, rounds=2, report=str, progress=False, **chosen)
    both = zip(
        recipes.runs(recipe, rounds=2, **chosen), recipes.runs(recipe, **chosen), strict=True
    )
    for short, whole in both:
        again, before = (results.stored(run.folder)[run.key] for run in (short, whole))
        for column in ("bytes_up", "bytes_down", "clients"):
            assert [r[column] for r in again["rows"]] == [r[column] for r in before["rows"][:2]]
        accuracies = ([r["accuracy"] for r in line["rows"][:2]] for line in (again, before))
        assert next(accuracies) == pytest.approx(next(accuracies), abs=0.05)


def test_the_plan_counts_what_is_stored_and_measures_by_it(folder, capsys):
    assert not main([*TWO, "--plan"]) and not folder.exists()
    out = capsys.readouterr().out
    assert "2 runs, 0 stored" in out and out.count("unknown") == 2
    assert not main(TWO)
    capsys.readouterr()
    assert not main([*TWO, "--plan", "--seed", "4"])
    out = capsys.readouterr().out
    assert "4 runs, 2 stored" in out and "unknown" not in out


def test_status_counts_what_is_packed(monkeypatch):
    table = reproduce.status("rpn").loc["Table 1 and Figure 4, MNIST"]
    assert list(table["runs"]) == [6, 2, 10] and list(table["stored"]) == [6, 2, 0]
    assert 3.8 < table.loc["small", "hours spent"] < 3.9  # with the short runs
    assert math.isnan(table.loc["full", "hours to go"]) and table.loc["quick", "hours to go"] == 0
    assert table.loc["quick", "command"] == "fedlearn reproduce rpn_table1 --scale quick"
    with pytest.raises(ValueError, match="fed_kgf"):
        reproduce.status("fed_kg")
    line = next(x for x in results.packed("rpn_digits") if x["experiment"].get("seed") == 2)
    lines = [line | {"meta": {"provenance": {"seconds": "7200"}}}]
    monkeypatch.setattr(results, "packed", lambda name: lines * (name == "rpn_digits"))
    quick = reproduce.status("rpn").iloc[0]
    assert (quick["runs"], quick["stored"], quick["hours spent"]) == (6, 1, 2.0)


# ---- data ----------------------------------------------------------------------------------------


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """No data set but the digits is here, and none can be fetched."""
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    sources.load.cache_clear()
    yield tmp_path
    sources.load.cache_clear()


def test_part_of_a_data_set_is_not_taken_for_the_whole(folder, monkeypatch):
    """The packed subsets are enough for the scale small, not for the scale full."""
    there = {"voc": {"detection": (352, 348), "segmentation": (437, 445)}, "coco": (122, 106)}

    def counted(task, dataset):
        of = there.get(dataset.partition(":")[0])
        return of[task] if isinstance(of, dict) else of

    monkeypatch.setattr(reproduce.published, "there", counted)
    monkeypatch.setattr(sources, "available", lambda name: True)
    monkeypatch.setattr(sources, "SETS", {})
    line = "voc:416 has 352 of 5717 images to train and 348 of 5823 to test here"
    with pytest.raises(DataError, match=line):
        reproduce.reproduce("rpn_detection", "full")
    assert f"missing: {line}" in reproduce.plan("rpn_detection", "full") and not folder.exists()
    for name in ("rpn_detection", "rpn_segmentation", "fed_kgf_detection"):
        for scale in ("small", "full"):
            data = [d for run in recipes.runs(name, scale) for d in run.datasets]
            assert all(bool(reproduce.lacking(*d)) == (scale == "full") for d in data)


def test_missing_data_is_said_before_anything_runs(folder, no_data, capsys):
    with pytest.raises(DataError, match=r"cifar10: 170 MB from .*cifar100: 169 MB from "):
        reproduce.reproduce("fed_repopt_table1", "small", seeds=(9,))
    assert not folder.exists()
    assert not main(["reproduce", "rpn", "--scale", "full", "--plan"])
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("missing: ")]
    assert [x.split()[1] for x in lines] == ["mnist:", "voc:"]  # two sizes are one download


def test_what_waits_for_data_does_not_keep_the_others(no_data, monkeypatch, capsys):
    own_recipe(monkeypatch, "cinic10", "cifar10", "digits")
    assert not main(["reproduce", "own", "--no-progress"])
    out = capsys.readouterr().out
    assert "missing: cinic10: 688 MB" in out and "missing: cifar10: 170 MB" in out
    assert labels("rpn_digits") == ["FedAvg"]


def test_nothing_is_fetched_for_runs_that_cannot_begin(no_data, monkeypatch):
    """Searched on a set that can be fetched, trained on one that somebody has to bring."""
    monkeypatch.delenv("FEDLEARN_OFFLINE")
    monkeypatch.setattr(sources, "_fetch", lambda name: pytest.fail(f"{name} is fetched"))
    run = recipes.runs("fed_repopt_table8", "full")[0]
    assert [d[1] for d in run.datasets] == ["tiny_imagenet", "fashion_mnist"]
    with pytest.raises(DataError, match="tiny_imagenet"):
        reproduce.reproduce("fed_repopt_table8", "full")


@pytest.mark.parametrize("more", [-1, 1])
def test_a_copy_of_another_size_is_refused_before_anything_runs(folder, monkeypatch, more):
    known = sources.SETS["digits"]
    its = known._replace(train=known.train + more, site="x.org", megabytes=3, torchvision="X")
    monkeypatch.setitem(sources.SETS, "digits", its)
    with pytest.raises(DataError, match=f"1347.*{1347 + more}"):
        reproduce.reproduce("rpn_table1", "quick", seeds=(9,))
    assert not folder.exists()


def test_a_plan_says_which_copies_are_lossy(monkeypatch):
    monkeypatch.setattr(sources, "note", lambda name: "a copy" * (name == "cifar100"))
    monkeypatch.setattr(sources, "missing", lambda names: [])
    plan = reproduce.plan("fed_kgf_figure4", "small", seeds=(9,))
    assert [x for x in plan.splitlines() if x.startswith("note")] == [
        "note: cifar100 here is a copy"
    ]


def test_a_damaged_copy_is_named(folder, no_data, tmp_path, monkeypatch):
    (tmp_path / "voc_subset.zip").write_bytes(b"nonsense")
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path))
    with pytest.raises(DataError, match="voc_subset.zip is no voc that can be read"):
        reproduce.reproduce("rpn_detection", "small", seeds=(9,))
    assert not folder.exists()


def test_a_plan_for_a_gpu_needs_none(folder, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    command = ["reproduce", "rpn", "--device", "cuda", "--rounds", "1"]
    assert main(command) == 2 and "GPU" in capsys.readouterr().err
    assert not main([*command, "--plan"])
    assert "to do" in capsys.readouterr().out and not folder.exists()
