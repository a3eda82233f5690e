"""FedAdagrad, FedYogi and FedAdam: Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2::

    D = mean of the clients' updates,   m <- beta1 m + (1 - beta1) D
    FedAdagrad   v <- v + D^2
    FedYogi      v <- v - (1 - beta2) D^2 sign(v - D^2)
    FedAdam      v <- beta2 v + (1 - beta2) D^2
    x <- x + eta m / (sqrt(v) + tau)

eta is ``server_lr``; m begins as 0, v as tau^2, and neither is corrected for that. Batch statistics
are averaged as they are.
"""

from dataclasses import dataclass

import torch

from ..core import SGD, Aggregator, Arrivals, Averaging, Context, Tensors, Update
from ..errors import check_number, pick
from .base import mean_update

SECOND = {  # v, D^2, beta2 -> the next v
    "adagrad": lambda v, square, beta2: v + square,
    "yogi": lambda v, square, beta2: v - (1 - beta2) * square * torch.sign(v - square),
    "adam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
}


@dataclass(frozen=True)
class Adaptive(Aggregator):
    """The server's step, with the second moment v of one of the three ``kind``."""

    needs = (Update,)

    kind: str = "adam"
    lr: float = 0.03
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        pick(self.kind, SECOND, "second moment")
        check_number("lr of Adaptive", self.lr, above=0)
        check_number("beta1", self.beta1, minimum=0, below=1)
        check_number("beta2", self.beta2, minimum=0, below=1)
        check_number("tau", self.tau, above=0)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        memory = ctx.memory
        mean, _ = mean_update(state, arrivals, ctx)
        new = {n: x + mean[n] for n, x in state.items()}
        for n in state.keys() - ctx.schema.buffers:
            x = state[n]
            D = mean[n]
            m = self.beta1 * memory.get(f"m/{n}", 0) + (1 - self.beta1) * D
            v = memory.get(f"v/{n}", torch.full_like(x, self.tau**2))
            v = SECOND[self.kind](v, D * D, self.beta2)
            memory[f"m/{n}"] = m
            memory[f"v/{n}"] = v
            new[n] = x + self.lr * m / (v.sqrt() + self.tau)
        return new


def fedadagrad(lr: float = 0.1, server_lr: float = 0.03) -> Averaging:
    """FedAdagrad, Reddi et al. (2021), Algorithm 2: the sum of all squares, without momentum.

    beta1 is 0; else as ``fedadam``.
    """
    server = Adaptive("adagrad", server_lr, beta1=0.0)
    return Averaging("fedadagrad", optimizer=SGD(lr), server=server)


def fedyogi(lr: float = 0.1, server_lr: float = 0.03) -> Averaging:
    """FedYogi, Reddi et al. (2021), Algorithm 2: v changes by at most (1 - beta2) D^2 a round.

    Else as ``fedadam``.
    """
    return Averaging("fedyogi", optimizer=SGD(lr), server=Adaptive("yogi", server_lr))


def fedadam(lr: float = 0.1, server_lr: float = 0.03) -> Averaging:
    """FedAdam, Reddi et al. (2021), Algorithm 2: the moving average of the squares.

    beta1 is 0.9, beta2 0.99 and tau 0.001. ``but(server=Adaptive(...))`` with ``Adaptive`` of this
    module takes other values.
    """
    return Averaging("fedadam", optimizer=SGD(lr), server=Adaptive("adam", server_lr))
