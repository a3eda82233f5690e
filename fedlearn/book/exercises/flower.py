"""Exercises of the chapter on Flower."""

from ...history import History
from . import Function, number

# bytes, as the exercise gives them
MESSAGE, UP, DOWN, GREETING = 6_781, 1_100, 1_300, 1_500 + 2_100
DRAWN, ROUNDS, CLIENTS = 20, 50, 100
UPLOADS = DRAWN * ROUNDS
TRAINING, GREETINGS = UPLOADS * (2 * MESSAGE + UP + DOWN), CLIENTS * GREETING
total = number(
    TRAINING + GREETINGS,
    wrong=[
        (TRAINING, "the greetings are missing"),
        (TRAINING + DRAWN * GREETING, "everybody is greeted, also who is never drawn"),
        (TRAINING + ROUNDS * GREETINGS, "a client is greeted once, not in every round"),
        (TRAINING + UPLOADS * GREETING, "a client is greeted once, not each time it is drawn"),
        (UPLOADS * 2 * MESSAGE, "these are our bytes; what Flower adds is missing"),
        (
            UPLOADS * 2 * MESSAGE + GREETINGS,
            "what Flower adds to the messages of the rounds is missing",
        ),
        (UPLOADS * (MESSAGE + UP) + GREETINGS, "the downloads are missing"),
        (UPLOADS * (MESSAGE + DOWN) + GREETINGS, "the uploads are missing"),
        (
            TRAINING * CLIENTS // DRAWN + GREETINGS,
            "only a fifth of the clients takes part in a round",
        ),
        (8 * (TRAINING + GREETINGS), "these are bits"),
    ],
)


def history(*rows: tuple[dict[int, str], int]) -> History:
    """Rounds of four clients, each from a pair: who was refused, and how many bytes came."""
    keys = {"accuracy": 0.5, "clients": [0, 1, 2, 3]}
    return History(
        "rpn",
        {},
        [{"round": t, **keys, "refused": r, "bytes_up": b} for t, (r, b) in enumerate(rows, 1)],
    )


def silent(answer: Function) -> str | None:
    """answer(history, size) -> the rounds in which fewer uploads came than the row claims."""
    late = {2: "No answer within 60 s."}
    damaged = {1: "The checksum does not fit: the message was altered or cut."}
    for h, want, reason in (
        (
            history(({}, 400), ({}, 400)),
            [],
            "nobody was missing in one of the histories, and it reports a round",
        ),
        (
            history(({}, 400), (late, 300)),
            [],
            "a client that is named in refused is missing openly, not silently",
        ),
        (
            history(({}, 400), (damaged, 400)),
            [],
            "the bytes of damaged uploads count, so there may be too many",
        ),
        (
            history(({}, 400), ({}, 300), ({}, 400)),
            [2],
            "a round with too few bytes and an empty refused is not found",
        ),
        (
            history((late, 200), ({}, 400)),
            [1],
            "a round in which one is named and one more is missing is not found",
        ),
        (
            history(({}, 300), ({}, 400), (late, 100)),
            [1, 3],
            "not all silent rounds of a history are found, in order",
        ),
    ):
        got = answer(h, 100)
        if not isinstance(got, list):
            return f"a list of rounds is asked for, not {type(got).__name__}"
        if got != want:
            zero = [t - 1 for t in want]
            return (
                "rounds count from 1; take them from the rows" if want and got == zero else reason
            )
    return None


EXERCISES = {"flower-bytes": total, "flower-silent": silent}
