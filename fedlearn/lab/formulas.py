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


def round_time() -> dict[str, Any]:
    """One round of one client in seconds: 32 bits a parameter down, E epochs, 32 bits up."""
    sliders = [
        ("size", "parameters, million", 1, 0.2, 30, 0.2),
        ("fast", "link down, Mbit/s", 20, 2, 100, 2),
        ("slow", "link up, Mbit/s", 5, 1, 50, 1),
        ("work", "seconds a local epoch", 4, 0, 60, 1),
        ("epochs", "local epochs", 1, 1, 20, 1),
    ]
    grey, number = "#7a828e", {"type": "quantitative"}
    whole = "(32 * size / fast + 32 * size / slow + work * epochs)"
    said = (
        f"'one round: ' + format({whole}, '.1f') + ' s, of which ' + "
        f"format(1 - work * epochs / {whole}, '.0%') + ' on the link'"
    )
    parts = ["download", "training", "upload"]
    y = {"field": "part", "type": "nominal", "sort": parts, "title": None}
    x = {"field": "seconds", **number, "title": "seconds", "scale": {"domainMin": 0}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": "container",
        "height": 150,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {"font": "sans-serif", "axis": {"labelFontSize": 12, "titleFontSize": 12}},
        "title": {"text": {"expr": said}, "anchor": "start", "fontSize": 14, "color": grey},
        "params": [
            {
                "name": name,
                "value": start,
                "bind": {
                    "input": "range",
                    "min": low,
                    "max": high,
                    "step": step,
                    "name": f"{its} ",
                },
            }
            for name, its, start, low, high, step in sliders
        ],
        "data": {"values": [{"part": part, "k": k} for k, part in enumerate(parts)]},
        "transform": [
            {
                "calculate": "[32 * size / fast, work * epochs, 32 * size / slow][datum.k]",
                "as": "seconds",
            }
        ],
        "layer": [
            {
                "mark": {"type": "bar", "height": 26},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": {
                        "field": "part",
                        "type": "nominal",
                        "scale": {"domain": parts, "range": ["#0072B2", grey, "#D55E00"]},
                        "legend": None,
                    },
                },
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 12, "color": grey},
                "encoding": {"x": x, "y": y, "text": {"field": "seconds", "format": ".1f"}},
            },
        ],
    }
