"""How do uploads become the next global state?"""

import math
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .arguments import short
from .context import Arrival, Context, Part, Tensors, provides
from .errors import pick
from .links import Lossy, Steps, Update, Uplink, last_known
from .settings import whole_number
from .wire import CountSketch
from .wire.sparse import how_many

Arrivals = Sequence[Arrival]  # of one round, in the order of the clients; at least one


class Aggregator(Part):
    """``needs`` names what it can work with: ``Update``, ``Votes``, ``Masks`` or a kind of your
    own."""

    giver = "server"

    def validate(self, ctx: Context) -> None:
        """``ValueError`` for a task or settings that this part cannot work with."""

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        """The next global state; ``state`` is not changed. ``ctx.memory`` is kept for the next
        round."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Aggregator):
    """w <- w + sum_k p_k u_k for each tensor, over the clients that sent that tensor.

    ``by="samples"`` weighs by n_k (McMahan et al., 2017, Algorithm 1), ``by="clients"`` counts
    every client once.
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
            for total in {totals[name] for name in a.update}:  # what the same clients sent
                names = [name for name in a.update if totals[name] == total]
                torch._foreach_add_(
                    [new[name] for name in names],
                    [a.update[name].to(new[name].device) for name in names],
                    alpha=n / total,
                )
        return new


def mean_update(state: Tensors, arrivals: Arrivals, ctx: Context) -> tuple[Tensors, float]:
    """The mean of the updates that ``Mean`` adds, zero for a tensor that nobody sent; and the share
    that those who came have of all clients' samples."""
    zeros = {name: torch.zeros_like(w) for name, w in state.items()}
    came = sum(ctx.task.sizes[a.client] for a in arrivals)
    return Mean().aggregate(zeros, arrivals, ctx), came / sum(ctx.task.sizes)


def summed(
    arrivals: Arrivals,
    names: Set[str],
    value: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float,
) -> tuple[Arrivals, dict[str, tuple[torch.Tensor, int]]]:
    """``arrivals`` without the tensors of these ``names``; and of each of these the sum of its
    values, and how many there were."""
    sums: dict[str, tuple[torch.Tensor, int]] = {}
    rest = []
    for a in arrivals:
        for name in names & a.update.keys():
            total, count = sums.get(name, (0, 0))
            sums[name] = total + value(a.update[name]), count + 1
        rest.append(a._replace(update={n: t for n, t in a.update.items() if n not in names}))
    return rest, sums


@dataclass(frozen=True)
class KeptSteps(Aggregator):
    """The server moves by what it will send: the step of another server part, compressed by
    ``link``; the coded steps are kept as long as some client may need them (Sattler et al. 2020):

    s = C(mean_i + e),   e <- mean_i + e - s,   W <- W + s,   and s is what it sends (``Replay``).
    """

    link: Uplink = Uplink()
    of: Aggregator = Mean()

    def __post_init__(self) -> None:
        if not isinstance(self.link, Uplink) or not provides([self.link.makes], Update):
            raise ValueError(
                f"The server's steps travel as updates of the weights, not through {self.link!r}."
            )
        if not isinstance(self.of, Aggregator):
            raise ValueError(f"{self.of!r} is no server part (Aggregator).")

    @property
    def needs(self) -> frozenset:  # type: ignore[override]
        return self.of.needs

    @property
    def gives(self) -> frozenset:  # type: ignore[override]
        return frozenset({Steps(self.link)})

    def validate(self, ctx: Context) -> None:
        self.of.validate(ctx)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        memory, new = ctx.memory, self.of.aggregate(state, arrivals, ctx)
        ctx.start = state
        sections, step = self.link.compress(new, ctx, hear=True)
        known = min(last_known(ctx, k) for k in range(ctx.task.clients))
        for n, data in sections.items():
            memory[f"step/{n}/{ctx.round}"] = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
            first = int(memory.get(f"from/{n}", 1))
            kept = [t for t in range(first, ctx.round + 1) if f"step/{n}/{t}" in memory]
            size = sum(len(memory[f"step/{n}/{t}"]) for t in kept)
            # never needed, or too long to be sent
            while kept and (kept[0] <= known or size > 4 * state[n].numel()):
                size -= len(memory.pop(f"step/{n}/{kept[0]}"))
                memory[f"from/{n}"] = torch.tensor(kept.pop(0) + 1)
        return {n: w + step[n] for n, w in state.items()}


