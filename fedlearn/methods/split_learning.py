"""Split learning: Gupta and Raskar, "Distributed learning of deep neural network over multiple agents", 2018, Algorithm 1.

    the clients in turn, batch by batch:   client -> server   H = f_e(x) and the labels
                                           server             a step of W_s on CE(f_s(H), y)
                                           server -> client   dCE / dH, with which the client takes a step of W_e

    from client to client:                 W_e, by way of the server

Each arrow is one exchange of the round: a client that gets W_e answers with H of its first batch, one that gets dCE / dH takes
its step and answers with H of the next batch, or after the last with W_e.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from .. import rng, training
from ..errors import WireError
from ..method import ClientSide, Method, ServerSide
from ..models import state_of
from ..parts import SGD, Context, Edge, Named, Optimizer, State, Tensors
from ..settings import Settings
from ..wire import DOWN, UP, Dense, Message, Schema, pack, unpack

HAND_OVER, STEP = "hand over", "step"
DENSE = Dense()


class Letters:
    """The three messages: the extractor's weights, feature maps with labels, and a gradient."""

    def __init__(self, task: Any, f_e: nn.Module, settings: Settings) -> None:
        self.task, self.settings = task, settings
        with torch.no_grad():
            self.maps = f_e.eval()(torch.zeros(1, *task.shape, device=task.device)).shape[1:]
        weights = {name: tuple(w.shape) for name, w in state_of(f_e).items()}
        self.weights = Schema(weights, frozenset(), "split learning")

    def batches(self, k: int) -> list[tuple[int, int, int]]:
        """(epoch, first sample, end) of each step of a client's turn."""
        n, B = self.task.sizes[k], self.settings.batch_size
        each = [(at, min(at + B, n)) for at in range(0, n, B)]
        return [(e, *ends) for e in range(self.settings.epochs) for ends in each]

    def features(self, count: int) -> Schema:
        """H and y of a batch of so many images."""
        return Schema({"H": (count, *self.maps), "y": (count,)}, frozenset(), "split learning")

    def gradient(self, count: int) -> Schema:
        """dCE / dH of such a batch."""
        return Schema({"dH": (count, *self.maps)}, frozenset(), "split learning")

    def write(
        self, kind: int, t: int, k: int, tensors: Tensors, schema: Schema, n: int = 0
    ) -> bytes:
        """Tensors -> bytes."""
        coded = DENSE.encode_rows([x[None] for x in tensors.values()], [None])[0]
        return pack(Message(kind, t, k, n, dict(zip(tensors, coded, strict=True))), schema)

    def read(self, kind: int, t: int, k: int, data: bytes, schema: Schema) -> Tensors:
        """bytes -> all tensors of the schema, or ``WireError``."""
        sections = unpack(data, schema, kind=kind, round=t, client=k).sections
        if sections.keys() != schema.shapes.keys():
            raise WireError(f"A message of client {k}'s turn is not whole.")
        tensors = DENSE.decode_all(list(sections.values()), list(schema.shapes.values()))
        return {n: x.to(self.task.device) for n, x in zip(sections, tensors, strict=True)}


