"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2::

    client:  minimise  h_k(w; w^t) = F_k(w) + mu / 2 ||w - w^t||^2            Eq. (2)

w^t is the downloaded model. The rest is federated averaging, which is mu = 0.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ..core import SGD, Averaging, Batch, Context, Loss, Objective
from ..errors import check_number
from .base import inner, trained


@dataclass(frozen=True)
class Proximal(Objective):
    """The task's loss plus ``mu`` / 2 times the squared distance from the downloaded model."""

    mu: float

    def __post_init__(self) -> None:
        check_number("mu", self.mu, minimum=0)

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        F = ctx.task.loss
        w, start = trained(net, ctx)

        def h(net: nn.Module, batch: Batch) -> torch.Tensor:
            moved = torch._foreach_sub(w, start)
            return F(net(batch.x), batch.y) + self.mu / 2 * inner(moved, moved, ctx)

        return h


def fedprox(lr: float = 0.1, mu: float = 0.01) -> Averaging:
    """FedProx, Li et al. (2020), Algorithm 2 and Eq. (2).

    Parameters
    ----------
    mu : float
        Weight of the proximal term, at least 0; the paper tries 0.001, 0.01, 0.1 and 1.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * all clients train E epochs, without stragglers; not measured: E is of a run, not of a client
    * clients are drawn with equal probability and weighted by n_k, as in the program (paper: drawn
      by n_k, equal weights): none with equal shares
    """
    return Averaging("fedprox", objective=Proximal(mu), optimizer=SGD(lr))
