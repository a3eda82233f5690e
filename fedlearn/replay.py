"""Compressed both ways (STC, Sattler et al. 2020): the server keeps the steps it took, as it coded
them, and a client that missed some gets all of these, or the model where that is shorter."""

import struct
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from .context import Context, Tensors
from .errors import WireError
from .links import DENSE, Downlink, Sections, Update, Uplink
from .servers import Aggregator, Arrivals, Mean
from .wire.bits import Reader

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
        self.link, self.needs = link, frozenset({KeptSteps(link)})

    def __repr__(self) -> str:
        return f"Replay({self.link!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Replay) and self.link == other.link

    def __hash__(self) -> int:
        return hash(self.link)

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
            raise WireError(
                f"The steps of {n} begin after round {round}, this client knows the model of round "
                f"{known}."
            )
        while len(reader.rest):
            step, round = reader.take(reader.number(4)), round + 1
            if round > known and len(step):
                at = replace(ctx, round=round, client=-1)  # where the server coded it
                w = w + self.link.read({n: step.data}, at)[n].to(w.device)
        if round != ctx.round - 1:
            raise WireError(f"The steps of {n} end with round {round}, not {ctx.round - 1}.")
        return w


@dataclass(frozen=True)
class KeptSteps(Aggregator):
    """The server moves by what it will send, the coded step of another server part, and keeps it as
    long as some client may need it: s = C(mean_i + e),   e <- mean_i + e - s,   W <- W + s."""

    link: Uplink = Uplink()
    of: Aggregator = Mean()

    def __post_init__(self) -> None:
        if not issubclass(self.link.makes, Update):
            raise ValueError(
                f"The server's steps travel as updates of the weights, not through {self.link!r}."
            )

    @property
    def needs(self) -> frozenset:  # type: ignore[override]
        return self.of.needs

    @property
    def gives(self) -> frozenset:  # type: ignore[override]
        return frozenset({KeptSteps(self.link)})  # whatever it is that moves

    def validate(self, ctx: Context) -> None:
        self.of.validate(ctx)

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
