"""Reference answers of the chapter on FedRepOpt.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% fed_repopt-fold
"""The running mean is subtracted from $W * x + b$, and what is left is scaled: so the
bias is scaled with it, before `beta` is added."""


def my_fold(W, b, gamma, beta, mean, var, eps):
    factor = gamma / (var + eps).sqrt()
    return factor[:, None, None, None] * W, beta + factor * (b - mean)


answer = my_fold

# %% fed_repopt-depthwise
"""$s$ acts twice, as $s_3$ does. There is no 1 x 1 branch, so nothing else is squared;
and every channel is its own input, so the 1 of $t$ is in the middle of every kernel."""


def depthwise_multiplier(s):
    M = (s**2)[:, None, None, None].repeat(1, 1, 3, 3)
    M[:, 0, 1, 1] += 1
    return M


answer = depthwise_multiplier

# %% fed_repopt-adam
"""The gradient of $W_3$ is $s_3 G$, and Adam divides the factor out: $W_3$ moves by
`-lr * u`, and $W'$ by $s_3$ times that. So each scale acts once, and it is the *step*
that is multiplied. The package does so with `optimizer="adamw"`."""
import torch


def change(u, s3, s1, copies, lr):
    M = s3[:, None, None, None].repeat(1, u.shape[1], 3, 3)
    M[:, :, 1, 1] += s1[:, None]
    if copies:
        M[:, :, 1, 1] += torch.eye(len(s3)).to(M)
    return -lr * M * u


answer = change

# %% fed_repopt-breaks
"""(a) Breaks it: the norm over three branches is not the norm over one kernel.

(b) Keeps it: momentum is linear.

(c) Breaks it: Adam divides entry by entry, and the entries are others.

(d) Breaks it: the decay of $W'$ contains the decay of $s_{id}$. The authors' program
has this for RepGhost.

(e) Breaks it by rounding, like 32 bits but more.

(f) Breaks the method, not only the equality: the steps of the clients belong to
different CSLA networks, and their mean to none."""
