"""Explorers of a formula, computed in the page by Vega, continuously: no runs, no kernel."""

from typing import Any

OWN = [1.3, -0.4, -1.1, 0.6, -1.2, 0.9, -0.7, 1.4, -0.8]  # sums to zero: no common push


def pooled_kernel() -> dict[str, Any]:
    """RPN's pooling of one 3 x 3 residual, r = c * common + (1 - c) * own, under a slider for c."""
    scale = (9 / sum(x * x for x in OWN)) ** 0.5  # both parts have the same energy
    cells = [
        {"panel": panel, "u": k % 3, "v": k // 3, "own": round(own * scale, 4)}
        for panel in range(3)
        for k, own in enumerate(OWN)
    ]
    value = ["c + (1 - c) * datum.own", "c", "(1 - c) * datum.own"]
    names = ["residual", "pooled: one number", "lost"]
    title = "names[datum.panel]"
    axis = {"axis": None, "scale": {"domain": [0, 10.6], "nice": False}}
    high = {"axis": None, "scale": {"domain": [3.9, -0.7], "nice": False, "zero": False}}
    share = "'kept: ' + format(c * c / (c * c + (1 - c) * (1 - c)), '.0%') + ' of the energy'"
    number = {"type": "quantitative"}
    at = {"x": {"field": "mx", **number, **axis}, "y": {"field": "my", **number, **high}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": "container",
        "height": 190,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {"view": {"stroke": None}, "font": "sans-serif"},
        "params": [
            {
                "name": "c",
                "value": 0.3,
                "bind": {
                    "input": "range",
                    "min": 0,
                    "max": 1,
                    "step": 0.02,
                    "name": "share of the common push ",
                },
            },
            {"name": "names", "value": names},
        ],
        "data": {"values": cells},
        "transform": [
            {"calculate": f"[{', '.join(value)}][datum.panel]", "as": "value"},
            {"calculate": "datum.panel * 3.8 + datum.u", "as": "x"},
            {"calculate": "datum.x + 0.94", "as": "x2"},
            {"calculate": "datum.v + 0.94", "as": "v2"},
            {"calculate": "datum.x + 0.47", "as": "mx"},
            {"calculate": "datum.v + 0.5", "as": "my"},
        ],
        "layer": [
            {
                "mark": {"type": "rect", "stroke": "#888"},
                "encoding": {
                    "x": {"field": "x", **number, **axis},
                    "x2": {"field": "x2"},
                    "y": {"field": "v", **number, **high},
                    "y2": {"field": "v2"},
                    "color": {
                        "field": "value",
                        **number,
                        "scale": {"scheme": "purpleorange", "domain": [-2, 2], "reverse": True},
                        "legend": None,
                    },
                },
            },
            {
                "mark": {"type": "text", "fontSize": 12, "color": "#111"},
                "encoding": {**at, "text": {"field": "value", **number, "format": "+.1f"}},
            },
            {
                "transform": [
                    {"filter": "datum.u == 0 && datum.v == 0"},
                    {"calculate": title, "as": "title"},
                    {"calculate": "-0.25", "as": "top"},
                ],
                "mark": {"type": "text", "fontSize": 12, "align": "left", "color": "#7a828e"},
                "encoding": {
                    "x": {"field": "x", **number, **axis},
                    "y": {"field": "top", **number, **high},
                    "text": {"field": "title"},
                },
            },
            {
                "data": {"values": [{}]},
                "mark": {
                    "type": "text",
                    "align": "left",
                    "fontSize": 14,
                    "fontWeight": "bold",
                    "color": "#7a828e",
                    "text": {"expr": share},
                },
                "encoding": {"x": {"datum": 0, **number}, "y": {"datum": 3.5, **number}},
            },
        ],
    }


def kernel_generation(low: float, high: float) -> dict[str, Any]:
    """Fed-KGF's ``w' = sign(w) (|w|^beta + alpha)`` under sliders for w, alpha and beta. Grey:
    where the size of w lies from ``low`` to ``high``."""
    number = {"type": "quantitative"}
    x = {"field": "x", **number, "title": "w", "scale": {"domain": [-0.6, 0.6], "nice": False}}
    y = {"field": "y", **number, "title": "w\u2032", "scale": {"domain": [-0.5, 0.5]}}
    made = "({0} < 0 ? -1 : 1) * (pow(abs({0}), beta) + alpha)"
    at_zero = "abs(w) < 0.001"
    here = f"({at_zero} ? 0 : {made.format('w')})"
    slope = f"({at_zero} ? 0 : beta * pow(abs(w), beta - 1))"
    share = f"({at_zero} ? 0 : pow(abs(w), beta) / (pow(abs(w), beta) + alpha))"
    says = (
        f"['w\u2032 = ' + format({here}, '+.4f') + ', from the power: ' + format({share}, '.1%'), "
        f"'slope: ' + format({slope}, '.2~g') + ', jump at 0: ' + format(2 * alpha, '.2f')]"
    )
    sliders = {  # start, least, greatest, step, name
        "w": (0.1, -0.6, 0.6, 0.01, "base weight w "),
        "alpha": (0.05, 0.005, 0.1, 0.005, "bias \u03b1 "),
        "beta": (4, 2, 10, 0.25, "exponent \u03b2 "),
    }
    dot = {"type": "point", "filled": True, "size": 110, "color": "#D55E00", "opacity": 1}
    tangent = [{"end": -0.15}, {"end": 0.15}]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": "container",
        "height": 260,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {
            "font": "sans-serif",
            "axis": {"labelFontSize": 12, "titleFontSize": 13, "grid": False},
        },
        "params": [
            {
                "name": key,
                "value": start,
                "bind": {"input": "range", "min": a, "max": b, "step": step, "name": name},
            }
            for key, (start, a, b, step, name) in sliders.items()
        ],
        "layer": [
            {
                "data": {"values": [{"x": -high, "x2": -low}, {"x": low, "x2": high}]},
                "mark": {"type": "rect", "color": "#7a828e", "opacity": 0.25},
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
                    "color": "#7a828e",
                    "text": {"expr": says},
                },
                "encoding": {"x": {"value": 6}, "y": {"value": 6}},
            },
        ],
    }
