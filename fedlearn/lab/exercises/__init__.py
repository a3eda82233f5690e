"""Self-check for the exercises: ``fl.check("fedavg-average", my_function)`` says "right", or what
is not yet right.

A chapter's exercises live in the module named like the first word of the exercise. Each is a
function that takes the reader's answer and returns ``None`` if it is right, otherwise the end of
the sentence "not yet, because ...".
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ...errors import pick

CHAPTERS = dict.fromkeys(
    "fedavg heterogeneity wire rpn fed_kgf fed_mmd_fusion fed_gkt fed_repopt flower".split()
)
Function = Callable[..., Any]  # an answer that is a function


@dataclass(frozen=True)
class Verdict:
    """What ``check`` returns; shown as its sentence."""

    exercise: str
    reason: str | None

    @property
    def right(self) -> bool:
        return self.reason is None

    def __repr__(self) -> str:
        return (
            f"{self.exercise}: right."
            if self.right
            else f"{self.exercise}: not yet, because {self.reason}."
        )


def check(exercise: str, answer: Any) -> Verdict:
    """Check an answer: a number, a tensor or a function, as the exercise asks.

    An error in it is a reason, not a crash.
    """
    chapter = exercise.split("-")[0]
    pick(chapter, CHAPTERS, "chapter with exercises")
    module = import_module(f".{chapter}", __name__)
    test = pick(exercise, module.EXERCISES, "exercise")
    try:
        return Verdict(exercise, test(answer))
    except Exception as error:  # whatever the reader's code raises
        return Verdict(exercise, f"it stopped with {type(error).__name__}: {error}")


def number(
    expected: float,
    tolerance: float = 0.0,
    wrong: Mapping[Any, str] | Iterable[tuple[float, str]] = (),
) -> Callable[[Any], str | None]:
    """A test for an answer that is one number, up to a relative ``tolerance``.

    ``wrong`` says which reason to give for a typical wrong answer.
    """

    def test(answer: Any) -> str | None:
        value = float(answer)
        if abs(value - expected) <= tolerance * abs(expected):
            return None
        return dict(wrong).get(
            value, f"{value:,.10g} is too {'large' if value > expected else 'small'}"
        )

    return test
