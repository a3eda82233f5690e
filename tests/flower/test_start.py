"""A Ray that does not start, or hangs: one sentence within the limit. No process is started."""

import threading
import time
from unittest.mock import Mock

import pytest
import ray

import fedlearn as fl
from fedlearn.engines import flower
from fedlearn.lab import cli

SENTENCE = "Ray, which carries Flower's simulation, did not start"


def test_ray_that_cannot_start_is_one_sentence(monkeypatch, capsys, tmp_path):
    init = Mock(side_effect=Exception("The node timed out. This could ..."))
    monkeypatch.setattr(ray, "init", init)
    words = (
        "run fedavg --clients 2 --train 60 --test 60 --rounds 1 --engine flower --out"
    )
    assert cli.main([*words.split(), str(tmp_path / "h.json")]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert SENTENCE in error
    assert "timed out" in error
    assert "This could" not in error
    assert init.call_count == flower.STARTS


def test_ray_that_hangs_is_given_up(monkeypatch):
    wakes, closed = threading.Event(), threading.Event()
    monkeypatch.setattr(ray, "init", lambda **options: wakes.wait())
    monkeypatch.setattr(ray, "shutdown", closed.set)
    monkeypatch.setattr(flower, "LIMIT", 0.5)
    began = time.monotonic()
    with pytest.raises(fl.errors.StartError, match=f"^{SENTENCE}.*0.5 seconds"):
        flower.start_ray(1)
    assert time.monotonic() - began < 60 and not closed.is_set()
    wakes.set()  # it comes up when nobody waits any more
    assert closed.wait(60)
