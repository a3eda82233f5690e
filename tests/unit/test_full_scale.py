"""Recipes of the scale "full" train with the papers' own networks: a round of each on four random
images of the right shape, clients are dealt; the largest networks wait for FEDLEARN_SLOW=1."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlearn as fl
from fedlearn import recipes
from fedlearn.data import partition, published, sources
from fedlearn.data.arrays import from_boxes, from_masks

LARGE = {"repvgg_b1", "yolov3", "yolox_s", "fcn32s"}
FULL = recipes.runs(None, "full")


def networks(run):
    o = run.options()
    return [o["edge"], o["server"]] if "edge" in o else [o.get("network") or run.experiment.network]


def kind(run):
    """Runs that differ in numbers alone, in the data set or in clients are of one kind."""
    options = {n: v for n, v in run.experiment.options.items() if isinstance(v, str | bool)}
    return "-".join(map(str, [run.experiment.method, *networks(run), *options.items(), *run.but]))


KINDS = {kind(run): run for run in reversed(FULL)}


@pytest.fixture
def noise(monkeypatch):
    """In place of every data set four random images of its shape."""

    def load(name):
        known, generator = sources.SETS[name], torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (4, *known.shape), dtype=torch.uint8, generator=generator)
        y, n = torch.arange(4) % known.classes, known.shape[0]
        return sources.Source(name, x, y, x, y, (128.0,) * n, (74.0,) * n, known.classes)

    def annotated(place, name, targets, size, skip):
        x = np.random.default_rng(0).integers(0, 256, (4, 3, 64, 64), np.uint8)
        if targets == "masks":
            return from_masks(x, x[:, 0] % 21, 21, (x, x[:, 0] % 21), name)
        boxes, classes = [[[8, 8, 40, 48, 1]]] * 4, sources.ANNOTATED[name].classes
        return from_boxes(x, boxes, classes, (x, boxes), name)

    monkeypatch.setattr(sources, "load", load)
    monkeypatch.setattr(published, "locate", lambda name: name)
    monkeypatch.setattr(published, "_load", annotated)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_round(name, noise):
    run = KINDS[name]
    if LARGE & {*networks(run)} and not os.environ.get("FEDLEARN_SLOW"):
        pytest.skip("a large network takes a minute; FEDLEARN_SLOW=1 runs it")
    e = replace(run.experiment, clients=2, partition="iid", device="cpu")
    more = {"server_epochs": 1} if e.method == "fed_gkt" else {}  # of 20
    if run.search:
        task = replace(e, clients=1, network=run.search.network).make_task()
        more = {"scales": fl.repopt_search(task, network=run.search.network, rounds=2, warmup=1)}
    history = fl.run(run.method(**more), e.make_task(), 1, batch_size=2, progress=False)
    assert not history.rows[0]["refused"] and history.bytes_up[0] > 0


def test_the_partitions_of_all_runs_can_be_made():
    """Of as many labels as the data sets have: every client gets images."""
    them = [(r.experiment, r.images[0]) for r in FULL if r.experiment.task == "classification"]
    for dataset, text, clients, images in {(e.dataset, e.partition, e.clients, n) for e, n in them}:
        labels = np.arange(images) % sources.SETS[dataset].classes
        owners = partition.parse(text).owners(labels, clients, np.random.default_rng(0), None)
        assert (np.bincount(owners, minlength=clients) > 0).all(), (dataset, text)
