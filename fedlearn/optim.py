"""How is a local step taken?"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .arguments import BelowOne, NotNegative, Positive, Ratio
from .context import Context, Part, Tensors
from .wire.base import brief

Params = list[torch.Tensor]


class Optimizer(Part):
    """One step after the other, entry by entry, so that stacked parameters [clients, ...] are no
    special case. Lists in its state hold a tensor for each parameter; the rest must stay."""

    def init(self, params: Params, ctx: Context) -> dict[str, Any]:
        """The state with which local training begins."""
        return {}

    def step(self, params: Params, grads: Params, state: dict[str, Any]) -> None:
        """Change the parameters, and the state, in place."""
        raise NotImplementedError


def lasting(state: dict[str, Any]) -> Tensors:
    """The tensors of an optimiser's state by name, as a memory keeps them."""
    return {
        f"{key} {i}": t
        for key, value in state.items()
        if isinstance(value, list)
        for i, t in enumerate(value)
    }


def recalled(state: dict[str, Any], memory: Tensors) -> dict[str, Any]:
    """A state that ``init`` has just made, with what ``memory`` has kept of it."""
    for name, t in lasting(state).items():
        t.copy_(memory.get(name, t))
    return state


def shrunk(net: nn.Module) -> tuple[int, ...]:
    """The positions of the trained parameters that weight decay is for if it spares vectors; a
    layer whose ``decays`` is True is not spared."""
    params = [p for p in net.parameters() if p.requires_grad]
    scales = {id(p) for m in net.modules() if getattr(m, "decays", False) for p in m.parameters()}
    return tuple(i for i, p in enumerate(params) if p.dim() > 1 or id(p) in scales)


def decayed(grads: Params, params: Params, rate: float, only: Any) -> Params:
    """g + rate w, for the parameters at the positions ``only``, or for all (None)."""
    rates = [rate if only is None or i in only else 0.0 for i in range(len(params))]
    return [g.add(p, alpha=r) if r else g for g, p, r in zip(grads, params, rates, strict=True)]


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
        For what is out of range.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.SGD(0.05, momentum=0.9)
    SGD(lr=0.05, momentum=0.9, weight_decay=0.0, decay=1.0)
    """

    __repr__ = brief

    lr: Positive = 0.1
    momentum: BelowOne = 0.0
    weight_decay: NotNegative = 0.0
    decay: Ratio = 1.0
    floor: float = field(default=0.0, repr=False)
    nesterov: bool = field(default=False, repr=False)
    spare: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= self.lr:
            raise ValueError(f"floor of SGD is from 0 to lr, not {self.floor!r}.")
        if self.nesterov and not self.momentum:
            raise ValueError(f"Nesterov's momentum needs momentum > 0, not {self}.")

    def init(self, params: Params, ctx: Context) -> dict[str, Any]:
        velocity = [torch.zeros_like(p) for p in params] if self.momentum else None
        rate = max(self.lr * self.decay ** (ctx.round - 1), self.floor)
        return {"lr": rate, "velocity": velocity, "only": shrunk(ctx.net) if self.spare else None}

    def step(self, params: Params, grads: Params, state: dict[str, Any]) -> None:
        if self.weight_decay:
            grads = decayed(grads, params, self.weight_decay, state["only"])
        if self.momentum:
            torch._foreach_mul_(state["velocity"], self.momentum)
            torch._foreach_add_(state["velocity"], grads)
            if self.nesterov:
                grads = list(torch._foreach_add(grads, state["velocity"], alpha=self.momentum))
            else:
                grads = state["velocity"]
        torch._foreach_add_(params, grads, alpha=-state["lr"])


@dataclass(frozen=True)
class Shifted(SGD):
    """SGD on g - shift, where the shift comes of what the client keeps and stays for a round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay != 1:
            raise ValueError(f"Shifted gradients need a constant rate, not decay {self.decay!r}.")

    def _shift(self, params: Params, ctx: Context) -> Params:
        """The shift, like the parameters."""
        raise NotImplementedError

    def init(self, params: Params, ctx: Context) -> dict[str, Any]:
        return super().init(params, ctx) | {"shift": self._shift(params, ctx)}

    def step(self, params: Params, grads: Params, state: dict[str, Any]) -> None:
        super().step(params, list(torch._foreach_sub(grads, state["shift"])), state)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba (2015), Algorithm 1, the same arithmetic as ``torch.optim.Adam``. At a client
    it starts anew in every round (but see ``fedlearn.parts.Continued``).

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
        For what is out of range.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.methods.fedavg().but(optimizer=fl.Adam(0.01)).optimizer.lr
    0.01
    """

    __repr__ = brief

    lr: Positive = 0.001
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    decoupled: bool = False
    amsgrad: bool = field(default=False, repr=False)
    spare: bool = field(default=False, repr=False)

    def init(self, params: Params, ctx: Context) -> dict[str, Any]:
        # 1 - beta^t, grown like the moments themselves: m <- beta m + (1 - beta) g with g = 1
        many = len(ctx.client) if ctx and isinstance(ctx.client, list) else 1
        moments = ("m", "v", "highest") if self.amsgrad else ("m", "v")
        state: dict[str, Any] = {n: [torch.zeros_like(p) for p in params] for n in moments}
        for n in ("c1", "c2"):
            state[n] = [p.new_zeros(((many,) + (1,) * p.dim())[: p.dim()]) for p in params]
        return state | {"only": shrunk(ctx.net) if self.spare else None}

    def step(self, params: Params, grads: Params, state: dict[str, Any]) -> None:
        if self.decoupled:
            only = range(len(params)) if state["only"] is None else state["only"]
            torch._foreach_mul_([params[i] for i in only], 1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            grads = decayed(grads, params, self.weight_decay, state["only"])
        torch._foreach_add_(params, self._direction(grads, state), alpha=-self.lr)

    def _direction(self, grads: Params, state: dict[str, Any]) -> Params:
        """m / (sqrt(v) + eps), both moments corrected for their start."""
        squares = torch._foreach_mul(grads, grads)
        for moment, count, beta, g in (
            ("m", "c1", self.beta1, grads),
            ("v", "c2", self.beta2, squares),
        ):
            torch._foreach_mul_(state[moment] + state[count], beta)
            torch._foreach_add_(state[moment], g, alpha=1 - beta)
            torch._foreach_add_(state[count], 1 - beta)
        v = state["v"]
        if self.amsgrad:
            torch._foreach_maximum_(state["highest"], v)
            v = state["highest"]
        root = torch._foreach_sqrt(torch._foreach_div(v, state["c2"]))
        torch._foreach_add_(root, self.eps)
        return list(torch._foreach_div(torch._foreach_div(state["m"], state["c1"]), root))


@dataclass(frozen=True)
class Continued(Optimizer):
    """Another optimiser whose state, as long as finite, stays in the client's memory."""

    of: Optimizer = Adam()

    @property
    def needs(self) -> Any:
        return self.of.needs

    def init(self, params: Params, ctx: Context) -> dict[str, Any]:
        state, many = self.of.init(params, ctx), isinstance(ctx.memory, list)
        for k, memory in enumerate(ctx.memory if many else [ctx.memory]):
            tensors = {f"optimizer {n}": t[k] if many else t for n, t in lasting(state).items()}
            if all(n in memory and memory[n].isfinite().all() for n in tensors):
                for n, t in tensors.items():
                    t.copy_(memory[n])
            memory.update(tensors)  # those that training changes
        return state

    def step(self, params: Params, grads: Params, state: dict[str, Any]) -> None:
        self.of.step(params, grads, state)
