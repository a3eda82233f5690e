"""READ FIRST. ``run`` makes rounds; one of averaging is ``Server.round``: send, train, read,
aggregate.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, Algorithm 1, is this file with the default parts:

    server:  w_{t+1} = w_t + sum_{k in S_t} (n_k / n) u_k,     n = sum_{k in S_t} n_k
    client:  u_k = w_k - w_t after E epochs of minibatch SGD from w_t

Most methods replace some of six parts:

    part        question                                       base class
    model       what network does the client train?            Model: build(task)
    objective   what does local training minimise?             Objective: begin(net, ctx)
    optimizer   how is a local step taken?                     Optimizer: init(...), step(...)
    uplink      what bytes go up?                              Uplink: a chain of steps
    downlink    what bytes come down?                          Downlink: a chain of steps
    server      how do uploads become the next global state?   Aggregator: aggregate(...)

Every byte crosses in ``method.Exchange``, which counts it. Clients are behind an engine: one by one
(``local.OneByOne``), stacked (``stacked.Stacked``) or on Flower.
"""

import math
import platform
import struct
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import torch

from . import checkpoint as checkpoints
from . import finite, local
from .arguments import short
from .callbacks import progress_bar
from .context import Arrival, Context, Part, State, Tensors
from .errors import Diverged, WireError
from .history import COLUMNS, JUMP, History
from .links import Downlink, Uplink
from .method import EVALUATE, ClientSide, Exchange, Method, ServerSide, Side, method_of
from .servers import Aggregator, Mean
from .settings import Settings, thread_count, whole_number
from .stacked import ENGINES, SMALL_STEP, Stacked, choose, step_work
from .wire import DOWN, UP, Message, Schema, assemble, pack, unpack

PLAIN = Downlink()  # the global state as it is, which can always be coded
# A row of the history, and the state after it; True ends the run.
OnRound = Callable[[dict[str, Any], State], Any]


class Messages(Side):
    """A side of averaging: ``up`` and ``down`` say what its messages may hold."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        self.up, self.down = method.uplink.schema(self.net), method.downlink.schema(self.net)


class Server(Messages, ServerSide):
    """Sends the global state to the clients of a round, and averages what comes back."""

    _coded: tuple[Any, int, dict] = (None, 0, {})  # state, round, group -> body

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        for part in (method.uplink, method.server):
            part.validate(self.context(1, -1, self.up, {}))

    def round(self, t: int, state: State, ask: Exchange) -> State:
        """Algorithm 1, one round: clients train when they are asked."""
        send = partial(self.send, t, state=state, last_seen=ask.last_seen)
        receive = partial(self.receive, t, state=state)
        arrivals = dict(ask(self.participants(t), send, receive))
        return self.aggregate(t, state, [*arrivals.values()], ask.last_seen)

    def send(
        self, t: int, client: int, state: State, last_seen: Mapping[int, int] = {}
    ) -> tuple[bytes, int]:
        """The message to one client, and how many of its bytes are buffers."""
        link, ctx = self.method.downlink, self.context(t, client, self.down, state.memory)
        ctx.last_seen = last_seen
        if self._coded[0] is not state or self._coded[1] != t:
            self._coded = state, t, {}
        group, bodies = link.group(ctx), self._coded[2]
        if group not in bodies:  # coded once for all of a group
            with torch.no_grad():
                sections = link.encode(state.weights, ctx)
            bodies[group] = assemble(sections, self.down), buffer_bytes(sections, self.down)
        body, buffers = bodies[group]
        return pack(Message(DOWN, t, client), self.down, body), buffers

    def receive(self, t: int, client: int, data: bytes, state: State) -> Arrival:
        """bytes -> ``Arrival``; ``WireError`` for anything that is not this client's upload of this
        round."""
        if client not in self.participants(t):
            raise WireError(f"Client {client} was not drawn for round {t}.")
        message, n = unpack(data, self.up, kind=UP, round=t, client=client), self.task.sizes[client]
        if message.samples != n:  # or one client could be the whole mean
            raise WireError(f"Client {client} has {n} samples, its upload says {message.samples}.")
        ctx = self.context(t, client, self.up, {}, start=state.weights)
        update = self.method.uplink.decode(message.sections, ctx)
        finite.refuse_negative(state.weights, update)
        return Arrival(client, message.samples, update, buffer_bytes(message.sections, self.up))

    def aggregate(
        self, t: int, state: State, arrivals: list[Arrival], last_seen: Mapping[int, int] = {}
    ) -> State:
        """The next state. Without a single arrival it stays as it is."""
        if not arrivals:
            return state
        ctx = self.context(t, -1, self.up, dict(state.memory), last_seen=last_seen)
        with torch.no_grad():
            weights = self.method.server.aggregate(state.weights, arrivals, ctx)
        return State(weights, ctx.memory)

    def unchanged(self, state: State) -> State:
        """A state to try the downlink on, whose steps may write to the memory."""
        return State(state.weights, dict(state.memory)) if self.method.downlink.told else state

    def evaluate(self, t: int, state: State, ask: Exchange) -> dict[str, Any]:
        """Also, if the task asks for "personal", what each client's next training would bring."""
        row: dict[str, Any] = super().evaluate(t, state, ask)
        if "personal" in self.task.metrics:
            kept, everybody = self.unchanged(state), range(self.task.clients)

            def read(k: int, data: bytes) -> float | None:
                if len(data) != 8:
                    raise WireError(f"Client {k} sent no accuracy.")
                value = struct.unpack("<d", data)[0]
                return value if math.isfinite(value) else None

            shown = ask(
                everybody, lambda k: self.send(t + 1, k, kept, ask.last_seen)[0], read, EVALUATE
            )
            row["personal"] = [*map(dict(shown).get, everybody)]
        return row

    def check(self, t: int, state: State, before: State, last_seen: Mapping[int, int]) -> None:
        """Also tries the network, and the downlink if it could fail; what it codes is kept for
        round ``t`` + 1, unless to code it changes the memory."""
        large = finite.check(state, before)
        finite.try_out(self.hold(t, state.weights), self.task, large)
        if self.method.downlink is not PLAIN:
            state = self.unchanged(state)
            for k in self.participants(t + 1):
                self.send(t + 1, k, state, last_seen)


