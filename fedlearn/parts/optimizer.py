"""The third part: how is a local step taken?"""

from dataclasses import dataclass
from typing import Any

import torch

from .base import Context, Part, Tensors


class Optimizer(Part):
    """One step after the other. Works entry by entry, so that stacked parameters [clients, ...] are
    no special case. Lists in its state hold one tensor for each parameter; what else is in there
    must not change between steps."""

    recordable = False  # as in ``Objective``

    def __init_subclass__(cls) -> None:
        cls.recordable = cls.__dict__.get("recordable", False)

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        """The state with which local training begins."""
        return {}

    def step(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any]
    ) -> None:
        """Change the parameters, and the state, in place."""
        raise NotImplementedError


def kept(state: dict[str, Any]) -> Tensors:
    """The tensors of an optimiser's state by name, as a memory keeps them until training goes
    on."""
    lists = {key: value for key, value in state.items() if isinstance(value, list)}
    return {f"{key} {i}": t for key, value in lists.items() for i, t in enumerate(value)}


def recalled(state: dict[str, Any], memory: Tensors) -> dict[str, Any]:
    """A state as ``init`` gives it, with copies of the tensors that ``memory`` has kept of it."""
    return {
        key: [memory.get(f"{key} {i}", t).clone() for i, t in enumerate(value)]
        if isinstance(value, list)
        else value
        for key, value in state.items()
    }


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, the same arithmetic as ``torch.optim.SGD``. ``decay`` multiplies
    the rate each round.

    Written with torch's list operations, so that importing torch's compiler, as ``torch.optim``
    does, is not needed.
    """

    recordable = True

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        fine = self.lr > 0 and 0 <= self.momentum < 1 and self.weight_decay >= 0
        if not fine or not 0 < self.decay <= 1:
            raise ValueError(
                "SGD needs lr > 0, 0 <= momentum < 1, weight_decay >= 0 and 0 < decay <= 1, not "
                f"{self}."
            )

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        velocity = [torch.zeros_like(p) for p in params] if self.momentum else None
        return {"lr": self.lr * self.decay ** (ctx.round - 1), "velocity": velocity}

    def step(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any]
    ) -> None:
        if self.weight_decay:
            grads = torch._foreach_add(grads, params, alpha=self.weight_decay)
        if self.momentum:
            torch._foreach_mul_(state["velocity"], self.momentum)
            torch._foreach_add_(state["velocity"], grads)
            grads = state["velocity"]
        torch._foreach_add_(params, grads, alpha=-state["lr"])


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba (2015), Algorithm 1: the same arithmetic as ``torch.optim.Adam``. At clients it
    starts anew every round. ``decoupled`` takes the weight decay out of the moments:
    ``torch.optim.AdamW`` (Loshchilov and Hutter, 2019)."""

    recordable = True

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        fine = self.lr > 0 and 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1
        if not fine or not self.eps > 0 or not self.weight_decay >= 0:
            raise ValueError(
                "Adam needs lr > 0, 0 <= beta1, beta2 < 1, eps > 0 and weight_decay >= 0, not "
                f"{self}."
            )

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        # 1 - beta^t, grown like the moments themselves: m <- beta m + (1 - beta) g with g = 1
        ones = [p.new_zeros(p.shape[:1] + (1,) * (p.dim() - 1)) for p in params]
        zeros = [torch.zeros_like(p) for p in params]
        again = list(map(torch.clone, zeros)), list(map(torch.clone, ones))
        return {"m": zeros, "v": again[0], "c1": ones, "c2": again[1]}

    def step(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any]
    ) -> None:
        if self.decoupled:
            torch._foreach_mul_(params, 1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            grads = torch._foreach_add(grads, params, alpha=self.weight_decay)
        torch._foreach_add_(params, self._direction(grads, state), alpha=-self.lr)

    def _direction(
        self, grads: list[torch.Tensor], state: dict[str, Any]
    ) -> list[torch.Tensor] | tuple[torch.Tensor, ...]:
        """m / (sqrt(v) + eps), both moments corrected for their start."""
        squares = torch._foreach_mul(grads, grads)
        for name, beta, g in (("m", self.beta1, grads), ("v", self.beta2, squares)):
            torch._foreach_mul_(state[name], beta)
            torch._foreach_add_(state[name], g, alpha=1 - beta)
        for name, beta in (("c1", self.beta1), ("c2", self.beta2)):
            torch._foreach_mul_(state[name], beta)
            torch._foreach_add_(state[name], 1 - beta)
        root = torch._foreach_sqrt(torch._foreach_div(state["v"], state["c2"]))
        torch._foreach_add_(root, self.eps)
        return torch._foreach_div(torch._foreach_div(state["m"], state["c1"]), root)
