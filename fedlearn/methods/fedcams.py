"""FedCAMS: Wang, Lin and Chen, "Communication-Efficient Adaptive Federated Learning", ICML 2022,
Algorithm 2.

    client:  send C(D_i + e_i),   e_i <- D_i + e_i - C(D_i + e_i),   D_i = w_i - w
    server:  m <- b1 m + (1 - b1) D,   v <- b2 v + (1 - b2) D^2,   v^ <- max(v^, v, eps)
             w <- w + lr m / sqrt(v^)

C is the scaled sign, (||x||_1 / d) sign(x) for each tensor, or top-k. D is the mean of what
arrived, weighted by n_k (the paper counts clients alike). A client keeps its e_i while it does
not take part. Batch statistics are averaged as they are.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..averaging import Averaging
from ..parts import (
    SGD,
    Aggregator,
    Arrival,
    Context,
    Feedback,
    Lossy,
    Mean,
    Tensors,
    Update,
    Uplink,
)
from ..wire import Signs, TopK


@dataclass(frozen=True)
class AMSGrad(Aggregator):
    """FedAMS, the server's adaptive step (Option 1: the floor eps inside the maximum)."""

    needs = frozenset({"update"})

    lr: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-3

    def __post_init__(self) -> None:
        fine = 0 < self.lr < math.inf and 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1
        if not fine or not self.eps > 0:
            raise ValueError(
                f"AMSGrad needs a finite lr > 0, 0 <= beta1, beta2 < 1 and eps > 0, not {self}."
            )

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        new, memory = Mean().aggregate(state, arrivals, ctx), ctx.memory
        for n in state.keys() - ctx.schema.buffers:
            D = new[n] - state[n]
            m = self.beta1 * memory.get(f"m/{n}", 0) + (1 - self.beta1) * D
            v = self.beta2 * memory.get(f"v/{n}", 0) + (1 - self.beta2) * D * D
            floor = torch.full_like(v, self.eps)
            highest = torch.maximum(memory.get(f"highest/{n}", floor), v)
            memory |= {f"m/{n}": m, f"v/{n}": v, f"highest/{n}": highest}
            new[n] = state[n] + self.lr * m / highest.sqrt()
        return new


def fedcams(
    lr: float = 0.1, server_lr: float = 1.0, ratio: float | None = None, feedback: bool = True
) -> Averaging:
    """Scaled signs, or with ``ratio`` the largest entries. ``feedback=False`` forgets what the
    coder lost."""
    coded = Lossy(Signs(), whole=0) if ratio is None else Lossy(TopK(ratio))
    steps = (Update(), Feedback(), coded) if feedback else (Update(), coded)
    return Averaging("fedcams", optimizer=SGD(lr), uplink=Uplink(*steps), server=AMSGrad(server_lr))
