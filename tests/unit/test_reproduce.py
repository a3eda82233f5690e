"""The recipes of ``fedlearn reproduce``: what they run, that each run has one file, that processes
share the work, that a stopped run goes on, that nothing stored is overwritten."""

import inspect
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import fedlearn as fl
from fedlearn import costs, recipes, reproduce
from fedlearn import round as rounds
from fedlearn import store as stores
from fedlearn.cli import main
from fedlearn.data import sources
from fedlearn.errors import DataError
from fedlearn.files import LOOK, claim

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
        assert costs.Costs(run).work > 0 and costs.Costs(run).memory > costs.PYTORCH
        fl.partition.parse(run.experiment.partition)
        for each in run.tries:
            e = each.experiment
            assert e.rounds == min(10, run.experiment.rounds) and e.options[run.tuned] > 0
            assert e.train * 5 == run.experiment.train


@pytest.mark.parametrize("scale", recipes.SCALES)
def test_a_name_stands_for_one_run(scale):
    listed = recipes.runs(None, scale)
    assert len({(run.folder, run.name) for run in listed}) == len(listed)
    seeds = [run.turn for run in listed]
    assert seeds == sorted(seeds)  # the first seed of all, then the second


def test_two_runs_of_one_name_are_refused(monkeypatch):
    quick = recipes.RECIPES["fed_kgf_figure8"]["quick"]["runs"][0]
    monkeypatch.setitem(quick["rows"], "FedAvg", {"method": "fedavg", "lr": 0.7})
    with pytest.raises(ValueError, match="fedavg-digits-iid-0 stands for two different runs"):
        recipes.runs("fed_kgf", "quick")


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
    assert [run.label for run in (a, b, c)] == ["a!", "b!", "c!"] and a.name == "a-digits-iid-0"
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
        f"{label}-detection-digits-iid-{seed}" for label in ("fedavg", "stc") for seed in (0, 1, 2)
    }
    masks = recipes.runs("rpn_segmentation", "quick")
    assert not {r.name for r in rpn} & {r.name for r in masks}
    assert {r.images for r in masks} == {(1000, 200)}
    [full] = recipes.runs("rpn_segmentation", "full", only=("RPN",))
    assert full.images == (1464, 1449) and full.name == "rpn-segmentation-voc-320-iid-0"
    assert costs.counted("scene_fcn", (1, 64, 64), 11).maps == ()  # of several sizes
    order = recipes.order("seeing_digits")
    assert order["fedavg-detection-digits-iid-0"] < order["fedavg-segmentation-digits-iid-1"]


def test_a_stored_run_of_scenes_is_its_recipes_run(tmp_path, monkeypatch):
    block = recipes.RECIPES["rpn_detection"]["quick"]["runs"][0]
    for key, value in {"train": 20, "test": 10, "rounds": 1}.items():
        monkeypatch.setitem(block, key, value)
    reproduce.reproduce("rpn_detection", "quick", tmp_path, only=("RPN",), seeds=(0,))
    [run] = recipes.runs("rpn_detection", "quick", ("RPN",), (0,))
    store = stores.Store(tmp_path)
    assert not store.other(run) and store.get(run).measure == "mAP@0.5"


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
            assert tuple(run.search[n] for n in names) == its[e.network]
            assert (run.search["warmup"], run.search["clip"], run.search["spare"]) == (
                10,
                5.0,
                True,
            )
            assert run.search["dataset"] != e.dataset
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
    rows = {"Multi": {"method": "fedfusion"}}
    block = {"partition": ["permuted"], "rounds": 1, "train": 200, "test": 50, "clients": 4}
    block |= {"rows": rows, "newcomers": 2, "epochs": 2}
    made = {"paper": "rpn", "quick": {"seeds": [0], "runs": [block]}}
    monkeypatch.setitem(recipes.RECIPES, "made", made)
    [run] = recipes.runs("made")
    store = stores.Store(tmp_path)
    history = reproduce.do(store, run, {}, False)
    its = history.meta["newcomers"]
    assert [len(curve) for curve in its] == 3 * [3] and all(0 <= a <= 1 for c in its for a in c)
    assert not store.other(run)
    assert not replace(run, newcomers=0).differences(history)  # they change nothing else
    del history.meta["newcomers"]
    assert run.differences(history) == ["newcomers"]
    # by hand: a client of its own, from the same weights
    e = run.experiment
    task = replace(e, clients=1, train=50, seed=1000).make_task()
    net = fl.training.new_network(run.method().model, task)
    fl.training.load(fl.models.state_of(net), history.state)
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
        assert (run.search is None) == plain and (plain or run.search["dataset"] == "cifar100")


# ---- running -------------------------------------------------------------------------------------

