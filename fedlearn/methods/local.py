"""Training alone, or local fine-tuning of the common M^0: each client trains its own model, and
nothing is sent. This is a baseline that federated learning should exceed::

    client k:  w_k <- w_k after E epochs of minibatch SGD on its own data

There is no global model, so the round of six parts does not fit. A round's messages are empty, 0
bytes both ways. To evaluate, the server asks for all w_k: accuracy and loss are means over the
clients' own models, each on the whole test set. Bytes of evaluation have a column of their own.
"""

from typing import Any

from ..core import SGD, Context, Method, State, Tensors
from ..errors import WireError
from .edge import PersonalClient, PersonalServer


def nothing(k: int, data: bytes = b"") -> bytes:
    """The messages of a round."""
    if data:
        raise WireError(f"Client {k} trains alone: its messages are empty.")
    return b""


class Server(PersonalServer):
    """Holds M^0 only, and tests the clients' own models."""

    def round(self, t: int, state: State, ask: Any) -> State:
        list(ask(self.participants(t), nothing, nothing))
        return state


class Client(PersonalClient):
    """Trains its own model."""

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        nothing(client, data)
        return self.training(t, client, memory)

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        self.keep(trained, ctx)
        return b""


class Local(Method):
    """Local training only: a round without messages."""

    server_class = Server
    client_class = Client


def local(lr: float = 0.1, momentum: float = 0.0) -> Local:
    """Every client trains alone; there is no paper. The state of a run stays M^0."""
    return Local("local", optimizer=SGD(lr, momentum))
