"""``make gpu`` on a machine without a GPU: it says so, and runs on the CPU what would run there."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).resolve().parents[1] / "gpu" / "run.py"


@pytest.fixture
def gpu():
    spec = importlib.util.spec_from_file_location("gpu_run", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_without_a_gpu_or_a_package_one_sentence(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for lacks, noun in ((), "CUDA"), (("sklearn",), "sklearn"):
        monkeypatch.setattr(gpu, "absent", lambda names, lacks=lacks: lacks)
        with pytest.raises(SystemExit, match=noun):
            gpu.main(["--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_steps_on_the_cpu_and_not_twice(gpu, tmp_path, capsys):
    options = ["--device", "cpu", "--quick", "--out", str(tmp_path), "--steps", "tests", "chapters"]
    assert gpu.main([*options, "speed"]) == 0
    assert {r["status"] for r in summary(tmp_path).values()} == {"passed"}
    rows = json.loads((tmp_path / "speed_cuda.json").read_text())["table"]["rows"]
    (row,) = [row for row in rows if row["seconds"]]
    assert {"stacked, bf16", "bare loop, channels last"} < row["seconds"].keys()
    capsys.readouterr()
    assert gpu.main(options) == 0 and capsys.readouterr().out.count("there already") == 2


def test_a_failing_step_does_not_stop_the_next(gpu, tmp_path, monkeypatch):
    code = {"tests": "1 / 0", "chapters": "import absent", "speed": "import time; time.sleep(99)"}
    for step, text in code.items():
        late = 0.01 if step == "speed" else None
        monkeypatch.setattr(
            gpu.Steps, step, lambda self, s=step, t=text, m=late: self.run(s, s, "-c", t, minutes=m)
        )
    options = ["--device", "cpu", "--out", str(tmp_path), "--steps", *code]
    assert gpu.main(options) == 1
    states = {name: r["status"] for name, r in summary(tmp_path).items()}
    late = "stopped at the end of its time"
    assert states == {"tests": "failed", "chapters": "left out", "speed": late}
    assert "ZeroDivisionError" in summary(tmp_path)["tests"]["last"]


def test_recipes_in_order_until_the_time_is_over(gpu, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        gpu.Steps,
        "run",
        lambda self, name, *options, minutes, folder: asked.append((name, minutes)),
    )
    options = ["--device", "cpu", "--out", str(tmp_path), "--steps", "recipes", "--minutes"]
    assert gpu.main([*options, "0"]) == 0 and not asked
    assert gpu.main([*options, "6"]) == 0
    names = [name for name, _ in asked]
    assert "recipe rpn_table1" in names and all(0 < minutes <= 6 for _, minutes in asked)


def test_a_chapter_takes_parameters_that_it_has(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "chapter", None)
    cells = (
        ["scale, seed = 'full', 1"],
        ["from dataclasses import dataclass\n", "print(scale, seed)"],
    )
    tags = {"tags": ["parameters"]}, {}
    cells = [
        {"cell_type": "code", "source": source, "metadata": metadata}
        for source, metadata in zip(cells, tags, strict=True)
    ]
    path = tmp_path / "c.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    gpu.main(["--chapter", str(path), "--device", "cpu"])
    assert capsys.readouterr().out == "quick 1\n"
