"""Rounds. Read this first: a method's server asks, clients answer, and every byte crosses in
``Ask``.

    for each round t:   state = server.round(t, state, ask)

``ask(clients, write, read)`` has the engine deliver the message ``write(k)`` to each client k and
yields ``(k, read(k, answer))``, in the order of the clients. It counts bytes, notes who is refused
and why, and remembers when each client was last heard. An engine is anything that can
``exchange``: a loop, a stacked step, Flower."""

import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Protocol

import torch

from . import checkpoint as checkpoints
from . import training
from .arguments import checked, short
from .engines import Loop, Stacked, choose
from .errors import Diverged, WireError
from .finite import magnitude
from .history import History
from .method import EVALUATE, TRAIN, Method, method_of
from .models import multiply_adds
from .parts import State, Tensors
from .progress import progress_bar
from .settings import Settings, thread_count, whole_number

BYTES = ("bytes_up", "bytes_up_buffers", "bytes_down", "bytes_down_buffers")
EVALUATION = ("bytes_evaluation_up", "bytes_evaluation_down")


# A row of the history, and the state after it; True ends the run.
OnRound = Callable[[dict[str, Any], State], Any]


class Exchange(Protocol):
    """What a round needs of an engine."""

    memories: dict[int, Tensors]  # what clients of this process keep; empty if they live elsewhere

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """Return when round ``t`` can begin."""

    def exchange(
        self, t: int, what: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """Deliver ``write(k)``, yield each client's answer, or why there is none, in this order."""


class Ask:
    """A round's only way to clients, and the row of the history that it fills."""

    def __init__(
        self, t: int, engine: Exchange, row: dict[str, Any], heard: dict[int, int]
    ) -> None:
        self.t, self.engine, self.row = t, engine, row
        self.heard = heard  # client -> the last round in which an answer of it was taken
        self.raised: BaseException | None = None  # the first error in the code of a client
        self.sizes: dict[int, float] = {}  # client -> the largest norm that came in this round

    def __call__(
        self,
        clients: Iterable[int],
        write: Callable[[int], bytes],
        read: Callable[[int, bytes], Any],
        what: str = TRAIN,
    ) -> Iterator[tuple[int, Any]]:
        """Ask ``clients`` for ``what``, and yield what ``read`` makes of each answer. A
        ``WireError``, of ``read`` or in place of an answer, is noted, and nothing comes out for
        that client."""
        evaluation = what == EVALUATE
        way, refused = ("bytes_evaluation", "unevaluated") if evaluation else ("bytes", "refused")

        def counted(k: int) -> bytes:
            data = write(k)
            self.note(f"{way}_down", len(data))
            return data

        for k, answer in self.engine.exchange(self.t, what, clients, counted):
            try:
                if isinstance(answer, WireError):
                    raise answer
                if not isinstance(answer, bytes):
                    kind = type(answer).__name__
                    raise WireError(f"Client {k} must answer with bytes, not with {kind}.")
                self.note(f"{way}_up", len(answer))
                taken = read(k, answer)
            except WireError as error:
                self.row[refused][k] = str(error)
                self.raised = self.raised or error.__cause__
                continue
            if not evaluation:
                self.heard[k] = self.t
                self.sizes[k] = max(self.sizes.get(k, 0.0), magnitude(taken))
            del answer
            yield k, taken
            del taken  # before the next client trains

    def note(self, column: str, count: int) -> None:
        """Add to a column of the row: a share of the bytes that the method tells apart."""
        self.row[column] = self.row.get(column, 0) + count

    def suspects(self) -> list[int]:
        """The clients that sent the largest norm of this round, or a thousandth of it."""
        most = max(self.sizes.values(), default=0.0)
        return [k for k, size in self.sizes.items() if 1000 * size >= most]


def one_round(
    server: Any, engine: Exchange, t: int, state: State, heard: dict[int, int], last: bool = False
) -> tuple[State, dict[str, Any]]:
    """Round ``t`` -> the next state, and a row of the history. A state that is not finite, or from
    which no round can begin, is not taken: the old one stays, and the row says why."""
    row: dict[str, Any] = {"round": t, "accuracy": None, "loss": None}
    row |= dict.fromkeys(BYTES + EVALUATION, 0)
    row |= {
        "seconds": 0.0,
        "clients": list(server.participants(t)),
        "refused": {},
        "unevaluated": {},
        "untaken": None,
        "suspects": [],
    }
    ask = Ask(t, engine, row, heard)
    engine.ready(t, row["clients"])
    began = time.perf_counter()
    try:
        new = server.round(t, state, ask)
        if new is not state:
            server.judge(t, new, state, heard)
        state = new
    except Diverged as error:
        if not ask.sizes:  # nobody has answered: nobody else's fault
            raise
        row |= {"untaken": str(error), "suspects": ask.suspects()}
    except WireError as error:  # without these answers the method cannot go on
        if heard or not ask.raised:
            raise error from ask.raised
    if ask.raised and not heard:  # no client has ever answered: it is the program that fails
        raise ask.raised
    row["seconds"] = time.perf_counter() - began
    if last or t % server.settings.evaluate_every == 0:
        row |= server.evaluate(t, state, ask)
    return state, row


def train(
    server: Any,
    engine: Exchange,
    history: History,
    rounds: int,
    checkpoint: Any = None,
    progress: bool | None = None,
    on_round: OnRound | Iterable[OnRound] = (),
) -> History:
    """The rounds that ``history``, or the checkpoint if there is one, does not have yet."""
    state = server.start()
    if checkpoint is not None:
        state = checkpoints.resume(checkpoint, history, state, engine.memories, server.task.device)
        if len(history) > rounds:
            raise ValueError(
                f"{checkpoint} has {len(history)} rounds already, more than the {rounds} asked "
                "for; name another file or delete it."
            )
    heard, calls = history.heard(), (on_round,) if callable(on_round) else tuple(on_round)

    def stops() -> bool:
        return any([call(history.rows[-1], state) is True for call in calls])

    bar = progress_bar(history.method, len(history), rounds, progress)
    with training.threads(history.meta["threads"], server.settings.precision), bar:
        row = history.rows[-1] if len(history) == rounds else None
        if row and row["accuracy"] is None and not row["unevaluated"]:
            # the checkpoint's last round, which a longer run did not look at
            engine.ready(rounds, row["clients"])
            row |= server.evaluate(rounds, state, Ask(rounds, engine, row, heard))
        # a run that was stopped may not have come to call them for its last round
        done = bool(history.rows) and stops()
        for t in range(len(history) + 1, 1 if done else rounds + 1):
            state, row = one_round(server, engine, t, state, heard, last=t == rounds)
            history.rows.append(row)
            if checkpoint is not None:
                checkpoints.save(checkpoint, history, state, engine.memories)
            bar.update()
            if row["accuracy"] is not None:
                bar.set_postfix(accuracy=f"{row['accuracy']:.3f}")
            if stops():
                break
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
    history.state = state.weights
    return history


@checked
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
    engine: str = "sequential",
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
    (bytes, by default half of what is free) allows; "auto", whichever is faster here;
    "flower-sim", each in a process of its own, as many at a time as there are CPUs
    (``fedlearn.flower.simulate``). What clients keep between rounds (error feedback, gradient
    tracking) is not counted in that limit. With ``checkpoint`` (a path) every finished round is
    saved there, and a run that finds the file goes on from it. ``threads`` is the number of CPU
    threads: by default one for networks so small that two would be slower. ``progress`` shows a
    bar: by default where somebody looks (a terminal or a notebook).

    ``on_round`` is a function, or several, called with the row of the history and the state
    (``State``, not to be changed) after each round and its checkpoint; one that returns True ends
    the run, one that raises ends it with its error (``fedlearn.callbacks``). A run that goes on
    from a checkpoint calls them for its last finished round again."""
    settings = Settings(participation, epochs, batch_size, evaluate_every, precision)
    method = method_of(method)
    thread_count(threads)
    if not hasattr(task, "evaluate"):
        raise ValueError(f"A run takes a task (fedlearn.tasks), not {short(task)}.")
    if engine == "flower-sim":
        from . import flower

        if memory_limit is not None:
            raise ValueError(
                'memory_limit is for stacked training, not for the engine "flower-sim".'
            )
        job = flower.Job(method, task, rounds, settings, threads)
        return flower.simulate(job, checkpoint=checkpoint, progress=progress, on_round=on_round)
    whole_number("rounds", rounds)
    server = method.server_side(task, settings)
    threads = threads or good_threads(server.net, task, batch_size)
    with training.threads(threads, precision):
        chosen = choose(engine, method, task, settings, len(server.participants(1)), memory_limit)
    meta = describe(method, task, settings, threads) | {"engine": asdict(chosen)}
    history = History(method.name, meta)
    return train(
        server,
        clients(method, task, settings, chosen.together),
        history,
        rounds,
        checkpoint,
        progress,
        on_round,
    )


def clients(method: Method, task: Any, settings: Settings | None = None, together: int = 1) -> Loop:
    """All clients of a run in this process, which train one by one or that many ``together``."""
    side = method.client_side(task, settings)
    return Loop(side) if together == 1 else Stacked(side, together)


def good_threads(net: torch.nn.Module, task: Any, batch_size: int) -> int:
    """One CPU thread for a small step, all that torch may use for a large one. A rule rather than
    a timing, so that it does not change between two runs: the number of threads changes the last
    bits of a sum.

    The limit is 50 million multiply-adds a batch (forward), from the table of ``tests/benchmarks``.
    """
    work = multiply_adds(net, task.shape) * min(batch_size, max(task.sizes))
    return 1 if work < 50e6 else torch.get_num_threads()


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
