"""Exercises of the chapter on which method wins."""

import math
from collections.abc import Mapping, Sequence

from ..contest import ranks
from . import Function, number

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
    for budget, up, down, want, reason in BUDGETS:
        got = answer(budget, up, down)
        if got != want and up and got == budget // up:
            return "both directions cost bytes"
        if got != want:
            return f"{reason} ({got} for {budget:,} bytes at {up:,} up and {down:,} down)"
    try:
        free = answer(100, 0, 0)
    except ZeroDivisionError:
        return "a method that sends nothing never uses its budget up: the answer is math.inf"
    if free != math.inf:
        return f"a method that sends nothing has no last round: math.inf, not {free}"
    return None


Scores = Mapping[str, Sequence[float]]
FIELDS: tuple[tuple[Scores, str], ...] = (
    ({"a": [0.9, 0.91, 0.92], "b": [0.9, 0.91, 0.92]}, "equal methods share the first place"),
    ({"a": [0.95, 0.951, 0.952], "b": [0.5, 0.51, 0.52]}, "a method far behind is beaten"),
    ({"a": [0.5, 0.51, 0.52], "b": [0.95, 0.951, 0.952]}, "the better need not come first"),
    (
        {"a": [0.9, 0.92, 0.94], "b": [0.863, 0.883, 0.903]},
        "two standard errors are not enough: three are",
    ),
    (
        {"a": [0.9, 0.92, 0.94], "b": [0.856, 0.876, 0.896]},
        "a variance of n runs is divided by n - 1",
    ),
    (
        {"a": [0.9, 0.92, 0.94], "b": [0.84, 0.86, 0.88]},
        "the standard error of a mean of n runs shrinks with the root of n",
    ),
    (
        {"a": [0.9, 0.92, 0.94], "b": [0.8527, 0.8727, 0.8927]},
        "2.9 standard errors are not enough: three are",
    ),
    (
        {"a": [0.9, 0.92, 0.94], "b": [0.8493, 0.8693, 0.8893]},
        "3.1 standard errors are enough: three are",
    ),
    (
        {"a": [0.9, 0.92, 0.94, 0.9, 0.92, 0.94], "b": [0.856, 0.876, 0.896]},
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
        want = {name for name, rank in ranks(scores).items() if rank == 1}
        if {*got} != want:
            return f"{reason} ({sorted(got)} of {dict(scores)})"
    return None


UP, COARSE, FAST, SLOW = 40_957, 11_249, 0.002, 0.012  # bytes up, and seconds of computing
SAVED = UP - COARSE
even = number(
    8 * SAVED / (SLOW - FAST),
    tolerance=0.02,
    wrong={
        SAVED / (SLOW - FAST): "links are measured in bits, and a byte has eight",
        8 * SAVED / SLOW: "FedAvg computes, too: what counts is by how much longer QSGD does",
        8 * UP / (SLOW - FAST): "what counts is what QSGD saves, not all that FedAvg sends",
        8 * COARSE / (SLOW - FAST): "what counts is what QSGD saves, not what it sends",
        8 * SAVED / (SLOW - FAST) / 1e6: "the question is for bits a second",
    },
)

P = 0.975
ONE = P * (1 - P) / 0.01**2  # images for which one point is a standard error of one accuracy
FEWER = {
    2 * ONE: "one point is to be two standard errors, not one",
    4 * ONE: "both accuracies have an error: their variances add up",
    ONE: "both have an error, and one point is to be two standard errors",
    450: "that is how many there are; how many would do?",
}
images = number(8 * ONE, tolerance=0.002, wrong=FEWER)

EXERCISES = {
    "shootout-rounds": fitting,
    "shootout-first": first,
    "shootout-even": even,
    "shootout-images": images,
}
