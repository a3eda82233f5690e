"""Chapter 9, the same methods on Flower: a message on its way, the explorers of what a
round costs there, in bytes and in seconds, and the checks of the exercises."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .. import methods, tasks
from ..core import clients
from ..history import History
from .check import Function, Reasons, number, varied

# seconds between two looks of a SuperNode, and of our part at the server
ASK = 3.0
LOOK = 0.5


def watch_message(
    seconds: Mapping[str, float], guess: float | None = None
) -> dict[str, Any]:
    """Where a message and its answer are in a round of Flower's programs, second by
    second.

        ``seconds`` are those of a round, by engine. To start a program takes what is
        left of the recorded round if the client trains as long as in the loop, where
        two take turns. ``guess`` is the reader's, in seconds."""
    from .vega import (
        AMBER,
        BLUE,
        BOLD,
        DOTTED,
        GREY,
        LASTS,
        ONE,
        WORDS,
        alt,
        layered,
        slider,
    )

    train = seconds["sequential"] / 2
    start = seconds["deployment"] - ASK - LOOK - train
    programs = ["ServerApp", "SuperLink", "SuperNode", "ClientApp"]
    stages = [  # where, from when on, and what happens there
        ("SuperLink", "0", "the message waits for the SuperNode"),
        ("SuperNode", "ask", "a Python program starts for it"),
        ("ClientApp", "ask + start", "the client trains"),
        ("SuperLink", "ask + start + work", "the answer waits for the server"),
        ("ServerApp", "T", "the server has its answer"),
    ]
    places, begins, events = (list(column) for column in zip(*stages, strict=True))
    params: list[dict[str, Any]] = [
        slider("time", "time, % of the round", 0, 0, 100, 1),
        slider("train", "a client trains", round(math.log10(train), 1), -2, 3, 0.1),
        slider("start", "a program starts, s", round(start, 1), 0, 15, 0.1),
        slider("ask", "a SuperNode asks every, s", ASK, 0.5, 30, 0.5),
        {"name": "work", "expr": "pow(10, train)"},
        {"name": "T", "expr": f"ask + start + work + {LOOK}"},
        {"name": "now", "expr": "T * time / 100"},
        {"name": "saysTrain", "expr": LASTS.format("work")},
    ]
    at = " + ".join(
        f"(now > {begin} - 1e-9)" for begin in begins[1:]
    )  # the stage of now
    y = alt.Y("where:N", sort=programs, title=None, scale=alt.Scale(domain=programs))
    x = alt.X(
        "x:Q", title="seconds", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=6)
    )
    rows = [{"where": program, "n": n} for n, program in enumerate(places)]
    times = f"[{', '.join([*begins, 'T'])}]"
    spans = alt.Chart(alt.InlineData(values=rows)).transform_calculate(
        x=f"{times}[datum.n]", x2=f"{times}[datum.n + 1]"
    )
    colour = alt.condition(
        "datum.where == 'ClientApp'", alt.value(BLUE), alt.value(AMBER)
    )
    ends = alt.Chart(
        alt.InlineData(values=[{"where": programs[0], "end": k} for k in (0, 1)])
    )
    dot = alt.Chart(ONE).transform_calculate(x="now", where=f"{places}[{at}]")
    lines = [
        f"format(now, '.1f') + ' s: ' + {events}[{at}]",
        (
            "'a round: ' + format(T, '.1f') + ' s; ' + format(work / T, "
            "'.1~%') + ' of it is training'"
        ),
    ]
    guessed = alt.Chart(ONE).transform_calculate(x=f"{guess or 0}", says="'your guess'")
    layers = [
        spans.mark_bar(height={"band": 0.6}).encode(x, alt.X2("x2"), y, color=colour),
        ends.transform_calculate(x="datum.end * T")
        .mark_tick(thickness=3, color=GREY)
        .encode(x, y),
        dot.mark_rule(color=GREY).encode(x),
        dot.mark_point(
            size=130, filled=True, opacity=1, fill="white", stroke="#1b1f24"
        ).encode(x, y),
    ]
    if guess:
        layers += [
            guessed.mark_rule(**DOTTED, strokeWidth=1.5).encode(x),
            guessed.mark_text(**WORDS, dx=4, baseline="top").encode(
                x, y=alt.value(0), text="says:N"
            ),
        ]
    layers += [
        alt.Chart(ONE)
        .mark_text(**BOLD, text=alt.ExprRef(line))
        .encode(x=alt.value(-70), y=alt.value(-30 + 18 * n))
        for n, line in enumerate(lines)
    ]
    return layered(
        160, params, layers, padding={"top": 34, "left": 5, "right": 5, "bottom": 5}
    )


