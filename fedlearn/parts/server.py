"""The sixth part: how do uploads become the next global state?"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..errors import pick
from .base import Arrival, Context, Part, Tensors


class Aggregator(Part):
    """``needs`` names what it can work with: "update", "votes" or "mask"."""

    def check(self, ctx: Context) -> None:
        """``ValueError`` for a task or settings that this part cannot work with."""

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        """The next global state; ``state`` is not changed. ``arrivals`` come one by one, in the
        order of the clients, and there is at least one; ``ctx.memory`` is kept for the next
        round."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Aggregator):
    """w <- w + sum_k p_k u_k for each tensor, over the clients that sent that tensor.

    ``by="samples"`` weighs by n_k (McMahan et al., 2017, Algorithm 1), ``by="clients"`` counts
    every client once.
    """

    needs = frozenset({"update"})

    by: str = "samples"

    def __post_init__(self) -> None:
        pick(self.by, {"samples": 1, "clients": 1}, "weighting")

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        arrivals = list(arrivals)
        weights = [a.samples if self.by == "samples" else 1 for a in arrivals]
        pairs = list(zip(weights, arrivals, strict=True))
        totals = {name: sum(n for n, a in pairs if name in a.update) for name in state}
        new = {name: w.clone() for name, w in state.items()}
        for n, a in pairs:
            for total in {totals[name] for name in a.update}:  # what the same clients sent, at once
                names = [name for name in a.update if totals[name] == total]
                updates = [a.update[name].to(new[name].device) for name in names]
                torch._foreach_add_([new[name] for name in names], updates, alpha=n / total)
        return new