class Client(Messages, ClientSide):
    """Downloads the global state, trains, uploads what the uplink makes of it."""

    # round, message, its body's checksum, what was read of it
    _read: tuple[int, bytes, int, Any] = (0, b"", 0, {})

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        """bytes -> a context whose ``start`` is the global state. A body that has come before, to
        another client, is neither summed nor decoded again."""
        ctx, link = self.context(t, client, self.down, memory), self.method.downlink
        known = self._read[2] if self._read[0] == t and same_body(self._read[1], data) else None
        message = unpack(data, self.down, kind=DOWN, round=t, client=client, body_crc=known)
        if known is None:
            self._read = t, data, message.crc, link.read(message.sections, ctx)
        ctx.start = link.undo(self._read[3], ctx)
        return ctx

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        """What was trained -> bytes. Who diverged sends no tensor, and the server refuses that."""
        try:
            with torch.no_grad():
                ctx.schema = self.up
                sections = self.method.uplink.encode(trained, ctx)
        except Diverged:
            sections = {}
        n = self.task.sizes[ctx.client]
        return pack(Message(UP, ctx.round, ctx.client, n, sections), self.up)


@dataclass(frozen=True)
class Averaging(Method):
    """A name and six parts, by default those of federated averaging: McMahan et al. (2017),
    Algorithm 1.

    Parameters
    ----------
    name, model, objective, optimizer
        As for every ``Method``, which also says what is refused.
    uplink : Uplink
        What bytes go up: a chain of steps, by default the update as float32.
    downlink : Downlink
        What bytes come down: a chain of steps, by default the global state as float32.
    server : Aggregator
        How uploads become the next global state, by default their weighted mean.

    Examples
    --------
    >>> import fedlearn as fl
    >>> half = fl.Uplink(fl.parts.Update(), fl.parts.Code(fl.wire.Dense(16)))
    >>> fl.Averaging("half", uplink=half).parts()["server"]
    "Mean(by='samples')"
    """

    name: str = "fedavg"
    uplink: Uplink = Uplink()
    downlink: Downlink = PLAIN
    server: Aggregator = Mean()

    sides = (Server, Client)
    kinds: ClassVar[dict[str, type[Part]]] = Method.kinds | {
        "uplink": Uplink,
        "downlink": Downlink,
        "server": Aggregator,
    }


