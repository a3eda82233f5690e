"""The page of stored runs."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn import cli, leaderboard, results
from fedlearn.book import datatable, grids, shootout
from fedlearn.data.sources import data_path

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
    tables = results.tables(folder)
    first, second = leaderboard.rows(*tables)
    assert (first["method"], second["method"]) == ("by hand", "rest <b>")
    assert first["accuracy"] == fl.report.spread([0.8, 0.6]) and first["seeds"] == "2"
    assert (first["MB up"], first["MB down"], first["rounds"]) == ("0.003", "0.009", "3")
    # nine tenths of the best mean, 0.7; the second seed does not come so far
    assert first["target"] == second["target"] == "0.630"
    assert (
        first["MB down to it"] == "0.009 (1 of 2 runs)" and second["MB up to it"] == "not reached"
    )
    assert first["client seconds"] == "6.00"  # three rounds of 4 s, shared by two clients
    assert first["files"] == tuple(str(folder / f"a-{seed}.json") for seed in (0, 1))
    half = leaderboard.rows(*tables, target=0.5)[1]
    assert half["MB up to it"] == "0.001" and half["target"] == "0.500"


def test_another_task_has_a_target_of_its_own(folder):
    history((0.1, 0.2, 0.3), clients=5).to_json(folder / "c.json")
    targets = [row["target"] for row in leaderboard.rows(*results.tables(folder))]
    assert targets == ["0.630", "0.630", "0.270"]


def test_a_round_without_clients_takes_its_seconds():
    [row] = leaderboard.rows(*results.tables([history(clients=0)]))
    assert row["client seconds"] == "12.00"


def test_the_same_seed_twice_is_two_rows(folder):
    history((0.2, None, 0.9)).to_json(folder / "again.json")
    for places in (folder, [folder, folder / "b.json"]):  # one file is named twice
        made = leaderboard.rows(*results.tables(places))
        assert sorted(row["seeds"] for row in made) == ["1", "1", "2"]


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(folder, capsys):
    out = folder / "page.html"
    assert not cli.main(["leaderboard", str(folder), "--out", str(out)])
    assert "2 rows of 3 runs" in capsys.readouterr().out
    text = out.read_text()
    bundle, module = datatable.bundle()
    own = text.replace(bundle, "")
    assert bundle in text and f"await {module}" in text and len(bundle) < 1e6
    for part in (own, bundle):
        assert not re.search(r"(src|href)=|url\(|@import|https?:", part)
    assert "rest &lt;b&gt;" in text and "rest <b>" not in text
    assert own.count("<tr><td>") == 2 and own.count("made in Python") == 2  # no command is known


def test_columns_are_sorted_by_their_numbers():
    heads, units = ("method", "MB"), {"MB": "all"}
    made = [["b", "1,234.5"], ["a", "0.2 ± 0.1"], ["c", "not reached"]]
    content = datatable.table("C.1", "c", "rows", heads, made, units, "x")
    orders = re.findall(r'data-order="([^"]+)">([^<]+)<', content)
    assert orders == [("1234.5", "1,234.5"), ("0.2", "0.2 ± 0.1"), ("1e+99", "not reached")]
    for row in content.split("<tbody>")[1].split("</tbody>")[0].split("</tr>")[:-1]:
        assert row.count("<td") == len(heads)
    assert "data-order" not in datatable.table("C.1", "c", "rows", heads, made[:1], units, "x")


RESULTS = data_path("results")


def test_the_books_own_runs_are_all_there_with_their_commands():
    left = []
    runs, rounds = results.tables(left=left)
    assert len(left) == 7 and all("no result of" in sentence for sentence in left)
    packed = [x for p in RESULTS.glob("*.gz") for x in results.read(p) if results.is_whole(x)]
    assert runs["hash"].count() == len(packed) > 950 and len(runs) > len(packed)
    assert len(rounds) == runs["rounds"].sum()
    made = leaderboard.rows(runs, rounds)
    assert all((RESULTS.parent.parent / f).exists() for row in made for f in row["files"])
    assert all(row["command"] for row in made) and sum(int(r["seeds"]) for r in made) == len(runs)
    typed = [r for r in made if "fed_kgf_small" in r["files"][0]]
    for row in typed[::9]:
        args = cli.parse(shlex.split(row["command"])[1:]).keywords["recipe"]
        choice = {k: tuple(getattr(args, k)) for k in ("only", "split")}
        choice["seeds"] = sum(args.seeds, ())
        keys = {run.key for run in fl.recipes.runs(args.recipe, args.scale or "quick", **choice)}
        its = runs[(runs["label"] == row["method"]) & (runs["partition"] == row["split"])]
        assert keys & {*its["hash"]} and len(keys) >= int(row["seeds"])


def test_ones_own_method_joins(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    words = ["run", "mine.py:slow", "--lr", "0.02", "--rounds", "2", "--out", "results/mine.json"]
    monkeypatch.setattr("sys.argv", ["/bin/fedlearn", *words])
    assert not cli.main(words)
    Path("results/other.json").write_text("{}")
    assert not cli.main(["leaderboard", "results/", "--out", "both.html"])
    assert "left out: results/other.json" in capsys.readouterr().err
    text = Path("both.html").read_text()
    assert "<td>mine.py:slow</td>" in text and "results/mine.json" in text
    assert f"fedlearn {' '.join(words)}" in text  # to be typed again
    own = results.tables("results")[0].iloc[0]
    assert own["method"] == "mine.py:slow" and '"lr": 0.02' in own["options"]


GOOD = history().to_dict()
ROW = GOOD["rows"][0]


def stated(**changed):
    return GOOD | {"meta": GOOD["meta"] | changed}


@pytest.mark.parametrize(
    "data",
    [
        "{",
        [],
        [GOOD, 3],
        GOOD | {"meta": None},
        GOOD | {"rows": [{k: v for k, v in ROW.items() if k != "bytes_up"}]},
        GOOD | {"rows": [ROW | {"clients": 3}]},
        GOOD | {"rows": [ROW | {"round": 2}]},
        GOOD | {"rows": []},
        GOOD | {"rows": [ROW | {"bytes_up": "many"}]},
        GOOD | {"rows": [ROW | {"accuracy": "good"}]},
        stated(task=3),
        stated(provenance="x"),
        stated(task=GOOD["meta"]["task"] | {"clients": "ten"}),
        GOOD | {"hash": "0", "experiment": {}},
    ],
)
def test_what_is_no_result_is_one_sentence_and_left_out_of_a_folder(data, folder):
    path = folder / "x.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(ValueError, match="x.json") as error:
        leaderboard.write(path, folder / "p.html")
    assert "\n" not in str(error.value) and not (folder / "p.html").exists()
    with pytest.raises(ValueError, match="x.json"):  # it was named, beside a good one
        leaderboard.write([folder / "b.json", path], folder / "p.html")
    rows, runs, left = leaderboard.write(folder, folder / "p.html")
    assert (rows, runs) == (2, 3) and [str(path) in sentence for sentence in left] == [True]


def test_what_is_no_file_is_left_out_of_a_folder(folder):
    (folder / "dir.json").mkdir()
    (folder / "broken.json").symlink_to("nowhere.json")
    (folder / "circle.json").symlink_to("circle.json")
    diverged = GOOD | {"rows": [ROW | {"loss": math.nan}]}  # is a result
    (folder / "nan.json").write_text(json.dumps(diverged))
    left = []
    assert len(results.tables(folder, left)[0]) == 4 and len(left) == 3
    assert all("no result" in sentence for sentence in left)


@pytest.mark.parametrize("given", ["b.json", "", "link.json"])
def test_the_page_never_replaces_a_result_that_is_read(given, folder):
    path, before = folder / "b.json", (folder / "b.json").read_text()
    (folder / "link.json").symlink_to("b.json")
    with pytest.raises(ValueError, match="results that are read"):
        leaderboard.write(folder / given, path)
    assert path.read_text() == before


def test_the_contests_runs_are_rows_with_their_commands():
    whole = [r for r in grids.stored("shootout")[0] if not r["short"]]
    tasks = {its["dataset"]: name for name, its in shootout.spec()["tasks"].items()}
    splits = {text: name for name, text in shootout.spec()["splits"].items()}
    runs, rounds = shootout.tables()
    assert len(runs) == sum(bool(r["accuracy"]) for r in whole)
    for row in leaderboard.rows(runs, rounds)[::7]:
        (e,) = cli.experiments(cli.parse(shlex.split(row["command"])[1:]).keywords["experiment"])
        where = tasks[e.dataset], splits[e.partition], e.clients, row["method"].split(" (")[0]
        its = [r for r in whole if (r["task"], r["split"], r["clients"], r["method"]) == where]
        there = [r for r in its if r["accuracy"]]
        assert row["accuracy"] == fl.report.spread([r["accuracy"][-1] for r in there])
        up = sum(r["up"] for r in there) / len(there) * e.clients * e.rounds
        assert float(row["MB up"].replace(",", "")) == pytest.approx(up / 1e6, abs=1e-3)
        lost = len(its) - len(there)
        assert (f"({lost} more diverged)" in row["method"]) == (lost > 0)


@pytest.mark.parametrize(
    ("arguments", "noun"),
    [
        (["nowhere"], "nowhere"),
        (["empty"], "folder empty"),
        (["b.json", "--target", "2"], "target"),
        (["b.json", "--out", "empty"], "empty is a folder"),
        ([], "files"),
    ],
)
def test_bad_input_is_one_sentence(arguments, noun, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    Path("empty").mkdir()
    assert cli.main(["leaderboard", *arguments]) == 2
    error = capsys.readouterr().err
    assert noun in error and error.count("\n") == 1
    assert not Path("leaderboard.html").exists()
