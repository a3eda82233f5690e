"""``make test`` takes its parts in turn, and says at the end what failed. What an environment lacks
is said in one sentence."""

import os
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = """
include Makefile
good: ; @echo SLOW is $(SLOW)
bad: ; @exit 3
"""
LOCKED = '[[package]]\nname = "torch"\nversion = "2.15.0"\n'


@pytest.mark.skipif(os.name == "nt", reason="on Windows the book is built without make")
@pytest.mark.parametrize(
    "parts, end", [("good good", "passed"), ("bad good bad", "bad bad")]
)
def test_a_part_that_fails_does_not_stop_the_next(tmp_path, parts, end):
    file = tmp_path / "parts.mk"
    file.write_text(PARTS)
    make = f"make -f {file}"  # also of the parts
    words = [
        *make.split(),
        "test",
        f"PARTS={parts}",
        "ENV=true",
        "SLOW=1",
        f"MAKE={make}",
    ]
    env = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert bool(done.returncode) == (end != "passed"), done.stderr
    assert done.stdout.splitlines()[-1].endswith(f" {end} ====")
    assert done.stdout.count("SLOW is 1") == parts.count("good")


@pytest.fixture
def program(monkeypatch):
    for name in ("CPU", "TORCH_INDEX", "TORCH_WHEEL"):
        monkeypatch.delenv(name, raising=False)
    return runpy.run_path(str(ROOT / "book" / "_environment.py"))


def test_pytorch_for_the_cpu_comes_from_where_the_user_says(
    program, tmp_path, monkeypatch
):
    torch = program["torch_for_cpu"]
    assert torch(tmp_path, LOCKED) == ""
    monkeypatch.setenv("CPU", "1")
    with pytest.raises(SystemExit, match="TORCH_INDEX"):
        torch(tmp_path, LOCKED)
    monkeypatch.setenv("TORCH_INDEX", "https://example.org")
    words = "--index-url https://example.org torch==2.15.0"
    assert torch(tmp_path, LOCKED) == words
    monkeypatch.delenv("TORCH_INDEX")
    assert torch(tmp_path, LOCKED) == words


def test_an_old_python_is_refused(program, tmp_path, monkeypatch):
    check = program["check_python"]
    monkeypatch.setitem(check.__globals__, "OLDEST", (9, 9))
    with pytest.raises(SystemExit, match="is older"):
        check(tmp_path / "environment")
    assert not any(tmp_path.iterdir())


def test_what_was_installed_in_part_is_installed_again(program, tmp_path, monkeypatch):
    answers = ["not in sync", "the disk is full", "", ""]
    calls = []

    def trouble(*words, **_):
        calls.append(words)
        return answers.pop(0)

    install = program["install"]
    monkeypatch.setitem(install.__globals__, "trouble", trouble)
    assert install(tmp_path, tmp_path, "dev") == "the disk is full"
    assert not install(tmp_path, tmp_path, "dev")
    assert not install(tmp_path, tmp_path, "dev")
    assert ["--check" in words for words in calls] == [True, False, False, True]
    assert ["--reinstall" in words for words in calls] == [False, False, True, False]