FEW = "--rounds 2 --seed 3 --partition iid --train 100 --test 50 --only FedAvg --only Fed-KGF"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with both runs; it is copied."""
    folder = tmp_path_factory.mktemp("finished")
    assert not main(arguments(folder))
    return folder


def arguments(folder, *more):
    return [
        "reproduce",
        "fed_kgf_figure3",
        *FEW.split(),
        "--no-progress",
        "--out",
        str(folder),
        *more,
    ]


TINY = {
    **{"rounds": 1, "train": 60, "test": 30, "seeds": (3,)},
    **{"only": ("FedAvg",), "split": ("iid",)},
}


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


def stored(folder):
    return {p.stem: json.loads(p.read_text()) for p in sorted(folder.glob("**/*.json"))}


def test_finished_runs_are_kept_and_stopped_runs_go_on(tmp_path, monkeypatch, capsys):
    trained, real = [], rounds.one_round

    def counted(server, engine, t, *rest, **how):
        trained.append((server.method.name, t))
        if len(trained) == 4:  # the last round of the second method
            raise KeyboardInterrupt
        state, row = real(server, engine, t, *rest, **how)
        return state, row | {"seconds": 10.0}

    monkeypatch.setattr(rounds, "one_round", counted)
    assert main(arguments(tmp_path)) == 130
    assert list(stored(tmp_path)) == ["fed-kgf-digits-iid-3"]
    assert not main(arguments(tmp_path))
    assert trained == [("fed_kgf", 1), ("fed_kgf", 2), ("fedavg", 1), ("fedavg", 2), ("fedavg", 2)]
    assert not main(arguments(tmp_path))
    assert "All there already" in capsys.readouterr().out
    found = stored(tmp_path)
    names = {path.name for path in (tmp_path / "fed_kgf_digits").iterdir()}
    assert names == {f"{name}.json" for name in found}  # no checkpoint and no claim is left
    for history in map(fl.History.from_dict, found.values()):
        meta = history.meta
        assert len(history) == 2 and (meta["task"]["seed"], meta["task"]["train"]) == (3, 100)
        assert meta["label"] in TABLE_1 and float(meta["provenance"]["seconds"]) >= 20
        keys = {"command", "date", "commit", "hardware", "seconds"}
        assert set(meta["provenance"]) == keys
        assert {"device", "torch", "python", "settings"} <= meta.keys()


def test_two_processes_with_one_folder_keep_all_runs(tmp_path):
    command = [sys.executable, "-m", "fedlearn.cli", *arguments(tmp_path)]
    command += ["--only", "QSGD", "--only", "STC", "--only", "RPN"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=200)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    done = [line for text in outputs for line in text.splitlines() if "after 2 rounds" in line]
    assert len(done) == len(set(done)) == len(stored(tmp_path)) == 5


def test_a_run_of_another_process_is_left_to_it(tmp_path, capsys):
    claim = tmp_path / "fed_kgf_digits" / "fedavg-digits-iid-3.claim"
    hold = (
        "import sys; from pathlib import Path; from fedlearn.files import claim\n"
        "with claim(Path(sys.argv[1])) as mine: print(mine, flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(claim)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"True\n"
    assert not main(arguments(tmp_path))
    assert list(stored(tmp_path)) == ["fed-kgf-digits-iid-3"]
    assert "another process is at it" in capsys.readouterr().out
    assert not main(arguments(tmp_path, "--plan"))
    [line] = [x for x in capsys.readouterr().out.splitlines() if "fedavg" in x]
    assert line.startswith("running")
    other.kill()  # it dies without giving its claim back, which nobody holds from now on
    other.wait()
    assert claim.exists() and not main(arguments(tmp_path))
    assert len(stored(tmp_path)) == 2 and not claim.exists()


def test_the_best_of_three_is_taken_and_all_are_kept(tmp_path, monkeypatch):
    tuned(monkeypatch, 1e-6, 0.2, 1e-5)
    assert not main(arguments(tmp_path, "--only", "QSGD"))
    tries = stored(tmp_path / "fed_kgf_digits" / "tune")
    assert {d["meta"]["task"]["train"] for d in tries.values()} == {50} and len(tries) == 9
    main_run = stored(tmp_path)["qsgd-digits-iid-3"]
    reached = main_run["meta"]["tuned"]["lr"]
    assert list(reached) == ["1e-06", "0.2", "1e-05"] and max(reached, key=reached.get) == "0.2"
    assert "lr=0.2" in main_run["meta"]["parts"]["optimizer"]
    assert "qsgd-lr-0.2-digits-iid-0" in tries  # tuned with the first seed of the recipe


def test_a_search_is_done_once_and_its_scales_are_kept(tmp_path, monkeypatch):
    block = recipes.RECIPES["fed_repopt_table1"]["quick"]["runs"][0]
    spec = {"dataset": "digits", "train": 60, "rounds": 1, "lr": 0.1}
    for label in ("RepVGG CSLA", "RepVGG RepOpt"):
        monkeypatch.setitem(block["rows"][label], "scales", spec)
    searched, real = [], fl.methods.search
    monkeypatch.setattr(
        stores.methods, "search", lambda *a, **k: searched.append(k) or real(*a, **k)
    )
    few = "--rounds 2 --seed 0 --partition iid --train 60 --test 50 --no-progress".split()
    only = ["--only", "RepVGG CSLA", "--only", "RepVGG RepOpt"]
    assert not main(["reproduce", "fed_repopt_table1", *few, *only, "--out", str(tmp_path)])
    assert len(searched) == 1
    csla, repopt = (stored(tmp_path)[f"repvgg-{n}-digits-iid-0"] for n in ("csla", "repopt"))
    for run in (csla, repopt):
        assert "scales=Scales(digest=" in run["meta"]["parts"]["model"]
    [search] = stored(tmp_path / "fed_repopt_digits" / "search").values()
    alike = {name: csla["meta"]["provenance"][name] for name in ("command", "commit", "hardware")}
    assert search["provenance"].items() >= alike.items() and "date" in search["provenance"]
    took = float(search["provenance"]["seconds"])
    chosen = ("fed_repopt_table1", "quick", ("RepVGG CSLA", "RepVGG RepOpt"), (0,))
    listed = recipes.runs(*chosen, 2, 60, 50, ("iid",))
    store = stores.Store(tmp_path)
    assert took > 0 and store.searched(listed[0]) == took
    rows = costs.rows(listed, store.get, costs.Estimate(store.get, listed, store.searched))
    both = took + sum(float(run["meta"]["provenance"]["seconds"]) for run in (csla, repopt))
    assert sum(row["spent"] for row in rows) == pytest.approx(both / 3600)  # the search once
    assert csla["rows"][-1]["loss"] == pytest.approx(repopt["rows"][-1]["loss"], rel=1e-3)
    assert not main(["reproduce", "fed_repopt_table1", *few, *only, "--out", str(tmp_path)])
    assert len(searched) == 1


def test_a_search_that_was_stopped_goes_on_from_its_last_round(tmp_path, monkeypatch):
    block = recipes.RECIPES["fed_repopt_table1"]["quick"]["runs"][0]
    spec = {"dataset": "digits", "train": 60, "rounds": 3, "lr": 0.1}
    monkeypatch.setitem(block["rows"]["RepVGG CSLA"], "scales", spec)
    run = next(r for r in recipes.runs("fed_repopt_table1", "quick", only=["RepVGG CSLA"]))
    whole, trained = stores.Store(tmp_path / "whole").scales(run), []
    assert [p.suffix for p in (tmp_path / "whole" / run.searched).parent.iterdir()] == [".json"]
    real = rounds.one_round

    def stops(server, engine, t, *rest, **how):
        trained.append(t)
        if trained == [1, 2, 3]:
            raise KeyboardInterrupt
        state, row = real(server, engine, t, *rest, **how)
        return state, row | {"seconds": 10.0}

    monkeypatch.setattr(rounds, "one_round", stops)
    with pytest.raises(KeyboardInterrupt):
        stores.Store(tmp_path).scales(run)
    again = stores.Store(tmp_path).scales(run)
    assert trained == [1, 2, 3, 3]
    seconds = stores.Store(tmp_path).searched(run)
    assert seconds is not None and seconds >= 30  # also of the rounds before the stop
    assert all(t.equal(whole.of[n]) for n, t in again.of.items())
    assert [p.suffix for p in (tmp_path / run.searched).parent.iterdir()] == [".json"]


def test_a_search_of_another_process_is_waited_for(tmp_path, monkeypatch):
    run = next(r for r in recipes.runs("fed_repopt", "small") if r.search)
    file, waited = tmp_path / run.searched, []
    before = sources.data_path("results", run.searched).read_text()  # scales alone

    def sleep(seconds):
        waited.append(seconds)
        if seconds == stores.WAIT:
            file.write_text(before)

    monkeypatch.setattr(stores.methods, "search", None)  # it is not made here
    monkeypatch.setattr(reproduce.time, "sleep", sleep)
    with claim(file.with_suffix(".claim")) as mine:
        found = stores.Store(tmp_path).scales(run)
    assert mine and waited == [LOOK, stores.WAIT]
    assert all(found.of[n].equal(torch.tensor(its)) for n, its in json.loads(before).items())


@pytest.mark.parametrize(
    "content, says",
    [
        ("[1]", "list"),
        ("null", "NoneType"),
        ("", "Expecting value"),
        ('{"extractor.0.s3": [0.9', "Expecting"),
        ("[" * 100_000, "recursion"),
        (b"\xff\xfe", "decode"),
        ("{}", "does not fit"),
        ('{"scales": {"extractor.0.s3": [1.0]}}', "does not fit"),
        ('{"extractor.0.s3": ["a"]}', ""),
        ('{"extractor.0.s3": [NaN]}', "finite"),
        ('{"scales": [1]}', "list"),
        ('{"extractor.0.s3": [1%s]}' % (400 * "0"), "large"),
        ("seconds", "long"),
    ],
)
def test_a_file_of_no_scales_is_said_before_anything_runs(tmp_path, capsys, content, says):
    run = next(r for r in recipes.runs("fed_repopt_table7", "quick") if r.search)
    path = tmp_path / run.searched
    path.parent.mkdir(parents=True)
    if content == "seconds":
        scales = json.loads(sources.data_path("results", run.searched).read_text())
        content = json.dumps({"scales": scales, "provenance": {"seconds": "long"}})
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = path.read_bytes()
    for more in ((), ("--plan",)):
        command = ["reproduce", "fed_repopt_table7", "--out", str(tmp_path), *more]
        assert main(command) == 2
        said = capsys.readouterr().err
        assert f"{path} holds no scales of a search that its recipe can use (" in said
        assert says in said
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change, sentence",
    [
        (("--only", "FedProx"), "There is no row 'FedProx'"),
        (("--scale", "huge"), "There is no scale 'huge'"),
        (("--rounds", "0"), "rounds must be a whole number"),
        (("--partition", "shards:2"), "There is no partition of this recipe 'shards:2'"),
        (("--seed", "-1"), "seed must be a whole number of at least 0, not -1."),
        (("--train", "0"), "digits has 1347 train images, so train=0 cannot be kept."),
        (("--test", "451"), "digits has 450 test images, so test=451 cannot be kept."),
    ],
)
def test_wrong_choices(tmp_path, capsys, change, sentence):
    for more in ((), ("--plan",)):
        assert main([*arguments(tmp_path), *change, *more]) == 2
        assert sentence in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_row_and_a_partition_that_no_run_has(tmp_path, capsys):
    command = ["reproduce", "fed_gkt_table1", "--only", "centralised, large"]
    assert main([*command, "--partition", "dirichlet:0.5", "--out", str(tmp_path)]) == 2
    assert "No run has a row of centralised, large and a partition of" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--plan",)])
def test_a_shorter_run_does_not_go_into_the_books_folder(capsys, monkeypatch, more):
    for out in ((), ("--out", str(sources.data_path("results")))):
        assert main(["reproduce", "fed_kgf", "--rounds", "2", *out, *more]) == 2
        assert "name a folder of your own" in capsys.readouterr().err
    assert main(["reproduce", "fed_kgf", "--rounds", "2", "--out", "", *more]) == 2
    assert "out must be a folder's name, or None, not ''." in capsys.readouterr().err


def test_a_file_is_no_folder(tmp_path, capsys):
    assert main(arguments(tmp_path / "x.json")) == 2
    assert "--out names a folder" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "choice, sentence",
    [
        ({"hours": "3"}, "hours of reproduce must be a finite number or None, not '3'."),
        ({"report": None}, "report must be a function of a line, not None."),
        ({"provenance": 5}, "provenance must be a dict of texts, not 5."),
        ({"provenance": "a"}, "provenance must be a dict of texts, not 'a'."),
        ({"provenance": {"a": 5}}, "provenance must be a dict of texts, not {'a': 5}."),
        ({"out": 5}, "out must be a folder's name, or None, not 5."),
        ({"seeds": 5}, "seeds must be a list, not 5."),
        ({"only": "RPN"}, "only must be a list, not 'RPN'."),
        ({"split": "iid"}, "split must be a list, not 'iid'."),
        ({"rounds": 1.5}, "rounds of runs must be a whole number or None, not 1.5."),
        ({"device": "bogus"}, "There is no device 'bogus' here"),
        ({"device": "cuda0"}, "There is no device 'cuda0' here"),
    ],
)
def test_wrong_choices_in_python(tmp_path, choice, sentence):
    both = not choice.keys() & {"report", "provenance"}
    for function in (reproduce.reproduce, *[reproduce.plan] * both):
        with pytest.raises(ValueError) as error:
            function("rpn", **{"out": tmp_path / "out"} | choice)
        its_own = sentence.replace("of reproduce", f"of {function.__name__}")
        assert str(error.value).startswith(its_own)
    assert not list(tmp_path.iterdir())


def test_a_run_of_other_settings_is_never_overwritten(tmp_path, monkeypatch, capsys):
    assert not main(arguments(tmp_path))
    before = stored(tmp_path)
    rows = recipes.RECIPES["fed_kgf_figure3"]["quick"]["runs"][0]["rows"]
    assert main(arguments(tmp_path, "--train", "90")) == 2
    assert "fed-kgf-digits-iid-3.json holds another run: train differ" in capsys.readouterr().err
    monkeypatch.setitem(rows["FedAvg"], "lr", 0.05)
    assert main(arguments(tmp_path)) == 2
    assert "holds another run: lr differ" in capsys.readouterr().err
    assert stored(tmp_path) == before


def test_a_file_that_another_process_wrote_since_is_compared_too(tmp_path, monkeypatch, capsys):
    """Two processes with other settings and one folder: neither takes the other's tries."""
    tuned(monkeypatch, 0.1, 0.2)
    elsewhere, real = tmp_path / "elsewhere", reproduce.do
    longer = ["--only", "QSGD", "--train", "120"]
    assert not main(arguments(elsewhere, *longer))
    done = []

    def do(store, run, *rest):
        if not done:
            path = store.path(run).with_name("qsgd-lr-0.2-digits-iid-0.json")
            shutil.copy(elsewhere / "fed_kgf_digits" / "tune" / path.name, path)
        done.append(run.name)
        return real(store, run, *rest)

    monkeypatch.setattr(reproduce, "do", do)
    path = tmp_path / "fed_kgf_digits" / "tune"
    path.mkdir(parents=True)
    capsys.readouterr()
    assert main([*arguments(tmp_path, "--only", "QSGD"), "--hours", "5"]) == 2
    said = capsys.readouterr()
    assert "qsgd-lr-0.2-digits-iid-0.json holds another run: train differ" in said.out
    assert "for the reasons above: fed_kgf_digits/tune/qsgd-lr-0.2-digits-iid-0." in said.err
    needs = "qsgd-digits-iid-3: left out, as fed_kgf_digits/tune/qsgd-lr-0.2-digits-iid-0 failed"
    assert needs in said.out and "qsgd-digits-iid-3" not in done
    assert not (tmp_path / "fed_kgf_digits" / "qsgd-digits-iid-3.json").exists()


