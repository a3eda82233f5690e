"""Right answers are right, and each wrong one is told why.

The answers stand in a file a chapter, in the tables RIGHT (a list for each exercise) and WRONG
(exercise, answer, words of the reason), with what only that chapter needs to be asked.
"""

from importlib import import_module

import pytest

import fedlearn as fl

CHAPTERS = (
    *("rpn", "wire", "fed_kgf", "fed_mmd_fusion", "fed_gkt", "fed_repopt", "flower", "seeing"),
    *("compose", "shootout"),
)
TABLES = [import_module(f"test_exercises_{chapter}") for chapter in CHAPTERS]


@pytest.mark.parametrize(
    "exercise, answer",
    [
        (name, answer)
        for table in TABLES
        for name, answers in table.RIGHT.items()
        for answer in answers
    ],
)
def test_right_answers(exercise, answer):
    assert fl.check(exercise, answer).right


@pytest.mark.parametrize(
    "exercise, answer, reason", [case for table in TABLES for case in table.WRONG]
)
def test_wrong_answers_are_told_why(exercise, answer, reason):
    verdict = fl.check(exercise, answer)
    assert not verdict.right
    nothing = reason in ("TypeError", "returns nothing", "empty dictionary")
    assert reason in verdict.reason or (nothing and "no answer yet" in verdict.reason)


def forgets_to_return(x, generator):
    x.clone()


def fails(x, generator):
    raise AttributeError("mine")


@pytest.mark.parametrize(
    "exercise, answer, reason",
    [
        ("wire-coin", forgets_to_return, "is the `return` missing?"),
        ("wire-coin", lambda x, g: "heads", "what it returns is not what is asked for (TypeError"),
        ("wire-coin", lambda x: x, "other arguments than those asked for (TypeError"),
        ("wire-coin", fails, "it stopped with AttributeError: mine"),
        ("wire-ratio", [1, 2], "it is not what is asked for (TypeError"),
    ],
)
def test_an_error_is_told_from_a_wrong_kind_of_answer(exercise, answer, reason):
    assert reason in fl.check(exercise, answer).reason
