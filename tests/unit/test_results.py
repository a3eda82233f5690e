"""Stored runs: their files, their tables, and what is packed."""

import gzip
import json
import math

import pytest
from test_link import history as history_of

from fedlearn.data.images import data_path
from fedlearn.lab import recipes, results
from fedlearn.lab.cli import main


def history(accuracies=(0.2, None, 0.8), partition="Iid()"):
    """A run of two clients whose every round sends 1,000 bytes up, 3,000 down."""
    run = history_of(len(accuracies))
    for row, accuracy in zip(run.rows, accuracies, strict=True):
        row |= {"accuracy": accuracy, "bytes_up": 1000}
    task = {"dataset": "digits", "clients": 2, "partition": partition, "seed": 0}
    task |= {"network": "mlp", "train": 1347}
    run.meta |= {"label": "by hand", "task": task, "settings": {}}
    return run


def line_of(experiment, data):
    return {"hash": results.hash_of(experiment), "experiment": experiment, **data}


def test_a_row_a_run_and_a_row_a_round(tmp_path):
    history((0.1, 0.2, 0.3, 0.4, None, 0.6, 0.7)).to_json(tmp_path / "x.json")
    data = history(partition="Dirichlet(alpha=0.5, min_samples=1)").to_dict()
    split = {"partition": "dirichlet:0.5"}
    lines = [line_of(split, data), line_of(split | {"short": True}, data)]
    results.write(tmp_path / "y.jsonl.gz", lines)
    paths = (tmp_path / name for name in ("x.json", "y.jsonl.gz"))
    runs, rounds = results.tables(h for path in paths for h in results.load(path))
    assert list(runs["rounds"]) == [7, 3]
    assert list(rounds["run"]) == 7 * [0] + 3 * [1]
    first, second = (row for _, row in runs.iterrows())
    assert (first["last test"], first["last quarter"]) == (0.7, pytest.approx(0.65))
    assert (first["partition"], second["partition"]) == ("Iid()", "dirichlet:0.5")
    assert rounds["bytes_down"].sum() == 30_000


GOOD = history().to_dict()


@pytest.mark.parametrize(
    "data",
    [
        "{",
        [GOOD, 3],
        GOOD | {"hash": "0", "experiment": {}},
    ],
)
def test_a_file_without_runs_is_refused(data, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(ValueError, match="x.json"):
        results.load(path)
    (tmp_path / "x.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(ValueError, match="x.jsonl.gz"):
        results.load(tmp_path / "x.jsonl.gz")


def test_a_run_that_diverged_is_a_result(tmp_path):
    history((0.5, math.nan)).to_json(tmp_path / "b.json")
    assert len(results.tables(results.load(tmp_path / "b.json"))[0]) == 1


def test_the_stored_runs_are_all_read_and_are_the_same_when_packed_again(tmp_path):
    count = 0
    smallest = min(
        data_path().rglob(f"*{results.PACKED}"), key=lambda p: p.stat().st_size
    )
    for path in data_path().rglob(f"*{results.PACKED}"):
        lines = results.read(path)
        count += len(lines)
        assert len({line["hash"] for line in lines}) == len(lines)
        if path == smallest:
            results.write(tmp_path / path.name, lines)
            packed = (tmp_path / path.name).read_bytes()
            assert gzip.decompress(packed) == gzip.decompress(path.read_bytes())
    assert count >= 3627


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout without results, and a recipe of two runs; do(commit, ...) does them."""
    monkeypatch.setattr(
        results, "packed_file", lambda name: tmp_path / f"{name}.jsonl.gz"
    )
    results.packed.cache_clear()
    monkeypatch.chdir(tmp_path)
    block = {"partition": ["iid"], "rounds": 1, "train": 40, "test": 20, "clients": 2}
    block |= {"rows": {name: {"method": "fedavg"} for name in "ab"}}
    recipe = {"paper": "own", "shows": "", "quick": {"seeds": [0], "runs": [block]}}
    monkeypatch.setattr(recipes, "RECIPES", {"own_table": recipe})
    monkeypatch.setattr(recipes, "PAPERS", {"own": None})

    def do(commit="abcdef123456"):
        monkeypatch.setattr(results, "provenance", lambda: {"commit": commit})
        return recipes.reproduce("own", progress=False)

    return do


def test_a_run_is_packed_read_and_not_done_again(checkout, monkeypatch, capsys):
    assert len(checkout()) == 2
    hashes = {line["hash"] for line in results.recent("own_digits").values()}
    assert not main(["pack"])
    assert not results.recent("own_digits")
    assert {line["hash"] for line in results.packed("own_digits")} == hashes
    monkeypatch.setattr(recipes, "make", None)
    checkout()
    assert not main(["pack"])
    assert "Nothing to pack" in capsys.readouterr().out


@pytest.mark.parametrize("commit", ["abcdef123456-dirty", "not a checkout"])
def test_uncommitted_code_is_not_packed(checkout, capsys, commit):
    checkout(commit)
    assert main(["pack"]) == 2
    assert "uncommitted" in capsys.readouterr().err
    assert not results.packed("own_digits")
    assert len(results.recent("own_digits")) == 2


def test_ahead_takes_five_seeds_and_an_interval_without_zero():
    leads = [0.1, 0.2, 0.3, 0.2, 0.2]
    gap = results.paired(dict(enumerate(leads)), dict.fromkeys(range(9), 0.0))
    half = 2.776 * 0.0707107 / 5**0.5  # Student's t with four degrees of freedom
    assert (gap.low, gap.high) == pytest.approx((0.2 - half, 0.2 + half), rel=1e-3)
    assert str(gap) == "ahead by 0.2 [0.112, 0.288]"
    back = results.paired(dict.fromkeys(range(5), 0.0), dict(enumerate(leads)))
    assert str(back) == "behind by 0.2 [0.112, 0.288]"
    for values in (leads[:4], [*leads, -0.9], [], [*leads, math.nan]):
        gap = results.paired(dict(enumerate(values)), dict.fromkeys(range(9), 0.0))
        assert not gap.sure
        assert str(gap).startswith("higher in")
