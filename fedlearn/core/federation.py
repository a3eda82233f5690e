"""READ FIRST. One round: the server sends, clients train and answer, the server averages.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, Algorithm 1, is this file with the default parts:

    server:  w_{t+1} = w_t + sum_{k in S_t} (n_k / n) u_k,     n = sum_{k in S_t} n_k
    client:  u_k = w_k - w_t after E epochs of minibatch SGD from w_t

Most methods replace some of six parts:

    part        question                                       base class
    model       which network does a client train?             Model: build(task)
    objective   what does local training minimise?             Objective: begin(net, ctx)
    optimizer   how is a local step taken?                     Optimizer: init(...), step(...)
    uplink      which bytes go up?                             Uplink: a chain of steps
    downlink    which bytes come down?                         Downlink: a chain of steps
    server      how do updates become the next model?          Aggregator: aggregate(...)

A method with another round, such as FedGKT, has a ``Server`` and a ``Client`` of its own.
Read in this order: ``Server``, ``Client``, ``OneByOne``, ``Exchange``, ``one_round``, ``run``.
"""

import copy
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from itertools import chain
from typing import Any

import torch

from .. import checkpoint as checkpoints
from .. import rng
from ..errors import Diverged, WireError, check_whole, near_names, pick, short
from ..history import COLUMNS, History, describe, warn_of_round
from ..models import digest, state_of
from ..settings import Settings
from ..wire import DOWN, UP, Message, Schema, assemble, pack, same_body, unpack
from . import local
from .context import Arrival, Context, State, Tensors
from .method import Averaging, Method, method_of

TRAIN = "train"  # what clients may be asked; a method may ask for more
EVALUATE = "evaluate"
ENGINES = ("sequential", "stacked", "auto", "flower")
Row = dict[str, Any]  # a round in the history


class Side:
    """What server and clients both hold before the first byte is sent."""

    def __init__(
        self, method: Any, task: Any, settings: Settings | None = None
    ) -> None:
        self.method = method
        self.task = task
        self.settings = settings or Settings()
        self.net = local.initial_network(method, task)
        self.tensors = state_of(self.net)  # the network's own, not copies
        self.initial = {
            name: t.clone(memory_format=torch.contiguous_format)
            for name, t in self.tensors.items()
        }
        # frozen parameters, and buffers that are no part of the state, such as counts
        # of batches and those with persistent=False
        self.unsent = {
            name: t.detach()
            for name, t in (*self.net.named_parameters(), *self.net.named_buffers())
            if name not in self.tensors and not t.requires_grad
        }
        self.places = [
            (f"{prefix}.{key}".lstrip("."), module._buffers, key, buffer)
            for prefix, module in self.net.named_modules()
            for key, buffer in module._buffers.items()
        ]
        self._drawn: dict[int, tuple[int, ...]] = {}

    @cached_property
    def up(self) -> Schema:
        """What an upload may hold."""
        return self.method.uplink.schema(self.net)

    @cached_property
    def down(self) -> Schema:
        """What a download may hold."""
        return self.method.downlink.schema(self.net)

    def participants(self, t: int) -> tuple[int, ...]:
        """The clients of round ``t``, ascending: both sides draw them from the shared seed."""
        if t not in self._drawn:
            generator = rng.generator(self.task.seed, "participants", t)
            order = torch.randperm(self.task.clients, generator=generator).tolist()
            count = self.settings.drawn(self.task.clients)
            self._drawn = {t: tuple(sorted(order[:count]))}
        return self._drawn[t]

    def hold(self, t: int, weights: Tensors) -> torch.nn.Module:
        """This side's network with these weights, as it is in round ``t``."""
        for _, buffers, key, buffer in self.places:
            buffers[key] = buffer  # a network may have assigned another
        local.load(self.tensors, weights)
        self.method.model.refresh(self.net, self.task, t)
        return self.net

    def context(
        self, t: int, client: int, schema: Schema, memory: Tensors, **entries: Any
    ) -> Context:
        """What a part may know in round ``t``."""
        return Context(
            self.task,
            t,
            client,
            self.initial,
            memory=memory,
            schema=schema,
            settings=self.settings,
            participants=self.participants(t),
            net=self.net,
            **entries,
        )


