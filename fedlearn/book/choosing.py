"""Chapter 11, choosing a method: a contest of all methods.

``python -m fedlearn.book.choosing`` does the runs of ``data/choosing/chapter.yaml`` that
``data/choosing/grid.json`` lacks. Each method has the same budget of tuning on each
split and number of clients: three short runs with values of one of its options, judged
on validation images, and then whole runs with the best value. The command may be
stopped at any time. ``up`` and ``down`` are the bytes of one client in one round, on
average.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import link
from ..lab.experiment import Experiment
from ..lab.recipes import TRIAL_SEED
from ..lab.results import paired
from . import grids
from .check import Function, number, varied
from .drawings import drawing, speeds
from .grids import Row, fill, stored, trained

if TYPE_CHECKING:
    import pandas

SPEC = grids.chapter_file("choosing")["contest"]

# ---- the contest: its runs -----------------------------------------------------------

CONTEST = ["split", "clients"]
CELL = [*CONTEST, "method"]
RUN = [*CELL, "value", "seed", "short"]
COLUMNS = [*RUN, "accuracy", "up", "down", "seconds"]
Cell = tuple[str, int, str]


def contests() -> Iterator[Cell]:
    """Every (split, number of clients, method), in the order in which they are run.
    First FedAvg with one client, who has all images: training without federation."""
    splits = SPEC["splits"]["positions"]
    yield next(iter(splits)), 1, "FedAvg"
    yield from itertools.product(splits, SPEC["clients"], SPEC["lines"])


def experiment(
    split: str, clients: int, method: str, value: float, seed: int, short: bool
) -> Experiment:
    """The experiment of a run. A short one sees no test images."""
    e = grids.experiment(SPEC, method, clients, value, seed, split)
    return replace(e, **SPEC["short"]) if short else e


def rows_of(run: tuple) -> list[tuple]:
    """The row of a run. One that diverges, or that cannot be, has no accuracy."""
    try:
        history = trained(experiment(*run), engine="auto", threads=1)
    except ValueError:
        return [(*run, [], None, None, None)]
    means = {name: float(n.mean()) for name, n in link.shares(history).items()}
    sizes = round(means["up"], 1), round(means["down"], 1)
    accuracy = [round(float(share), 4) for share in history.accuracy]
    return [(*run, accuracy, *sizes, round(means["computing"], 5))]


def late(curve: Sequence[float]) -> float:
    """The mean of the last quarter of a run's accuracies, one a round."""
    return float(np.mean(curve[int(0.75 * len(curve)) :]))


def best(rows: list[Row]) -> dict[Cell, float]:
    """(split, clients, method) -> the value whose short run was best by ``late``, of
    equal ones the largest."""
    import pandas

    trials = [row for row in rows if row["short"] and row["accuracy"]]
    table = pandas.DataFrame(trials)
    table["late"] = table["accuracy"].map(late)
    groups = table.sort_values(["late", "value"]).groupby(CELL)
    return groups["value"].last().to_dict()


def short_runs() -> list[tuple]:
    """The runs that choose the methods' values, of a seed that does not compete."""
    seed = TRIAL_SEED + min(SPEC["seeds"])
    return [
        (*cell, value, seed, True)
        for cell in contests()
        for value in SPEC["lines"][cell[-1]]["positions"]
    ]


def whole_runs(rows: list[Row]) -> list[tuple]:
    """The runs with the best values, the first seed of all before the second of any."""
    values = best(rows)
    cells = [cell for cell in contests() if cell in values]
    return [(*cell, values[cell], s, False) for s in SPEC["seeds"] for cell in cells]


# ---- the contest: what is read of it -------------------------------------------------

runs = cache(lambda: stored("choosing"))


def entries(short: bool = False) -> "pandas.DataFrame":
    """The stored runs, a row each; ``short`` ones are those that chose the methods'
    values.

    ``accuracy`` has a number for each round; ``up`` and ``down`` are bytes, ``seconds``
    computing, of one client in one round, on average. ``least`` is the smallest
    ``seconds`` of all such runs of this method with so many clients: runs share their
    machine with others, and the least disturbed comes nearest. Runs that diverged are
    left out.
    """
    import pandas

    rows = [row for row in runs() if row["accuracy"] and row["short"] == short]
    table = pandas.DataFrame(rows).drop(columns="short")
    table["least"] = table.groupby(["clients", "method"])["seconds"].transform("min")
    return table


