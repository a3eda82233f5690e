"""Compressed both ways: clients hear the server's steps, not its model (Sattler et al. 2020, STC).

    server:  s = C(mean_i + e),   e <- mean_i + e - s,   W <- W + s,   and s is what it sends

A client that missed rounds gets their steps one after the other, or the whole model once that is
shorter.
"""

import struct
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..arguments import short
from ..errors import WireError
from .base import Arrival, Context, Tensors
from .link import DENSE, Downlink, Sections, Uplink
from .server import Aggregator, Mean

_NUMBER = struct.Struct("<I")


def _known(ctx: Context, client: int) -> int:
    """The round whose model this client has: that before the last one it answered."""
    return max(ctx.heard.get(client, 0) - 1, 0)


@dataclass(frozen=True)
class KeptSteps(Aggregator):
    """The server moves by what it will send: the step of another server part, compressed by
    ``link``; the coded steps are kept as long as some client may need them."""

    link: Uplink = Uplink()
    of: Aggregator = Mean()

    def __post_init__(self) -> None:
        if not isinstance(self.link, Uplink) or "update" not in self.link.gives:
            raise ValueError(
                f"The server's steps travel as updates of the weights, not through {self.link!r}."
            )
        if not isinstance(self.of, Aggregator):
            raise ValueError(f"{self.of!r} is no server part (Aggregator).")

    @property
    def needs(self) -> frozenset[str]:
        return self.of.needs

    @property
    def gives(self) -> frozenset:
        return frozenset({("steps", self.link)})

    def validate(self, ctx: Context) -> None:
        self.of.validate(ctx)

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        memory, new = ctx.memory, self.of.aggregate(state, arrivals, ctx)
        ctx.start = state
        sections, step = self.link.compress(new, ctx)
        known = min(_known(ctx, k) for k in range(ctx.task.clients))
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


class Replay(Downlink):
    """All steps that a client may not have heard. A section is a one, the round after which the
    steps begin, and the step of each round behind its length (0: there was none); or a zero and the
    whole tensor. The client keeps the model that it adds them to and its round, so that a step that
    comes twice counts once and a missing one is noticed."""

    def __init__(self, link: Uplink) -> None:
        if not isinstance(link, Uplink):
            raise ValueError(f"The server's steps travel through an Uplink, not {short(link)}.")
        super().__init__()
        self.link, self.personal, self.needs = link, True, frozenset({("steps", link)})

    def __repr__(self) -> str:
        return f"Replay({self.link!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Replay) and self.link == other.link

    def __hash__(self) -> int:
        return hash(self.link)

    def group(self, ctx: Context) -> Hashable:
        return _known(ctx, ctx.client)

    def encode(self, state: Tensors, ctx: Context) -> Sections:
        memory, since = ctx.memory, _known(ctx, ctx.client)
        sections: Sections = {}
        for n, w in state.items():
            there = [memory.get(f"step/{n}/{t}") for t in range(since + 1, ctx.round)]
            steps = [b"" if s is None else s.cpu().numpy().tobytes() for s in there]
            parts = [_NUMBER.pack(len(s)) + s for s in steps]
            replay = b"\1" + _NUMBER.pack(since) + b"".join(parts)
            known = since + 1 >= int(memory.get(f"from/{n}", 1))
            whole = not known or len(replay) >= 4 * w.numel() + 1
            sections[n] = b"\0" + bytes(DENSE.encode(w)) if whole else replay
        return sections

    def unpack(self, sections: Sections, ctx: Context) -> Any:
        return sections  # what they mean depends on the model that the client keeps

    def undo(self, x: Any, ctx: Context) -> Tensors:
        if x.keys() != ctx.initial.keys():
            raise WireError("The server's message does not hold the whole model.")
        model = {n: self._rebuild(n, bytes(data), ctx) for n, data in x.items()}
        ctx.memory.update({f"model/{n}": w for n, w in model.items()})
        ctx.memory["heard"] = torch.tensor(ctx.round - 1)
        return model

    def _rebuild(self, n: str, data: bytes, ctx: Context) -> torch.Tensor:
        w, heard = ctx.memory.get(f"model/{n}", ctx.initial[n]), int(ctx.memory.get("heard", 0))
        if data[:1] == b"\0":
            return DENSE.decode(data[1:], ctx.schema.shapes[n]).to(w.device)
        if data[:1] != b"\1" or len(data) < 5:
            raise WireError(f"The section of {n} is neither steps nor a tensor.")
        (round,), at = _NUMBER.unpack_from(data, 1), 5
        if round > heard:
            raise WireError(
                f"The steps of {n} begin after round {round}, this client knows the model of round "
                f"{heard}."
            )
        while at < len(data):
            length = _NUMBER.unpack_from(data, at)[0] if at + 4 <= len(data) else len(data)
            end, round = at + 4 + length, round + 1
            if end > len(data) or round >= ctx.round:
                raise WireError(f"The section of {n} ends inside a step or holds too many.")
            if round > heard and length:
                step = self.link.at(round, n, data[at + 4 : end], ctx)
                w = w + step.to(w.device)
            at = end
        if round < ctx.round - 1:
            raise WireError(f"The section of {n} ends before the model of round {ctx.round - 1}.")
        return w
