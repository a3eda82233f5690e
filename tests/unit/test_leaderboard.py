"""The leaderboard: a row for the runs that differ in their seed alone, with the command."""

import re
import shlex
from pathlib import Path

import pytest
from test_results import history

from fedlearn.book import leaderboard
from fedlearn.data.sources import data_path
from fedlearn.lab import cli, recipes, results


@pytest.fixture
def folder(tmp_path):
    """Two seeds of one method, and one of another."""
    for seed, last in ((0, 0.8), (1, 0.6)):
        history((0.2, None, last), seed).to_json(tmp_path / f"a-{seed}.json")
    history((0.5, 0.5, 0.5), label="rest <b>").to_json(tmp_path / "b.json")
    return tmp_path


def test_runs_that_differ_in_their_seed_are_a_row(folder):
    history((0.1, 0.2, 0.3), clients=1).to_json(folder / "c.json")
    tables = results.tables(folder)
    first, second, other = leaderboard.rows(*tables)
    assert (first["method"], second["method"]) == ("by hand", "rest <b>")
    assert first["last test"] == first["last quarter"] == results.spread([0.8, 0.6])
    assert (first["seeds"], first["images"], first["rounds"]) == ("2", "1347", "3")
    assert (first["MB up"], first["MB down"]) == ("0.003", "0.009")
    # nine tenths of the best mean on the same task and network; one seed does not come so far
    assert [row["target"] for row in (first, second, other)] == ["0.630", "0.630", "0.270"]
    assert first["MB down to it"] == "0.009 (1 of 2 runs)"
    assert second["MB up to it"] == "not reached"
    assert first["client seconds"] == "6.00"  # three rounds of 4 s, shared by two clients
    assert leaderboard.rows(*tables, target=0.5)[1]["MB up to it"] == "0.001"
    history((0.9, 0.9, 0.9), network="cnn").to_json(folder / "d.json")
    history((0.9, 0.9, 0.9)).to_json(folder / "x_bytes.json")  # its accuracy says nothing
    targets = [row["target"] for row in leaderboard.rows(*results.tables(folder))]
    assert targets == ["0.630", "0.630", "0.270", "0.810"]
    history((0.2, None, 0.9)).to_json(folder / "again.json")
    text = leaderboard.table("C.1", "c", folder).content
    assert "rest &lt;b&gt;" in text and "rest <b>" not in text
    again = leaderboard.rows(*results.tables(folder))
    assert sorted(row["seeds"] for row in again) == [*"11112"], "a seed twice: two rows"


def test_the_books_own_runs_are_all_there_with_their_commands():
    runs, rounds = results.tables()
    made = leaderboard.rows(runs, rounds)
    assert all((data_path().parent / f).exists() for row in made for f in row["files"])
    assert all(row["command"] for row in made)
    assert 900 < sum(int(r["seeds"]) for r in made) < len(runs)
    old = "at commit [0-9a-f]{12}(-dirty)?: fedlearn reproduce"  # no recipe makes them any more
    stale = [row for row in made if re.match(old, row["command"])]
    folders = runs["file"].map(lambda file: Path(file).name.removesuffix(results.PACKED))
    keys = zip(folders, runs["hash"], strict=True)
    lost = sum(bool(key[1]) and key not in leaderboard.recipe_commands() for key in keys)
    assert 0 < lost == sum(int(row["seeds"]) for row in stale)
    fresh = [r for r in made if "_small" in r["files"][0] and r not in stale][::3]
    assert len(fresh) > 3
    for row in fresh:
        _, args = cli.parse(shlex.split(row["command"])[1:])
        choice = {"only": args.only, "split": args.partition, "seeds": args.seed}
        keys = {run.key[1] for run in recipes.runs(args.recipe, args.scale, **choice)}
        label = row["method"].removesuffix(f" {leaderboard.TESTED}")
        same = runs[runs["hash"].isin(keys)]
        assert {*same["label"]} == {label} and len(keys) >= int(row["seeds"])
        assert (label != row["method"]) == ({*same["chosen on"]} == {"test"})
