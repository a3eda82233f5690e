"""Split learning: Gupta and Raskar, "Distributed learning of deep neural network over multiple
agents", 2018, Algorithm 1.

    client -> server    H = f_e(x) and the labels           the clients in turn, batch by batch
    server              a step of W_s on CE(f_s(H), y)
    server -> client    dCE / dH, for a step of W_e
    client -> client    W_e, by way of the server           after a client's last batch

Each arrow is one exchange: a client that gets W_e answers with H of its first batch, one that gets
dCE / dH takes its step and answers with H of the next batch, or after the last with W_e. A turn
that comes to no end, as an answer is missing or refused, counts for nothing: W_s and W_e stay.
"""

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import rng
from ..core import SGD, Context, Method, Named, Optimizer, State, Tensors, local
from ..core import Client as AveragingClient
from ..core import Server as AveragingServer
from ..errors import WireError
from ..models import state_of
from ..wire import DOWN, UP, FixedMessage, Schema
from .base import lasting, recalled
from .edge import Edge, EdgeSide

HAND_OVER, STEP = "hand over", "step"  # what a client may be asked for
Slice = tuple[int, int, int]  # of a client's turn, one step: epoch, first sample, end


class Messages(EdgeSide):
    """A side with the three messages: extractor's weights, feature maps with labels, gradient."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.settings.precision == "bf16":
            raise ValueError("Split learning trains in float32 or tf32, not in bf16.")
        self.f_e = self.net.extractor
        self.W_e = state_of(self.f_e)  # the network's own
        self.weights = self._message(
            {name: tuple(w.shape) for name, w in self.W_e.items()}
        )

    def _message(self, shapes: dict[str, tuple[int, ...]]) -> FixedMessage:
        schema = Schema(shapes, coder="split learning")
        return FixedMessage(schema, whole=True, device=self.task.device)

    def steps(self, k: int) -> list[Slice]:
        """The steps of a client's turn."""
        n, E, B = self.task.sizes[k], self.settings.epochs, self.settings.batch_size
        return [
            (epoch, at, min(at + B, n)) for epoch in range(E) for at in range(0, n, B)
        ]

    def features(self, step: Slice) -> FixedMessage:
        """H and y of the batch of a step."""
        return self._message(
            {"H": (step[2] - step[1], *self.maps), "y": (step[2] - step[1],)}
        )

    def gradient(self, step: Slice) -> FixedMessage:
        """dCE / dH of that batch."""
        return self._message({"dH": (step[2] - step[1], *self.maps)})


class Server(Messages, AveragingServer):
    """Holds W_s, and W_e between two clients' turns; in its state they are "server.", "edge."."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.f_s = self.server_network()
        self.net = nn.Sequential(OrderedDict(edge=self.f_e, server=self.f_s))
        self.tensors = state_of(self.net)
        self.initial = {name: w.clone() for name, w in self.tensors.items()}

    def round(self, t: int, state: State, ask: Any) -> State:
        weights = dict(state.weights)
        for k in self.participants(t):
            local.load(self.tensors, weights)
            if self.turn(t, k, ask):
                weights = {name: w.clone() for name, w in self.tensors.items()}
        return State(weights)

    def turn(self, t: int, k: int, ask: Any) -> bool:
        """The turn of client k -> whether it came to its end."""
        ctx = Context(self.task, t, k, net=self.f_s)
        optimizer_state = self.method.optimizer.init(local.trainable(self.f_s), ctx)
        steps = enumerate(self.steps(k))
        readers = [partial(self.step, t, i, step, optimizer_state) for i, step in steps]
        message, question = self.weights.write(DOWN, t, k, self.W_e), HAND_OVER
        ask.note("bytes_handover", len(message))
        for read in (*readers, partial(self.take_over, t)):
            answers = list(ask([k], lambda k, message=message: message, read, question))
            if not answers:
                return False
            (_, message), question = answers[0], STEP
        ask.note("bytes_handover", len(message))
        return True

    def step(
        self, t: int, i: int, step: Slice, optimizer_state: dict, k: int, data: bytes
    ) -> bytes:
        """H and y of client k's i-th batch -> dCE / dH, and a step of W_s."""
        batch = self.features(step).read(UP, t, k, data, samples=step[2] - step[1])
        H, y, W_s = batch["H"].requires_grad_(), batch["y"], local.trainable(self.f_s)
        if not ((y == y.floor()) & (y >= 0) & (y < self.task.source.classes)).all():
            raise WireError(f"Client {k} sent labels that are no numbers of classes.")
        with rng.scope(
            self.task.seed, "server dropout", t, k, i, device=self.task.device
        ):
            loss = self.task.loss(self.f_s.train()(H), y.long())
        *grads, dH = torch.autograd.grad(loss, [*W_s, H])
        if not torch.isfinite(dH).all():
            raise WireError(f"What client {k} sent gives no finite gradient.")
        with torch.no_grad():
            self.method.optimizer.step(W_s, grads, optimizer_state)
        return self.gradient(step).write(DOWN, t, k, {"dH": dH})

    def take_over(self, t: int, k: int, data: bytes) -> bytes:
        """W_e as client k hands it over, if both networks are still finite."""
        local.load(
            self.W_e, self.weights.read(UP, t, k, data, samples=self.task.sizes[k])
        )
        if not all(w.isfinite().all() for w in self.tensors.values()):
            raise WireError(
                f"After the turn of client {k} the networks are not finite."
            )
        return data


