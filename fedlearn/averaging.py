"""The round of six parts. Federated averaging is it with its defaults; most methods replace some
of them.

    part        question                                       base class (fedlearn.parts)
    model       what network does the client train?            Model: build(task)
    objective   what does local training minimise?             Objective: begin(net, ctx)
    optimizer   how is a local step taken?                     Optimizer: init(...), step(...)
    uplink      what bytes go up?                              Uplink: a chain of steps
    downlink    what bytes come down?                          Downlink: a chain of steps
    server      how do uploads become the next global state?   Aggregator: aggregate(...)

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, Algorithm 1, is this file from ``Server.round`` to ``Client.upload``:

    server:  w_{t+1} = w_t + sum_{k in S_t} (n_k / n) u_k,     n = sum_{k in S_t} n_k
    client:  u_k = w_k - w_t after E epochs of minibatch SGD from w_t
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import itemgetter
from typing import Any, ClassVar

import torch

from . import finite, training
from .errors import Diverged, WireError
from .method import TRAIN, Method, ServerSide, Trainee
from .parts import Aggregator, Arrival, Context, Downlink, Mean, Part, State, Tensors, Uplink
from .settings import Settings
from .wire import DOWN, UP, Message, Schema, assemble, open_envelope, pack, take_apart, unpack


class Server(ServerSide):
    """Sends the global state to the clients of a round, and adds up what comes back."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        self.up, self.down = (
            method.uplink.schema(self.net, task),
            method.downlink.schema(self.net, task),
        )
        for part in (method.uplink, method.server):
            part.validate(self.context(1, -1, self.up, {}))
        self._coded: tuple[Any, int, dict] = (None, 0, {})  # state, round, group -> body

    def round(self, t: int, state: State, ask: Any) -> State:
        def send(k: int) -> bytes:
            data, buffers = self.send(t, k, state, ask.heard)
            ask.note("bytes_down_buffers", buffers)
            return data

        def receive(k: int, data: bytes) -> Arrival:
            arrival = self.receive(t, k, data, state)
            ask.note("bytes_up_buffers", arrival.buffers)
            return arrival

        answers = ask(self.participants(t), send, receive, TRAIN)
        return self.aggregate(t, state, map(itemgetter(1), answers), ask.heard)

    def send(
        self, t: int, client: int, state: State, heard: Mapping[int, int] = {}
    ) -> tuple[bytes, int]:
        """The message to one client, and how many of its bytes are buffers."""
        body, buffers = self._body(t, client, state, heard)
        return pack(Message(DOWN, t, client), self.down, body), buffers

    def _body(
        self, t: int, client: int, state: State, heard: Mapping[int, int]
    ) -> tuple[tuple[list, int], int]:
        """What all clients of a group get, coded once a round; and its bytes of buffers."""
        link = self.method.downlink
        ctx = self.context(t, client, self.down, state.memory, heard=heard)
        if self._coded[0] is not state or self._coded[1] != t:
            self._coded = state, t, {}
        group, coded = link.group(ctx), self._coded[2]
        if group not in coded:
            with torch.no_grad():
                sections = link.encode(state.weights, ctx)
            coded[group] = assemble(sections, self.down), buffer_bytes(sections, self.down)
        return coded[group]

    def judge(self, t: int, state: State, before: State, heard: Mapping[int, int]) -> bool:
        """Also tries a network of large weights, and the downlink if it could fail; what it codes
        is kept for round ``t`` + 1, unless to code it changes the memory."""
        large = super().judge(t, state, before, heard)
        if large:
            self.method.model.refresh(self.net, self.task, t)
            training.load(self.tensors, state.weights)
            finite.try_out(self.net, self.task)
        if self.method.downlink != Downlink():
            if self.method.downlink.listens:
                state = State(state.weights, dict(state.memory))
            for k in self.participants(t + 1):
                self._body(t + 1, k, state, heard)
        return large

    def receive(self, t: int, client: int, data: bytes, state: State) -> Arrival:
        """bytes -> ``Arrival``; ``WireError`` for anything that is not this client's upload of this
        round."""
        if client not in self.participants(t):
            raise WireError(f"Client {client} was not drawn for round {t}.")
        message = unpack(data, self.up, kind=UP, round=t, client=client)
        if message.samples < 1:
            raise WireError("The upload claims to come from no samples.")
        ctx = self.context(t, client, self.up, {}, start=state.weights, samples=message.samples)
        update = self.method.uplink.decode(message.sections, ctx)
        return Arrival(client, message.samples, update, buffer_bytes(message.sections, self.up))

    def aggregate(
        self, t: int, state: State, arrivals: Iterator[Arrival], heard: Mapping[int, int] = {}
    ) -> State:
        """The next state. Without a single arrival it stays as it is."""
        first = list(islice(arrivals := iter(arrivals), 1))
        if not first:
            return state
        arrivals = chain(map(first.pop, [0]), arrivals)  # popped, or it would be kept
        memory, link = dict(state.memory), self.method.uplink

        def sends(k: int) -> list[str]:
            return link.expected(self.context(t, k, self.up, {}))

        ctx = self.context(t, -1, self.up, memory, heard=heard, sends=sends)
        with torch.no_grad():
            weights = self.method.server.aggregate(state.weights, arrivals, ctx)
        return State(weights, memory)

    def longest(self) -> int:
        return self.up.limit


