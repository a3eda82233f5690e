"""How is a local step taken?"""

from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import check_number
from ..wire.base import brief
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


def decay_positions(params: Params, ctx: Context, spare: bool) -> tuple[int, ...]:
    """The positions of the parameters that weight decay is for.

    ``spare`` leaves out vectors, but not those of a layer whose ``decays`` is True.
    """
    if not spare:
        return tuple(range(len(params)))
    scales: set[int] = set()
    for module in ctx.net.modules():
        if getattr(module, "decays", False):
            scales.update(id(p) for p in module.parameters())
    trained = [p for p in ctx.net.parameters() if p.requires_grad]
    wide = [p.dim() > 1 or id(p) in scales for p in trained]
    return tuple(i for i, decays in enumerate(wide) if decays)


def decayed(grads: Params, params: Params, rate: float, state: Moments) -> Params:
    """g + rate w for the parameters that weight decay is for, g for the others."""
    grads = list(grads)
    for i in state["decayed"]:
        grads[i] = grads[i].add(params[i], alpha=rate)
    return grads


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, the same arithmetic as ``torch.optim.SGD``.

    Parameters
    ----------
    lr : float
        The learning rate of round 1.
    momentum, weight_decay : float
        As in torch; a client's velocity starts at zero in every round.
    decay, floor : float
        Each round multiplies the rate by ``decay``, down to ``floor``.
    nesterov : bool
        Nesterov's momentum.
    spare : bool
        No weight decay for vectors: biases and normalisation.

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

    __repr__ = brief

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0
    floor: float = field(default=0.0, repr=False)
    nesterov: bool = field(default=False, repr=False)
    spare: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        check_number("lr", self.lr, above=0)
        check_number("momentum", self.momentum, least=0, below=1)
        check_number("weight_decay", self.weight_decay, least=0)
        check_number("decay", self.decay, above=0, most=1)
        check_number("floor", self.floor, least=0, most=self.lr)
        if self.nesterov and not self.momentum:
            raise ValueError(f"Nesterov's momentum needs momentum > 0, not {self}.")

    def init(self, params: Params, ctx: Context) -> Moments:
        state: Moments = {}
        state["lr"] = max(self.lr * self.decay ** (ctx.round - 1), self.floor)
        state["decayed"] = decay_positions(params, ctx, self.spare)
        if self.momentum:
            state["velocity"] = [torch.zeros_like(p) for p in params]
        return state

    def step(self, params: Params, grads: Params, state: Moments) -> None:
        if self.weight_decay:
            grads = decayed(grads, params, self.weight_decay, state)
        if self.momentum:
            velocity = state["velocity"]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, grads)
            if self.nesterov:
                grads = list(torch._foreach_add(grads, velocity, alpha=self.momentum))
            else:
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
    decoupled : bool
        Weight decay apart from the moments: AdamW (Loshchilov and Hutter, 2019).
    amsgrad : bool
        Divide by the largest second moment so far (Reddi et al., 2018).
    spare : bool
        No weight decay for vectors: biases and normalisation.

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

    __repr__ = brief

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    amsgrad: bool = field(default=False, repr=False)
    spare: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        check_number("lr", self.lr, above=0)
        check_number("beta1", self.beta1, least=0, below=1)
        check_number("beta2", self.beta2, least=0, below=1)
        check_number("eps", self.eps, above=0)
        check_number("weight_decay", self.weight_decay, least=0)

    def init(self, params: Params, ctx: Context) -> Moments:
        state: Moments = {}
        state["decayed"] = decay_positions(params, ctx, self.spare)
        for name in ("m", "v", "highest") if self.amsgrad else ("m", "v"):
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
        if self.decoupled:
            weights = [params[i] for i in state["decayed"]]
            torch._foreach_mul_(weights, 1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            grads = decayed(grads, params, self.weight_decay, state)
        torch._foreach_add_(params, self._direction(grads, state), alpha=-self.lr)

    def _direction(self, grads: Params, state: Moments) -> Params:
        """m / (sqrt(v) + eps), both moments corrected for their start."""
        m = state["m"]
        v = state["v"]
        c1 = state["c1"]
        c2 = state["c2"]
        self._average(m, c1, grads, self.beta1)
        self._average(v, c2, torch._foreach_mul(grads, grads), self.beta2)
        if self.amsgrad:
            torch._foreach_maximum_(state["highest"], v)
            v = state["highest"]
        root = torch._foreach_sqrt(torch._foreach_div(v, c2))
        torch._foreach_add_(root, self.eps)
        return list(torch._foreach_div(torch._foreach_div(m, c1), root))

    def _average(self, moment: Params, correction: Params, g: Any, beta: float) -> None:
        """moment <- beta moment + (1 - beta) g; the correction is that of g = 1."""
        torch._foreach_mul_(moment + correction, beta)
        torch._foreach_add_(moment, g, alpha=1 - beta)
        torch._foreach_add_(correction, 1 - beta)
