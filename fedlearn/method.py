"""What an engine knows of a method: two sides that exchange bytes.

    server side   round(t, state, ask) -> state     ``ask`` is its only way to clients
    client side   answer(t, client, what, data, memory) -> bytes     ``what`` is asked for

A round may ask as often as it likes, for whatever it likes: averaging asks everybody once, split
learning one client after the other, batch by batch. ``averaging.py`` has the round of six parts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from . import finite, rng, training
from .arguments import Checked, short
from .engines import layers
from .errors import WireError, pick
from .models import state_of
from .parts import (
    SGD,
    WORDS,
    Context,
    Model,
    Objective,
    Optimizer,
    Part,
    State,
    TaskLoss,
    TaskNetwork,
    Tensors,
)
from .settings import Settings
from .wire import Schema

if TYPE_CHECKING:
    from .round import Ask

TRAIN, EVALUATE = "train", "evaluate"  # what is asked for; a method may ask for more


class Side:
    """What both sides hold before the first byte: method, task, settings and the initial model."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        self.method, self.task, self.settings = method, task, settings or Settings()
        self.net = training.initial_network(method, task)
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
        return Context(
            self.task,
            t,
            client,
            self.initial,
            memory=memory,
            schema=schema,
            net=self.net,
            settings=self.settings,
            participants=self.participants(t),
            **more,
        )


class ServerSide(Side):
    """The server of a method."""

    def start(self) -> State:
        """The state before round 1."""
        return State(dict(self.initial))

    def round(self, t: int, state: State, ask: "Ask") -> State:
        """Round ``t``: ask clients, return the next state. ``state`` is not changed."""
        raise NotImplementedError

    def judge(self, t: int, state: State, before: State, heard: Mapping[int, int]) -> bool:
        """``Diverged`` if the run cannot go on with the ``state`` that round ``t`` made of the one
        ``before``; else whether its weights are suspiciously large."""
        return finite.judge(state, before)

    def evaluate(self, t: int, state: State, ask: "Ask") -> dict[str, float]:
        """{"accuracy", "loss"} of the state after round ``t`` on the test set. What is needed of
        clients is asked for."""
        self.method.model.refresh(self.net, self.task, t)
        training.load(self.tensors, state.weights)
        return self.task.evaluate(self.net)

    def evaluate_each(
        self,
        ask: "Ask",
        write: Callable[[int], bytes],
        network: Callable[[int, bytes], torch.nn.Module],
    ) -> dict[str, Any]:
        """Mean of what the task says of each of the networks that ``network(k, answer)`` makes of
        what each client shows when it is asked; None if nobody shows one."""
        seen: dict = {}

        def read(k: int, data: bytes) -> dict[str, float]:
            result = self.task.evaluate(network(k, data), client=k, seen=seen)
            if not math.isfinite(result["loss"]):
                seen.pop(k, None)
                raise WireError(f"With client {k}'s network the loss is not finite.")
            return result

        found = [own for _, own in ask(range(self.task.clients), write, read, EVALUATE)]
        if not found:
            return {"accuracy": None, "loss": None} | self.task.measure(seen)
        means = {name: sum(own[name] for own in found) / len(found) for name in found[0]}
        return means | self.task.measure(seen)

    def longest(self) -> int:
        """Bytes of the longest answer that a client may give."""
        raise NotImplementedError


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
    """Clients that download, train, and upload: one by one, or several in one stacked network."""

    stacks = True

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        self._stack: Any = None

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        """bytes -> a context whose ``start`` is where training begins."""
        raise NotImplementedError

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        """What was trained, in ``ctx.net``, too -> bytes. ``trained`` is not to be kept."""
        raise NotImplementedError

    def upload_rows(self, trained: Tensors, ctx: Context) -> list[bytes] | None:
        """``upload`` for stacked clients, [clients, ...], if the method can; else None."""
        return None

    def train(self, t: int, client: int, data: bytes, memory: Tensors) -> bytes:
        """Download, local training, upload."""
        ctx = self.download(t, client, data, memory)
        training.load(self.tensors, ctx.start)
        self.method.model.refresh(self.net, self.task, t)
        training.train(self.net, self.method, ctx, self.settings)
        return self.upload(self.tensors, ctx)

    def train_stacked(
        self, t: int, messages: dict[int, bytes], memories: dict[int, Tensors], most: int
    ) -> dict[int, bytes]:
        """``train`` for several clients at once, at most ``most``: those with most samples
        first."""
        contexts = [self.download(t, k, data, memories[k]) for k, data in messages.items()]
        if self._stack is None:
            self._stack = layers.stack(self.net, most)
            self._spare = training.spare_rows(self.net, self.task)
        net = layers.narrow(self._stack, 0, len(contexts))
        trained, first = state_of(net), contexts[0].start
        for name, w in trained.items():
            same = all(ctx.start[name] is first[name] for ctx in contexts)
            w.copy_(first[name] if same else torch.stack([ctx.start[name] for ctx in contexts]))
        start = {name: w.clone() for name, w in trained.items()}
        ctx = replace(
            contexts[0], client=list(messages), memory=[c.memory for c in contexts], start=start
        )
        self.method.model.refresh(net, self.task, t)
        training.train_stacked(net, self.method, ctx, self.settings, self._spare)
        answers = self.upload_rows(trained, ctx)
        if answers is None:
            answers = []
            for own, row in zip(contexts, zip(*trained.values(), strict=True), strict=True):
                training.load(self.tensors, dict(zip(trained, row, strict=True)))
                answers.append(self.upload(self.tensors, own))
        return dict(zip(messages, answers, strict=True))


@dataclass(frozen=True)
class Method(Checked):
    """A name, the three parts that say how a client trains, and in subclasses what a round is."""

    name: str = "method"
    model: Model = TaskNetwork()
    objective: Objective = TaskLoss()
    optimizer: Optimizer = SGD()

    sides: ClassVar[tuple[type[ServerSide], type[ClientSide]]]
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
            others: set[str] = set()
            others.update(*(other.gives for other in parts.values() if other is not part))
            for need in sorted(part.needs - others, key=repr):
                raise ValueError(needs(name, part, need, parts))

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


def method_of(method: Any) -> "Method":
    """A method as it is, or by its name, with its defaults; ``ValueError`` for anything else."""
    if isinstance(method, str):
        from .methods import get

        return get(method)
    if not isinstance(method, Method):
        name = getattr(method, "__name__", "")
        what = f"the function {name}: call it, {name}()" if callable(method) and name else ""
        raise ValueError(
            "A run takes a method, such as fl.methods.fedavg(), or its name, not "
            f"{what or short(method)}."
        )
    return method


def needs(name: str, part: Part, need: Any, parts: Mapping[str, Part]) -> str:
    """The sentence that refuses a part which needs what no other part gives."""
    kind = need[0] if isinstance(need, tuple) else need
    uplink = ("update", "votes", "mask", "sketch", "pooled", "past", "sum", "changes")
    others = {"steps": "server", "variates": "server", "controls": "downlink"}
    giver = (dict.fromkeys(uplink, "uplink") | others).get(kind, "model")
    there = [words(gift) for gift in sorted(parts[giver].gives, key=repr)] if giver in parts else []
    gets = f"gives {' and '.join(there)}" if there else "gives nothing of the kind"
    return f"The {name} {part!r} needs {words(need)}; the {giver} {parts.get(giver)!r} {gets}."


def words(gift: Any) -> str:
    """What a part gives or needs, in words; a tuple names more exactly which."""
    return f"{WORDS[gift[0]]} coded by {gift[1]!r}" if isinstance(gift, tuple) else WORDS[gift]