# ---- who is ahead --------------------------------------------------------------------

TIME = "time on this link"
BYTES = "bytes of one client"
ROUNDS = "rounds"
Scores = Mapping[str, Sequence[float]]  # method -> numbers, the higher the better


def affordable(runs: "pandas.DataFrame", equal: str) -> "pandas.Series":
    """How many rounds of each run lie within what 5.5 rounds of FedAvg cost in bytes,
    or in time on 3G; all of them if the rounds are equal."""
    rounds = runs["accuracy"].map(len)
    if equal == ROUNDS:
        return rounds
    cost = runs["up"] + runs["down"]
    if equal == TIME:
        up, down, latency = link.check(**link.PRESETS["3G"])
        sending = 8 * runs["up"] / up + 8 * runs["down"] / down
        cost = latency + runs["least"] + sending
    fedavg = cost.where(runs["method"] == "FedAvg")
    dense = fedavg.groupby([runs[name] for name in CONTEST]).transform("mean")
    budget = 5.5 * dense * (1 + 1e-9)
    return (budget / cost).clip(upper=rounds).astype(int)


def scores(equal: str) -> "pandas.DataFrame":
    """What the methods, a column each, reached within the budget of ``affordable``: a
    row for each seed of each contest, (split, clients, seed). A method that cannot pay
    for a round has nothing."""
    whole = entries().query("clients > 1")
    curves = zip(whole["accuracy"], affordable(whole, equal), strict=True)
    whole["score"] = [curve[t - 1] if t else 0.0 for curve, t in curves]
    table = whole.pivot(index=[*CONTEST, "seed"], columns="method", values="score")
    return table[[*SPEC["lines"]]]


def outranks(a: Sequence[float], b: Sequence[float]) -> bool:
    """Is the mean of ``a`` above that of ``b`` by more than three standard errors of
    their difference?"""
    error = math.sqrt(np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b))
    return float(np.mean(a) - np.mean(b)) > 3 * error


def unbeaten(scores: Scores) -> set[str]:
    """The methods that no method outranks."""
    return {
        method
        for method, runs in scores.items()
        if not any(outranks(rival, runs) for rival in scores.values())
    }


def verdict(leads: "pandas.Series") -> int:
    """1 if leads, one a seed, are ahead by ``results.paired``, -1 if behind, 0 if
    neither."""
    difference = paired(dict(enumerate(leads)), dict.fromkeys(range(len(leads)), 0.0))
    return difference.sure * (1 if difference.mean > 0 else -1)


def standing(names: Sequence[str] = ()) -> "pandas.DataFrame":
    """In how many of the contests a method, or each of ``names``, is ahead of FedAvg
    and in how many behind: "4 : 1". First who leads most often at equal bytes."""
    import pandas

    heads = {"equal rounds": ROUNDS, "equal bytes": BYTES, "on 3G": TIME}
    verdicts = {}
    counts = {}
    for head, equal in heads.items():
        points = 100 * scores(equal)
        leads = points.drop(columns="FedAvg").sub(points["FedAvg"], axis=0)
        verdicts[head] = leads.groupby(CONTEST).agg(verdict)
        signs = (verdicts[head] > 0, verdicts[head] < 0)
        ahead, behind = (sign.sum().astype(str) for sign in signs)
        counts[head] = ahead + " : " + behind
    balance = verdicts["equal bytes"].sum()
    order = balance.sort_values(ascending=False, kind="stable").index
    rows = [name for name in order if name in (names or order)]
    return pandas.DataFrame(counts).loc[rows].rename_axis("method").reset_index()


# ---- the contest: pictures -----------------------------------------------------------


