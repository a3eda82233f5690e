"""How is a local step taken?"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .context import Context, Part, Tensors
from .wire.base import brief


class Optimizer(Part):
    """One step after the other. Works entry by entry, so that stacked parameters [clients, ...] are
    no special case. Lists in its state hold one tensor for each parameter; what else is in there
    must not change between steps."""

    giver = "optimizer"

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        """The state with which local training begins."""
        return {}

    def step(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any]
    ) -> None:
        """Change the parameters, and the state, in place."""
        raise NotImplementedError


def lasting(state: dict[str, Any]) -> Tensors:
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


def shrunk(net: nn.Module) -> tuple[int, ...]:
    """The positions, among the parameters that are trained, of those that weight decay is for if it
    spares vectors: biases and normalisation are left alone, and a layer whose ``decays`` is True
    (``models.reparam.Scale``) is not."""
    trained = [(m, p) for m in net.modules() for p in m.parameters(False) if p.requires_grad]
    place = {id(p): i for i, p in enumerate(p for p in net.parameters() if p.requires_grad)}
    chosen = {place[id(p)] for m, p in trained if p.dim() > 1 or getattr(m, "decays", False)}
    return tuple(sorted(chosen))


def decayed(
    grads: list[torch.Tensor], params: list[torch.Tensor], rate: float, only: Any
) -> list[torch.Tensor]:
    """g + rate w, for the parameters at the positions ``only``, or for all (None)."""
    if only is None:
        return list(torch._foreach_add(grads, params, alpha=rate))
    grads = list(grads)
    some = [grads[i] for i in only], [params[i] for i in only]
    for i, g in zip(only, torch._foreach_add(*some, alpha=rate), strict=True):
        grads[i] = g
    return grads


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, the same arithmetic as ``torch.optim.SGD``. ``decay`` multiplies
    the rate each round, down to ``floor``; ``spare`` keeps weight decay from vectors (``shrunk``).

    Written with torch's list operations, so that importing torch's compiler, as ``torch.optim``
    does, is not needed.
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
        fine = self.lr > 0 and 0 <= self.momentum < 1 and self.weight_decay >= 0
        if not fine or not 0 < self.decay <= 1 or not 0 <= self.floor <= self.lr:
            raise ValueError(
                "SGD needs lr > 0, 0 <= momentum < 1, weight_decay >= 0, 0 < decay <= 1 and "
                f"0 <= floor <= lr, not {self}."
            )
        if self.nesterov and not self.momentum:
            raise ValueError(f"Nesterov's momentum needs momentum > 0, not {self}.")

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        velocity = [torch.zeros_like(p) for p in params] if self.momentum else None
        rate = max(self.lr * self.decay ** (ctx.round - 1), self.floor)
        return {"lr": rate, "velocity": velocity, "only": shrunk(ctx.net) if self.spare else None}

    def step(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any]
    ) -> None:
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
            raise ValueError(
                f"Shifted gradients need a constant learning rate: decay 1, not {self.decay!r}."
            )

    def _shift(self, params: list[torch.Tensor], ctx: Context) -> list[torch.Tensor]:
        """The shift, like the parameters."""
        raise NotImplementedError

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        return super().init(params, ctx) | {"shift": self._shift(params, ctx)}

    def step(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any]
    ) -> None:
        super().step(params, list(torch._foreach_sub(grads, state["shift"])), state)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba (2015), Algorithm 1: the same arithmetic as ``torch.optim.Adam``. At clients it
    starts anew every round (but see ``Continued``). ``decoupled`` takes the weight decay out of
    the moments: ``torch.optim.AdamW`` (Loshchilov and Hutter, 2019). ``amsgrad`` divides by the
    largest second moment so far (Reddi et al., 2018). ``spare``: as for ``SGD``."""

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
        fine = self.lr > 0 and 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1
        if not fine or not self.eps > 0 or not self.weight_decay >= 0:
            raise ValueError(
                "Adam needs lr > 0, 0 <= beta1, beta2 < 1, eps > 0 and weight_decay >= 0, not "
                f"{self}."
            )

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        # 1 - beta^t, grown like the moments themselves: m <- beta m + (1 - beta) g with g = 1
        many = len(ctx.client) if ctx and isinstance(ctx.client, list) else 1
        ones = [p.new_zeros(((many,) + (1,) * p.dim())[: p.dim()]) for p in params]
        zeros = [torch.zeros_like(p) for p in params]
        again = list(map(torch.clone, zeros)), list(map(torch.clone, ones))
        state = {"m": zeros, "v": again[0], "c1": ones, "c2": again[1]}
        if self.amsgrad:
            state["highest"] = list(map(torch.clone, zeros))
        return state | {"only": shrunk(ctx.net) if self.spare else None}

    def step(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any]
    ) -> None:
        if self.decoupled:
            own = params if state["only"] is None else [params[i] for i in state["only"]]
            torch._foreach_mul_(own, 1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            grads = decayed(grads, params, self.weight_decay, state["only"])
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
        v = state["v"]
        if self.amsgrad:
            torch._foreach_maximum_(state["highest"], v)
            v = state["highest"]
        root = torch._foreach_sqrt(torch._foreach_div(v, state["c2"]))
        torch._foreach_add_(root, self.eps)
        return torch._foreach_div(torch._foreach_div(state["m"], state["c1"]), root)


@dataclass(frozen=True)
class Continued(Optimizer):
    """Another optimiser that goes on at a client where it stopped in its last round: moments and
    velocities stay in the client's memory. What is not finite begins anew."""

    of: Optimizer = Adam()

    def __post_init__(self) -> None:
        if not isinstance(self.of, Optimizer):
            raise ValueError(f"{self.of!r} is no optimizer (fedlearn.parts.Optimizer).")

    @property
    def needs(self) -> Any:
        return self.of.needs

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        state, many = self.of.init(params, ctx), isinstance(ctx.memory, list)
        for k, memory in enumerate(ctx.memory if many else [ctx.memory]):
            own = {f"optimizer {n}": t[k] if many else t for n, t in lasting(state).items()}
            before = {n: memory[n] for n in own if n in memory}
            if before and all(torch.isfinite(t).all() for t in before.values()):
                for n, t in before.items():
                    own[n].copy_(t)
            memory.update(own)  # the tensors that training changes
        return state

    def step(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any]
    ) -> None:
        self.of.step(params, grads, state)