def test_what_a_process_left_that_ended_after_it_had_written_the_file_goes(tmp_path, finished):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    paths = [*(tmp_path / "fed_kgf_digits").glob("*.json")]
    left = [path.with_suffix(".2.checkpoint") for path in paths]
    for path in left:
        path.touch()
    with claim(paths[0].with_suffix(".claim")):  # somebody is at it
        assert not main(arguments(tmp_path))
    assert [path.exists() for path in left] == [True, False]


def test_a_run_that_lacks_memory_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    real, failing = reproduce.do, [MemoryError()]

    def do(*args):
        if failing:
            raise failing.pop()
        return real(*args)

    monkeypatch.setattr(reproduce, "do", do)
    assert main(arguments(tmp_path)) == 2 and len(stored(tmp_path)) == 1
    assert ": not enough memory." in capsys.readouterr().out


@pytest.mark.parametrize("target", ["out", "absent"])
def test_a_link_to_nothing_is_no_folder(tmp_path, capsys, target):
    out = tmp_path / "out"
    out.symlink_to(tmp_path / target)
    for more in ((), ("--plan",)):
        assert main(arguments(out, *more)) == 2
        assert "is a link to what is not there; --out names" in capsys.readouterr().err


def test_a_checkpoint_belongs_to_so_many_rounds(tmp_path, monkeypatch, capsys):
    real = rounds.one_round

    def stopped(server, engine, t, *rest, **how):
        if t == 4:
            raise KeyboardInterrupt
        return real(server, engine, t, *rest, **how)

    monkeypatch.setattr(rounds, "one_round", stopped)
    assert main(arguments(tmp_path, "--rounds", "5")) == 130
    assert "Stopped. What is finished is kept" in capsys.readouterr().out
    assert not main(arguments(tmp_path))  # of two rounds
    assert {len(data["rows"]) for data in stored(tmp_path).values()} == {2}


