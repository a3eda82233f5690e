"""``make gpu`` on a machine without a GPU: it says so, and runs on the CPU what would run there."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from fedlearn.recipes import RECIPES

FOLDER = Path(__file__).resolve().parents[1] / "gpu"


def load(name):
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def gpu():
    return load("run")


def test_without_a_gpu_one_sentence(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "needs a CUDA GPU" in said.err and not said.out
    monkeypatch.setattr(gpu, "absent", lambda names: [n for n in names if n == "sklearn"])
    assert gpu.main(["--out", str(tmp_path / "out")]) == 1
    assert "needs scikit-learn, which" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_its_steps_on_the_cpu_and_not_twice(gpu, tmp_path, capsys):
    words = ["--device", "cpu", "--quick", "--out", str(tmp_path), "--steps"]
    assert gpu.main([*words, "tests", "chapters", "speed"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    steps = {"tests", "chapter appendix/speed", "speed"}
    assert {what for what, r in summary.items() if r.get("status") == "passed"} == steps
    assert " passed" in (tmp_path / "tests.log").read_text()
    assert "limited by" in (tmp_path / "chapters.log").read_text()
    rows = json.loads((tmp_path / "speed_cuda.json").read_text())["table"]["rows"]
    (row,) = [row for row in rows if row["seconds"]]
    assert {"stacked, bf16", "bare loop, channels last"} < row["seconds"].keys()
    capsys.readouterr()
    assert gpu.main([*words, "tests", "chapters"]) == 0
    assert capsys.readouterr().out.count("there already") == 2
    assert not list(tmp_path.glob("*.part"))


def test_a_failing_step_does_not_stop_the_next(gpu, tmp_path, monkeypatch, capsys):
    def broken(self):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(gpu.Gpu, "tests", broken)
    monkeypatch.setattr(gpu.Gpu, "chapters", lambda self: self.step("chapters", "c", "-c", "1 / 0"))
    monkeypatch.setattr(gpu.Gpu, "speed", lambda self: self.step("speed", "s", "-c", "exit(3)"))
    words = ["--device", "cpu", "--out", str(tmp_path), "--steps", "tests", "chapters", "speed"]
    assert gpu.main(words) == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["tests"] == {"status": "failed", "last": "RuntimeError: no such luck"}
    assert summary["chapters"]["last"] == "ZeroDivisionError: division by zero"
    assert summary["speed"]["status"] == "left out"


def test_a_command_is_interrupted_at_the_end_of_its_time(gpu, tmp_path):
    args = gpu.argparse.Namespace(device="cpu", out=tmp_path, minutes=1, quick=True)
    code = "import time\nprint('begun', flush=True)\ntime.sleep(1e6)"
    status, _, last = gpu.Gpu(args).python("x", "x", "-c", code, minutes=0.05)
    assert status == "stopped at the end of its time"
    assert last in ("KeyboardInterrupt", "begun", "")  # as far as it came


@pytest.mark.parametrize("whole", [True, False])
def test_recipes_whose_data_are_absent_do_not_keep_the_others(gpu, tmp_path, monkeypatch, whole):
    asked, there = [], ["all", *(name for name, recipe in RECIPES.items() if "full" in recipe)]

    def python(self, what, log, *command, minutes, folder):
        recipe = "all" if command[3] == "--scale" else command[3]
        asked.append((recipe, minutes))
        if whole or recipe == there[-1]:
            return 0, 1.0, f"{recipe}: accuracy 0.9"
        return 2, 1.0, f"fedlearn: The data set of {recipe} is not in data/cache"

    monkeypatch.setattr(gpu.Gpu, "python", python)
    words = ["--device", "cpu", "--out", str(tmp_path), "--minutes", "6", "--steps", "recipes"]
    assert gpu.main(words) == 0
    assert [recipe for recipe, _ in asked] == (there[:1] if whole else there)
    assert all(minutes <= 6 for _, minutes in asked)
    summary = json.loads((tmp_path / "summary.json").read_text())
    states = {what: r["status"] for what, r in summary.items() if what != "machine"}
    done = f"recipes {there[0 if whole else -1]}"
    assert states.pop(done) == "passed" and set(states.values()) <= {"left out"}


# ---- chapters as scripts


def notebook(path, *cells, first="x = 1\ny = 'a'"):
    cells = [{"source": [first], "metadata": {"tags": ["parameters"]}}] + [
        {"source": c.splitlines(True), "metadata": {}} for c in cells
    ]
    path.write_text(json.dumps({"cells": [c | {"cell_type": "code"} for c in cells]}))
    return str(path)


def test_a_chapter_takes_parameters_that_it_has(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = "from dataclasses import dataclass\n@dataclass\nclass P:\n    v: int = x\nP()"
    path = notebook(tmp_path / "c.ipynb", code, "x, y")
    assert load("chapter").main(path, "x=5", "z=7") in (None, 0)
    out = capsys.readouterr().out
    assert "P(v=5)" in out and "(5, 'a')" in out and "'z'" not in out


def test_a_chapter_without_a_package_says_which(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    chapter = load("chapter")
    path = notebook(tmp_path / "c.ipynb", "import no_such_package")
    assert chapter.main(path) == chapter.MISSING
    assert capsys.readouterr().out.endswith("left out: no_such_package is not installed\n")
    with pytest.raises(ZeroDivisionError):
        chapter.main(notebook(tmp_path / "c.ipynb", "1 / 0"))


def test_stand_ins_where_a_page_is_missing(monkeypatch, capsys):
    chapter, found = load("chapter"), {}
    monkeypatch.setattr(chapter.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(chapter.sys, "modules", found)
    assert chapter.stand_ins() == ["IPython", "ipywidgets"]
    found["IPython.display"].display("a table")
    explore = found["fedlearn.book.widgets"].explore
    drawn = explore(lambda a, b: (a, b), a=[1, 2], b=[3, 4], start={"b": 4})
    assert drawn == (1, 4) and capsys.readouterr().out == "a table\n"
