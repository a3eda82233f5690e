"""FedDyn: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021,
Algorithm 1::

    client:  minimise  L_k(theta) - <g_k, theta> + alpha / 2 ||theta - theta^t||^2       Eq. (1)
             g_k <- g_k - alpha (theta_k - theta^t)     at its optimum the gradient of L_k
    server:  h <- h - alpha (1 / m) sum_{k in P_t} (theta_k - theta^t)
             theta^{t+1} = mean_{k in P_t} theta_k - h / alpha

g_k and h begin as 0; m is the number of all clients. Both are kept divided by -alpha, as sums of
movements: s_k <- s_k + u_k at the client, S <- S + (1 / m) sum u_k at the server, which adds S and
need not know alpha. A message is one of FedAvg.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ..core import (
    SGD,
    Aggregator,
    Arrivals,
    Averaging,
    Batch,
    Context,
    Loss,
    Objective,
    Step,
    Tensors,
    Update,
    Uplink,
)
from ..errors import check_number
from .base import inner, mean_update, remembered, trained


@dataclass(frozen=True)
class Sum(Step):
    """Stores s_k, the sum of all sent updates."""

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        for n in sent.keys() - ctx.schema.buffers:
            ctx.memory[f"sum/{n}"] = ctx.memory.get(f"sum/{n}", 0) + sent[n]


@dataclass(frozen=True)
class Dynamic(Objective):
    """The task's loss + alpha (<s_k, theta - theta^t> + 1/2 ||theta - theta^t||^2)."""

    needs = (Sum,)

    alpha: float

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0)

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        L = ctx.task.loss
        theta, start = trained(net, ctx)
        s = remembered(ctx, "sum", theta)

        def loss(net: nn.Module, batch: Batch) -> torch.Tensor:
            moved = torch._foreach_sub(theta, start)
            pull = torch._foreach_add(s, moved, alpha=0.5)
            return L(net(batch.x), batch.y) + self.alpha * inner(moved, pull, ctx)

        return loss


@dataclass(frozen=True)
class Summing(Aggregator):
    """The mean of the clients, and S = -h / alpha on top of it."""

    needs = (Update, Sum)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        u, share = mean_update(state, arrivals, ctx)
        for n in state.keys() - ctx.schema.buffers:
            S = ctx.memory.get(f"sum/{n}", 0) + share * u[n]
            ctx.memory[f"sum/{n}"] = S
            u[n] = u[n] + S
        return {n: theta + u[n] for n, theta in state.items()}


def feddyn(lr: float = 0.1, alpha: float = 0.1) -> Averaging:
    """FedDyn, Acar et al. (2021), Algorithm 1.

    Parameters
    ----------
    alpha : float
        Weight of the dynamic regulariser, above 0.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * the means are weighted by n_k, S stays the mean of the s_k: none with equal shares
    * alpha is not scaled by n_k, authors': divided by the share; none with equal shares
    * no weight decay, authors': "decay 0.001"; gradients not clipped, authors': at 10; not
      measured: no optimiser here clips
    """
    return Averaging(
        "feddyn",
        objective=Dynamic(alpha),
        optimizer=SGD(lr),
        uplink=Uplink(Update(), Sum()),
        server=Summing(),
    )
