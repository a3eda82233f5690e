"""What all coders lose of real updates, for the chapter on sending less."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..plot import COLOURS
from .vega import GREY, NUMBER, choice, frame, slider


def errors(measured: Sequence[Mapping[str, Any]], one: str, other: str) -> dict[str, Any]:
    """Relative error against bits an entry, both logarithmic: all coders in grey, two in colour,
    and 4^-bits, the least for independent normal entries.

    ``measured``: rows of ``coder``, ``setting``, ``round`` (powers of 10^(1/2), rounded to 1 or 3
    times a power of ten), ``bits`` and ``error``; what loses nothing is left out. ``one`` and
    ``other`` are in colour at first.
    """
    rows = [
        dict(row) | {"e": round(2 * math.log10(row["round"])) / 2}
        for row in measured
        if row["error"] > 0
    ]
    coders = list(dict.fromkeys(row["coder"] for row in rows))
    number = "format(floor(pow(10, e) / pow(10, floor(e))) * pow(10, floor(e)), 'd')"
    params = [
        slider("e", "round", 0, 0, 2, 0.5),
        choice("one", "blue", coders, one, "select"),
        choice("other", "orange", coders, other, "select"),
        {"name": "saysRound", "expr": number},
    ]
    log: dict[str, Any] = {"type": "log", "nice": False}
    x = {
        "field": "bits",
        **NUMBER,
        "title": "bits an entry",
        "scale": log | {"domain": [0.03, 40]},
        "axis": {"values": [0.1, 0.3, 1, 2, 4, 8, 32]},
    }
    y = {
        "field": "error",
        **NUMBER,
        "title": "relative error",
        "scale": log | {"domain": [2e-5, 3000]},
        "axis": {"values": [1e-4, 1e-3, 0.01, 0.1, 1, 10, 100, 1000], "format": "~r"},
    }
    tooltip = [
        {"field": "coder", "title": "coder"},
        {"field": "setting", "title": "setting"},
        {"field": "bits", "title": "bits an entry", "format": ".3f"},
        {"field": "error", "title": "relative error", "format": ".3~g"},
    ]
    there = {"filter": "abs(datum.e - e) < 0.1"}
    chosen = {"filter": "datum.coder == one || datum.coder == other"}
    blue = {"test": "datum.coder == one", "value": COLOURS[0]}
    ends = {"aggregate": [{"op": "argmin", "field": "bits", "as": "end"}], "groupby": ["coder"]}
    path = {"x": x, "y": y, "detail": {"field": "coder"}, "order": {"field": "bits"}}
    thin: dict[str, Any] = {"type": "line", "strokeWidth": 1, "color": GREY, "clip": True}
    layer: list[dict[str, Any]] = [
        {
            "data": {"sequence": {"start": 0, "stop": 8.01, "step": 0.05, "as": "bits"}},
            "transform": [
                {"filter": "datum.bits > 0.03"},
                {"calculate": "pow(4, -datum.bits)", "as": "error"},
            ],
            "mark": {"type": "line", "strokeDash": [2, 3], "color": GREY, "clip": True},
            "encoding": {"x": x, "y": y},
        },
        {
            "transform": [there],
            "mark": thin | {"opacity": 0.5, "point": {"color": GREY, "size": 16}},
            "encoding": path | {"tooltip": tooltip},
        },
        {
            "transform": [there, chosen],
            "mark": {"type": "line", "strokeWidth": 2, "clip": True},
            "encoding": path
            | {
                "color": {"condition": blue, "value": COLOURS[1]},
                "strokeDash": {
                    "condition": {"test": "datum.coder == one", "value": [1, 0]},
                    "value": [6, 3],
                },
            },
        },
        {
            "transform": [there, chosen],
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1, "clip": True},
            "encoding": {
                "x": x,
                "y": y,
                "color": {"condition": blue, "value": COLOURS[1]},
                "shape": {
                    "condition": {"test": "datum.coder == one", "value": "circle"},
                    "value": "square",
                },
                "tooltip": tooltip,
            },
        },
        {
            "transform": [
                there,
                chosen,
                ends,
                {"calculate": "datum.end.bits", "as": "bits"},
                {"calculate": "datum.end.error", "as": "error"},
            ],
            "mark": {"type": "text", "align": "left", "dy": -12, "fontSize": 13},
            "encoding": {
                "x": x,
                "y": y,
                "text": {"field": "coder"},
                "color": {"condition": blue, "value": COLOURS[1]},
            },
        },
    ]
    title = {"text": {"expr": "'round ' + saysRound"}, "anchor": "start", "offset": 8}
    title |= {"fontSize": 13, "color": GREY}
    return frame(320, params, grid=False, data={"values": rows}, layer=layer, title=title)
