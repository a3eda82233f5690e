"""Reference answers of the chapter on clients that differ.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% heterogeneity-shards
"""The slots run through the classes, so a client's two neighbouring slots differ. The
holders of a class take turns, so their shares differ by one image at most."""
import numpy as np


def pure_shards(labels, clients, rng):
    order = rng.permutation(labels.max() + 1)
    slots = order[np.arange(2 * clients) % len(order)].reshape(clients, 2)
    owner = np.zeros(len(labels), int)
    for c in order:
        holders = np.flatnonzero((slots == c).any(1))
        images = rng.permutation(np.flatnonzero(labels == c))
        owner[images] = holders[np.arange(len(images)) % len(holders)]
    return owner


answer = pure_shards

# %% heterogeneity-layers
"""The same formula, tensor by tensor. On an uneven split, the last layer disagrees
most: its rows belong to single classes, and each client pulls at its own."""
import torch


def drift(u, p):
    u_bar = p @ u
    return float((p @ (u - u_bar).square().sum(1)).sqrt() / u_bar.norm())


def layer_drift(updates, samples):
    p = torch.tensor(samples, dtype=torch.float32) / sum(samples)
    drifts = {}
    for name in updates[0]:
        u = torch.stack([update[name].flatten().cpu() for update in updates])
        drifts[name] = drift(u, p)
    return drifts


answer = layer_drift

# %% heterogeneity-classes
"""A given class is missing with probability (1 - 1/C)^n, so it is there with one minus
that. Expectations add up over the C classes, although the classes depend on each
other."""


def expected_classes(n, classes):
    return classes * (1 - (1 - 1 / classes) ** n)


answer = expected_classes

# %% heterogeneity-round
"""In (2.7), w stands in w_k only as r_k w, so the slope is the mean of the r_k. On the
lesson's parabolas one step leaves 55 % of the distance, and 20 steps leave 6 %. More
local work makes a round worth more; it is the end that gets worse."""


def leaves(a, p, E, eta):
    return p @ (1 - eta * a) ** E


answer = leaves

# %% heterogeneity-curvature
"""All r_k are equal, so the factors 1 - r_k in (2.8) cancel, and the end is the
optimum: no bias, for any E. Averaging stands still there, so the mean update is zero,
while each client still walks towards its own minimum: d is infinite. But the mean
update is zero at every end, right or wrong. So d cannot tell a right end from a wrong
one. It says how much of the clients' work survives averaging, not where it leads."""
