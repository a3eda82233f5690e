"""``make gpu`` on a machine without a GPU: it says so, and runs on the CPU what would run there."""

import json
import runpy
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).resolve().parents[1] / "gpu" / "run.py"


@pytest.fixture
def gpu():
    return runpy.run_path(str(PROGRAM))


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_without_a_gpu_one_sentence(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="CUDA"):
        gpu["main"](["--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_failing_step_does_not_stop_the_next(gpu, tmp_path, monkeypatch):
    code = {
        "tests": "1 / 0",
        "chapters": "import absent",
        "speed": "import time; time.sleep(99)",
    }
    for step, minutes in zip(code, (None, None, 0.01), strict=True):
        how = {"minutes": minutes}
        run = lambda self, s=step, how=how: self.run(s, s, "-c", code[s], **how)  # noqa: E731
        monkeypatch.setattr(gpu["Steps"], step, run)
    assert (
        gpu["main"](["--device", "cpu", "--out", str(tmp_path), "--steps", *code]) == 1
    )
    states = {name: r["status"] for name, r in summary(tmp_path).items()}
    late = "stopped at the end of its time"
    assert states == {"tests": "failed", "chapters": "left out", "speed": late}
    assert "ZeroDivisionError" in summary(tmp_path)["tests"]["last"]
