"""Answers to the exercises on which method wins: right ones, and typical wrong ones with their
reasons."""

import math
from statistics import mean, pvariance, variance


def fitting(budget, up, down):
    return budget // (up + down) if up + down else math.inf


def fitting_by_loop(budget, up, down):
    if up == down == 0:
        return math.inf
    rounds = 0
    while (rounds + 1) * (up + down) <= budget:
        rounds += 1
    return rounds


def fitting_begun(budget, up, down):
    return math.ceil(budget / (up + down)) if up + down else math.inf


def fitting_below(budget, up, down):
    return max(0, (budget - 1) // (up + down)) if up + down else math.inf


def fitting_up(budget, up, down):
    return budget // up if up else math.inf


def unfree(budget, up, down):
    return budget // (up + down)


def unending(budget, up, down):
    return budget // (up + down) if up + down else 0


def first(scores, times=3.0, spread=variance, root=math.sqrt, shrink=True):
    def ahead(a, b):
        parts = [spread(s) / (len(s) if shrink else 1) for s in (a, b)]
        return mean(a) - mean(b) > times * root(sum(parts))

    every = scores.values()
    return [m for m, own in scores.items() if not any(ahead(a, own) for a in every)]


def first_by_two(scores):
    return first(scores, 2)


def first_of_population(scores):
    return first(scores, spread=pvariance)


def first_unshrunk(scores):
    return first(scores, shrink=False)


def highest(scores):
    return [max(scores, key=lambda m: mean(scores[m]))]


def all_of_them(scores):
    return [*scores]


def tied_with_highest(scores):
    top = max(scores.values(), key=mean)
    return [m for m, own in scores.items() if m in first({m: own, "top": top})]


def a_name(scores):
    return highest(scores)[0]


def means(scores):
    return [mean(s) for s in scores.values()]


SAVED = 40_957 - 11_249

RIGHT = {
    "shootout-rounds": [fitting, fitting_by_loop],
    "shootout-first": [first, lambda scores: set(first(scores)), lambda s: tuple(first(s))],
    "shootout-even": [8 * SAVED / 0.01, 23.77e6],
    "shootout-images": [1950, 1949.9999],
}
WRONG = [
    ("shootout-rounds", fitting_begun, "not ended"),
    ("shootout-rounds", fitting_below, "just fits"),
    ("shootout-rounds", fitting_up, "both directions"),
    ("shootout-rounds", unfree, "math.inf"),
    ("shootout-rounds", unending, "not 0"),
    ("shootout-first", highest, "share the first place"),
    ("shootout-first", all_of_them, "far behind"),
    ("shootout-first", first_by_two, "three are"),
    ("shootout-first", first_of_population, "divided by n - 1"),
    ("shootout-first", first_unshrunk, "root of n"),
    ("shootout-first", tied_with_highest, "wild"),
    ("shootout-first", a_name, "collection of names"),
    ("shootout-first", means, "not names of methods"),
    ("shootout-even", SAVED / 0.01, "a byte has eight"),
    ("shootout-even", 8 * SAVED / 0.012, "FedAvg computes, too"),
    ("shootout-even", 8 * 40_957 / 0.01, "saves"),
    ("shootout-even", 8 * 11_249 / 0.01, "not what it sends"),
    ("shootout-even", 23.8, "bits a second"),
    ("shootout-even", 23.766, "bits a second"),
    ("shootout-even", 19.8e6, "FedAvg computes, too"),
    ("shootout-images", 488, "not one"),
    ("shootout-images", 975, "variances add up"),
    ("shootout-images", 243.75, "both have an error"),
    ("shootout-images", 975.1, "variances add up"),
    ("shootout-images", 900, "too small"),
    ("shootout-images", 450, "how many would do"),
]
