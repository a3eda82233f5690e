"""Chapter 2, clients that differ: a Dirichlet split, and the checks of the exercises."""

from typing import Any

import numpy as np
import torch

from .check import TWICE, Function, Reasons, compared, drawn
from .drawings import drawing


def dirichlet_shares(draws: int = 3, classes: int = 10, clients: int = 20) -> Any:
    """Shares of a Dirichlet split, made of the same random numbers each time."""
    rng = np.random.default_rng(0)
    count = draws * classes * clients
    return drawing(
        "heterogeneity/dirichlet",
        x=rng.normal(size=count).round(3).tolist(),
        x2=rng.normal(size=count).round(3).tolist(),
        w=rng.random(count).round(3).tolist(),
        u=rng.random(count).clip(0.001).round(3).tolist(),
    )


# ---- exercises -----------------------------------------------------------------------


def pure_shards(answer: Function) -> Reasons:
    """answer(labels, clients, rng) -> the owner of each sample; each client gets two
    classes, none a third."""
    for clients, classes, n in ((10, 10, 1347), (5, 10, 600), (12, 4, 401)):
        labels = np.random.default_rng(clients).permutation(np.arange(n) % classes)
        draws = []
        for seed in range(4):
            first, second = (
                answer(labels.copy(), clients, np.random.default_rng(seed))
                for _ in range(2)
            )
            owner = np.asarray(first)
            if owner.shape != labels.shape:
                yield (
                    f"there should be one owner for each of the {n} samples, "
                    f"not an array of shape {owner.shape}"
                )
            if owner.min() < 0 or owner.max() >= clients:
                yield f"owners should be numbers from 0 to {clients - 1}"
            counts = np.zeros((clients, classes), int)
            np.add.at(counts, (owner, labels), 1)
            for k, present in enumerate((counts > 0).sum(1)):
                if present != 2:
                    yield (
                        f"client {k} of {clients} holds {present} of the {classes} "
                        "classes instead of two"
                    )
            for c, column in enumerate(counts.T):
                if np.ptp(column[column > 0]) > 1:
                    yield (
                        f"class {c} is not shared evenly: "
                        f"its holders have {column[column > 0].tolist()} samples"
                    )
            yield not np.array_equal(owner, second) and TWICE
            draws.append(owner)
        if all(np.array_equal(draws[0], other) for other in draws[1:]):
            yield "four different generators gave one and the same split: draw from rng"


def layer_drift(answer: Function) -> Reasons:
    """answer(updates, samples) -> {name: drift}; updates: tensors by name, for each
    client."""
    shapes = {"conv.weight": (4, 2, 3, 3), "fc.weight": (5, 6), "fc.bias": (5,)}
    samples = [30, 10, 60]
    common = {name: drawn(*shape) for name, shape in shapes.items()}
    updates = [
        {n: t + (k + 1) * drawn(*t.shape, seed=k + 1) for n, t in common.items()}
        for k in range(3)
    ]

    def drift(stacked: torch.Tensor, weights: torch.Tensor) -> float:
        mean = (weights[:, None] * stacked).sum(0)
        spread = (weights * (stacked - mean).square().sum(1)).sum().sqrt()
        return float(spread / mean.norm())

    flat = {name: torch.stack([u[name].flatten() for u in updates]) for name in shapes}
    counts = torch.tensor(samples).float()
    p = counts / counts.sum()
    equal = torch.full((3,), 1 / 3)
    drifts = answer(updates, samples)
    if not isinstance(drifts, dict) or set(drifts) != set(shapes):
        names = ", ".join(shapes)
        yield f"the answer should be a dictionary with a number for each of {names}"
    for name, stacked in flat.items():
        value = float(drifts[name])
        right = drift(stacked, p)
        wrong = {
            "every client counts the same in it: weigh by samples, "
            "in the mean and in the spread around it": drift(stacked, equal),
            "the p_k have to sum to one: divide by the sum of the samples": drift(
                stacked, counts
            ),
            "the square root is missing": right**2,
            (
                "it is the drift of all tensors together: treat each name on its own"
            ): drift(torch.cat(list(flat.values()), 1), p),
        }
        otherwise = f"for {name} it gives {value:.4g}, which is not its drift"
        yield compared(value, right, wrong, otherwise, 1e-4)


def expected_classes(answer: Function) -> Reasons:
    """answer(n, classes) -> the expected number of different classes among n random
    images."""
    for n, classes in ((1, 10), (2, 10), (10, 10), (30, 10), (5, 2), (3, 1)):
        value = float(answer(n, classes))
        missing = classes * (1 - 1 / classes) ** n
        wrong = {
            (
                "that is how many classes are missing: you want those that are there"
            ): missing,
            "images repeat classes: two images have the same class now and then": min(
                n, classes
            ),
        }
        otherwise = (
            f"for n = {n} and {classes} classes {value:.4g} is not the expected number"
        )
        yield compared(value, classes - missing, wrong, otherwise)


def round_leaves(answer: Function) -> Reasons:
    """answer(a, p, E, eta) -> the share of the distance to the end that a round of
    averaging leaves."""
    two = ([4.0, 0.5], [0.5, 0.5])
    three = ([1.0, 2.0, 0.5], [0.2, 0.5, 0.3])
    for (a, p), E, eta in ((two, 1, 0.2), (two, 20, 0.2), (three, 3, 0.1)):
        a_k = np.array(a)
        p_k = np.array(p)
        share = answer(a_k, p_k, E, eta)
        if np.ndim(share):
            yield "it gives a number for each client: weigh them by p, and add them up"
        value = float(share)
        r = (1 - eta * a_k) ** E
        wrong = {
            "that is what a round walks: you want what it leaves": 1 - float(p_k @ r),
            (
                "one client with the mean curvature is another thing: average the r_k"
            ): float((1 - eta * p_k @ a_k) ** E),
            "every client counts the same in it: weigh by p": float(r.mean()),
        }
        otherwise = (
            f"for a = {a} and E = {E} it gives {value:.4g}, which is not "
            f"the share that is left"
        )
        yield compared(value, float(p_k @ r), wrong, otherwise)


EXERCISES = {
    "heterogeneity-shards": pure_shards,
    "heterogeneity-layers": layer_drift,
    "heterogeneity-classes": expected_classes,
    "heterogeneity-round": round_leaves,
}
