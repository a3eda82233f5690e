"""Reference answers of the chapter on FedRepOpt.

A section begins with `# %% exercise`, may explain itself in a text in triple quotes,
and leaves its answer in `answer`. `fl.solution` shows it; the unit tests check it.
"""

# %% fed_repopt-scalar
"""The accuracies of `rep` are no longer those of `three`, from the first round on. The
gap is about a tenth, so it isn't rounding.

A good answer says (1) where the number is wrong: at the rim, which has no 1 x 1 branch,
and in the middle from a channel to itself, where the 1 is missing; (2) that the rim now
learns twice as fast as in the branches, so this is *another* training; (3) that another
training need not be worse: with our seed it is ahead of the branches. But it isn't
what the branches would have learned."""

# %% fed_repopt-constants
"""24,704: two for each output channel of each block, $s_3$ and $s_1$. The scale of the
copy is trained, so it's part of the kernel and travels with it. In all this is a
two-thousandth of one message."""
answer = 2 * (64 + 4 * 128 + 6 * 256 + 16 * 512 + 2048)

# %% fed_repopt-start
"""A good answer (1) predicts before it runs; (2) finds most of the head start still
there, so it comes from the start: in three of the five blocks a copy passes on what
comes in; (3) finds every round lower than with both rules, since without the multiplier
the long kernels turn more slowly still (Table 8A.4 has the third block: at less than
half the speed); (4) says that this is one seed. In Figure 8.4, with twelve clients, the
step alone begins behind FedRepOpt and ends above it with each of three seeds."""

# %% fed_repopt-fold
"""The running mean is subtracted from $W * x + b$, and the rest is scaled: so the
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
`-lr * u`, and $W'$ by $s_3$ times that. So each scale acts once, and it's the *step*
that is multiplied."""
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

(c) Breaks it: Adam divides entry by entry, and the entries differ.

(d) Breaks it: the decay of $W'$ contains the decay of $s_{id}$. The authors' program
does this for RepGhost.

(e) Breaks it by rounding, like 32 bits but more.

(f) Breaks the method, not only the equality: the steps of the clients belong to
different CSLA networks, and their mean to none."""
