"""What the specs of the book's charts share: Vega-Lite 5, computed in the page."""

from collections.abc import Sequence
from typing import Any

GREY = "#7a828e"  # read on white and on black
NUMBER: dict[str, Any] = {"type": "quantitative"}


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
