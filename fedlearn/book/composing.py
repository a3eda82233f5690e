"""What the chapter on composing shows of the grid of mixes (``fedlearn.book.mixes``): the best rate
of each mix, Pareto fronts, why two parts are refused, and the chart in which menus choose a mix."""

import csv
import io
import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ..context import in_words, provides
from ..plot import COLOURS
from .mixes import KINDS, RATES, ROUNDS, SPLITS, Mix, choices, methods_by_mix, mixtures
from .vega import GREY, NUMBER, choice, frame, slider, tick

if TYPE_CHECKING:
    import pandas

START: Mix = ("fed_kgf", "fedmmd", "fedpm", "eden, 2 bits", "stc", "stc")
EVERY = "every part"
DRAWN = (*KINDS, "split", "method", "accuracy", "bytes", "rate")  # columns of the chart's data


def said(mix: Sequence[str]) -> str:
    """A mix in words: the parts that are not FedAvg's, or the method that it is."""
    if tuple(mix) in methods_by_mix():
        return methods_by_mix()[tuple(mix)]
    own = [f"{k} of {n}" for k, n in zip(KINDS, mix, strict=True) if n != "fedavg"]
    return "; ".join(own)


Rule = tuple[str, list[str], str, list[tuple[str, str]]]


@cache
def rules() -> list[Rule]:
    """What parts need of others: kind, the parts of it that need it, what it is in words, and
    (kind, part) of all that give it."""
    every = [(kind, name, part) for kind in KINDS for name, part in choices(kind).items()]
    found: dict[tuple[str, Any], list[str]] = {}
    for kind, name, part in every:
        for need in part.needs:
            found.setdefault((kind, need), []).append(name)
    made: list[Rule] = []
    for (kind, need), names in sorted(found.items(), key=repr):
        givers = [(k, n) for k, n, part in every if k != kind and provides(part.given(), need)]
        what = in_words(need)
        if len(givers) == 1:
            what = "the {} of {}".format(*givers[0])
        made.append((kind, names, what, givers))
    return made


def refusal(mix: Sequence[str]) -> str | None:
    """Why a mix cannot be built, in one sentence; None if it can."""
    chosen = dict(zip(KINDS, mix, strict=True))
    for kind, names, what, givers in rules():
        if chosen[kind] in names and not any(chosen[k] == n for k, n in givers):
            return f"The {kind} of {chosen[kind]} needs {what}."
    return None


def _refused() -> str:
    """``refusal`` of the menus as a Vega expression; an empty string if there is none."""
    text = "''"
    for kind, names, what, givers in reversed(rules()):
        kinds = {k: [n for other, n in givers if other == k] for k, _ in givers}
        given = " || ".join(f"indexof({json.dumps(its)}, {k}) >= 0" for k, its in kinds.items())
        unmet = f"indexof({json.dumps(names)}, {kind}) >= 0 && !({given})"
        says = f"'Refused: the {kind} of ' + {kind} + '\\nneeds {what}.'"
        text = f"({unmet} ? {says} : {text})"
    return text


