"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, Algorithm 1, option II::

    server -> client   x, c
    client   y_i <- y_i - eta_l (g_i(y_i) - c_i + c)             K local steps from y_i = x
             c_i+ = c_i - c + (x - y_i) / (K eta_l)
    client -> server   dy_i = y_i - x,   dc_i = c_i+ - c_i;      c_i <- c_i+
    server   x <- x + eta_g mean_{i in S} dy_i,   c <- c + (|S| / N) mean_{i in S} dc_i

c and all c_i begin as 0. Messages and memories hold eta_l c, the movement of a step like dy_i / K.
So only the local step knows eta_l. Batch statistics have no control variate.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ..core import (
    Aggregator,
    Arrivals,
    Averaging,
    Context,
    Downlink,
    Step,
    Tensors,
    Update,
    Uplink,
)
from ..core.optim import Params
from ..errors import check_number
from ..models import state_of
from .base import Added, Shapes, Shifted, mean_update, remembered, shapes_of


class Controlled(Shifted):
    """SGD on g - (c_i - c)."""

    def _shift(self, params: Params, ctx: Context) -> Params:
        c_i = remembered(ctx, "c_i", params)
        c = remembered(ctx, "c", params)
        return list(torch._foreach_div(torch._foreach_sub(c_i, c), self.lr))


def variates(net: nn.Module) -> Shapes:
    """The shape of the control variate beside each parameter of the state that is trained."""
    trained = {n for n, p in net.named_parameters() if p.requires_grad}
    shapes = shapes_of(state_of(net))
    return {f"c/{n}": shape for n, shape in shapes.items() if n in trained}


def controlled(ctx: Context) -> list[str]:
    """The names of the tensors that have a control variate in this message."""
    return [name for name in ctx.initial if f"c/{name}" in ctx.schema.shapes]


@dataclass(frozen=True)
class Controls(Added):
    """The server's c beside its state; the client stores it until it has answered."""

    def shapes(self, net: nn.Module) -> Shapes:
        return variates(net)

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        c = {}
        for n in controlled(ctx):
            c[f"c/{n}"] = ctx.memory.get(f"c/{n}", torch.zeros_like(x[n]))
        return x | c


@dataclass(frozen=True)
class Changes(Step):
    """dc_i beside the update; c_i changes by the decoded dc_i."""

    needs = (Controls,)
    takes = Update
    makes = property(type, doc="The class of this step, so that subclasses differ.")

    def shapes(self, net: nn.Module) -> Shapes:
        return variates(net)

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        K = ctx.steps(ctx.client)
        changes = {}
        for n in controlled(ctx):
            changes[f"c/{n}"] = -ctx.memory[f"c/{n}"] - x[n] / K
        return x | changes

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        for n in controlled(ctx):
            c_i = ctx.memory.get(f"c_i/{n}", 0)
            ctx.memory[f"c_i/{n}"] = c_i + sent[f"c/{n}"]
            del ctx.memory[f"c/{n}"]


@dataclass(frozen=True)
class Controlling(Aggregator):
    """Moves x by ``lr`` times the mean update, and keeps c."""

    needs = (Changes,)

    lr: float

    def __post_init__(self) -> None:
        check_number("lr of Controlling", self.lr, above=0)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        c = {}
        for n in state.keys() - ctx.schema.buffers:
            c[f"c/{n}"] = ctx.memory.get(f"c/{n}", torch.zeros_like(state[n]))
        d, share = mean_update(state | c, arrivals, ctx)
        for name, t in c.items():
            ctx.memory[name] = t + share * d[name]
        new = {}
        for n, x in state.items():
            eta_g = 1 if n in ctx.schema.buffers else self.lr
            new[n] = x + eta_g * d[n]
        return new


Controlled.needs = (Controls,)
Controls.needs = (Controlling,)


def scaffold(lr: float = 0.1, server_lr: float = 1.0) -> Averaging:
    """SCAFFOLD, Karimireddy et al. (2020), Algorithm 1, option II; twice FedAvg's bytes both ways.

    The parts belong together: with another optimizer than ``Controlled`` the variates travel
    without effect.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * the means are weighted by n_k, c stays the mean of the c_i: none with equal shares
    * dc_i is sent as in the paper, though the server could compute it from dy_i, c and K: 81,314
      bytes a message each way, FedAvg's 40,957 (digits_cnn)
    * control variates travel dense through a Lossy coder, or the losses of c would add up
    """
    return Averaging(
        "scaffold",
        optimizer=Controlled(lr),
        uplink=Uplink(Update(), Changes()),
        downlink=Downlink(Controls()),
        server=Controlling(server_lr),
    )