class Server(Side):
    """Sends the global model to the clients of a round, and averages what comes back."""

    def validate(self) -> None:
        """``ValueError`` if a part cannot work with this task or these settings."""
        if isinstance(self.method, Averaging):
            ctx = self.context(1, -1, self.up, {})
            for part in self.method.all_parts():
                part.validate(ctx)

    def start(self) -> State:
        """The state before round 1."""
        return State(dict(self.initial))

    def round(self, t: int, state: State, ask: "Exchange") -> State:
        """Algorithm 1: clients train when they are asked."""
        clients = self.participants(t)
        expected = {}
        for k in clients:
            ctx = self.context(t, k, self.up, {})
            expected[k] = self.method.uplink.expected(ctx)
        send = partial(self.send, t, state=state, last_seen=ask.last_seen, coded={})
        receive = partial(self.receive, t, state=state)
        answers = ask(clients, send, receive)
        arrivals = (arrival for _, arrival in answers)
        return self.aggregate(t, state, arrivals, ask.last_seen, expected)

    def send(
        self,
        t: int,
        client: int,
        state: State,
        last_seen: Mapping[int, int] = {},
        coded: dict | None = None,
    ) -> tuple[bytes, int]:
        """The message to one client, and how many of its bytes are buffers.

        ``coded`` holds the bodies of other clients' messages by their group.
        """
        link = self.method.downlink
        ctx = self.context(t, client, self.down, state.memory, last_seen=last_seen)
        group = link.group(ctx)
        coded = {} if coded is None else coded
        if group not in coded:
            with torch.no_grad():
                sections = link.encode(state.weights, ctx)
            buffers = buffer_bytes(sections, self.down)
            coded[group] = (assemble(sections, self.down), buffers)
        body, buffers = coded[group]
        return pack(Message(DOWN, t, client), self.down, body), buffers

    def receive(self, t: int, client: int, data: bytes, state: State) -> Arrival:
        """One client's message -> its update; ``WireError`` for anything else."""
        message = unpack(data, self.up, kind=UP, round=t, client=client)
        n = self.task.sizes[client]
        if message.samples != n:
            raise WireError(
                f"Client {client} has {n} samples, its upload says {message.samples}."
            )
        ctx = self.context(t, client, self.up, {}, start=state.weights)
        update = self.method.uplink.decode(message.sections, ctx)
        return Arrival(client, n, update, buffer_bytes(message.sections, self.up))

    def aggregate(
        self,
        t: int,
        state: State,
        arrivals: Iterable[Arrival],
        last_seen: Mapping[int, int] = {},
        expected: Mapping[int, list[str]] = {},
    ) -> State:
        """The next state. Without a single arrival it stays as it is.

        With ``expected``, the names of the tensors that each client should send, the
        arrivals may come while clients train.
        """
        arrivals = iter(arrivals)
        first = next(arrivals, None)
        if first is None:
            return state
        arrivals = chain([first], arrivals)
        memory = dict(state.memory)
        ctx = self.context(
            t, -1, self.up, memory, last_seen=last_seen, expected=expected
        )
        with torch.no_grad():
            weights = self.method.server.aggregate(state.weights, arrivals, ctx)
            for _ in arrivals:  # clients train even if the part ignores them
                pass
        return State(weights, memory)

    def evaluate(self, t: int, state: State, ask: "Exchange") -> Row:
        """Accuracy, loss and the task's other metrics of the state after round ``t``."""
        return self.task.evaluate(self.hold(t, state.weights))

    def network(self, t: int, state: State) -> torch.nn.Module:
        """The trained network, in evaluation mode."""
        return copy.deepcopy(self.hold(t, state.weights)).eval()


