"""What the book's charts share: Vega-Lite, computed in the page without a kernel."""

from typing import Any

from ..errors import extra

with extra("lesson"):
    from ..plot import COLOURS, SIGNED

BLUE, ORANGE, GREEN, PINK, SKY, AMBER, GREY = COLOURS
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
SHAPES += [*SHAPES[1:], SHAPES[0]]  # the eighth line shares the first's colour alone
WORDS = {"align": "left", "fontSize": 12, "color": GREY}
BOLD = WORDS | {"fontSize": 13, "fontWeight": "bold"}
DOTTED = {
    "strokeDash": [2, 3],
    "color": GREY,
    "aria": False,
}  # the words beside it say it


def layered(
    height: int,
    params: list[dict[str, Any]],
    layer: list[dict[str, Any]],
    *,
    grid: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """A spec as wide as the page, ``height`` pixels high; ``options`` are other entries,
    such as a title."""
    axis: dict[str, Any] = {"labelFontSize": 12, "titleFontSize": 12}
    config = {"font": "sans-serif", "axis": axis if grid else axis | {"grid": False}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": config | {"legend": {"labelFontSize": 12}},
        "params": params,
        "layer": layer,
        **options,
    }


def slider(
    name: str, label: str, value: float, low: float, high: float, step: float
) -> dict[str, Any]:
    """A parameter that a slider sets; ``label`` stands before it."""
    bind = {"input": "range", "min": low, "max": high, "step": step}
    return {"name": name, "value": value, "bind": {**bind, "name": f"{label} "}}


def shades() -> list[str]:
    """The colours of numbers of both signs, from the lowest to the highest: those of
    every picture in the book."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in colormaps[SIGNED](np.linspace(0, 1, 11))]
