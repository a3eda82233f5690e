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
RAYS = (
    "The current node timed out during startup. This could happen because some of the raylet "
    "failed to startup or the GCS has become overloaded."
)
CHAPTER = json.loads((ROOT / "book/together/flower.ipynb").read_text(encoding="utf-8"))
SOURCES = ["".join(c["source"]) for c in CHAPTER["cells"] if "StartError" in "".join(c["source"])]


@pytest.fixture
def broken(monkeypatch):
    """Ray as on a machine where it says that it cannot start; the starts that were tried."""
    tried = []

    def init(**how):
        tried.append(how)
        raise Exception(RAYS)

    monkeypatch.setattr(ray, "init", init)
    return tried


@pytest.fixture
def hanging(monkeypatch):
    """Ray as on a machine where it answers nothing for longer than the limit: the event that it
    waits for, and one that says that it was shut down after all."""
    wakes, closed = threading.Event(), threading.Event()
    monkeypatch.setattr(ray, "init", lambda **how: wakes.wait())
    monkeypatch.setattr(ray, "shutdown", closed.set)
    monkeypatch.setattr(flower, "LIMIT", 0.5)
    yield wakes, closed
    wakes.set()


def test_ray_that_cannot_start_is_one_sentence(broken):
    with pytest.raises(fl.errors.StartError) as caught:
        fl.run("fedavg", small(), 1, threads=1, engine="flower-sim")
    expected = f"{SENTENCE}: The current node timed out during startup; all other engines"
    assert str(caught.value) == f"{expected} run without it."
    assert len(broken) == flower.STARTS


def test_ray_that_hangs_is_given_up(hanging):
    wakes, closed = hanging
    began = time.monotonic()
    with pytest.raises(fl.errors.StartError, match=f"^{SENTENCE} within 0.5 seconds; [^.]*\\.$"):
        flower.start_ray(1)
    assert time.monotonic() - began < 60 and not closed.is_set()
    wakes.set()  # it comes up when nobody waits any more
    assert closed.wait(60)


def test_the_command_line_says_that_sentence(broken, capsys, tmp_path):
    small_run = ["--clients", "2", "--train", "60", "--test", "60", "--rounds", "1"]
    out = ["--out", str(tmp_path / "h.json")]
    assert cli.main(["run", "fedavg", *small_run, *out, "--engine", "flower-sim"]) == 2
    assert capsys.readouterr().err.startswith(f"fedlearn: {SENTENCE}: The current node timed out")


def values():
    """What the chapter's cells that start Ray need."""

    def on_both(method, engine):
        return fl.run(method, small(), 1, engine=engine)

    return {"fl": fl, "here": "1.41.0", "scale": "quick", "on_both": on_both}


@pytest.mark.parametrize("source", SOURCES, ids=["engine", "by hand"])
def test_the_chapter_then_shows_the_recorded_run(source, broken, capsys):
    exec(source, own := values())
    assert own["here"] is None
    said = capsys.readouterr().out
    assert said.startswith(SENTENCE) and said.endswith("shows the recorded run instead.\n")


@pytest.mark.parametrize("source", SOURCES, ids=["engine", "by hand"])
def test_any_other_error_fails_the_chapter(source, monkeypatch):
    def start_ray(cpus):
        raise ConnectionError("A worker process of the simulation has died.")

    monkeypatch.setattr(flower, "start_ray", start_ray)
    with pytest.raises(ConnectionError, match="has died"):
        exec(source, values())
