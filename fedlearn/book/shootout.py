"""Chapter 12, which one wins: all methods on the same tasks with the same budget of tuning, ranks
with ties, the explorer that opens the chapter, and the checks of the exercises.

``python -m fedlearn.book.shootout --jobs 2`` runs what ``data/chapters/shootout.yaml`` states and
``data/grids/shootout.json`` does not have yet: each method on each task, split and number of
clients. First short runs with three values of one of its options, usually the learning rate, then
whole runs with the best of them, seed after seed. It may be stopped at any time. A row of the file
is a run; ``accuracy`` has the rounds that were evaluated, ``up`` and ``down`` are bytes of one
client in one round, on average, ``seconds`` those that one client computed in a round.
"""

import itertools
import json
import math
import shlex
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import link, results
from ..errors import Diverged, WireError, pick
from ..experiment import Experiment
from ..history import History
from .check import Function, number
from .grids import Row, chapter_file, command_line, fill, stored

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

CELL = ("task", "split", "clients", "method")
RUN = (*CELL, "value", "seed", "short")
COLUMNS = (*RUN, "accuracy", "up", "down", "seconds")
COMMAND = "python -m fedlearn.book.shootout"
Cell = tuple[str, str, int, str]

# ---- the runs ------------------------------------------------------------------------------------


@cache
def spec() -> dict[str, Any]:
    """What ``data/chapters/shootout.yaml`` states."""
    return chapter_file("shootout")


def cell(row: Any) -> Cell:
    """(task, split, clients, method) of a row."""
    task, split, clients, method = (row[key] for key in CELL)
    return task, split, clients, method


def contests(task: str) -> Iterator[Cell]:
    """Every (task, split, number of clients, method) of a task, in the order in which they are run.
    First FedAvg with one client, who has all images: training without federation."""
    stated = spec()
    yield task, next(iter(stated["splits"])), 1, "FedAvg"
    for case in itertools.product(stated["splits"], stated["clients"], stated["methods"]):
        yield task, *case


def tuning(method: str, entry: Row | None = None) -> tuple[str, list[float]]:
    """The option of a method that is tuned, and its three values. ``entry`` states a method that
    the file does not have."""
    stated = spec()
    [option] = (entry or stated["methods"][method]).get("tune", stated["tune"]).items()
    return option


def experiment(
    task: str,
    split: str,
    clients: int,
    method: str,
    value: float,
    seed: int,
    short: bool,
    entry: Row | None = None,
) -> Experiment:
    """What states a run."""
    of_task, row = spec()["tasks"][task], entry or spec()["methods"][method]
    how = {k: v for k, v in of_task.items() if k not in ("short", "seeds", "networks")}
    how |= of_task["short"] if short else {}
    option, _ = tuning(method, entry)
    network = of_task["networks"].get(method, {})
    return Experiment(
        method=row["method"],
        options=network | row.get("options", {}) | {option: value},
        partition=spec()["splits"][split],
        clients=clients,
        seed=seed,
        **how,
    )


