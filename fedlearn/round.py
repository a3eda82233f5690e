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

Every byte crosses in ``Exchange``, which counts it. Clients are behind an engine: one by one
(``local.OneByOne``), stacked (``stacked.Stacked``) or on Flower.
"""

import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, Protocol

import torch

from . import checkpoint as checkpoints
from . import finite, local
from .arguments import short
from .context import Arrival, Context, Part, State, Tensors
from .errors import Diverged, WireError
from .history import History
from .links import Downlink, Uplink
from .method import EVALUATE, TRAIN, Ask, Method, ServerSide, Trainee, method_of
from .progress import progress_bar
from .servers import Aggregator, Mean
from .settings import Settings, thread_count, whole_number
from .stacked import ENGINES, SMALL_STEP, Stacked, choose, step_work
from .wire import DOWN, UP, Message, Schema, assemble, pack, unpack

BYTES = ("bytes_up", "bytes_up_buffers", "bytes_down", "bytes_down_buffers")
EVALUATION = ("bytes_evaluation_up", "bytes_evaluation_down")
ELSEWHERE = {"flower-sim": (".flower", "Simulation")}  # engines that are loaded when asked for


class Server(ServerSide):
    """Sends the global state to the clients of a round, and averages what comes back."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        self.up, self.down = method.uplink.schema(self.net), method.downlink.schema(self.net)
        for part in (method.uplink, method.server):
            part.validate(self.context(1, -1, self.up, {}))
        self._coded: tuple[Any, int, dict] = (None, 0, {})  # state, round, group -> body

    def round(self, t: int, state: State, ask: Ask) -> State:
        """Algorithm 1, one round."""

        def send(k: int) -> bytes:
            data, buffers = self.send(t, k, state, ask.last_seen)
            ask.note("bytes_down_buffers", buffers)
            return data

        def receive(k: int, data: bytes) -> Arrival:
            arrival = self.receive(t, k, data, state)
            ask.note("bytes_up_buffers", arrival.buffers)
            return arrival

        answers = list(ask(self.participants(t), send))  # send, and train
        arrivals = [arrival for _, arrival in ask.read(answers, receive)]
        return self.aggregate(t, state, arrivals, ask.last_seen)

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
        message = unpack(data, self.up, kind=UP, round=t, client=client)
        if message.samples < 1:
            raise WireError("The upload claims to come from no samples.")
        ctx = self.context(t, client, self.up, {}, start=state.weights)
        update = self.method.uplink.decode(message.sections, ctx)
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

    def check(self, t: int, state: State, before: State, last_seen: Mapping[int, int]) -> bool:
        """Also tries a network of large weights, and the downlink if it could fail; what it codes
        is kept for round ``t`` + 1, unless to code it changes the memory."""
        large = super().check(t, state, before, last_seen)
        if large:
            self.method.model.refresh(self.net, self.task, t)
            local.load(self.tensors, state.weights)
            finite.try_out(self.net, self.task)
        if self.method.downlink != Downlink():
            if any(self.method.downlink.hears):
                state = State(state.weights, dict(state.memory))
            for k in self.participants(t + 1):
                self.send(t + 1, k, state, last_seen)
        return large


class Client(Trainee):
    """Downloads the global state, trains, uploads what the uplink makes of it."""

    def __init__(self, method: Any, task: Any, settings: Settings | None = None) -> None:
        super().__init__(method, task, settings)
        self.up, self.down = method.uplink.schema(self.net), method.downlink.schema(self.net)
        method.uplink.validate(self.context(1, -1, self.up, {}))
        self._read: tuple[int, bytes, Any] = 0, b"", {}  # round, body, what was read of it

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        """bytes -> a context whose ``start`` is the global state. A body that has come before, to
        another client, is not decoded again."""
        ctx, link = self.context(t, client, self.down, memory), self.method.downlink
        message = unpack(data, self.down, kind=DOWN, round=t, client=client)
        body = data[26:-4]  # without header and checksum
        if self._read[:2] != (t, body):
            self._read = t, body, link.read(message.sections, ctx)
        ctx.start = link.undo(self._read[2], ctx)
        return ctx

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        """What was trained -> bytes. Who diverged sends no tensor, and the server refuses that."""
        try:
            with torch.no_grad():
                sections = self.method.uplink.encode(trained, replace(ctx, schema=self.up))
        except Diverged:
            sections = {}
        n = self.task.sizes[ctx.client]
        return pack(Message(UP, ctx.round, ctx.client, n, sections), self.up)