class Client(Side):
    """All clients of a run, which take turns on one network.

    What one of them keeps between two answers is in ``memory`` and nowhere else: another
    process may give the next answer.
    """

    stacks = True  # several can train in one stacked network
    remembers = True  # the memory of a client outlives the round
    # round, message and decoded tensors of the last download: other clients often
    # get the same
    _broadcast: tuple[int, bytes, Any] = (0, b"", {})

    def answer(
        self, t: int, client: int, question: str, data: bytes, memory: Tensors
    ) -> bytes:
        """The answer to a question of round ``t``. ``EVALUATE`` must change no memory."""
        if question != TRAIN:
            raise WireError(
                f"A client of {self.method.name} cannot answer {question!r}."
            )
        ctx = self.download(t, client, data, memory)
        net = self.hold(t, ctx.start)
        before = {name: buffer.clone() for name, buffer in self.unsent.items()}
        trainable = local.trainable(net)
        local.train(net, self.method, ctx, self.settings)
        if list(map(id, local.trainable(net))) != list(map(id, trainable)):
            raise ValueError(
                "The network freezes or replaces parameters while it trains: what is "
                "trained, and so sent, is decided when it is built."
            )
        self.keep_buffers()
        for name, value in before.items():
            self.reset_buffer(name, value)
        return self.upload(self.tensors, ctx)

    @torch.no_grad()
    def keep_buffers(self) -> None:
        """Values that training assigned, as by ``self.mean = ...``, into the tensors of
        the state."""
        for name, buffers, key, buffer in self.places:
            value = buffers[key]
            if value is buffer:
                continue
            if buffer is None or value is None or value.shape != buffer.shape:
                if buffer is None or name in self.tensors:
                    raise ValueError(
                        f"The network's buffer {name} changes its shape in training: a "
                        "state has tensors of one shape."
                    )
            else:
                buffer.copy_(value)
            buffers[key] = buffer

    def reset_buffer(self, name: str, value: torch.Tensor) -> None:
        """Restore a buffer outside the state for the next client. Only counts of batches
        may have changed."""
        buffer = self.unsent[name]
        counts = name.endswith("num_batches_tracked")
        if not (counts or torch.allclose(buffer, value, 0, 0, equal_nan=True)):
            raise ValueError(
                f"The network's {name} changes in training, but is not in the state, so "
                "that it would begin anew with each client: only trained parameters and "
                "persistent buffers of floats are."
            )
        buffer.copy_(value)

    def download(self, t: int, client: int, data: bytes, memory: Tensors) -> Context:
        """The server's message -> a context whose ``start`` is the global model."""
        link = self.method.downlink
        ctx = self.context(t, client, self.down, memory)
        message = unpack(data, self.down, kind=DOWN, round=t, client=client)
        last_round, last_data, tensors = self._broadcast
        if last_round != t or not same_body(last_data, data):
            tensors = link.read(message.sections, ctx)
            self._broadcast = (t, data, tensors)
        ctx.start = link.undo(tensors, ctx)
        return ctx

    def upload(self, trained: Tensors, ctx: Context) -> bytes:
        """The trained tensors -> a message, which is empty if training diverged."""
        ctx.schema = self.up
        try:
            with torch.no_grad():
                sections = self.method.uplink.encode(trained, ctx)
        except Diverged:
            sections = {}
        n = self.task.sizes[ctx.client]
        return pack(Message(UP, ctx.round, ctx.client, n, sections), self.up)


Method.server_class = Server
Method.client_class = Client


def buffer_bytes(sections: Mapping[str, Any], schema: Schema) -> int:
    """How many bytes of a message are no parameters: batch statistics, and what the
    steps of a link add."""
    return sum(len(sections[name]) for name in sections.keys() & schema.buffers)


