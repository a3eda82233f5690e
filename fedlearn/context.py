"""What all parts share: what one gives another, and what it may know while it works."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch

from . import rng
from .arguments import Checked
from .settings import Settings
from .wire import Schema

Tensors = dict[str, torch.Tensor]  # a state, an update, a memory: tensors by name


class Batch(NamedTuple):
    """Images, labels, places in the client's data: [batch, ...] or [clients, batch, ...]."""

    x: torch.Tensor
    y: torch.Tensor
    index: torch.Tensor


class Arrival(NamedTuple):
    """What the server decoded from one client; ``buffers`` are bytes."""

    client: int
    samples: int
    update: Tensors
    buffers: int = 0


@dataclass
class State:
    """What the server keeps from round to round: the global state, and its parts' memory."""

    weights: Tensors
    memory: Tensors = field(default_factory=dict)


class Part(Checked):
    """Base of all parts. A part gives itself to the others, by its class, and what else it
    ``gives``; it ``needs`` some of theirs: classes, or objects where details must agree."""

    needs: Any = frozenset()
    gives: Any = frozenset()

    def given(self) -> set[Any]:
        """All that this part gives."""
        return {type(self), *self.gives}

    def refuse_unknown(self, kind: type["Part"]) -> None:
        """``ValueError`` for a public member that no part of its kind has: a misspelt method."""
        members = {f.name for f in fields(self)} if is_dataclass(self) else set[str]()
        for cls in set(type(self).__mro__) - set(kind.__mro__):
            for name in vars(cls).keys() - members:
                if not name.startswith("_") and not hasattr(kind, name):
                    near = get_close_matches(name, dir(kind), n=1)
                    hint = f"did you mean {near[0]!r}?" if near else "its own names begin with _."
                    raise ValueError(
                        f"{type(self).__name__} has {name!r}, which no {kind.__name__} has: {hint}"
                    )
        for part in (getattr(self, name) for name in members):
            if isinstance(part, kind):
                part.refuse_unknown(kind)


def provides(given: Iterable[Any], need: Any) -> bool:
    """Whether one of these is what is needed: a class or one below it, or an equal object."""
    if not isinstance(need, type):
        return need in given
    return any(issubclass(g if isinstance(g, type) else type(g), need) for g in given)


def label(content: Any) -> str:
    """What a part gives or needs, for a sentence."""
    return content.__name__ if isinstance(content, type) else repr(content)


@dataclass
class Context:
    """What a part may know for one client in one round. For stacked clients ``client``, ``memory``
    and what ``generator`` returns are lists, and the tensors of ``start`` are [clients, ...]."""

    task: Any
    round: int  # 1, 2, ...
    client: Any = -1  # -1: the server itself
    initial: Tensors = field(default_factory=dict)  # M^0, built on both sides, never sent
    start: Tensors = field(default_factory=dict)  # where local training starts; not to be changed
    memory: Any = field(default_factory=dict)  # tensors that this side keeps between rounds
    schema: Schema = Schema({})  # of the message at hand
    settings: Settings = Settings()
    participants: tuple[int, ...] = ()  # the clients of this round, ascending
    net: Any = None  # this side's network
    # at the server: client -> the last round in which an answer of it was taken
    last_seen: Mapping[int, int] = field(default_factory=dict)
    lossy: frozenset[str] = frozenset()  # tensors that do not travel as they are

    def generator(self, purpose: str) -> Any:
        """The generator for this purpose, round and client."""
        if isinstance(self.client, list):
            return [rng.generator(self.task.seed, purpose, self.round, k) for k in self.client]
        return rng.generator(self.task.seed, purpose, self.round, self.client)

    def steps(self, client: int) -> int:
        """The local steps that a client takes in a round: E epochs of its batches."""
        return self.settings.epochs * -(-self.task.sizes[client] // self.settings.batch_size)

    def kept(self, key: str, params: list[torch.Tensor]) -> list[torch.Tensor]:
        """What a client keeps as ``key``/name for each trained parameter, or zero."""
        names = [name for name, p in self.net.named_parameters() if p.requires_grad]
        stacked, tensors = isinstance(self.memory, list), []
        for name, p in zip(names, params, strict=True):
            zero = torch.zeros_like(p[0] if stacked else p)
            memories = self.memory if stacked else [self.memory]
            rows = [memory.get(f"{key}/{name}", zero) for memory in memories]
            tensors.append(torch.stack(rows) if stacked else rows[0].clone())
        return tensors

    def narrow(self, first: int, last: int) -> "Context":
        """The same for some of the stacked clients; tensors are views."""
        start = {name: t[first:last] for name, t in self.start.items()}
        return replace(
            self, client=self.client[first:last], memory=self.memory[first:last], start=start
        )