def _flags() -> list[dict[str, Any]]:
    """The transforms that all layers share: which points are chosen, parents or kept by the filter,
    and which lie on the front of all and of those kept."""
    kinds = list(KINDS)
    same = " && ".join(f"datum.{k} == {k}" for k in kinds)
    swapped = " && ".join(f"(datum.{k} == 'fedavg' || datum.{k} == {k})" for k in kinds)
    count = " + ".join(f"(datum.{k} != 'fedavg')" for k in kinds)
    listed = ", ".join(f"'{k}: ' + datum.{k}" for k in kinds)
    base = "(datum.method == 'fedavg')"
    made = {
        "chosen": f"({same}) ? 1 : 0",
        "swap": f"!datum.chosen && ({swapped}) && ({count}) == 1",
        "source": f"!datum.chosen && indexof([{', '.join(kinds)}, 'fedavg'], datum.method) >= 0",
        "kept": f"part == '{EVERY}' || indexof([{listed}], part) >= 0 ? 1 : 0",
        "at": "datum.chosen ? datum.bytes : 0",
        "own": "datum.chosen ? datum.accuracy : 0",
        "base": f"{base} ? datum.bytes : 0",
        "level": f"{base} ? datum.accuracy : 0",
    }
    order = [{"field": "bytes"}, {"field": "accuracy", "order": "descending"}]
    several = ("at", "own", "base", "level")

    def highest(*fields: str) -> dict[str, Any]:
        return {"joinaggregate": [{"op": "max", "field": f, "as": f} for f in fields]}

    def before(field: str, name: str) -> list[dict[str, Any]]:
        """The highest value of the rows before (Vega takes a frame of [null, -1] for [null, 1])."""
        so_far = {"op": "max", "field": field, "as": f"{name}Too"}
        last = {"op": "lag", "field": f"{name}Too", "as": name}
        return [
            {"window": [so_far], "sort": order, "frame": [None, 0]},
            {"window": [last], "sort": order},
        ]

    return [
        {"filter": "datum.split == dealt"},
        *({"calculate": text, "as": name} for name, text in made.items()),
        highest(*several),
        {"calculate": "datum.bytes <= datum.at ? datum.accuracy : 0", "as": "rival"},
        {
            "calculate": "100 * datum.bytes <= guess * datum.base ? datum.accuracy : 0",
            "as": "within",
        },
        highest("rival", "within"),
        {"calculate": "datum.kept ? datum.accuracy : -1", "as": "left"},
        *before("accuracy", "cheaper"),
        *before("left", "keptCheaper"),
        {"calculate": "!(datum.accuracy <= datum.cheaper)", "as": "front"},
        {"calculate": "datum.kept && !(datum.accuracy <= datum.keptCheaper)", "as": "keptFront"},
    ]


