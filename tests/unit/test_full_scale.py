"""Recipes of the scale "full" start, step, stop, go on and are stored with the papers' own
networks: two steps of each, on random images of the right shape, and FedRepOpt's searches before
them.

What trains one of the largest networks (RepVGG-B1, 50 million parameters, and those that detect and
segment, of which ``test_yolo`` takes a step) is left out unless FEDLEARN_SLOW=1. Runs that differ
from a tested one only in numbers, in the data set or in their clients need no test of their own:
clients and partitions of all are dealt without training, and some are trained with their own.
"""

import inspect
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedlearn as fl
from fedlearn import methods, recipes, reproduce, results
from fedlearn import round as rounds
from fedlearn.data import partition, published, sources
from fedlearn.data.annotated import from_boxes, from_masks

SLOW = {"repvgg_b1", "yolov3", "yolox_s", "fcn32s"}
FULL = recipes.runs(None, "full")


def networks(run):
    """Those that it trains."""
    e, o = run.experiment, run.options()
    return [o["edge"], o["server"]] if "edge" in o else [o.get("network") or e.network]


def kind(run):
    """What a run shares with those that need no test of their own: the method, the networks, the
    options that are words, switches or usually off, the parts that are replaced and the data of a
    search. Other numbers are of no account."""
    e, known = run.experiment, inspect.signature(methods.METHODS[run.experiment.method]).parameters
    names = []
    for n in e.options.keys() - {"network", "edge", "server"}:
        value, default = e.options[n], known[n].default
        named = isinstance(value, str | bool) or default is None
        names += [f"{n}={value}"] if named and value != default else []
    but = [f"{n}={'+'.join(words(v))}" for n, v in run.but.items()]
    search = [f"search={run.search.spec['dataset']}"] if run.search else []
    return "-".join([e.method, *networks(run), *sorted(names), *but, *search])


def words(part):
    """The names in what a row calls a part: Continued, SGD."""
    inside = [
        w
        for options in part.values()
        for v in options.values()
        if isinstance(v, dict)
        for w in words(v)
    ]
    return [*part, *inside]


def slow(run):
    return pytest.mark.skipif(
        bool(SLOW & {*networks(run)}) and not os.environ.get("FEDLEARN_SLOW"),
        reason="a large network takes a minute; FEDLEARN_SLOW=1 runs it",
    )


KINDS = {kind(run): run for run in reversed(FULL)}
EVERY = [pytest.param(run, id=name, marks=slow(run)) for name, run in sorted(KINDS.items())]


