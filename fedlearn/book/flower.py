"""Chapter 9, the same methods on Flower: a message on its way, what a round costs there,
and the checks of the exercises."""

import math
from collections.abc import Mapping
from typing import Any

from .. import methods, tasks
from ..core import clients
from ..history import History
from .check import Function, Reasons, number, varied
from .drawings import drawing

# seconds between two looks of a SuperNode, and of our part at the server
ASK = 3.0
LOOK = 0.5


def watch_message(
    seconds: Mapping[str, float], guess: float | None = None
) -> dict[str, Any]:
    """Where a message and its answer are in a round of Flower's programs.

    ``seconds`` are those of a round, by engine; ``guess`` is the reader's. The start of
    a program takes what is left of the recorded round if the client trains as long as
    in the loop, where two take turns.
    """
    train = seconds["sequential"] / 2
    start = seconds["deployment"] - ASK - LOOK - train
    return drawing(
        "flower/message",
        train=round(math.log10(train), 1),
        start=round(start, 1),
        guess=guess or 0,
    )


def engine_rows(seconds: Mapping[str, float]) -> list[dict[str, str]]:
    """A table of the seconds of a round, by where the clients live."""
    places = {
        "sequential": "one process",
        "simulation": "worker processes",
        "deployment": "programs of their own",
    }
    return [
        {
            "clients live in": place,
            "seconds": f"{seconds[engine]:.2f}",
            "times the first": f"{seconds[engine] / seconds['sequential']:.1f}",
        }
        for engine, place in places.items()
    ]


def first_messages(name: str, network: str) -> tuple[int, int]:
    """Bytes down and up of a client's first round; a few images are enough for that."""
    task = tasks.classification("digits", clients=2, train=20, test=10, network=network)
    method = methods.get(name)
    server = method.server_side(task)
    down, _ = server.send(1, 0, server.start())
    return len(down), len(clients(method, task).answer(1, 0, down))


# ---- exercises -----------------------------------------------------------------------


@varied(
    message=(6_781, range(3_000, 9_000)),
    added_up=(1_100, range(500, 2_000)),
    added_down=(1_300, range(500, 2_000)),
    rounds=(50, range(11, 200)),
)
def total(message: int, added_up: int, added_down: int, rounds: int) -> Any:
    """All that Flower counts, in bytes; a fifth of 100 clients is drawn in each
    round."""
    drawn = 20
    clients = 100
    greeting = 1_500 + 2_100
    uploads = drawn * rounds
    greetings = clients * greeting
    training = uploads * (2 * message + added_up + added_down)
    plain = uploads * 2 * message
    right = training + greetings
    return number(
        right,
        {
            training: "the greetings are missing",
            training + drawn * greeting: (
                "everybody is greeted, also who is never drawn"
            ),
            training + rounds * greetings: (
                "a client is greeted once, not in every round"
            ),
            training + uploads * greeting: (
                "a client is greeted once, not each time it is drawn"
            ),
            plain: "these are our bytes; what Flower adds is missing",
            plain + greetings: (
                "what Flower adds to the messages of the rounds is missing"
            ),
            uploads * (message + added_up) + greetings: "the downloads are missing",
            uploads * (message + added_down) + greetings: "the uploads are missing",
            training * clients // drawn + greetings: (
                "only a fifth of the clients takes part in a round"
            ),
            8 * right: "these are bits",
        },
    )


# of a round: who was refused, and how many bytes came
GOOD = ({}, 400)
FEW = ({}, 300)
LATE = {2: "No answer within 60 s."}
DAMAGED = {1: "The checksum does not fit: the message was altered or cut."}
# rounds of four clients, the silent ones, and the reason for another answer
SILENT: list[tuple[list[Any], list[int], str]] = [
    (
        [GOOD, GOOD],
        [],
        "nobody was missing in one of the histories, and it reports a round",
    ),
    (
        [GOOD, (LATE, 300)],
        [],
        "a client that is named in refused is missing openly, not silently",
    ),
    (
        [GOOD, (DAMAGED, 400)],
        [],
        "the bytes of damaged uploads count, so there may be too many",
    ),
    (
        [GOOD, FEW, GOOD],
        [2],
        "a round with too few bytes and an empty refused is not found",
    ),
    (
        [(LATE, 200), GOOD],
        [1],
        "a round in which one is named and one more is missing is not found",
    ),
    (
        [FEW, GOOD, (LATE, 100)],
        [1, 3],
        "not all silent rounds of a history are found, in order",
    ),
]


def silent(answer: Function) -> Reasons:
    """answer(history, size) -> the rounds in which fewer uploads came than the row
    claims."""
    for rounds, right, reason in SILENT:
        row = {"accuracy": 0.5, "clients": [0, 1, 2, 3]}
        rows = [
            row | {"round": t, "refused": r, "bytes_up": b}
            for t, (r, b) in enumerate(rounds, 1)
        ]
        got = answer(History("rpn", {}, rows), 100)
        if not isinstance(got, list):
            yield f"a list of rounds is asked for, not {type(got).__name__}"
        if right and got == [t - 1 for t in right]:
            yield "rounds count from 1; take them from the rows"
        yield got != right and reason


EXERCISES = {"flower-bytes": total, "flower-silent": silent}
