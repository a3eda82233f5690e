"""STC: Sattler et al., "Robust and Communication-Efficient Federated Learning From Non-i.i.d. Data", IEEE TNNLS 2020, Algorithm 2.

    client:  send T(u_i + e_i),   e_i <- u_i + e_i - T(u_i + e_i)
    server:  W <- W + s,   s = T(mean_i + e),   e <- mean_i + e - s,   and s is what it sends

T keeps the share ``ratio`` of entries that are largest in magnitude and replaces each by + or - their mean magnitude. What a
client hears is steps, not a model: one that missed rounds gets their steps one after the other, or the whole model once
that is shorter.
"""

import struct
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..errors import WireError
from ..method import SGD, Compressed, Downlink, Mean, Method
from ..wire import Dense, TopK

_WHOLE, _NUMBER = Dense(), struct.Struct("<I")


@dataclass(frozen=True)
class Steps:
    """The server moves by what it will send: the step of another server part, compressed by ``link``."""

    link: Compressed
    of: object = Mean()

    def aggregate(self, state, arrivals, ctx):
        memory, new = ctx.memory, self.of.aggregate(state, arrivals, ctx)
        sections, step = self.link.compress({n: new[n] - w for n, w in state.items()}, ctx)
        heard = memory.setdefault("heard", torch.zeros(ctx.task.clients, dtype=torch.int64))
        heard[[a.client for a in arrivals]] = (
            ctx.round - 1
        )  # who answers has the model of the round before
        for n, data in sections.items():
            memory[f"step/{n}/{ctx.round}"] = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
            kept = [
                t
                for t in range(int(memory.get(f"from/{n}", 1)), ctx.round + 1)
                if f"step/{n}/{t}" in memory
            ]
            size = sum(len(memory[f"step/{n}/{t}"]) for t in kept)
            while kept and (
                kept[0] <= heard.min() or size > 4 * state[n].numel()
            ):  # never needed, or too long to be sent
                size -= len(memory.pop(f"step/{n}/{kept[0]}"))
                memory[f"from/{n}"] = torch.tensor(kept.pop(0) + 1)
        return {n: w + step[n] for n, w in state.items()}


@dataclass(frozen=True)
class Replay(Downlink):
    """All steps that a client may not have heard. A section is a one, the round after which the steps begin, and the step of
    each round behind its length (0: there was none); or a zero and the whole tensor. The client keeps the model that it
    adds them to and its round, so that a step that comes twice counts once and a missing one is noticed."""

    personal = True

    link: Compressed = None

    def encode(self, state, ctx):
        memory = ctx.memory
        since = int(memory["heard"][ctx.client]) if "heard" in memory else 0
        sections = {}
        for n, w in state.items():
            steps = [memory.get(f"step/{n}/{t}") for t in range(since + 1, ctx.round)]
            steps = [b"" if s is None else s.cpu().numpy().tobytes() for s in steps]
            replay = b"\1" + _NUMBER.pack(since) + b"".join(_NUMBER.pack(len(s)) + s for s in steps)
            known = since + 1 >= int(memory.get(f"from/{n}", 1))
            sections[n] = (
                replay
                if known and len(replay) < 4 * w.numel() + 1
                else b"\0" + bytes(_WHOLE.encode(w))
            )
        return sections

    def decode(self, sections, ctx):
        if len(sections) != len(ctx.schema.shapes):
            raise WireError("The server's message does not hold the whole model.")
        model = {n: self._rebuild(n, bytes(data), ctx) for n, data in sections.items()}
        ctx.memory.update(
            {f"model/{n}": w for n, w in model.items()}, heard=torch.tensor(ctx.round - 1)
        )
        return model

    def _rebuild(self, n, data, ctx):
        w, heard = ctx.memory.get(f"model/{n}", ctx.initial[n]), int(ctx.memory.get("heard", 0))
        if data[:1] == b"\0":
            return _WHOLE.decode(data[1:], ctx.schema.shapes[n]).to(w.device)
        if data[:1] != b"\1" or len(data) < 5:
            raise WireError(f"The section of {n} is neither steps nor a tensor.")
        (round,), at, coder = _NUMBER.unpack_from(data, 1), 5, self.link.coder_for(n, ctx.schema)
        if round > heard:
            raise WireError(
                f"The steps of {n} begin after round {round}, this client knows the model of round {heard}."
            )
        while at < len(data):
            end = at + 4 + (_NUMBER.unpack_from(data, at)[0] if at + 4 <= len(data) else len(data))
            round += 1
            if end > len(data) or round >= ctx.round:
                raise WireError(f"The section of {n} ends inside a step or holds too many.")
            if round > heard and end > at + 4:
                w = w + coder.decode(data[at + 4 : end], ctx.schema.shapes[n]).to(w.device)
            at = end
        if round < ctx.round - 1:
            raise WireError(f"The section of {n} ends before the model of round {ctx.round - 1}.")
        return w


def steps_both_ways(method, up, down, of=None):
    """A method whose clients send through ``up`` and hear the server's steps through ``down``."""
    return replace(method, uplink=up, downlink=Replay(link=down), server=Steps(down, of or Mean()))


def stc(lr=0.1, ratio=1 / 32):
    """``ratio`` is the share of entries sent, in both directions."""
    link = Compressed(TopK(ratio, "sign"))
    return steps_both_ways(Method("stc", optimizer=SGD(lr)), link, link)