def same_body(one: bytes, other: bytes) -> bool:
    """Whether two messages differ in header and checksum at most."""
    return len(one) == len(other) and one.startswith(memoryview(other)[26:-4], 26)


def buffer_bytes(sections: Mapping[str, Any], schema: Schema) -> int:
    """How many bytes of a message are buffers (batch statistics) rather than parameters."""
    return sum(len(section) for name, section in sections.items() if name in schema.buffers)


def run(
    method: Method | str,
    task: Any,
    rounds: int = 20,
    *,
    participation: float = 1.0,
    epochs: int = 1,
    batch_size: int = 32,
    evaluate_every: int = 1,
    precision: str = "float32",
    engine: Any = "sequential",
    memory_limit: float | None = None,
    checkpoint: Any = None,
    threads: int | None = None,
    progress: bool | None = None,
    on_round: OnRound | Iterable[OnRound] = (),
    **unknown: Any,
) -> History:
    """Run a method on a task for some rounds.

    Parameters
    ----------
    method : Method or str
        A method, or the name of one, with its defaults.
    task : Task
        Images or scenes with their owners, a network and a measure (``fedlearn.tasks``).
    rounds : int
        Rounds in all, also of a run that goes on from a checkpoint.
    participation : float
        C, the share of the clients drawn each round, above 0 and at most 1.
    epochs : int
        E, local epochs a round.
    batch_size : int
        B, images of a local step.
    evaluate_every : int
        The test set is looked at every so many rounds, and after the last.
    precision : str
        Arithmetic of training: "float32", "tf32" or "bf16" (mixed; weights stay float32).
    engine : str or object
        "sequential", one client after another; "stacked", all clients of a round in one step;
        "auto", stacked where steps are small and the layers allow it; "flower-sim", each in a
        process of its own; or an object with ``describe()`` and ``connect(method, task, settings,
        threads)``, such as ``fedlearn.flower.Simulation(cpus_per_client=2)``.
    memory_limit : float, optional
        Bytes that stacked training may take, by default half of what is free. What clients keep
        between rounds (error feedback, gradient tracking) is not counted.
    checkpoint : path, optional
        Every finished round is saved there, and a run that finds the file goes on from it.
    threads : int, optional
        CPU threads; by default one for networks so small that two would be slower.
    progress : bool, optional
        Shows a bar: by default on a terminal or in a notebook; True elsewhere prints lines.
    on_round : function or several
        Called after each round and its checkpoint with the row of the history and the ``State``,
        not to be changed; one that returns True ends the run, one that raises ends it with its
        error (``fedlearn.callbacks``). A run that goes on calls them for its last round again.

    Returns
    -------
    History
        A row a round; ``history.state`` is the final global state.

    Raises
    ------
    ValueError
        For a value that cannot be, a method that the engine cannot train, or another run's
        checkpoint.

    Examples
    --------
    >>> import fedlearn as fl
    >>> task = fl.tasks.classification("digits", clients=3, train=90, test=60)
    >>> history = fl.run("fedavg", task, rounds=2, participation=0.5)
    >>> [len(row["clients"]) for row in history.rows]
    [2, 2]
    """
    if unknown:
        name = next(iter(unknown))
        hint = f"an option of a method goes there, as in fl.methods.fedavg({name}=...)"
        raise TypeError(f"run() got an unexpected keyword argument {name!r}: {hint}.")
    calls: Any = (on_round,) if callable(on_round) else on_round
    if not isinstance(calls, Iterable) or not all(map(callable, calls := [*calls])):
        raise ValueError(
            "on_round is a function of the row and the state, or several, such as "
            f'fl.callbacks.Lines("log.csv"), not {short(on_round)}.'
        )
    settings = Settings(participation, epochs, batch_size, evaluate_every, precision)
    method = method_of(method)
    thread_count(threads)
    if not hasattr(task, "evaluate"):
        raise ValueError(f"A run takes a task (fedlearn.tasks), not {short(task)}.")
    whole_number("rounds", rounds)
    server = method.server_side(task, settings)
    threads = threads or good_threads(server.net, task, batch_size)
    with local.threads(threads, precision):
        about, connected = connect(engine, server, threads, memory_limit)
    history = History(method.name, describe(method, task, settings, threads) | {"engine": about})
    state = server.start()
    with connected as people, local.threads(threads, precision):
        if checkpoint is not None:
            state = checkpoints.resume(checkpoint, history, state, people.memories, task.device)
            if len(history) > rounds:
                raise ValueError(
                    f"{checkpoint} has {len(history)} rounds already, more than the {rounds} asked "
                    "for; name another file or delete it."
                )
        last_seen, begun = history.last_seen(), len(history)
        with progress_bar(method.name, begun, rounds, progress) as bar:
            row = history.rows[-1] if begun == rounds else None
            if row and row["accuracy"] is None and not row["unevaluated"]:
                # the checkpoint's last round, which a longer run did not look at
                people.ready(rounds, row["clients"])
                row |= server.evaluate(rounds, state, Exchange(rounds, people, row, last_seen))
            # a run that was stopped may not have come to call them for its last round
            t, row = begun, history.rows[-1] if begun else None
            while not (row and any([call(row, state) is True for call in calls])) and t < rounds:
                t, known = t + 1, (r["suspects"] for r in reversed(history.rows) if r["suspects"])
                last, suspects = t == rounds, next(known, [])
                state, row = one_round(server, people, t, state, last_seen, last, suspects)
                history.rows.append(row)
                if checkpoint is not None:
                    checkpoints.save(checkpoint, history, state, people.memories)
                if row["accuracy"] is not None:
                    bar.set_postfix(accuracy=f"{row['accuracy']:.3f}")
                bar.update()
    warn(history)
    history.state = state.weights
    history.trained = partial(server.network, len(history), state)
    return history