def ran(run: tuple, entry: Row | None = None) -> tuple:
    """One run -> its row."""
    import torch

    from ..round import run as train

    torch.set_num_threads(1)
    e = experiment(**dict(zip(RUN, run, strict=True)), entry=entry)
    how = asdict(e.settings) | {"engine": "auto", "threads": 1, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = train(e.make_method(), e.make_task(), e.rounds, **how)
    count = [max(1, len(row["clients"])) for row in history.rows]
    columns = (history.bytes_up, history.bytes_down, history.seconds)
    up, down, seconds = (float((column / count).mean()) for column in columns)
    accuracy = [round(row["accuracy"], 4) for row in history.rows if row["accuracy"] is not None]
    return (*run, accuracy, round(up, 1), round(down, 1), round(seconds, 5))


def trained(run: tuple) -> tuple:
    """``ran``; but a run that diverges, or a method that the task cannot have, has no accuracy."""
    try:
        return ran(run)
    except (ValueError, Diverged, WireError):
        return (*run, [], None, None, None)


def rows_of(run: tuple) -> list[tuple]:
    return [trained(run)]


def enter(
    method: str,
    task: str = "digits",
    split: str = "one main class",
    clients: int = 10,
    tune: dict[str, list[float]] | None = None,
    **options: Any,
) -> list[Row]:
    """A method of your own in one contest, such as "mine.py:method": the short runs with the values
    of ``tune``, by default three learning rates, then the whole runs with the best; a row each, as
    in the file, which stays as it is."""
    stated = spec()
    if method in stated["methods"]:
        raise ValueError(f"The contest has {method!r} already.")
    pick(task, stated["tasks"], "task of the contest")
    pick(split, stated["splits"], "split of the contest")
    entry = {"method": method, "options": options} | ({"tune": tune} if tune else {})
    case = task, split, clients, method

    def rows(runs: Iterable[tuple]) -> list[Row]:
        return [dict(zip(COLUMNS, ran(run, entry), strict=True)) for run in runs]

    tried = rows((*case, value, 0, True) for value in tuning(method, entry)[1])
    value = best(tried)[case]
    return tried + rows((*case, value, seed, False) for seed in stated["tasks"][task]["seeds"])


def best(rows: Iterable[Row]) -> dict[Cell, float]:
    """(task, split, clients, method) -> the value whose short run ended highest, of equal ones the
    largest."""
    ends: dict[Cell, tuple[float, float]] = {}
    for row in rows:
        if row["short"] and row["accuracy"]:
            key = cell(row)
            ends[key] = max(ends.get(key, (-1.0, 0.0)), (row["accuracy"][-1], row["value"]))
    return {key: value for key, (_, value) in ends.items()}


def short_runs(task: str) -> list[tuple]:
    """The runs that choose the methods' values on a task."""
    return [(*case, value, 0, True) for case in contests(task) for value in tuning(case[-1])[1]]


def whole_runs(task: str, rows: list[Row]) -> list[tuple]:
    """The runs with the best values on a task, the first seed of all before the second of any."""
    values, seeds = best(rows), spec()["tasks"][task]["seeds"]
    cases = [case for case in contests(task) if case in values]
    return [(*case, values[case], seed, False) for seed in seeds for case in cases]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", choices=spec()["tasks"], help="one task")
    args = parser.parse_args()
    stages: list[Any] = []
    for task in [args.only] if args.only else spec()["tasks"]:
        stages += [lambda _, t=task: short_runs(t), lambda rows, t=task: whole_runs(t, rows)]
    fill("shootout", COMMAND, len(RUN), COLUMNS, rows_of, stages, args)


# ---- what is read of them ------------------------------------------------------------------------


def evaluated(row: Row) -> list[int]:
    """After which rounds of a run the test set was looked at."""
    how = spec()["tasks"][row["task"]]
    how = how | how["short"] if row["short"] else how
    last, step = how["rounds"], how.get("evaluate_every", 1)
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

    trained = [row for row in (_runs() if rows is None else rows) if row["accuracy"]]
    frame = pandas.DataFrame(trained, columns=list(COLUMNS))
    frame["rounds"] = [evaluated(row) for row in trained]
    whole = [row["seconds"] * _larger(row) for row in trained]
    same = frame.assign(least=whole).groupby(["task", "clients", "method"])
    frame["least"] = same["least"].transform("min")
    return frame[frame["short"] == short].drop(columns="short").reset_index(drop=True)


def _larger(row: Row) -> float:
    """How many times the images of a run a whole run has."""
    how = spec()["tasks"][row["task"]]
    return how["train"] / how["short"]["train"] if row["short"] and "train" in how else 1.0


def failed() -> list[Row]:
    """The runs that diverged, or that a task cannot have."""
    return [row for row in _runs() if not row["accuracy"]]


def dead() -> set[Cell]:
    """(task, split, clients, method) of which no short run trained, so that there is no whole one:
    all three diverged, or the task has no such split."""
    alive: dict[Cell, list[bool]] = {}
    for row in _runs():
        if row["short"]:
            alive.setdefault(cell(row), []).append(bool(row["accuracy"]))
    return {case for case, runs in alive.items() if len(runs) == 3 and not any(runs)}


def progress() -> dict[str, tuple[int, int, int, int]]:
    """Task -> short runs that are stored and that are stated, whole runs stored and possible."""
    counts, without = Counter((row["task"], bool(row["short"])) for row in _runs()), dead()
    return {
        task: (
            counts[task, True],
            len(short_runs(task)),
            counts[task, False],
            sum(case not in without for case in contests(task)) * len(stated["seeds"]),
        )
        for task, stated in spec()["tasks"].items()
    }


def history(row: Any) -> History:
    """A row of ``entries`` as a history, all clients together: what the package measures of a
    history it measures of it. All its rounds cost the same, the mean of the run's own."""
    n, curve = int(row.clients), dict(zip(row.rounds, row.accuracy, strict=True))
    same = {"loss": None, "bytes_up": n * row.up, "bytes_down": n * row.down, "refused": {}}
    same |= {"seconds": n * row.least, "clients": list(range(n))}
    rounds = range(1, row.rounds[-1] + 1)
    task = {"dataset": row.task, "partition": row.split, "clients": n, "seed": row.seed}
    rows = [{"round": t, "accuracy": curve.get(t), **same} for t in rounds]
    return History(row.method, {"task": task}, rows)


def tables() -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """The whole runs as ``results.tables`` has runs and rounds. A label says how many more of its
    runs diverged, a command is that of its first run."""
    file = "data/grids/shootout.json"
    lost = Counter(cell(row) for row in failed() if not row["short"])
    histories, commands = [], dict[Any, str]()
    for row in entries().itertuples():
        case = row.task, row.split, row.clients, row.method
        e = experiment(*case, row.value, row.seed, False)  # type: ignore
        command = commands.setdefault(case, shlex.join(["fedlearn", "run", *e.arguments()]))
        task = {k: getattr(e, k) for k in ("dataset", "clients", "seed", "partition", "train")}
        task["network"] = e.options.get("network", e.options.get("edge", e.network))
        label = row.method + (f" ({lost[case]} more diverged)" if lost[case] else "")  # type: ignore
        meta = {"task": task, "label": label, "settings": vars(e.settings)}
        meta |= {"provenance": {"command": command}, "chosen_on": "test"}
        histories.append(History(e.method, meta, history(row).rows))
    runs, rounds = results.tables(histories)
    return runs.assign(file=file), rounds


# ---- ranks ---------------------------------------------------------------------------------------

APART = 3.0  # standard errors between two methods of which one is ahead


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
        name: 1 + sum(ahead(other, runs, apart) for other in scores.values())
        for name, runs in scores.items()
    }