class OneByOne:
    """An engine: the clients of this process, one after another."""

    def __init__(self, side: Client) -> None:
        self.side = side
        self.about = {"name": "sequential"}  # for the history
        self.memories: dict[int, Tensors] = {}  # what each client keeps
        self.new: dict[int, Tensors] = {}  # what it will keep if its answer counts

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """Return when round ``t`` can begin; these clients always are."""

    def recall(self, client: int) -> Tensors:
        """A copy of what a client keeps, to be written to."""
        return dict(self.new.get(client, self.memories.get(client, {})))

    def answer(self, t: int, client: int, data: bytes, question: str = TRAIN) -> bytes:
        """One client's answer outside of a run; it counts at once."""
        memory = self.recall(client)
        answer = self.side.answer(t, client, question, data, memory)
        self.memories[client] = memory
        return answer

    def exchange(
        self,
        t: int,
        question: str,
        clients: Iterable[int],
        write: Callable[[int], bytes],
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """Deliver ``write(k)`` to each client; yield its answer, or why there is none.

        Any other error in a client's code ends the run, and says whose it was.
        """
        for k in clients:
            memory = self.recall(k)
            data = write(k)
            try:
                answer = self.side.answer(t, k, question, data, memory)
            except WireError as error:
                yield k, error
                continue
            except Exception as error:
                error.add_note(f"This happened at client {k} in round {t}.")
                raise
            self.new[k] = memory
            yield k, answer

    def settle(self, t: int, clients: Iterable[int]) -> None:
        """Round ``t`` is over, and the answers of these clients counted."""
        for k in clients:
            if k in self.new:
                self.memories[k] = self.new[k]
        self.new = {}


@dataclass
class Exchange:
    """A round's only way to clients, ``ask`` in the code of a method.

    It counts every byte, and notes in ``row``, of the history, whose answer was refused
    and why.
    """

    t: int
    engine: Any
    row: dict[str, Any]
    # client -> the last round in which an answer of it counted
    last_seen: dict[int, int]

    def __call__(
        self,
        clients: Iterable[int],
        write: Callable[[int], Any],
        read: Callable[[int, bytes], Any],
        question: str = TRAIN,
    ) -> Iterator[tuple[int, Any]]:
        """Ask each client, and yield ``read(k, answer)`` for each answer.

        ``write(k)`` is the message to client k, or the message and how many of its bytes
        are buffers. A ``WireError`` of ``read`` refuses the client.
        """
        way = "bytes_evaluation" if question == EVALUATE else "bytes"
        refused = "unevaluated" if question == EVALUATE else "refused"

        def counted(k: int) -> bytes:
            message = write(k)
            data, buffers = message if isinstance(message, tuple) else (message, 0)
            self.note(f"{way}_down", len(data))
            self.note(f"{way}_down_buffers", buffers)
            return data

        for k, answer in self.engine.exchange(self.t, question, clients, counted):
            try:
                if isinstance(answer, WireError):
                    raise answer
                self.note(f"{way}_up", len(answer))
                result = read(k, answer)
            except WireError as error:
                self.row[refused][k] = str(error)
                continue
            self.note(f"{way}_up_buffers", getattr(result, "buffers", 0))
            if question != EVALUATE:
                self.last_seen[k] = self.t
            yield k, result

    def note(self, column: str, count: int) -> None:
        """Add to a column of the row."""
        if count:
            self.row[column] = self.row.get(column, 0) + count


def one_round(
    server: Server, engine: Any, t: int, state: State, last_seen: dict[int, int]
) -> tuple[State, Row]:
    """Round ``t``: the next state, and a row of the history.

    A state that is not finite is not taken: the old one stays, and the row says why.
    """
    row: Row = dict.fromkeys(COLUMNS, 0)
    row |= {"round": t, "accuracy": None, "loss": None, "untaken": None}
    row |= {"clients": list(server.participants(t)), "refused": {}, "unevaluated": {}}
    ask = Exchange(t, engine, row, dict(last_seen))
    engine.ready(t, row["clients"])
    began = time.perf_counter()
    try:
        new = server.round(t, state, ask)
        tensors = [*new.weights.values(), *new.memory.values()]
        if not all(x.isfinite().all() for x in tensors):
            raise Diverged("The new model is NaN or infinite.")
        state = new
    except Diverged as error:
        row["untaken"] = str(error)
    else:
        for k in row["clients"]:
            if ask.last_seen.get(k) == t and k not in row["refused"]:
                last_seen[k] = t
    engine.settle(t, [k for k in row["clients"] if last_seen.get(k) == t])
    row["seconds"] = time.perf_counter() - began
    if t % server.settings.evaluate_every == 0:
        row |= server.evaluate(t, state, Exchange(t, engine, row, dict(last_seen)))
    return state, row


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
    checkpoint: Any = None,
    threads: int | None = None,
    progress: bool | None = None,
    on_round: Callable[[Row, State], Any] | None = None,
    **unknown: Any,
) -> History:
    """Run a method on a task for some rounds.

    Parameters
    ----------
    method : Method or str
        A method, or the name of one, with its defaults.
    task : Task
        Images and their owners, a network and a measure (``fedlearn.tasks``).
    rounds : int
        Rounds in all, also of a run that continues from a checkpoint.
    participation : float
        C, the share of the clients drawn each round, above 0 and at most 1.
    epochs, batch_size : int
        E and B: local epochs a round, and images of a local step.
    evaluate_every : int
        The test set is used every so many rounds, and after the last.
    precision : str
        "float32", "tf32" or "bf16" (mixed; weights stay float32).
    engine : str or object
        Where clients train: "sequential", one after another; "stacked", all clients of a
        round in one step; "auto", stacked where steps are small and the layers allow it;
        "flower", each in a process of Flower's simulation; or an object with
        ``connect(client, threads)``, such as ``fedlearn.flower.Simulation()``.
    checkpoint : path, optional
        Every finished round is saved there; a run that finds the file continues from it.
    threads : int, optional
        CPU threads; by default one for networks so small that two would be slower.
    progress : bool, optional
        Whether to show a bar; by default on a terminal and in a notebook.
    on_round : function, optional
        Called after each round with the row of the history and the ``State``; the run
        ends if it returns True. A run that continues calls it for its last round again.

    Returns
    -------
    History
        A row a round; ``history.state`` is the final global model.

    Raises
    ------
    ValueError
        For a value out of its range, a method that the engine cannot train, or another
        run's checkpoint.

    Examples
    --------
    >>> import fedlearn as fl
    >>> task = fl.tasks.classification("digits", clients=3, train=90, test=60)
    >>> history = fl.run("fedavg", task, rounds=2, participation=0.5)
    >>> [len(row["clients"]) for row in history.rows]
    [2, 2]
    """
    refuse_unknown(unknown)
    if not (on_round is None or callable(on_round)):
        raise ValueError(
            f"on_round is a function of the row and the state, not {short(on_round)}."
        )
    method = method_of(method)
    if not hasattr(task, "evaluate"):
        raise ValueError(f"A run takes a task (fedlearn.tasks), not {short(task)}.")
    check_whole("rounds", rounds)
    settings = Settings(participation, epochs, batch_size, evaluate_every, precision)
    server = method.server_side(task, settings)
    server.validate()
    if threads is None:
        threads = local.good_threads(server.net, task, batch_size)
    check_whole("threads", threads, maximum=1024)
    client = method.client_side(task, settings)
    with (
        local.threads(threads, precision),
        connect(engine, client, threads) as clients,
    ):
        head = describe(method, task, settings, threads)
        head |= {"engine": clients.about, "network": digest(server.net)}
        history = History(method.name, head)
        state = server.start()
        if checkpoint is not None:
            saved = checkpoints.resume(
                checkpoint, history, clients.memories, task.device
            )
            state = State(*saved) if saved else state
        if len(history) > rounds:
            raise ValueError(
                f"{checkpoint} has {len(history)} rounds, more than {rounds}; name "
                "another file or delete it."
            )
        last_seen = history.last_seen()
        if len(history) == rounds:
            evaluate_last(server, clients, state, history)
        # a run that was stopped may not have come to its function
        ended = len(history) > 0 and ends(on_round, history.rows[-1], state)
        with progress_bar(method.name, len(history), rounds, progress) as bar:
            while len(history) < rounds and not ended:
                t = len(history) + 1
                state, row = one_round(server, clients, t, state, last_seen)
                history.rows.append(row)
                if checkpoint is not None:
                    checkpoints.save(checkpoint, history, state, clients.memories)
                if t == rounds:
                    evaluate_last(server, clients, state, history)
                warn_of_round(history)
                if row["accuracy"] is not None:
                    bar.set_postfix(accuracy=f"{row['accuracy']:.3f}")
                bar.update()
                ended = ends(on_round, row, state)
    history.state = state.weights
    history.trained = partial(server.network, len(history), state)
    return history