def lines(runs: "pandas.DataFrame") -> list[Row]:
    """For the explorer, a line a method, split and number of clients: what a round
    costs, and the accuracies, mean, lowest and highest of the seeds."""
    rows: list[Row] = []
    for (split, clients, method), cell in runs.groupby(CELL, sort=False):
        curves = np.array(cell["accuracy"].tolist())
        means = cell[["up", "down"]].mean().round().astype(int)
        row = {"split": split, "clients": int(clients), "method": method}
        row |= means.to_dict()
        row |= {"computing": round(cell["least"].iloc[0], 5), "seeds": len(cell)}
        row["last"] = curves.shape[1]
        for name in ("mean", "min", "max"):
            row[name] = getattr(curves, name)(0).round(3).tolist()
        rows.append(row)
    return rows


def rivals(guess: int | None = None) -> dict[str, Any]:
    """The explorer: who is how accurate within a budget of time, bytes or rounds, as a
    list whose order moves with the link. ``guess`` is the place of FedAvg that the
    reader expects; without it FedAvg is hidden until the reader asks to see it."""
    places = len(SPEC["lines"])
    if guess is not None and not 1 <= guess <= places:
        raise ValueError(
            f"FedAvg's place is a number from 1 to {places}, not {guess!r}."
        )
    values = lines(entries().query("clients > 1"))
    dense = {
        f"{row['split']}|{row['clients']}": row
        for row in values
        if row["method"] == "FedAvg"
    }
    picture = drawing(
        "choosing/rivals",
        guess=guess or 1,
        reveal=guess is not None,
        speeds=speeds(),
        dense=dense,
    )
    return picture | {"data": {"values": values}}


# ---- exercises -----------------------------------------------------------------------

