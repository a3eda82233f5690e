"""FedAdagrad, FedYogi and FedAdam: Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2::

    D = mean of the clients' updates,   m <- beta1 m + (1 - beta1) D
    FedAdagrad   v <- v + D^2
    FedYogi      v <- v - (1 - beta2) D^2 sign(v - D^2)
    FedAdam      v <- beta2 v + (1 - beta2) D^2
    x <- x + eta m / (sqrt(v) + tau)

eta is ``server_lr``; m begins as 0, v as tau^2, and neither is corrected for that. Batch statistics
are averaged as they are.

Deviations from paper and authors' program: what, why, effect measured::

    D is weighted by n_k                the paper's experiments do;    none with equal shares
                                        Algorithm 2: clients alike
"""

from dataclasses import dataclass

import torch

from ..errors import pick
from ..parts import SGD, Aggregator, Arrivals, Context, Tensors, Update
from ..round import Averaging
from ..servers import mean_update

SECOND = {  # v, D^2, beta2 -> the next v
    "adagrad": lambda v, square, beta2: v + square,
    "yogi": lambda v, square, beta2: v - (1 - beta2) * square * torch.sign(v - square),
    "adam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
}


@dataclass(frozen=True)
class Adaptive(Aggregator):
    """The server's step, with the second moment v of one of the three ``kind``."""

    needs = frozenset({Update})

    kind: str = "adam"
    lr: float = 0.03
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        pick(self.kind, SECOND, "second moment")
        betas = 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1
        if not (betas and 0 < self.lr < float("inf") and 0 < self.tau < float("inf")):
            raise ValueError(
                "An adaptive server needs server_lr and tau above 0 and finite, and 0 <= beta1, "
                f"beta2 < 1, not {self}."
            )

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        (mean, _), memory = mean_update(state, arrivals, ctx), ctx.memory
        new = {n: x + mean[n] for n, x in state.items()}
        for n in state.keys() - ctx.schema.buffers:
            D, x = mean[n], state[n]
            m = self.beta1 * memory.get(f"m/{n}", 0) + (1 - self.beta1) * D
            v = memory.get(f"v/{n}", torch.full_like(x, self.tau**2))
            v = SECOND[self.kind](v, D * D, self.beta2)
            memory |= {f"m/{n}": m, f"v/{n}": v}
            new[n] = x + self.lr * m / (v.sqrt() + self.tau)
        return new


def fedadagrad(lr: float = 0.1, server_lr: float = 0.03, tau: float = 1e-3) -> Averaging:
    """The sum of all squares, without momentum: beta1 = 0."""
    server = Adaptive("adagrad", server_lr, beta1=0.0, tau=tau)
    return Averaging("fedadagrad", optimizer=SGD(lr), server=server)


def fedyogi(
    lr: float = 0.1,
    server_lr: float = 0.03,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> Averaging:
    """A second moment that changes by no more than (1 - beta2) D^2 a round."""
    server = Adaptive("yogi", server_lr, beta1, beta2, tau)
    return Averaging("fedyogi", optimizer=SGD(lr), server=server)


def fedadam(
    lr: float = 0.1,
    server_lr: float = 0.03,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> Averaging:
    """The moving average of the squares."""
    server = Adaptive("adam", server_lr, beta1, beta2, tau)
    return Averaging("fedadam", optimizer=SGD(lr), server=server)
