"""The speed programs run; what they measure is not judged here."""

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def program(monkeypatch, tmp_path):
    """Run a program with these words -> what it wrote."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def call(name, *words, **replace):
        module = importlib.import_module(name)
        for key, value in replace.items():
            monkeypatch.setattr(module, key, value)
        out = tmp_path / "out.json"
        monkeypatch.setattr(sys, "argv", [name, *words, "--quick", "--out", str(out)])
        if hasattr(module, "main"):
            module.main()
        else:
            module.program(module.__doc__, module.measure, module.NETWORKS)
        return json.loads(out.read_text())

    return call


@pytest.mark.slow
def test_a_row_of_the_table_and_all_parts_but_whole_jobs(program, capsys):
    def broken(*args):
        raise RuntimeError("no such luck")

    peers = {"broken": ("json", broken), "missing": ("no_such_module", broken)}
    networks = {"small": ("digits_cnn", (1, 8, 8), {3: 10})}
    words = "table profile import message memory uneven".split()
    result = program("speed", *words, "--forms", NETWORKS=networks, PEERS=peers)
    (row,) = result["table"]["rows"]
    assert row["seconds"].keys() > {"bare loop, bf16", "stacked, bf16", "broken"}
    assert {"arithmetic", "memory", "overhead", "gflops"} == row["limits"].keys()
    assert row["seconds"]["broken"] == "RuntimeError: no such luck"
    assert result["table"]["absent"] == ["missing"]
    assert all(abs(sum(shares.values()) - 1) < 1e-9 for shares in result["profile"].values())
    assert result["import"]["import fedlearn"]["cpu"] > 0
    (stages,) = result["message"].values()
    assert 40_000 < stages.pop("bytes") < 42_000 and min(stages.values()) > 0
    (memory,) = result["memory"].values()
    assert memory["peak_MB"] >= memory["before_MB"] > 50
    assert result["uneven"][0]["smallest"] < result["uneven"][0]["largest"]
    again = program("speed", "table", "--missing", row_of=lambda *args: pytest.fail("again"))
    assert again["table"]["rows"] == [row] and again["profile"] == result["profile"]


@pytest.mark.parametrize(
    "name, case, reference",
    [
        ("steps", ("digits_cnn", (1, 8, 8), 20, 10), "FedAvg"),
        ("forms", ("digits_repvgg", (1, 8, 8), 20, 10, 1), "inf"),
    ],
)
def test_cost_of_a_step_and_of_a_round(name, case, reference, program):
    row = program(name, NETWORKS={"small": case})["rows"]["small"]
    assert row[reference] == 1.0 and min(row.values()) > 0


def test_the_readme_shows_what_was_measured():
    root = FOLDER.parents[1]
    measured = json.loads((root / "data" / "results" / "speed_cpu.json").read_text())
    readme = (root / "README.md").read_text()
    rows = [row for row in measured["table"]["rows"] if row["seconds"]]
    assert rows
    for row in rows:
        base = row["seconds"].pop("bare loop")
        times = row["seconds"].values()
        cells = [f"{s / base:.2f}" if isinstance(s, float) else "failed" for s in times]
        assert f"| {row['network']} | {row['clients']} | {' | '.join(cells)} |" in readme
