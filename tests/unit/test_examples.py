"""The examples of docstrings are run."""

import doctest
import importlib
from pathlib import Path

import pytest

import fedlearn

ROOT = Path(fedlearn.__file__).parent
MODULES = [
    ".".join(("fedlearn", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name == "fedlearn.flower":
        pytest.importorskip("flwr", reason="runs with make test-flower")
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried and not failed
