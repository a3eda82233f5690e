"""Exercises: reference answers are right, and each typical wrong answer is told why."""

import copy
import inspect
import itertools
import math
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

import fedlearn as fl
from fedlearn.book import check
from fedlearn.book.check import (
    CHAPTERS,
    Varied,
    Verdict,
    empty,
    module_of,
    number,
    solutions,
)

EXERCISES = [
    name for chapter in CHAPTERS for name in module_of(f"{chapter}-x").EXERCISES
]


@cache
def right(exercise, old="", new=""):
    """The reference answer, with a change of its code."""
    code = fl.solution(exercise).code
    assert old in code
    names = {"__name__": "solutions", "torch": torch}
    exec(compile(code.replace(old, new) if old else code, exercise, "exec"), names)
    return names["answer"]


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_reference_answer_is_right(exercise):
    assert fl.check(exercise, right(exercise))
    assert "<summary>Solution" in fl.solution(exercise)._repr_html_()


def test_every_solution_can_be_shown():
    names = [name for chapter in CHAPTERS for name in solutions(chapter)]
    assert {*EXERCISES} < {*names}
    assert len(names) == len({*names})
    assert {*WRONG} == {*EXERCISES}
    assert all(fl.solution(name).text for name in {*names} - {*EXERCISES})


def changed_answers():
    """exercise -> (old, new, noun of the reason) of each line of the table."""
    table = {}
    exercise = ""
    for line in Path(__file__).with_name("wrong_answers.txt").read_text().splitlines():
        if line.startswith(" "):
            cells = (cell.strip() for cell in (line + " ").split(" =>"))
            table[exercise].append([cell.replace("\\n", "\n") for cell in cells])
        elif not line.startswith("#"):
            exercise = line
            table[exercise] = []
    return table


WRONG = changed_answers()


@pytest.mark.parametrize("exercise", WRONG)
def test_a_changed_answer_is_told_why_or_is_right(exercise):
    for old, new, noun in WRONG[exercise]:
        answer = right(exercise, old, new) if old else eval(new)
        state = torch.get_rng_state()
        verdict = fl.check(exercise, answer)
        assert bool(verdict) == (not noun), (old, new, verdict)
        assert noun in (verdict.reason or ""), (old, new, verdict)
        assert noun or not old or torch.equal(torch.get_rng_state(), state)


# ---- strange answers ---


def ends(error):
    def answer(*args):
        raise error

    return answer


def recurs(*args):
    return recurs()


VALUES = [None, math.nan, 1j, "heads", [], {}, bytes(8), 0.12345, 10**5000, torch]
VALUES += [
    torch.tensor(math.nan),
    torch.empty(0),
    torch.eye(3, 40),
]
VALUES += [
    np.array([{}, []], object),
    torch.eye(3).to_sparse(),
    torch.empty(3, device="meta"),
]
VALUES += [int, "x" * 10**6]
ERRORS = [SystemExit(0), ValueError(), StopIteration("x\n" * 999)]
ACTIONS = [*map(ends, ERRORS), lambda *a: sys.exit(), recurs, lambda: 1]
ACTIONS += [lambda *a: torch.empty(10**14), lambda *a: "x" * 10**14]
ACTIONS += [lambda *a, v=v: v for v in VALUES]


def without_numbers(function):
    """A right function, but each number that it returns is NaN; without numbers it fails."""

    def spoiled(x):
        if isinstance(x, int | float) or (torch.is_tensor(x) and not x.is_sparse):
            return x * math.nan
        return np.full(x.shape, math.nan) if isinstance(x, np.ndarray) else None

    return lambda *args: tree_map(spoiled, function(*args))


def hostile(exercise, functions):
    """Answers that are like the right one, but made of these functions, or whose numbers are
    NaN."""
    answer = right(exercise)
    if isinstance(answer, dict):
        yield from (dict.fromkeys(answer, f) for f in functions)
    elif isinstance(answer, tuple):
        for i, one in enumerate(answer):
            for f in (*functions, without_numbers(one)):
                yield (*answer[:i], f, *answer[i + 1 :])
    elif methods := [n for n in vars(type(answer)) if n in ("encode", "decode")]:
        for name, f in itertools.product(methods, functions):
            setattr(changed := copy.copy(answer), name, f)
            yield changed
    else:
        yield from functions
        yield without_numbers(answer) if callable(answer) else answer * math.nan


