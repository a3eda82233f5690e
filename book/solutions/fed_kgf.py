"""Reference answers of the chapter on Fed-KGF.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% fed_kgf-kernels
"""Indexing with `arange(n) % m` copies base kernel after base kernel, as often as
needed. `sign` gives zero for an entry that is zero, and so does the product."""
import torch


def generate(w, alpha, beta):
    copies = w[torch.arange(len(beta)) % len(w)]
    return copies.sign() * (copies.abs() ** beta + alpha)


answer = generate

# %% fed_kgf-upload
"""16 base kernels of 512 x 3 x 3; four numbers for each of the 512 channels, since
batch normalisation does not care who made them; and the dense layer with its
biases."""
answer = 16 * 512 * 9 + 4 * 512 + (512 * 10 + 10)

# %% fed_kgf-smooth
"""The sign in front of the power may stay: the power itself goes through zero
smoothly. In front of the bias stands a line that is cut off at -1 and 1, and
reaches them at 0.1."""


def smooth(w, alpha, beta):
    return w.sign() * w.abs() ** beta + alpha * (10 * w).clamp(-1, 1)


answer = smooth

# %% fed_kgf-privacy
"""(a) Nothing: each tensor comes from one client, so the sum *is* that client's
tensor. With fewer groups than clients, several clients share a group and sums have
more than one term.

(b) Its modules stay as they were, beside nine that moved on: a mixture of two
rounds. The mean over nine clients is a little noisier and nothing worse.

(c) Ordinary training of the network with generated kernels; the one client sends
everything."""