Ranked = Mapping[str, Mapping[str, int]]


def standings(ranked: Ranked, title: str, by: Ranked | None = None) -> "Axes":
    """Contest -> method -> rank, as a matrix that shows its numbers: a row a method, the best on
    average (of the ranks ``by``, if they are given) first, a column a contest, the darker the
    nearer to the first rank."""
    import matplotlib.pyplot as plt

    names = {name for ranks in ranked.values() for name in ranks}
    columns = [*(by or ranked).values()]
    mean = {n: float(np.mean([ranks[n] for ranks in columns if n in ranks])) for n in names}
    order = sorted(names, key=lambda n: (mean[n], n))
    size = (2.3 + 0.27 * max(6, len(ranked)), 1.6 + 0.21 * max(3, len(order)))
    ax = plt.subplots(figsize=size, layout="constrained")[1]
    ax.set_title(title, fontsize=11, loc="left")
    if not ranked:
        ax.set_axis_off()
        ax.text(0, 0.5, f"not yet run:\n{COMMAND}", fontsize=10, va="center")
        return ax
    table = np.array([[ranks.get(n, np.nan) for ranks in ranked.values()] for n in order])
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
    return {str(task): float(end.mean()) for task, end in ends.groupby(alone["task"])}


# ---- the explorer --------------------------------------------------------------------------------

TIME, BYTES, ROUNDS = "time on this link", "bytes of one client", "rounds"
# link.time for a round; up and down are powers of ten of Mbit/s, latency is in ms
SECONDS = (
    "latency / 1000 + slower * {its}.sec"
    " + 8 * {its}.down / pow(10, down + 6) + 8 * {its}.up / pow(10, up + 6)"
)
# what one of two budgets costs a round: FedAvg's (`fedavg`) or a line's (`datum`)
COST = f"(equal == '{ROUNDS}' ? 1 : equal == '{BYTES}' ? {{its}}.up + {{its}}.down : {SECONDS})"


