"""What the specs of the book's charts share: Vega-Lite 5, computed in the page."""

from collections.abc import Sequence
from typing import Any

GREY = "#7a828e"  # read on white and on black
NUMBER: dict[str, Any] = {"type": "quantitative"}

# Expressions that say a number in words: a speed of 10^{0} Mbit/s, a time of {0} seconds
SPEED = "format(pow(10, {0}) * ({0} < 0 ? 1000 : 1), '.3~r') + ({0} < 0 ? ' kbit/s' : ' Mbit/s')"
LASTS = (
    "({0} >= 86400 ? format({0} / 86400, '.1f') + ' days' : {0} >= 3600 ? "
    "format({0} / 3600, '.1f') + ' h' : {0} >= 60 ? format({0} / 60, '.1f') + ' min' : "
    "{0} >= 10 ? format({0}, '.0f') + ' s' : format({0}, '.2r') + ' s')"
)


def frame(
    height: int, params: Sequence[dict[str, Any]] = (), *, grid: bool = True, **rest: Any
) -> dict[str, Any]:
    """A spec as wide as the page, ``height`` pixels high: its parameters, letters and sizes, and
    the ``rest``, which is data, transform, layer and title."""
    axis: dict[str, Any] = {"labelFontSize": 12, "titleFontSize": 12}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {
            "font": "sans-serif",
            "axis": axis if grid else axis | {"grid": False},
            "legend": {"labelFontSize": 12},
        },
        "params": list(params),
        **rest,
    }


def slider(name: str, label: str, value: float, low: float, high: float, step: float) -> dict:
    """A parameter that a slider sets; ``label`` stands before it."""
    bind = {"input": "range", "min": low, "max": high, "step": step, "name": f"{label} "}
    return {"name": name, "value": value, "bind": bind}


def choice(
    name: str, label: str, options: Sequence[Any], value: Any = None, kind: str = "radio"
) -> dict:
    """A parameter that is one of several, the first if no ``value`` is given; ``kind`` is
    ``radio`` or ``select``."""
    bind = {"input": kind, "options": list(options), "name": f"{label} "}
    return {"name": name, "value": options[0] if value is None else value, "bind": bind}


def tick(name: str, label: str, value: bool) -> dict:
    """A parameter that a check box sets."""
    return {"name": name, "value": value, "bind": {"input": "checkbox", "name": f"{label} "}}
