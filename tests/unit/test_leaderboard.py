"""Result files read into groups, and the page made of them."""

import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import fedlearn as fl
from fedlearn import cli, evidence, leaderboard
from fedlearn.data.sources import data_path
from fedlearn.lab import grids, shootout, sortable

MINE = """
import fedlearn as fl


def slow(lr=0.01):
    return fl.Averaging("slow", optimizer=fl.SGD(lr))
"""


def history(accuracies=(0.2, None, 0.8), seed=0, up=1000, clients=2, label="by hand", **task):
    """A run whose every round sends so many bytes up, and thrice as many down."""
    rows = [
        {
            "round": t + 1,
            "accuracy": a,
            "loss": 1.0,
            "bytes_up": up,
            "bytes_down": 3 * up,
            "seconds": 4.0,
            "clients": list(range(clients)),
            "refused": {},
        }
        for t, a in enumerate(accuracies)
    ]
    its = {"dataset": "digits", "clients": clients, "partition": "Iid()", "network": "mlp"}
    meta = {"label": label, "task": its | {"seed": seed, "train": 1347} | task, "settings": {}}
    return fl.History("hand", meta, rows)


@pytest.fixture
def folder(tmp_path):
    """Two seeds of one method, and one of another."""
    for seed, last in ((0, 0.8), (1, 0.6)):
        history((0.2, None, last), seed).to_json(tmp_path / f"a-{seed}.json")
    history((0.5, 0.5, 0.5), label="rest <b>").to_json(tmp_path / "b.json")
    return tmp_path


def test_runs_that_differ_in_their_seed_are_a_row(folder):
    groups, left = evidence.read([folder])
    assert left == [] and [(g.label, g.seeds) for g in groups] == [
        ("by hand", [0, 1]),
        ("rest <b>", [0]),
    ]
    first, second = leaderboard.rows(groups)
    assert first["accuracy"] == fl.report.spread([0.8, 0.6]) and first["seeds"] == "2"
    assert (first["MB up"], first["MB down"], first["rounds"]) == ("0.003", "0.009", "3")
    # nine tenths of the best mean, 0.7; the second seed does not come so far
    assert first["target"] == second["target"] == "0.630"
    assert (
        first["MB down to it"] == "0.009 (1 of 2 runs)" and second["MB up to it"] == "not reached"
    )
    assert first["client seconds"] == "6.00"  # three rounds of 4 s, shared by two clients
    assert first["files"] == tuple(str(folder / f"a-{seed}.json") for seed in (0, 1))
    half = leaderboard.rows(groups, target=0.5)[1]
    assert half["MB up to it"] == "0.001" and half["target"] == "0.500"


def test_another_task_has_a_target_of_its_own(folder):
    history((0.1, 0.2, 0.3), clients=5).to_json(folder / "c.json")
    targets = [row["target"] for row in leaderboard.rows(evidence.read([folder])[0])]
    assert targets == ["0.630", "0.630", "0.270"]


def test_the_same_seed_twice_is_two_rows(folder):
    history((0.2, None, 0.9)).to_json(folder / "again.json")
    assert [g.seeds for g in evidence.read([folder])[0]] == [[0, 1], [0], [0]]
    named_twice = evidence.read([folder, folder / "b.json"])[0]
    assert len(named_twice) == 3


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(folder, capsys):
    out = folder / "page.html"
    assert not cli.main(["leaderboard", str(folder), "--out", str(out)])
    assert "2 rows of 3 runs" in capsys.readouterr().out
    text = out.read_text()
    assert not re.search(r"(src|href)=|url\(|@import|https?:", text)
    assert "rest &lt;b&gt;" in text and "rest <b>" not in text
    assert text.count("<tbody data-") == 2 and (sortable.HERE / "sortable.js").read_text() in text
    assert text.count("made in Python") == 2  # by hand: nobody knows the command


def test_one_table_for_claims_and_for_runs():
    claims = fl.lab.ledger("B.2", "c").content
    runs = leaderboard.shown("C.1", "c", leaderboard.rows(evidence.read([RESULTS])[0])).content
    for content in (claims, runs):
        assert 'class="fl fl-sortable' in content
        heads = content.split("<thead>")[1].split("</thead>")[0].count("<th ")
        first = content.split("<tbody")[1].split("</tr>")[0]
        assert first.count("<td") == heads
        for name in re.findall('<select name="([^"]+)"', content):
            assert all(f' data-{name}="' in b for b in re.findall("<tbody[^>]*>", content))


