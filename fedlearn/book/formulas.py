"""Explorers of a formula, computed in the page by Vega, continuously: no runs, no kernel."""

from collections.abc import Sequence
from typing import Any

from .vega import GREY, NUMBER, frame, slider


def round_time() -> dict[str, Any]:
    """One round of one client in seconds: 32 bits a parameter down, E epochs, 32 bits up."""
    params = [
        slider("size", "parameters, million", 1, 0.2, 30, 0.2),
        slider("fast", "link down, Mbit/s", 20, 2, 100, 2),
        slider("slow", "link up, Mbit/s", 5, 1, 50, 1),
        slider("work", "seconds a local epoch", 4, 0, 60, 1),
        slider("epochs", "local epochs", 1, 1, 20, 1),
    ]
    whole = "(32 * size / fast + 32 * size / slow + work * epochs)"
    said = (
        f"'one round: ' + format({whole}, '.1f') + ' s, of which ' + "
        f"format(1 - work * epochs / {whole}, '.0%') + ' on the link'"
    )
    parts = ["download", "training", "upload"]
    y = {"field": "part", "type": "nominal", "sort": parts, "title": None}
    x = {"field": "seconds", **NUMBER, "title": "seconds", "scale": {"domainMin": 0}}
    return frame(
        150,
        params,
        title={"text": {"expr": said}, "anchor": "start", "fontSize": 14, "color": GREY},
        data={"values": [{"part": part, "k": k} for k, part in enumerate(parts)]},
        transform=[
            {
                "calculate": "[32 * size / fast, work * epochs, 32 * size / slow][datum.k]",
                "as": "seconds",
            }
        ],
        layer=[
            {
                "mark": {"type": "bar", "height": 26},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": {
                        "field": "part",
                        "type": "nominal",
                        "scale": {"domain": parts, "range": ["#0072B2", GREY, "#D55E00"]},
                        "legend": None,
                    },
                },
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 12, "color": GREY},
                "encoding": {"x": x, "y": y, "text": {"field": "seconds", "format": ".1f"}},
            },
        ],
    )


def soft_labels(logits: Sequence[Sequence[float]], truth: Sequence[int]) -> dict[str, Any]:
    """softmax(z / T) of a few images' logits [n, classes] under a slider for T, surest first; the
    bars of the classes in ``truth`` stand out."""
    bars = [
        {"panel": k, "class": c, "z": round(float(v), 4), "true": int(c == truth[k])}
        for k, z in enumerate(logits)
        for c, v in enumerate(z)
    ]
    apart, last = len(logits[0]) + 1.5, len(logits) - 1
    wide = {"axis": None, "scale": {"domain": [-0.3, apart * len(logits) - 1], "nice": False}}
    high = {"scale": {"domain": [-0.14, 1.16], "nice": False}, "title": "soft label"}
    axis = {"values": [0, 0.5, 1], "grid": True}
    words = {"type": "text", "fontSize": 12, "color": GREY}
    kinds = ["surest", *["middle"] * (last - 1), "least sure"]
    titles = [f"a {y}: {kind}" for y, kind in zip(truth, kinds, strict=False)]
    return frame(
        220,
        [slider("T", "temperature T", 3, 0.1, 30, 0.1), {"name": "titles", "value": titles}],
        data={"values": bars},
        transform=[
            {"joinaggregate": [{"op": "max", "field": "z", "as": "top"}], "groupby": ["panel"]},
            {"calculate": "exp((datum.z - datum.top) / T)", "as": "e"},
            {"joinaggregate": [{"op": "sum", "field": "e", "as": "all"}], "groupby": ["panel"]},
            {"calculate": "datum.e / datum.all", "as": "p"},
            {"calculate": f"datum.panel * {apart} + datum.class", "as": "x"},
            {"calculate": "datum.x + 0.8", "as": "right"},
            {"calculate": "datum.x + 0.4", "as": "middle"},
            {"calculate": "0", "as": "floor"},
            {"calculate": "-0.07", "as": "below"},
            {"calculate": "1.09", "as": "above"},
            {"calculate": "titles[datum.panel]", "as": "title"},
        ],
        layer=[
            {
                "mark": "rect",
                "encoding": {
                    "x": {"field": "x", **NUMBER, **wide},
                    "x2": {"field": "right"},
                    "y": {"field": "p", **NUMBER, **high, "axis": axis},
                    "y2": {"field": "floor"},
                    "color": {
                        "condition": {"test": "datum.true == 1", "value": "#0072B2"},
                        "value": "#9aa4b2",
                    },
                    "tooltip": [
                        {"field": "class"},
                        {"field": "p", "title": "soft label", "format": ".3f"},
                    ],
                },
            },
            {
                "mark": words,
                "encoding": {
                    "x": {"field": "middle", **NUMBER, **wide},
                    "y": {"field": "below", **NUMBER, **high},
                    "text": {"field": "class"},
                },
            },
            {
                "transform": [{"filter": "datum.class == 0"}],
                "mark": {**words, "align": "left", "fontWeight": "bold"},
                "encoding": {
                    "x": {"field": "x", **NUMBER, **wide},
                    "y": {"field": "above", **NUMBER, **high},
                    "text": {"field": "title"},
                },
            },
        ],
    )


