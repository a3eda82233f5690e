"""Two explorers of the chapter on sending less: formulas, computed in the page by Vega."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..plot import COLOURS
from .vega import GREY, NUMBER, choice, frame, slider

# what is shown, its axis, and how it is made of the bits of a kept entry
PER = {
    "bits a kept entry": (34, "datum.bits"),
    "bits an entry of the tensor": (1.1, "datum.bits * datum.p"),
    "% above the entropy": (12, "100 * (datum.bits / datum.entropy - 1)"),
}


def quantiser() -> dict[str, Any]:
    """Evenly spaced levels from the smallest entry to the largest: what is decoded, and the
    relative error if entries follow a Laplace distribution of deviation 1, cut off at the largest.
    With random rounding an entry x between levels a and b has variance (x - a)(b - x)."""
    params = [
        slider("levels", "levels", 4, 2, 64, 1),
        slider("widest", "largest entry, in standard deviations", 8, 2, 16, 0.5),
        choice("rounding", "rounding", ["nearest", "random"]),
        slider("m", "clients averaged", 1, 1, 100, 1),
    ]
    shared = [
        {"calculate": "widest * datum.i / 300", "as": "x"},
        {"calculate": "2 * widest / (levels - 1)", "as": "gap"},
        {"calculate": "min(floor((datum.x + widest) / datum.gap), levels - 2)", "as": "below"},
        {"calculate": "datum.below * datum.gap - widest", "as": "a"},
        {"calculate": "datum.a + datum.gap", "as": "b"},
        {"calculate": "datum.x - datum.a < datum.b - datum.x ? datum.a : datum.b", "as": "near"},
        {"calculate": "rounding == 'nearest' ? datum.near : datum.x", "as": "mean"},
        {"calculate": "rounding == 'nearest' ? datum.near : datum.a", "as": "low"},
        {"calculate": "rounding == 'nearest' ? datum.near : datum.b", "as": "high"},
        {"calculate": "exp(-sqrt(2) * abs(datum.x))", "as": "often"},
        {"calculate": "widest * (datum.often - 1)", "as": "top"},
        {"calculate": "-widest", "as": "floor"},
        {"calculate": "datum.often * pow(datum.x, 2)", "as": "energy"},
        {"calculate": "datum.often * pow(datum.near - datum.x, 2)", "as": "fixed"},
        {"calculate": "datum.often * (datum.x - datum.a) * (datum.b - datum.x)", "as": "chance"},
    ]
    sums = [{"op": "sum", "field": f, "as": f} for f in ("energy", "fixed", "chance")]
    one = "(rounding == 'nearest' ? datum.fixed : datum.chance) / datum.energy"
    mean = f"({one}) / (rounding == 'nearest' ? 1 : m)"
    said = (
        "[levels + ' levels, ' + format(log(levels) / LN2, '.1f') + ' bits an entry', "
        f"'relative error: ' + format({one}, '.3f'), "
        f"'mean of ' + m + (m > 1 ? ' clients: ' : ' client: ') + format({mean}, '.3f')]"
    )
    ends = {"domainMin": {"expr": "-widest"}, "domainMax": {"expr": "widest"}, "nice": False}
    x = {"field": "x", **NUMBER, "title": "an entry", "scale": ends}
    y = {**NUMBER, "title": "what arrives", "scale": ends}
    layer: list[dict[str, Any]] = [
        {
            "mark": {"type": "area", "color": GREY, "opacity": 0.3},
            "encoding": {"x": x, "y": {"field": "top", **y}, "y2": {"field": "floor"}},
        },
        {
            "mark": {"type": "area", "color": COLOURS[0], "opacity": 0.25},
            "encoding": {"x": x, "y": {"field": "low", **y}, "y2": {"field": "high"}},
        },
        {
            "mark": {"type": "line", "color": COLOURS[0], "strokeWidth": 2},
            "encoding": {"x": x, "y": {"field": "mean", **y}},
        },
        {
            "transform": [{"aggregate": sums}, {"calculate": said, "as": "said"}],
            "mark": {
                "type": "text",
                "align": "left",
                "baseline": "top",
                "fontSize": 13,
                "lineHeight": 18,
                "fontWeight": "bold",
                "color": GREY,
            },
            "encoding": {
                "x": {"value": 6},
                "y": {"value": 6},
                "text": {"field": "said", "type": "nominal"},
            },
        },
    ]
    points = {"sequence": {"start": -300, "stop": 301, "step": 1, "as": "i"}}
    return frame(260, params, grid=False, data=points, transform=shared, layer=layer)


def places(p: str) -> dict[str, str]:
    """Bits for the place of one kept entry, as Vega expressions of the share ``p``."""
    b = f"max(0, 1 + floor(log(log((sqrt(5) - 1) / 2) / log(1 - {p})) / LN2))"
    return {
        "entropy": f"-({p} * log({p}) + (1 - {p}) * log(1 - {p})) / LN2 / {p}",
        "Golomb-Rice": f"({b} + 1 / (1 - pow(1 - {p}, pow(2, {b}))))",
        "bitmap": f"1 / {p}",
        "32-bit numbers": "32",
    }


def positions(measured: Sequence[Mapping[str, float]] = ()) -> dict[str, Any]:
    """Bits for the place of a kept entry against the share p = 2^-e of entries that are kept: the
    entropy H(p)/p, a Golomb-Rice code (Sattler et al. 2020), one bit for every entry of the tensor,
    and 32-bit numbers.

    ``measured``: rows of ``e`` and the bits an entry that ``positions`` and a ``mask`` took.
    """
    params = [
        slider("e", "kept: one entry of 2 to the power", 5, 1, 10, 0.1),
        slider("v", "bits of a kept value", 1, 1, 32, 1),
        choice("per", "shown:", [*PER]),
    ]
    here, there = places("pow(2, -e)"), places("datum.p")
    names = list(there)
    said = (
        "['kept: one entry of ' + format(pow(2, e), '.3~r') + '; bits for the place of each:', "
        f"'entropy ' + format({here['entropy']}, '.2f') + ', Golomb-Rice ' + "
        f"format({here['Golomb-Rice']}, '.2f') + ', bitmap ' + format(pow(2, e), '.3~r'), "
        "'with its value, Golomb-Rice is ' + "
        f"format(32 * pow(2, e) / ({here['Golomb-Rice']} + v), '.3~r') + ' times smaller']"
    )
    which = f"indexof({json.dumps([*PER])}, per)"
    shown = f"[{', '.join(formula for _, formula in PER.values())}][{which}]"
    x = {
        "field": "e",
        **NUMBER,
        "title": "share of entries kept",
        "axis": {"values": list(range(1, 11)), "labelExpr": "'1/' + pow(2, datum.value)"},
        "scale": {"domain": [1, 10], "nice": False},
    }
    top = {"expr": f"{[top for top, _ in PER.values()]}[{which}]"}
    y = {
        "field": "y",
        **NUMBER,
        "title": None,
        "scale": {"domainMin": 0, "domainMax": top, "nice": False},
    }

    def by(range: list[Any], legend: dict[str, Any] | None) -> dict[str, Any]:
        return {"field": "code", "scale": {"domain": names, "range": range}, "legend": legend}

    legend = {"orient": "top", "title": None, "columns": 2, "symbolSize": 300}
    dots = [
        {"e": row["e"], "kind": kind, "bits": row[kind] * 2 ** row["e"]}
        for row in measured
        for kind in ("positions", "mask")
    ]
    point = {"type": "point", "size": 55, "strokeWidth": 1.8, "clip": True, "color": GREY}
    layer: list[dict[str, Any]] = [
        {
            "data": {"sequence": {"start": 1, "stop": 10.01, "step": 0.05, "as": "e"}},
            "transform": [
                {"calculate": "pow(2, -datum.e)", "as": "p"},
                *({"calculate": formula, "as": name} for name, formula in there.items()),
                {"fold": names, "as": ["code", "bits"]},
                {"calculate": shown, "as": "y"},
            ],
            "mark": {"type": "line", "strokeWidth": 2, "clip": True},
            "encoding": {
                "x": x,
                "y": y,
                "color": by([GREY, *COLOURS[:3]], legend),
                "strokeDash": by([[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]], legend),
            },
        },
        {
            "data": {"values": [{}]},
            "transform": [{"calculate": "e", "as": "e"}],
            "mark": {
                "type": "rule",
                "strokeDash": [2, 3],
                "strokeWidth": 1.5,
                "color": GREY,
                "aria": False,
            },
            "encoding": {"x": x},
        },
    ]
    if dots:
        layer.append(
            {
                "data": {"values": dots},
                "transform": [
                    {"calculate": "pow(2, -datum.e)", "as": "p"},
                    {"calculate": there["entropy"], "as": "entropy"},
                    {"calculate": shown, "as": "y"},
                ],
                "mark": point,
                "encoding": {
                    "x": x,
                    "y": y,
                    "shape": {
                        "field": "kind",
                        "scale": {"domain": ["positions", "mask"], "range": ["circle", "square"]},
                        "legend": None,
                    },
                },
            }
        )
    title = {"text": {"expr": said}, "anchor": "start", "fontSize": 13, "color": GREY}
    title |= {"lineHeight": 18, "offset": 8}
    return frame(260, params, grid=False, layer=layer, title=title)