def test_a_try_that_another_process_just_stored_is_taken(tmp_path, monkeypatch):
    """Between the look for what can be done and the look for who is at work."""
    tuned(monkeypatch, 0.1, 0.2)
    elsewhere = tmp_path / "elsewhere"
    reproduce.reproduce("fed_kgf_figure3", out=elsewhere, progress=False, report=str, **TINY)
    [run] = recipes.runs("fed_kgf_figure3", **TINY)
    here, there = stores.Store(tmp_path / "here"), stores.Store(elsewhere)
    here.path(run.tries[0]).parent.mkdir(parents=True)
    shutil.copy(there.path(run.tries[0]), here.path(run.tries[0]))
    last = run.tries[1]
    with claim(here.path(last, ".claim")):
        real = stores.Store.awaited

        def awaited(store, its):
            if its == run and not here.path(last).exists():  # stored while others look
                shutil.copy(there.path(last), here.path(last))
                return []
            return real(store, its)

        monkeypatch.setattr(stores.Store, "awaited", awaited)
        said = []
        reproduce.reproduce("fed_kgf_figure3", out=here.root, report=said.append, **TINY)
    assert here.path(run).exists() and not any("hours" in line for line in said)


def test_no_longer_than_the_hours_is_waited(tmp_path, monkeypatch):
    tuned(monkeypatch, 0.1)
    monkeypatch.setattr(reproduce, "WAIT", 0.01)
    [run] = recipes.runs("fed_kgf_figure3", **TINY)
    store, said = stores.Store(tmp_path), []
    with claim(store.path(run.tries[0], ".claim")) as mine:
        reproduce.reproduce("fed_kgf_figure3", out=tmp_path, hours=2e-4, report=said.append, **TINY)
    assert mine and said[0] == f"{run.tries[0].where}: waiting for another process"
    assert said[-1] == f"{run.where}: does not fit into the hours" and len(said) == 3


def test_another_process_search_is_waited_for_and_named(tmp_path, monkeypatch):
    run = next(r for r in recipes.runs("fed_repopt", "small") if r.search)
    store = stores.Store(tmp_path)
    assert store.awaited(run) == []
    with claim((tmp_path / run.searched).with_suffix(".claim")):
        assert store.awaited(run) == [run.searched]
        before = sources.data_path("results", run.searched).read_text()
        (tmp_path / run.searched).write_text(before)
        assert store.awaited(run) == []
    assert reproduce.needed(store, [run]) == [run.experiment.dataset]
    assert reproduce.needed(stores.Store(tmp_path / "x"), [run])[1:] == [run.search["dataset"]]


def test_a_file_that_is_not_there_after_it_was_written(tmp_path, capsys):
    path = tmp_path / "fed_kgf_digits" / "fedavg-digits-iid-3.json"
    path.parent.mkdir()
    path.symlink_to("/dev/null")
    assert main(arguments(tmp_path, "--hours", "1")) == 2
    assert (
        "fedavg-digits-iid-3: its file is not there after it was written" in capsys.readouterr().out
    )


def test_tries_of_which_none_gives_a_number(tmp_path, monkeypatch, capsys):
    tuned(monkeypatch, 0.1, 0.2)
    monkeypatch.setattr(stores, "reached", lambda history: math.nan)
    assert main(arguments(tmp_path)) == 2
    assert "no value of lr that was tried gave an accuracy." in capsys.readouterr().out


def test_where_no_file_can_be_written_is_said_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reproduce, "do", None)
    (tmp_path / "fed_kgf_digits").touch()
    assert main(arguments(tmp_path)) == 2
    assert "fed_kgf_digits is no folder" in capsys.readouterr().err
    (tmp_path / "fed_kgf_digits").unlink()
    (tmp_path / "fed_kgf_digits" / "fedavg-digits-iid-3.json").mkdir(parents=True)
    assert main(arguments(tmp_path)) == 2
    assert "fedavg-digits-iid-3.json is a folder; name a file." in capsys.readouterr().err


def test_a_run_that_cannot_be_written_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    (tmp_path / "fed_kgf_digits" / "fed-kgf-digits-iid-3.2.checkpoint").mkdir(parents=True)
    assert main(arguments(tmp_path)) == 2
    said = capsys.readouterr()
    assert "fed-kgf-digits-iid-3.2.checkpoint is not a readable checkpoint" in said.out
    assert said.err.count("fed_kgf_digits/") == 1 and [*stored(tmp_path)] == ["fedavg-digits-iid-3"]


@pytest.mark.parametrize("spoilt", ["file", "claim"])
def test_a_file_that_becomes_unreadable_stops_its_own_run_only(
    tmp_path, monkeypatch, capsys, spoilt
):
    folder, real = tmp_path / "fed_kgf_digits", reproduce.do

    def do(store, run, *rest):
        name = folder / f"{'fed-kgf' if run.label == 'FedAvg' else 'fedavg'}-digits-iid-3"
        if spoilt == "file":
            name.with_suffix(".json").write_text("{}")
        else:
            name.with_suffix(".claim").mkdir()
        return real(store, run, *rest)

    monkeypatch.setattr(reproduce, "do", do)
    assert main(arguments(tmp_path)) == 2
    said = capsys.readouterr()
    why = {"file": "is no history of fedlearn (it has no 'meta')", "claim": "Is a directory"}
    assert why[spoilt] in said.out and said.out.count("accuracy") == 1


def edit(folder, name, change):
    """What ``change`` makes of a stored run, put in its place."""
    path = folder / "fed_kgf_digits" / f"{name}.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    "keys, value, says",
    [
        ("rows", [], "rounds"),
        ("rows 0 accuracy", None, "accuracy"),
        ("rows 0 accuracy", float("nan"), "accuracy"),
        ("rows 1 accuracy", "high", "accuracy"),
        ("rows 1 accuracy", 5.0, "accuracy"),
        ("rows 1 loss", None, "loss"),
        ("rows 1 seconds", ..., "seconds"),
        ("rows 1 seconds", -1, "seconds"),
        ("rows 1 seconds", float("inf"), "seconds"),
        ("rows 1 seconds", 10**400, "seconds"),
        ("rows 1 loss", 10**400, "loss"),
        ("rows 1 bytes_up", 10**400, "bytes_up"),
        ("rows 1 bytes_up", ..., "bytes_up"),
        ("rows 0 bytes_up", "many", "bytes_up"),
        ("rows 0 bytes_down", -1, "bytes_down"),
        ("rows 0 bytes_up_buffers", 1.5, "bytes_up_buffers"),
        ("rows 0 bytes_evaluation_up", None, "bytes_evaluation_up"),
        ("rows 0 bytes_handover", "few", "bytes_handover"),
        ("rows 0 clients", [0, 1], "clients"),
        ("rows 0 clients", [*range(9), 10], "clients"),
        ("rows 0 clients", [*range(9), 8], "clients"),
        ("rows 0 clients", "all", "clients"),
        ("rows 0 refused", ..., "refused"),
        ("method", "rpn", "method"),
        ("meta parts optimizer", "SGD(lr=0.9)", "optimizer"),
        ("meta parts model", "Nonsense()", "model"),
        ("meta parts", ..., "model, objective"),
        ("meta options", ..., "lr, "),
        ("meta options lr", ..., "lr"),
        ("meta options secret", 1, "secret"),
        ("meta task train", ..., "train"),
        ("meta task network", ..., "network"),
        ("meta task metrics", ["per_class"], "metrics"),
        ("meta task future", 1, "future"),
        ("meta task accuracy", "mIoU", "accuracy"),
        ("meta settings future", 1, "future"),
        ("meta settings epochs", ..., "epochs"),
        ("meta settings", ..., "participation, epochs"),
        ("meta task", ..., "dataset, clients"),
        ("meta provenance seconds", "long", "provenance"),
        ("meta provenance seconds", "-1e9", "provenance"),
        ("meta provenance seconds", "nan", "provenance"),
        ("meta provenance seconds", "inf", "provenance"),
        ("meta provenance seconds", 10**400, "provenance"),
        ("meta", {}, "label, dataset"),
    ],
)
def test_a_run_that_was_changed_by_hand_is_another_run(
    tmp_path, finished, capsys, keys, value, says
):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)

    def change(data):
        *way, last = keys.split()
        for key in way:
            data = data[int(key) if key.isdecimal() else key]
        if value is ...:
            del data[last]
        else:
            data[last] = value

    path = edit(tmp_path, "fedavg-digits-iid-3", change)
    before = path.read_bytes()
    assert main(arguments(tmp_path)) == 2
    assert f"{path} holds another run: {says}" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert not main(arguments(tmp_path, "--plan"))
    out = capsys.readouterr().out
    assert "another" in out and f"{path} holds another run: {says}" in out


