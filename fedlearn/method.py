"""What a method is: the parts that say how a client trains, and a round, which has two sides.

    server side   round(t, state, ask) -> state     ``ask`` is its only way to clients
    client side   answer(t, client, question, data, memory) -> bytes

A round may ask as often as it likes, for whatever it likes: averaging (``round.py``) asks everybody
once, split learning one client after the other, batch by batch.
"""

import copy
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch

from . import finite, local, rng
from .arguments import Checked, short
from .context import Context, Part, State, Tensors, label, provides
from .errors import Diverged, WireError, pick
from .extensions import find
from .local import Model, Objective, TaskLoss, TaskNetwork
from .models import state_of
from .optim import SGD, Optimizer
from .settings import Settings
from .wire import Schema

TRAIN, EVALUATE = "train", "evaluate"  # what is asked for; a method may ask for more


@dataclass(frozen=True)
class Method(Checked):
    """A name, the parts that say how a client trains, and in subclasses what a round is.

    Parameters
    ----------
    name : str
        Stands in histories and messages.
    model, objective, optimizer : Model, Objective, Optimizer
        Which network a client trains, what it minimises, and how it takes a step.

    Raises
    ------
    ValueError
        For a part of another kind, with a misspelt member, or that does not fit the others.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.methods.fedavg(lr=0.05).parts()["objective"]
    'TaskLoss()'
    """

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
            parts[name].refuse_unknown(kind)
        for name, part in parts.items():
            given = set[Any]().union(*(p.given() for p in parts.values() if p is not part))
            for need in sorted(part.needs, key=repr):
                if not provides(given, need):
                    raise ValueError(
                        f"The {name} {part!r} needs {label(need)}, which no other part of "
                        f"{self.name} gives."
                    )

    def but(self, **parts: Any) -> Any:
        """The same method with other ``parts``, or another ``name``; ``ValueError`` for a part that
        it does not have or that does not fit.

        >>> import fedlearn as fl
        >>> fl.methods.rpn().but(server=fl.Mean("clients")).parts()["server"]
        "Mean(by='clients')"
        """
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


METHODS: dict[str, Callable[..., Method]] = {}  # by name; ``fedlearn.methods`` fills it


def method_of(method: Any) -> Method:
    """A method as it is, or by its name, with its defaults; ``ValueError`` for anything else."""
    if isinstance(method, str):
        return find(method, METHODS, "method")()
    if not isinstance(method, Method):
        name = getattr(method, "__name__", "")
        hint = f"the function {name}: call it, {name}()" if callable(method) and name else ""
        raise ValueError(
            "A run takes a method, such as fl.methods.fedavg(), or its name, not "
            f"{hint or short(method)}."
        )
    return method


@dataclass
class Exchange:
    """A round's only way to clients, ``ask`` in the code of a method. It counts the bytes, and
    notes in ``row``, of the history, who is refused and why. After some answers were left out the
    round is played again, with what is known of the others."""

    t: int
    clients: Any  # of an engine
    row: dict[str, Any]
    last_seen: dict[int, int]  # client -> the last round in which an answer of it was taken
    raised: BaseException | None = None  # the first error in the code of a client
    norms: dict[int, float] = field(default_factory=dict)  # client -> the largest that came
    taken: dict[int, Any] = field(default_factory=dict)  # client -> as what its answer was read
    left_out: list[int] = field(default_factory=list)
    turns: bool = False  # a client was asked twice, so what it answered depends on the others

    def __post_init__(self) -> None:
        self._before = dict(self.last_seen)

    def __call__(
        self,
        clients: Iterable[int],
        write: Callable[[int], Any],
        read: Callable[[int, bytes], Any],
        question: str = TRAIN,
    ) -> Iterator[tuple[int, Any]]:
        """Deliver ``write(k)``, bytes or bytes and how many of them are buffers, to each client,
        and yield what ``read(k, answer)`` makes of each answer; its ``WireError`` refuses the
        client. Answers are read as they come, and kept until the round ends."""
        if self.left_out and self.taken:  # played again
            yield from ((k, self.taken[k]) for k in clients if k in self.taken)
            return
        way = "bytes_evaluation" if question == EVALUATE else "bytes"

        def counted(k: int) -> bytes:
            message = write(k)
            data, buffers = message if isinstance(message, tuple) else (message, 0)
            self.note(f"{way}_down", len(data))
            if buffers:
                self.note(f"{way}_down_buffers", buffers)
            return data

        for k, answer in self.clients.exchange(self.t, question, clients, counted):
            try:
                if isinstance(answer, WireError):
                    raise answer
                if not isinstance(answer, bytes):
                    kind = type(answer).__name__
                    raise WireError(f"Client {k} must answer with bytes, not with {kind}.")
                self.note(f"{way}_up", len(answer))
                taken = read(k, answer)
            except WireError as error:
                self.refuse(k, error, "unevaluated" if question == EVALUATE else "refused")
                continue
            if question != EVALUATE:
                tensors = taken if isinstance(taken, Mapping) else getattr(taken, "update", {})
                self.turns |= k in self.taken
                self.last_seen[k], self.taken[k] = self.t, taken
                self.norms[k] = max(self.norms.get(k, 0.0), finite.norm(tensors.values()))
                self.note("bytes_up_buffers", getattr(taken, "buffers", 0))
            yield k, taken

    def refuse(self, client: int, error: WireError, column: str = "refused") -> None:
        """Note why a client's answer is not used."""
        self.row[column][client] = str(error)
        self.raised = self.raised or error.__cause__

    def note(self, column: str, count: int) -> None:
        """Add to a column of the row, such as a share of the bytes that the method tells apart."""
        self.row[column] = self.row.get(column, 0) + count

    def excuse(self, error: Diverged | WireError) -> None:
        """Go on after a round that cannot be taken; or raise its error, if clients are not to blame
        or the method cannot go on."""
        if isinstance(error, WireError):  # without these answers the method cannot go on
            if self.last_seen or not self.raised:
                raise error from self.raised
        elif not self.norms:  # nobody has answered: nobody else's fault
            raise error
        else:
            self.row["untaken"] = str(error)
            for k in self.left_out:  # in vain
                del self.row["refused"][k]

    def leave_out(self, suspects: Iterable[int], error: Diverged) -> bool:
        """Refuse the answers of ``suspects``, with which the round ends in ``error`` -> whether it
        can be played again with those of the others."""
        out = [k for k in suspects if k in self.taken]
        if not 0 < len(out) < len(self.taken) or self.turns:
            return False
        for k in out:
            del self.taken[k], self.norms[k]
            self.refuse(k, WireError(f"Left out, as it stood out in a round that failed: {error}"))
        self.left_out += out
        return True

    def close(self) -> list[int]:
        """End the questions of a round -> the clients whose answers counted: of those who were
        refused, or if the round was not taken, none did."""
        answered = [k for k, t in self.last_seen.items() if t == self.t]
        void = [k for k in answered if self.row["untaken"] or k in self.row["refused"]]
        for k in void:
            del self.last_seen[k]
        self.last_seen |= {k: self._before[k] for k in void if k in self._before}
        self.taken.clear()
        return [k for k in answered if k not in void]


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
        """The clients of round ``t``, ascending: both sides draw them from the shared seed."""
        if self._drawn[0] != t:
            generator = rng.generator(self.task.seed, "participants", t)
            order = torch.randperm(self.task.clients, generator=generator)
            count = self.settings.drawn(self.task.clients)
            self._drawn = t, tuple(sorted(order[:count].tolist()))
        return self._drawn[1]

    def hold(self, t: int, weights: Tensors) -> torch.nn.Module:
        """This side's network with these weights, as it is in round ``t``."""
        local.load(self.tensors, weights)
        self.method.model.refresh(self.net, self.task, t)
        return self.net

    def context(self, t: int, client: Any, schema: Schema, memory: Any, **more: Any) -> Context:
        """What parts may know in round ``t``."""
        who = self.participants(t)
        more = {"memory": memory, "settings": self.settings, "participants": who} | more
        return Context(self.task, t, client, self.initial, schema=schema, net=self.net, **more)


