"""What a method is: the parts that say how a client trains, and a round, of which an engine knows
two sides that exchange bytes.

    server side   round(t, state, ask) -> state     ``ask`` is its only way to clients
    client side   answer(t, client, what, data, memory) -> bytes     ``what`` is asked for

A round may ask as often as it likes, for whatever it likes: averaging (``round.py``) asks everybody
once, split learning one client after the other, batch by batch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

import torch

from . import finite, local, rng
from .arguments import Checked, short
from .context import Context, Part, State, Tensors, in_words, provides
from .errors import WireError, pick
from .extensions import find
from .local import Model, Objective, TaskLoss, TaskNetwork
from .models import state_of
from .optim import SGD, Optimizer
from .settings import Settings
from .wire import Schema

TRAIN, EVALUATE = "train", "evaluate"  # what is asked for; a method may ask for more


@dataclass(frozen=True)
class Method(Checked):
    """A name, the three parts that say how a client trains, and in subclasses what a round is."""

    name: str = "method"
    model: Model = TaskNetwork()
    objective: Objective = TaskLoss()
    optimizer: Optimizer = SGD()

    sides: ClassVar[tuple[type["ServerSide"], type["ClientSide"]]]
    kinds: ClassVar[dict[str, type[Part]]] = {
        "model": Model,
        "objective": Objective,
        "optimizer": Optimizer,
    }

    def __post_init__(self) -> None:
        parts = {name: getattr(self, name) for name in self.kinds}
        for name, kind in self.kinds.items():
            if not isinstance(parts[name], kind):
                article = "an" if kind.__name__[0] in "AEIOU" else "a"
                raise ValueError(
                    f"{parts[name]!r} cannot be a method's {name}: it is not {article} "
                    f"{kind.__name__} (fedlearn.parts)."
                )
            parts[name].refuse_unknown(kind)
        for name, part in parts.items():
            need = missing(part, parts)
            if need is not None:
                giver = parts.get(need.giver)
                raise ValueError(
                    f"The {name} {part!r} needs {in_words(need)}; the {need.giver} {giver!r} gives "
                    f"{giver.says() if giver else 'nothing'}."
                )

    def but(self, **parts: Any) -> Any:
        """The same method with other parts: ``rpn().but(server=Mean("samples"))``."""
        for part in parts:
            pick(part, dict.fromkeys(f.name for f in fields(self)), "part of a method")
        return replace(self, **parts)

    def parts(self) -> dict[str, str]:
        """The parts as text, for tables, histories and checkpoints."""
        return {f.name: repr(getattr(self, f.name)) for f in fields(self) if f.name != "name"}

    def server_side(self, task: Any, settings: Settings | None = None) -> Any:
        """The server of this method on a task."""
        return self.sides[0](self, task, settings)

    def client_side(self, task: Any, settings: Settings | None = None) -> Any:
        """The clients of this method on a task."""
        return self.sides[1](self, task, settings)


def missing(part: Part, parts: Mapping[str, Part]) -> Any:
    """The first thing that a part needs and no other of the parts gives; None if they fit."""
    given = set[Any]().union(*(other.given() for other in parts.values() if other is not part))
    return next((n for n in sorted(part.needs, key=repr) if not provides(given, n)), None)


METHODS: dict[str, Callable[..., Method]] = {}  # by name; ``fedlearn.methods`` fills it


def method_of(method: Any) -> Method:
    """A method as it is, or by its name, with its defaults; ``ValueError`` for anything else."""
    if isinstance(method, str):
        return find(method, METHODS, "method")()
    if not isinstance(method, Method):
        name = getattr(method, "__name__", "")
        what = f"the function {name}: call it, {name}()" if callable(method) and name else ""
        raise ValueError(
            "A run takes a method, such as fl.methods.fedavg(), or its name, not "
            f"{what or short(method)}."
        )
    return method


class Ask(Protocol):
    """A round's only way to clients, which counts the bytes and notes who is refused."""

    row: dict[str, Any]  # of the history, as far as it is known
    last_seen: Mapping[int, int]  # client -> the last round in which an answer of it was taken

    def __call__(
        self, clients: Iterable[int], write: Callable[[int], bytes], what: str = TRAIN
    ) -> Iterator[tuple[int, bytes]]:
        """Deliver ``write(k)`` to each client, and yield the answers that come."""

    def read(
        self,
        answers: Iterable[tuple[int, bytes]],
        read: Callable[[int, bytes], Any],
        what: str = TRAIN,
    ) -> Iterator[tuple[int, Any]]:
        """What ``read(k, answer)`` makes of each; a ``WireError`` of it refuses the client."""

    def note(self, column: str, count: int) -> None:
        """Add to a column of the row."""