def test_a_run_of_full_scale_is_itself_on_any_device(finished):
    """On a GPU it trains in bfloat16: what one has begun another need not do again."""
    history = fl.History.from_json(finished / "fed_kgf_digits" / "fedavg-digits-iid-3.json")
    [run] = recipes.runs("fed_kgf_figure3", **TINY | {"rounds": 2, "train": 100, "test": 50})
    assert not run.differences(history)
    history.meta["settings"]["precision"] = "bf16"
    assert run.differences(history) == ["precision"]
    assert not replace(run, folder="fed_kgf_full").differences(history)
    assert not replace(run, folder="fed_kgf_full/tune").differences(history)


def test_an_old_file_of_a_tuned_run_is_another(finished):
    """It says neither options nor what was tried."""
    history = fl.History.from_json(finished / "fed_kgf_digits" / "fedavg-digits-iid-3.json")
    [run] = recipes.runs("fed_kgf_figure3", **TINY | {"rounds": 2, "train": 100, "test": 50})
    run = recipes.tried(run, {"rounds": 1, "share": 0.5, "option": {"lr": [0.1, 0.2]}}, 3)
    assert "lr" not in run.differences(history)
    for name in ("options", "data"):
        history.meta.pop(name, None)
    assert "lr" in run.differences(history)


def test_a_run_that_diverged_is_itself(tmp_path, finished):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    nothing = {"accuracy": float("nan"), "loss": float("nan")}
    edit(tmp_path, "fedavg-digits-iid-3", lambda data: data["rows"][1].update(nothing))
    assert not main(arguments(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        *(json.dumps({"method": "fedavg", "meta": meta, "rows": []}) for meta in ([], None, "x")),
        *(
            json.dumps({"method": "fedavg", "meta": {name: value}, "rows": []})
            for name, value in (("task", None), ("options", None), ("settings", []))
        ),
        *(
            json.dumps({"method": "fedavg", "meta": {} | more, "rows": []} | top)
            for more, top in (({"version": 99}, {}), ({}, {"version": 99}), ({}, {"version": "1"}))
        ),
        "[" * 100_000,
        "\ufeff{}",
        b"\xff\xfe{\x00}\x00",
        "",
        "[]",
    ],
)
def test_what_is_no_run_is_said_with_its_file(tmp_path, capsys, content):
    path = tmp_path / "fed_kgf_digits" / "fedavg-digits-iid-3.json"
    path.parent.mkdir()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for more in ((), ("--plan",)):
        assert main(arguments(tmp_path, *more)) == 2
        assert f"{path} is no history of fedlearn" in capsys.readouterr().err
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_file_of_a_newer_version_says_so(tmp_path, finished, capsys):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = edit(tmp_path, "fedavg-digits-iid-3", lambda data: data.update(version=99))
    assert main(arguments(tmp_path)) == 2
    reason = f"{path} is no history of fedlearn (its version is 99; this program reads 1)."
    assert reason in capsys.readouterr().err


def test_stored_runs_are_their_recipes_runs():
    store = stores.Store(sources.data_path("results"))
    for scale, count in (("quick", 717), ("small", 255)):
        listed = recipes.runs(None, scale)
        assert not stores.others(store, listed)
        assert len(listed) - sum(map(store.lacks, listed)) >= count


@pytest.mark.parametrize(
    "recipe, labels",
    [
        ("fed_kgf_figure3", ("FedAvg", "Fed-KGF", "RPN", "signSGD")),
        ("fed_mmd_fusion_table1", ("FedFusion+Conv",)),
        ("fed_gkt_table1", ("FedGKT",)),
        ("fed_repopt_table1", ("RepVGG RepOpt",)),
    ],
)
def test_stored_runs_come_out_again(tmp_path, recipe, labels):
    """Their first rounds: bytes exactly, accuracies but for what another processor rounds."""
    chosen = {"only": labels, "seeds": (0,), "split": ("iid",)}
    reproduce.reproduce(recipe, out=tmp_path, rounds=2, report=str, progress=False, **chosen)
    here, book = stores.Store(tmp_path), stores.Store(sources.data_path("results"))
    both = zip(
        recipes.runs(recipe, rounds=2, **chosen), recipes.runs(recipe, **chosen), strict=True
    )
    for short, whole in both:
        again, before = here.get(short), book.get(whole)
        for column in ("bytes_up", "bytes_down", "clients"):
            assert [r[column] for r in again.rows] == [r[column] for r in before.rows[:2]]
        assert again.accuracy == pytest.approx(before.accuracy[:2], abs=0.05)


def test_a_file_is_compared_by_all_its_parts():
    """A changed number in any part is a difference."""
    store, seen = stores.Store(sources.data_path("results")), 0
    for run in recipes.runs(None, "quick", seeds=(0,)):
        history = store.get(run)
        if run.experiment.partition != "iid":
            continue
        parts = history.meta["parts"]
        for name, text in dict(parts).items():
            for other in ("Nonsense()", re.sub(r"\d+", "77", text, count=1)):
                parts[name] = other
                changed = run._plain(other) != run._plain(text)  # a search's scales are no matter
                assert run.differences(history) == [name] * changed
                seen += changed
            parts[name] = text
    assert seen > 300


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    rows = recipes.RECIPES["fed_kgf_figure3"]["quick"]["runs"][0]["rows"]
    monkeypatch.setitem(rows["Fed-KGF"], "base_kernels", 999)
    assert main(arguments(tmp_path)) == 2
    said = capsys.readouterr()
    assert "Not done, for the reasons above: fed_kgf_digits/fed-kgf-digits-iid-3." in said.err
    assert "fed_kgf_digits/fed-kgf-digits-iid-3: No convolution has more than 999" in said.out
    assert list(stored(tmp_path)) == ["fedavg-digits-iid-3"]


def test_a_try_that_diverged_is_not_the_best(tmp_path, monkeypatch):
    def history(*accuracies):
        return fl.History("fedavg", {}, [{"round": 1, "accuracy": a} for a in accuracies])

    assert stores.reached(history(0.2, None)) == 0.2
    assert math.isnan(stores.reached(history(None)))
    tuned(monkeypatch, 0.1, 0.2)
    worse = lambda history: math.nan if history.meta["options"]["lr"] == 0.1 else 0.0  # noqa: E731
    monkeypatch.setattr(stores, "reached", worse)
    assert not main(arguments(tmp_path))
    its = stored(tmp_path)["fedavg-digits-iid-3"]["meta"]
    assert its["options"]["lr"] == 0.2 and list(its["tuned"]["lr"]) == ["0.1", "0.2"]


def test_no_such_recipe(capsys):
    assert main(["reproduce", "fed_kg"]) == 2
    assert "Did you mean 'fed_kgf'" in capsys.readouterr().err