RESULTS = data_path("results")


def test_the_books_own_runs_are_all_there():
    groups, left = evidence.read([RESULTS])
    assert all("no result of fedlearn" in sentence for sentence in left)
    short = {p for p in RESULTS.rglob("*.json") if {*p.parts} & evidence.LEFT_OUT}
    files = {f for g in groups for f in g.files}
    assert len(files) + len(left) + len(short) == len([*RESULTS.rglob("*.json")])
    assert all((RESULTS.parent.parent / f).exists() for f in files)
    assert all(g.command for g in groups)


def test_a_recipes_command_states_the_run_that_is_stored():
    groups = [g for g in evidence.read([RESULTS])[0] if "--out again" in g.command]
    assert len(groups) > 50
    for g in groups[::7]:
        args = cli.parser().parse_args(shlex.split(g.command)[1:])
        found = fl.recipes.runs(
            args.recipe,
            args.scale or "quick",
            only=tuple(args.only),
            split=tuple(args.split),
            seeds=tuple(args.seeds),
        )
        by_name, files = {run.name: run for run in found}, {Path(f).stem for f in g.files}
        datasets = {by_name[f].experiment.dataset for f in files}
        # the same row in two tables of a paper is one run; a table may have two data sets
        assert len(datasets) == 1
        assert files == {n for n, r in by_name.items() if r.experiment.dataset in datasets}
        found = [by_name[f] for f in sorted(files)]
        assert not any(found[0].differences(h) for h in g.runs[:1])


@pytest.mark.parametrize("text", [e for *_, e in fl.partition.PARTS.values()])
def test_a_split_is_written_as_it_is_typed(text):
    assert evidence.split_text(repr(fl.partition.parse(text))) == text


@pytest.mark.parametrize(
    "shown",
    ["Dirichlet(alpha=0.5, min_samples=3)", "Given(3 clients, 9 samples)", "Table(source='x')"],
)
def test_a_split_that_cannot_be_typed_stays_as_it_is(shown):
    assert evidence.split_text(shown) == shown


