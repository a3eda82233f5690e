"""Networks in two parts, and clients that keep a network of their own."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..core import EVALUATE, Client, Context, Named, Server, Side, State, Tensors
from ..core.local import new_network
from ..errors import WireError
from ..models import Network, evaluating
from ..wire import DOWN, UP, FixedMessage, Schema
from .base import shapes_of


def output(net: nn.Module, shape: tuple[int, ...]) -> Any:
    """The output for one empty input: maps [1, channels, height, width] or logits."""
    device = next((p.device for p in net.parameters()), None)
    with torch.no_grad(), evaluating(net):
        return net(torch.zeros(1, *shape, device=device))


class Edge(Named):
    """A network in two parts, the extractor f_e and the classifier f_c."""

    def build(self, task: Any) -> nn.Module:
        net = super().build(task)
        images = task.train[1].dim() == 1 and min(task.shape[-2:]) > 1
        if not images or not isinstance(net, Network):
            raise ValueError(
                f"An edge network is a models.Network, not {type(net).__name__}, and "
                "classifies images."
            )
        return net


class EdgeSide(Side):
    """A side of a method with a network in two places.

    The extractor of an edge network is at the clients. ``maps`` is the shape of its output
    for one image, and the input of the server's network.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        maps = output(self.net.extractor, self.task.shape)
        self.maps = tuple(maps.shape[1:])

    def server_network(self) -> nn.Module:
        """The server's network, with the weights that the seed gives."""
        return new_network(replace(self.method.network, shape=self.maps), self.task)


class PersonalSide(Side):
    """A side of a method whose clients keep networks of their own."""

    def personal(self) -> FixedMessage:
        """The message with a client's network; empty for the network that the seed gives."""
        schema = Schema(shapes_of(self.initial), coder="own network")
        return FixedMessage(schema, device=self.task.device)

    def question(self, k: int) -> FixedMessage:
        """The message that asks client k for its network; it is sent empty."""
        return self.personal()


class PersonalServer(PersonalSide, Server):
    """A server that evaluates the clients' networks."""

    def complete(self, net: nn.Module) -> nn.Module:
        """The network that is evaluated for a client's network."""
        return net

    def evaluate(self, t: int, state: State, ask: Any) -> dict[str, Any]:
        """The mean results over the clients that send their network; None without any."""
        task = self.task
        predictions: dict = {}

        def write(k: int) -> bytes:
            return self.question(k).write(DOWN, t, k, {})

        def read(k: int, data: bytes) -> dict[str, float]:
            w_k = self.personal().read(UP, t, k, data, samples=task.sizes[k])
            net = self.complete(self.hold(t, self.initial | w_k))
            return task.evaluate(net, client=k, predictions=predictions)

        results = [r for _, r in ask(range(task.clients), write, read, EVALUATE)]
        means: dict[str, Any] = {"accuracy": None, "loss": None}
        for name in results[0] if results else ():
            means[name] = sum(r[name] for r in results) / len(results)
        return means | task.measure(predictions)

    def network(self, t: int, state: State) -> nn.Module:
        name = self.method.name
        raise ValueError(f"{name} leaves no one network: clients keep their own.")


class PersonalClient(PersonalSide, Client):
    """A client that trains a network of its own, "own/..." in its memory."""

    def answer(
        self, t: int, client: int, question: str, data: bytes, memory: Tensors
    ) -> bytes:
        if question != EVALUATE:
            return super().answer(t, client, question, data, memory)
        self.question(client).read(DOWN, t, client, data)
        w_k = {n: memory[f"own/{n}"] for n in self.initial if f"own/{n}" in memory}
        return self.personal().write(UP, t, client, w_k, self.task.sizes[client])

    def training(self, t: int, client: int, memory: Tensors) -> Context:
        """A context whose ``start`` is the client's own network."""
        start = {n: memory.get(f"own/{n}", w) for n, w in self.initial.items()}
        return self.context(t, client, Schema({}), memory, start=start)

    def keep(self, trained: Tensors, ctx: Context) -> None:
        """Store the trained network; ``WireError`` if it is not finite."""
        for w in trained.values():
            if not torch.isfinite(w).all():
                raise WireError(f"The training of client {ctx.client} diverged.")
        for n, w in trained.items():
            ctx.memory[f"own/{n}"] = w.clone()
