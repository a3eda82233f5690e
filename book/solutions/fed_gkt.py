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
"""`order` leads from rows to images; sorting it gives the way back."""


def teacher_of(z_s, order, batch):
    return z_s[order.argsort()[batch]]


answer = teacher_of

# %% fed_gkt-crossover
"""FedGKT and FedAvg send equally many bytes at $n = 8P / (4h + 8C + 6)$. With
$h = 16 * 32 * 32$ and $C = 10$, rounded down, that's well over a hundred images. A
client in the paper has thousands."""
answer = 8 * 1_147_738 // (4 * 16 * 32 * 32 + 8 * 10 + 6)

# %% fed_gkt-variants
"""(a) Only the distillation from the client to the server: the server would learn to
repeat the clients' small networks, and here they are poor teachers.

(b) All of them. The bytes and the work of a round stay the same, and the accuracy
after a round falls: see Figure 7.1 of the lesson.

(c) More work for the client, about half of FedAvg's. In the middle of the network the
maps are 128 x 16 x 16, twice as many numbers as at the start, so more bytes. Deeper
maps are harder to invert, not impossible. And then the extractor *has* to learn, and
distillation may earn its place."""

# %% fed_gkt-still
"""The rounds print about the same numbers as before, most of them a little higher. A
*random* first layer will do.

A good answer says (1) that accuracy doesn't fall, though no client learned anything;
(2) why that can be: the server learns from all sketches, and random patterns sketch a
digit well enough; (3) why trained layers may even do harm: all clients begin with the
same first layer, each then trains it on its own mixture of digits, and the server has
to read ten dialects; (4) what follows: sketches that never change need to be sent only
once; (5) where this may end: with harder pictures, or a longer front."""
import torch


def still_night(net, x, y, z_s):
    net.eval()
    with torch.no_grad():
        return net.extractor(x), y, None


answer = still_night
