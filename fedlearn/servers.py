"""How do uploads become the next global state?"""

import math
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from .context import Arrival, Context, Part, Tensors
from .errors import pick
from .links import Update
from .settings import whole_number
from .wire.sparse import how_many

Arrivals = Sequence[Arrival]  # of one round, in the order of the clients; at least one


class Aggregator(Part):
    """``needs``: what it can work with, ``Update``, ``Votes``, ``Masks`` or a kind of your own."""

    def validate(self, ctx: Context) -> None:
        """``ValueError`` for a task or settings that this part cannot work with."""

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        """The next global state; ``ctx.memory`` is kept for the next round."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Aggregator):
    """w <- w + sum_k p_k u_k for each tensor, over the clients that sent that tensor (McMahan et
    al. 2017, Algorithm 1).

    Parameters
    ----------
    by : str
        "samples" weighs by n_k, the images of a client; "clients" counts every client once.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.methods.fedavg().but(server=fl.Mean("clients")).server
    Mean(by='clients')
    """

    needs = frozenset({Update})

    by: str = "samples"

    def __post_init__(self) -> None:
        pick(self.by, dict.fromkeys(("samples", "clients")), "weighting")

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        weights = [a.samples if self.by == "samples" else 1 for a in arrivals]
        totals = Counter[str]()  # sum of n_k by tensor
        for a, n in zip(arrivals, weights, strict=True):
            totals.update(dict.fromkeys(a.update, n))
        new = {name: w.clone() for name, w in state.items()}
        for a, n in zip(arrivals, weights, strict=True):
            for total in {totals[name] for name in a.update}:  # one, if all send all tensors
                names = [name for name in a.update if totals[name] == total]
                moved = [a.update[name].to(new[name].device) for name in names]
                torch._foreach_add_([new[name] for name in names], moved, alpha=n / total)
        return new


def mean_update(state: Tensors, arrivals: Arrivals, ctx: Context) -> tuple[Tensors, float]:
    """The mean of the updates, zero for what nobody sent; and the share of samples that came."""
    zeros = {name: torch.zeros_like(w) for name, w in state.items()}
    came = sum(ctx.task.sizes[a.client] for a in arrivals)
    return Mean().aggregate(zeros, arrivals, ctx), came / sum(ctx.task.sizes)


def summed(
    arrivals: Arrivals,
    names: Set[str],
    value: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float,
) -> tuple[Arrivals, dict[str, tuple[torch.Tensor, int]]]:
    """``arrivals`` without these ``names``; and the sum and count of each of these."""
    sums: dict[str, tuple[torch.Tensor, int]] = {}
    rest = []
    for a in arrivals:
        for name in names & a.update.keys():
            total, count = sums.get(name, (0, 0))
            sums[name] = total + value(a.update[name]), count + 1
        rest.append(a._replace(update={n: t for n, t in a.update.items() if n not in names}))
    return rest, sums


# ---- for clients of which some may lie: n_k is a claim, so every client counts once ------------


@dataclass(frozen=True)
class Clipped(Aggregator):
    """u_k <- u_k min(1, norm / ||u_k||) for another server part (Sun et al. 2019, section 4); the
    norm of all parameters together, and of all batch statistics."""

    norm: float
    of: Aggregator = Mean("clients")

    def __post_init__(self) -> None:
        if not 0 < self.norm < math.inf:
            raise ValueError(f"A norm to clip to is above 0 and finite, not {self.norm!r}.")
        if Update not in self.of.needs:
            raise ValueError(f"Updates can be clipped for a part that adds them, not {self.of!r}.")

    @property
    def needs(self) -> frozenset[Any]:  # type: ignore[override]
        return self.of.needs

    def given(self) -> set[Any]:
        return super().given() | self.of.given()

    def validate(self, ctx: Context) -> None:
        self.of.validate(ctx)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        return self.of.aggregate(state, [self._clip(a, ctx.schema.buffers) for a in arrivals], ctx)

    def _clip(self, a: Arrival, buffers: frozenset[str]) -> Arrival:
        clipped = dict(a.update)
        for names in (clipped.keys() - buffers, clipped.keys() & buffers):
            norm = math.hypot(*(float(clipped[n].norm()) for n in names))
            if norm > self.norm:
                clipped |= {n: clipped[n] * (self.norm / norm) for n in names}
        return a._replace(update=clipped)


def _middle(state: Tensors, arrivals: Arrivals, cut: Callable[[int], int]) -> Tensors:
    """w + the mean of each coordinate's sorted values without ``cut(m)`` of the m at each end."""
    new = dict(state)
    for name, w in state.items():
        rows = [a.update[name].to(w.device) for a in arrivals if name in a.update]
        if rows:
            b = cut(len(rows))
            new[name] = w + torch.stack(rows).sort(0).values[b : len(rows) - b].mean(0)
    return new


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The mean of each coordinate without ``share`` of its largest and smallest values, at least
    the share of liars (Yin et al. 2018, Definition 2)."""

    needs = frozenset({Update})

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ValueError(f"A share to trim is at least 0 and below 0.5, not {self.share!r}.")

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        # whole clients, rounded up, as long as somebody is left
        return _middle(state, arrivals, lambda m: min(how_many(self.share, m), (m - 1) // 2))


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of each coordinate (Yin et al. 2018, Definition 1)."""

    needs = frozenset({Update})

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        return _middle(state, arrivals, lambda m: (m - 1) // 2)


@dataclass(frozen=True)
class Krum(Aggregator):
    """The mean of the ``keep`` updates with the lowest score, the sum of squared distances to the m
    - liars - 2 closest of m (Blanchard et al. 2017, section 4); needs 2 ``liars`` + 3 clients."""

    needs = frozenset({Update})

    liars: int = 1
    keep: int = 1

    def __post_init__(self) -> None:
        whole_number("liars", self.liars)
        whole_number("keep", self.keep)

    def validate(self, ctx: Context) -> None:
        count, least = len(ctx.participants), max(2 * self.liars + 3, self.keep)
        if count < least:
            raise ValueError(f"{self!r} needs at least {least:.10g} clients a round, not {count}.")

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        updates = [a.update for a in arrivals]
        names = updates[0].keys()
        if any(update.keys() != names for update in updates):
            raise ValueError("Krum compares whole updates; some clients sent different tensors.")
        apart = torch.zeros(len(updates), len(updates), dtype=torch.float64)
        for name in names:
            rows = torch.stack([u[name].flatten() for u in updates])
            how = "donot_use_mm_for_euclid_dist"  # the other way is fast and inexact
            apart += torch.cdist(rows, rows, compute_mode=how).cpu().double().square()
        closest = max(1, len(updates) - self.liars - 2)
        scores = apart.sort(1).values[:, 1 : 1 + closest].sum(1)  # the first is itself
        best = [updates[i] for i in scores.argsort(stable=True)[: self.keep]]
        means = {n: torch.stack([u[n] for u in best]).mean(0) for n in names}
        return {n: w + means[n].to(w.device) if n in means else w for n, w in state.items()}