class Client(Messages, AveragingClient):
    """Holds W_e ("edge/..."), optimiser and next step in the client's memory for its turn; a batch
    is computed again when its gradient comes, as another process may answer."""

    stacks = False  # clients take turns
    remembers = False  # a turn begins with W_e

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._epoch: tuple = (
            None,
            None,
        )  # (round, client, epoch), its images and labels

    @torch.enable_grad()
    def answer(
        self, t: int, client: int, question: str, data: bytes, memory: Tensors
    ) -> bytes:
        steps, params, W_e, i = (
            self.steps(client),
            local.trainable(self.f_e),
            self.W_e,
            0,
        )
        ctx, optimizer = (
            Context(self.task, t, client, net=self.f_e),
            self.method.optimizer,
        )
        optimizer_state = optimizer.init(params, ctx)
        if question == HAND_OVER:
            local.load(W_e, self.weights.read(DOWN, t, client, data))
        elif question == STEP and "step" in memory:
            i = int(memory["step"])
            dH = self.gradient(steps[i]).read(DOWN, t, client, data)["dH"]
            local.load(W_e, {name: memory[f"edge/{name}"] for name in W_e})
            H, _ = self._forward(t, client, i, steps[i])
            optimizer_state = recalled(optimizer_state, memory)
            grads = torch.autograd.grad(H, params, dH)
            with torch.no_grad():
                optimizer.step(params, grads, optimizer_state)
            i += 1
        else:
            raise WireError(f"Client {client} cannot answer {question!r} now.")
        memory.clear()
        if i == len(steps):
            return self.weights.write(UP, t, client, W_e, self.task.sizes[client])
        keep = {f"edge/{name}": w for name, w in W_e.items()} | lasting(optimizer_state)
        memory |= {name: x.clone() for name, x in keep.items()} | {
            "step": torch.tensor(i)
        }
        H, y = self._forward(t, client, i, steps[i])
        return self.features(steps[i]).write(UP, t, client, {"H": H, "y": y}, len(y))

    def _forward(
        self, t: int, k: int, i: int, step: Slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """H and the labels of the batch of step ``i``."""
        epoch, first, end = step
        if self._epoch[0] != (t, k, epoch):
            ctx = Context(self.task, t, k)
            shuffle, augment = ctx.generator("shuffle"), ctx.generator("augment")
            for _ in range(
                epoch + 1
            ):  # the draws of each epoch follow those of the one before
                order = torch.randperm(self.task.sizes[k], generator=shuffle)
                self._epoch = (t, k, epoch), self.task.epoch(k, order, augment)
        x, y = self._epoch[1]
        with rng.scope(self.task.seed, "dropout", t, k, i, device=self.task.device):
            return self.f_e.train()(x[first:end]), y[first:end]


@dataclass(frozen=True)
class SplitLearning(Method):
    """The extractor of ``model`` at the clients, ``network`` at the server."""

    name: str = "split_learning"
    model: Edge = Edge("digits_edge")
    optimizer: Optimizer = SGD(0.1)
    network: Named = Named("digits_server")

    server_class = Server
    client_class = Client


def split_learning(
    lr: float = 0.1, edge: Any = "digits_edge", server: Any = "digits_server"
) -> SplitLearning:
    """Split learning, Gupta and Raskar (2018), Algorithm 1; participants have turns of E epochs.

    A column more in the history, ``bytes_handover``, is the share of the bytes that W_e takes from
    client to client.

    Parameters
    ----------
    edge, server : str, function (shape, classes) -> module, or None
        The network whose extractor is trained, and what stands on top; None: the task's.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * weights go from client to client by way of the server: a column of its own in the history
    * optimisers start anew each turn, what is handed over is W_e: none with plain SGD
    """
    return SplitLearning(model=Edge(edge), optimizer=SGD(lr), network=Named(server))
