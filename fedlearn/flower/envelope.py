"""What is in a Flower message: one record with a few values, and for a question its name.

Of the three kinds of message only ``ASK`` is part of a round and counted, and it holds one
``bytes`` value each way: the very bytes that a run in one process encodes. ``HELLO`` tells the
server which client a node is and that both mean the same run; after ``BYE`` real clients end.
"""

import re
import sys
from dataclasses import dataclass
from typing import Any, Self

from ..errors import WireError

HELLO, ASK, BYE = "query.hello", "query.ask", "query.bye"
RECORD = "fedlearn"  # the name of the one record in a message
DEAD = re.compile(
    "ActorDiedError|RayActorError|ActorUnavailableError|WorkerCrashedError|OutOfMemoryError"
)


@dataclass(frozen=True)
class Question:
    """The name of a question, which travels as its message's ``group_id``."""

    run: str  # by which a client knows the run again
    digest: str  # of the job that the server means
    round: int
    heard: int  # the last round before this one in which the client's answer was used; 0: none
    number: int  # so many questions of this round the client has answered before
    what: str  # is asked for

    def __str__(self) -> str:
        about = self.round, self.heard, self.number, self.what
        return ".".join([f"{self.run}-{self.digest}", *map(str, about)])

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of ``str``; ``WireError`` for anything else."""
        found = re.fullmatch(r"(\w+)-(\w+)\.(\d+)\.(\d+)\.(\d+)\.(.+)", text, re.ASCII)
        if not found:
            raise WireError(f"{plain(text)[:100]!r} is not the name of a question.")
        run, digest, t, heard, number, what = found.groups()
        return cls(run, digest, int(t), int(heard), int(number), what)


def envelope(values: dict[str, Any], *to: Any, **how: Any) -> Any:
    """A Flower message of one record. What follows is what Flower's own takes after its content."""
    from flwr.app import ConfigRecord, Message, RecordDict

    return Message(RecordDict({RECORD: ConfigRecord(values)}), *to, **how)


def open_reply(reply: Any, **kinds: type) -> Any:
    """The values of a reply, one of each of these types, or the only one; a ``WireError`` that says
    why they are not there. ``ConnectionError`` if whoever should have answered has died."""
    from flwr.app import ConfigRecord

    if isinstance(reply, WireError):
        return reply
    if reply.has_error():
        reason = str(reply.error.reason)
        if DEAD.search(reason):  # Ray would hand all that follows to the dead one
            raise ConnectionError(
                "A worker process of the simulation has died; memory may be short. Finished rounds "
                "are in the checkpoint, if there is one."
            )
        last = (reason.strip().splitlines() or ["no reason given"])[-1]
        return WireError(f"Flower reports: {plain(last)[:300]}")
    record = reply.content.get(RECORD) if reply.has_content() else None
    if not isinstance(record, ConfigRecord):
        record = {}
    if isinstance(record.get("refused"), str):
        return WireError(plain(record["refused"])[:1000])
    if any(type(record.get(name)) is not kind for name, kind in kinds.items()):
        return WireError("The answer does not hold what was asked for.")
    values = [record[name] for name in kinds]
    return values[0] if len(values) == 1 else values


def plain(text: str) -> str:
    """What may be shown of a text from outside: one line, no control characters, not endless."""
    return "".join(c if c.isprintable() else " " for c in text[:2000])


def say(text: str) -> None:
    """A line on this side's terminal, in letters that it has."""
    letters = sys.stdout.encoding or "utf-8"
    print(plain(text).encode(letters, "replace").decode(letters), flush=True)
