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
