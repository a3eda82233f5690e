"""Server parts for clients of which some may lie. They count every client once: n_k is a claim.

    fl.methods.fedavg().but(server=fl.parts.Krum(liars=3))

``Clipped`` adds updates up as they come. The others look at all of them together and so hold
every update of the round, and one tensor of all of them a second time.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from ..arguments import short
from ..settings import whole_number
from ..wire.sparse import how_many
from .base import Arrival, Context, Tensors
from .server import Aggregator, Mean


@dataclass(frozen=True)
class Clipped(Aggregator):
    """u_k <- u_k min(1, norm / ||u_k||) for another server part: Sun, Kairouz, Suresh and McMahan,
    "Can You Really Backdoor Federated Learning?", 2019, section 4 (norm thresholding).

    The parameters together have this norm at most, and so have the batch statistics. An update
    whose norm overflows a float32 counts as zero.
    """

    norm: float
    of: Aggregator = Mean("clients")

    def __post_init__(self) -> None:
        if not 0 < self.norm < math.inf:
            raise ValueError(f"A norm to clip to is above 0 and finite, not {self.norm!r}.")
        if not isinstance(self.of, Aggregator) or "update" not in self.of.needs:
            raise ValueError(f"Updates can be clipped for a part that adds them, not {self.of!r}.")

    @property
    def needs(self) -> frozenset[str]:
        return self.of.needs

    @property
    def gives(self) -> frozenset:
        return self.of.gives

    def validate(self, ctx: Context) -> None:
        self.of.validate(ctx)

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        return self.of.aggregate(state, (self._clip(a, ctx.schema.buffers) for a in arrivals), ctx)

    def _clip(self, a: Arrival, buffers: frozenset[str]) -> Arrival:
        clipped = dict(a.update)
        for names in (clipped.keys() - buffers, clipped.keys() & buffers):
            norms = torch._foreach_norm([clipped[n] for n in names]) if names else []
            norm = math.hypot(*map(float, norms))
            if norm > self.norm:
                clipped |= {n: clipped[n] * (self.norm / norm) for n in names}
        return a._replace(update=clipped)


def _middle(state: Tensors, arrivals: Iterable[Arrival], cut: Callable[[int], int]) -> Tensors:
    """w + the mean of what is left of each coordinate's values u_1 <= ... <= u_m when ``cut(m)``
    are taken from each end; over the clients that sent the tensor."""
    updates, new = [a.update for a in arrivals], dict(state)
    for name, w in state.items():
        rows = [u[name].to(w.device) for u in updates if name in u]
        if rows:
            b = cut(len(rows))
            new[name] = w + torch.stack(rows).sort(0).values[b : len(rows) - b].mean(0)
    return new


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The mean of each coordinate without its largest and smallest ``share`` of values: Yin, Chen,
    Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, Definition 2. ``share`` is to be at least that of the liars.
    """

    needs = frozenset({"update"})

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ValueError(f"A share to trim is at least 0 and below 0.5, not {self.share!r}.")

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        def cut(m: int) -> int:  # whole clients, rounded up, as long as somebody is left
            return min(how_many(self.share, m), (m - 1) // 2)

        return _middle(state, arrivals, cut)


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of each coordinate (of an even number the mean of the two in the middle): Yin et
    al., 2018, Definition 1."""

    needs = frozenset({"update"})

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        return _middle(state, arrivals, lambda m: (m - 1) // 2)


@dataclass(frozen=True)
class Krum(Aggregator):
    """The mean of the ``keep`` updates with the lowest score, the sum of the squared distances to
    the m - liars - 2 closest others of the m that came: Blanchard, El Mhamdi, Guerraoui and
    Stainer, "Machine Learning with Adversaries", NIPS 2017, section 4. ``keep=1`` is Krum, more
    is Multi-Krum. It needs more than 2 liars + 2 clients a round; where some are refused, fewer
    others count, at least one. Everybody has to send the same tensors.
    """

    needs = frozenset({"update"})

    liars: int = 1
    keep: int = 1

    def __post_init__(self) -> None:
        whole_number("liars", self.liars)
        whole_number("keep", self.keep)

    def validate(self, ctx: Context) -> None:
        there, least = len(ctx.participants), 2 * self.liars + 3
        if there < least or self.keep > there:
            raise ValueError(
                f"{short(self)} needs at least {short(max(least, self.keep))} clients a round, "
                f"not {there}."
            )

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        updates = {a.client: a.update for a in arrivals}
        (first, names), *others = [(k, u.keys()) for k, u in updates.items()]
        other = next((k for k, own in others if own != names), None)
        if other is not None:
            raise ValueError(
                f"Krum compares whole updates; clients {first} and {other} sent different tensors."
            )
        apart = torch.zeros(len(updates), len(updates), dtype=torch.float64)
        for name in names:
            rows = torch.stack([u[name].flatten() for u in updates.values()])
            how = "donot_use_mm_for_euclid_dist"  # the other way is fast and inexact
            apart += torch.cdist(rows, rows, compute_mode=how).cpu().double().square()
        closest = max(1, len(updates) - self.liars - 2)
        scores = apart.sort(1).values[:, 1 : 1 + closest].sum(1)  # the first is itself
        best = [list(updates.values())[i] for i in scores.argsort(stable=True)[: self.keep]]
        means = {n: torch.stack([u[n] for u in best]).mean(0) for n in names}
        return {n: w + means[n].to(w.device) if n in means else w for n, w in state.items()}
