"""Servers on which a few lying clients have less influence than on a mean.

Median, trimmed mean and Krum need all updates of a round at once.
"""

import math
from dataclasses import dataclass, field

import torch

from ..core import Aggregator, Arrival, Arrivals, Context, Mean, Tensors, Update
from ..errors import check_number, check_whole
from ..wire.sparse import how_many


@dataclass(frozen=True)
class Clipped(Aggregator):
    """The mean of u_k min(1, norm / ||u_k||) over the clients (Sun et al. 2019, section 4).

    One norm is that of all parameters, another that of all batch statistics.
    """

    needs = (Update,)

    norm: float

    def __post_init__(self) -> None:
        check_number("norm", self.norm, above=0)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        clipped = (self._clip(a, ctx.schema.buffers) for a in arrivals)
        return Mean("clients").aggregate(state, clipped, ctx)

    def _clip(self, a: Arrival, buffers: frozenset[str]) -> Arrival:
        u = dict(a.update)
        for names in (u.keys() - buffers, u.keys() & buffers):
            norm = math.hypot(*(float(u[name].norm()) for name in names))
            if norm > self.norm:
                u.update({name: u[name] * (self.norm / norm) for name in names})
        return a._replace(update=u)


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The mean of each coordinate without its largest and smallest values.

    ``share`` of the values is left out at each end (Yin et al. 2018, Definition 2). It should
    be at least the share of clients that lie. At least one value is left, or two.
    """

    needs = (Update,)

    share: float = 0.2

    def __post_init__(self) -> None:
        check_number("share", self.share, minimum=0, maximum=0.5)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        updates = [a.update for a in arrivals]
        new = dict(state)
        for name, w in state.items():
            rows = [u[name].to(w.device) for u in updates if name in u]
            if rows:
                m = len(rows)
                b = min(how_many(self.share, m), (m - 1) // 2)
                values = torch.stack(rows).sort(0).values
                new[name] = w + values[b : m - b].mean(0)
        return new


@dataclass(frozen=True)
class Median(TrimmedMean):
    """The median of each coordinate (Yin et al. 2018, Definition 1)."""

    share: float = field(default=0.5, init=False, repr=False)


@dataclass(frozen=True)
class Krum(Aggregator):
    """The mean of the ``keep`` updates with the lowest score.

    The score of one of m updates is the sum of its squared distances to the m - liars - 2
    closest (Blanchard et al. 2017, section 4). It needs 2 ``liars`` + 3 clients a round.
    """

    needs = (Update,)

    liars: int = 1
    keep: int = 1

    def __post_init__(self) -> None:
        check_whole("liars", self.liars)
        check_whole("keep", self.keep)

    def validate(self, ctx: Context) -> None:
        count = len(ctx.participants)
        least = max(2 * self.liars + 3, self.keep)
        if count < least:
            raise ValueError(
                f"{self!r} needs at least {least} clients a round, not {count}."
            )

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        updates = [a.update for a in arrivals]
        names = updates[0].keys()
        if any(u.keys() != names for u in updates):
            raise ValueError(
                "Krum compares whole updates; some clients sent different tensors."
            )
        m = len(updates)
        squares = torch.zeros(m, m, dtype=torch.float64)  # of all pairs' distances
        for name in names:
            rows = torch.stack([u[name].flatten() for u in updates])
            exact = "donot_use_mm_for_euclid_dist"
            distances = torch.cdist(rows, rows, compute_mode=exact)
            squares += distances.cpu().double().square()
        closest = max(1, m - self.liars - 2)
        nearest = squares.sort(1).values[:, 1 : 1 + closest]  # the first is itself
        scores = nearest.sum(1)
        order = scores.argsort(stable=True)[: self.keep]
        best = [updates[i] for i in order]
        new = dict(state)
        for name in names:
            mean = torch.stack([u[name] for u in best]).mean(0)
            new[name] = state[name] + mean.to(state[name].device)
        return new
