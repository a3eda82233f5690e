"""Hostile messages to every method, both ways, and kills: a little of tests/benchmarks/fuzz.py."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fedlearn as fl

FILE = Path(__file__).resolve().parents[1] / "benchmarks" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz():
    spec = importlib.util.spec_from_file_location("fuzz", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", fl.methods.METHODS)
def test_altered_messages_are_refused_or_harmless(fuzz, name):
    found = fuzz.messages(name, 20 if name in fuzz.SLOW else 160)
    verdicts = {verdict for _, verdict in found}
    assert verdicts == {"accepted", "refused"} or name in fuzz.SLOW
    assert all(verdict == "accepted" for kind, verdict in found if kind.endswith(" nothing"))


@pytest.mark.parametrize("name", ["fedavg", "rpn", "fed_kgf", "dgc", "fed_gkt"])
def test_four_kills_change_nothing(name):
    command = [sys.executable, str(FILE), "kills", "--count", "4", "--methods", name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["all"]
    assert found["kills"] == 4 and found["finished"] > 0
