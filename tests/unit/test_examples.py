"""The examples of docstrings are run, and every name of the front has one."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import fedlearn

ROOT = Path(fedlearn.__file__).parent
MODULES = [
    ".".join(("fedlearn", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    )
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name == "fedlearn.engines.flower":
        pytest.importorskip("flwr", reason="runs with make test-flower")
    failed, tried = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS
    )
    assert tried and not failed


@pytest.mark.parametrize("name", fedlearn.__all__)
def test_a_name_of_the_front_says_how_it_is_used(name):
    thing = getattr(fedlearn, name)
    text = inspect.getdoc(thing) or ""
    assert text and (inspect.ismodule(thing) or ">>> " in text)
    if inspect.isfunction(thing):
        assert "Parameters\n---" in text or not inspect.signature(thing).parameters
        assert "Returns\n---" in text