@dataclass(frozen=True)
class Averaging(Method):
    """A name and six parts, by default those of federated averaging. ``but`` replaces parts:
    ``rpn().but(server=Mean("samples"))``. Parts that do not fit are refused."""

    name: str = "fedavg"
    uplink: Uplink = Uplink()
    downlink: Downlink = Downlink()
    server: Aggregator = Mean()

    sides = (Server, Client)
    kinds: ClassVar[dict[str, type[Part]]] = Method.kinds | {
        "uplink": Uplink,
        "downlink": Downlink,
        "server": Aggregator,
    }


def buffer_bytes(sections: Mapping[str, Any], schema: Schema) -> int:
    """How many bytes of a message are buffers (batch statistics) rather than parameters."""
    return sum(len(section) for name, section in sections.items() if name in schema.buffers)


class Clients(Protocol):
    """What a round needs of the clients of a run, wherever they are."""

    memories: dict[int, Tensors]  # what clients of this process keep; empty if they live elsewhere

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """Return when round ``t`` can begin."""

    def exchange(
        self, t: int, what: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """Deliver ``write(k)``, yield each client's answer, or why there is none, in this order."""


class Engine(Protocol):
    """Clients that live elsewhere, as ``run`` takes them: Flower's simulation, its grid."""

    def describe(self) -> dict[str, Any]:
        """What a history says of its engine."""

    def connect(
        self, method: Method, task: Any, settings: Settings, threads: int
    ) -> AbstractContextManager[Clients]:
        """The clients of one run, there as long as the block lasts."""


class Exchange:
    """The ``Ask`` of a round, on an engine; and the row of the history that it fills."""

    def __init__(
        self, t: int, engine: Clients, row: dict[str, Any], last_seen: dict[int, int]
    ) -> None:
        self.t, self.engine, self.row, self.last_seen = t, engine, row, last_seen
        self.raised: BaseException | None = None  # the first error in the code of a client
        self.sizes: dict[int, float] = {}  # client -> the largest norm that came in this round

    def __call__(
        self, clients: Iterable[int], write: Callable[[int], bytes], what: str = TRAIN
    ) -> Iterator[tuple[int, bytes]]:
        """Deliver ``write(k)`` to each client, and yield the answers that come."""
        way = "bytes_evaluation" if what == EVALUATE else "bytes"

        def counted(k: int) -> bytes:
            data = write(k)
            self.note(f"{way}_down", len(data))
            return data

        for k, answer in self.engine.exchange(self.t, what, clients, counted):
            if isinstance(answer, bytes):
                self.note(f"{way}_up", len(answer))
                yield k, answer
            elif isinstance(answer, WireError):
                self.refuse(k, answer, what)
            else:
                kind = type(answer).__name__
                error = WireError(f"Client {k} must answer with bytes, not with {kind}.")
                self.refuse(k, error, what)

    def read(
        self,
        answers: Iterable[tuple[int, bytes]],
        read: Callable[[int, bytes], Any],
        what: str = TRAIN,
    ) -> Iterator[tuple[int, Any]]:
        """What ``read(k, answer)`` makes of each; a ``WireError`` of it refuses the client."""
        for k, answer in answers:
            try:
                taken = read(k, answer)
            except WireError as error:
                self.refuse(k, error, what)
                continue
            if what != EVALUATE:
                self.last_seen[k] = self.t
                self.sizes[k] = max(self.sizes.get(k, 0.0), finite.magnitude(taken))
            yield k, taken

    def refuse(self, client: int, error: WireError, what: str = TRAIN) -> None:
        """Note why a client's answer is not used."""
        column = "unevaluated" if what == EVALUATE else "refused"
        self.row[column][client] = str(error)
        self.raised = self.raised or error.__cause__

    def note(self, column: str, count: int) -> None:
        """Add to a column of the row: a share of the bytes that the method tells apart."""
        self.row[column] = self.row.get(column, 0) + count

    def excuse(self, error: Diverged | WireError) -> None:
        """Go on after a round that cannot be taken; or raise its error, if clients are not to blame
        or the method cannot go on."""
        if isinstance(error, WireError):  # without these answers the method cannot go on
            if self.last_seen or not self.raised:
                raise error from self.raised
        elif not self.sizes:  # nobody has answered: nobody else's fault
            raise error
        else:
            self.row |= {"untaken": str(error), "suspects": self.suspects()}

    def suspects(self) -> list[int]:
        """The clients that sent the largest norm of this round, or a thousandth of it."""
        most = max(self.sizes.values(), default=0.0)
        return [k for k, size in self.sizes.items() if 1000 * size >= most]


# A row of the history, and the state after it; True ends the run.
OnRound = Callable[[dict[str, Any], State], Any]


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
    engine: str | Engine = "sequential",
    memory_limit: float | None = None,
    checkpoint: Any = None,
    threads: int | None = None,
    progress: bool | None = None,
    on_round: OnRound | Iterable[OnRound] = (),
) -> History:
    """Run ``method``, or the one of that name, on ``task`` for that many rounds and return its
    ``History``.

    ``participation`` is the share of clients drawn each round (C), ``epochs`` the local epochs
    (E), ``batch_size`` B. ``precision`` is the arithmetic of training: "float32", "tf32" or "bf16"
    (mixed; weights stay float32). ``engine`` says how clients train: "sequential", one after
    another; "stacked", all clients of a round in one step, as many at a time as ``memory_limit``
    (bytes, by default half of what is free) allows; "auto", stacked where steps are small and the
    layers allow it; "flower-sim", each in a process of its own, as many at a time as there are
    CPUs; or an ``Engine``, such as ``fedlearn.flower.Simulation(cpus_per_client=2)``. What clients
    keep between rounds (error feedback, gradient tracking) is not counted in that limit. With
    ``checkpoint`` (a path) every finished round is saved there, and a run that finds the file goes
    on from it. ``threads`` is the number of CPU threads: by default one for networks so small that
    two would be slower. ``progress`` shows a bar: by default where somebody looks (a terminal or a
    notebook); True elsewhere prints lines.

    ``on_round`` is a function, or several, called with the row of the history and the state
    (``State``, not to be changed) after each round and its checkpoint; one that returns True ends
    the run, one that raises ends it with its error (``fedlearn.callbacks``). A run that goes on
    from a checkpoint calls them for its last finished round again."""
    settings = Settings(participation, epochs, batch_size, evaluate_every, precision)
    method = method_of(method)
    thread_count(threads)
    if not hasattr(task, "evaluate"):
        raise ValueError(f"A run takes a task (fedlearn.tasks), not {short(task)}.")
    whole_number("rounds", rounds)
    server = method.server_side(task, settings)
    threads = threads or good_threads(server.net, task, batch_size)
    engine = find_engine(engine)
    connected: AbstractContextManager[Clients]
    if isinstance(engine, str):
        with local.threads(threads, precision):
            count = len(server.participants(1))
            chosen = choose(engine, method, task, settings, count, memory_limit)
        about = asdict(chosen)
        connected = nullcontext(clients(method, task, settings, chosen.together))
    else:
        if memory_limit is not None:
            raise ValueError("memory_limit is for stacked training, not for clients elsewhere.")
        about, connected = engine.describe(), engine.connect(method, task, settings, threads)
    history = History(method.name, describe(method, task, settings, threads) | {"engine": about})
    calls = (on_round,) if callable(on_round) else tuple(on_round)
    state = server.start()

    def stops() -> bool:
        return any([call(history.rows[-1], state) is True for call in calls])

    with connected as there, local.threads(threads, precision):
        if checkpoint is not None:
            state = checkpoints.resume(checkpoint, history, state, there.memories, task.device)
            if len(history) > rounds:
                raise ValueError(
                    f"{checkpoint} has {len(history)} rounds already, more than the {rounds} asked "
                    "for; name another file or delete it."
                )
        last_seen, begun = history.last_seen(), len(history)
        with progress_bar(history.method, begun, rounds, progress) as bar:
            row = history.rows[-1] if begun == rounds else None
            if row and row["accuracy"] is None and not row["unevaluated"]:
                # the checkpoint's last round, which a longer run did not look at
                there.ready(rounds, row["clients"])
                row |= server.evaluate(rounds, state, Exchange(rounds, there, row, last_seen))
            # a run that was stopped may not have come to call them for its last round
            done = bool(history.rows) and stops()
            for t in range(begun + 1, 1 if done else rounds + 1):
                state, row = one_round(server, there, t, state, last_seen, last=t == rounds)
                history.rows.append(row)
                if checkpoint is not None:
                    checkpoints.save(checkpoint, history, state, there.memories)
                if row["accuracy"] is not None:
                    bar.set_postfix(accuracy=f"{row['accuracy']:.3f}")
                bar.update()
                if stops():
                    break
    warn(history)
    history.state = state.weights
    return history


