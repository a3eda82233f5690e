"""What the chapter on which method wins reads of the shootout's runs (``shootout`` makes them): its
rows as histories, ranks with ties, and the explorer that opens the chapter."""

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import link, results
from ..history import History
from .grids import Row, stored
from .shootout import COLUMNS, contests, experiment, spec, tuning
from .shootout import short as short_runs
from .vega import GREY, LASTS, SPEED, choice, frame, slider, tick

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

COMMAND = "python -m fedlearn.book.shootout"
APART = 3.0  # standard errors between two methods of which one is ahead
TIME, BYTES, ROUNDS = "time on this link", "bytes of one client", "rounds"
# link.time for a round; up and down are powers of ten of Mbit/s, latency is in ms
SECONDS = (
    "latency / 1000 + slower * {its}.sec"
    " + 8 * {its}.down / pow(10, down + 6) + 8 * {its}.up / pow(10, up + 6)"
)
# what one of two budgets costs a round: FedAvg's (`fedavg`) or a line's (`datum`)
COST = f"(equal == '{ROUNDS}' ? 1 : equal == '{BYTES}' ? {{its}}.up + {{its}}.down : {SECONDS})"


def looks(row: Row) -> list[int]:
    """After which rounds of a run the test set was looked at."""
    its = spec()["tasks"][row["task"]]
    its = its | its["short"] if row["short"] else its
    last, step = its["rounds"], its.get("evaluate_every", 1)
    return [t for t in range(1, last + 1) if t % step == 0 or t == last]


@lru_cache(1)
def _runs() -> tuple[Row, ...]:
    return tuple(stored("shootout")[0])


def entries(short: bool = False, rows: Sequence[Row] | None = None) -> "pandas.DataFrame":
    """The stored runs, a row each; ``short`` ones are those that chose the methods' values.

    ``rounds`` are those after which the test set was looked at, ``accuracy`` what was seen there;
    ``up`` and ``down`` are bytes, ``seconds`` computing, of one client in one round, on average.
    ``least`` is the smallest ``seconds`` of all runs of this method with this task and number of
    clients, short ones too, in proportion to a whole run's images: runs share their machine with
    others, and the least disturbed comes nearest. Runs that diverged are not there. ``rows`` are
    others than the stored ones, such as those of ``shootout.enter``.
    """
    import pandas

    found = [row for row in (_runs() if rows is None else rows) if row["accuracy"]]
    least: dict[tuple, float] = {}
    for row in found:
        same, seconds = _same(row), row["seconds"] * _larger(row)
        least[same] = min(least.get(same, math.inf), seconds)
    made = [
        row | {"rounds": looks(row), "least": least[_same(row)]}
        for row in found
        if row["short"] == short
    ]
    frame = pandas.DataFrame(made, columns=[*COLUMNS, "rounds", "least"])
    return frame.drop(columns="short")


def _same(row: Row) -> tuple[str, int, str]:
    return row["task"], row["clients"], row["method"]


def _larger(row: Row) -> float:
    """How many times the images of a run a whole run has."""
    its = spec()["tasks"][row["task"]]
    return its["train"] / its["short"]["train"] if row["short"] and "train" in its else 1.0


def failed() -> list[Row]:
    """The runs that diverged, or that a task cannot have."""
    return [row for row in _runs() if not row["accuracy"]]


def dead() -> set[tuple[str, str, int, str]]:
    """(task, split, clients, method) of which no short run trained, so that there is no whole one:
    all three diverged, or the task has no such split."""
    alive: dict[tuple, list[bool]] = {}
    for r in _runs():
        if r["short"]:
            where = r["task"], r["split"], r["clients"], r["method"]
            alive.setdefault(where, []).append(bool(r["accuracy"]))
    return {where for where, its in alive.items() if len(its) == 3 and not any(its)}


def progress() -> dict[str, tuple[int, int, int, int]]:
    """Task -> short runs that are stored and that are stated, whole runs stored and possible."""
    rows, found, without = _runs(), {}, dead()
    for task, its in spec()["tasks"].items():
        there = [sum(r["task"] == task and r["short"] == s for r in rows) for s in (True, False)]
        whole = sum(where not in without for where in contests(task)) * len(its["seeds"])
        found[task] = there[0], len(short_runs(task)), there[1], whole
    return found