def evaluate_last(server: Server, engine: Any, state: State, history: History) -> None:
    """Evaluate the last round, whatever ``evaluate_every`` says.

    The checkpoint is saved before this evaluation. A longer run that resumes from it has
    the same rows as an uninterrupted one.
    """
    row = history.rows[-1]
    t = row["round"]
    if row["accuracy"] is None and not row["unevaluated"]:
        engine.ready(t, row["clients"])
        row |= server.evaluate(t, state, Exchange(t, engine, row, history.last_seen()))


def ends(on_round: Callable | None, row: Row, state: State) -> bool:
    """Call the user's function: whether it returned True, of Python, numpy or torch."""
    answer = on_round(row, state) if on_round else None
    kind = getattr(answer, "dtype", type(answer))
    if answer is not None and kind not in (bool, torch.bool):
        raise ValueError(
            "on_round returns True to end the run, False or nothing to go on, not "
            f"{short(answer)}."
        )
    return bool(answer)


def progress_bar(name: str, done: int, rounds: int, show: bool | None) -> Any:
    """A bar of text or a widget; in a log, where ``show`` is True, a line now and then."""
    from tqdm.auto import tqdm

    live = sys.stderr.isatty() or sys.modules.get("ipykernel")
    return tqdm(
        desc=name,
        initial=done,
        total=rounds,
        leave=False,
        mininterval=0.1 if live else 10.0,
        disable=not (live if show is None else show),
    )