def find_engine(engine: Any) -> str | Engine:
    """An engine whose clients live elsewhere, as it is or by its name; any other name stays."""
    if isinstance(engine, str):
        home = ELSEWHERE.get(engine)
        return getattr(import_module(home[0], __package__), home[1])() if home else engine
    if not hasattr(engine, "connect"):
        raise ValueError(
            f"An engine is one of {', '.join(ENGINES)}, or an object with connect, not "
            f"{short(engine)}."
        )
    return engine


def one_round(
    server: Any,
    engine: Clients,
    t: int,
    state: State,
    last_seen: dict[int, int],
    last: bool = False,
) -> tuple[State, dict[str, Any]]:
    """Round ``t`` -> the next state, and a row of the history. A state that is not finite, or from
    which no round can begin, is not taken: the old one stays, and the row says why."""
    row: dict[str, Any] = {"round": t, "accuracy": None, "loss": None}
    row |= dict.fromkeys(BYTES + EVALUATION, 0)
    row |= {"seconds": 0.0, "clients": list(server.participants(t)), "refused": {}}
    row |= {"unevaluated": {}, "untaken": None, "suspects": []}
    ask = Exchange(t, engine, row, last_seen)
    engine.ready(t, row["clients"])
    began = time.perf_counter()
    try:
        new = server.round(t, state, ask)
        if new is not state:
            server.check(t, new, state, last_seen)
        state = new
    except (Diverged, WireError) as error:
        ask.excuse(error)
    if ask.raised and not last_seen:  # no client has ever answered: it is the program that fails
        raise ask.raised
    row["seconds"] = time.perf_counter() - began
    if last or t % server.settings.evaluate_every == 0:
        row |= server.evaluate(t, state, ask)
    return state, row