def history(row: Any) -> History:
    """A row of ``entries`` as a history, all clients together: what the package measures of a
    history it measures of it. All its rounds cost the same, the mean of the run's own."""
    n, seen = int(row.clients), dict(zip(row.rounds, row.accuracy, strict=True))
    rows = [
        {
            "round": t,
            "accuracy": seen.get(t),
            "loss": None,
            "bytes_up": n * row.up,
            "bytes_down": n * row.down,
            "seconds": n * row.least,
            "clients": list(range(n)),
            "refused": {},
        }
        for t in range(1, row.rounds[-1] + 1)
    ]
    about = {"dataset": row.task, "partition": row.split, "clients": n, "seed": row.seed}
    return History(row.method, {"task": about}, rows)


def tables() -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """The whole runs as ``results.tables`` has runs and rounds. A label says how many more of its
    runs diverged, a command is that of its first run."""
    keys, file = ("task", "split", "clients", "method"), "data/grids/shootout.json"
    lost = Counter(tuple(r[k] for k in keys) for r in failed() if not r["short"])
    made, commands = [], dict[Any, str]()
    for row in entries().itertuples():
        where = row.task, row.split, row.clients, row.method
        e = experiment(*where, row.value, row.seed, False)  # type: ignore
        command = commands.setdefault(where, shlex.join(["fedlearn", "run", *e.arguments()]))
        task = {k: getattr(e, k) for k in ("dataset", "clients", "seed", "partition", "train")}
        task["network"] = e.options.get("network", e.options.get("edge", e.network))
        label = row.method + (f" ({lost[where]} more diverged)" if lost[where] else "")
        meta = {"task": task, "label": label, "settings": vars(e.settings)}
        meta["provenance"] = {"command": command}
        made.append(History(e.method, meta, history(row).rows))
    runs, rounds = results.tables(made)
    return runs.assign(file=file, folder=file), rounds


def ahead(a: Sequence[float], b: Sequence[float], apart: float = APART) -> bool:
    """Is the mean of ``a`` above that of ``b`` by more than ``apart`` standard errors of their
    difference? ``ValueError`` if one of them has fewer than two values: it has no spread."""
    if min(len(a), len(b)) < 2:
        raise ValueError("One run has no spread: there is no rank without a second seed.")
    error = math.sqrt(np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b))
    return float(np.mean(a) - np.mean(b)) > apart * error


def ranks(scores: Mapping[str, Sequence[float]], apart: float = APART) -> dict[str, int]:
    """Method -> its rank, one more than the number of methods that are ``ahead`` of it. Methods
    that nobody is ahead of share rank 1. ``scores`` has a number a seed, the higher the better."""
    return {
        name: 1 + sum(ahead(other, own, apart) for other in scores.values())
        for name, own in scores.items()
    }


Ranked = Mapping[str, Mapping[str, int]]


def standings(ranked: Ranked, title: str, by: Ranked | None = None) -> "Axes":
    """Contest -> method -> rank, as a matrix that shows its numbers: a row a method, the best on
    average (of the ranks ``by``, if they are given) first, a column a contest, the darker the
    nearer to the first rank."""
    import matplotlib.pyplot as plt

    names = {name for its in ranked.values() for name in its}
    of = [*(by or ranked).values()]
    mean = {n: float(np.mean([r[n] for r in of if n in r])) for n in names}
    order = sorted(names, key=lambda n: (mean[n], n))
    size = (2.3 + 0.27 * max(6, len(ranked)), 1.6 + 0.21 * max(3, len(order)))
    ax = plt.subplots(figsize=size, layout="constrained")[1]
    ax.set_title(title, fontsize=11, loc="left")
    if not ranked:
        ax.set_axis_off()
        ax.text(0, 0.5, f"not yet run:\n{COMMAND}", fontsize=10, va="center")
        return ax
    table = np.array([[its.get(n, np.nan) for its in ranked.values()] for n in order])
    ax.imshow(table, cmap="Greys_r", vmin=-1.5 * len(order), vmax=len(order), aspect="auto")
    for i, j in zip(*np.nonzero(~np.isnan(table)), strict=True):
        first = {"fontweight": "bold"} if table[i, j] == 1 else {}
        ax.text(j, i, f"{table[i, j]:.0f}", ha="center", va="center", fontsize=10, **first)
    ax.set_yticks(range(len(order)), order, fontsize=10)
    ax.set_xticks(range(len(ranked)), list(ranked), rotation=90, fontsize=10)
    ax.tick_params(length=0)
    return ax


def central(frame: "pandas.DataFrame") -> dict[str, float]:
    """Task -> what FedAvg reaches in the end with one client who has all images, mean of seeds."""
    alone = frame[frame["clients"] == 1]
    ends = alone["accuracy"].str[-1].astype(float)
    return {str(task): float(of.mean()) for task, of in ends.groupby(alone["task"])}


