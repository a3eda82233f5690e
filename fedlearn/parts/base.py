"""What all parts share: what a part is, and what it may know while it works."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import rng
from ..arguments import Checked
from ..settings import Settings
from ..wire import Schema

Tensors = dict[str, torch.Tensor]  # a state, an update, a memory: tensors by name
Loss = Callable[[nn.Module, "Batch"], torch.Tensor]

# What a part gives to another, in words for the sentence that refuses two that do not fit.
WORDS = {
    "update": "updates of the weights",
    "votes": "votes, one sign an entry",
    "mask": "masks of zeros and ones",
    "sketch": "count sketches",
    "state": "the server's state",
    "trained": "what was trained",
    "scores": "a network that trains scores of masks (MaskedNetwork)",
    "pooled": "pooled updates (Pool)",
    "past": "an uplink that remembers what it sent (Remember)",
    "sum": "an uplink that keeps the sum of what it sent (Sum)",
    "changes": "changes of control variates beside the updates (Changes)",
    "variates": "a server that keeps control variates (Controlling)",
    "controls": "the server's control variates (Controls)",
    "steps": "a server that keeps its steps (KeptSteps),",
    "constants": 'a network in the form "repopt" (Form)',
    "fusion": "a network with a fusion operator (FusionNetwork)",
}


class Batch(NamedTuple):
    """Images, labels, and their positions in the client's own data. [batch, ...], or stacked
    [clients, batch, ...]."""

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
    """All that the server keeps from round to round: the global state, and the memory of its
    parts."""

    weights: Tensors
    memory: Tensors = field(default_factory=dict)


class Part(Checked):
    """Base of all parts. A part says what it ``needs`` of others and what it ``gives`` (keys of
    ``WORDS``), so that two that do not fit are refused before anything is trained."""

    needs: Any = frozenset()
    gives: Any = frozenset()

    def refuse_unknown(self, kind: type["Part"]) -> None:
        """``ValueError`` if this part, or one of its kind inside it, has a public member that no
        part of its kind has: it would never be called. Fields of dataclasses and names that begin
        with _ are the part's own."""
        own: set[str] = {f.name for f in fields(self)} if is_dataclass(self) else set()
        for cls in set(type(self).__mro__) - set(kind.__mro__):
            for name in vars(cls):
                if not name.startswith("_") and name not in own and not hasattr(kind, name):
                    known = [n for n in dir(kind) if not n.startswith("_")]
                    near = get_close_matches(name, known, n=1)
                    hint = f"did you mean {near[0]!r}?" if near else "its own names begin with _."
                    raise ValueError(
                        f"{type(self).__name__} has {name!r}, which no {kind.__name__} has: {hint}"
                    )
        for inner in (getattr(self, name) for name in own):
            if isinstance(inner, kind):
                inner.refuse_unknown(kind)


@dataclass
class Context:
    """What a part may know while it works for one client in one round, or for several clients
    stacked: then ``client``, ``memory`` and what ``generator`` returns are lists, and the tensors
    of ``start`` are [clients, ...]."""

    task: Any
    round: int  # 1, 2, ...
    client: Any = -1  # -1: the server itself
    initial: Tensors = field(default_factory=dict)  # M^0, built on both sides, never sent
    start: Tensors = field(default_factory=dict)  # where local training starts; not to be changed
    memory: Any = field(default_factory=dict)  # tensors that this side keeps between rounds
    schema: Schema = Schema({})  # of the message at hand
    settings: Settings = Settings()
    participants: tuple[int, ...] = ()  # the clients of this round, ascending
    net: Any = None  # this side's network; while an upload is encoded, it holds what was trained
    samples: int = 0  # n_k in the head of the upload at hand
    heard: Mapping[int, int] = field(default_factory=dict)  # at the server: client -> the last
    # round in which an answer of it was taken
    lossy: frozenset[str] = frozenset()  # tensors that do not travel as they are
    sends: Callable[[int], list[str]] = lambda client: []  # at the server: what it is to send

    def generator(self, purpose: str) -> Any:
        """The generator for this purpose, round and client."""
        if isinstance(self.client, list):
            return [rng.generator(self.task.seed, purpose, self.round, k) for k in self.client]
        return rng.generator(self.task.seed, purpose, self.round, self.client)

    def steps(self, client: int) -> int:
        """The local steps that a client takes in a round: E epochs of its batches."""
        return self.settings.epochs * -(-self.task.sizes[client] // self.settings.batch_size)

    def kept(self, what: str, params: list[torch.Tensor]) -> list[torch.Tensor]:
        """What a client keeps as ``what``/name of each parameter that is trained, zero where it
        keeps nothing: tensors like ``params``, for stacked clients [clients, ...]."""
        many, found = isinstance(self.memory, list), [torch.zeros_like(p) for p in params]
        names = [name for name, p in self.net.named_parameters() if p.requires_grad]
        for name, kept in zip(names, found, strict=True):
            rows = zip(kept, self.memory, strict=True) if many else [(kept, self.memory)]
            for row, memory in rows:
                if f"{what}/{name}" in memory:
                    row.copy_(memory[f"{what}/{name}"])
        return found

    def narrow(self, first: int, last: int) -> "Context":
        """The same for some of the stacked clients; tensors are views."""
        start = {name: t[first:last] for name, t in self.start.items()}
        return replace(
            self, client=self.client[first:last], memory=self.memory[first:last], start=start
        )
