"""The benchmark program runs; what it measures is not judged here."""

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def speed():
    spec = importlib.util.spec_from_file_location("speed", FOLDER / "speed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(FOLDER))


def test_profile_writes_shares_that_sum_to_one(speed, monkeypatch, tmp_path, capsys):
    out = tmp_path / "speed.json"
    out.write_text('{"job": "measured before"}')
    monkeypatch.setattr(sys, "argv", ["speed.py", "profile", "--quick", "--out", str(out)])
    speed.main()
    result = json.loads(out.read_text())
    assert result["job"] == "measured before" and result["settings"]["repeats"] == 2
    assert len(result["profile"]) == 4
    for shares in result["profile"].values():
        assert abs(sum(shares.values()) - 1) < 1e-9 and shares["training"] > 0


def test_a_row_of_the_table(speed, monkeypatch, tmp_path, capsys):
    def broken(*args):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(speed, "NETWORKS", {"small": ("digits_cnn", (1, 8, 8), {3: 10})})
    monkeypatch.setattr(
        speed, "PEERS", {"broken": ("json", broken), "missing": ("no_such_module", broken)}
    )
    monkeypatch.setattr(speed.sources, "CACHE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["speed.py", "table", "--quick"])
    speed.main()
    printed = capsys.readouterr().out
    assert "bare loop 1.00" in printed and "broken failed: RuntimeError: no such luck" in printed
    assert "not installed: missing" in printed


JOB = """
import sys, time, pathlib
x, ready, looked = bytearray(50_000_000), *map(pathlib.Path, sys.argv[1:])
ready.touch()
while not looked.exists(): time.sleep(0.01)
"""


def test_a_job_is_watched(speed, monkeypatch, tmp_path):
    """The job ends when it has been looked at, however long that takes."""
    ready, looked, looks = tmp_path / "ready", tmp_path / "looked", []

    def sleep(seconds):
        time.sleep(seconds)
        looks.extend([1] * ready.exists())
        if len(looks) > 1:  # a whole look lies between them
            looked.touch()

    clock = SimpleNamespace(perf_counter=time.perf_counter, sleep=sleep)
    monkeypatch.setattr(speed, "time", clock)
    seconds, megabytes = speed.watch([sys.executable, "-c", JOB, str(ready), str(looked)])
    assert 0 < seconds and 50 < megabytes < 500
    with pytest.raises(RuntimeError, match="exit status 3"):
        speed.watch([sys.executable, "-c", "raise SystemExit(3)"])


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


@pytest.mark.parametrize(
    "name, case, reference",
    [
        ("steps", ("digits_cnn", (1, 8, 8), 20, 10), "FedAvg"),
        ("forms", ("digits_repvgg", (1, 8, 8), 20, 10, 1), "inf"),
    ],
)
def test_cost_of_a_step_and_of_a_round(name, case, reference, speed, monkeypatch, tmp_path):
    program, out = load(name), tmp_path / "out.json"
    monkeypatch.setattr(program, "NETWORKS", {"small": case})
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--out", str(out)])
    program.main()
    row = json.loads(out.read_text())["rows"]["small"]
    assert (
        row[reference] == 1.0
        and set(getattr(program, "METHODS", None) or program.FORMS) <= row.keys()
    )
    assert min(row.values()) > 0


def test_memory_of_feature_maps():
    store = load("store")
    row = store.measure(64, 4, 0.0)  # in this process, so the peak is that of everything before
    assert row["bytes_up"] > 64 * 16_384 * 4 and row["peak_MB"] >= row["before_MB"] > 0


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
