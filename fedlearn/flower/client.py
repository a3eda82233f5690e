"""A client on Flower: it answers what it is asked, and keeps notes between its answers.

What a client keeps stays with it: in Flower's context and, if it has a folder, in a file there. It
is kept as it was before the first question of its last round and as it was after its last answer.
So a server that was set back to its last checkpoint can ask for that round again, from its first
question on.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import training
from ..arguments import is_whole
from ..checkpoint import apart
from ..errors import WireError
from ..files import write_atomically
from ..method import EVALUATE, TRAIN, ClientSide
from ..parts import Tensors
from .envelope import ASK, BYE, HELLO, RECORD, Question, envelope
from .job import Job, differences, require

OVER = "The run is over."  # a client's last line
_HERE: dict[int, tuple[Job, ClientSide]] = {}  # run -> what this process has built to answer in it


def client_app(
    make: Callable[[Any], Job],
    keep: str | Path | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> Any:
    """A Flower ``ClientApp``. ``make(context)`` gives the ``Job``; it is called once for each run
    in each process. Which client it is says the node's ``partition-id``. ``keep`` is a folder for
    what the client keeps between rounds; ``tell`` takes a line on how it goes."""
    require()
    from flwr.clientapp import ClientApp

    app = ClientApp()
    for kind, reply in ((HELLO, _hello), (ASK, _answer), (BYE, _bye)):
        app.query(kind.removeprefix("query."))(partial(reply, make, keep, tell))
    return app


def _party(make: Callable[[Any], Job], context: Any) -> tuple[Job, int, ClientSide]:
    """The job, the client's number, and the client's side of the method in this process."""
    run, k = context.run_id, context.node_config.get("partition-id")
    if run not in _HERE:
        _HERE.clear()
        job = make(context)
        _HERE[run] = job, job.method.client_side(job.task, job.settings)
    job, side = _HERE[run]
    if not is_whole(k) or not 0 <= k < job.task.clients:
        raise ValueError(
            "The node's partition-id must be a client's number, 0 to "
            f"{job.task.clients - 1}, not {k!r}."
        )
    return job, k, side


def _hello(make, keep, tell, message, context):
    job, k, _ = _party(make, context)
    theirs = json.loads(message.content[RECORD]["head"])
    other = differences(job.head, theirs, "here", "at the server")
    met = f"Stopped: The server turned this client away: {other}."
    met = met if other else "The server is there and means the same run."
    tell(met)
    return envelope({"client": k, "head": json.dumps(job.head)}, reply_to=message)


def _answer(make, keep, tell, message, context):
    job, k, side = _party(make, context)
    notes = Notes(context, keep, k)
    asked, began = "A question", time.perf_counter()
    try:
        q = Question.parse(message.metadata.group_id)
        asked = f"Round {q.round}" if q.what == TRAIN else f"Round {q.round}, {q.what}"
        if q.digest != job.digest:
            raise WireError(f"Client {k} means another run than when it was greeted.")
        known, before, memory = notes.start(q)
        memory = {n: x.to(job.task.device, copy=True) for n, x in memory.items()}
        data = message.content[RECORD]["message"]
        with training.threads(job.cpu_threads, job.settings.precision):
            answer = side.answer(q.round, k, q.what, data, memory)
        if known < q.heard and side.remembers and (memory or q.what == EVALUATE):
            raise WireError(
                f"Client {k} answered round {q.heard}, but what it kept has been lost; it needs "
                "its folder."
            )
    except (WireError, KeyError, TypeError) as error:
        tell(f"{asked}: {error}")
        return envelope({"refused": str(error)}, reply_to=message)
    if q.what != EVALUATE:  # which changes nothing
        notes.write(q, before, memory)
    size, seconds = f"{len(data)} bytes came, {len(answer)} go back", time.perf_counter() - began
    tell(f"{asked}: {size}, {seconds:.1f} s of work")
    return envelope({"message": answer}, reply_to=message)


def _bye(make, keep, tell, message, context):
    tell(OVER)
    return envelope({"message": b""}, reply_to=message)


class Notes:
    """What a client keeps: tensors before its last round and after its last answer in it, in
    Flower's context, and in a file if there is a folder. Both without pickle (safetensors)."""

    def __init__(self, context: Any, folder: str | Path | None, k: int) -> None:
        self.context, self.client = context, k
        self.path = Path(folder) / f"client-{k}.safetensors" if folder else None

    def recall(self, run: str) -> tuple[int, int, Tensors, Tensors]:
        """The last round of this run with an answer, how many questions were answered in it, and
        the memory before and after it; zeros and nothing if there was no such round."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        record, data = self.context.state.get(RECORD), None
        if record:
            data = record["notes"]
        elif self.path and self.path.exists():
            data = self.path.read_bytes()
        try:
            tensors = load(data) if data else {}
        except SafetensorError as error:
            raise WireError(
                f"The client's notes in {self.path} cannot be read ({error})."
            ) from None
        if not tensors or bytes(tensors.pop("run").tolist()).decode() != run:
            return 0, 0, {}, {}
        at, answered = tensors.pop("answered").tolist()
        before, after = (
            {n.removeprefix(when): x for n, x in tensors.items() if n.startswith(when)}
            for when in ("before/", "after/")
        )
        return at, answered, before, after

    def start(self, q: Question) -> tuple[int, Tensors, Tensors]:
        """Where the answer to ``q`` begins: the last round whose outcome is known here, the memory
        before the round, and the memory to answer from. ``WireError`` if they are not known."""
        at, answered, before, after = self.recall(q.run)
        if at > q.round:
            raise WireError(
                f"Client {self.client} has answered round {at} and is now asked for round "
                f"{q.round}; resume from the server's last checkpoint."
            )
        if at < q.round:
            at, answered, before = at, 0, after
        elif q.number == 0:  # the round is asked for again
            at, answered, after = at - 1, 0, before
        if q.number != answered:
            raise WireError(
                f"Client {self.client} has answered {answered} questions of round {q.round}, and "
                f"the server means {q.number}."
            )
        return at, before, after

    def write(self, q: Question, before: Tensors, after: Tensors) -> None:
        """Note an answer to ``q``."""
        from flwr.app import ConfigRecord
        from safetensors.torch import save

        tensors = {f"before/{n}": x for n, x in before.items()}
        tensors |= {f"after/{n}": x for n, x in after.items()}
        about = {"run": torch.tensor(list(q.run.encode()), dtype=torch.uint8)}
        about["answered"] = torch.tensor([q.round, q.number + 1])
        data = save(apart(tensors) | about)
        if self.path:
            write_atomically(self.path, lambda part: part.write_bytes(data))
        self.context.state[RECORD] = ConfigRecord({"notes": data})
