"""Explorers of a chapter's methods: stored runs under sliders, drawn by Vega in the
page; and a panel that trains what is asked for, where there is a kernel.

FedAvg is always in the picture. The reader guesses first: a dotted line stands at the
guess, and the method appears when "show" is ticked. In Jupyter ``guess`` comes from the
cell above.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import extra
from .grids import chapter_file, experiment, grid, trained
from .show import Chart, Shown, chart

if TYPE_CHECKING:
    from ..history import History

ROUNDS = "rounds"
BYTES = "kilobytes of one client"


def control(column: str, spec: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """A Vega parameter: a slider over evenly spaced numbers, radio buttons
    otherwise."""
    from .vega import choice, slider

    numbers = all(isinstance(v, int | float) for v in values)
    steps = (
        {round(b - a, 9) for a, b in zip(values, values[1:], strict=False)}
        if numbers
        else {0}
    )
    if spec["start"] not in values:
        raise ValueError(
            f"{column} starts at {spec['start']!r}, which is none of {values}."
        )
    if numbers and len(steps) == 1:
        return slider(
            column, spec["name"], spec["start"], values[0], values[-1], steps.pop()
        )
    return choice(column, spec["name"], values, spec["start"])


def explorer(
    number: str, name: str, caption: str, alt: str, guess: float | None = None
) -> Chart:
    """The chart over the grid of the chapter ``name``: accuracy against rounds or
    bytes.

        ``guess`` is the reader's number, an accuracy from 0 to 1; ``None`` leaves it to
        the slider in the picture and hides the method until the reader asks to see it.
    """
    from . import vega
    from .vega import DOTTED, GREY, LEGEND, ONE, choice, layered, slider, tick
    from .vega import alt as altair

    spec = chapter_file(name)["explorer"]
    rows = grid(name)
    if guess is not None and not 0 <= guess <= 1:
        raise ValueError(f"A guess is an accuracy from 0 to 1, not {guess!r}.")
    rows = rows.assign(kb=(rows["up"] + rows["down"]) / 1e3).drop(
        columns=["up", "down"]
    )
    rows = rows.astype(object).where(
        rows.notna(), None
    )  # a control that is not a line's own
    controls = spec["controls"]
    asked = spec["guess"]
    params = [
        slider(
            "guess",
            asked["name"],
            asked["start"] if guess is None else guess,
            0,
            1,
            0.01,
        ),
        tick("reveal", f"show {asked['line']} and its rival", guess is not None),
        *(
            control(
                column,
                entry,
                list(dict.fromkeys(v for v in rows[column] if v is not None)),
            )
            for column, entry in controls.items()
        ),
        choice("against", "against", [ROUNDS, BYTES]),
    ]
    lines = list(dict.fromkeys(rows["line"]))
    chosen = " && ".join(f"(datum.{c} === null || datum.{c} == {c})" for c in controls)
    shared = (
        altair.Chart(altair.InlineData(values=rows.to_dict("records")))
        .transform_filter(f"{chosen} && (reveal || datum.line == '{lines[0]}')")
        .transform_calculate(
            x=f"against == '{ROUNDS}' ? datum.round : log(datum.kb) / LN10"
        )
    )
    label = (
        f"against == '{ROUNDS}' ? (datum.value % 1 ? '' : 'round ' + datum.value) : "
        "format(pow(10, datum.value), '.3~s') + ' kB'"
    )
    axis = altair.Axis(
        title=None, grid=True, tickCount=6, labelExpr=label, labelOverlap=True
    )
    x = altair.X("x:Q", axis=axis, scale=altair.Scale(zero=False))
    side = {"scale": {"domain": [0, 1]}, "title": "test accuracy"}
    legend = LEGEND | {"symbolSize": 90}
    colour = vega.methods(altair.Color, "line", lines, vega.COLOURS, legend)
    dash = vega.methods(altair.StrokeDash, "line", lines, vega.DASHES, None)
    shape = vega.methods(altair.Shape, "line", lines, vega.SHAPES, legend)
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
        .encode(
            x, altair.Y("accuracy:Q", **side), colour, dash, shape, tooltip=tooltip
        ),
        altair.Chart(ONE).mark_rule(**DOTTED, strokeWidth=1.5).encode(y=at_guess),
        altair.Chart(ONE)
        .mark_text(
            align="right", baseline="bottom", dx=-4, dy=-2, color=GREY, text=words
        )
        .encode(x=altair.value("width"), y=at_guess),
    ]
    units = {column: entry.get("unit", "") for column, entry in controls.items()}
    picture = layered(260, params, layers, shared)
    return chart(number, picture, caption, alt, units, keep=["guess"])


class Explorer(Shown):
    """An explorer of stored runs, and below it the panel that trains."""

    def __init__(self, stored: Chart, name: str) -> None:
        super().__init__(stored.content, stored.text)
        self.stored, self.name = stored, name

    def _ipython_display_(self) -> None:
        from IPython.display import display

        self.stored._ipython_display_()
        display(panel(self.name))


def explore(
    number: str, name: str, caption: str, alt: str, guess: float | None = None
) -> Explorer:
    """The stored runs of a chapter under sliders, and where there is a kernel a panel
    of the same controls that trains what is chosen.

    Parameters
    ----------
    number, caption, alt : str
        Of the figure: "4.5", what stands below it, and what there is to see.
    name : str
        A chapter with a file in ``data/<chapter>/grid.json``.
    guess : float, optional
        The reader's accuracy, 0 to 1; without it a slider asks for one.

    Returns
    -------
    Explorer
        To be shown.

    Examples
    --------
    >>> explore("4.5", "rpn", caption="Runs.", alt="Curves that rise.", guess=0.8).name
    'rpn'
    """
    return Explorer(explorer(number, name, caption, alt, guess), name)


def train_chosen(
    name: str, clients: int, chosen: Mapping[str, Any]
) -> "dict[str, History]":
    """A run of each line of a chapter's grid at these positions of the controls,
    with seed 0."""
    spec = chapter_file(name)["grid"]
    histories = {}
    for line, of_line in spec["lines"].items():
        position = chosen.get(of_line.get("control"))
        split = None
        if "splits" in spec and "partition" not in of_line:
            split = chosen[spec["splits"]["control"]]
        histories[line] = trained(experiment(spec, line, clients, position, 0, split))
    return histories


def panel(name: str) -> Any:
    """Controls, a button, and the curves of what it trained. (ipywidgets; hidden on
    the site.)"""
    with extra("lesson"):
        import ipywidgets as W

    from ..plot import panels
    from .show import figure

    spec = chapter_file(name)
    lines = spec["grid"]["lines"].values()
    controls = spec["explorer"]["controls"]
    positions = {
        line["control"]: list(line["positions"]) for line in lines if "control" in line
    }
    if "splits" in spec["grid"]:
        positions[spec["grid"]["splits"]["control"]] = list(
            spec["grid"]["splits"]["positions"]
        )
    positions["clients"] = [2, 3, *spec["grid"]["clients"]]
    look = {"style": {"description_width": "initial"}, "layout": W.Layout(width="95%")}
    chosen = {
        column: W.SelectionSlider(
            options=[(str(v), v) for v in positions[column]],
            value=entry["start"],
            description=entry["name"],
            **look,
        )
        for column, entry in controls.items()
    }
    button = W.Button(description="Train this here")
    picture = W.HTML()

    def train(_: object = None) -> None:
        button.disabled, picture.value = True, "training, some seconds ..."
        try:
            values = {column: s.value for column, s in chosen.items()}
            histories = train_chosen(name, values.pop("clients"), values)
            ends = {m: f"{h.final['accuracy']:.2f}" for m, h in histories.items()}
            scores = ", ".join(f"{m} {accuracy}" for m, accuracy in ends.items())
            caption = f"Trained here just now, seed 0. Accuracy at the end: {scores}."
            picture.value = figure("0.0", panels(histories), caption, scores).content
        except Exception as error:  # what cannot be is said in the panel
            picture.value = f"<p>{type(error).__name__}: {error}</p>"
        finally:
            button.disabled = False

    button.on_click(train)
    box = W.VBox([*chosen.values(), button, picture])
    box.add_class("fl-live")
    return box
