"""A Ray that does not start, or hangs: one sentence within the limit, and the chapter shows the
recorded run. No process is started."""

import json
import threading
import time

import pytest
import ray

import fedlearn as fl
from fedlearn import cli, flower

from .conftest import ROOT, small

SENTENCE = "Ray, which carries Flower's simulation, did not start"
CHAPTER = json.loads((ROOT / "book/together/flower.ipynb").read_text(encoding="utf-8"))
SOURCES = ["".join(c["source"]) for c in CHAPTER["cells"] if "StartError" in "".join(c["source"])]


@pytest.fixture
def broken(monkeypatch):
    """Ray as on a machine where it says that it cannot start; the starts that were tried."""
    tried = []

    def init(**how):
        tried.append(how)
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    return tried


def test_ray_that_cannot_start_is_one_sentence(broken, capsys, tmp_path):
    small_run = "run fedavg --clients 2 --train 60 --test 60 --rounds 1 --engine flower-sim --out"
    assert cli.main([*small_run.split(), str(tmp_path / "h.json")]) == 2
    error = capsys.readouterr().err
    assert f"fedlearn: {SENTENCE}: The current node timed out during startup; all" in error
    assert len(broken) == flower.STARTS


def test_ray_that_hangs_is_given_up(monkeypatch):
    wakes, closed = threading.Event(), threading.Event()
    monkeypatch.setattr(ray, "init", lambda **how: wakes.wait())
    monkeypatch.setattr(ray, "shutdown", closed.set)
    monkeypatch.setattr(flower, "LIMIT", 0.5)
    began = time.monotonic()
    with pytest.raises(fl.errors.StartError, match=f"^{SENTENCE}: .*0.5 seconds; [^.]*\\.$"):
        flower.start_ray(1)
    assert time.monotonic() - began < 60 and not closed.is_set()
    wakes.set()  # it comes up when nobody waits any more
    assert closed.wait(60)


@pytest.mark.parametrize("source", SOURCES, ids=["engine", "by hand"])
def test_the_chapter_then_shows_the_recorded_run(source, broken, capsys):
    names = {"fl": fl, "here": "1.41.0", "scale": "quick"}
    exec(source, names | {"on_both": lambda method, on: fl.run(method, small(), 1, engine=on)})
    assert capsys.readouterr().out.endswith("shows the recorded run instead.\n")