# bytes allowed, up, down, whole rounds, and what a wrong answer has not seen
BUDGETS = (
    (10_000, 1_000, 3_000, 2, "a round that is started and not ended is worth nothing"),
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
            return (
                f"{reason} ({got} for {budget:,} bytes at {up:,} up and {down:,} down)"
            )
    try:
        free = answer(100, 0, 0)
    except ZeroDivisionError:
        return (
            "a method that sends nothing never uses its budget up: the "
            "answer is math.inf"
        )
    if free != math.inf:
        return f"a method that sends nothing has no last round: math.inf, not {free}"
    return None


THREE = [0.9, 0.92, 0.94]
FIELDS: tuple[tuple[Scores, str], ...] = (
    (
        {"a": [0.9, 0.91, 0.92], "b": [0.9, 0.91, 0.92]},
        "equal methods share the first place",
    ),
    (
        {"a": [0.95, 0.951, 0.952], "b": [0.5, 0.51, 0.52]},
        "a method far behind is beaten",
    ),
    (
        {"a": [0.5, 0.51, 0.52], "b": [0.95, 0.951, 0.952]},
        "the better need not come first",
    ),
    (
        {"a": THREE, "b": [0.863, 0.883, 0.903]},
        "two standard errors are not enough: three are",
    ),
    (
        {"a": THREE, "b": [0.856, 0.876, 0.896]},
        "a variance of n runs is divided by n - 1",
    ),
    (
        {"a": THREE, "b": [0.84, 0.86, 0.88]},
        "the standard error of a mean of n runs shrinks with the root of n",
    ),
    (
        {"a": THREE, "b": [0.8527, 0.8727, 0.8927]},
        "2.9 standard errors are not enough: three are",
    ),
    (
        {"a": THREE, "b": [0.8493, 0.8693, 0.8893]},
        "3.1 standard errors are enough: three are",
    ),
    (
        {"a": 2 * THREE, "b": [0.856, 0.876, 0.896]},
        "each variance is divided by the number of its own runs",
    ),
    (
        {"a": [0.95, 0.96, 0.97], "b": [0.93, 0.94, 0.95], "c": [0.91, 0.92, 0.93]},
        "one that ties with the best is unbeaten, whatever it ties with below",
    ),
    (
        {
            "wild": [0.6, 0.95, 0.97],
            "calm": [0.75, 0.751, 0.752],
            "best": [0.8, 0.801, 0.802],
        },
        (
            "the spread of both counts: nobody outranks a wild method, and "
            "it outranks nobody"
        ),
    ),
)


def first(answer: Function) -> str | None:
    """answer(scores) -> the names of the methods that nobody outranks, three
    standard errors."""
    for scores, reason in FIELDS:
        got = answer({name: list(runs) for name, runs in scores.items()})
        if not isinstance(got, Collection) or isinstance(got, str):
            return "the answer is a collection of names"
        if not {*got} <= {*scores}:
            return f"{[*got]} are not names of methods, which are {[*scores]}"
        if {*got} != unbeaten(scores):
            return f"{reason} ({sorted(got)} of {dict(scores)})"
    return None


@varied(
    fedavg_bytes=(40_957, range(50_000, 90_000)),
    qsgd_bytes=(11_249, range(5_000, 15_000)),
    fedavg_ms=(2, range(1, 8)),
    qsgd_ms=(12, range(8, 12)),
)
def even(fedavg_bytes: int, qsgd_bytes: int, fedavg_ms: int, qsgd_ms: int) -> Any:
    """Bits a second up to which sending less pays for computing longer."""
    saved = fedavg_bytes - qsgd_bytes
    longer = (qsgd_ms - fedavg_ms) / 1000
    return number(
        8 * saved / longer,
        {
            saved / longer: "links are measured in bits, and a byte has eight",
            8000
            * saved
            / qsgd_ms: "FedAvg computes, too: what counts is by how much longer QSGD"
            " does",
            8
            * fedavg_bytes
            / longer: "what counts is what QSGD saves, not all that FedAvg sends",
            8
            * qsgd_bytes
            / longer: "what counts is what QSGD saves, not what it sends",
            8 * saved / longer / 1e6: "the question is for bits a second",
        },
        tolerance=0.02,
    )


@varied(per_cent=(97.5, [k / 10 for k in range(700, 970)]))
def images(per_cent: float) -> Any:
    p = per_cent / 100
    one = (
        p * (1 - p) / 0.01**2
    )  # images for which one point is a standard error of one accuracy
    fewer = {
        2 * one: "one point is to be two standard errors, not one",
        4 * one: "both accuracies have an error: their variances add up",
        one: "both have an error, and one point is to be two standard errors",
        450: "that is how many there are; how many would do?",
    }
    return number(8 * one, fewer, tolerance=0.002)


OFFERS = [
    ("dense", 0.95, 800_000, 800_000),
    ("half", 0.93, 40_000, 800_000),
    ("both", 0.90, 40_000, 30_000),
    ("cheap", 0.80, 10_000, 10_000),
]
LINKS: tuple[tuple[float, float, float, str | None, str], ...] = (
    (8e4, 8e4, 2.5, "cheap", "8 bits are a byte"),
    (8e6, 8e6, 2.0, "dense", "on a fast link the most accurate one fits"),
    (8e5, 8e6, 2.0, "half", "only the way up is slow here"),
    (8e4, 8e5, 4.2, "cheap", "both ways take their time, one after the other"),
    (8e6, 8e4, 4.0, "both", "the way down can be the slow one"),
    (8e3, 8e3, 1.0, None, "None is the answer if nothing fits"),
    (8e4, 8e4, 2.0, "cheap", "what takes exactly so many seconds fits"),
)


def link_for(answer: Function) -> str | None:
    """answer(offers, up, down, seconds) -> name of the most accurate that fits into
    the time."""
    for offers in (OFFERS, OFFERS[::-1], OFFERS[1:] + OFFERS[:1]):
        for up, down, seconds, want, reason in LINKS:
            got = answer(list(offers), up, down, seconds)
            if got != want:
                return (
                    f"{reason}: not {got!r} for {up:g} bit/s up, {down:g} down, "
                    f"{seconds:g} s"
                )
    return None


EXERCISES = {
    "choosing-link": link_for,
    "choosing-rounds": fitting,
    "choosing-first": first,
    "choosing-even": even,
    "choosing-images": images,
}


if __name__ == "__main__":
    COMMAND = "python -m fedlearn.book.choosing"
    fill("choosing", COLUMNS, short_runs(), rows_of, COMMAND)
    fill("choosing", COLUMNS, whole_runs(stored("choosing")), rows_of, COMMAND)
