"""What the book's charts share: Vega-Lite by Altair, computed in the page without a
kernel."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .. import link
from ..errors import extra

with extra("lesson"):
    import altair as alt

    from ..plot import COLOURS as PALETTE
    from ..plot import SIGNED, places

BLUE, ORANGE, GREEN, PINK, SKY, AMBER, _ = PALETTE
GREY = "#7a828e"  # read on white and on black
COLOURS = [*PALETTE[:-1], GREY]
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


# Seconds of so many rounds on a link, where the fields of `row` are sums over them: the
# formula of fedlearn.link.time. `speed` and `slower` are parameters of `links`.
SECONDS = (
    "{rounds} * speed.latency + slower * {row}.computing"
    " + 8 * {row}.down / speed.down + 8 * {row}.up / speed.up"
)


def layered(
    height: int,
    params: Iterable[dict[str, Any]],
    layers: Iterable[alt.Chart],
    shared: alt.Chart | None = None,
    *,
    grid: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """A spec as wide as the page, ``height`` pixels high. ``shared`` has the data and
    transforms of all layers that have no data of their own; ``options`` are other entries,
    such as a title."""
    axis: dict[str, Any] = {"labelFontSize": 12, "titleFontSize": 12}
    config = {"font": "sans-serif", "axis": axis if grid else axis | {"grid": False}}
    shared = shared or alt.Chart(ONE)
    context = {"top_level": False, "data": shared.data}
    with alt.data_transformers.enable(consolidate_datasets=False):
        base, *marks = (
            part.to_dict(validate=False, context=context) for part in (shared, *layers)
        )
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": config | {"legend": {"labelFontSize": 12}},
        "params": list(params),
        **base,
        "layer": marks,
        **options,
    }


def heading(text: Any, **options: Any) -> dict[str, Any]:
    """A chart's title; ``text`` is a list of lines, or an expression."""
    text = {"expr": text} if isinstance(text, str) else text
    return {"text": text, "anchor": "start", "fontSize": 13, "color": GREY, **options}


def control(name: str, label: str, value: Any, **bind: Any) -> dict[str, Any]:
    """A parameter that an input sets; ``label`` stands before it."""
    return {"name": name, "value": value, "bind": {**bind, "name": f"{label} "}}


def slider(
    name: str, label: str, value: float, low: float, high: float, step: float
) -> dict[str, Any]:
    """A parameter that a slider sets."""
    return control(name, label, value, input="range", min=low, max=high, step=step)


def choice(
    name: str,
    label: str,
    options: Sequence[Any],
    value: Any = None,
    kind: str = "radio",
) -> dict[str, Any]:
    """A parameter that is one of several, the first if no ``value`` is given; ``kind``
    is ``radio`` or ``select``."""
    start = options[0] if value is None else value
    return control(name, label, start, input=kind, options=list(options))


def tick(name: str, label: str, value: bool) -> dict[str, Any]:
    """A parameter that a check box sets."""
    return control(name, label, value, input="checkbox")


def links(start: str) -> list[dict[str, Any]]:
    """A choice among the links of ``link.PRESETS``, a slider for the device, and the
    parameters that ``SECONDS`` names."""
    columns = ("up", "down", "latency")
    speeds = {
        name: dict(zip(columns, link.check(**preset), strict=True))
        for name, preset in link.PRESETS.items()
    }
    return [
        choice("link", "link", list(speeds), start),
        slider("slower", "device slower", 1, 0, 50, 1),
        {"name": "speed", "expr": f"({json.dumps(speeds)})[link]"},
        {"name": "saysSlower", "expr": "format(slower, '.0f') + ' times'"},
    ]


def condition(test: str, yes: Any, no: Any) -> Any:
    """One value of a channel where an expression is true, another elsewhere."""
    return alt.condition(test, alt.value(yes), alt.value(no))


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


def point_at(x: str | None = None, y: str | None = None) -> alt.Chart:
    """A single point whose fields ``x`` and ``y`` are these expressions."""
    fields = {name: text for name, text in (("x", x), ("y", y)) if text}
    return alt.Chart(ONE).transform_calculate(**fields)


def guess_line() -> list[alt.Chart]:
    """A dotted line at the parameter ``guess``, and the words beside it."""
    y = alt.YDatum(alt.ExprRef("guess"), type="quantitative")
    words = alt.ExprRef("'your guess: ' + format(guess, '.2f')")
    place = {"align": "right", "baseline": "bottom", "dx": -4, "dy": -2}
    return [
        alt.Chart(ONE).mark_rule(**DOTTED, strokeWidth=1.5).encode(y=y),
        alt.Chart(ONE)
        .mark_text(**place, color=GREY, text=words)
        .encode(x=alt.value("width"), y=y),
    ]


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
    params: list[dict[str, Any]],
    lines: Sequence[str] = (),
    entries: Sequence[float] = (0,) * 9,
    columns: int | None = None,
) -> dict[str, Any]:
    """A panel of nine cells, a 3 x 3 kernel, for each of ``names``, so many side by
    side.

    ``value`` is a Vega expression of a cell's ``datum.panel``, ``datum.u`` (column),
    ``datum.v`` (row) and ``datum.own``, its entry of ``entries``. ``lines`` below are
    expressions.
    """
    columns = columns or len(names)
    cells = [
        {"panel": panel, "u": k % 3, "v": k // 3, "own": entry}
        for panel in range(len(names))
        for k, entry in enumerate(entries)
    ]
    # a row of the picture holds a panel's name, a row of its cells, or a line of words
    deep = 4 * -(-len(names) // columns)
    rows = list(range(deep + len(lines)))
    x = alt.X("x:O", axis=None).scale(domain=list(range(4 * columns - 1)), padding=0.05)
    y = alt.Y("y:O", axis=None).scale(domain=rows, padding=0.05)
    left = alt.X("x:O", axis=None, bandPosition=0)
    shared = alt.Chart(alt.InlineData(values=cells)).transform_calculate(
        value=value,
        x=f"datum.panel % {columns} * 4 + datum.u",
        y=f"floor(datum.panel / {columns}) * 4 + datum.v + 1",
    )
    color = alt.Color("value:Q", legend=None).scale(**signed())
    number = alt.Text("value:Q", format=".1f")
    ink = condition("abs(datum.value) > 1.6", "#fff", "#111")
    layers = [
        alt.Chart().mark_rect(stroke="#888").encode(x, y, color),
        alt.Chart().mark_text(fontSize=12).encode(x, y, number, color=ink),
        alt.Chart()
        .transform_filter("datum.u == 0 && datum.v == 0")
        .transform_calculate(title="names[datum.panel]", y="datum.y - 1")
        .mark_text(**WORDS)
        .encode(left, y, text="title:N"),
    ]
    layers += [
        point_at("0", str(deep + k))
        .mark_text(**BOLD | {"fontSize": 14}, text=alt.ExprRef(line))
        .encode(left, y)
        for k, line in enumerate(lines)
    ]
    params = [*params, {"name": "names", "value": names}]
    return layered(38 * len(rows), params, layers, shared, view={"stroke": None})
