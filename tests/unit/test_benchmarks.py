"""The benchmark programs run; what they measure is not judged here."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
RUNS = (
    "speed.py table --only plain",
    "speed.py growth import memory",
    "costs.py steps",
    "costs.py forms",
    "coders.py table",
)


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])


@pytest.mark.parametrize("name", ["coders", "costs", "speed"])
def test_a_program_is_up_to_date_with_the_package(name):
    runpy.run_path(str(FOLDER / f"{name}.py"))


@pytest.mark.slow
@pytest.mark.parametrize("words", RUNS)
def test_a_program_writes_what_it_measures(words, monkeypatch, tmp_path):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--quick", "--out", str(out)])
    runpy.run_path(str(FOLDER / sys.argv[0]), run_name="__main__")
    assert out.stat().st_size > 100
