"""Checks of the chapter on heterogeneity."""

import numpy as np
import torch

from . import Function


def _pure_shards(answer: Function) -> str | None:
    """answer(labels, clients, rng) -> the owner of each sample; each client gets two classes, none
    a third."""
    for clients, classes, n in ((10, 10, 1347), (5, 10, 600), (12, 4, 401)):
        labels = np.random.default_rng(clients).permutation(np.arange(n) % classes)
        draws = []
        for seed in range(4):
            given, again = (
                answer(labels.copy(), clients, np.random.default_rng(seed)) for _ in range(2)
            )
            try:
                owner = np.asarray(given)
            except ValueError:
                return "one owner for each image is asked for, not one list for each client"
            if owner.shape != labels.shape:
                return (
                    f"there should be one owner for each of the {n} samples, "
                    f"not an array of shape {owner.shape}"
                )
            if owner.min() < 0 or owner.max() >= clients:
                return f"owners should be numbers from 0 to {clients - 1}"
            held = np.zeros((clients, classes), int)
            np.add.at(held, (owner, labels), 1)
            if (wrong := (held > 0).sum(1) != 2).any():
                k = int(wrong.argmax())
                return (
                    f"client {k} of {clients} holds {(held[k] > 0).sum()} of the {classes} classes "
                    "instead of two"
                )
            for c, column in enumerate(held.T):
                if np.ptp(column[column > 0]) > 1:
                    return (
                        f"class {c} is not shared evenly: "
                        f"its holders have {column[column > 0].tolist()} samples"
                    )
            if not np.array_equal(owner, again):
                return (
                    "the same generator gives another result the second time: "
                    "use no other source of randomness"
                )
            draws.append(owner)
        if all(np.array_equal(draws[0], other) for other in draws[1:]):
            return "four different generators gave one and the same split: draw from rng"
    return None


def _layer_drift(answer: Function) -> str | None:
    """answer(updates, samples) -> {name: drift}; updates: tensors by name, for each client."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"conv.weight": (4, 2, 3, 3), "fc.weight": (5, 6), "fc.bias": (5,)}
    samples = [30, 10, 60]
    common = {name: torch.randn(s, generator=generator) for name, s in shapes.items()}
    updates = [
        {
            name: t + (k + 1) * torch.randn(t.shape, generator=generator)
            for name, t in common.items()
        }
        for k in range(3)
    ]

    def drift(stacked: torch.Tensor, weights: torch.Tensor) -> float:
        mean = (weights[:, None] * stacked).sum(0)
        return float(((weights * (stacked - mean).square().sum(1)).sum().sqrt()) / mean.norm())

    flat = {name: torch.stack([u[name].flatten() for u in updates]) for name in shapes}
    p, even = torch.tensor(samples) / sum(samples), torch.full((3,), 1 / 3)
    given = answer(updates, samples)
    if not isinstance(given, dict) or set(given) != set(shapes):
        return f"the answer should be a dictionary with a number for each of {', '.join(shapes)}"
    for name, stacked in flat.items():
        value, right = float(given[name]), drift(stacked, p)
        if abs(value - right) <= 1e-4 * right:
            continue
        if abs(value - drift(stacked, even)) <= 1e-4 * right:
            return (
                "every client counts the same in it: weigh by samples, "
                "in the mean and in the spread around it"
            )
        whole = drift(stacked, torch.tensor(samples).float())
        if abs(value - whole) <= 1e-4 * whole:
            return "the p_k have to sum to one: divide by the sum of the samples"
        if abs(value - right**2) <= 1e-4 * right**2:
            return "the square root is missing"
        if abs(value - drift(torch.cat(list(flat.values()), 1), p)) <= 1e-4:
            return "it is the drift of all tensors together: treat each name on its own"
        return f"for {name} it gives {value:.4g} where {right:.4g} is right"
    return None


def _expected_classes(answer: Function) -> str | None:
    """answer(n, classes) -> the expected number of different classes among n random images."""
    for n, classes in ((1, 10), (2, 10), (10, 10), (30, 10), (5, 2), (3, 1)):
        value, missing = float(answer(n, classes)), classes * (1 - 1 / classes) ** n
        if abs(value - (classes - missing)) <= 1e-6:
            continue
        if abs(value - missing) <= 1e-6:
            return "that is how many classes are missing: you want those that are there"
        if abs(value - min(n, classes)) <= 1e-6:
            return "images repeat classes: two images have the same class now and then"
        return (
            f"for n = {n} and {classes} classes it gives {value:.4g}, "
            f"and {classes - missing:.4g} is right"
        )
    return None


EXERCISES = {
    "heterogeneity-shards": _pure_shards,
    "heterogeneity-layers": _layer_drift,
    "heterogeneity-classes": _expected_classes,
}
