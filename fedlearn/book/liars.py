"""Clients that lie, to try a server on: what they send is a right message with wrong
numbers."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ..core import Averaging, Client, Context, Tensors
from ..errors import pick
from ..wire import UP, pack, unpack

# the update u, the client's context, a factor -> what the client claims as its update
LIES: dict[str, Callable[[Tensors, Context, float], Tensors]] = {
    "flip": lambda u, ctx, factor: {n: -factor * t for n, t in u.items()},
    "constant": lambda u, ctx, factor: {
        n: torch.full_like(t, factor) for n, t in u.items()
    },
    "inflate": lambda u, ctx, factor: u,  # claims ``factor`` n_k
    "variance": lambda u, ctx, factor: u,  # claims running variances of -``factor``
}
FACTORS = {"flip": 1.0, "constant": 1000.0, "inflate": 1000.0, "variance": 30.0}


class Liar(Client):
    """The clients of a method; ``method.liars`` of them lie when they upload."""

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        method = self.method
        if ctx.client not in method.liars:
            return super().upload(trained, ctx)
        u = {n: w.detach() - ctx.start[n] for n, w in trained.items()}
        u = LIES[method.lie](u, ctx, method.factor)
        claimed = {n: ctx.start[n] + t for n, t in u.items()}
        for n, t in claimed.items():
            if n.endswith("running_var"):  # every server refuses what is below zero
                low = torch.full_like(t, -method.factor)
                claimed[n] = low if method.lie == "variance" else t.clamp(min=0)
        data = super().upload(claimed, ctx)
        if method.lie != "inflate":
            return data
        message = unpack(data, self.up, kind=UP, round=ctx.round, client=ctx.client)
        samples = int(message.samples * method.factor)
        return pack(replace(message, samples=samples), self.up)


@dataclass(frozen=True)
class Lying(Averaging):
    """A method some of whose clients lie, each in the same way."""

    liars: tuple[int, ...] = ()
    lie: str = "flip"
    factor: float = 1.0

    client_class = Liar


def lying(
    method: Averaging, liars: Any, lie: str, factor: float | None = None
) -> Lying:
    """``method`` with these clients as liars: "flip" sends -``factor`` u, "constant"
    ``factor`` in every entry, "inflate" u with ``factor`` n_k in its head, "variance" u
    with -``factor`` as every running variance; the others claim none below zero. The
    default factors are ``FACTORS``."""
    pick(lie, LIES, "lie")
    parts = {f.name: getattr(method, f.name) for f in fields(Averaging)}
    factor = FACTORS[lie] if factor is None else factor
    return Lying(**parts, liars=tuple(liars), lie=lie, factor=factor)
