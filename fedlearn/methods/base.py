"""Parts and functions that several methods share."""

import copy
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..core import (
    SGD,
    Adam,
    Arrival,
    Arrivals,
    Batch,
    Context,
    Mean,
    Optimizer,
    Part,
    Step,
    Tensors,
)
from ..core.optim import Moments, Params
from ..errors import WireError

Shapes = dict[str, tuple[int, ...]]


def clones(tensors: Tensors) -> Tensors:
    """A copy of each tensor."""
    return {name: t.clone() for name, t in tensors.items()}


def shapes_of(tensors: Tensors) -> Shapes:
    """The shape of each tensor."""
    return {name: tuple(t.shape) for name, t in tensors.items()}


def trained(net: nn.Module, ctx: Context) -> tuple[Params, Params]:
    """The trained parameters, and their values at the start of local training."""
    params = []
    starts = []
    for name, p in net.named_parameters():
        if p.requires_grad:
            params.append(p)
            start = ctx.start.get(name)
            starts.append(p.detach().clone() if start is None else start)
    return params, starts


def inner(a: Params, b: Params, ctx: Context) -> torch.Tensor:
    """<a, b> over all tensors of two lists; for stacked clients one number each, [clients]."""
    first = int(isinstance(ctx.client, list))  # the first axis that is summed
    sums = []
    for x, y in zip(a, b, strict=True):
        product = x * y
        axes = tuple(range(first, product.dim()))
        sums.append(product.sum(axes) if axes else product)
    return torch.stack(sums).sum(0)


def remembered(ctx: Context, key: str, params: Params) -> Params:
    """The client's memory ``key``/name for each trained parameter; zero at first."""
    stacked = isinstance(ctx.memory, list)
    memories = ctx.memory if stacked else [ctx.memory]
    tensors = []
    names = [n for n, p in ctx.net.named_parameters() if p.requires_grad]
    for name, p in zip(names, params, strict=True):
        zero = torch.zeros_like(p[0] if stacked else p)
        rows = [memory.get(f"{key}/{name}", zero) for memory in memories]
        tensors.append(torch.stack(rows) if stacked else rows[0].clone())
    return tensors


class Reference:
    """The outputs of a frozen copy of a network for a client's batches.

    They are computed in the first epoch and looked up afterwards, unless clients are
    stacked or images augmented.
    """

    def __init__(self, net: nn.Module, ctx: Context) -> None:
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self.table: Any = None
        self.missing: int | None = None  # images without outputs in the table
        if not isinstance(ctx.client, list) and not ctx.task.augment:
            self.missing = ctx.task.sizes[ctx.client]

    def __call__(self, batch: Batch) -> torch.Tensor:
        if self.missing == 0:
            return self.table[batch.index]
        with torch.no_grad():
            outputs = self.net(batch.x)
        if self.missing:
            if self.table is None:
                self.table = outputs.new_empty(self.missing, *outputs.shape[1:])
            self.table[batch.index] = outputs
            self.missing -= len(outputs)
        return outputs


class Subset(Step):
    """A step that sends only the tensors of ``names``."""

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        return {name: x[name] for name in self.names(list(x), ctx)}


class Added(Step):
    """Sends tensors (``shapes``) beside the model to a client, which stores them."""

    def decode(self, x: Tensors, ctx: Context) -> Tensors:
        added = self.shapes(ctx.net).keys()
        for name in added & x.keys():
            ctx.memory[name] = x[name]
        missing = added - ctx.memory.keys()
        if missing:
            raise WireError(
                f"{min(missing)}, which {self!r} adds to the model, has not come."
            )
        return {name: t for name, t in x.items() if name not in added}


class Shifted(SGD):
    """SGD on g - shift. The shift is computed once a round, from the client's memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum or self.weight_decay or self.decay != 1:
            raise ValueError(
                f"Shifted gradients need plain SGD with a constant rate, unlike {self!r}."
            )

    def _shift(self, params: Params, ctx: Context) -> Params:
        """The shift: a tensor for each parameter."""
        raise NotImplementedError

    def init(self, params: Params, ctx: Context) -> Moments:
        state = super().init(params, ctx)
        state["shift"] = self._shift(params, ctx)
        return state

    def step(self, params: Params, grads: Params, state: Moments) -> None:
        shifted = torch._foreach_sub(grads, state["shift"])
        super().step(params, list(shifted), state)


class Wrapper(Part):
    """A part around another part ``of`` the same kind, with the needs and checks of that part."""

    of: Any

    @property
    def needs(self) -> tuple[type, ...]:  # type: ignore[override]
        return self.of.needs

    def check(self, method: Any) -> None:
        self.of.check(method)

    def validate(self, ctx: Context) -> None:
        self.of.validate(ctx)


@dataclass(frozen=True)
class Continued(Wrapper, Optimizer):
    """Another optimiser, whose moments stay in the client's memory between rounds. The
    shift of ``Shifted`` is no moment: it is computed anew in each round."""

    of: Optimizer = Adam()

    def init(self, params: Params, ctx: Context) -> Moments:
        state = self.of.init(params, ctx)
        tensors = {}
        for key, value in state.items():
            if isinstance(value, list) and key != "shift":
                tensors.update({f"optimizer {key} {i}": t for i, t in enumerate(value)})
        stacked = isinstance(ctx.memory, list)
        for k, memory in enumerate(ctx.memory if stacked else [ctx.memory]):
            rows = {name: t[k] if stacked else t for name, t in tensors.items()}
            for name in rows.keys() & memory.keys():
                rows[name].copy_(memory[name])
            memory.update(rows)  # not copies: training changes these tensors
        return state

    def step(self, params: Params, grads: Params, state: Moments) -> None:
        self.of.step(params, grads, state)


def mean_update(
    state: Tensors, arrivals: Arrivals, ctx: Context
) -> tuple[Tensors, float]:
    """The mean update, and the share of all samples that its clients hold.

    A tensor that no client sent has the update zero.
    """
    n_k = ctx.task.sizes
    samples = 0

    def counted() -> Iterator[Arrival]:
        nonlocal samples
        for a in arrivals:
            samples += n_k[a.client]
            yield a

    zeros = {name: torch.zeros_like(w) for name, w in state.items()}
    mean = Mean().aggregate(zeros, counted(), ctx)
    return mean, samples / sum(n_k)


def summed(
    arrivals: Arrivals,
    names: Set[str],
    value: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float,
) -> tuple[list[Arrival], dict[str, tuple[torch.Tensor, int]]]:
    """The arrivals without ``names``, and for each of these names a sum and a count.

    The sum is that of ``value(update)`` over all clients that sent the tensor.
    """
    sums: dict[str, tuple[torch.Tensor, int]] = {}
    remaining = []
    for a in arrivals:
        for name in names & a.update.keys():
            total, count = sums.get(name, (0, 0))
            sums[name] = (total + value(a.update[name]), count + 1)
        update = {n: t for n, t in a.update.items() if n not in names}
        remaining.append(a._replace(update=update))
    return remaining, sums
