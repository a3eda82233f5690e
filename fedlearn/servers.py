"""How do uploads become the next global state?"""

import math
import struct
from collections import Counter
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch

from .arguments import Count, Positive, Range
from .context import Arrival, Context, Part, Tensors
from .errors import WireError, pick
from .links import DENSE, Downlink, Sections, Update, Uplink
from .wire.bits import Reader
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
        totals = Counter[str]()  # of each tensor, the sum of n_k over those that sent it
        for a, n in zip(arrivals, weights, strict=True):
            totals.update(dict.fromkeys(a.update, n))
        new = {name: w.clone() for name, w in state.items()}
        for a, n in zip(arrivals, weights, strict=True):
            for total in {totals[n] for n in a.update}:  # those of one total are added at once
                some = [name for name in a.update if totals[name] == total]
                moved = [a.update[name].to(new[name].device) for name in some]
                torch._foreach_add_([new[name] for name in some], moved, alpha=n / total)
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


class Around(Aggregator):
    """Works with whatever another server part, ``of``, works with."""

    of: Aggregator

    @property
    def needs(self) -> frozenset[Any]:  # type: ignore[override]
        return self.of.needs

    def validate(self, ctx: Context) -> None:
        self.of.validate(ctx)


@dataclass(frozen=True)
class Clipped(Around):
    """u_k <- u_k min(1, norm / ||u_k||) for another server part (Sun et al. 2019, section 4); the
    norm of all parameters together, and of all batch statistics."""

    norm: Positive
    of: Aggregator = Mean("clients")

    def __post_init__(self) -> None:
        if Update not in self.of.needs:
            raise ValueError(f"Updates can be clipped for a part that adds them, not {self.of!r}.")

    def given(self) -> set[Any]:
        return super().given() | self.of.given()

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

    share: Annotated[float, Range("at least 0 and below 0.5", lambda x: 0 <= x < 0.5)] = 0.2

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

    liars: Count = 1
    keep: Count = 1

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


_NUMBER = struct.Struct("<I")


def last_known(ctx: Context, client: int) -> int:
    """The round whose model this client has: that before the last one it answered."""
    return max(ctx.last_seen.get(client, 0) - 1, 0)


class Replay(Downlink):
    """All steps that a client may have missed. A section is a one, the round after which the steps
    begin, and each round's step behind its length (0: none); or a zero and the whole tensor. The
    client keeps the model and its round, so that no step counts twice or is missing."""

    def __init__(self, link: Uplink) -> None:
        super().__init__()
        self.link, self.needs, self.shown = link, frozenset({KeptSteps(link)}), (link,)

    def group(self, ctx: Context) -> Hashable:
        return last_known(ctx, ctx.client)

    def encode(self, x: Tensors, ctx: Context) -> Sections:
        memory, since = ctx.memory, last_known(ctx, ctx.client)
        sections: Sections = {}
        for n, w in x.items():
            kept = [memory.get(f"step/{n}/{t}") for t in range(since + 1, ctx.round)]
            steps = [b"" if s is None else s.cpu().numpy().tobytes() for s in kept]
            parts = [_NUMBER.pack(len(s)) + s for s in steps]
            replay = b"\1" + _NUMBER.pack(since) + b"".join(parts)
            known = since + 1 >= int(memory.get(f"from/{n}", 1))
            whole = not known or len(replay) >= 4 * w.numel() + 1
            sections[n] = b"\0" + bytes(DENSE.encode(w)) if whole else replay
        return sections

    def read(self, sections: Sections, ctx: Context) -> Any:
        return sections  # what they mean depends on the model that the client keeps

    def undo(self, x: Any, ctx: Context) -> Tensors:
        if x.keys() != ctx.initial.keys():
            raise WireError("The server's message does not hold the whole model.")
        model = {n: self._rebuild(n, data, ctx) for n, data in x.items()}
        ctx.memory.update({f"model/{n}": w for n, w in model.items()})
        ctx.memory["heard"] = torch.tensor(ctx.round - 1)
        return model

    def _rebuild(self, n: str, data: Any, ctx: Context) -> torch.Tensor:
        w, known = ctx.memory.get(f"model/{n}", ctx.initial[n]), int(ctx.memory.get("heard", 0))
        reader = Reader(data)
        form = reader.number(1)
        if form == 0:
            return DENSE.decode(data[1:], ctx.schema.shapes[n]).to(w.device)
        if form != 1:
            raise WireError(f"The section of {n} is neither steps nor a tensor.")
        round = reader.number(4)
        if round > known:
            raise WireError(f"The steps of {n} begin after round {round}, the model is of {known}.")
        while len(reader.rest):
            step, round = reader.take(reader.number(4)), round + 1
            if round > known and len(step):
                at = replace(ctx, round=round, client=-1)  # where the server coded it
                w = w + self.link.read({n: step.data}, at)[n].to(w.device)
        if round != ctx.round - 1:
            raise WireError(f"The steps of {n} end with round {round}, not {ctx.round - 1}.")
        return w


@dataclass(frozen=True)
class KeptSteps(Around):
    """The server moves by what it will send, the coded step of another server part, and keeps it as
    long as some client may need it: s = C(mean_i + e),   e <- mean_i + e - s,   W <- W + s."""

    link: Uplink = Uplink()
    of: Aggregator = Mean()

    def __post_init__(self) -> None:
        if not issubclass(self.link.makes, Update):
            raise ValueError(f"The server's steps are updates of weights, unlike {self.link!r}.")

    @property
    def gives(self) -> frozenset:  # type: ignore[override]
        return frozenset({KeptSteps(self.link)})  # whatever it is that moves

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        memory, new = ctx.memory, self.of.aggregate(state, arrivals, ctx)
        ctx.start = state
        sections = self.link.encode(new, ctx)
        step = self.link.read(sections, ctx)
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
        return {n: w + step[n].to(w.device) for n, w in state.items()}
