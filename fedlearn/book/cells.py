"""Explorers of 3 x 3 kernels, computed in the page by Vega: panels of nine cells under sliders."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from ..plot import SIGNED
from .vega import GREY, NUMBER, frame, slider, tick

OWN = [1.3, -0.4, -1.1, 0.6, -1.2, 0.9, -0.7, 1.4, -0.8]  # sums to zero: no common push
SHADES = 11  # of a colour map, between which Vega mixes


def panels(
    names: list[str],
    value: str,
    said: list[str],
    params: list[dict[str, Any]],
    colours: dict[str, Any],
    form: str = "+.1f",
    ink: Any = "#111",
    own: tuple[float, ...] = (0,) * 9,
) -> dict[str, Any]:
    """A panel of nine cells for each of ``names``.

    ``value`` is a Vega expression of a cell's ``datum.panel``, ``datum.u`` (column), ``datum.v``
    (row) and ``datum.own``, its entry of ``own``. ``said`` are expressions of the lines below.
    """
    cells = [
        {"panel": panel, "u": k % 3, "v": k // 3, "own": its}
        for panel in range(len(names))
        for k, its in enumerate(own)
    ]
    wide = {"axis": None, "scale": {"domain": [0, 3.8 * len(names) - 0.8], "nice": False}}
    low = 3.4 + 0.5 * len(said)
    high = {"axis": None, "scale": {"domain": [low, -0.7], "nice": False, "zero": False}}
    x, y = {"field": "x", **NUMBER, **wide}, {"field": "v", **NUMBER, **high}
    words = {"type": "text", "align": "left", "fontSize": 12, "color": GREY}
    return frame(
        round(190 / 4.6 * (low + 0.7)),
        [*params, {"name": "names", "value": names}],
        view={"stroke": None},
        data={"values": cells},
        transform=[
            {"calculate": value, "as": "value"},
            {"calculate": "datum.panel * 3.8 + datum.u", "as": "x"},
            {"calculate": "datum.x + 0.94", "as": "x2"},
            {"calculate": "datum.v + 0.94", "as": "v2"},
            {"calculate": "datum.x + 0.47", "as": "mx"},
            {"calculate": "datum.v + 0.5", "as": "my"},
        ],
        layer=[
            {
                "mark": {"type": "rect", "stroke": "#888"},
                "encoding": {
                    "x": x,
                    "x2": {"field": "x2"},
                    "y": y,
                    "y2": {"field": "v2"},
                    "color": {"field": "value", **NUMBER, "scale": colours, "legend": None},
                },
            },
            {
                "mark": {"type": "text", "fontSize": 12},
                "encoding": {
                    "x": x | {"field": "mx"},
                    "y": y | {"field": "my"},
                    "text": {"field": "value", **NUMBER, "format": form},
                    "color": ink if isinstance(ink, dict) else {"value": ink},
                },
            },
            {
                "transform": [
                    {"filter": "datum.u == 0 && datum.v == 0"},
                    {"calculate": "names[datum.panel]", "as": "title"},
                    {"calculate": "-0.25", "as": "top"},
                ],
                "mark": words,
                "encoding": {"x": x, "y": y | {"field": "top"}, "text": {"field": "title"}},
            },
            *(
                {
                    "data": {"values": [{}]},
                    "mark": {**words, "fontSize": 14, "fontWeight": "bold", "text": {"expr": line}},
                    "encoding": {
                        "x": {"datum": 0, **NUMBER},
                        "y": {"datum": 3.5 + 0.5 * k, **NUMBER},
                    },
                }
                for k, line in enumerate(said)
            ),
        ],
    )


def pooled_kernel() -> dict[str, Any]:
    """RPN's pooling of one 3 x 3 residual, r = c * common + (1 - c) * own, under a slider for c."""
    scale = (9 / sum(x * x for x in OWN)) ** 0.5  # both parts have the same energy
    return panels(
        ["residual", "pooled: one number", "lost"],
        "[c + (1 - c) * datum.own, c, (1 - c) * datum.own][datum.panel]",
        ["'kept: ' + format(c * c / (c * c + (1 - c) * (1 - c)), '.0%') + ' of the energy'"],
        [slider("c", "share of the common push", 0.3, 0, 1, 0.02)],
        {
            "interpolate": "rgb",
            "domain": np.linspace(-2, 2, SHADES).round(1).tolist(),
            "range": [to_hex(c) for c in colormaps[SIGNED](np.linspace(0, 1, SHADES))],
        },
        own=tuple(round(x * scale, 4) for x in OWN),
    )


def gradient_multiplier() -> dict[str, Any]:
    """FedRepOpt's M of one kernel, from a channel to itself and to another, beside the scalar that
    the paper prints, under sliders for s_3 and s_1."""
    middle = "(datum.u == 1 && datum.v == 1)"
    copied = f"({middle} && datum.panel == 0 && copies ? 1 : 0)"
    derived = f"s3 * s3 + ({middle} ? s1 * s1 : 0) + {copied}"
    far = "format((s3 * s3 + s1 * s1) / (s3 * s3), '.2f')"
    near = "format((s3 * s3 + s1 * s1) / (s3 * s3 + s1 * s1 + 1), '.2f')"
    return panels(
        ["M, channel to itself", "M, to another", "the paper's scalar"],
        f"datum.panel < 2 ? {derived} : s3 * s3 + s1 * s1",
        [
            f"'printed / derived: ' + {far} + ' in the outer positions,'",
            f"(copies ? {near} : '1.00') + ' in the middle, from a channel to itself'",
        ],
        [
            slider("s3", "scale s\u2083 of the 3 x 3 branch", 1.4, 0.2, 2, 0.05),
            slider("s1", "scale s\u2081 of the 1 x 1 branch", 1.4, 0, 2, 0.05),
            tick("copies", "the block has a copy of its input", True),
        ],
        {"scheme": "greys", "domain": [0, 9]},
        ".2f",
        {"condition": {"test": "datum.value > 4.5", "value": "#fff"}, "value": "#111"},
    )