def lines(frame: "pandas.DataFrame", share: float = 0.9) -> list[dict[str, Any]]:
    """For the explorer, a line a method, task, split and number of clients: what a round costs, and
    the accuracies, mean, lowest and highest of the seeds. ``target`` is a ``share`` of the
    centralised accuracy."""
    goal = {task: share * value for task, value in central(frame).items()}
    federated = frame[frame["clients"] > 1]
    rows: list[dict[str, Any]] = []
    for case, runs in federated.groupby(list(CELL), sort=False):
        task, split, clients, method = case  # type: ignore[misc]
        curves, first = np.array(runs["accuracy"].tolist()), runs.iloc[0]
        row = {"task": task, "split": split, "clients": int(clients), "method": method}
        row |= {"tuned": f"{tuning(method)[0]} {first['value']:g}", "seeds": len(runs)}
        row |= {way: round(float(runs[way].mean())) for way in ("up", "down")}
        row |= {"sec": round(float(first["least"]), 5), "last": first["rounds"][-1]}
        row |= {"every": first["rounds"][0]}
        row |= {"target": round(goal[task], 3) if task in goal else None}
        for name, values in zip(
            ("mean", "low", "high"), (curves.mean(0), curves.min(0), curves.max(0)), strict=True
        ):
            row[name] = [round(v, 3) for v in values]
        rows.append(row)
    return rows


