"""The explorer that opens a chapter: stored runs under sliders, drawn by Vega in the page.

FedAvg is always in the picture. The reader guesses first: a dotted line stands at the guess, and
the method appears when "show" is ticked. In Jupyter ``guess`` comes from the cell above.
"""

from typing import Any

from ..plot import COLOURS
from .grids import chapter_file, grid
from .show import Chart, chart
from .vega import GREY, choice, frame, slider, tick

ROUNDS, BYTES = "rounds", "kilobytes of one client"


def control(column: str, its: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """A Vega parameter: a slider over evenly spaced numbers, radio buttons otherwise."""
    numbers = all(isinstance(v, int | float) for v in values)
    steps = {round(b - a, 9) for a, b in zip(values, values[1:], strict=False)} if numbers else {0}
    if its["start"] not in values:
        raise ValueError(f"{column} starts at {its['start']!r}, which is none of {values}.")
    if numbers and len(steps) == 1:
        return slider(column, its["name"], its["start"], values[0], values[-1], steps.pop())
    return choice(column, its["name"], values, its["start"])


def explorer(number: str, name: str, caption: str, alt: str, guess: float | None = None) -> Chart:
    """The chart over the grid of the chapter ``name``: accuracy against rounds or bytes.

    ``guess`` is the reader's number, an accuracy from 0 to 1; ``None`` leaves it to the slider in
    the picture and hides the method until the reader asks to see it.
    """
    spec, rows = chapter_file(name)["explorer"], grid(name)
    if guess is not None and not 0 <= guess <= 1:
        raise ValueError(f"A guess is an accuracy from 0 to 1, not {guess!r}.")
    rows = rows.assign(kb=(rows["up"] + rows["down"]) / 1e3).drop(columns=["up", "down"])
    rows = rows.astype(object).where(rows.notna(), None)  # a control that is not a line's own
    controls = spec["controls"]
    asked = spec["guess"]
    at = asked["start"] if guess is None else guess
    params = [
        slider("guess", asked["name"], at, 0, 1, 0.01),
        tick("reveal", f"show {asked['line']} and its rival", guess is not None),
        *(
            control(column, its, list(dict.fromkeys(v for v in rows[column] if v is not None)))
            for column, its in controls.items()
        ),
        choice("against", "against", [ROUNDS, BYTES]),
    ]
    lines = list(dict.fromkeys(rows["line"]))
    here = " && ".join(f"(datum.{c} === null || datum.{c} == {c})" for c in controls)
    shown = f"{here} && (reveal || datum.line == '{lines[0]}')"
    x_axis = {
        "title": None,
        "grid": True,
        "tickCount": 6,
        "labelExpr": f"against == '{ROUNDS}' ? (datum.value % 1 ? '' : 'round ' + datum.value) : "
        "format(pow(10, datum.value), '.3~s') + ' kB'",
        "labelOverlap": True,
    }
    x = {"field": "x", "type": "quantitative", "axis": x_axis, "scale": {"zero": False}}
    ends = {"scale": {"domain": [0, 1]}, "title": "test accuracy"}
    dash = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]][: len(lines)]
    shape = ["circle", "square", "triangle-up", "diamond"][: len(lines)]
    legend = {
        "orient": "top",
        "title": None,
        "symbolSize": 90,
        "symbolStrokeWidth": 0,
        "symbolOpacity": 1,
    }

    def by(range: list[Any], legend: dict[str, Any] | None) -> dict[str, Any]:
        return {"field": "line", "scale": {"domain": lines, "range": range}, "legend": legend}

    colour = by(COLOURS[: len(lines)], legend)
    tooltip = [
        {"field": "line", "title": "method"},
        {"field": "round", "title": "round"},
        {"field": "accuracy", "title": "accuracy, mean of the seeds"},
        {"field": "low", "title": "lowest"},
        {"field": "high", "title": "highest"},
        {"field": "kb", "title": "kB of one client so far", "format": ",.0f"},
    ]
    band = {
        "mark": {"type": "area", "fillOpacity": 0.2},
        "encoding": {
            "x": x,
            "y": {"field": "low", "type": "quantitative", **ends},
            "y2": {"field": "high"},
            "color": colour,
        },
    }
    line = {
        "mark": {"type": "line", "point": {"size": 45}, "strokeWidth": 2},
        "encoding": {
            "x": x,
            "y": {"field": "accuracy", "type": "quantitative", **ends},
            "color": colour,
            "strokeDash": by(dash, None),
            "shape": by(shape, legend),
            "tooltip": tooltip,
        },
    }
    rule = {
        "data": {"values": [{}]},
        "mark": {
            "type": "rule",
            "strokeDash": [2, 3],
            "strokeWidth": 1.5,
            "color": GREY,
            "aria": False,  # the words beside it say it
        },
        "encoding": {"y": {"datum": {"expr": "guess"}, "type": "quantitative"}},
    }
    label = {
        "data": {"values": [{}]},
        "mark": {
            "type": "text",
            "align": "right",
            "baseline": "bottom",
            "dx": -4,
            "dy": -2,
            "color": GREY,
            "text": {"expr": "'your guess: ' + format(guess, '.2f')"},
        },
        "encoding": {
            "y": {"datum": {"expr": "guess"}, "type": "quantitative"},
            "x": {"value": "width"},
        },
    }
    picture = frame(
        260,
        params,
        data={"values": rows.to_dict("records")},
        transform=[
            {"filter": shown},
            {"calculate": f"against == '{ROUNDS}' ? datum.round : log(datum.kb) / LN10", "as": "x"},
        ],
        layer=[band, line, rule, label],
    )
    units = {column: its.get("unit", "") for column, its in controls.items()}
    return chart(number, picture, caption, alt, units, keep=["guess"])
