"""Steps of links that more than one method uses."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import rng
from ..errors import Diverged
from ..wire import LowRank
from ..wire.lowrank import power_step
from .base import Context, Tensors
from .link import Code, Step


@dataclass(frozen=True)
class Feedback(Step):
    """Error feedback: what the coder lost is kept and added to the next update. It sends C(u + e)
    and keeps e <- u + e - C(u + e); of what it does not send at all it keeps everything.

    The sender does not learn whether its upload was refused: then what it held is lost.
    """

    listens = True

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        errors = {n: ctx.memory[f"error/{n}"] for n in x if f"error/{n}" in ctx.memory}
        return {n: t + errors[n] if n in errors else t for n, t in x.items()}

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        for n in x.keys() - ctx.schema.buffers:
            if n not in sent:
                ctx.memory[f"error/{n}"] = x[n].clone()
            elif n in ctx.lossy or f"error/{n}" in ctx.memory:
                ctx.memory[f"error/{n}"] = x[n] - sent[n]


@dataclass(frozen=True)
class Residual(Step):
    """What has changed since M^0, which both sides hold."""

    stacks = True

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        return {n: t - ctx.initial[n] for n, t in x.items()}

    def decode(self, x: Tensors, ctx: Context) -> Tensors:
        return {n: ctx.initial[n] + t for n, t in x.items()}


@dataclass(frozen=True)
class Clip(Step):
    """g <- g min(1, norm / (sqrt(N) ||g||)) over all tensors that are coded with loss; N is the
    number of clients in the round (DGC, section 3.2)."""

    norm: float = float("inf")

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise ValueError(f"A norm to clip to is above 0, not {self.norm!r}.")

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        lossy = [n for n in x if n in ctx.lossy]
        norm = torch.stack(torch._foreach_norm([x[n] for n in lossy])).norm() if lossy else 0
        limit = self.norm / len(ctx.participants) ** 0.5
        factor = min(1.0, limit / max(float(norm), 1e-30))
        return {n: t * factor if n in lossy else t for n, t in x.items()}


@dataclass(frozen=True)
class Momentum(Step):
    """u <- m u + g, and u <- 0 where an entry was sent (DGC, sections 3.2 and 3.3). What travels
    whole anyway, biases and normalisation, has the same momentum and is never set to zero: as in
    the authors' program, where SGD's momentum does not know what is compressed."""

    listens = True

    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"Momentum is at least 0 and below 1, not {self.momentum!r}.")

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        own = x.keys() - ctx.schema.buffers
        u = {n: self.momentum * ctx.memory.get(f"u/{n}", 0) + x[n] for n in x if n in own}
        if not all(torch.isfinite(t).all() for t in u.values()):  # or u would stay so for ever
            raise Diverged(f"The update of client {ctx.client} is NaN or infinite.")
        ctx.memory.update({f"u/{n}": t for n, t in u.items()})
        return x | u

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        for n in sent:
            if n in ctx.lossy:
                ctx.memory[f"u/{n}"] = x[n] * (sent[n] == 0)


@dataclass(frozen=True)
class WarmStart(Step):
    """Before ``Lossy(LowRank(rank))``: one step of subspace iteration from the Q of the last round,
    which this side keeps (PowerSGD, section 4.2). The matrix of rank ``rank`` that it makes goes
    through the coder unchanged, up to rounding. No other step may come between; ``Feedback`` comes
    before."""

    rank: int = 2

    def __post_init__(self) -> None:
        LowRank(self.rank)

    def check(self, rest: Sequence[Step]) -> None:
        coder = rest[0].coder if isinstance(rest[0], Code) else None
        if not isinstance(coder, LowRank) or coder.rank != self.rank:
            raise ValueError(
                f"{self!r} comes just before Lossy({LowRank(self.rank)!r}), not {rest[0]!r}."
            )

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        coder, low = LowRank(self.rank), {}
        for n in x.keys() & ctx.lossy:
            sizes = coder.factors(x[n].shape)
            if not sizes:
                continue
            M = x[n].cpu().double().reshape(sizes)
            if not torch.isfinite(M).all():  # or Q would stay so for ever
                raise Diverged(f"The update of client {ctx.client} is NaN or infinite.")
            first = rng.generator(ctx.task.seed, "low rank", n)
            new = torch.randn(sizes[1], self.rank, generator=first)
            P, Q = power_step(M, ctx.memory.get(f"Q/{n}", new).cpu().double())
            ctx.memory[f"Q/{n}"] = Q.float()
            low[n] = (P @ Q.T).to(x[n]).reshape(x[n].shape)
        return x | low
