"""Training alone, or local fine-tuning of the common M^0: each client trains its own model, and
nothing is sent. A floor: who takes part in federated learning should do better than that::

    client k:  w_k <- w_k after E epochs of minibatch SGD on its own data

There is no global model, so the round of six parts does not fit: its server could only test M^0.
Here a round's messages are empty, 0 bytes both ways. To evaluate, the server asks for all w_k:
accuracy and loss are means over the clients' own models, each on the whole test set. Bytes of
evaluation have a column of their own, as ever.

Deviations from paper and authors' program: there is no paper.
"""

from typing import Any

import torch

from ..errors import WireError
from ..local import load
from ..method import Method, ServerSide, Trainee
from ..parts import SGD, Context, State, Tensors
from ..wire import DOWN, UP, Schema
from ..wire.fixed import FixedMessage


def _message(side: Any) -> FixedMessage:
    """A client's model, or nothing if it has not trained yet."""
    shapes = {n: tuple(w.shape) for n, w in side.initial.items()}
    return FixedMessage(Schema(shapes), device=side.task.device)


def _nothing(k: int, data: bytes = b"") -> bytes:
    """The messages of a round."""
    if data:
        raise WireError(f"Client {k} trains alone: its messages are empty.")
    return b""


class Server(ServerSide):
    """Knows no more than M^0, and tests the clients' own models."""

    def round(self, t: int, state: State, ask: Any) -> State:
        list(ask.read(ask(self.participants(t), _nothing), _nothing))
        return state

    def evaluate(self, t: int, state: State, ask: Any) -> dict[str, Any]:
        message, n = _message(self), self.task.sizes

        def network(k: int, data: bytes) -> torch.nn.Module:
            load(self.tensors, self.initial | message.read(UP, t, k, data, samples=n[k]))
            return self.net

        self.method.model.refresh(self.net, self.task, t)
        return self.evaluate_each(ask, lambda k: message.write(DOWN, t, k, {}), network)


class Client(Trainee):
    """Goes on with its own model ("own/..." in its memory)."""

    def show(self, t: int, client: int, data: bytes, memory: Tensors) -> bytes:
        _message(self).read(DOWN, t, client, data)
        own = {n: memory[f"own/{n}"] for n in self.initial if f"own/{n}" in memory}
        return _message(self).write(UP, t, client, own, self.task.sizes[client])

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        _nothing(client, data)
        start = {n: memory.get(f"own/{n}", w) for n, w in self.initial.items()}
        return self.context(t, client, Schema({}), memory, start=start)

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        if not all(torch.isfinite(w).all() for w in trained.values()):
            raise WireError(f"The training of client {ctx.client} diverged.")
        ctx.memory.update({f"own/{n}": w.clone() for n, w in trained.items()})
        return b""


class Local(Method):
    """As a record: how a client trains."""

    sides = (Server, Client)


def local(lr: float = 0.1, momentum: float = 0.0) -> Local:
    """Every client on its own. The state that a run leaves stays M^0."""
    return Local("local", optimizer=SGD(lr, momentum))