class Side:
    """What both sides hold before the first byte: method, task, settings and the initial model."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        self.method, self.task, self.settings = method, task, settings or Settings()
        self.net = local.initial_network(method, task)
        self.tensors = state_of(self.net)  # the network's own, not copies
        self.initial = {
            name: t.clone(memory_format=torch.contiguous_format) for name, t in self.tensors.items()
        }
        self._drawn: tuple[int, tuple[int, ...]] = (0, ())

    def participants(self, t: int) -> tuple[int, ...]:
        """The clients of round ``t``, in ascending order: both sides draw them from the shared
        seed."""
        if self._drawn[0] != t:
            count = self.settings.drawn(self.task.clients)
            generator = rng.generator(self.task.seed, "participants", t)
            order = torch.randperm(self.task.clients, generator=generator)
            self._drawn = t, tuple(sorted(order[:count].tolist()))
        return self._drawn[1]

    def context(self, t: int, client: Any, schema: Schema, memory: Any, **more: Any) -> Context:
        """What parts may know in round ``t``."""
        about = {"settings": self.settings, "participants": self.participants(t), "net": self.net}
        return Context(
            self.task, t, client, self.initial, memory=memory, schema=schema, **about, **more
        )


class ServerSide(Side):
    """The server of a method."""

    def start(self) -> State:
        """The state before round 1."""
        return State(dict(self.initial))

    def round(self, t: int, state: State, ask: Ask) -> State:
        """Round ``t``: ask clients, return the next state. ``state`` is not changed."""
        raise NotImplementedError

    def check(self, t: int, state: State, before: State, last_seen: Mapping[int, int]) -> bool:
        """``Diverged`` if the run cannot go on with the ``state`` that round ``t`` made of the one
        ``before``; else whether its weights are suspiciously large."""
        return finite.check(state, before)

    def evaluate(self, t: int, state: State, ask: Ask) -> dict[str, float]:
        """{"accuracy", "loss"} of the state after round ``t`` on the test set. What is needed of
        clients is asked for."""
        self.method.model.refresh(self.net, self.task, t)
        local.load(self.tensors, state.weights)
        return self.task.evaluate(self.net)

    def evaluate_each(
        self,
        ask: Ask,
        write: Callable[[int], bytes],
        network: Callable[[int, bytes], torch.nn.Module],
    ) -> dict[str, Any]:
        """Mean of what the task says of each of the networks that ``network(k, answer)`` makes of
        what each client shows when it is asked; None if nobody shows one."""
        predictions: dict = {}

        def read(k: int, data: bytes) -> dict[str, float]:
            result = self.task.evaluate(network(k, data), client=k, predictions=predictions)
            if not math.isfinite(result["loss"]):
                predictions.pop(k, None)
                raise WireError(f"With client {k}'s network the loss is not finite.")
            return result

        answers = ask(range(self.task.clients), write, EVALUATE)
        found = [own for _, own in ask.read(answers, read, EVALUATE)]
        if not found:
            return {"accuracy": None, "loss": None} | self.task.measure(predictions)
        means = {name: sum(own[name] for own in found) / len(found) for name in found[0]}
        return means | self.task.measure(predictions)


class ClientSide(Side):
    """All clients of a method; they take turns on one network. What one of them keeps between two
    answers is in ``memory``, and nowhere else: the next answer may be another process's."""

    stacks: ClassVar[bool] = False  # several can train in one stacked network
    remembers: ClassVar[bool] = True  # a round may begin with what was kept in the one before

    def answer(self, t: int, client: int, what: str, data: bytes, memory: Tensors) -> bytes:
        """What was asked for in round ``t``; ``WireError`` if the question is not what it must be.
        To answer ``EVALUATE`` changes no memory."""
        raise NotImplementedError


class Trainee(ClientSide):
    """Clients that download, train, and upload."""

    stacks = True

    def answer(self, t: int, client: int, what: str, data: bytes, memory: Tensors) -> bytes:
        if what == EVALUATE:
            return self.show(t, client, data, memory)
        if what != TRAIN:
            raise WireError(f"A client of {self.method.name} cannot answer {what!r}.")
        ctx = self.download(t, client, data, memory)
        local.load(self.tensors, ctx.start)
        self.method.model.refresh(self.net, self.task, t)
        local.train(self.net, self.method, ctx, self.settings)
        return self.upload(self.tensors, ctx)

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        """bytes -> a context whose ``start`` is where training begins."""
        raise NotImplementedError

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        """What was trained, in ``ctx.net``, too -> bytes. ``trained`` is not to be kept."""
        raise NotImplementedError

    def show(self, t: int, client: int, data: bytes, memory: Tensors) -> bytes:
        """What a client shows of itself for evaluation."""
        raise WireError(f"A client of {self.method.name} is not asked to evaluate.")
