"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, Algorithm 1, option II::

    server -> client   x, c
    client   y_i <- y_i - eta_l (g_i(y_i) - c_i + c)             K local steps from y_i = x
             c_i+ = c_i - c + (x - y_i) / (K eta_l)
    client -> server   dy_i = y_i - x,   dc_i = c_i+ - c_i;      c_i <- c_i+
    server   x <- x + eta_g mean_{i in S} dy_i,   c <- c + (|S| / N) mean_{i in S} dc_i

c and all c_i begin as 0. What travels and is kept is eta_l c: a movement a step, like dy_i / K, so
that only the local step knows eta_l. Batch statistics have no control variate.

Deviations from paper and authors' program: what, why, effect measured::

    the means are weighted by n_k, c    as everywhere in this          none with equal shares
      stays the mean of the c_i         package
    dc_i is sent, though the server     the paper sends it             81,314 bytes a message each
      could compute it from dy_i,                                      way, FedAvg's 40,957
      c and K                                                          (digits_cnn)
    control variates go dense through   what c loses would stay lost   as above
      a Lossy coder
    who is refused has changed its      it does not learn of it        c then is not the mean of
      c_i                                                              the c_i
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import WireError
from ..parts import Aggregator, Arrivals, Context, Downlink, Shifted, Step, Tensors, Update, Uplink
from ..round import Averaging
from ..servers import mean_update


class Controlled(Shifted):
    """SGD on g - (c_i - c)."""

    def _shift(self, params: list[torch.Tensor], ctx: Context) -> list[torch.Tensor]:
        apart = torch._foreach_sub(ctx.kept("c_i", params), ctx.kept("c", params))
        return list(torch._foreach_div(apart, self.lr))


class _Variates(Step):
    """What both directions share: one control variate beside each parameter."""

    def shapes(self, net: nn.Module) -> dict[str, tuple[int, ...]]:
        return {f"c/{n}": tuple(p.shape) for n, p in net.named_parameters() if p.requires_grad}


@dataclass(frozen=True)
class Controls(_Variates):
    """The server's c beside its state; the client keeps it until it has answered."""

    words, giver = "the server's control variates (Controls)", "downlink"

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        return x | {c: ctx.memory.get(c, torch.zeros_like(x[c[2:]])) for c in self.shapes(ctx.net)}

    def decode(self, x: Tensors, ctx: Context) -> Tensors:
        own = self.shapes(ctx.net)
        if not own.keys() <= x.keys():
            raise WireError("The server's control variates have not come.")
        ctx.memory.update({c: x[c] for c in own})
        return {n: t for n, t in x.items() if n not in own}


@dataclass(frozen=True)
class Changes(_Variates):
    """dc_i beside the update. What was sent is what c_i changes by."""

    words = "changes of control variates beside the updates (Changes)"
    needs, takes, makes = (
        frozenset({Controls}),
        Update,
        property(type, doc="The class of what comes out."),
    )

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        K = ctx.steps(ctx.client)
        return x | {c: -ctx.memory[c] - x[c[2:]] / K for c in self.shapes(ctx.net)}

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        for c in self.shapes(ctx.net):
            own = f"c_i/{c[2:]}"
            ctx.memory[own] = ctx.memory.get(own, 0) + sent[c]
            del ctx.memory[c]


@dataclass(frozen=True)
class Controlling(Aggregator):
    """Moves x by ``lr`` times the mean update, and keeps c."""

    words = "a server that keeps control variates (Controlling)"
    needs = frozenset({Changes})

    lr: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"The server's step must be above 0 and finite, not {self.lr!r}.")

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        moved = [n for n in state if n not in ctx.schema.buffers]
        c = {f"c/{n}": ctx.memory.get(f"c/{n}", torch.zeros_like(state[n])) for n in moved}
        d, share = mean_update(state | c, arrivals, ctx)
        ctx.memory |= {n: t + share * d[n] for n, t in c.items()}
        return {n: x + (self.lr if n in moved else 1) * d[n] for n, x in state.items()}


Controlled.needs, Controls.needs = frozenset({Controls}), frozenset({Controlling})


def scaffold(lr: float = 0.1, server_lr: float = 1.0) -> Averaging:
    """``lr`` is eta_l, ``server_lr`` eta_g. Twice FedAvg's bytes, in both directions. The parts go
    together: with another optimizer than ``Controlled`` the variates travel and correct nothing."""
    return Averaging(
        "scaffold",
        optimizer=Controlled(lr),
        uplink=Uplink(Update(), Changes()),
        downlink=Downlink(Controls()),
        server=Controlling(server_lr),
    )