def mixing(guess: float | None = None, table: "pandas.DataFrame | None" = None) -> dict[str, Any]:
    """Accuracy against the bytes of one client for all mixes of a split: six menus choose one,
    which lights up beside its parents and the Pareto front. ``guess``: per cent of FedAvg's bytes,
    a line; without it FedAvg is alone until the reader asks for the mixes."""
    table = mixtures() if table is None else table
    text = io.StringIO()
    shown = table[list(DRAWN)].assign(bytes=(table["bytes"] / 1000).round(1))
    csv.writer(text, lineterminator="\n").writerows([DRAWN, *shown.itertuples(index=False)])
    numbers = dict.fromkeys(("accuracy", "bytes", "rate"), "number")
    there = [f"{k}: {n}" for k in KINDS for n in choices(k) if n in set(table[k])]
    x = {"field": "bytes", **NUMBER, "title": f"kB of one client, up and down, {ROUNDS} rounds"}
    x |= {"scale": {"type": "log", "nice": False, "padding": 12}, "axis": {"format": "~s"}}
    x["scale"] |= {"domain": [float(shown["bytes"].min()), float(shown["bytes"].max())]}
    x["axis"] |= {"values": [10, 20, 50, 100, 200, 500, 1000, 2000, 5000]}
    ends = {"domainMin": {"expr": "low"}, "domainMax": {"expr": "low + 1.27 * (1 - low)"}}
    y = {"field": "accuracy", **NUMBER, "title": f"accuracy after {ROUNDS} rounds"}
    y |= {"scale": {**ends, "nice": False, "zero": False}}
    y["axis"] = {"labelExpr": "datum.value > 1.001 ? '' : datum.label", "tickCount": 8}
    tips: list[dict[str, Any]] = [{"field": k} for k in KINDS]
    tips += [
        {"field": "accuracy", **NUMBER, "format": ".3f"},
        {"field": "bytes", **NUMBER, "title": "kB", "format": ",.0f"},
        {"field": "rate", "title": f"best of rates {', '.join(f'{r:g}' for r in RATES)}"},
    ]
    place = {"x": x, "y": y}

    def points(where: str, shape: str, size: int, colour: Any, **more: Any) -> dict[str, Any]:
        mark = {"type": "point", "shape": shape, "size": size, "filled": True, "clip": True}
        mark |= {"aria": shape == "circle"}  # which every point has; the others may be empty
        look = {"color": colour, **({"opacity": {"value": 1}} | more)}
        return {
            "transform": [{"filter": where}],
            "mark": mark,
            "encoding": {**place, "tooltip": tips, **look},
        }

    def line(where: str, colour: str, dash: list[int]) -> dict[str, Any]:
        # the words beside it say it; empty, it would have no name to be read out
        mark = {"type": "line", "interpolate": "step-after", "color": colour, "clip": True}
        mark |= {"aria": False}
        return {
            "transform": [{"filter": where}],
            "mark": mark | {"strokeDash": dash, "strokeWidth": 2},
            "encoding": {**place, "order": {"field": "bytes", **NUMBER}},
        }

    only = {"filter": "datum.method == 'fedavg'"}  # a row of each split
    words = {"type": "text", "align": "left", "fontSize": 12, "color": GREY, "clip": True}
    edge = float(shown["bytes"].quantile(0.5))

    def names(where: str, align: str, dx: int, dy: int = 9) -> dict[str, Any]:
        return {
            "transform": [{"filter": f"datum.source && {where}"}],
            "mark": {**words, "align": align, "dx": dx, "dy": dy, "fontSize": 11},
            "encoding": {**place, "text": {"field": "method"}},
        }

    last = "(datum.rival > datum.own ? 'best for no more bytes: ' + format(datum.rival, '.3f')"
    last += " : 'none is as good for fewer bytes')"
    share = "format(100 * datum.at / datum.base, '.3~g') + '% of its bytes'"
    own = f"'chosen ' + format(datum.own, '.3f') + ' for ' + {share} + '\\n' + {last}"
    missing = (
        f"({_refused()} || 'Not trained: it can be built, but is none\\nof the grid\\'s mixes')"
    )
    says = (
        "'FedAvg ' + format(datum.level, '.3f') + (!reveal ? '; your guess: ' + guess"
        " + '% of its bytes' : '; for at most ' + guess + '% of its bytes '"
        f" + format(datum.within, '.3f') + '\\n' + (datum.at ? {own} : {missing}))"
    )
    params = [
        slider(
            "guess", "your guess, % of FedAvg's bytes", 50 if guess is None else guess, 1, 100, 1
        ),
        tick("reveal", "show the mixes", guess is not None),
        choice("dealt", "split", SPLITS, SPLITS[1]),
        *(choice(k, k, list(choices(k)), n, "select") for k, n in zip(KINDS, START, strict=True)),
        choice("part", "show", [EVERY, *there], EVERY, "select"),
        slider("low", "lowest accuracy shown", 0.5, 0, 0.9, 0.1),
    ]
    return frame(
        430,
        params,
        data={"values": text.getvalue(), "format": {"type": "csv", "parse": numbers}},
        transform=[{"filter": "reveal || datum.method == 'fedavg'"}, *_flags()],
        layer=[
            points(
                "datum.kept == 0 || datum.kept == 1",
                "circle",
                24,
                {"condition": {"test": "datum.kept", "value": COLOURS[0]}, "value": GREY},
                opacity={"condition": {"test": "datum.kept", "value": 0.55}, "value": 0.2},
            ),
            line("datum.front", COLOURS[2], [1, 0]),
            line(f"part != '{EVERY}' && datum.keptFront", COLOURS[0], [5, 3]),
            points("datum.swap", "triangle-up", 110, {"value": COLOURS[3]}),
            points("datum.source", "square", 90, {"value": COLOURS[4]}),
            points("datum.chosen", "diamond", 240, {"value": COLOURS[1]}),
            names(f"datum.bytes <= {edge}", "left", 7),
            names(f"datum.bytes > {edge} && datum.method != 'fedavg'", "right", -7),
            names("datum.method == 'fedavg'", "left", 7, -10),
            {
                "transform": [only, {"calculate": "guess * datum.base / 100", "as": "bytes"}],
                "mark": {"type": "rule", "strokeDash": [2, 3], "color": GREY, "clip": True},
                "encoding": {"x": x},
            },
            {
                "transform": [only, {"calculate": says, "as": "says"}],
                "mark": {**words, "baseline": "top", "fontWeight": "bold", "lineBreak": "\n"}
                | {"lineHeight": 17},
                "encoding": {"x": {"value": 8}, "y": {"value": 6}, "text": {"field": "says"}},
            },
        ],
    )
