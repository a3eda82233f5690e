"""Split learning: Gupta and Raskar, "Distributed learning of deep neural network over multiple
agents", 2018, Algorithm 1.

    client -> server    H = f_e(x) and the labels           the clients in turn, batch by batch
    server              a step of W_s on CE(f_s(H), y)
    server -> client    dCE / dH, for a step of W_e
    client -> client    W_e, by way of the server           after a client's last batch

Each arrow is one exchange. A client answers W_e with H of its first batch. It answers dCE / dH with
H of the next batch, or after the last batch with W_e. A turn without an end, because an answer is
missing or refused, counts for nothing: W_s and W_e stay.
"""

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import rng
from ..core import (
    SGD,
    Client,
    Context,
    Method,
    Named,
    Optimizer,
    Server,
    State,
    Tensors,
    local,
)
from ..core.context import batches
from ..errors import WireError
from ..models import state_of
from ..wire import DOWN, UP, FixedMessage, Schema, Whole
from .base import Continued, Shapes, clones, shapes_of
from .edge import Edge, EdgeSide

HAND_OVER = "hand over"  # the two questions to a client
STEP = "step"
Slice = tuple[int, int, int]  # a step of a turn: epoch, first sample, end


class Messages(EdgeSide):
    """A side with the three messages: extractor's weights, feature maps with labels, gradient."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.settings.precision == "bf16":
            raise ValueError("Split learning trains in float32 or tf32, not in bf16.")
        self.f_e = self.net.extractor
        self.W_e = state_of(self.f_e)  # the network's own
        self.f_s = self.server_network()
        self.weights = self._message(shapes_of(self.W_e))

    def _message(self, shapes: Shapes) -> FixedMessage:
        schema = Schema(shapes, coder="split learning")
        return FixedMessage(schema, {"y": Whole()}, whole=True, device=self.task.device)

    def steps(self, k: int) -> list[Slice]:
        """The steps of a client's turn."""
        networks = nn.ModuleList([self.f_e, self.f_s])
        turn = batches(self.task.sizes[k], self.settings.batch_size, networks)
        return [(epoch, *b) for epoch in range(self.settings.epochs) for b in turn]

    def features(self, n: int) -> FixedMessage:
        """H and y of a batch of n samples."""
        return self._message({"H": (n, *self.maps), "y": (n,)})

    def gradient(self, n: int) -> FixedMessage:
        """dCE / dH of that batch."""
        return self._message({"dH": (n, *self.maps)})


class SplitServer(Messages, Server):
    """Holds W_s ("server." in its state), and W_e ("edge.") between two clients' turns."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.net = nn.Sequential(OrderedDict(edge=self.f_e, server=self.f_s))
        self.tensors = state_of(self.net)
        self.initial = clones(self.tensors)

    def round(self, t: int, state: State, ask: Any) -> State:
        weights = dict(state.weights)
        for k in self.participants(t):
            local.load(self.tensors, weights)
            if self.turn(t, k, ask):
                weights = clones(self.tensors)
        return State(weights)

    def turn(self, t: int, k: int, ask: Any) -> bool:
        """The turn of client k -> whether it came to its end."""
        ctx = Context(self.task, t, k, net=self.f_s)
        moments = self.method.optimizer.init(local.trainable(self.f_s), ctx)
        readers: list[Any] = []
        for i, (_, first, end) in enumerate(self.steps(k)):
            readers.append(partial(self.step, t, i, end - first, moments))
        readers.append(partial(self.take_over, t))
        message = self.weights.write(DOWN, t, k, self.W_e)
        question = HAND_OVER
        ask.note("bytes_handover", len(message))
        for read in readers:
            answers = list(ask([k], lambda k, data=message: data, read, question))
            if not answers:
                return False
            message = answers[0][1]
            question = STEP
        ask.note("bytes_handover", len(message))
        return True

    def step(self, t: int, i: int, n: int, moments: dict, k: int, data: bytes) -> bytes:
        """H and y of client k's i-th batch -> dCE / dH, and a step of W_s."""
        task = self.task
        batch = self.features(n).read(UP, t, k, data, samples=n)
        if batch["y"].max() >= task.source.classes:
            raise WireError(f"Client {k} sent labels that are no numbers of classes.")
        H = batch["H"].requires_grad_()
        W_s = local.trainable(self.f_s)
        with rng.scope(task.seed, "server dropout", t, k, i, device=task.device):
            CE = task.loss(self.f_s.train()(H), batch["y"])
        *grads, dH = torch.autograd.grad(CE, [*W_s, H])
        with torch.no_grad():
            self.method.optimizer.step(W_s, grads, moments)
        return self.gradient(n).write(DOWN, t, k, {"dH": dH})

    def take_over(self, t: int, k: int, data: bytes) -> bytes:
        """W_e as client k hands it over."""
        W_e = self.weights.read(UP, t, k, data, samples=self.task.sizes[k])
        local.load(self.W_e, W_e)
        return data


