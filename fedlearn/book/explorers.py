"""The explorer that opens a chapter: stored runs under sliders, drawn by Vega in the page.

FedAvg is always in the picture. The reader guesses first: a dotted line stands at the guess, and
the method appears when "show" is ticked. In Jupyter ``guess`` comes from the cell above.
"""

from typing import Any

from .grids import chapter_file, grid
from .show import Chart, chart

ROUNDS, BYTES = "rounds", "kilobytes of one client"


def control(column: str, spec: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """A Vega parameter: a slider over evenly spaced numbers, radio buttons otherwise."""
    from .vega import choice, slider

    numbers = all(isinstance(v, int | float) for v in values)
    steps = {round(b - a, 9) for a, b in zip(values, values[1:], strict=False)} if numbers else {0}
    if spec["start"] not in values:
        raise ValueError(f"{column} starts at {spec['start']!r}, which is none of {values}.")
    if numbers and len(steps) == 1:
        return slider(column, spec["name"], spec["start"], values[0], values[-1], steps.pop())
    return choice(column, spec["name"], values, spec["start"])


def explorer(number: str, name: str, caption: str, alt: str, guess: float | None = None) -> Chart:
    """The chart over the grid of the chapter ``name``: accuracy against rounds or bytes.

    ``guess`` is the reader's number, an accuracy from 0 to 1; ``None`` leaves it to the slider in
    the picture and hides the method until the reader asks to see it.
    """
    from . import vega
    from .vega import DOTTED, GREY, LEGEND, ONE, choice, layered, series, slider, tick
    from .vega import alt as altair

    spec, rows = chapter_file(name)["explorer"], grid(name)
    if guess is not None and not 0 <= guess <= 1:
        raise ValueError(f"A guess is an accuracy from 0 to 1, not {guess!r}.")
    rows = rows.assign(kb=(rows["up"] + rows["down"]) / 1e3).drop(columns=["up", "down"])
    rows = rows.astype(object).where(rows.notna(), None)  # a control that is not a line's own
    controls, asked = spec["controls"], spec["guess"]
    params = [
        slider("guess", asked["name"], asked["start"] if guess is None else guess, 0, 1, 0.01),
        tick("reveal", f"show {asked['line']} and its rival", guess is not None),
        *(
            control(column, of, list(dict.fromkeys(v for v in rows[column] if v is not None)))
            for column, of in controls.items()
        ),
        choice("against", "against", [ROUNDS, BYTES]),
    ]
    lines = list(dict.fromkeys(rows["line"]))
    chosen = " && ".join(f"(datum.{c} === null || datum.{c} == {c})" for c in controls)
    shared = (
        altair.Chart(altair.InlineData(values=rows.to_dict("records")))
        .transform_filter(f"{chosen} && (reveal || datum.line == '{lines[0]}')")
        .transform_calculate(x=f"against == '{ROUNDS}' ? datum.round : log(datum.kb) / LN10")
    )
    label = (
        f"against == '{ROUNDS}' ? (datum.value % 1 ? '' : 'round ' + datum.value) : "
        "format(pow(10, datum.value), '.3~s') + ' kB'"
    )
    axis = altair.Axis(title=None, grid=True, tickCount=6, labelExpr=label, labelOverlap=True)
    x = altair.X("x:Q", axis=axis, scale=altair.Scale(zero=False))
    side = {"scale": {"domain": [0, 1]}, "title": "test accuracy"}
    legend = LEGEND | {"symbolSize": 90}
    colour = series(altair.Color, "line", lines, vega.COLOURS, legend)
    dash = series(altair.StrokeDash, "line", lines, vega.DASHES, None)
    shape = series(altair.Shape, "line", lines, vega.SHAPES, legend)
    tooltip = [
        altair.Tooltip("line:N", title="method"),
        altair.Tooltip("round:N", title="round"),
        altair.Tooltip("accuracy:N", title="accuracy, mean of the seeds"),
        altair.Tooltip("low:N", title="lowest"),
        altair.Tooltip("high:N", title="highest"),
        altair.Tooltip("kb:N", title="kB of one client so far", format=",.0f"),
    ]
    at_guess = altair.YDatum(altair.ExprRef("guess"), type="quantitative")
    words = altair.ExprRef("'your guess: ' + format(guess, '.2f')")
    layers = [
        altair.Chart()
        .mark_area(fillOpacity=0.2)
        .encode(x, altair.Y("low:Q", **side), altair.Y2("high"), colour),
        altair.Chart()
        .mark_line(point={"size": 45}, strokeWidth=2)
        .encode(x, altair.Y("accuracy:Q", **side), colour, dash, shape, tooltip=tooltip),
        altair.Chart(ONE).mark_rule(**DOTTED, strokeWidth=1.5).encode(y=at_guess),
        altair.Chart(ONE)
        .mark_text(align="right", baseline="bottom", dx=-4, dy=-2, color=GREY, text=words)
        .encode(x=altair.value("width"), y=at_guess),
    ]
    units = {column: of.get("unit", "") for column, of in controls.items()}
    picture = layered(260, params, layers, shared)
    return chart(number, picture, caption, alt, units, keep=["guess"])