class ServerSide(Side):
    """The server of a method."""

    def start(self) -> State:
        """The state before round 1."""
        return State(dict(self.initial))

    def round(self, t: int, state: State, ask: Exchange) -> State:
        """Round ``t``: ask clients, return the next state. ``state`` is not changed."""
        raise NotImplementedError

    def check(self, t: int, state: State, before: State, last_seen: Mapping[int, int]) -> None:
        """``Diverged`` if the run cannot go on with the ``state`` that round ``t`` made of the one
        ``before``."""
        finite.check(state, before)

    def evaluate(self, t: int, state: State, ask: Exchange) -> dict[str, float]:
        """{"accuracy", "loss"} of the state after round ``t`` on the test set. What is needed of
        clients is asked for."""
        return self.task.evaluate(self.hold(t, state.weights))

    def network(self, t: int, state: State) -> torch.nn.Module:
        """The network of the state after round ``t``, in evaluation mode; ``ValueError`` if only
        clients have trained ones."""
        if self.method.sides[1].show is not ClientSide.show:
            raise ValueError(f"{self.method.name} leaves no one network: clients keep their own.")
        return copy.deepcopy(self.hold(t, state.weights)).eval()


class ClientSide(Side):
    """All clients of a method; they take turns on one network. What one of them keeps between two
    answers is in ``memory``, and nowhere else: the next answer may be another process's. Most
    download, train and upload; others have an ``answer`` of their own."""

    stacks: ClassVar[bool] = True  # several can train in one stacked network
    remembers: ClassVar[bool] = True  # a round may begin with what was kept in the one before

    def answer(self, t: int, client: int, question: str, data: bytes, memory: Tensors) -> bytes:
        """What was asked for in round ``t``; ``WireError`` if the question is not what it must be.
        To answer ``EVALUATE`` changes no memory."""
        if question == EVALUATE:
            return self.show(t, client, data, memory)
        if question != TRAIN:
            raise WireError(f"A client of {self.method.name} cannot answer {question!r}.")
        ctx = self.download(t, client, data, memory)
        local.train(self.hold(t, ctx.start), self.method, ctx, self.settings)
        return self.upload(self.tensors, ctx)

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        """bytes -> a context whose ``start`` is where training begins."""
        raise NotImplementedError

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        """What was trained -> bytes. ``trained`` is not to be kept."""
        raise NotImplementedError

    def show(self, t: int, client: int, data: bytes, memory: Tensors) -> bytes:
        """What a client shows of itself for evaluation: how right the network is on its own test
        samples that it trains from the message of the next round (metric "personal")."""
        if "personal" not in self.task.metrics:
            raise WireError(f"A client of {self.method.name} is not asked to evaluate.")
        ctx = self.download(t + 1, client, data, dict(memory))
        local.train(self.hold(t + 1, ctx.start), self.method, ctx, self.settings)
        return struct.pack("<d", self.task.own_accuracy(self.net, client))