def test_ones_own_method_joins(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    words = ["run", "mine.py:slow", "--lr", "0.02", "--rounds", "2", "--out", "results/mine.json"]
    monkeypatch.setattr("sys.argv", ["fedlearn", *words])
    assert not cli.main(words)
    assert not cli.main(["leaderboard", "results/", str(RESULTS), "--out", "both.html"])
    captured = capsys.readouterr()
    assert "left out: " in captured.err and "coders_cpu.json" in captured.err
    text = Path("both.html").read_text()
    assert "<td>mine.py:slow</td>" in text and "<td>Fed-KGF</td>" in text
    assert f"fedlearn {' '.join(words)}" in text and "results/mine.json" in text
    own = evidence.read(["results"])[0][0]
    assert (own.method, own.options) == ("mine.py:slow", {"lr": 0.02})


def test_a_command_can_be_typed_again_as_it_is(monkeypatch):
    words = ["reproduce", "fed_kgf", "--only", "Fed-KGF without MU"]
    monkeypatch.setattr("sys.argv", ["/bin/fedlearn", *words])
    assert shlex.split(fl.runs.provenance()["command"]) == ["fedlearn", *words]


GOOD = history().to_dict()
ROW = GOOD["rows"][0]


def stated(**changed):
    return GOOD | {"meta": GOOD["meta"] | changed}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("{", "x.json is no result of fedlearn: it is not JSON."),
        ([], "x.json is no result of fedlearn: it holds no run."),
        ({"settings": {}, "rows": {}}, "x.json is no result of fedlearn: it holds no run."),
        ([GOOD, 3], "x.json is no result of fedlearn: it holds no run."),
        (GOOD | {"meta": {}}, "of another version of fedlearn: no task"),
        (GOOD | {"rows": [{"accuracy": 1}]}, "of another version of fedlearn: no round"),
        (
            GOOD | {"rows": [{k: v for k, v in ROW.items() if k != "bytes_up"}]},
            "of another version of fedlearn: no bytes_up in a round",
        ),
        (GOOD | {"rows": [ROW | {"clients": 3}]}, "clients is 3 in a round"),
        (GOOD | {"rows": [ROW | {"round": 2}]}, "rounds 1 to 1 were expected"),
        (GOOD | {"rows": []}, "holds a run without an evaluated round"),
        (GOOD | {"rows": [ROW | {"round": 1.0}]}, "rounds 1 to 1 were expected, not [1.0]"),
        (GOOD | {"rows": [ROW | {"round": True}]}, "rounds 1 to 1 were expected, not [True]"),
        (GOOD | {"method": 5}, "method and meta are 5"),
        (GOOD | {"meta": None}, "meta has names and values, not None"),
        (stated(task=3), "task has names and values, not 3"),
        (stated(provenance=None), "provenance has names and values, not None"),
        (stated(provenance="x"), "provenance has names and values, not 'x'"),
        (stated(provenance={"command": 5}), "command is 5 in provenance"),
        (stated(label=5), "label is 5 in meta"),
        (stated(label=[5]), "label is [5] in meta"),
        (stated(options=[1, 2]), "options has names and values, not [1, 2]"),
        (stated(options="ab"), "options has names and values, not 'ab'"),
        (stated(options={"method": ["rpn"]}), "method is ['rpn'] in options"),
        (stated(settings={"epochs": 0}), "epochs must be a whole number of at least 1, not 0."),
        (stated(settings={"old": [1]}), "old is [1] in settings"),
        (history(partition=5).to_dict(), "partition is 5 in task"),
        (history(partition=None).to_dict(), "partition is None in task"),
        (history(partition=["iid"]).to_dict(), "partition is ['iid'] in task"),
        (history(dataset=["digits"]).to_dict(), "dataset is ['digits'] in task"),
        (history(network=["mlp"]).to_dict(), "network is ['mlp'] in task"),
        (history(accuracy=["mIoU"]).to_dict(), "accuracy is ['mIoU'] in task"),
        (history(train=0).to_dict(), "train is 0 in task"),
        (history(seed=[0]).to_dict(), "seed is [0] in task"),
        (stated(task=GOOD["meta"]["task"] | {"clients": "ten"}), "clients is 'ten' in task"),
        (stated(task=GOOD["meta"]["task"] | {"clients": [2]}), "clients is [2] in task"),
        (GOOD | {"rows": [ROW | {"bytes_up": 10**400}]}, "bytes_up is 1000"),
        (GOOD | {"rows": [ROW | {"bytes_up": -1}]}, "bytes_up is -1 in a round"),
        (GOOD | {"rows": [ROW | {"bytes_down": math.inf}]}, "bytes_down is inf in a round"),
        (GOOD | {"rows": [ROW | {"seconds": -1.0}]}, "seconds is -1.0 in a round"),
        (GOOD | {"rows": [ROW | {"accuracy": 7.5}]}, "accuracy is 7.5 in a round"),
        (GOOD | {"rows": [ROW | {"accuracy": True}]}, "accuracy is True in a round"),
        (GOOD | {"rows": [ROW | {"accuracy": math.nan}]}, "accuracy is nan in a round"),
        (GOOD | {"rows": [ROW | {"clients": ["a"]}]}, "clients is ['a'] in a round"),
    ],
)
def test_what_is_no_result_is_one_sentence(data, sentence, folder, capsys):
    path = folder / "x.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    assert cli.main(["leaderboard", str(path), "--out", str(folder / "p.html")]) == 2
    assert not (folder / "p.html").exists()
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    # among others it is left out
    assert not cli.main(["leaderboard", str(folder), "--out", str(folder / "p.html")])
    assert f"left out: {folder}/x.json" in capsys.readouterr().err


def test_a_run_whose_loss_diverged_is_a_result(folder):
    gone = GOOD | {"rows": [ROW | {"loss": math.nan}]}
    (folder / "x.json").write_text(json.dumps(gone))
    assert len(evidence.read([folder])[0]) == 3