def lines(frame: "pandas.DataFrame", share: float = 0.9) -> list[dict[str, Any]]:
    """For the explorer, a line a method, task, split and number of clients: what a round costs, and
    the accuracies, mean, lowest and highest of the seeds. ``target`` is a ``share`` of the
    centralised accuracy."""
    goal = {task: share * value for task, value in central(frame).items()}
    federated = frame[frame["clients"] > 1]
    made: list[dict[str, Any]] = []
    for where, of in federated.groupby(["task", "split", "clients", "method"], sort=False):
        task, split, clients, method = where  # type: ignore[misc]
        curves = np.array(of["accuracy"].tolist())
        first = of.iloc[0]
        made.append(
            {
                "task": task,
                "split": split,
                "clients": int(clients),
                "method": method,
                "tuned": f"{tuning(method)[0]} {first['value']:g}",
                "seeds": len(of),
                "up": round(float(of["up"].mean())),
                "down": round(float(of["down"].mean())),
                "sec": round(float(first["least"]), 5),
                "last": first["rounds"][-1],
                "every": first["rounds"][0],
                "target": round(goal[task], 3) if task in goal else None,
                "mean": [round(v, 3) for v in curves.mean(0)],
                "low": [round(v, 3) for v in curves.min(0)],
                "high": [round(v, 3) for v in curves.max(0)],
            }
        )
    return made


