"""The explorer of the chapter on two streams: MMD of two clouds, width by width, computed in the
page by Vega."""

import random
from collections.abc import Sequence
from typing import Any

from .vega import GREY, NUMBER, frame, slider

# Two clouds in the plane, S N(0, 1) and S (d + s N(0, 1)): the means of one radial basis function
# over pairs within the first, within the second and between them (Gaussian integrals), with
# v = S^2. Vega's expressions are Python's, too, so that a test can compare them with samples.
WITHIN_FIRST = "w / (w + 2 * v)"
WITHIN_SECOND = "w / (w + 2 * v * s * s)"
BETWEEN = "w / (w + v * (1 + s * s)) * exp(-v * d * d / (2 * (w + v * (1 + s * s))))"
# samples of n points: of their n^2 pairs n are a point with itself, where K = 1
MMD = (
    f"{WITHIN_FIRST} + {WITHIN_SECOND} - 2 * {BETWEEN} + (2 - {WITHIN_FIRST} - {WITHIN_SECOND}) / n"
)
CHANCE = f"2 * (1 - {WITHIN_FIRST}) / n"
KINDS = ["these two clouds", "two clouds of one kind"]


def kernel_widths(widths: Sequence[float]) -> dict[str, Any]:
    """Expected MMD^2 of two samples of n points against the width of the kernel, under sliders for
    shift, spread and size of the clouds and for n; dots stand at ``widths``, whose sum is said."""

    def calculate(kind: int) -> list[dict[str, Any]]:
        value = [MMD, CHANCE][kind].replace("v", "datum.v").replace("w", "datum.w")
        return [
            {"calculate": "pow(10, datum.x)", "as": "w"},
            {"calculate": "pow(10, 2 * size)", "as": "v"},
            {"calculate": value, "as": "y"},
            {"calculate": f"'{KINDS[kind]}'", "as": "kind"},
        ]

    x = {
        "field": "x",
        **NUMBER,
        "title": "width w of the kernel",
        "scale": {"domain": [-6, 6], "nice": False},
        "axis": {"values": [-6, -3, 0, 3, 6], "labelExpr": "format(pow(10, datum.value), '~g')"},
    }
    y = {
        "field": "y",
        **NUMBER,
        "title": "MMD²",
        "scale": {"domain": [0, 2.2], "nice": False},
        "axis": {"values": [0, 0.5, 1], "format": ".1f", "titleAnchor": "start"},
    }
    scale = {"domain": KINDS, "range": ["#0072B2", GREY]}
    legend = {
        "orient": "bottom",
        "title": None,
        "symbolSize": 90,
        "columns": 1,
        "symbolStrokeWidth": 0,
    }
    colour = {"field": "kind", "type": "nominal", "scale": scale, "legend": legend}
    dash = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": KINDS, "range": [[1, 0], [5, 3]]},
    }
    steps = {"sequence": {"start": -6, "stop": 6.01, "step": 0.06, "as": "x"}}
    at = {"values": [{"w": w} for w in widths]}
    place = [{"calculate": "log(datum.w) / LN10", "as": "x"}]
    draw = random.Random(4)
    clouds = [
        {"k": k, "a": round(draw.gauss(0, 1), 2), "b": round(draw.gauss(0, 1), 2)}
        for k in (0, 1)
        for _ in range(40)
    ]
    words = {"type": "text", "align": "left", "fontSize": 13, "fontWeight": "bold", "color": GREY}

    return frame(
        330,
        [
            slider("d", "shift of the second cloud", 1.5, 0, 4, 0.1),
            slider("s", "spread of the second cloud", 1, 0.5, 2.5, 0.1),
            slider("size", "size of both clouds, log10", 0, -2, 2, 0.1),
            slider("n", "points of each cloud", 16, 4, 64, 4),
        ],
        grid=False,
        layer=[
            *(
                {
                    "data": steps,
                    "transform": calculate(kind),
                    "mark": {"type": "line", "strokeWidth": 2.5},
                    "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
                }
                for kind in (1, 0)
            ),
            {
                "data": at,
                "transform": [*place, *calculate(0)],
                "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            {  # the clouds, above the curves and in a scale of their own
                "data": {"values": clouds},
                "transform": [
                    {"calculate": "0.3 * (datum.k ? d + s * datum.a : datum.a) - 3.5", "as": "x"},
                    {"calculate": "0.115 * (datum.k ? s * datum.b : datum.b) + 1.78", "as": "y"},
                    {"calculate": "datum.k ? 'second cloud' : 'first cloud'", "as": "cloud"},
                ],
                "mark": {
                    "type": "point",
                    "filled": True,
                    "size": 34,
                    "opacity": 0.85,
                    "clip": True,
                },
                "encoding": {
                    "x": x,
                    "y": y,
                    "shape": {
                        "field": "cloud",
                        "type": "nominal",
                        "scale": {"range": ["circle", "triangle-up"]},
                        "legend": legend,
                    },
                    "fill": {
                        "field": "cloud",
                        "type": "nominal",
                        "scale": {"range": ["#009E73", "#D55E00"]},
                        "legend": legend,
                    },
                },
            },
            *(
                {
                    "data": at,
                    "transform": [
                        *place,
                        *calculate(kind),
                        {"aggregate": [{"op": "sum", "field": "y", "as": "sum"}], "groupby": []},
                        {"calculate": f"'{start} ' + format(datum.sum, '.2f')", "as": "text"},
                        {"calculate": "0.6", "as": "x"},
                        {"calculate": f"{high}", "as": "y"},
                    ],
                    "mark": words,
                    "encoding": {"text": {"field": "text"}, "x": x, "y": y},
                }
                for kind, start, high in ((0, "these two:", 1.78), (1, "by chance:", 1.62))
            ),
            {
                "data": {"values": [{"x": 0.6, "y": 1.94, "text": f"sum of {len(widths)} widths"}]},
                "mark": words,
                "encoding": {"text": {"field": "text"}, "x": x, "y": y},
            },
        ],
    )
