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
    out = tmp_path / "speed.json"
    old = {"network": "large", "clients": 5, "seconds": {"bare loop": 1.0}}
    out.write_text(json.dumps({"table": {"rows": [old]}}))
    monkeypatch.setattr(sys, "argv", ["speed.py", "table", "--quick", "--forms", "--out", str(out)])
    speed.main()
    printed = capsys.readouterr().out
    row, kept = json.loads(out.read_text())["table"]["rows"]
    assert kept == old and row["seconds"].keys() > {"bare loop, bf16", "stacked, bf16", "broken"}
    assert {"arithmetic", "memory", "overhead", "gflops"} == row["limits"].keys()
    assert all(s > 0 for s in row["seconds"].values() if isinstance(s, float))
    monkeypatch.setattr(speed, "row_of", lambda *args: pytest.fail("measured again"))
    monkeypatch.setattr(sys, "argv", ["speed.py", "table", "--missing", "--out", str(out)])
    speed.main()
    assert json.loads(out.read_text())["table"]["rows"] == [row, kept]
    assert "bare loop 1.00" in printed and "broken failed: RuntimeError: no such luck" in printed
    assert "not installed: missing" in printed


def test_import_message_memory_and_uneven(speed, monkeypatch, tmp_path, capsys):
    few = "python, nothing else", "import fedlearn"
    monkeypatch.setattr(speed.cost, "STARTS", {name: speed.cost.STARTS[name] for name in few})
    out = tmp_path / "speed.json"
    parts = ["import", "message", "memory", "uneven"]
    monkeypatch.setattr(sys, "argv", ["speed.py", *parts, "--quick", "--out", str(out)])
    speed.main()
    result = json.loads(out.read_text())
    bare, ours = (result["import"][name] for name in few)
    assert min(bare["cpu"], ours["cpu"], ours["seconds"]) > 0
    (stages,) = result["message"].values()
    assert 40_000 < stages.pop("bytes") < 42_000 and min(stages.values()) > 0
    assert {"memcpy", "checksum", "unpack, decode, average"} < stages.keys()
    (held,) = result["memory"].values()
    assert held["a_round"] == 10 and held["message_MB"] == pytest.approx(0.041, abs=1e-3)
    assert held["peak_MB"] >= held["before_MB"] > 50
    (apart,) = result["uneven"]
    assert apart["smallest"] < apart["largest"] and min(apart["bound"], apart["stacked"]) > 0


def test_what_cannot_be_measured_is_said(speed, monkeypatch, tmp_path, capsys):
    out = tmp_path / "speed.json"
    broken = {"no such": [sys.executable, "-c", "raise SystemExit('not this one')"]}
    monkeypatch.setattr(speed.cost, "STARTS", broken)
    monkeypatch.setattr(sys, "argv", ["speed.py", "import", "--quick", "--out", str(out)])
    speed.main()
    result, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert result["import"] == {} and "failed: not this one" in printed


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
    monkeypatch.setattr(sys.modules["common"], "time", clock)
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
    assert any(row["seconds"] for row in measured["table"]["rows"])
    for row in measured["table"]["rows"]:
        if not row["seconds"]:  # not measured yet
            continue
        base = row["seconds"]["bare loop"]
        cells = [
            f"{s / base:.2f}" if isinstance(s, float) else "failed"
            for name, s in row["seconds"].items()
            if name != "bare loop"
        ]
        assert f"| {row['network']} | {row['clients']} | {' | '.join(cells)} |" in readme
