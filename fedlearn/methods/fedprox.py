"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2::

    client:  minimise  h_k(w; w^t) = F_k(w) + mu / 2 ||w - w^t||^2            Eq. (2)

w^t is what the client has downloaded. All else is federated averaging, which is mu = 0.

Deviations from paper and authors' program: what, why, effect measured::

    everybody trains E epochs           the share of stragglers that   not measured: E is of a
                                        do less is the experiment's    run, not of a client
    clients drawn alike, the mean is    the program does so; in the    none with equal shares
      weighted by n_k                   paper drawn by n_k, mean of
                                        all alike
"""

from dataclasses import dataclass

import torch
from torch import nn

from ..local import Loss, inner, trained
from ..parts import SGD, Batch, Context, Objective
from ..round import Averaging


@dataclass(frozen=True)
class Proximal(Objective):
    """The task's loss plus ``mu`` / 2 times the squared distance from the downloaded model."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.mu < float("inf"):
            raise ValueError(f"mu is at least 0 and finite, not {self.mu!r}.")

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        F, (w, start) = ctx.task.loss, trained(net, ctx)

        def h(net: nn.Module, batch: Batch) -> torch.Tensor:
            moved = torch._foreach_sub(w, start)
            return F(net(batch.x), batch.y) + self.mu / 2 * inner(moved, moved, ctx)

        return h


def fedprox(lr: float = 0.1, mu: float = 0.01, momentum: float = 0.0) -> Averaging:
    """``mu`` weighs the proximal term; the paper tries 0.001, 0.01, 0.1 and 1."""
    return Averaging("fedprox", objective=Proximal(mu), optimizer=SGD(lr, momentum))
