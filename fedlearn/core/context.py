"""What passes between the parts of a method, and what a part may know while it works."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from .. import rng
from ..settings import Settings
from ..wire import Schema

Tensors = dict[str, torch.Tensor]  # a state, an update, a memory: tensors by name


class Batch(NamedTuple):
    """Images, labels, and their places among the client's images.

    In a stack of clients the tensors are [clients, batch, ...].
    """

    x: torch.Tensor
    y: torch.Tensor
    index: torch.Tensor


class Arrival(NamedTuple):
    """What the server decoded from one client's message."""

    client: int
    samples: int
    update: Tensors
    buffers: int = 0  # bytes of the message that are no parameters


def batches(n: int, size: int, net: Any) -> list[tuple[int, int]]:
    """Start and end of each batch of a client with n samples.

    ``BatchNorm1d`` cannot train on a single sample. In a network with such layers, a last
    batch of one joins the batch before it.
    """
    starts = list(range(0, n, size))
    alone = n % size == 1 or size == 1
    if alone and any(isinstance(m, torch.nn.BatchNorm1d) for m in net.modules()):
        if len(starts) == 1 or size == 1:
            raise ValueError(
                "BatchNorm1d cannot train on a batch of one sample: leave out clients "
                "that have one, or say a larger batch_size."
            )
        starts.pop()
    return list(zip(starts, [*starts[1:], n], strict=True))


@dataclass
class State:
    """The global model, and what the server's parts remember from round to round."""

    weights: Tensors
    memory: Tensors = field(default_factory=dict)


class Part:
    """Base of everything that a method is made of.

    ``needs`` lists classes. For each of them the method must have a part of that class,
    or its uplink must send things of that class.
    """

    needs: tuple[type, ...] = ()

    def check(self, method: Any) -> None:
        """``ValueError`` if this part does not fit the other parts of ``method``."""

    def validate(self, ctx: "Context") -> None:
        """``ValueError`` if this part cannot work with the task or the settings of a run."""


@dataclass
class Context:
    """What a part may know about one client in one round.

    In a stack of clients, ``client`` and ``memory`` are lists, and the tensors of ``start``
    are [clients, ...].
    """

    task: Any
    round: int  # 1, 2, ...
    client: Any = -1  # -1: the server
    # M^0, which both sides make from the seed
    initial: Tensors = field(default_factory=dict)
    # the model with which training starts
    start: Tensors = field(default_factory=dict)
    # what this side keeps between rounds
    memory: Any = field(default_factory=dict)
    schema: Schema = Schema({})  # what the message may hold
    settings: Settings = Settings()
    participants: tuple[int, ...] = ()  # the clients of this round, ascending
    net: Any = None  # this side's network
    # at the server: client -> its last round
    last_seen: Mapping[int, int] = field(default_factory=dict)
    lossy: frozenset[str] = frozenset()  # the tensors that the coder changes
    # at the server: client -> names of the tensors that its message should hold
    expected: Mapping[int, Iterable[str]] = field(default_factory=dict)

    def generator(self, purpose: str) -> Any:
        """The random generator for this purpose, round and client."""
        if isinstance(self.client, list):
            return [
                rng.generator(self.task.seed, purpose, self.round, k)
                for k in self.client
            ]
        return rng.generator(self.task.seed, purpose, self.round, self.client)

    def steps(self, client: int) -> int:
        """How many local steps a client takes in a round: E epochs of its batches."""
        n = self.task.sizes[client]
        return self.settings.epochs * len(
            batches(n, self.settings.batch_size, self.net)
        )