def kernel_generation(low: float, high: float) -> dict[str, Any]:
    """Fed-KGF's ``w' = sign(w) (|w|^beta + alpha)`` under sliders for w, alpha and beta. Grey:
    where the size of w lies from ``low`` to ``high``."""
    x = {"field": "x", **NUMBER, "title": "w", "scale": {"domain": [-0.6, 0.6], "nice": False}}
    y = {"field": "y", **NUMBER, "title": "w\u2032", "scale": {"domain": [-0.5, 0.5]}}
    made = "({0} < 0 ? -1 : 1) * (pow(abs({0}), beta) + alpha)"
    at_zero = "abs(w) < 0.001"
    here = f"({at_zero} ? 0 : {made.format('w')})"
    slope = f"({at_zero} ? 0 : beta * pow(abs(w), beta - 1))"
    share = f"({at_zero} ? 0 : pow(abs(w), beta) / (pow(abs(w), beta) + alpha))"
    says = (
        f"['w\u2032 = ' + format({here}, '+.4f') + ', from the power: ' + format({share}, '.1%'), "
        f"'slope: ' + format({slope}, '.2~g') + ', jump at 0: ' + format(2 * alpha, '.2f')]"
    )
    dot = {"type": "point", "filled": True, "size": 110, "color": "#D55E00", "opacity": 1}
    tangent = [{"end": -0.15}, {"end": 0.15}]
    return frame(
        260,
        [
            slider("w", "base weight w", 0.1, -0.6, 0.6, 0.01),
            slider("alpha", "bias \u03b1", 0.05, 0.005, 0.1, 0.005),
            slider("beta", "exponent \u03b2", 4, 2, 10, 0.25),
        ],
        grid=False,
        layer=[
            {
                "data": {"values": [{"x": -high, "x2": -low}, {"x": low, "x2": high}]},
                "mark": {"type": "rect", "color": GREY, "opacity": 0.25},
                "encoding": {"x": x, "x2": {"field": "x2"}},
            },
            {  # 0 itself is between two points
                "data": {"sequence": {"start": -0.5975, "stop": 0.5985, "step": 0.005, "as": "x"}},
                "transform": [
                    {"calculate": made.format("datum.x"), "as": "y"},
                    {"calculate": "datum.x < 0 ? 'left' : 'right'", "as": "half"},
                ],
                "mark": {"type": "line", "color": "#0072B2", "strokeWidth": 2.5},
                "encoding": {"x": x, "y": y, "detail": {"field": "half"}},
            },
            {
                "data": {"values": tangent},
                "transform": [
                    {"calculate": "w + datum.end", "as": "x"},
                    {"calculate": f"{here} + {slope} * datum.end", "as": "y"},
                ],
                "mark": {"type": "line", "color": "#D55E00", "strokeDash": [5, 3], "clip": True},
                "encoding": {"x": x, "y": y},
            },
            {
                "data": {"values": [{}]},
                "transform": [{"calculate": "w", "as": "x"}, {"calculate": here, "as": "y"}],
                "mark": dot,
                "encoding": {"x": x, "y": y},
            },
            {
                "data": {"values": [{}]},
                "mark": {
                    "type": "text",
                    "align": "left",
                    "baseline": "top",
                    "fontSize": 13,
                    "lineHeight": 18,
                    "fontWeight": "bold",
                    "color": GREY,
                    "text": {"expr": says},
                },
                "encoding": {"x": {"value": 6}, "y": {"value": 6}},
            },
        ],
    )