@pytest.fixture
def noise(monkeypatch):
    """In place of every data set four random images of its shape, or ``train``, of which four are
    for the test, too."""
    how = SimpleNamespace(train=4)

    def load(name):
        known, generator = sources.SETS[name], torch.Generator().manual_seed(0)
        size = (how.train, *known.shape)
        x = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
        y = torch.arange(how.train) % known.classes
        channels = known.shape[0]
        return sources.Source(
            name, x, y, x[:4], y[:4], (128.0,) * channels, (74.0,) * channels, known.classes
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
    return how


def two_rounds(run, root, monkeypatch, **changed):
    """It trains a round, is stopped in the next, and goes on, below ``root``."""
    few = {"server_epochs": 1} if run.experiment.method == "fed_gkt" else {}  # of 20
    changed |= {"rounds": 2, "evaluate_every": 2, "epochs": 1}
    e = replace(run.experiment, options=run.experiment.options | few, **changed)
    short = {"rounds": 2, "train": 2, "warmup": 1}
    search = run.search and replace(run.search, spec=run.search.spec | short)
    run = replace(run, experiment=e, search=search)
    trained, searched, real = [], [], rounds.one_round

    def one_round(server, engine, t, *rest, **how):
        searched.extend([t] * (server.method.name == "search"))
        if server.method.name == "search" or server.task.seed != e.seed:  # a newcomer's
            return real(server, engine, t, *rest, **how)
        if trained == [1]:
            trained.append("stopped")
            raise KeyboardInterrupt
        trained.append(t)
        return real(server, engine, t, *rest, **how)

    monkeypatch.setattr(rounds, "one_round", one_round)
    scales = reproduce.do(search, {}, False, root)["scales"] if search else {}
    with pytest.raises(KeyboardInterrupt):
        reproduce.do(run, {}, False, root)
    [left] = root.glob("*/*.checkpoint")
    line = reproduce.do(run, {}, False, root)
    history = fl.History.from_dict(line)
    assert trained == [1, "stopped", 2] and len(history) == 2
    assert searched == ([1, 2] if search else [])
    assert not any(row["refused"] for row in history.rows) and history.bytes_up.min() > 0
    again = results.stored(run.folder, root)[run.key]
    stored = fl.History.from_dict(again)
    assert (
        stored == history
        and not left.exists()
        and again["experiment"] == json.loads(json.dumps(run.stated))
    )
    network = stored.meta["task"]["network"]
    assert network in networks(run) or run.experiment.method == "fed_gkt"
    assert len(stored.meta.get("newcomers", [])) == 3 * (run.newcomers > 0)
    assert bool(scales) == bool(search)
    return stored


@pytest.mark.parametrize("run", EVERY)
def test_two_steps(run, noise, tmp_path, monkeypatch):
    small = {"clients": 2, "partition": "iid", "participation": 1.0, "batch_size": 2}
    two_rounds(run, tmp_path, monkeypatch, **small)


OWN = {  # images, and a run that is trained with its own clients, partition and share of clients
    "fed_mmd_fusion/FedMMD/shards:2": 400,
    "fed_mmd_fusion/FedFusion+Conv, momentum/permuted": 40,
    "fed_gkt/FedGKT, asynchronous/iid": 16,
    "fed_repopt/RepGhost RepOpt/dirichlet:0.1": 160,
}


@pytest.mark.parametrize("name", OWN)
def test_two_steps_of_a_runs_own_clients(name, noise, tmp_path, monkeypatch):
    paper, label, split = name.split("/")
    [run, *_] = recipes.runs(paper, "full", only=(label,), split=(split,))
    noise.train = OWN[name]
    stored = two_rounds(run, tmp_path, monkeypatch)
    e, task = run.experiment, stored.meta["task"]
    assert (task["clients"], task["partition"]) == (e.clients, repr(partition.parse(split)))
    share = max(1, round(e.participation * e.clients))
    assert [len(row["clients"]) for row in stored.rows] == [share, share]


def test_the_partitions_of_all_runs_can_be_made():
    """Of as many labels as the data sets have: every client gets images."""
    its = {
        (e.dataset, e.partition, e.clients, run.images[0])
        for run in FULL
        for e in [run.experiment]
        if e.task == "classification"
    }
    assert {p.partition(":")[0] for _, p, *_ in its} == {*partition.PARTS} - {"objects"}
    for dataset, text, clients, images in its:
        labels = np.arange(images) % sources.SETS[dataset].classes
        rng = np.random.default_rng(0)
        owners = partition.parse(text).owners(labels, clients, rng, None)
        assert (np.bincount(owners, minlength=clients) > 0).all(), (dataset, text)


def test_every_network_and_every_search_of_the_full_scale_is_among_them():
    assert {name for run in KINDS.values() for name in networks(run)} == {
        *("rpn_cnn", "resnet18", "cifar_cnn", "mcmahan_cnn", "repvgg_b1", "repghost_05"),
        *("resnet4", "resnet6", "resnet8", "resnet55", "resnet56", "resnet109", "resnet110"),
        *("yolov3", "yolox_s", "fcn32s"),
    }
    fast = [run for run in KINDS.values() if not SLOW & {*networks(run)}]
    assert {run.search.spec["dataset"] for run in fast if run.search} == {
        *("cifar10", "cifar100", "fashion_mnist")
    }