def _absent(there: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line that says so for each contest of which no run is stored."""
    its, have = spec(), {(r["task"], r["split"], r["clients"]) for r in there}
    every = [(t, s, n) for t in its["tasks"] for s in its["splits"] for n in its["clients"]]
    nothing = {where[:3] for where in dead()} - have
    costs = {"up": 0, "down": 0, "sec": 0, "last": 0, "every": 1, "mean": [], "low": [], "high": []}
    return [
        {"task": t, "split": s, "clients": n, **costs}
        | (
            {"method": "no such split", "words": f"{n} clients cannot be split so"}
            if (t, s, n) in nothing
            else {"method": "not yet run", "words": COMMAND}
        )
        for t, s, n in every
        if (t, s, n) not in have
    ]


def rivals(guess: int | None = None) -> dict[str, Any]:
    """The explorer: who is how accurate within a budget of time, bytes or rounds, as a list whose
    order moves with the link. ``guess`` is the place of FedAvg that the reader expects; without it
    FedAvg is hidden until the reader asks to see it."""
    its = spec()
    values = lines(entries())
    places = len(its["methods"])
    if guess is not None and not 1 <= guess <= places:
        raise ValueError(f"FedAvg's place is a number from 1 to {places}, not {guess!r}.")
    costs = {
        f"{r['task']}|{r['split']}|{r['clients']}": {k: r[k] for k in ("up", "down", "sec", "last")}
        for r in values
        if r["method"] == "FedAvg"
    }
    nothing = json.dumps({"up": 0, "down": 0, "sec": 0, "last": 0})
    its_link = link.PRESETS["3G"]
    start = link.check(its_link.up, its_link.down, its_link.latency)
    of = (
        f"equal == '{ROUNDS}' ? format(limit, '.2~r') + ' rounds' : equal == '{BYTES}' ? "
        f"format(limit, '.3~s') + 'B of one client' : {LASTS.format('limit')}"
    )
    params = [
        slider("guess", "your guess: place of FedAvg", guess or 1, 1, places, 1),
        tick("reveal", "show FedAvg", guess is not None),
        choice("task", "task", [*its["tasks"]], None, "select"),
        choice("split", "split", [*its["splits"]], [*its["splits"]][-1]),
        choice("clients", "clients", its["clients"]),
        choice("equal", "equal", [TIME, BYTES, ROUNDS], TIME),
        slider("budget", "budget", -0.56, -3, 0.5, 0.02),  # 5.5 of 20 rounds
        slider("up", "uplink", round(math.log10(start[0]) - 6, 4), -2.5, 3, 0.05),
        slider("down", "downlink", round(math.log10(start[1]) - 6, 4), -2.5, 3, 0.05),
        slider("latency", "round trip", 1000 * start[2], 0, 2000, 10),
        slider("slower", "device slower", 1, 0, 50, 1),
        {"name": "fedavg", "expr": f"({json.dumps(costs)})[task + '|' + split + '|' + clients] || "
         f"{nothing}"},
        {"name": "limit", "expr": f"pow(10, budget) * fedavg.last * {COST.format(its='fedavg')}"},
        {"name": "saysBudget",
         "expr": f"format(pow(10, budget), '.2~p') + ' of FedAvg: ' + ({of})"},
        {"name": "saysUp", "expr": SPEED.format("up")},
        {"name": "saysDown", "expr": SPEED.format("down")},
        {"name": "saysLatency", "expr": "format(latency, '.0f') + ' ms'"},
        {"name": "saysSlower", "expr": "format(slower, '.0f') + ' times'"},
    ]  # fmt: skip
    y = {
        "field": "method",
        "type": "nominal",
        "title": None,
        "sort": {"field": "order", "op": "max", "order": "descending"},
        "axis": {"labelLimit": 180, "labelFontSize": 11, "labelPadding": 4, "ticks": False,
                 "grid": False, "labelFontWeight": {
                     "condition": {"test": "datum.value == 'FedAvg'", "value": "bold"},
                     "value": "normal"}},
    }  # fmt: skip
    x = {
        "field": "accuracy",
        "type": "quantitative",
        "title": "test accuracy",
        "scale": {"domain": [0, 1.28], "nice": False},  # with room for words on the right
        "axis": {"values": [0, 0.2, 0.4, 0.6, 0.8, 1]},
    }
    own, over = "datum.method == 'FedAvg'", "limit / datum.cost >= datum.last + 1"
    colour = {"condition": {"test": own, "value": "#D55E00"}, "value": "#0072B2"}
    small = {"fontSize": 11, "color": GREY}
    return frame(
        17 * places,
        params,
        title={"text": {"expr": "'within ' + saysBudget"}, "anchor": "start", "fontSize": 13,
               "color": GREY},
        data={"values": values + _absent(values)},
        transform=[
            {"filter": "datum.task == task && datum.split == split && datum.clients == clients"},
            {"filter": f"reveal || !({own})"},
            {"calculate": COST.format(its="datum"), "as": "cost"},
            {"calculate": "min(datum.last, floor(limit / datum.cost + 1e-9))", "as": "done"},
            {"calculate": "floor(datum.done / datum.every)", "as": "k"},
            *(
                {"calculate": f"datum.k > 0 ? datum.{a}[datum.k - 1] : null", "as": b}
                for a, b in (("mean", "accuracy"), ("low", "lowest"), ("high", "highest"))
            ),
            {"calculate": "datum.k > 0 ? datum.accuracy : -1", "as": "order"},
            {"calculate": "datum.words ? '' : datum.done + ' of ' + datum.last", "as": "says"},
            {"window": [{"op": "row_number", "as": "place"}],
             "sort": [{"field": "order", "order": "descending"}]},
        ],
        layer=[
            {
                "transform": [{"filter": "isValid(datum.target)"}],
                "mark": {"type": "rule", "strokeDash": [2, 3], "color": GREY, "aria": False},
                "encoding": {"x": x | {"field": "target", "aggregate": "mean"}},
            },
            {
                "transform": [{"filter": "datum.k > 0"}],
                "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.5},
                "encoding": {"y": y, "x": x | {"field": "lowest"}, "x2": {"field": "highest"},
                             "color": colour},
            },
            {
                "transform": [{"filter": "datum.k > 0"}],
                "mark": {"type": "point", "size": 55, "strokeWidth": 2, "opacity": 1},
                "encoding": {
                    "y": y,
                    "x": x,
                    "color": colour,
                    "fill": {"condition": [{"test": over, "value": "transparent"},
                                           {"test": own, "value": "#D55E00"}], "value": "#0072B2"},
                    "shape": {"condition": {"test": own, "value": "diamond"}, "value": "circle"},
                    "tooltip": [
                        {"field": "method"},
                        {"field": "tuned", "title": "tuned"},
                        {"field": "seeds", "title": "seeds"},
                        {"field": "done", "title": "rounds within the budget"},
                        {"field": "accuracy", "title": "accuracy, mean of the seeds"},
                        {"field": "lowest"},
                        {"field": "highest"},
                    ],
                },
            },
            {
                "mark": {"type": "text", "align": "right", "dx": -2, **small},
                "encoding": {"y": y, "x": {"value": "width"}, "text": {"field": "says"}},
            },
            {
                "transform": [{"filter": "isValid(datum.words)"}],
                "mark": {"type": "text", "align": "left", "dx": 4, **small},
                "encoding": {"y": y, "x": {"value": 0}, "text": {"field": "words"}},
            },
            {
                "transform": [
                    {"filter": f"datum.place == min(guess, reveal ? {places} : {places - 1})"}
                ],
                "mark": {"type": "text", "align": "left", "dx": 4, "fontWeight": "bold", **small},
                "encoding": {"y": y, "x": {"value": 0}, "text": {"value": "◂ your guess"}},
            },
        ],
    )  # fmt: skip
