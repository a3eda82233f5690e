"""What the book's charts share: Vega-Lite by Altair, computed in the page without a
kernel."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import extra

with extra("lesson"):
    import altair as alt

    from ..plot import COLOURS, SIGNED, places

BLUE, ORANGE, GREEN, PINK, SKY, AMBER, _ = COLOURS
GREY = "#7a828e"  # read on white and on black
DASHES = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [4, 4], [1, 3]]
SHAPES = [
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "triangle-right",
]
WORDS = {"align": "left", "fontSize": 12, "color": GREY}
BOLD = WORDS | {"fontSize": 13, "fontWeight": "bold"}
DOTTED = {
    "strokeDash": [2, 3],
    "color": GREY,
    "aria": False,
}  # the words beside it say it
LEGEND = {"orient": "top", "title": None, "symbolStrokeWidth": 0, "symbolOpacity": 1}
ONE = alt.InlineData(values=[{}])  # a mark that is there once

# Expressions that say a number in words: a speed of 10^{0} Mbit/s, a time of {0}
# seconds
SPEED = (
    "format(pow(10, {0}) * ({0} < 0 ? 1000 : 1), '.3~r') + ({0} < "
    "0 ? ' kbit/s' : ' Mbit/s')"
)
LASTS = (
    "({0} >= 86400 ? format({0} / 86400, '.1f') + ' days' : {0} >= 3600 ? "
    "format({0} / 3600, '.1f') + ' h' : {0} >= 60 ? format({0} / 60, '.1f') + ' min' : "
    "{0} >= 10 ? format({0}, '.0f') + ' s' : format({0}, '.2r') + ' s')"
)


def layered(
    height: int,
    params: Iterable[dict[str, Any]],
    layers: Iterable[alt.Chart],
    shared: alt.Chart | None = None,
    *,
    grid: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """A spec as wide as the page, ``height`` pixels high. ``shared`` has the data and
    transforms of all layers that have no data of their own; ``more`` are other entries,
    such as a title."""
    axis: dict[str, Any] = {"labelFontSize": 12, "titleFontSize": 12}
    config = {"font": "sans-serif", "axis": axis if grid else axis | {"grid": False}}
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": config | {"legend": {"labelFontSize": 12}},
        "params": list(params),
        **more,
    }
    context: dict[str, Any] = {"top_level": False}
    if shared is not None:
        if shared.data is not alt.Undefined:
            context["data"] = shared.data
            spec["data"] = shared.data.to_dict()
        if shared.transform is not alt.Undefined:
            spec["transform"] = [step.to_dict() for step in shared.transform]
    with alt.data_transformers.enable(consolidate_datasets=False):
        spec["layer"] = [
            layer.to_dict(validate=False, context=context) for layer in layers
        ]
    return spec


def heading(text: Any, **more: Any) -> dict[str, Any]:
    """A chart's title; ``text`` is a list of lines, or an expression."""
    text = {"expr": text} if isinstance(text, str) else text
    return {"text": text, "anchor": "start", "fontSize": 13, "color": GREY, **more}


def slider(
    name: str, label: str, value: float, low: float, high: float, step: float
) -> dict:
    """A parameter that a slider sets; ``label`` stands before it."""
    bind = {
        "input": "range",
        "min": low,
        "max": high,
        "step": step,
        "name": f"{label} ",
    }
    return {"name": name, "value": value, "bind": bind}


def choice(
    name: str,
    label: str,
    options: Sequence[Any],
    value: Any = None,
    kind: str = "radio",
) -> dict:
    """A parameter that is one of several, the first if no ``value`` is given; ``kind``
    is
    ``radio`` or ``select``."""
    bind = {"input": kind, "options": list(options), "name": f"{label} "}
    return {"name": name, "value": options[0] if value is None else value, "bind": bind}


def tick(name: str, label: str, value: bool) -> dict:
    """A parameter that a check box sets."""
    return {
        "name": name,
        "value": value,
        "bind": {"input": "checkbox", "name": f"{label} "},
    }


def series(
    channel: Any, field: str, names: Sequence[str], looks: Sequence[Any], legend: Any
) -> Any:
    """A channel that gives each of ``names`` its look: ``series(alt.Color, "line",
    ...)``."""
    scale = alt.Scale(domain=list(names), range=list(looks[: len(names)]))
    return channel(f"{field}:N", scale=scale, legend=legend)


