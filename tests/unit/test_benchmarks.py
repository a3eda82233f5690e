"""The benchmark programs run; what they measure is not judged here."""

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNS = (
    "speed.py table --only plain --most 10",
    *(f"speed.py {part}" for part in ("growth", "import", "memory")),
    *("costs.py steps", "costs.py forms"),
)


def smallest(value):
    """The smallest number anywhere in what a program wrote."""
    if isinstance(value, dict | list):
        return min(
            (smallest(v) for v in getattr(value, "values", lambda: value)()), default=1
        )
    return value if isinstance(value, float) else 1


@pytest.mark.parametrize("name", ["coders", "costs", "speed"])
def test_a_program_is_up_to_date_with_the_package(name, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests/benchmarks"), *sys.path])
    assert runpy.run_path(str(ROOT / "tests/benchmarks" / f"{name}.py"))["main"]


@pytest.mark.slow
@pytest.mark.parametrize("words", RUNS)
def test_a_program_writes_what_it_measures(words, monkeypatch, tmp_path):
    program, part, *options = words.split()
    out = tmp_path / "out.json"
    out.write_text(
        json.dumps({"job": "measured before"} if program == "speed.py" else {})
    )
    monkeypatch.setattr(
        sys, "argv", [program, part, *options, "--quick", "--out", str(out)]
    )
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests/benchmarks"), *sys.path])
    runpy.run_path(str(ROOT / "tests/benchmarks" / program), run_name="__main__")
    result = json.loads(out.read_text())
    assert program != "speed.py" or result["job"] == "measured before"
    assert smallest(result["rows" if program == "costs.py" else part]) > 0