# ---- for clients of which some may lie: n_k is a claim, so every client counts once ------------


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
        if not isinstance(self.of, Aggregator) or Update not in self.of.needs:
            raise ValueError(f"Updates can be clipped for a part that adds them, not {self.of!r}.")

    @property
    def needs(self) -> frozenset[str]:
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
            norms = torch._foreach_norm([clipped[n] for n in names]) if names else []
            norm = math.hypot(*map(float, norms))
            if norm > self.norm:
                clipped |= {n: clipped[n] * (self.norm / norm) for n in names}
        return a._replace(update=clipped)


def _middle(state: Tensors, arrivals: Arrivals, cut: Callable[[int], int]) -> Tensors:
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

    needs = frozenset({Update})

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ValueError(f"A share to trim is at least 0 and below 0.5, not {self.share!r}.")

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        def cut(m: int) -> int:  # whole clients, rounded up, as long as somebody is left
            return min(how_many(self.share, m), (m - 1) // 2)

        return _middle(state, arrivals, cut)


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of each coordinate (of an even number the mean of the two in the middle): Yin et
    al., 2018, Definition 1."""

    needs = frozenset({Update})

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        return _middle(state, arrivals, lambda m: (m - 1) // 2)


@dataclass(frozen=True)
class Krum(Aggregator):
    """The mean of the ``keep`` updates with the lowest score, the sum of the squared distances to
    the m - liars - 2 closest others of the m that came: Blanchard, El Mhamdi, Guerraoui and
    Stainer, "Machine Learning with Adversaries", NIPS 2017, section 4. ``keep=1`` is Krum, more
    is Multi-Krum. It needs more than 2 liars + 2 clients a round; where some are refused, fewer
    others count, at least one. Everybody has to send the same tensors.
    """

    needs = frozenset({Update})

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

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
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


@dataclass(frozen=True)
class HeavyHitters(Aggregator):
    """The server's step from the sum of count sketches (FetchSGD: Rothchild et al., ICML 2020,
    Algorithm 1)::

        S <- mean_i S(u_i),   S_u <- m S_u + S,   S_e <- S_e + S_u
        D <- the heavy hitters of S_e,   S_e <- S_e - S(D),   w <- w + D

    Momentum and error are tables like those that come in, so clients keep nothing. ``momentum``
    is m: with the paper's 0.9, steps add up to ten times as much, so it wants a lower learning
    rate. Every client counts once. Tensors of fewer than ``whole`` dimensions come dense, as from
    ``Lossy``, and are averaged."""

    sketch: CountSketch = CountSketch(merged=True)
    momentum: float = 0.0
    whole: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.sketch, CountSketch) or not self.sketch.merged:
            raise ValueError(f"What is added up are CountSketch(merged=True), not {self.sketch!r}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"Momentum is at least 0 and below 1, not {self.momentum!r}.")

    @property
    def needs(self) -> frozenset:
        return frozenset({Lossy(self.sketch, self.whole)})

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        names = {n for n in state.keys() - ctx.schema.buffers if state[n].dim() >= self.whole}
        rest, tables = summed(arrivals, names)
        new, memory = Mean("clients").aggregate(state, rest, ctx), ctx.memory
        for n, (total, count) in tables.items():
            u = self.momentum * memory.get(f"sketch/u/{n}", 0) + total.cpu().double() / count
            e, D = u + memory.get(f"sketch/e/{n}", 0), torch.zeros(state[n].numel())
            index, values = self.sketch.recover(e.numpy(), len(D))
            D[torch.from_numpy(index)] = torch.from_numpy(values).float()
            e = e - torch.from_numpy(self.sketch.table(D.double().numpy()))
            memory |= {f"sketch/u/{n}": u, f"sketch/e/{n}": e}
            new[n] = state[n] + D.reshape(state[n].shape).to(state[n])
        return new
