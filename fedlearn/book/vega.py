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
