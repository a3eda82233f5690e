"""The first part: which network does a client train?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..arguments import short
from ..models import Network
from .base import Part


class Model(Part):
    """Builds the network. ``gives`` says what is special about it."""

    def build(self, task: Any) -> nn.Module:
        """A new network, initialised from torch's global generator."""
        raise NotImplementedError

    def refresh(self, net: nn.Module, task: Any, round: int) -> None:
        """Called on both sides in each round, before training and before evaluation, for networks
        that have parts which change with the round."""


@dataclass(frozen=True)
class TaskNetwork(Model):
    """The network that the task names."""

    def build(self, task: Any) -> nn.Module:
        return task.network()


@dataclass(frozen=True, repr=False)
class Named(Model):
    """The network of that name, or made by that function, whatever the task's own is; for inputs of
    another shape if given."""

    network: str | Callable | None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not (self.network is None or isinstance(self.network, str) or callable(self.network)):
            raise ValueError(
                f"There is no network {short(self.network)}: a network is a name, a function "
                "(shape, classes) -> module, or None, the task's."
            )

    def __repr__(self) -> str:  # a function by its name: its address would be another one tomorrow
        known = isinstance(self.network, str | None)
        name = self.network if known else getattr(self.network, "__name__", repr(self.network))
        return f"{type(self).__name__}({name!r}{f', {self.shape}' if self.shape else ''})"

    def build(self, task: Any) -> nn.Module:
        return task.network(self.network, self.shape)


@dataclass(frozen=True, repr=False)
class Edge(Named):
    """A network that must be split into the extractor f_e and the classifier f_c."""

    def build(self, task: Any) -> nn.Module:
        net = super().build(task)
        if not isinstance(net, Network):
            raise ValueError(
                "An edge network is split into extractor and classifier (models.Network), unlike "
                f"this {type(net).__name__}."
            )
        return net
