"""Reference answers of the chapter on Fed-KGF.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% fed_kgf-bytes
"""Base kernels travel, and copies don't: seven instead of two, so three and a half
times as many bytes. With one base kernel all eight kernels have the same signs, at
strengths that learning hardly changes."""
answer = 7 / 2

# %% fed_kgf-uniform
"""From -1 to 1 it's 1, for every beta: the slope is the derivative of |w|^beta, which
goes from 0 to 1 as |w| does. With beta = 2 every weight brings its part. With beta = 10
nearly all comes from the few weights that are almost as large as 1. Without those, up
to a size a, the mean is a^beta / a: for a = 0.5 it's a half if beta = 2, and 1/512 if
beta = 10."""
answer = 0.5**9

# %% fed_kgf-share
"""A good answer says (1) that no single owner dictates the answers any more: they
spread over several classes, though one may still have the larger share. With five seeds
that class had about two thirds of the answers on average. With one owner's classifier
it had all, or about three quarters where boats are alike; (2) that accuracy stays low
in these few rounds, because the other modules still come from one client each, and
generated kernels learn slowly; (3) the cost: every client but the owner sends 330 more
numbers. A mean upload was 774 numbers, so it grows by nearly 40 %. With all kernels
learned, the same cure repairs most of the damage: Table 5A.11 of the audit has the
runs."""

# %% fed_kgf-gradient
"""Each copy brings its own g times the slope (5.2), and contributions to the same base
kernel add up: `index_add_` does that. A base kernel without copies hears nothing."""
import torch


def heard_by(w, beta, g):
    which = torch.arange(len(g)) % len(w)
    each = g * beta * w[which].abs() ** (beta - 1)
    return torch.zeros_like(w).index_add_(0, which, each)


answer = heard_by

# %% fed_kgf-upload
"""16 base kernels of 512 x 3 x 3; four numbers for each of the 512 channels, since
batch normalisation doesn't care who made them; and the dense layer with its
biases."""
answer = 16 * 512 * 9 + 4 * 512 + (512 * 10 + 10)

# %% fed_kgf-smooth
"""The sign in front of the power may stay: the power itself goes through zero
smoothly. The bias is multiplied by a line through zero, cut off at -1 and 1,
which it reaches at a size of 0.1."""


def smooth(w, alpha, beta):
    return w.sign() * w.abs() ** beta + alpha * (10 * w).clamp(-1, 1)


answer = smooth

# %% fed_kgf-privacy
"""(a) Nothing: each tensor comes from one client, so the sum *is* that client's
tensor. With fewer groups than clients, several clients share a group, and sums have
more than one term.

(b) Its modules stay as they were, beside nine that moved on: a mixture of two
rounds. The mean over nine clients is a little noisier where clients are alike; where
each has a main class it also leans away from the class of the missing client.

(c) Ordinary training of the network with generated kernels; the one client sends
everything."""
