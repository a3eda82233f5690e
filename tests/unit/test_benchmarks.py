"""The benchmark programs run; what they measure is not judged here."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def load():
    def load(name):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    before = list(sys.path)
    yield load
    sys.path[:] = before


@pytest.mark.slow
def test_a_row_of_the_table(load, monkeypatch, tmp_path, capsys):
    def broken(*args):
        raise RuntimeError("no such luck")

    speed = load("speed")
    monkeypatch.setattr(speed, "NETWORKS", {"small": ("digits_cnn", (1, 8, 8), {3: 10})})
    peers = {"broken": ("json", broken), "missing": ("no_such_module", broken)}
    monkeypatch.setattr(speed, "PEERS", peers)
    monkeypatch.setattr(speed.cost, "limits", lambda task, peak: {})
    out = tmp_path / "speed.json"
    old = {"network": "large", "clients": 5, "seconds": {"bare loop": 1.0}}
    out.write_text(json.dumps({"job": "measured before", "table": {"rows": [old]}}))
    monkeypatch.setattr(sys, "argv", ["speed.py", "table", "--quick", "--out", str(out)])
    speed.main()
    result, printed = json.loads(out.read_text()), capsys.readouterr().out
    row, kept = result["table"]["rows"]
    assert kept == old and result["job"] == "measured before"
    assert row["seconds"].keys() >= {"bare loop", "sequential", "stacked", "auto", "broken"}
    assert "broken failed: RuntimeError" in printed and "not installed: missing" in printed
    monkeypatch.setattr(speed, "row_of", lambda *args: pytest.fail("measured again"))
    monkeypatch.setattr(sys, "argv", ["speed.py", "table", "--missing", "--out", str(out)])
    speed.main()
    assert json.loads(out.read_text())["table"]["rows"] == [row, kept]


@pytest.mark.slow
def test_all_other_parts(load, monkeypatch, tmp_path):
    speed, out = load("speed"), tmp_path / "speed.json"
    few = "python, nothing else", "import fedlearn"
    monkeypatch.setattr(speed.cost, "STARTS", {name: speed.cost.STARTS[name] for name in few})
    parts = ["profile", "import", "message", "memory", "uneven"]
    monkeypatch.setattr(sys, "argv", ["speed.py", *parts, "--quick", "--out", str(out)])
    speed.main()
    result = json.loads(out.read_text())
    assert all(abs(sum(shares.values()) - 1) < 1e-9 for shares in result["profile"].values())
    assert result["import"].keys() == set(few)
    (stages,), (held,), (apart,) = (
        result["message"].values(),
        result["memory"].values(),
        result["uneven"],
    )
    assert 40_000 < stages["bytes"] < 42_000 and held["peak_MB"] >= held["before_MB"] > 50
    assert min(apart["bound"], apart["stacked"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("part, reference", [("steps", "FedAvg"), ("forms", "inf")])
def test_cost_of_a_step_and_of_a_round(load, part, reference, tmp_path):
    load("costs").main([part, "--quick", "--out", str(tmp_path / "out.json")])
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"].values()
    assert row[reference] == 1.0 and min(row.values()) > 0


def test_the_readme_shows_what_was_measured():
    root = FOLDER.parents[1]
    measured = json.loads((root / "data" / "results" / "speed_cpu.json").read_text())
    readme = (root / "README.md").read_text()
    for row in measured["table"]["rows"]:
        base = row["seconds"]["bare loop"]
        cells = [
            f"{s / base:.2f}" if isinstance(s, float) else "failed"
            for name, s in row["seconds"].items()
            if name != "bare loop"
        ]
        assert f"| {row['network']} | {row['clients']} | {' | '.join(cells)} |" in readme
