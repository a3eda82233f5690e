"""Reference answers of the chapter on FedGKT (see rpn.py)."""

# %% fed_gkt-gradient
"""The factor $T^2$ and the $1/T$ of the divided logits leave one $T$. The mean over the
images divides by their number."""
import torch.nn.functional as F


def gradient(teacher, student, T):
    p, q = F.softmax(teacher / T, 1), F.softmax(student / T, 1)
    return T * (q - p) / len(p)


answer = gradient

# %% fed_gkt-match
"""`sent` leads from rows to images; sorting it gives the way back."""


def teacher_of(z_s, sent, batch):
    return z_s[sent.argsort()[batch]]


answer = teacher_of

# %% fed_gkt-crossover
"""Eq. (7.4) with $h = 16 * 32 * 32$ and $C = 10$, rounded down.
A client of the paper has thousands of images."""
answer = 8 * 1_147_738 // (4 * 16 * 32 * 32 + 8 * 10 + 6)

# %% fed_gkt-variants
"""(a) Only the distillation from the edge to the server: the server would learn to
repeat the edge networks, and here they are poor teachers.

(b) Bytes and edge work of a round do not change; accuracy falls at each of them, so all
four clocks get worse for a given accuracy.

(c) More work on the edge, about half of FedAvg's. In the middle of the network the maps
are 128 x 16 x 16, twice as many floats as at the start, so more bytes. Deeper maps are
harder to invert, not impossible. And then the extractor *has* to learn, and
distillation may earn its place."""