# ---- planning ------------------------------------------------------------------------------------


def test_the_plan_counts_what_is_stored_and_measures_by_it(tmp_path, capsys):
    assert not main(arguments(tmp_path, "--plan"))
    out = capsys.readouterr().out
    assert "2 runs, 0 stored" in out and "estimated" in out and not list(tmp_path.iterdir())
    assert not main(arguments(tmp_path))
    capsys.readouterr()
    assert not main(arguments(tmp_path, "--plan", "--seed", "4"))
    out = capsys.readouterr().out
    assert "4 runs, 2 stored" in out and out.count("measured") == 4


def test_estimates_follow_the_work():
    one, two = (recipes.runs("rpn", "small", rounds=n)[0] for n in (10, 20))
    nothing = costs.Estimate(lambda run: None, [])
    assert nothing.of(two)[0] == pytest.approx(2 * nothing.of(one)[0])
    assert nothing.of(one)[1] == "estimated"
    meta = {"provenance": {"seconds": "100"}}
    stored = fl.History("fedavg", meta)
    measured = costs.Estimate(lambda run: stored if run is two else None, [two])
    assert measured.of(one) == (pytest.approx(50), "measured")
    [gpu, *_] = recipes.runs("fed_kgf_figure3", "full", rounds=10, device="cuda")
    assert nothing.of(gpu) == (
        pytest.approx(costs.Costs(gpu).work / 1e9 / recipes.SPEEDS["cuda"]),
        "guessed",
    )


def test_a_small_step_on_a_gpu_takes_its_time_too(tmp_path):
    """However few its multiply-adds are: a step is a hundred operations that are started."""
    only = ("RepGhost Tr",)
    [gpu, *_] = recipes.runs("fed_repopt_table1", "full", only, split=("iid",), device="cuda")
    assert gpu.experiment.dataset == "cifar100" and gpu.experiment.clients == 10
    steps = 240 * 10 * 157  # of 32 images, the last of fewer
    fresh = costs.Estimate(lambda run: None, [])
    assert fresh.of(gpu) == (steps * costs.STEP, "guessed") and steps * costs.STEP > 3600
    [cpu, *_] = recipes.runs("fed_repopt_table1", "full", only, split=("iid",))
    stored = fl.History("x", {"device": "cpu (of some kind)", "provenance": {"seconds": "1"}})
    both = costs.Estimate(lambda run: stored, [gpu])
    assert both.of(gpu) == fresh.of(gpu) and both.of(cpu) == (1.0, "measured")  # by a CPU
    stored.meta["device"] = "cuda (of some kind)"
    assert costs.Estimate(lambda run: stored, [gpu]).of(gpu) == (1.0, "measured")
    search = next(r for r in recipes.runs("fed_repopt", "full", device="cuda") if r.search)
    assert fresh.search(search) >= 240 * 1563 * costs.STEP
    text = reproduce.plan("rpn", "full", tmp_path, device="cuda")
    assert " guessed " in text and "Guessed: no run of that network is measured on a GPU" in text
    assert "uessed" not in reproduce.plan("rpn", "full", tmp_path)


def test_memory_is_that_of_the_pictures_that_are_here(monkeypatch):
    [coco, *_] = recipes.runs("fed_kgf_detection", "small", ("FedAvg",))
    monkeypatch.setattr(costs.published, "there", lambda task, dataset: (122, 106))
    part = costs.Costs(coco).memory
    assert 0.6e9 < part < 1.5e9  # 1.2 GB were measured
    monkeypatch.setattr(costs.published, "there", lambda task, dataset: None)
    whole = costs.Costs(coco).memory
    images = 118287 + 5000 - 228
    assert whole - part == pytest.approx(2 * images * 3 * 160**2)  # the whole set is read

    def damaged(task, dataset):
        raise DataError("A damaged copy.")

    monkeypatch.setattr(costs.published, "there", damaged)
    assert costs.Costs(coco).memory == whole
    [voc, *_] = recipes.runs("rpn_detection", "full", ("FedAvg",))
    # an image's layers give 463 MB, of which a step of 16 keeps all
    assert 16 * 463e6 < costs.Costs(voc).memory < 5 * 16 * 463e6
    for run, batch in ((coco, 128), (recipes.runs("rpn", "quick")[0], 512)):
        of = recipes.KINDS[run.experiment.task].evaluate
        assert inspect.signature(of).parameters["batch"].default == batch


def test_every_speed_is_a_networks():
    """A misspelt name in the table of speeds would never be looked up."""
    names = {costs.Costs(run).kind[0] for s in recipes.SCALES for run in recipes.runs(None, s)}
    assert recipes.SPEEDS.keys() - names == {"other", "cuda"}


def test_status_counts_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "data_path", tmp_path.joinpath)
    table = reproduce.status("rpn")
    assert list(table.index.get_level_values("scale")) == 3 * list(recipes.SCALES)
    assert set(table["hours spent"]) == {0} and (table["hours to go"] > 0).all()
    assert list(table["runs"])[:3] == [6, 2, 10] and set(table["stored"]) == {0}
    [run, *_] = recipes.runs("rpn")
    path = tmp_path / "results" / run.folder / f"{run.name}.json"
    data = json.loads((sources.DATA / "results" / run.folder / f"{run.name}.json").read_text())
    data["meta"]["provenance"]["seconds"] = "7200"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(data))
    quick = reproduce.status("rpn").xs("quick", level="scale").iloc[0]
    assert (quick["runs"], quick["stored"], quick["hours spent"]) == (6, 1, 2.0)
    data["meta"]["task"]["seed"] = 7  # another run under its name
    path.write_text(json.dumps(data))
    assert set(reproduce.status("rpn")["stored"]) == {0}
    assert quick["command"] == "fedlearn reproduce rpn_table1 --scale quick"
    with pytest.raises(ValueError, match="There is no paper 'fed_kg'. Did you mean 'fed_kgf'"):
        reproduce.status("fed_kg")


def test_hours_begin_only_what_fits(tmp_path, capsys):
    assert not main(arguments(tmp_path, "--hours", "0"))
    assert capsys.readouterr().out.count("does not fit into the hours") == 2
    assert not stored(tmp_path)
    assert not main(arguments(tmp_path, "--hours", "1"))
    assert len(stored(tmp_path)) == 2
    for function in (reproduce.reproduce, reproduce.plan):
        for hours in (-1, float("nan"), "3"):
            with pytest.raises(ValueError, match=f"hours .*must be .*, not '?{hours}'?."):
                function("rpn", out=tmp_path, hours=hours)


def state_of(text):
    """Run -> its state in a plan."""
    return {
        line.split("/")[1].split()[0]: line[:9].strip()
        for line in text.splitlines()
        if "/" in line and not line.startswith(("missing", "note"))
    }


def test_what_the_plan_calls_fits_is_what_is_begun(tmp_path, monkeypatch):
    """Two runs, of two hours each, share three tries of one hour: the first takes five, the second
    two more."""
    tuned(monkeypatch, 0.1, 0.2, 0.3)
    takes = lambda self, run: (3600.0 * (2 if run.tries else 1), "estimated")  # noqa: E731
    monkeypatch.setattr(costs.Estimate, "of", takes)
    how = {"only": ("FedAvg",), "seeds": (0, 1), "split": ("iid",), "train": 60, "test": 50}
    for hours, fit in ((4.9, 0), (5.1, 1), (7.1, 2)):
        began, out, clock = [], tmp_path / str(hours), [0.0]

        def do(store, run, *_, began=began, clock=clock):
            clock[0] += takes(None, run)[0]
            began.append(run.name)
            history = fl.History("fedavg", {}, [{"round": 1, "accuracy": 0.5}])
            store._read[store.path(run)] = history, []
            return history

        states = state_of(reproduce.plan("fed_kgf_figure3", out=out, hours=hours, **how))
        assert list(states.values()) == ["fits"] * fit + ["no time"] * (2 - fit)
        monkeypatch.setattr(reproduce, "do", do)
        monkeypatch.setattr(reproduce, "time", SimpleNamespace(monotonic=lambda of=clock: of[0]))
        reproduce.reproduce("fed_kgf_figure3", out=out, hours=hours, report=str, **how)
        mains = [name for name in began if "lr" not in name]
        assert len(began) - len(mains) == 3 * (fit > 0) and len(mains) == fit


