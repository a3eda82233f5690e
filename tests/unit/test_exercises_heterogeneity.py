"""The chapter's checks accept right answers and say what is wrong with typical wrong ones."""

import numpy as np
import pytest
import torch

import fedlearn as fl


def pure_shards(labels, clients, rng):
    classes = labels.max() + 1
    order = rng.permutation(classes)
    slots = order[np.arange(2 * clients) % classes].reshape(clients, 2)
    owner = np.empty(len(labels), int)
    for c in range(classes):
        holders = np.flatnonzero((slots == c).any(1))
        mine = np.flatnonzero(labels == c)
        owner[mine] = holders[np.arange(len(mine)) % len(holders)]
    return owner


def mcmahan_shards(labels, clients, rng):
    holder = rng.permutation(np.repeat(np.arange(clients), 2))
    owner = np.empty(len(labels), int)
    owner[np.argsort(labels, kind="stable")] = holder[
        np.arange(len(labels)) * 2 * clients // len(labels)
    ]
    return owner


def lists(labels, clients, rng):
    owner = pure_shards(labels, clients, rng)
    return [np.flatnonzero(owner == k) for k in range(clients)]


def layer_drift(updates, samples, weighted=True, root=True, divided=True):
    p = torch.tensor(samples, dtype=torch.float32) if weighted else torch.ones(len(samples))
    p, drift = p / p.sum() if divided else p, {}
    for name in updates[0]:
        u = torch.stack([update[name].flatten() for update in updates])
        squared = (p @ (u - p @ u).square().sum(1)) / (p @ u).square().sum()
        drift[name] = float(squared.sqrt() if root else squared)
    return drift


def all_together(updates, samples):
    joined = [{"all": torch.cat([t.flatten() for t in u.values()])} for u in updates]
    return dict.fromkeys(updates[0], layer_drift(joined, samples)["all"])


CASES = [
    ("heterogeneity-shards", pure_shards, None),
    ("heterogeneity-shards", mcmahan_shards, "instead of two"),
    ("heterogeneity-shards", lambda labels, clients, rng: labels % clients, "instead of two"),
    ("heterogeneity-shards", lambda labels, clients, rng: labels[:-1], "one owner for each"),
    ("heterogeneity-shards", lambda labels, clients, rng: labels + clients, "owners should be"),
    (
        "heterogeneity-shards",
        lambda labels, clients, rng: pure_shards(labels, clients, np.random.default_rng(0)),
        "rng",
    ),
    (
        "heterogeneity-shards",
        lambda labels, clients, rng: pure_shards(labels, clients, np.random),
        "no other source",
    ),
    ("heterogeneity-shards", lists, "not one list for each client"),
    ("heterogeneity-layers", layer_drift, None),
    ("heterogeneity-layers", lambda u, n: layer_drift(u, n, divided=False), "sum to one"),
    ("heterogeneity-layers", lambda u, n: layer_drift(u, n, weighted=False), "weigh by samples"),
    ("heterogeneity-layers", lambda u, n: layer_drift(u, n, root=False), "square root"),
    ("heterogeneity-layers", all_together, "each name"),
    ("heterogeneity-layers", lambda u, n: 0.5, "dictionary"),
    ("heterogeneity-layers", lambda u, n: dict.fromkeys(u[0], 0.0), "is right"),
    ("heterogeneity-classes", lambda n, classes: classes * (1 - (1 - 1 / classes) ** n), None),
    ("heterogeneity-classes", lambda n, classes: classes * (1 - 1 / classes) ** n, "missing"),
    ("heterogeneity-classes", lambda n, classes: min(n, classes), "repeat"),
    ("heterogeneity-classes", lambda n, classes: classes, "is right"),
    ("heterogeneity-classes", lambda n, classes: 1 / 0, "ZeroDivisionError"),
]


@pytest.mark.parametrize("exercise, answer, reason", CASES)
def test_check(exercise, answer, reason):
    verdict = fl.check(exercise, answer)
    assert verdict.right if reason is None else reason in verdict.reason, verdict


def test_uneven_holders_are_noticed():
    def uneven(labels, clients, rng):
        owner = pure_shards(labels, clients, rng)
        first = np.flatnonzero(labels == 0)
        holders = np.unique(owner[first])
        owner[first] = holders[0]
        owner[first[: len(holders)]] = holders
        return owner

    assert "not shared evenly" in fl.check("heterogeneity-shards", uneven).reason