def _absent(present: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line that says so for each contest of which no run is stored."""
    stated, have = spec(), {(r["task"], r["split"], r["clients"]) for r in present}
    every = itertools.product(stated["tasks"], stated["splits"], stated["clients"])
    impossible = {case[:3] for case in dead()} - have
    costs = {"up": 0, "down": 0, "sec": 0, "last": 0, "every": 1, "mean": [], "low": [], "high": []}
    return [
        {"task": t, "split": s, "clients": n, **costs}
        | (
            {"method": "no such split", "words": f"{n} clients cannot be split so"}
            if (t, s, n) in impossible
            else {"method": "not yet run", "words": COMMAND}
        )
        for t, s, n in every
        if (t, s, n) not in have
    ]


def rivals(guess: int | None = None) -> dict[str, Any]:
    """The explorer: who is how accurate within a budget of time, bytes or rounds, as a list whose
    order moves with the link. ``guess`` is the place of FedAvg that the reader expects; without it
    FedAvg is hidden until the reader asks to see it."""
    from .vega import (
        BLUE,
        DOTTED,
        GREY,
        LASTS,
        ORANGE,
        SPEED,
        alt,
        choice,
        heading,
        layered,
        numbered_rows,
        slider,
        tick,
    )

    stated = spec()
    values = lines(entries())
    places = len(stated["methods"])
    if guess is not None and not 1 <= guess <= places:
        raise ValueError(f"FedAvg's place is a number from 1 to {places}, not {guess!r}.")
    costs = {
        f"{r['task']}|{r['split']}|{r['clients']}": {k: r[k] for k in ("up", "down", "sec", "last")}
        for r in values
        if r["method"] == "FedAvg"
    }
    nothing = json.dumps({"up": 0, "down": 0, "sec": 0, "last": 0})
    start = link.check(**link.PRESETS["3G"])
    amount = (
        f"equal == '{ROUNDS}' ? format(limit, '.2~r') + ' rounds' : equal == '{BYTES}' ? "
        f"format(limit, '.3~s') + 'B of one client' : {LASTS.format('limit')}"
    )
    params = [
        slider("guess", "your guess: place of FedAvg", guess or 1, 1, places, 1),
        tick("reveal", "show FedAvg", guess is not None),
        choice("task", "task", [*stated["tasks"]], None, "select"),
        choice("split", "split", [*stated["splits"]], [*stated["splits"]][-1]),
        choice("clients", "clients", stated["clients"]),
        choice("equal", "equal", [TIME, BYTES, ROUNDS], TIME),
        slider("budget", "budget", -0.56, -3, 0.5, 0.02),  # 5.5 of 20 rounds
        slider("up", "uplink", round(math.log10(start[0]) - 6, 4), -2.5, 3, 0.05),
        slider("down", "downlink", round(math.log10(start[1]) - 6, 4), -2.5, 3, 0.05),
        slider("latency", "round trip", 1000 * start[2], 0, 2000, 10),
        slider("slower", "device slower", 1, 0, 50, 1),
    ]
    expressions = {
        "fedavg": f"({json.dumps(costs)})[task + '|' + split + '|' + clients] || {nothing}",
        "limit": f"pow(10, budget) * fedavg.last * {COST.format(its='fedavg')}",
        "saysBudget": f"format(pow(10, budget), '.2~p') + ' of FedAvg: ' + ({amount})",
        "saysUp": SPEED.format("up"),
        "saysDown": SPEED.format("down"),
        "saysLatency": "format(latency, '.0f') + ' ms'",
        "saysSlower": "format(slower, '.0f') + ' times'",
    }
    params += [{"name": name, "expr": text} for name, text in expressions.items()]
    fedavg, over = "datum.method == 'FedAvg'", "limit / datum.cost >= datum.last + 1"
    bold = {"test": "datum.value == 'FedAvg'", "value": "bold"}
    y = alt.Y("method:N", title=None, sort={"field": "order", "op": "max", "order": "descending"})
    y = y.axis(
        **{"labelLimit": 180, "labelFontSize": 11, "labelPadding": 4, "ticks": False},
        **{"grid": False, "labelFontWeight": {"condition": bold, "value": "normal"}},
    )
    side = {
        "title": "test accuracy",
        "scale": {"domain": [0, 1.28], "nice": False},  # with room for words on the right
        "axis": {"values": [0, 0.2, 0.4, 0.6, 0.8, 1]},
    }
    colour = alt.when(fedavg).then(alt.value(ORANGE)).otherwise(alt.value(BLUE))
    filled = {"condition": [{"test": over, "value": "transparent"},
                            {"test": fedavg, "value": ORANGE}], "value": BLUE}  # fmt: skip
    shape = alt.when(fedavg).then(alt.value("diamond")).otherwise(alt.value("circle"))
    small = {"fontSize": 11, "color": GREY}
    left, right = ({"align": a, "dx": dx, **small} for a, dx in (("left", 4), ("right", -2)))
    known = alt.Chart().transform_filter("datum.k > 0")
    asked = f"datum.place == min(guess, reveal ? {places} : {places - 1})"
    layers = [
        alt.Chart()
        .transform_filter("isValid(datum.target)")
        .mark_rule(**DOTTED)
        .encode(alt.X("target:Q", **side, aggregate="mean")),
        known.mark_rule(strokeWidth=2, opacity=0.5).encode(
            alt.X("lowest:Q", **side), alt.X2("highest"), y, color=colour
        ),
        known.mark_point(size=55, strokeWidth=2, opacity=1).encode(
            *(alt.X("accuracy:Q", **side), y),
            color=colour,
            fill=filled,
            shape=shape,
            tooltip=[
                *("method:N", alt.Tooltip("tuned:N", title="tuned")),
                alt.Tooltip("seeds:N", title="seeds"),
                alt.Tooltip("done:N", title="rounds within the budget"),
                alt.Tooltip("accuracy:N", title="accuracy, mean of the seeds"),
                *("lowest:N", "highest:N"),
            ],
        ),
        alt.Chart().mark_text(**right).encode(y, x=alt.value("width"), text="says:N"),
        alt.Chart()
        .transform_filter("isValid(datum.words)")
        .mark_text(**left)
        .encode(y, x=alt.value(0), text="words:N"),
        alt.Chart()
        .transform_filter(asked)
        .mark_text(**left, fontWeight="bold")
        .encode(y, x=alt.value(0), text=alt.value("◂ your guess")),
    ]
    shared = (
        alt.Chart(alt.InlineData(values=values + _absent(values)))
        .transform_filter("datum.task == task && datum.split == split && datum.clients == clients")
        .transform_filter(f"reveal || !({fedavg})")
        .transform_calculate(
            cost=COST.format(its="datum"),
            done="min(datum.last, floor(limit / datum.cost + 1e-9))",
            k="floor(datum.done / datum.every)",
            accuracy="datum.k > 0 ? datum.mean[datum.k - 1] : null",
            lowest="datum.k > 0 ? datum.low[datum.k - 1] : null",
            highest="datum.k > 0 ? datum.high[datum.k - 1] : null",
            order="datum.k > 0 ? datum.accuracy : -1",
            says="datum.words ? '' : datum.done + ' of ' + datum.last",
        )
        .transform_window(**numbered_rows("place", {"field": "order", "order": "descending"}))
    )
    return layered(17 * places, params, layers, shared, title=heading("'within ' + saysBudget"))


# ---- exercises -----------------------------------------------------------------------------------

BUDGETS = (  # bytes allowed, up, down, whole rounds, and what a wrong answer has not seen
    (10_000, 1_000, 3_000, 2, "a round that is begun and not ended is worth nothing"),
    (8_000, 1_000, 3_000, 2, "a round that just fits is a round"),
    (3_999, 1_000, 3_000, 0, "not even one round fits"),
    (100, 7, 0, 14, "a method may send nothing down"),
    (100, 0, 7, 14, "a method may send nothing up"),
    (0, 5, 5, 0, "a budget of nothing allows no round"),
)


def fitting(answer: Function) -> str | None:
    """answer(budget, up, down) -> whole rounds."""
    for budget, up, down, right, reason in BUDGETS:
        got = answer(budget, up, down)
        if got != right and up and got == budget // up:
            return "both directions cost bytes"
        if got != right:
            return f"{reason} ({got} for {budget:,} bytes at {up:,} up and {down:,} down)"
    try:
        free = answer(100, 0, 0)
    except ZeroDivisionError:
        return "a method that sends nothing never uses its budget up: the answer is math.inf"
    if free != math.inf:
        return f"a method that sends nothing has no last round: math.inf, not {free}"
    return None


Scores = Mapping[str, Sequence[float]]
THREE = [0.9, 0.92, 0.94]
FIELDS: tuple[tuple[Scores, str], ...] = (
    ({"a": [0.9, 0.91, 0.92], "b": [0.9, 0.91, 0.92]}, "equal methods share the first place"),
    ({"a": [0.95, 0.951, 0.952], "b": [0.5, 0.51, 0.52]}, "a method far behind is beaten"),
    ({"a": [0.5, 0.51, 0.52], "b": [0.95, 0.951, 0.952]}, "the better need not come first"),
    ({"a": THREE, "b": [0.863, 0.883, 0.903]}, "two standard errors are not enough: three are"),
    ({"a": THREE, "b": [0.856, 0.876, 0.896]}, "a variance of n runs is divided by n - 1"),
    (
        {"a": THREE, "b": [0.84, 0.86, 0.88]},
        "the standard error of a mean of n runs shrinks with the root of n",
    ),
    ({"a": THREE, "b": [0.8527, 0.8727, 0.8927]}, "2.9 standard errors are not enough: three are"),
    ({"a": THREE, "b": [0.8493, 0.8693, 0.8893]}, "3.1 standard errors are enough: three are"),
    (
        {"a": 2 * THREE, "b": [0.856, 0.876, 0.896]},
        "each variance is divided by the number of its own runs",
    ),
    (
        {"a": [0.95, 0.96, 0.97], "b": [0.93, 0.94, 0.95], "c": [0.91, 0.92, 0.93]},
        "one that ties with the best is unbeaten, whatever it ties with below",
    ),
    (
        {"wild": [0.6, 0.95, 0.97], "calm": [0.75, 0.751, 0.752], "best": [0.8, 0.801, 0.802]},
        "the spread of both counts: nobody is ahead of a wild method, and it is ahead of nobody",
    ),
)


def first(answer: Function) -> str | None:
    """answer(scores) -> the names of the methods that nobody is ahead of, three standard errors."""
    for scores, reason in FIELDS:
        got = answer({name: list(runs) for name, runs in scores.items()})
        if got is None or isinstance(got, str):
            return "the answer is a collection of names"
        if not {*got} <= {*scores}:
            return f"{[*got]} are not names of methods, which are {[*scores]}"
        if {*got} != {name for name, rank in ranks(scores).items() if rank == 1}:
            return f"{reason} ({sorted(got)} of {dict(scores)})"
    return None


UP, COARSE, FAST, SLOW = 40_957, 11_249, 0.002, 0.012  # bytes up, and seconds of computing
SAVED = UP - COARSE
even = number(
    8 * SAVED / (SLOW - FAST),
    {
        SAVED / (SLOW - FAST): "links are measured in bits, and a byte has eight",
        8 * SAVED / SLOW: "FedAvg computes, too: what counts is by how much longer QSGD does",
        8 * UP / (SLOW - FAST): "what counts is what QSGD saves, not all that FedAvg sends",
        8 * COARSE / (SLOW - FAST): "what counts is what QSGD saves, not what it sends",
        8 * SAVED / (SLOW - FAST) / 1e6: "the question is for bits a second",
    },
    tolerance=0.02,
)

P = 0.975
ONE = P * (1 - P) / 0.01**2  # images for which one point is a standard error of one accuracy
FEWER = {
    2 * ONE: "one point is to be two standard errors, not one",
    4 * ONE: "both accuracies have an error: their variances add up",
    ONE: "both have an error, and one point is to be two standard errors",
    450: "that is how many there are; how many would do?",
}
images = number(8 * ONE, FEWER, tolerance=0.002)

EXERCISES = {
    "shootout-rounds": fitting,
    "shootout-first": first,
    "shootout-even": even,
    "shootout-images": images,
}

if __name__ == "__main__":
    main()