def names(runs):
    return [f"{r.label} {r.experiment.partition} {r.experiment.seed}" for r in runs]


def test_hours_are_filled_with_whole_comparisons(monkeypatch):
    """First with all rows of a recipe, split and seed; what is left then with single runs."""
    monkeypatch.setattr(costs.Estimate, "of", lambda self, run: (3600.0, "estimated"))
    only = "Fed-KGF", "FedAvg", "STC"
    stored = set()
    estimate = costs.Estimate(lambda run: fl.History("x") if run in stored else None, [])

    def fits(hours, listed):
        return names(costs.fitting([r for r in listed if r not in stored], estimate, hours))

    three = recipes.runs("fed_kgf_figure3", "quick", only, (0, 1))
    iid, skewed = ([f"{n} {p} 0" for n in only] for p in ("iid", "main_class:0.8"))
    later = [f"{n} iid 1" for n in only]
    assert fits(2, three) == iid[:2] and fits(3, three) == iid
    assert fits(4, three) == iid + skewed[:1]
    assert fits(6, three) == iid + skewed and fits(9, three) == iid + skewed + later
    assert len(fits(None, three)) == 12 and fits(0, three) == []
    stored.update(three[:2])  # of the comparison that is begun one run is to go
    assert fits(1, three) == iid[2:] and fits(4, three) == iid[2:] + skewed
    stored.clear()
    # Figure 4's comparison is of two runs that are Figure 3's, too
    both = recipes.runs("fed_kgf", "quick", seeds=(0,), split=("iid",))
    assert names(both[:2]) == ["Fed-KGF iid 0", "Fed-KGF without MU iid 0"]
    assert fits(2, both) == ["Fed-KGF iid 0", "FedAvg iid 0"]
    # what takes long is left out, and not half of it done
    monkeypatch.setattr(
        costs.Estimate,
        "of",
        lambda self, run: (3600.0 * (5 if run.label == "STC" else 1), "estimated"),
    )
    few = [r for r in three if r.label != "STC" or r.experiment.partition == "iid"]
    assert fits(4, few) == [*skewed[:2], "Fed-KGF main_class:0.8 1", "FedAvg main_class:0.8 1"]


def test_comparisons_are_done_one_after_the_other(tmp_path, monkeypatch):
    """Of nine hours Figure 3 would take twelve; Figures 8, 7 and 4 fit, in this order."""
    monkeypatch.setattr(costs.Estimate, "of", lambda self, run: (3600.0, "estimated"))
    began, clock, how = [], [0.0], {"seeds": (0,), "split": ("iid",), "train": 60, "test": 50}

    def do(store, run, *_):
        clock[0] += 3600
        began.append(run)
        history = fl.History("x", {}, [{"round": 1, "accuracy": 0.5}])
        store._read[store.path(run)] = history, []
        return history

    monkeypatch.setattr(reproduce, "do", do)
    monkeypatch.setattr(reproduce, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setitem(recipes.RECIPES, "fed_kgf_detection", {"paper": "none"})
    reproduce.reproduce("fed_kgf", "quick", tmp_path, 9, report=str, **how)
    first = ["Fed-KGF without sign", "Fed-KGF without alpha", "module uploading alone"]
    first += [f"Fed-KGF, {n} base kernels" for n in (2, 8, 16)] + ["Fed-KGF", "FedAvg"]
    assert [run.label for run in began] == [*first, "Fed-KGF without MU"]  # the last for itself


def test_a_search_is_in_the_plan_once(tmp_path):
    rows = "RepVGG CSLA", "RepVGG RepOpt"
    run, other = recipes.runs("fed_repopt_table1", "small", rows, (0,))[:2]
    assert run.searched == other.searched and run.searched.startswith("fed_repopt_small/search/")
    ready = costs.Estimate(lambda run: None, [], lambda run: 0.0)
    fresh, counted = costs.Estimate(lambda run: None, []), set()
    search = fresh.search(run) / 3600
    assert search > 0
    for of, more in ((run, search), (other, 0)):
        assert fresh.needed(of, counted) == pytest.approx(ready.needed(of, set()) + more)
    full = next(r for r in recipes.runs("fed_repopt", "full", device="cuda") if r.search)
    assert full.search["rounds"] == 240 and fresh.search(full) > 3600


def test_part_of_a_data_set_is_not_taken_for_the_whole(tmp_path, monkeypatch, capsys):
    """The packed subsets are enough for the scale small, not for the scale full."""
    there = {"voc": {"detection": (352, 348), "segmentation": (437, 445)}, "coco": (122, 106)}

    def counted(task, dataset):
        of = there.get(dataset.partition(":")[0])
        return of[task] if isinstance(of, dict) else of

    monkeypatch.setattr(reproduce.published, "there", counted)
    monkeypatch.setattr(sources, "available", lambda name: True)
    monkeypatch.setattr(reproduce, "fetch", lambda names: {})
    line = "voc:416 has 352 of 5717 images to train and 348 of 5823 to test here: the whole is 1999"
    with pytest.raises(DataError, match=line):
        reproduce.reproduce("rpn_detection", "full", tmp_path)
    text = reproduce.plan("rpn_detection", "full", tmp_path)
    assert f"missing: {line}" in text and set(state_of(text).values()) == {"no data"}
    assert "0 to train" not in reproduce.plan("rpn_detection", "full", tmp_path, train=40, test=20)
    assert not list(tmp_path.iterdir())
    for name in ("rpn_detection", "rpn_segmentation", "fed_kgf_detection"):
        assert not reproduce.in_part(recipes.runs(name, "small"))
        assert reproduce.in_part(recipes.runs(name, "full"))


def test_missing_data_is_said_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    sources.load.cache_clear()
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"cifar10: 170 MB from .*cifar100: 169 MB from "):
        reproduce.reproduce("fed_repopt_table1", "small", out=out)
    assert not out.exists()
    assert not main(["reproduce", "rpn", "--scale", "small", "--plan", "--out", str(out)])
    assert "missing: mnist: 12 MB from ossci-datasets" in capsys.readouterr().out
    text = reproduce.plan("rpn", "full", out)  # VOC in two sizes is one download
    [line] = [x for x in text.splitlines() if x.startswith("missing: voc")]
    assert line.startswith("missing: voc: 1999 MB from ")
    coco = recipes.runs("fed_kgf_detection", "full") + recipes.runs("fed_kgf_detection", "small")
    [(line, wait)] = reproduce.waiting(stores.Store(out), coco).items()
    assert line.startswith("coco: 19900 MB from ") and wait == {*coco}