def engine_rows(seconds: Mapping[str, float]) -> list[dict[str, str]]:
    """A table of the seconds of a round, by where the clients live."""
    places = {"sequential": "one process", "simulation": "worker processes"}
    places["deployment"] = "programs of their own"
    columns = ("clients live in", "seconds", "times the first")
    first = seconds["sequential"]
    each = {place: seconds[engine] for engine, place in places.items()}
    rows = ((place, f"{s:.2f}", f"{s / first:.1f}") for place, s in each.items())
    return [dict(zip(columns, row, strict=True)) for row in rows]


def first_messages(name: str, network: str) -> tuple[int, int]:
    """Bytes down and up of a client's first round; a few images are enough for that."""
    task = tasks.classification("digits", clients=2, train=20, test=10, network=network)
    method = methods.get(name)
    server = method.server_side(task)
    people = clients(method, task)
    down, _ = server.send(1, 0, server.start())
    return len(down), len(people.answer(1, 0, down))


def bars(
    names: Sequence[str], parts: Sequence[int], colours: Sequence[str]
) -> list[Any]:
    """Layers: a bar a name, of parts in this order, and the words of the field ``says``
    behind it.

        Rows have ``method``, ``part``, ``value`` and the bar's ``total``.
    """
    from .vega import WORDS, alt

    y = alt.Y("method:N", sort=list(names), title=None)
    axis = alt.Axis(title=None, grid=True, tickCount=5)
    x = alt.X("value:Q", stack="zero", axis=axis, scale=alt.Scale(domainMin=0))
    scale = alt.Scale(domain=list(parts), range=list(colours))
    last = alt.Chart().transform_filter(f"datum.part == {parts[-1]}")
    return [
        alt.Chart()
        .mark_bar(height={"band": 0.7})
        .encode(
            x, y, alt.Order("part:O"), alt.Color("part:N", scale=scale, legend=None)
        ),
        last.mark_text(**WORDS, dx=5).encode(x="total:Q", y=y, text="says:N"),
        # room for the words at the longest bar
        last.transform_calculate(wide="(width < 420 ? 2.5 : 1.6) * datum.total")
        .mark_point(opacity=0)
        .encode(x="wide:Q", y=y),
    ]


def framed(messages: Mapping[str, float], added: float, hidden: str) -> dict[str, Any]:
    """What share of a message's bytes Flower adds, for each method and for a length of
    one's own.

        ``messages`` has a client's two messages in bytes; Flower adds ``added``.
        ``hidden`` is a method that is not shown before its share was guessed, in
        percent. The length is a power of ten;
        ``saysLength`` says it in words.
    """
    from .vega import AMBER, DOTTED, WORDS, alt, heading, layered, slider, tick

    custom = "your own"
    names = [*messages, custom]
    asked = f"your guess for {hidden}, % "
    params = [
        slider("guess", asked, 10, 0, 100, 1),
        tick("reveal", f"show {hidden}", False),
        slider("bytes", "a length of your own", 4.0, 2, 7, 0.05),
        {"name": "saysLength", "expr": "format(pow(10, bytes), '.2s') + 'B'"},
    ]
    values = [
        {"method": name, "message": b, "added": added, "part": 1}
        for name, b in [*messages.items(), (custom, 0)]
    ]
    message = f"(datum.method == '{custom}' ? pow(10, bytes) : datum.message)"
    shared = (
        alt.Chart(alt.InlineData(values=values))
        .transform_filter(f"datum.method != '{hidden}' || reveal")
        .transform_calculate(
            value=f"100 * datum.added / ({message} + datum.added)",
            total="datum.value",
            says="format(datum.value, '.1f') + ' % of ' + "
            f"format({message} + datum.added, '.3s') + 'B'",
        )
    )
    guessed = (
        alt.Chart()
        .transform_aggregate(n="count()")
        .transform_calculate(asked="guess", says="'your guess: ' + guess + ' %'")
    )
    layers = [
        *bars(names, [1], [AMBER]),
        guessed.mark_rule(**DOTTED, strokeWidth=1.5).encode(x="asked:Q"),
        guessed.mark_text(**WORDS, dx=4, baseline="bottom").encode(
            x="asked:Q", y=alt.value(0), text="says:N"
        ),
    ]
    title = heading("") | {"text": "added by Flower, % of all bytes of a message"}
    return layered(30 * len(names), params, layers, shared, title=title)