class Client(Trainee):
    """Downloads the global state, trains, uploads what the uplink makes of it."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        self.up, self.down = (
            method.uplink.schema(self.net, task),
            method.downlink.schema(self.net, task),
        )
        method.uplink.validate(self.context(1, -1, self.up, {}))
        nothing = memoryview(b"")
        self._received: Any = 0, (nothing, 0), {}, {}  # round, body and CRC, unpacked, undone

    def answer(self, t: int, client: int, what: str, data: bytes, memory: Tensors) -> bytes:
        return self.train(t, client, data, memory)  # download, local training, upload

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        """bytes -> a context whose ``start`` is the global state. A body that has come before, to
        another client, is not decoded again."""
        link = self.method.downlink
        expected = {"kind": DOWN, "round": t, "client": client}
        last, known, tensors, start = self._received
        _, body, crc = open_envelope(data, self.down, **expected, known=known)
        ctx = self.context(t, client, self.down, memory, start=start)
        fresh = (t, len(body), crc) != (last, len(known[0]), known[1])
        if fresh:
            tensors = link.unpack(take_apart(body, self.down), ctx)
        if fresh or link.personal:
            ctx.start = link.undo(tensors, ctx)
        self._received = t, (body, crc), tensors, ctx.start
        return ctx

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        """What was trained -> bytes. Who diverged sends no tensor, and the server refuses that."""
        try:
            with torch.no_grad():
                sections = self.method.uplink.encode(trained, replace(ctx, schema=self.up))
        except Diverged:
            sections = {}
        return self._pack(ctx.round, ctx.client, sections)

    def upload_rows(self, trained: Tensors, ctx: Context) -> list[bytes] | None:
        if not self.method.uplink.stacks:
            return None
        try:
            with torch.no_grad():
                rows = self.method.uplink.encode_rows(trained, replace(ctx, schema=self.up))
        except Diverged:  # one of them: each by itself
            return None
        return [self._pack(ctx.round, k, own) for k, own in zip(ctx.client, rows, strict=True)]

    def _pack(self, t: int, client: int, sections: dict) -> bytes:
        return pack(Message(UP, t, client, self.task.sizes[client], sections), self.up)


@dataclass(frozen=True)
class Averaging(Method):
    """A name and six parts, by default those of federated averaging. ``but`` replaces parts:
    ``rpn().but(server=Mean("samples"))``. Parts that do not fit are refused."""

    name: str = "fedavg"
    uplink: Uplink = Uplink()
    downlink: Downlink = Downlink()
    server: Aggregator = Mean()

    sides = (Server, Client)
    kinds: ClassVar[dict[str, type[Part]]] = Method.kinds | {
        "uplink": Uplink,
        "downlink": Downlink,
        "server": Aggregator,
    }


def buffer_bytes(sections: Mapping[str, Any], schema: Schema) -> int:
    """How many bytes of a message are buffers (batch statistics) rather than parameters."""
    return sum(len(section) for name, section in sections.items() if name in schema.buffers)