def test_what_waits_for_data_fetched_by_hand_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    sources.load.cache_clear()
    small = "--scale full --rounds 1 --train 40 --test 20 --device cpu --no-progress --out".split()
    with pytest.raises(DataError, match="688 MB, from datashare.ed.ac.uk"):
        reproduce.reproduce("fed_gkt_table1_cinic10", "full", out=tmp_path / "out")
    block = recipes.RECIPES["fed_gkt_table1"]["full"]["runs"]
    monkeypatch.setitem(recipes.RECIPES["fed_gkt_table1"]["full"], "runs", block[-1:])
    for name in [n for n, r in recipes.RECIPES.items() if r["paper"] == "fed_gkt"]:
        if name not in ("fed_gkt_table1", "fed_gkt_table1_cinic10"):
            monkeypatch.delitem(recipes.RECIPES, name)
    monkeypatch.setitem(block[-1], "dataset", "digits")
    assert not main(["reproduce", "fed_gkt", *small, str(tmp_path / "out")])
    assert "left out, missing: cinic10: 688 MB from datashare" in capsys.readouterr().out
    assert list(stored(tmp_path / "out")) == ["centralised-small-digits-iid-0"]
    sources.load.cache_clear()


def test_a_recipe_of_which_some_rows_wait_for_data_does_the_others(tmp_path, monkeypatch, capsys):
    own_recipe(monkeypatch, "cinic10", "digits")
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    states = state_of(reproduce.plan("own", out=tmp_path / "out"))
    assert states == {"fedavg-cinic10-iid-0": "no data", "fedavg-digits-iid-0": "to do"}
    assert not main(["reproduce", "own", "--no-progress", "--out", str(tmp_path / "out")])
    assert "left out, missing: cinic10: 688 MB from datashare" in capsys.readouterr().out
    assert list(stored(tmp_path / "out")) == ["fedavg-digits-iid-0"]


def test_offline_only_what_needs_absent_data_is_left_out(tmp_path, monkeypatch, capsys):
    own_recipe(monkeypatch, "cifar10", "digits")
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("FEDLEARN_OFFLINE", "1")
    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    sources.load.cache_clear()
    plan = reproduce.plan("own", out=tmp_path / "out")
    assert plan.count("missing: cifar10: 170 MB from ") == 1
    assert state_of(plan)["fedavg-cifar10-iid-0"] == "no data"
    how = {"out": tmp_path / "out", "progress": False}
    reproduce.reproduce("own", **how)
    assert "left out, missing: cifar10: 170 MB from" in capsys.readouterr().out
    assert list(stored(tmp_path / "out")) == ["fedavg-digits-iid-0"]
    with pytest.raises(DataError, match="cifar10 .170 MB.* FEDLEARN_OFFLINE forbids"):
        reproduce.reproduce("own", **how)
    monkeypatch.delenv("FEDLEARN_OFFLINE")  # what does not fit into the hours is not fetched
    monkeypatch.setattr(
        reproduce, "fetch", lambda names: dict.fromkeys(names, fetched.extend(names))
    )
    fetched = []
    reproduce.reproduce("own", hours=0, **how)
    assert not fetched


def test_nothing_is_fetched_for_runs_that_cannot_begin(tmp_path, monkeypatch):
    """Searched on a set that can be fetched, trained on one that somebody has to bring."""
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(sources, "_fetch", lambda name: pytest.fail(f"{name} is fetched"))
    sources.load.cache_clear()
    run = recipes.runs("fed_repopt_table8", "full")[0]
    assert reproduce.needed(stores.Store(tmp_path), [run]) == ["tiny_imagenet", "fashion_mnist"]
    with pytest.raises(DataError, match="tiny_imagenet .248 MB, from cs231n"):
        reproduce.reproduce("fed_repopt_table8", "full", out=tmp_path / "out")


@pytest.mark.parametrize("more", [-1, 1])
def test_a_copy_of_another_size_is_refused_before_anything_runs(tmp_path, monkeypatch, more):
    known = sources.SETS["digits"]
    its = known._replace(train=known.train + more, site="x.org", megabytes=3, torchvision="X")
    monkeypatch.setitem(sources.SETS, "digits", its)
    monkeypatch.setattr(reproduce, "do", None)
    with pytest.raises(DataError, match=f"has 1347 .* {1347 + more} .* 3 MB from x.org"):
        reproduce.reproduce("rpn_table1", "quick", tmp_path, seeds=(0,))
    assert not [*tmp_path.iterdir()]


def test_what_moves_up_in_place_of_what_cannot_be_had_is_fetched_first(tmp_path, monkeypatch):
    own_recipe(monkeypatch, "mnist", "fashion_mnist")
    asked, begun = [], []
    monkeypatch.setattr(reproduce, "waiting", lambda *_: {})
    monkeypatch.setattr(reproduce.costs, "fitting", lambda runs, *_: runs[:1])
    failing = {"mnist": "it is broken"}

    def fetch(names):
        asked.append(names)
        return {n: failing[n] for n in names if n in failing}

    monkeypatch.setattr(reproduce, "fetch", fetch)
    monkeypatch.setattr(reproduce, "_do_all", lambda store, todo, *_: begun.extend(todo))
    reproduce.reproduce("own", out=tmp_path, hours=1)
    assert asked == [["mnist"], ["fashion_mnist"]]
    assert [r.experiment.dataset for r in begun] == ["fashion_mnist"]


def test_a_plan_says_which_copies_are_lossy(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "note", lambda name: "a copy" * (name == "cifar100"))
    monkeypatch.setattr(sources, "missing", lambda names: [])
    plan = reproduce.plan("fed_kgf_figure4", "small", tmp_path)
    assert [x for x in plan.splitlines() if x.startswith("note")] == [
        "note: cifar100 here is a copy"
    ]


def test_a_damaged_copy_stops_its_own_runs_only(tmp_path, monkeypatch, capsys):
    (tmp_path / "voc_subset.zip").write_bytes(b"nonsense")
    monkeypatch.setenv("FEDLEARN_DATA", str(tmp_path))
    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    its = recipes.runs("rpn_detection", "small") + recipes.runs("rpn_segmentation", "small")
    [(line, of)] = reproduce.in_part(its).items()
    assert line.startswith(f"{tmp_path}/voc_subset.zip is no voc that can be read") and of == {*its}
    assert f"missing: {line}" in reproduce.plan("rpn_detection", "small", tmp_path / "out")
    with pytest.raises(DataError, match="is no voc that can be read"):
        reproduce.reproduce("rpn_detection", "small", tmp_path / "out")


def test_a_plan_for_a_gpu_needs_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    command = ["reproduce", "rpn", "--device", "cuda", "--out", str(tmp_path)]
    assert main(command) == 2 and "no CUDA GPU" in capsys.readouterr().err
    assert not main([*command, "--plan"])
    assert "to do" in capsys.readouterr().out and not list(tmp_path.iterdir())


# ---- what is read --------------------------------------------------------------------------------


def test_results_are_read_from_files_and_folders(tmp_path, monkeypatch):
    assert not main(arguments(tmp_path))
    monkeypatch.setattr(fl.report, "data_path", lambda *parts: tmp_path.joinpath(*parts[1:]))
    runs = fl.results("fed_kgf_digits")
    assert [h.meta["label"] for h in runs] == ["Fed-KGF", "FedAvg"]
    single = tmp_path / "fed_kgf_digits.json"
    single.write_text(json.dumps([runs[1].to_dict()]))
    assert [h.method for h in fl.results("fed_kgf_digits")] == ["fedavg", "fed_kgf", "fedavg"]
    assert fl.results("nothing") == []


def test_committed_results_are_in_the_order_of_the_recipes():
    for paper in ("fed_kgf", "fed_gkt", "fed_mmd_fusion", "fed_repopt"):
        labels = [h.meta["label"] for h in fl.results(f"{paper}_digits")]
        known = {run.label: i for i, run in reversed([*enumerate(recipes.runs(paper, "quick"))])}
        first = list(dict.fromkeys(labels))
        assert first and first == sorted(first, key=known.__getitem__)
