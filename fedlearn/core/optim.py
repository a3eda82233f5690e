"""How is a local step taken?"""

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import check_number
from .context import Context, Part

Params = list[torch.Tensor]
Moments = dict[str, Any]  # what an optimiser keeps from step to step


class Optimizer(Part):
    """One step after the other, entry by entry.

    So stacked parameters [clients, ...] are no special case. Lists in the state hold a
    tensor for each parameter; other entries must stay as ``init`` made them.
    """

    def init(self, params: Params, ctx: Context) -> Moments:
        """The state with which local training begins."""
        return {}

    def step(self, params: Params, grads: Params, state: Moments) -> None:
        """Change the parameters, and the state, in place."""
        raise NotImplementedError


def decayed(grads: Params, params: Params, rate: float) -> Params:
    """g + rate w for each parameter."""
    return list(torch._foreach_add(grads, params, alpha=rate))


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, the same arithmetic as ``torch.optim.SGD``.

    Parameters
    ----------
    lr : float
        The learning rate of round 1.
    momentum, weight_decay : float
        As in torch; a client's velocity starts at zero in every round.
    decay : float
        Each round multiplies the rate by ``decay``.

    Raises
    ------
    ValueError
        For a value out of its range.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.SGD(0.05, momentum=0.9)
    SGD(lr=0.05, momentum=0.9, weight_decay=0.0, decay=1.0)
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        check_number("lr", self.lr, above=0)
        check_number("momentum", self.momentum, minimum=0, below=1)
        check_number("weight_decay", self.weight_decay, minimum=0)
        check_number("decay", self.decay, above=0, maximum=1)

    def init(self, params: Params, ctx: Context) -> Moments:
        state: Moments = {"lr": self.lr * self.decay ** (ctx.round - 1)}
        if self.momentum:
            state["velocity"] = [torch.zeros_like(p) for p in params]
        return state

    def step(self, params: Params, grads: Params, state: Moments) -> None:
        if self.weight_decay:
            grads = decayed(grads, params, self.weight_decay)
        if self.momentum:
            velocity = state["velocity"]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, grads)
            grads = velocity
        torch._foreach_add_(params, grads, alpha=-state["lr"])


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba (2015), Algorithm 1, the same arithmetic as ``torch.optim.Adam``.

    At a client it starts anew in every round (but see ``fedlearn.parts.Continued``).

    Parameters
    ----------
    lr, beta1, beta2, eps, weight_decay : float
        As in torch.

    Raises
    ------
    ValueError
        For a value out of its range.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.methods.fedavg().but(optimizer=fl.Adam(0.01)).optimizer.lr
    0.01
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_number("lr", self.lr, above=0)
        check_number("beta1", self.beta1, minimum=0, below=1)
        check_number("beta2", self.beta2, minimum=0, below=1)
        check_number("eps", self.eps, above=0)
        check_number("weight_decay", self.weight_decay, minimum=0)

    def init(self, params: Params, ctx: Context) -> Moments:
        state: Moments = {}
        for name in ("m", "v"):
            state[name] = [torch.zeros_like(p) for p in params]
        # 1 - beta^t, grown like the moments: c <- beta c + (1 - beta), for each client
        clients = len(ctx.client) if isinstance(ctx.client, list) else 1
        for name in ("c1", "c2"):
            state[name] = []
            for p in params:
                shape = (clients, *[1] * p.dim())
                state[name].append(p.new_zeros(shape[: p.dim()]))
        return state

    def step(self, params: Params, grads: Params, state: Moments) -> None:
        if self.weight_decay:
            grads = decayed(grads, params, self.weight_decay)
        m = state["m"]
        v = state["v"]
        c1 = state["c1"]
        c2 = state["c2"]
        self._average(m, c1, grads, self.beta1)
        self._average(v, c2, torch._foreach_mul(grads, grads), self.beta2)
        root = torch._foreach_sqrt(torch._foreach_div(v, c2))
        torch._foreach_add_(root, self.eps)
        direction = torch._foreach_div(torch._foreach_div(m, c1), root)
        torch._foreach_add_(params, direction, alpha=-self.lr)

    def _average(self, moment: Params, correction: Params, g: Any, beta: float) -> None:
        """moment <- beta moment + (1 - beta) g; the correction is that of g = 1."""
        torch._foreach_mul_(moment + correction, beta)
        torch._foreach_add_(moment, g, alpha=1 - beta)
        torch._foreach_add_(correction, 1 - beta)