def one_round(
    server: Any,
    people: Any,
    t: int,
    state: State,
    last_seen: dict[int, int],
    last: bool = False,
    suspects: Sequence[int] = (),
) -> tuple[State, dict[str, Any]]:
    """Round ``t`` with the clients of an engine -> the next state, and a row of the history. One
    that fails is played again without the answers of those who stand out. A state that is not
    finite, or from which no round can begin, is not taken: the old one stays, at the server and at
    its clients, and the row says why. ``suspects``: the last that there were."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS, 0) | {"round": t, "accuracy": None, "loss": None}
    row |= {"clients": list(server.participants(t)), "refused": {}, "unevaluated": {}}
    row |= {"untaken": None, "suspects": []}
    ask = Exchange(t, people, row, last_seen)
    people.ready(t, row["clients"])
    began = time.perf_counter()
    while True:
        new, failed = state, None
        try:
            new = server.round(t, state, ask)
            if new is not state:
                server.check(t, new, state, last_seen)
        except Diverged as error:
            failed = error
        except WireError as error:  # without some answers the method cannot go on
            if not ask.left_out:
                ask.excuse(error)
                break
            failed = Diverged(str(error))
        out = finite.far(ask.norms)
        if (out or failed) and finite.grown(state, server.start()):  # honest clients stand out, too
            out = list(suspects)
            text = f"{failed} Or the state was poisoned before, or the learning rate is too large."
            failed = failed and Diverged(text)
        row["suspects"] += [k for k in out if k not in row["suspects"]]
        if not failed:
            state = new
            break
        if not ask.leave_out(out, failed):
            ask.excuse(failed)
            break
    if ask.left_out and not row["untaken"]:
        who = ", ".join(map(str, ask.left_out))
        text = f"{server.method.name} goes on without an answer of client {who}, with which the"
        warnings.warn(f"{text} round failed; history.rows says which and why.", stacklevel=3)
    if ask.raised and not last_seen:  # no client has ever answered: it is the program that fails
        raise ask.raised
    people.settle(t, ask.close())
    row["seconds"] = time.perf_counter() - began
    if last or t % server.settings.evaluate_every == 0:
        row |= server.evaluate(t, state, ask)
    return state, row


def warn(history: History) -> None:
    """Say what went wrong in a run that has come to its end all the same."""
    name, rows, texts = history.method, history.rows, []
    if untaken := [row["round"] for row in rows if row.get("untaken")]:
        texts.append(
            f"{len(untaken)} rounds of {name} were not taken, first round {untaken[0]}; "
            "history.rows says why and whom it suspects."
        )
    taken = [row for row in rows if not row.get("untaken")]
    used = Counter(k for r in taken for k in r.get("suspects", ()) if k not in r["refused"])
    if used:
        who = ", ".join(f"{k} (rounds: {count})" for k, count in sorted(used.items()))
        texts.append(
            f"Far more than most sent came from clients of {name}, and was used: {who}; "
            "history.rows says when."
        )
    if jumps := history.jumps:
        least = f"{JUMP:g} times the lowest before"
        texts.append(f"The loss of {name} jumped in round {jumps[0]}, to more than {least}.")
    for column, noun in (("refused", "answers"), ("unevaluated", "answers to evaluation")):
        if count := sum(len(row[column]) for row in rows):
            text = f"{count} {noun} of {name} were refused or missing"
            texts.append(f"{text}; history.rows says whose and why.")
    for text in texts:
        warnings.warn(text, stacklevel=3)


def connect(
    engine: Any, server: ServerSide, threads: int, memory_limit: float | None
) -> tuple[dict[str, Any], AbstractContextManager[Any]]:
    """What a history says of an engine, and the clients of one run, there as long as the block
    lasts. Flower is imported only where it is asked for."""
    method, task, settings = server.method, server.task, server.settings
    if engine == "flower-sim":
        engine = import_module(".flower", __package__).Simulation()
    if hasattr(engine, "connect"):
        if memory_limit is not None:
            raise ValueError("memory_limit is for stacked training, not for clients elsewhere.")
        return engine.describe(), engine.connect(method, task, settings, threads)
    if not isinstance(engine, str):
        raise ValueError(
            f"An engine is one of {', '.join(ENGINES)}, or an object with connect, not "
            f"{short(engine)}."
        )
    count = len(server.participants(1))
    choice = choose(engine, method, task, settings, count, memory_limit)
    return asdict(choice), nullcontext(clients(method, task, settings, choice.together))


def clients(
    method: Method, task: Any, settings: Settings | None = None, together: int = 1
) -> local.OneByOne:
    """All clients of a run in this process.

    Parameters
    ----------
    method, task, settings : Method, Task, Settings
        How they train and what they send, their data, local epochs and the rest.
    together : int
        How many train in one stacked step; 1: one after another.

    Returns
    -------
    OneByOne
        ``answer(t, client, data)`` makes bytes of bytes; ``memories`` is what clients keep.

    Examples
    --------
    >>> import fedlearn as fl
    >>> method, task = fl.methods.fedavg(), fl.tasks.classification("digits", clients=3, train=90)
    >>> server, people = method.server_side(task), fl.clients(method, task)
    >>> message, buffers = server.send(1, 0, server.start())
    >>> server.receive(1, 0, people.answer(1, 0, message), server.start()).samples
    30
    """
    side = method.client_side(task, settings)
    return local.OneByOne(side) if together == 1 else Stacked(side, together)


def good_threads(net: torch.nn.Module, task: Any, batch_size: int) -> int:
    """One CPU thread for a small step, all that torch may use for a large one. A rule rather than
    a timing, so that it does not change between two runs: the number of threads changes the last
    bits of a sum."""
    small = step_work(net, task, batch_size) < SMALL_STEP
    return 1 if small else torch.get_num_threads()


def describe(method: Method, task: Any, settings: Settings, threads: int) -> dict[str, Any]:
    """The head of a history: parts, task, settings, versions and hardware."""
    cuda, cpu = task.device.type == "cuda", platform.processor() or platform.machine()
    hardware = torch.cuda.get_device_name(task.device) if cuda else cpu
    return {
        "parts": method.parts(),
        "task": task.describe(),
        "data": task.digests,
        "settings": asdict(settings),
        "threads": threads,
        "device": f"{task.device.type} ({hardware})",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
