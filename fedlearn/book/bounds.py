"""What coders cost beside the least that they could: explorers of positions and of errors."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


def places(p: str) -> dict[str, str]:
    """Bits for the place of one kept entry, as Vega expressions of the share ``p``."""
    b = f"max(0, 1 + floor(log(log((sqrt(5) - 1) / 2) / log(1 - {p})) / LN2))"
    return {
        "entropy": f"-({p} * log({p}) + (1 - {p}) * log(1 - {p})) / LN2 / {p}",
        "Golomb-Rice": f"({b} + 1 / (1 - pow(1 - {p}, pow(2, {b}))))",
        "bitmap": f"1 / {p}",
        "32-bit numbers": "32",
    }


# what is shown, the end of its axis, and how it is made of the bits of a kept entry
PER = {
    "bits a kept entry": (34, "datum.bits"),
    "bits an entry of the tensor": (1.1, "datum.bits * datum.p"),
    "% above the entropy": (12, "100 * (datum.bits / datum.entropy - 1)"),
}


def positions(measured: Sequence[Mapping[str, float]] = ()) -> dict[str, Any]:
    """Bits for the place of a kept entry against the share p = 2^-e of entries that are kept: the
    entropy H(p)/p, a Golomb-Rice code (Sattler et al. 2020), one bit for every entry of the tensor,
    and 32-bit numbers.

    ``measured``: rows of ``e`` and the bits an entry that ``positions`` and a ``mask`` took.
    """
    from . import vega
    from .vega import DOTTED, GREY, alt, choice, heading, layered, series, slider

    params = [
        slider("e", "kept: one entry of 2 to the power", 5, 1, 10, 0.1),
        slider("v", "bits of a kept value", 1, 1, 32, 1),
        choice("per", "shown:", [*PER]),
    ]
    at_slider, formulas = places("pow(2, -e)"), places("datum.p")
    names = list(formulas)
    text = (
        "['kept: one entry of ' + format(pow(2, e), '.3~r') + '; bits for the place of each:', "
        f"'entropy ' + format({at_slider['entropy']}, '.2f') + ', Golomb-Rice ' + "
        f"format({at_slider['Golomb-Rice']}, '.2f') + ', bitmap ' + format(pow(2, e), '.3~r'), "
        "'with its value, Golomb-Rice is ' + "
        f"format(32 * pow(2, e) / ({at_slider['Golomb-Rice']} + v), '.3~r') + ' times smaller']"
    )
    which = f"indexof({json.dumps([*PER])}, per)"
    shown = f"[{', '.join(formula for _, formula in PER.values())}][{which}]"
    axis = alt.Axis(values=list(range(1, 11)), labelExpr="'1/' + pow(2, datum.value)")
    scale = alt.Scale(domain=[1, 10], nice=False)
    x = alt.X("e:Q", title="share of entries kept", axis=axis, scale=scale)
    top = alt.ExprRef(f"{[top for top, _ in PER.values()]}[{which}]")
    y = alt.Y("y:Q", title=None, scale=alt.Scale(domainMin=0, domainMax=top, nice=False))
    legend = {"orient": "top", "title": None, "columns": 2, "symbolSize": 300}
    colour = series(alt.Color, "code", names, [GREY, *vega.COLOURS[:3]], legend)
    dash = series(alt.StrokeDash, "code", names, vega.DASHES, legend)
    layers = [
        alt.Chart(alt.sequence(1, 10.01, 0.05, as_="e"))
        .transform_calculate(p="pow(2, -datum.e)", **formulas)
        .transform_fold(names, as_=["code", "bits"])
        .transform_calculate(y=shown)
        .mark_line(strokeWidth=2, clip=True)
        .encode(x, y, colour, dash),
        alt.Chart(vega.ONE)
        .transform_calculate(e="e")
        .mark_rule(**DOTTED, strokeWidth=1.5)
        .encode(x),
    ]
    if measured:
        dots = [
            {"e": row["e"], "kind": kind, "bits": row[kind] * 2 ** row["e"]}
            for row in measured
            for kind in ("positions", "mask")
        ]
        shape = series(alt.Shape, "kind", ["positions", "mask"], ["circle", "square"], None)
        layers.append(
            alt.Chart(alt.InlineData(values=dots))
            .transform_calculate(p="pow(2, -datum.e)", entropy=formulas["entropy"], y=shown)
            .mark_point(size=55, strokeWidth=1.8, clip=True, color=GREY)
            .encode(x, y, shape)
        )
    title = heading(text, lineHeight=18, offset=8)
    return layered(260, params, layers, grid=False, title=title)


def errors(measured: Sequence[Mapping[str, Any]], one: str, other: str) -> dict[str, Any]:
    """Relative error against bits an entry, both logarithmic: all coders in grey, two in colour,
    and 4^-bits, the least for independent normal entries.

    ``measured``: rows of ``coder``, ``setting``, ``round`` (powers of 10^(1/2), rounded to 1 or 3
    times a power of ten), ``bits`` and ``error``; what loses nothing is left out. ``one`` and
    ``other`` are in colour at first.
    """
    from .vega import BLUE, GREY, ORANGE, alt, choice, heading, layered, slider

    rows = [
        dict(row) | {"e": round(2 * math.log10(row["round"])) / 2}
        for row in measured
        if row["error"] > 0
    ]
    names = list(dict.fromkeys(row["coder"] for row in rows))
    rounds = "format(floor(pow(10, e) / pow(10, floor(e))) * pow(10, floor(e)), 'd')"
    params = [
        slider("e", "round", 0, 0, 2, 0.5),
        choice("one", "blue", names, one, "select"),
        choice("other", "orange", names, other, "select"),
        {"name": "saysRound", "expr": rounds},
    ]
    axis = alt.Axis(values=[0.1, 0.3, 1, 2, 4, 8, 32])
    x = alt.X("bits:Q", title="bits an entry", axis=axis)
    x = x.scale(type="log", nice=False, domain=[0.03, 40])
    axis = alt.Axis(values=[1e-4, 1e-3, 0.01, 0.1, 1, 10, 100, 1000], format="~r")
    y = alt.Y("error:Q", title="relative error", axis=axis)
    y = y.scale(type="log", nice=False, domain=[2e-5, 3000])
    tooltip = [
        alt.Tooltip("coder:N", title="coder"),
        alt.Tooltip("setting:N", title="setting"),
        alt.Tooltip("bits:N", title="bits an entry", format=".3f"),
        alt.Tooltip("error:N", title="relative error", format=".3~g"),
    ]

    def of_two(blue: Any, orange: Any) -> Any:
        test = alt.when("datum.coder == one")
        return test.then(alt.value(blue)).otherwise(alt.value(orange))

    path = {"x": x, "y": y, "detail": "coder:N", "order": "bits:O"}
    now = alt.Chart().transform_filter("abs(datum.e - e) < 0.1")
    two = now.transform_filter("datum.coder == one || datum.coder == other")
    bound = alt.Chart(alt.sequence(0, 8.01, 0.05, as_="bits"))
    points = {"color": GREY, "size": 16}
    layers = [
        bound.transform_filter("datum.bits > 0.03")
        .transform_calculate(error="pow(4, -datum.bits)")
        .mark_line(strokeDash=[2, 3], color=GREY, clip=True)
        .encode(x, y),
        now.mark_line(strokeWidth=1, color=GREY, clip=True, opacity=0.5, point=points).encode(
            **path, tooltip=tooltip
        ),
        two.mark_line(strokeWidth=2, clip=True).encode(
            **path, color=of_two(BLUE, ORANGE), strokeDash=of_two([1, 0], [6, 3])
        ),
        two.mark_point(filled=True, size=60, opacity=1, clip=True).encode(
            *(x, y), color=of_two(BLUE, ORANGE), shape=of_two("circle", "square"), tooltip=tooltip
        ),
        two.transform_aggregate(end="argmin(bits)", groupby=["coder"])
        .transform_calculate(bits="datum.end.bits", error="datum.end.error")
        .mark_text(align="left", dy=-12, fontSize=13)
        .encode(x, y, text="coder:N", color=of_two(BLUE, ORANGE)),
    ]
    shared = alt.Chart(alt.InlineData(values=rows))
    title = heading("'round ' + saysRound", offset=8)
    return layered(320, params, layers, shared, grid=False, title=title)
