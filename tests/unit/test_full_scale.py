"""Recipes of the scale "full" start, step, stop, go on and are stored with the papers' own
networks: two steps of each, on random images of the right shape.

The largest networks (RepVGG-B1, 50 million parameters, and those that detect and segment, of which
``test_yolo`` takes a step) are left out unless FEDLEARN_SLOW=1, and so are runs that differ from a
tested one only in numbers or in the data set.
"""

import json
import os
from dataclasses import replace

import pytest
import torch

import fedlearn as fl
from fedlearn import recipes, reproduce
from fedlearn import round as rounds
from fedlearn.data import published, sources
from fedlearn.data.annotated import from_boxes, from_masks

SLOW = {"repvgg_b1", "yolov3", "yolox_s", "fcn32s"}


def kind(run):
    """What a run shares with those that need no test of their own."""
    e, o = run.experiment, run.options()
    network = o.get("network") or (f"{o['edge']}-{o['server']}" if "edge" in o else e.network)
    words = {v for v in e.options.values() if isinstance(v, str)} | run.but.keys()
    return "-".join([e.method, network, *sorted(words - {network, *network.split("-")})])


KINDS = {kind(run): run for run in reversed(recipes.runs(None, "full"))}
EVERY = [
    pytest.param(
        run,
        id=name,
        marks=pytest.mark.skipif(
            bool(SLOW & {run.options().get("network"), run.experiment.network})
            and not os.environ.get("FEDLEARN_SLOW"),
            reason="a large network takes a minute; FEDLEARN_SLOW=1 runs it",
        ),
    )
    for name, run in sorted(KINDS.items())
]


@pytest.fixture
def noise(monkeypatch):
    """In place of every data set four random images of its shape, the same for training and
    test."""

    def load(name):
        known, generator = sources.SETS[name], torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (4, *known.shape), dtype=torch.uint8, generator=generator)
        y = torch.arange(4) % known.classes
        channels = known.shape[0]
        return sources.Source(
            name, x, y, x, y, (128.0,) * channels, (74.0,) * channels, known.classes
        )

    def annotated(place, targets, year, size, skip):
        x = torch.randint(0, 256, (4, 3, 64, 64), generator=torch.Generator().manual_seed(0))
        x, name = x.to(torch.uint8).numpy(), f"{place}:{size}"
        if targets == "masks":
            return from_masks(x, x[:, 0] % 21, 21, (x, x[:, 0] % 21), name)
        boxes, classes = [[[8, 8, 40, 48, 1]]] * 4, published.known("detection", name).classes
        return from_boxes(x, boxes, classes, (x, boxes), name)

    monkeypatch.setattr(sources, "load", load)
    monkeypatch.setattr(published, "found", lambda name: name)
    monkeypatch.setattr(published, "_load", annotated)


@pytest.mark.parametrize("run", EVERY)
def test_two_steps(run, noise, tmp_path, monkeypatch):
    e = run.experiment
    few = {"server_epochs": 1} if e.method == "fed_gkt" else {}  # of 20
    small = {"clients": 2, "partition": "iid", "participation": 1.0, "epochs": 1, "batch_size": 2}
    e = replace(e, rounds=2, evaluate_every=2, options=e.options | few, **small)
    search = run.search and run.search | {"rounds": 1, "train": 2}
    run, store = replace(run, experiment=e, search=search), reproduce.Store(tmp_path)
    trained, real = [], rounds.one_round

    def one_round(server, engine, t, *rest, **how):
        if trained == [1]:
            trained.append("stopped")
            raise KeyboardInterrupt
        trained.append(t)
        return real(server, engine, t, *rest, **how)

    monkeypatch.setattr(rounds, "one_round", one_round)
    with pytest.raises(KeyboardInterrupt):
        reproduce.do(store, run, {}, False)
    assert store.path(run, ".checkpoint").exists() and not store.path(run).exists()
    history = reproduce.do(store, run, {}, False)
    assert trained == [1, "stopped", 2] and len(history) == 2
    assert not any(row["refused"] for row in history.rows) and history.bytes_up.min() > 0
    stored = fl.History.from_json(store.path(run))
    assert stored == history and not store.path(run, ".checkpoint").exists()
    assert run.differences(stored) == ["train", "test"]  # four images
    if search:
        [scales] = (tmp_path / run.folder / "search").glob("*.json")
        assert json.loads(scales.read_text())


def test_every_network_of_the_full_scale_is_among_them():
    tested = {
        run.experiment.options.get("network") or run.experiment.network for run in KINDS.values()
    }
    assert tested == {"rpn_cnn", "resnet18", "cifar_cnn", "mcmahan_cnn", "resnet8", "resnet56"} | {
        "resnet110",
        "repvgg_b1",
        "repghost_05",
        *("yolov3", "yolox_s", "fcn32s"),
    }
