"""Explorers of a chapter's methods: stored runs under sliders, drawn by Vega in the
page; and a panel that trains what is chosen, where there is a kernel.

FedAvg is always in the picture. The reader guesses first: a dotted line stands at the
guess, and the method appears when "show" is ticked. In Jupyter ``guess`` comes from the
cell above.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..errors import extra
from .drawings import drawing, give_looks
from .grids import chapter_file, experiment, grid, trained
from .show import Chart, Shown, chart, figure

if TYPE_CHECKING:
    from ..history import History


def control(column: str, entry: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """A Vega parameter: a slider over evenly spaced numbers, radio buttons
    otherwise."""
    bind: dict[str, Any] = {"input": "radio", "options": values}
    if not isinstance(values[0], str):
        steps = {round(b - a, 9) for a, b in pairwise(values)}
        if len(steps) == 1:
            ends = {"min": values[0], "max": values[-1]}
            bind = {"input": "range", **ends, "step": steps.pop()}
    bind["name"] = f"{entry['name']} "
    return {"name": column, "value": entry["start"], "bind": bind}


def explorer(
    number: str, name: str, caption: str, alt: str, guess: float | None = None
) -> Chart:
    """The chart over the grid of the chapter ``name``: accuracy against rounds or
    bytes.

    ``guess`` is the reader's number, an accuracy from 0 to 1; ``None`` leaves it to the
    slider in the picture and hides the method until the reader asks to see it.
    """
    if guess is not None and not 0 <= guess <= 1:
        raise ValueError(f"A guess is an accuracy from 0 to 1, not {guess!r}.")
    spec = chapter_file(name)["explorer"]
    controls = spec["controls"]
    question = spec["guess"]
    rows = grid(name)
    rows["kb"] = (rows.pop("up") + rows.pop("down")).round() / 1e3
    positions = {c: rows[c].dropna().drop_duplicates().tolist() for c in controls}
    rows = rows.astype(object).where(rows.notna(), None)  # controls of other lines
    lines = list(rows["line"].unique())
    start = question["start"] if guess is None else guess
    picture = drawing("explorer", guess=start, reveal=guess is not None)
    slider, box, *_ = picture["params"]
    slider["bind"]["name"] = f"{question['name']} "
    box["bind"]["name"] = f"show {question['line']} and its rival "
    picture["params"] += [
        control(c, entry, positions[c]) for c, entry in controls.items()
    ]
    chosen = [f"(datum.{c} === null || datum.{c} == {c})" for c in controls]
    visible = f"(reveal || datum.line == '{lines[0]}')"
    picture["transform"].append({"filter": " && ".join([*chosen, visible])})
    picture["data"] = {"values": rows.to_dict("records")}
    give_looks(picture, lines)
    units = {column: entry.get("unit", "") for column, entry in controls.items()}
    return chart(number, picture, caption, alt, units, keep=["guess"])


class Explorer(Shown):
    """An explorer of stored runs, and below it the panel that trains."""

    def __init__(self, stored: Chart, name: str) -> None:
        super().__init__(stored.content, stored.text)
        self.stored = stored
        self.name = name

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


def train_chosen(name: str, clients: int, **chosen: Any) -> "dict[str, History]":
    """A run of each line of a chapter's grid at these positions of the controls,
    with seed 0."""
    spec = chapter_file(name)["grid"]
    histories = {}
    for line, entry in spec["lines"].items():
        position = chosen.get(entry.get("control", ""))
        split = None
        if "splits" in spec and "partition" not in entry:
            split = chosen[spec["splits"]["control"]]
        histories[line] = trained(experiment(spec, line, clients, position, 0, split))
    return histories


def panel(name: str) -> Any:
    """Controls, a button, and the curves of what it trained; hidden on the site."""
    with extra("lesson"):
        from ipywidgets import SelectionSlider, interactive

    from IPython.display import display

    from ..plot import panels

    spec = chapter_file(name)
    entries = [*spec["grid"]["lines"].values(), spec["grid"].get("splits", {})]
    positions = {e["control"]: e["positions"] for e in entries if "control" in e}
    positions["clients"] = [2, 3, *spec["grid"]["clients"]]
    sliders = {
        column: SelectionSlider(
            options=[(str(value), value) for value in positions[column]],
            value=entry["start"],
            description=entry["name"],
            style={"description_width": "initial"},
            layout={"width": "95%"},
        )
        for column, entry in spec["explorer"]["controls"].items()
    }

    def train(**chosen: Any) -> None:
        histories = train_chosen(name, **chosen)
        ends = {m: f"{h.final['accuracy']:.2f}" for m, h in histories.items()}
        scores = ", ".join(f"{m} {accuracy}" for m, accuracy in ends.items())
        caption = f"Trained here just now, seed 0. Accuracy at the end: {scores}."
        display(figure("0.0", panels(histories), caption, scores))

    box = interactive(
        train, {"manual": True, "manual_name": "Train this here"}, **sliders
    )
    box.add_class("fl-live")
    return box