def carried(
    messages: Mapping[tuple[str, str], float], added: float, rest: float, network: str
) -> dict[str, Any]:
    """Seconds of one round on Flower, for each method and a choice of networks.

    ``messages`` has a client's two messages in bytes, by network and method; Flower
    adds ``added``. A round lasts ``rest`` seconds and as long as the slower of two
    links is busy: the client's, with its own messages, and the server's, with all of
    them. A spot on the bar says how long each is. Both are powers of ten in Mbit/s;
    ``saysLink`` and ``saysServer`` say them in words.
    """
    from .vega import AMBER, BLUE, SPEED, alt, choice, heading, layered, slider

    networks, names = (
        list(dict.fromkeys(column)) for column in zip(*messages, strict=True)
    )
    params = [
        choice("network", "network", networks, network),
        slider("clients", "clients", 10, 2, 200, 2),
        slider("link", "a client's link", 0, -1, 3, 0.1),
        slider("server", "the server's link", 1.5, 0, 4, 0.1),
        {"name": "saysLink", "expr": SPEED.format("link")},
        {"name": "saysServer", "expr": SPEED.format("server")},
    ]
    mega = "8e-6 * (datum.message + datum.added)"  # Mbit of a client
    values = [
        {"network": net, "method": name, "message": b, "added": added, "part": part}
        for (net, name), b in messages.items()
        for part in (0, 1)
    ]
    shared = (
        alt.Chart(alt.InlineData(values=values))
        .transform_filter("datum.network == network")
        .transform_calculate(
            own=f"{mega} * pow(10, -link)",
            all=f"{mega} * clients * pow(10, -server)",
            busy="max(datum.own, datum.all)",
            value=f"datum.part ? {rest:.6g} : datum.busy",
            total=f"datum.busy + {rest:.6g}",
            says="format(datum.total, '.3~r') + ' s, ' + format(datum.busy / "
            "datum.total, '.0%') + "
            "' link, ' + format(clients * (datum.message + datum.added) / "
            "1e6, '.3~r') + ' MB'",
        )
    )
    y = alt.Y("method:N", sort=names, title=None)
    look = {
        "size": 70,
        "filled": True,
        "opacity": 1,
        "fill": "white",
        "stroke": "#1b1f24",
    }
    look |= {"strokeWidth": 1.2}
    spots = [  # where a link is done
        alt.Chart()
        .transform_filter("datum.part == 1")
        .mark_point(**look, shape=shape)
        .encode(x=f"{field}:Q", y=y)
        for field, shape in (("own", "circle"), ("all", "square"))
    ]
    lines = [
        "seconds of a round",
        "blue: a link is busy, orange: the rest",
        "circle: a client's link is done, square: the server's",
    ]
    layers = [*bars(names, [0, 1], [BLUE, AMBER]), *spots]
    return layered(40 * len(names), params, layers, shared, title=heading(lines))


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
    return number(
        training + greetings,
        {
            training: "the greetings are missing",
            training
            + drawn * greeting: "everybody is greeted, also who is never drawn",
            training
            + rounds * greetings: "a client is greeted once, not in every round",
            training
            + uploads * greeting: "a client is greeted once, not each time it is drawn",
            plain: "these are our bytes; what Flower adds is missing",
            plain
            + greetings: "what Flower adds to the messages of the rounds is missing",
            uploads * (message + added_up) + greetings: "the downloads are missing",
            uploads * (message + added_down) + greetings: "the uploads are missing",
            training * clients // drawn
            + greetings: "only a fifth of the clients takes part in a round",
            8 * (training + greetings): "these are bits",
        },
    )


# of a round: who was refused, and how many bytes came
GOOD = ({}, 400)
FEW = ({}, 300)
LATE = {2: "No answer within 60 s."}
DAMAGED = {1: "The checksum does not fit: the message was altered or cut."}
SILENT: dict[
    str, tuple[list[Any], list[int]]
] = {  # rounds of four clients, and the silent ones
    "nobody was missing in one of the histories, and it reports a round": (
        [GOOD, GOOD],
        [],
    ),
    "a client that is named in refused is missing openly, not silently": (
        [GOOD, (LATE, 300)],
        [],
    ),
    "the bytes of damaged uploads count, so there may be too many": (
        [GOOD, (DAMAGED, 400)],
        [],
    ),
    "a round with too few bytes and an empty refused is not found": (
        [GOOD, FEW, GOOD],
        [2],
    ),
    "a round in which one is named and one more is missing is not found": (
        [(LATE, 200), GOOD],
        [1],
    ),
    "not all silent rounds of a history are found, in order": (
        [FEW, GOOD, (LATE, 100)],
        [1, 3],
    ),
}


def silent(answer: Function) -> Reasons:
    """answer(history, size) -> the rounds in which fewer uploads came than the row
    claims."""
    for reason, (rounds, right) in SILENT.items():
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