class Server(ServerSide):
    """Holds W_s, and W_e between two clients' turns."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        self.f_e = self.net.extractor
        self.letters = Letters(task, self.f_e, self.settings)
        shape = tuple(self.letters.maps)
        self.f_s = training.new_network(replace(method.network, shape=shape), task)

    def start(self) -> State:
        return self._state(state_of(self.f_e), state_of(self.f_s))

    def _state(self, edge: Tensors, server: Tensors) -> State:
        weights = {f"edge.{n}": w.clone() for n, w in edge.items()}
        return State(weights | {f"server.{n}": w.clone() for n, w in server.items()})

    def _load(self, state: State) -> Tensors:
        """Put W_s into its network -> W_e."""
        split: dict[str, Tensors] = {"edge": {}, "server": {}}
        for name, w in state.weights.items():
            side, own = name.split(".", 1)
            split[side][own] = w
        training.load(state_of(self.f_s), split["server"])
        return split["edge"]

    def longest(self) -> int:
        most = min(self.settings.batch_size, max(self.task.sizes))
        return max(self.letters.features(most).limit, self.letters.weights.limit)

    def round(self, t: int, state: State, ask: Any) -> State:
        W_e = self._load(state)
        self.f_s.train()
        for k in self.participants(t):
            W_e = self.turn(t, k, W_e, ask)
        return self._state(W_e, state_of(self.f_s))

    def turn(self, t: int, k: int, W_e: Tensors, ask: Any) -> Tensors:
        """The turn of client k -> the extractor's weights after it; as before it, if the client drops
        out."""
        J, letters, part = self.task.loss, self.letters, self.method.optimizer
        W_s, steps = training.trainable(self.f_s), letters.batches(k)
        own = part.init(W_s, Context(self.task, t, k))
        message, what = letters.write(DOWN, t, k, W_e, letters.weights), HAND_OVER
        ask.note("bytes_handover", len(message))
        for i, (_, first, end) in enumerate(steps):
            schema = letters.features(end - first)
            H = self._one(ask, t, k, message, what, schema)
            if H is None:
                return W_e
            H_s = H["H"].requires_grad_()
            with rng.scope(self.task.seed, "server dropout", t, k, i, device=self.task.device):
                loss = J(self.f_s(H_s), H["y"].long())
            *grads, dH = torch.autograd.grad(loss, [*W_s, H_s])
            with torch.no_grad():
                part.step(W_s, grads, own)
            message = letters.write(DOWN, t, k, {"dH": dH}, letters.gradient(end - first))
            what = STEP
        after = self._one(ask, t, k, message, what, letters.weights)
        if after is not None:
            ask.note("bytes_handover", len(letters.write(UP, t, k, after, letters.weights)))
        return W_e if after is None else after

    def _one(
        self, ask: Any, t: int, k: int, message: bytes, what: str, schema: Schema
    ) -> Tensors | None:
        """One exchange with one client -> its tensors; None if it was refused."""
        read = self.letters.read
        answers = ask([k], lambda k: message, lambda k, data: read(UP, t, k, data, schema), what)
        return dict(answers).get(k)

    def evaluate(self, t: int, state: State, ask: Any) -> dict[str, float]:
        training.load(state_of(self.f_e), self._load(state))
        return self.task.evaluate(nn.Sequential(self.f_e, self.f_s))


class Client(ClientSide):
    """Holds W_e while it has its turn. All of it lies in the client's memory: weights, optimiser and the
    number of the next step; a batch that another process answered is computed anew."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        self.f_e = self.net.extractor
        self.letters = Letters(task, self.f_e, self.settings)
        self._epoch: tuple = (None, None)  # (round, client, epoch), its images and labels
        self._ahead: tuple = (None, None)  # (round, client, step), H with its graph

    @torch.enable_grad()
    def answer(self, t: int, client: int, what: str, data: bytes, memory: Tensors) -> bytes:
        letters, steps, part = self.letters, self.letters.batches(client), self.method.optimizer
        n, ctx = self.task.sizes[client], Context(self.task, t, client)
        tensors, params = state_of(self.f_e), training.trainable(self.f_e)
        if what == HAND_OVER:
            i, edge = 0, letters.read(DOWN, t, client, data, letters.weights)
            lists = {key: v for key, v in part.init(params, ctx).items() if isinstance(v, list)}
        elif what == STEP and "step" in memory:
            i, key = int(memory["step"]), (t, client, int(memory["step"]))
            _, first, end = steps[i]
            dH = letters.read(DOWN, t, client, data, letters.gradient(end - first))["dH"]
            if self._ahead[0] != key:
                training.load(tensors, {name: memory[f"edge/{name}"] for name in tensors})
                self._ahead = key, self._forward(t, client, i, steps[i])[0]
            (_, H), self._ahead = self._ahead, (None, None)
            own = part.init(params, ctx)
            lists = {k: v for k, v in own.items() if isinstance(v, list)}
            own |= {
                k: [memory[f"{k} {j}"].clone() for j in range(len(v))] for k, v in lists.items()
            }
            grads = torch.autograd.grad(H, params, dH)
            with torch.no_grad():
                part.step(params, grads, own)
            i, edge, lists = i + 1, tensors, {k: own[k] for k in lists}
        else:
            raise WireError(f"Client {client} cannot answer {what!r} now.")
        memory.clear()
        if i == len(steps):
            return letters.write(UP, t, client, edge, letters.weights, n)
        memory.update({f"edge/{name}": w.clone() for name, w in edge.items()})
        memory.update({f"{k} {j}": x.clone() for k, v in lists.items() for j, x in enumerate(v)})
        memory["step"] = torch.tensor(i)
        training.load(tensors, edge)
        H, y = self._forward(t, client, i, steps[i])
        self._ahead = (t, client, i), H
        return letters.write(
            UP, t, client, {"H": H.detach(), "y": y}, letters.features(len(y)), len(y)
        )

    def _forward(self, t: int, k: int, i: int, step: tuple[int, int, int]) -> tuple:
        """H and the labels of the batch of step ``i``."""
        epoch, first, end = step
        if self._epoch[0] != (t, k, epoch):
            ctx = Context(self.task, t, k)
            shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
            for _ in range(epoch + 1):  # the draws of each epoch follow those of the one before
                order = torch.randperm(self.task.sizes[k], generator=shuffle)
                data = self.task.epoch(k, order, augment)
            self._epoch = (t, k, epoch), data
        x, y = self._epoch[1]
        self.f_e.train()
        with rng.scope(self.task.seed, "dropout", t, k, i, device=self.task.device):
            return self.f_e(x[first:end]), y[first:end]


@dataclass(frozen=True)
class SplitLearning(Method):
    """Split learning as a record: the extractor of ``model`` at the clients, ``network`` at the server."""

    name: str = "split_learning"
    model: Edge = Edge("digits_edge")
    optimizer: Optimizer = SGD(0.1)
    network: Named = Named("digits_server")

    sides = (Server, Client)
    kinds: ClassVar[dict] = dict(Method.kinds) | {"network": Named}


def split_learning(
    lr: float = 0.1, edge: Any = "digits_edge", server: Any = "digits_server"
) -> SplitLearning:
    """Train the extractor of ``edge`` with ``server`` on top. In a round every client has its turn of E
    local epochs; SGD on both sides. Rows of the history have one column more, ``bytes_handover``: the
    share of the bytes that the extractor's weights took on their way from client to client."""
    return SplitLearning(model=Edge(edge), optimizer=SGD(lr), network=Named(server))