def test_what_is_no_file_is_left_out_of_a_folder(folder):
    (folder / "dir.json").mkdir()
    (folder / "broken.json").symlink_to("nowhere.json")
    (folder / "circle.json").symlink_to("circle.json")
    groups, left = evidence.read(folder)
    names = ("broken", "circle", "dir")
    assert len(groups) == 2
    assert left == [f"{folder}/{n}.json is no result of fedlearn: it is no file." for n in names]


def test_one_path_is_one_place(folder):
    for place in (folder, str(folder)):
        assert [p.name for p, _ in evidence.files(place)] == ["a-0.json", "a-1.json", "b.json"]
        assert leaderboard.table("C.1", "One.", place).content.count("<tbody") == 2
        assert leaderboard.write(place, folder / "p.html")[:2] == (2, 3)
    with pytest.raises(ValueError, match="a path or a list of paths, not 5"):
        evidence.read(5)


@pytest.mark.parametrize("given", ["b.json", "", "link.json"])
def test_the_page_never_replaces_a_result_that_is_read(given, folder, capsys):
    path, before = folder / "b.json", (folder / "b.json").read_text()
    (folder / "link.json").symlink_to("b.json")
    assert cli.main(["leaderboard", str(folder / given), "--out", str(path)]) == 2
    error = capsys.readouterr().err
    assert "is one of the results that are read: name another file." in error
    assert error.count("\n") == 1 and path.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "There is no file or folder nowhere."),
        (["empty"], "There is no result in the folder empty: no .json file."),
        (["other"], "There is no run in these files. other/a.json is no result"),
        (["good", "--target", "2"], "A target is an accuracy above 0 and at most 1, not 2.0."),
        (["good", "--out", "empty"], "empty is a folder; name a file."),
        ([], "the following arguments are required: FILE"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "other", "good"):
        Path(name).mkdir()
    Path("other/a.json").write_text("{}")
    history().to_json("good/a.json")
    assert cli.main(["leaderboard", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    assert not Path("leaderboard.html").exists()


def test_a_grid_unrolls_to_the_bytes_that_it_holds():
    stored = json.loads(data_path("grids", "rpn.json").read_text())["columns"]
    groups = [g for g in evidence.grids() if "data/grids/rpn.json" in g.files]
    assert not any(g.timed for g in groups)
    total = sum(h.bytes_up.sum() / h.meta["task"]["clients"] for g in groups for h in g.runs)
    assert total == pytest.approx(np.sum(stored["up"]))
    g = next(g for g in groups if g.label.startswith("rpn"))
    (e,) = cli.experiments(cli.parser().parse_args(shlex.split(g.command)[1:]))
    assert (e.method, e.clients, e.partition) == (g.method, g.task["clients"], g.split)
    assert {**e.options, "lr": e.lr} == g.options and e.rounds == len(g.runs[0])


def test_the_contests_runs_are_rows_with_their_commands():
    whole = [r for r in grids.stored("shootout")[0] if not r["short"]]
    tasks = {its["dataset"]: name for name, its in shootout.spec()["tasks"].items()}
    splits = {text: name for name, text in shootout.spec()["splits"].items()}
    groups = evidence.contests()
    assert sum(len(g.runs) for g in groups) == sum(bool(r["accuracy"]) for r in whole)
    for g in groups:
        (e,) = cli.experiments(cli.parser().parse_args(shlex.split(g.command)[1:]))
        assert (e.method, e.clients, e.partition) == (g.method, g.task["clients"], g.split)
        assert e.rounds == len(g.runs[0]) and e.settings.batch_size
        where = tasks[e.dataset], splits[e.partition], e.clients, g.label.split(" (")[0]
        its = [r for r in whole if (r["task"], r["split"], r["clients"], r["method"]) == where]
        there = [r for r in its if r["accuracy"]]
        assert list(g.finals) == [r["accuracy"][-1] for r in there]
        assert g.runs[0].bytes_up[0] == pytest.approx(there[0]["up"] * there[0]["clients"])
        assert (f"({len(its) - len(there)} more diverged)" in g.label) == (len(its) > len(there))
    assert {g.task["network"] for g in groups if g.method == "fed_gkt"} >= {"digits_edge"}


def test_a_table_without_places_has_the_books_runs_and_the_contest():
    book = len(evidence.read([RESULTS])[0]) + len(evidence.contests())
    assert leaderboard.table("C.1", "All.").content.count("<tbody") == book
