"""``make gpu`` on a machine without a GPU: it says so, and runs on the CPU what would run there."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from fedlearn.recipes import RECIPES

FILE = Path(__file__).resolve().parents[1] / "gpu" / "run.py"


@pytest.fixture
def gpu():
    spec = importlib.util.spec_from_file_location("gpu_run", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(gpu, tmp_path):
    args = gpu.argparse.Namespace(device="cpu", out=tmp_path, minutes=1, quick=True)
    return gpu.Gpu(args)


def test_without_a_gpu_one_sentence(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "out")]) == 1
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and "needs a CUDA GPU" in output.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_its_steps_on_the_cpu(gpu, tmp_path):
    words = ["--device", "cpu", "--quick", "--out", str(tmp_path), "--steps"]
    assert gpu.main([*words, "tests", "chapters", "speed"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {name: its["status"] for name, its in summary.items()} == dict.fromkeys(
        ("tests", "chapter appendix/speed", "speed"), "passed"
    )
    rows = json.loads((tmp_path / "speed_cuda.json").read_text())["table"]["rows"]
    (row,) = [row for row in rows if row["seconds"]]
    assert {"stacked, bf16", "bare loop, channels last"} < row["seconds"].keys()


@pytest.mark.parametrize(
    "code, status, last",
    [
        ("print(1)", "passed", "1"),
        ("1 / 0", "failed", "ZeroDivisionError: division by zero"),
        ("print('x'); exit(3)", "left out", "x"),
        ("print('no data set of it'); exit(2)", "left out", "no data set of it"),
        ("exit(2)", "failed", ""),
    ],
)
def test_what_came_of_a_step_is_kept_and_what_passed_is_not_repeated(folder, code, status, last):
    assert folder.step("a/b c", "-c", code)["status"] == status
    stored = json.loads(folder.path.read_text())["a/b c"]
    assert (stored["status"], stored["last"]) == (status, last)
    again = folder.step("a/b c", "-c", "print('again')")
    assert (again["last"] == "again") == (status == "failed")


def test_a_command_is_interrupted_at_the_end_of_its_time(folder):
    code = "import time\nprint('begun', flush=True)\ntime.sleep(1e6)"
    assert "end of its time" in folder.step("x", "-c", code, minutes=0.02)["status"]


@pytest.mark.parametrize("whole", [True, False])
def test_recipes_whose_data_are_absent_do_not_keep_the_others(gpu, folder, monkeypatch, whole):
    names, asked = [name for name, recipe in RECIPES.items() if "full" in recipe], []

    def step(self, name, *command, **how):
        asked.append(name)
        return {"status": "passed" if whole else "left out"}

    monkeypatch.setattr(gpu.Gpu, "step", step)
    folder.recipes()
    assert asked == (["recipes"] if whole else ["recipes", *(f"recipes {n}" for n in names)])


def test_a_chapter_takes_parameters_that_it_has(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def write(*cells):
        tags = [{"tags": ["parameters"]}] + [{}] * len(cells)
        pairs = zip(["scale = 'x'", *cells], tags, strict=False)
        cells = [{"cell_type": "code", "source": [c], "metadata": m} for c, m in pairs]
        (tmp_path / "c.ipynb").write_text(json.dumps({"cells": cells}))
        return str(tmp_path / "c.ipynb")

    assert not gpu.main(["--device", "cpu", "--run", write("print(scale, 'device' in globals())")])
    assert capsys.readouterr().out == "quick False\n"
    assert gpu.main(["--run", write("import no_such_package")]) == gpu.MISSING
    assert capsys.readouterr().out == "no_such_package is not installed\n"
    with pytest.raises(ZeroDivisionError):
        gpu.main(["--run", write("1 / 0")])