def warn(history: History) -> None:
    """Say what went wrong in a run that has come to its end all the same."""
    untaken = [row["round"] for row in history.rows if row.get("untaken")]
    if untaken:
        warnings.warn(
            f"{len(untaken)} rounds of {history.method} were not taken, first round {untaken[0]}; "
            "history.rows says why and whom it suspects.",
            stacklevel=3,
        )
    for column, what in (("refused", "answers"), ("unevaluated", "answers to evaluation")):
        count = sum(len(row[column]) for row in history.rows)
        if count:
            warnings.warn(
                f"{count} {what} of {history.method} were refused or missing; history.rows says "
                "whose and why.",
                stacklevel=3,
            )


def clients(
    method: Method, task: Any, settings: Settings | None = None, together: int = 1
) -> local.OneByOne:
    """All clients of a run in this process, which train one by one or that many ``together``."""
    side = method.client_side(task, settings)
    return local.OneByOne(side) if together == 1 else Stacked(side, together)


def good_threads(net: torch.nn.Module, task: Any, batch_size: int) -> int:
    """One CPU thread for a small step, all that torch may use for a large one. A rule rather than
    a timing, so that it does not change between two runs: the number of threads changes the last
    bits of a sum.

    The limit is from the table of ``tests/benchmarks``."""
    small = step_work(net, task, batch_size) < SMALL_STEP
    return 1 if small else torch.get_num_threads()


def describe(method: Method, task: Any, settings: Settings, threads: int) -> dict[str, Any]:
    """The head of a history: parts, task, settings, versions and hardware."""
    cuda = task.device.type == "cuda"
    hardware = (
        torch.cuda.get_device_name(task.device)
        if cuda
        else platform.processor() or platform.machine()
    )
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
