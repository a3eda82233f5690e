"""Networks in two parts, and clients that keep a network of their own."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..core import EVALUATE, Client, Context, Named, Side, Tensors
from ..core.local import new_network
from ..errors import WireError
from ..models import Network, evaluating
from ..wire import DOWN, UP, FixedMessage, Schema


def output(net: nn.Module, shape: tuple[int, ...]) -> Any:
    """The output for one empty input: maps [1, channels, height, width] or logits."""
    device = next((p.device for p in net.parameters()), None)
    with torch.no_grad(), evaluating(net):
        return net(torch.zeros(1, *shape, device=device))


@dataclass(frozen=True, repr=False)
class Edge(Named):
    """A network in two parts, the extractor f_e and the classifier f_c."""

    def build(self, task: Any) -> nn.Module:
        if task.train[1].dim() > 1 or min(task.shape[-2:]) == 1:
            raise ValueError("An edge network classifies images; this task has none.")
        net = super().build(task)
        if not isinstance(net, Network):
            raise ValueError(
                f"An edge network is a models.Network, not {type(net).__name__}."
            )
        return net


class EdgeSide(Side):
    """A side whose network is in two places.

    The extractor of an edge network is at the clients. It gives ``maps`` (the shape, of
    one image), and the server has a network for these.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.maps = tuple(output(self.net.extractor, self.task.shape).shape[1:])

    def server_network(self) -> nn.Module:
        """The server's network, with the weights that the seed gives."""
        return new_network(replace(self.method.network, shape=self.maps), self.task)


def no_network(method: Any) -> nn.Module:
    """``ValueError``: only the clients have trained networks."""
    raise ValueError(f"{method.name} leaves no one network: clients keep their own.")


def network_message(side: Side) -> FixedMessage:
    """A client's own network; nothing as long as it is the one that the seed gives."""
    shapes = {name: tuple(w.shape) for name, w in side.initial.items()}
    return FixedMessage(Schema(shapes, coder="own network"), device=side.task.device)


def evaluate_personal(
    server: Any,
    t: int,
    ask: Any,
    question: Callable[[int], FixedMessage],
    whole: Callable[[nn.Module], nn.Module] = lambda net: net,
) -> dict[str, Any]:
    """Mean results of ``whole(network)`` over the clients that show theirs, or None."""
    message = network_message(server)
    task = server.task
    predictions: dict = {}

    def read(k: int, data: bytes) -> dict[str, float]:
        shown = message.read(UP, t, k, data, samples=task.sizes[k])
        net = whole(server.hold(t, server.initial | shown))
        result = task.evaluate(net, client=k, predictions=predictions)
        if not math.isfinite(result["loss"]):
            predictions.pop(k, None)
            raise WireError(f"With client {k}'s network the loss is not finite.")
        return result

    def write(k: int) -> bytes:
        return question(k).write(DOWN, t, k, {})

    results = [r for _, r in ask(range(task.clients), write, read, EVALUATE)]
    means: dict[str, Any] = {"accuracy": None, "loss": None}
    if results:
        for name in results[0]:
            means[name] = sum(r[name] for r in results) / len(results)
    return means | task.measure(predictions)


class PersonalClient(Client):
    """A client that goes on from its own network ("own/..." in its memory)."""

    def question(self, k: int) -> FixedMessage:
        """The message, then empty, that asks client k for its network."""
        return network_message(self)

    def show(self, t: int, client: int, data: bytes, memory: Tensors) -> bytes:
        self.question(client).read(DOWN, t, client, data)
        own = {n: memory[f"own/{n}"] for n in self.initial if f"own/{n}" in memory}
        return network_message(self).write(UP, t, client, own, self.task.sizes[client])

    def training(self, t: int, client: int, memory: Tensors) -> Context:
        """Training from the client's own network."""
        start = {n: memory.get(f"own/{n}", w) for n, w in self.initial.items()}
        return self.context(t, client, Schema({}), memory, start=start)

    def keep(self, trained: Tensors, ctx: Context) -> None:
        """``WireError`` for a network that is not finite: then the last one stays."""
        if not all(torch.isfinite(w).all() for w in trained.values()):
            raise WireError(f"The training of client {ctx.client} diverged.")
        ctx.memory.update({f"own/{n}": w.clone() for n, w in trained.items()})