def methods(
    channel: Any, field: str, names: Sequence[str], looks: Sequence[Any], legend: Any
) -> Any:
    """The same for methods, which look alike in all pictures (``plot.places``)."""
    each = [looks[k % len(looks)] for k in places(names)]
    return series(channel, field, names, each, legend)


def numbered_rows(name: str, *sort: dict[str, str]) -> dict[str, Any]:
    """Arguments of ``transform_window``: the field ``name`` counts the rows from 1."""
    return {"window": [{"op": "row_number", "as": name}], "sort": list(sort)}


def point_at(x: str | None = None, y: str | None = None) -> alt.Chart:
    """A single point whose fields ``x`` and ``y`` are these expressions."""
    fields = {name: text for name, text in (("x", x), ("y", y)) if text}
    return alt.Chart(ONE).transform_calculate(**fields)


def signed(largest: float = 2.0, shades: int = 11) -> dict[str, Any]:
    """A scale of colours for numbers of both signs: the one of every picture in the
    book."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return {
        "interpolate": "rgb",
        "domain": np.linspace(-largest, largest, shades).round(2).tolist(),
        "range": [to_hex(c) for c in colormaps[SIGNED](np.linspace(0, 1, shades))],
        "clamp": True,
    }


def kernel_panels(
    names: list[str],
    value: str,
    lines: list[str],
    params: list[dict[str, Any]],
    colours: dict[str, Any],
    form: str = "+.1f",
    ink: Any = "#111",
    entries: Sequence[float] = (0,) * 9,
    columns: int | None = None,
) -> dict[str, Any]:
    """A panel of nine cells, a 3 x 3 kernel, for each of ``names``, so many side by
    side.

        ``value`` is a Vega expression of a cell's ``datum.panel``, ``datum.u``
        (column),
        ``datum.v`` (row) and ``datum.own``, its entry of ``entries``. ``lines`` below
        are expressions.
    """
    cells = [
        {"panel": panel, "u": k % 3, "v": k // 3, "own": entry}
        for panel in range(len(names))
        for k, entry in enumerate(entries)
    ]
    columns = columns or len(names)
    deep = 4.2 * ((len(names) - 1) // columns)  # where the last row of panels begins
    low = deep + 3.4 + 0.5 * len(lines)
    wide = {"axis": None, "scale": {"domain": [0, 3.8 * columns - 0.8], "nice": False}}
    high = {
        "axis": None,
        "scale": {"domain": [low, -0.7], "nice": False, "zero": False},
    }
    x = alt.X("x:Q", **wide)
    y = alt.Y("y:Q", **high)
    shared = alt.Chart(alt.InlineData(values=cells)).transform_calculate(
        value=value,
        x=f"datum.panel % {columns} * 3.8 + datum.u",
        y=f"floor(datum.panel / {columns}) * 4.2 + datum.v",
        x2="datum.x + 0.94",
        y2="datum.y + 0.94",
        mx="datum.x + 0.47",
        my="datum.y + 0.5",
    )
    color = alt.Color("value:Q", scale=alt.Scale(**colours), legend=None)
    middle = (alt.X("mx:Q", **wide), alt.Y("my:Q", **high))
    layers = [
        alt.Chart()
        .mark_rect(stroke="#888")
        .encode(x, alt.X2("x2"), y, alt.Y2("y2"), color),
        alt.Chart()
        .mark_text(fontSize=12)
        .encode(
            *middle,
            alt.Text("value:Q", format=form),
            color=ink if isinstance(ink, dict) else alt.value(ink),
        ),
        alt.Chart()
        .transform_filter("datum.u == 0 && datum.v == 0")
        .transform_calculate(title="names[datum.panel]", top="datum.y - 0.25")
        .mark_text(**WORDS)
        .encode(x, alt.Y("top:Q", **high), text="title:N"),
    ]
    layers += [
        alt.Chart(ONE)
        .mark_text(**BOLD | {"fontSize": 14}, text=alt.ExprRef(line))
        .encode(
            x=alt.XDatum(0, type="quantitative"),
            y=alt.YDatum(deep + 3.5 + 0.5 * k, type="quantitative"),
        )
        for k, line in enumerate(lines)
    ]
    height = round(190 / 4.6 * (low + 0.7))
    params = [*params, {"name": "names", "value": names}]
    return layered(height, params, layers, shared, view={"stroke": None})