def connect(engine: Any, client: Client, threads: int) -> AbstractContextManager[Any]:
    """The clients of a run, where ``engine`` says, as long as the block lasts.

    This is the one door to ``fedlearn.engines``.
    """
    if hasattr(engine, "connect"):
        return engine.connect(client, threads)
    pick(engine, dict.fromkeys(ENGINES), "engine")
    if engine == "flower":
        flower = import_module("fedlearn.engines.flower")
        return flower.Simulation().connect(client, threads)
    if engine == "sequential":
        return nullcontext(OneByOne(client))
    stacked = import_module("fedlearn.engines.stacked")
    return nullcontext(stacked.connect(engine, client))


def clients(method: Method, task: Any, settings: Settings | None = None) -> OneByOne:
    """All clients of a run in this process, for rounds made by hand.

    Parameters
    ----------
    method, task, settings : Method, Task, Settings
        How they train and what they send, their data, local epochs and the rest.

    Returns
    -------
    OneByOne
        ``answer(t, client, data)`` makes bytes of bytes; ``memories`` is what clients keep.

    Examples
    --------
    >>> import fedlearn as fl
    >>> method = fl.methods.fedavg()
    >>> task = fl.tasks.classification("digits", clients=3, train=90)
    >>> server, people = method.server_side(task), fl.clients(method, task)
    >>> message, buffers = server.send(1, 0, server.start())
    >>> answer = people.answer(1, 0, message)
    >>> server.receive(1, 0, answer, server.start()).samples
    30
    """
    return OneByOne(method.client_side(task, settings))


def refuse_unknown(unknown: dict[str, Any]) -> None:
    """``TypeError`` for keywords that ``run`` does not have, with the nearest that it has."""
    options = [
        name for name in run.__annotations__ if name not in ("unknown", "return")
    ]
    for name in unknown:
        hint = near_names(name, options)
        raise TypeError(
            f"fl.run has no option {name!r}.{hint} An option of a method goes to the "
            f"method, as in fl.methods.fedavg({name}=...)."
        )
