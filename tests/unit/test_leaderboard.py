"""The page of stored runs."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest

import fedlearn as fl
from fedlearn import cli, leaderboard, results
from fedlearn.book import grids, shootout, sortable
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
    assert not re.search(r"(src|href)=|url\(|@import|https?:", text)
    assert "rest &lt;b&gt;" in text and "rest <b>" not in text
    assert text.count("<tbody data-") == 2 and (sortable.HERE / "sortable.js").read_text() in text
    assert text.count("made in Python") == 2  # by hand: nobody knows the command


def test_one_table_for_claims_and_for_runs():
    claims = fl.book.ledger("B.2", "c").content
    runs = leaderboard.shown("C.1", "c", leaderboard.rows(*results.tables())).content
    for content in (claims, runs):
        assert 'class="fl fl-sortable' in content
        heads = content.split("<thead>")[1].split("</thead>")[0].count("<th ")
        first = content.split("<tbody")[1].split("</tr>")[0]
        assert first.count("<td") == heads
        for name in re.findall('<select name="([^"]+)"', content):
            assert all(f' data-{name}="' in b for b in re.findall("<tbody[^>]*>", content))


RESULTS = data_path("results")


def test_the_books_own_runs_are_all_there():
    left = []
    runs, rounds = results.tables(left=left)
    assert len(left) == 8 and all("no result of" in sentence for sentence in left)
    packed = [x for p in RESULTS.glob("*.gz") for x in results.read(p) if results.is_whole(x)]
    assert runs["hash"].count() == len(packed) > 950 and len(runs) > len(packed)
    assert len(rounds) == runs["rounds"].sum()
    made = leaderboard.rows(runs, rounds)
    assert all((RESULTS.parent.parent / f).exists() for row in made for f in row["files"])
    assert all(row["command"] for row in made) and sum(int(r["seeds"]) for r in made) == len(runs)


def test_a_recipes_command_states_the_run_that_is_stored():
    runs, rounds = results.tables([RESULTS / f"fed_kgf_{s}.jsonl.gz" for s in ("digits", "small")])
    made = [r for r in leaderboard.rows(runs, rounds) if "reproduce" in r["command"]]
    assert len(made) > 50
    for row in made[::7]:
        args = cli.parser().parse_args(shlex.split(row["command"])[1:])
        found = fl.recipes.runs(
            args.recipe,
            args.scale or "quick",
            only=tuple(args.only),
            split=tuple(args.split),
            seeds=tuple(args.seeds),
        )
        its = runs[(runs["label"] == row["method"]) & (runs["partition"] == row["split"])]
        assert {run.key for run in found} & {*its["hash"]} and len(found) >= int(row["seeds"])


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
    own = results.tables("results")[0].iloc[0]
    assert own["method"] == "mine.py:slow" and '"lr": 0.02' in own["options"]


def test_a_command_can_be_typed_again_as_it_is(monkeypatch):
    words = ["reproduce", "fed_kgf", "--only", "Fed-KGF without MU"]
    monkeypatch.setattr("sys.argv", ["/bin/fedlearn", *words])
    assert shlex.split(fl.runs.provenance()["command"]) == ["fedlearn", *words]


GOOD = history().to_dict()
ROW = GOOD["rows"][0]


def stated(**changed):
    return GOOD | {"meta": GOOD["meta"] | changed}


@pytest.mark.parametrize(
    "data",
    [
        "{",
        [],
        {"settings": {}, "rows": {}},
        [GOOD, 3],
        GOOD | {"meta": {}},
        GOOD | {"meta": None},
        GOOD | {"rows": [{"accuracy": 1}]},
        GOOD | {"rows": [{k: v for k, v in ROW.items() if k != "bytes_up"}]},
        GOOD | {"rows": [ROW | {"clients": 3}]},
        GOOD | {"rows": [ROW | {"round": 2}]},
        GOOD | {"rows": []},
        GOOD | {"rows": [ROW | {"bytes_up": "many"}]},
        GOOD | {"rows": [ROW | {"accuracy": "good"}]},
        stated(task=3),
        stated(provenance="x"),
        stated(options=[1, 2]),
        stated(task=GOOD["meta"]["task"] | {"clients": "ten"}),
        GOOD | {"hash": "0", "experiment": {}},
    ],
)
def test_what_is_no_result_is_one_sentence(data, folder, capsys):
    path = folder / "x.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    assert cli.main(["leaderboard", str(path), "--out", str(folder / "p.html")]) == 2
    assert not (folder / "p.html").exists()
    error = capsys.readouterr().err
    assert str(path) in error and error.count("\n") == 1
    # among others it is left out
    assert not cli.main(["leaderboard", str(folder), "--out", str(folder / "p.html")])
    assert f"left out: {path}" in capsys.readouterr().err


def test_a_run_whose_loss_diverged_is_a_result(folder):
    gone = GOOD | {"rows": [ROW | {"loss": math.nan}]}
    (folder / "x.json").write_text(json.dumps(gone))
    assert len(results.tables(folder)[0]) == 4


NOT = ("broken", "circle", "dir")


def test_what_is_no_file_is_left_out_of_a_folder(folder):
    (folder / "dir.json").mkdir()
    (folder / "broken.json").symlink_to("nowhere.json")
    (folder / "circle.json").symlink_to("circle.json")
    left = []
    assert len(results.tables(folder, left)[0]) == 3
    assert all(f"{n}.json is no result" in x for n, x in zip(NOT, left, strict=True))


def test_one_path_is_one_place(folder):
    for place in (folder, str(folder)):
        assert [p.name for p, _ in results.files(place)] == ["a-0.json", "a-1.json", "b.json"]
        assert leaderboard.table("C.1", "One.", place).content.count("<tbody") == 2
        assert leaderboard.write(place, folder / "p.html")[:2] == (2, 3)


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
        (["empty"], "There is no result in the folder empty: no .json, no .jsonl.gz."),
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


def test_the_contests_runs_are_rows_with_their_commands():
    whole = [r for r in grids.stored("shootout")[0] if not r["short"]]
    tasks = {its["dataset"]: name for name, its in shootout.spec()["tasks"].items()}
    splits = {text: name for name, text in shootout.spec()["splits"].items()}
    runs, rounds = shootout.tables()
    assert len(runs) == sum(bool(r["accuracy"]) for r in whole)
    for row in leaderboard.rows(runs, rounds):
        (e,) = cli.experiments(cli.parser().parse_args(shlex.split(row["command"])[1:]))
        assert (str(e.clients), e.partition) == (row["clients"], row["split"])
        assert str(e.rounds) == row["rounds"] and e.settings.batch_size
        where = tasks[e.dataset], splits[e.partition], e.clients, row["method"].split(" (")[0]
        its = [r for r in whole if (r["task"], r["split"], r["clients"], r["method"]) == where]
        there = [r for r in its if r["accuracy"]]
        assert row["accuracy"] == fl.report.spread([r["accuracy"][-1] for r in there])
        up = sum(r["up"] for r in there) / len(there) * e.clients * e.rounds
        assert float(row["MB up"].replace(",", "")) == pytest.approx(up / 1e6, abs=1e-3)
        lost = len(its) - len(there)
        assert (f"({lost} more diverged)" in row["method"]) == (lost > 0)
    assert "digits_edge" in set(runs.loc[runs["method"] == "fed_gkt", "network"])


def test_a_table_without_places_has_the_books_runs_and_the_contest():
    both = [leaderboard.rows(*tables) for tables in (results.tables(), shootout.tables())]
    assert leaderboard.table("C.1", "All.").content.count("<tbody") == sum(map(len, both))