@pytest.mark.parametrize("exercise", EXERCISES)
def test_no_strange_answer_is_right_or_leaves_the_check(exercise):
    for answer in [*VALUES, *hostile(exercise, ACTIONS)]:
        verdict = fl.check(exercise, answer)
        assert not verdict
        assert len(repr(verdict)) < 700
        assert "\n" not in repr(verdict)


# ---- check and solution --------------------------------------------------------------------------


class Blank:
    def encode(self, x):
        return x

    def decode(self, x):
        """To be written."""


def test_an_empty_answer_is_no_wrong_answer():
    for answer in (None, ..., lambda x: ..., lambda x: None, (len, lambda x: None)):
        verdict = fl.check("rpn-pool", answer)
        assert empty(answer)
        assert not verdict
        assert "no answer yet" in repr(verdict)
    assert empty(Blank)
    assert not empty(solutions)
    assert not empty(lambda x: x)


def test_a_verdict_says_why():
    assert repr(Verdict("a-b", None)) == "a-b: right."
    assert "not yet, because it is too long" in repr(Verdict("a-b", "it is too long"))
    test = number(100, {50: "half"}, tolerance=0.01)
    assert test(100.5) is None
    assert "half" in test(50.2)
    for value, noun in (
        (1000, "too large"),
        (98, "too small"),
        (120, "whole"),
        (999, "order"),
    ):
        assert noun in test(value + (noun == "whole") / 2), (
            "more would lead to it by halving"
        )


# ---- numbers that differ by student --------------------------------------------------------------

VARIED = [n for n in EXERCISES if isinstance(module_of(n).EXERCISES[n], Varied)]


def expected(exercise):
    test = module_of(exercise).EXERCISES[exercise]
    return inspect.getclosurevars(test.build(**test.draw())).nonlocals["expected"]


@pytest.fixture
def student(monkeypatch):
    return lambda name: monkeypatch.setattr(check.CLASS, "student", name)


@pytest.mark.parametrize("exercise", VARIED)
def test_a_student_has_numbers_and_an_answer_of_their_own(exercise, student):
    book = fl.book.given(exercise)
    answers = []
    for name in ("ann", "ben", "zoë", "1234567"):
        student(name)
        assert fl.book.given(exercise) == fl.book.given(exercise) != book
        assert not fl.check(exercise, right(exercise)), "the book's"
        answers.append(expected(exercise))
        assert fl.check(exercise, answers[-1])
    assert len({*answers}) == 4
    student(None)
    assert fl.book.given(exercise) == book


@pytest.mark.parametrize("exercise", sorted({*EXERCISES} - {*VARIED}))
def test_checks_are_as_good_on_the_data_of_a_student(exercise, student):
    student("ann")
    with pytest.raises(ValueError, match=f"{exercise} are the same"):
        fl.book.given(exercise)
    test_the_reference_answer_is_right(exercise)
    test_a_changed_answer_is_told_why_or_is_right(exercise)


def test_the_seed_is_the_students(student, monkeypatch, tmp_path):
    monkeypatch.setattr(check, "CLASS", check.Edition())
    assert fl.book.seed() == 0
    first = check.drawn(3)
    student("zoë")
    assert fl.book.seed() == 659732614
    assert not torch.equal(check.drawn(3), first)
    student(" ZOE\u0308 ")
    assert fl.book.seed() == 659732614, "written in another way"
    (tmp_path / "zoë" / "rpn").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "zoë" / "rpn")
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    fl.book.course(student="ann")
    assert fl.book.seed() == 659732614, "whoever marks knows whose notebook it is"
    student("")
    with pytest.raises(ValueError, match="your id"):
        fl.book.given("rpn-numbers")