class SplitClient(Messages, Client):
    """Trains W_e in its turn.

    Between two steps its memory holds W_e ("edge/..."), the optimiser's state and the number of
    the next step. H is computed again when its gradient comes, as another process may answer.
    """

    stacks = False  # clients take turns
    remembers = False  # a turn begins with W_e

    @torch.enable_grad()
    def answer(
        self, t: int, client: int, question: str, data: bytes, memory: Tensors
    ) -> bytes:
        steps = self.steps(client)
        params = local.trainable(self.f_e)
        optimizer = Continued(self.method.optimizer)
        ctx = Context(self.task, t, client, memory=memory, net=self.f_e)
        if question == HAND_OVER:
            W_e = self.weights.read(DOWN, t, client, data)
            i = 0
            memory.clear()
        elif question == STEP and "step" in memory:
            W_e = {name: memory[f"edge/{name}"] for name in self.W_e}
            i = int(memory["step"])
            _, first, end = steps[i]
            dH = self.gradient(end - first).read(DOWN, t, client, data)["dH"]
        else:
            raise WireError(f"Client {client} cannot answer {question!r} now.")
        local.load(self.W_e, W_e)
        moments = optimizer.init(params, ctx)
        if question == STEP:
            H, _ = self._forward(t, client, i, steps[i])
            if params:  # an extractor may be frozen
                grads = torch.autograd.grad(H, params, dH)
                with torch.no_grad():
                    optimizer.step(params, list(grads), moments)
            i += 1
        if i == len(steps):
            memory.clear()
            return self.weights.write(UP, t, client, self.W_e, self.task.sizes[client])
        for name, w in self.W_e.items():
            memory[f"edge/{name}"] = w.clone()
        memory["step"] = torch.tensor(i)
        H, y = self._forward(t, client, i, steps[i])
        message = self.features(len(y))
        return message.write(UP, t, client, {"H": H, "y": y}, len(y))

    def _forward(self, t: int, k: int, i: int, step: Slice) -> tuple:
        """H and the labels of the batch of step ``i``."""
        task = self.task
        epoch, first, end = step
        shuffle = rng.generator(task.seed, "shuffle", t, k)
        for _ in range(epoch + 1):  # an epoch's draw follows that of the epoch before
            order = torch.randperm(task.sizes[k], generator=shuffle)
        augment = rng.generator(task.seed, "augment", t, k, i)
        x, y = task.epoch(k, order[first:end], augment)
        with rng.scope(task.seed, "dropout", t, k, i, device=task.device):
            return self.f_e.train()(x), y


@dataclass(frozen=True)
class SplitLearning(Method):
    """The extractor of ``model`` at the clients, ``network`` at the server."""

    name: str = "split_learning"
    model: Edge = Edge("digits_edge")
    optimizer: Optimizer = SGD(0.1)
    network: Named = Named("digits_server")

    server_class = SplitServer
    client_class = SplitClient


def split_learning(
    lr: float = 0.1, edge: Any = "digits_edge", server: Any = "digits_server"
) -> SplitLearning:
    """Split learning, Gupta and Raskar (2018), Algorithm 1; participants have turns of E epochs.

    The column ``bytes_handover`` of the history has the bytes that carry W_e from client to client.

    Parameters
    ----------
    edge, server : str, function (shape, classes) -> module, or None
        The network with the extractor, and the network for its maps; None: the task's.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * weights go from client to client by way of the server: a column of its own in the history
    * optimisers start anew each turn, and only W_e is handed over: none with plain SGD
    """
    return SplitLearning(model=Edge(edge), optimizer=SGD(lr), network=Named(server))
