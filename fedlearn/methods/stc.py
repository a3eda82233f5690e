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


@dataclass(frozen=True)
class Steps:
    """The server moves by what it will send: the step of another server part, compressed by ``link``."""

    link: Compressed
    of: object = Mean()

    def aggregate(self, state, arrivals, ctx):
        new = self.of.aggregate(state, arrivals, ctx)
        sections, step = self.link.compress({n: new[n] - w for n, w in state.items()}, ctx)
        for n, data in sections.items():
            coded = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
            ctx.memory[f"step/{ctx.round}/{n}"] = coded
        return {n: w + step[n] for n, w in state.items()}


_WHOLE, _LENGTH = Dense(), struct.Struct("<I")


@dataclass(frozen=True)
class Replay(Downlink):
    """All steps since a client's last message; a section is a one and the steps with their lengths, or a zero and the
    whole tensor. The client keeps the model that it adds them to."""

    personal = True

    link: Compressed = None

    def encode(self, state, ctx):
        heard = ctx.memory.setdefault("heard", torch.zeros(ctx.task.clients, dtype=torch.int64))  # up to which round
        since, heard[ctx.client] = int(heard[ctx.client]), ctx.round - 1
        sections = {}
        for n, w in state.items():
            steps = [ctx.memory.get(f"step/{t}/{n}") for t in range(since + 1, ctx.round)]
            steps = [s.cpu().numpy().tobytes() for s in steps if s is not None]  # none where nothing arrived
            replay = b"\1" + b"".join(_LENGTH.pack(len(s)) + s for s in steps)
            sections[n] = replay if len(replay) < 4 * w.numel() + 1 else b"\0" + bytes(_WHOLE.encode(w))
        self._forget(ctx, state)
        return sections

    def _forget(self, ctx, state):
        """Drop the steps that everybody has heard."""
        done = int(ctx.memory["heard"].min())
        for t in {int(k.split("/")[1]) for k in ctx.memory if k.startswith("step/")}:
            for n in state if t <= done else ():
                ctx.memory.pop(f"step/{t}/{n}", None)

    def decode(self, sections, ctx):
        if len(sections) != len(ctx.schema.shapes):
            raise WireError("The server's message does not hold the whole model.")
        model = {n: self._rebuild(n, bytes(data), ctx) for n, data in sections.items()}
        ctx.memory.update({f"model/{n}": w for n, w in model.items()})
        return model

    def _rebuild(self, n, data, ctx):
        w = ctx.memory.get(f"model/{n}", ctx.initial[n])
        if data[:1] == b"\0":
            return _WHOLE.decode(data[1:], ctx.schema.shapes[n]).to(w.device)
        if data[:1] != b"\1":
            raise WireError(f"The section of {n} is neither steps nor a tensor.")
        at, coder = 1, self.link.coder_for(n, ctx.schema)
        while at < len(data):
            end = at + 4 + (_LENGTH.unpack_from(data, at)[0] if at + 4 <= len(data) else len(data))
            if end > len(data):
                raise WireError(f"The section of {n} ends inside a step.")
            w, at = w + coder.decode(data[at + 4 : end], ctx.schema.shapes[n]).to(w.device), end
        return w


def steps_both_ways(method, up, down, of=None):
    """A method whose clients send through ``up`` and hear the server's steps through ``down``."""
    return replace(method, uplink=up, downlink=Replay(link=down), server=Steps(down, of or Mean()))


def stc(lr=0.1, ratio=1 / 32):
    """``ratio`` is the share of entries sent, in both directions."""
    link = Compressed(TopK(ratio, "sign"))
    return steps_both_ways(Method("stc", optimizer=SGD(lr)), link, link)
