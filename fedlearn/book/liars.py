"""Clients that lie, to try a server on: what they send is a right message with wrong
numbers."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ..core import Averaging, Client, Context, Tensors
from ..errors import pick
from ..wire import UP, pack, unpack

# u, the client's context, how much -> what it claims as its update
LIES: dict[str, Callable[[Tensors, Context, float], Tensors]] = {
    "flip": lambda u, ctx, factor: {n: -factor * t for n, t in u.items()},
    "scale": lambda u, ctx, factor: {n: factor * t for n, t in u.items()},
    "random": lambda u, ctx, factor: _noise(u, ctx, factor),
    "constant": lambda u, ctx, factor: {
        n: torch.full_like(t, factor) for n, t in u.items()
    },
    "inflate": lambda u, ctx, factor: u,  # claims ``factor`` n_k
    "variance": lambda u, ctx, factor: (
        u
    ),  # claims -``factor`` for each running variance
}
FACTORS = {"flip": 1.0, "scale": 30.0, "random": 10.0}
FACTORS |= {"constant": 1000.0, "inflate": 1000.0, "variance": 30.0}


def _noise(u: Tensors, ctx: Context, factor: float) -> Tensors:
    """Normal numbers, each tensor with ``factor`` times its own norm."""
    generator = ctx.generator("lie")
    noise = {}
    for n, t in u.items():
        x = torch.randn(t.shape, generator=generator).to(t.device)
        noise[n] = x * (factor * t.norm() / x.norm())
    return noise


class Liar(Client):
    """The clients of a method; ``method.liars`` of them lie when they upload."""

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        method = self.method
        k = ctx.client
        if k not in method.liars:
            return super().upload(trained, ctx)
        u = {n: w.detach() - ctx.start[n] for n, w in trained.items()}
        u = LIES[method.lie](u, ctx, method.factor)
        claimed = {n: ctx.start[n] + t for n, t in u.items()}
        for n in claimed:
            if n.endswith("running_var"):  # every server refuses what is below zero
                low = torch.full_like(claimed[n], -method.factor)
                claimed[n] = (
                    low if method.lie == "variance" else claimed[n].clamp(min=0)
                )
        data = super().upload(claimed, ctx)
        if method.lie != "inflate":
            return data
        message = unpack(data, self.up, kind=UP, round=ctx.round, client=k)
        return pack(
            replace(message, samples=int(message.samples * method.factor)), self.up
        )


@dataclass(frozen=True)
class Lying(Averaging):
    """A method some of whose clients lie, each in the same way."""

    liars: tuple[int, ...] = ()
    lie: str = "flip"
    factor: float = 1.0

    client_class = Liar

    def __post_init__(self) -> None:
        super().__post_init__()
        pick(self.lie, LIES, "lie")


def lying(
    method: Averaging, liars: Any, lie: str, factor: float | None = None
) -> Lying:
    """``method`` with these clients as liars: "flip" sends -``factor`` u, "scale"
    ``factor`` u, "random" noise of ``factor`` times the norm, "constant" ``factor`` in
    every entry, "inflate" u with ``factor`` n_k in its head, "variance" u with
    -``factor`` as every running variance; the others claim none below zero. The default
    factors are ``FACTORS``."""
    parts = {f.name: getattr(method, f.name) for f in fields(Averaging)}
    factor = (
        FACTORS[pick(lie, {name: name for name in LIES}, "lie")]
        if factor is None
        else factor
    )
    return Lying(**parts, liars=tuple(liars), lie=lie, factor=factor)
