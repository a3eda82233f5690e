"""FedCAMS: Wang, Lin and Chen, "Communication-Efficient Adaptive Federated Learning", ICML 2022, Algorithm 2.

    client:  send C(D_i + e_i),   e_i <- D_i + e_i - C(D_i + e_i),   D_i = w_i - w
    server:  m <- b1 m + (1 - b1) D,   v <- b2 v + (1 - b2) D^2,   v^ <- max(v^, v, eps),   w <- w + lr m / sqrt(v^)

C is the scaled sign, (||x||_1 / d) sign(x) for each tensor, or top-k. D is the mean of what arrived, weighted by
n_k (the paper counts clients alike). A client keeps its e_i while it does not take part. Batch statistics are averaged as
they are.
"""

import math
from dataclasses import dataclass

import torch

from ..method import SGD, Compressed, Mean, Method
from ..wire import Signs, TopK


@dataclass(frozen=True)
class AMSGrad:
    """FedAMS, the server's adaptive step (Option 1: the floor eps inside the maximum)."""

    lr: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-3

    def __post_init__(self):
        if (
            not 0 < self.lr < math.inf
            or not 0 <= self.beta1 < 1
            or not 0 <= self.beta2 < 1
            or not self.eps > 0
        ):
            raise ValueError(
                f"AMSGrad needs a finite lr > 0, 0 <= beta1, beta2 < 1 and eps > 0, not {self}."
            )

    def aggregate(self, state, arrivals, ctx):
        new, memory = Mean().aggregate(state, arrivals, ctx), ctx.memory
        for n in state.keys() - ctx.schema.buffers:
            D = new[n] - state[n]
            m = self.beta1 * memory.get(f"m/{n}", 0) + (1 - self.beta1) * D
            v = self.beta2 * memory.get(f"v/{n}", 0) + (1 - self.beta2) * D * D
            highest = torch.maximum(memory.get(f"highest/{n}", torch.full_like(v, self.eps)), v)
            memory |= {f"m/{n}": m, f"v/{n}": v, f"highest/{n}": highest}
            new[n] = state[n] + self.lr * m / highest.sqrt()
        return new


def fedcams(lr=0.1, server_lr=1.0, ratio=None, feedback=True):
    """Scaled signs, or with ``ratio`` the largest entries. ``feedback=False`` forgets what the coder lost."""
    coder, whole = (Signs(), 0) if ratio is None else (TopK(ratio), 2)
    return Method(
        "fedcams",
        optimizer=SGD(lr),
        uplink=Compressed(coder, feedback=feedback, whole=whole),
        server=AMSGrad(server_lr),
    )
