"""A server that moves by the steps that it sends, and clients that replay the steps they missed.

STC and signSGD share this rule:

    s = C(mean_i + e),   e <- mean_i + e - s,   W <- W + s,   and s travels

A section of the downlink is a one, the round after which its steps begin, and each round's step
behind its length (0: no step). It is a zero and the whole tensor where that is shorter.
"""

import struct
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..core import (
    DENSE,
    Aggregator,
    Arrivals,
    Context,
    Downlink,
    Mean,
    Sections,
    Tensors,
    Uplink,
)
from ..errors import WireError
from ..wire.bits import Reader
from .base import Wrapper

NUMBER = struct.Struct("<I")
WHOLE = b"\0"  # a section that begins with this holds the tensor
STEPS = b"\1"  # a section that begins with this holds steps


def last_heard(ctx: Context, client: int) -> int:
    """The round whose model this client has: the round before its last answer."""
    return max(ctx.last_seen.get(client, 0) - 1, 0)


class Replay(Downlink):
    """Sends every step that a client may have missed.

    The client stores the model and its round, so that no step counts twice or is missing.
    """

    def __init__(self, link: Uplink) -> None:
        super().__init__()
        self.link = link

    def __repr__(self) -> str:
        return f"Replay({self.link!r})"

    def check(self, method: Any) -> None:
        if getattr(method.server, "link", None) != self.link:
            raise ValueError(
                f"{self!r} needs the server part KeptSteps with the same link."
            )

    def group(self, ctx: Context) -> Hashable:
        return last_heard(ctx, ctx.client)

    def encode(self, x: Tensors, ctx: Context) -> Sections:
        since = last_heard(ctx, ctx.client)
        sections = {}
        for name, w in x.items():
            section = STEPS + NUMBER.pack(since)
            for t in range(since + 1, ctx.round):
                step = ctx.memory.get(f"step/{name}/{t}")
                data = b"" if step is None else step.cpu().numpy().tobytes()
                section += NUMBER.pack(len(data)) + data
            if len(section) >= 4 * w.numel() + 1:
                section = WHOLE + bytes(DENSE.encode(w))
            sections[name] = section
        return sections

    def read(self, sections: Sections, ctx: Context) -> Any:
        """The coded sections: each client adds the steps to a model of its own."""
        return sections

    def undo(self, x: Any, ctx: Context) -> Tensors:
        if x.keys() != ctx.initial.keys():
            raise WireError("The server's message does not hold the whole model.")
        model = {name: self._rebuild(name, data, ctx) for name, data in x.items()}
        ctx.memory.update({f"model/{name}": w for name, w in model.items()})
        ctx.memory["heard"] = torch.tensor(ctx.round - 1)
        return model

    def _rebuild(self, name: str, data: Any, ctx: Context) -> torch.Tensor:
        """A tensor of the global model, from the client's own and the steps since."""
        w = ctx.memory.get(f"model/{name}", ctx.initial[name])
        heard = int(ctx.memory.get("heard", 0))  # the round of the client's model
        reader = Reader(data)
        form = reader.number(1)
        if form == WHOLE[0]:
            return DENSE.decode(data[1:], ctx.schema.shapes[name]).to(w.device)
        round = reader.number(4)
        if form != STEPS[0] or round > heard:
            raise WireError(
                f"The section of {name} does not begin where the client's model is."
            )
        while len(reader.remaining):
            step = reader.take(reader.number(4))
            round += 1
            if round > heard and len(step):
                at = replace(ctx, round=round, client=-1)  # the context of the coder
                w = w + self.link.read({name: step.data}, at)[name].to(w.device)
        if round != ctx.round - 1:
            raise WireError(
                f"The steps of {name} end with round {round}, not {ctx.round - 1}."
            )
        return w


@dataclass(frozen=True)
class KeptSteps(Wrapper, Aggregator):
    """Moves by the coded step of another server part, and stores the step for late clients."""

    link: Uplink = Uplink()
    of: Aggregator = Mean()

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        new = self.of.aggregate(state, arrivals, ctx)
        ctx.start = state
        sections = self.link.encode(new, ctx)
        step = self.link.read(sections, ctx)
        for name, data in sections.items():
            data = np.frombuffer(data, np.uint8).copy()
            ctx.memory[f"step/{name}/{ctx.round}"] = torch.from_numpy(data)
        # the steps that all clients have
        heard = min(last_heard(ctx, k) for k in range(ctx.task.clients))
        for key in list(ctx.memory):
            if key.startswith("step/") and int(key.rpartition("/")[2]) <= heard:
                del ctx.memory[key]
        # and those behind which the steps are longer than the tensor
        for name, w in state.items():
            size = 0
            for t in range(ctx.round, heard, -1):
                if size > 4 * w.numel():
                    ctx.memory.pop(f"step/{name}/{t}", None)
                size += len(ctx.memory.get(f"step/{name}/{t}", ()))
        return {name: w + step[name].to(w.device) for name, w in state.items()}
