"""Explorers of a chapter's methods: stored runs under sliders, drawn by Vega in the
page; and a panel that trains what is chosen, where there is a kernel.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..errors import extra
from ..lab.experiment import Experiment
from .drawings import drawing, give_looks
from .grids import chapter_file, experiment, grid, trained
from .show import Chart, chart, figure

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


def explorer(number: str, name: str, caption: str, alt: str) -> Chart:
    """The chart over the grid of the chapter ``name``: accuracy against rounds or
    bytes."""
    spec = chapter_file(name)["explorer"]
    controls = spec["controls"]
    rows = grid(name)
    rows["kb"] = (rows.pop("up") + rows.pop("down")).round() / 1e3
    positions = {c: rows[c].dropna().drop_duplicates().tolist() for c in controls}
    rows = rows.astype(object).where(rows.notna(), None)  # controls of other lines
    lines = list(rows["line"].unique())
    picture = drawing("explorer")
    picture["layer"][0]["encoding"]["color"]["legend"] |= spec.get("legend", {})
    picture["params"] += [
        control(c, entry, positions[c]) for c, entry in controls.items()
    ]
    chosen = [f"(datum.{c} === null || datum.{c} == {c})" for c in controls]
    picture["transform"].append({"filter": " && ".join(chosen)})
    picture["data"] = {"values": rows.to_dict("records")}
    give_looks(picture, lines)
    units = {column: entry.get("unit", "") for column, entry in controls.items()}
    return chart(number, picture, caption, alt, units)


def explore(number: str, name: str, caption: str, alt: str) -> None:
    """Show the stored runs of a chapter under sliders, and where there is a kernel a
    panel that trains what is chosen.

    Parameters
    ----------
    number, caption, alt : str
        Of the figure: "4.5", what stands below it, and what there is to see.
    name : str
        A chapter with a file in ``data/<chapter>/grid.json``.

    Returns
    -------
    None
        Both are displayed.

    Examples
    --------
    >>> explore("Runs", "rpn", caption="Runs.", alt="Curves that rise.")
    Traceback (most recent call last):
    ValueError: A figure has a number such as "4.2", not 'Runs'.
    """
    stored = explorer(number, name, caption, alt)
    from IPython.display import display

    display(stored, panel(number, name))


STORED = "as above"  # a knob's position: what the stored runs have


def experiments(
    name: str, clients: int, seed: int, **chosen: Any
) -> dict[str, Experiment]:
    """What each line of a chapter's grid trains at these positions."""
    spec = chapter_file(name)["grid"]
    control = spec.get("splits", {}).get("control")
    changes = {key: chosen[key] for key in ("lr", "rounds") if chosen[key] != STORED}
    if chosen.get("dirichlet", STORED) != STORED:
        changes["partition"] = f"dirichlet:{chosen['dirichlet']}"
    listed = {}
    for line, entry in spec["lines"].items():
        position = chosen.get(entry.get("control"))
        stored = experiment(spec, line, clients, position, seed, chosen.get(control))
        listed[line] = replace(stored, **changes)
    return listed


def panel(number: str, name: str) -> Any:
    """The chapter's controls and those of ``data/index``, a button, a bar, and the
    curves of what was trained; hidden on the site."""
    with extra("lesson"):
        from ipywidgets import HTML, IntProgress, SelectionSlider, interactive

    from IPython.display import display

    from ..plot import compare, panels

    spec = chapter_file(name)
    entries = [*spec["grid"]["lines"].values(), spec["grid"].get("splits", {})]
    positions = {e["control"]: e["positions"] for e in entries if "control" in e}
    positions["clients"] = [2, 3, *spec["grid"]["clients"]]
    knobs = chapter_file("index")["knobs"]
    if "splits" in spec["grid"]:
        del knobs["dirichlet"]
    controls = spec["explorer"]["controls"] | knobs
    positions |= {column: entry["positions"] for column, entry in knobs.items()}
    wide = {"style": {"description_width": "initial"}, "layout": {"width": "48%"}}
    sliders = {
        column: SelectionSlider(
            options=[(str(value), value) for value in positions[column]],
            value=entry["start"],
            description=entry["name"],
            **wide,
        )
        for column, entry in controls.items()
    }
    bar = IntProgress(**wide)
    earlier: "list[History]" = []

    def train(**chosen: Any) -> None:
        listed = experiments(name, **chosen)
        bar.value = 0
        bar.max = sum(e.rounds for e in listed.values())
        histories = {}
        for line, e in listed.items():
            histories[line] = trained(e, on_round=partial(step, bar, line))
        axs = panels(histories)
        for ax, against in zip(axs, ("rounds", "bytes"), strict=True):
            for history in earlier:
                compare(history, against, labels=["_"], ax=ax)
                ax.lines[-1].set(color="0.8", marker="", linestyle="-", zorder=0)
        earlier.extend(histories.values())
        scores = ", ".join(
            f"{line} {h.final['accuracy']:.2f}" for line, h in histories.items()
        )
        caption = f"""Trained here, seed {chosen["seed"]}. Accuracy at the end: {scores}.
        What you trained before is grey."""
        display(figure(f"{number}b", axs, caption, scores))

    box = interactive(train, {"manual": True, "manual_name": "Train"}, **sliders)
    *knobs, output = box.children
    heading = HTML("<h3>Train it here</h3>", layout={"width": "100%"})
    box.children = [heading, *knobs, bar, output]
    box.layout.flex_flow = "row wrap"
    box.add_class("fl-live")
    return box


def step(bar: Any, line: str, row: dict[str, Any], state: Any) -> None:
    """A step of the bar, with what the round reached."""
    bar.value += 1
    bar.description = f"{line}, round {row['round']}: {row['accuracy']:.2f}"
