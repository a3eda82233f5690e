"""The checks of the exercises.

``fl.check("fedavg-average", my_function)`` says "right", or gives the reason why not
yet.
``fl.solution("fedavg-average")`` shows the reference answer, folded. ``fl.progress()``
lists the exercises that are right so far.

The module of a chapter has the name that its exercises begin with. Its dictionary
``EXERCISES`` maps an exercise to a test: a function that takes the reader's answer and
returns a reason, the end of the sentence "not yet, because ...", or ``None`` for a
right answer. A test may also yield reasons; the first one that is true is shown.
Reference answers are in ``book/solutions``, a file a chapter.
"""

import dis
import hashlib
import os
import random
import re
import sys
import textwrap
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from ..errors import pick
from ..files import write_text

CHAPTERS = dict.fromkeys(
    "fedavg heterogeneity wire rpn fed_kgf fed_mmd_fusion fed_gkt fed_repopt flower "
    "seeing choosing".split()
)
Function = Callable[..., Any]  # an answer that is a function
Reasons = Iterator[str | bool | None]  # what a test yields
TWICE = (
    "the same generator gives another result the second time: "
    "use no other source of randomness"
)
NO_ID = "write your id into the first cell, and run all cells again"
PROGRESS = "progress.csv"
COLUMNS = ["exercise", "right", "checks"]


@dataclass
class Edition:
    """The state of a class notebook: solutions are hidden, and numbers may be a
    student's own."""

    hides_solutions: bool = False
    student: str | None = None
    marked: bool = False  # nbgrader has named the student


CLASS = Edition()


@dataclass(frozen=True)
class Verdict:
    """What ``check`` returns; shown as its sentence, and true only for a right
    answer."""

    exercise: str
    reason: str | None
    answered: bool = True

    def __bool__(self) -> bool:
        return self.answered and self.reason is None

    def __repr__(self) -> str:
        if not self.answered:
            return (
                f"{self.exercise}: no answer yet. Write yours in the cell "
                f"above, then run both."
            )
        result = "right" if self else f"not yet, because {self.reason}"
        return f"{self.exercise}: {result}."


def empty(answer: Any) -> bool:
    """Is it what the answer cell holds before anybody wrote there?

    ``...`` or ``None``, a function that returns one of them and does nothing else, an
    object with such a method, or a tuple with one of these in it.
    """
    if answer is None or answer is ...:
        return True
    if isinstance(answer, tuple):
        return any(map(empty, answer))
    if isinstance(answer, FunctionType):
        return all(
            code.argval is None or code.argval is ...
            for code in dis.get_instructions(answer)
            if code.opname not in ("RESUME", "COPY_FREE_VARS")
        )
    kind = answer if isinstance(answer, type) else type(answer)
    if kind is answer or kind.__module__ == "__main__":
        methods = [m for m in vars(kind).values() if isinstance(m, FunctionType)]
        return any(map(empty, methods))
    return False


def module_of(exercise: str) -> Any:
    """The module with the tests of a chapter's exercises; ``ValueError`` if there is
    none."""
    chapter = exercise.split("-")[0]
    pick(chapter, CHAPTERS, "chapter with exercises")
    return import_module(f".{chapter}", __package__)


def course(student: str | None = None) -> None:
    """Begin a class notebook: from here on ``solution`` shows no answer.

    Parameters
    ----------
    student : str, optional
        An id, from which the numbers of exercises are drawn. While nbgrader marks, the
        name of the student's folder takes its place.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.book.course(student="ann")  # doctest: +SKIP
    """
    CLASS.hides_solutions = True
    if student is None or CLASS.marked:
        return
    CLASS.student = student
    if os.environ.get("NBGRADER_EXECUTION") == "autograde":
        CLASS.student = Path.cwd().parent.name
        CLASS.marked = True


def kernel() -> Any:
    """The notebook's IPython; ``None`` outside of a notebook."""
    if "IPython" not in sys.modules:
        return None
    return sys.modules["IPython"].get_ipython()


def reason_of(test: Callable[[Any], Any], answer: Any) -> str | None:
    """The reason that a test gives for an answer. An error of the answer is a
    reason, too."""
    import torch

    try:
        with torch.random.fork_rng(
            devices=[]
        ):  # the notebook's own draws stay as they are
            outcome = test(answer)
            if outcome is None or isinstance(outcome, str):
                return outcome
            return next(filter(None, outcome), None)
    except (Exception, SystemExit) as error:
        return reason_of_error(error, answer)


def reason_of_error(error: BaseException, answer: Any) -> str:
    """The reason for an error, which the answer's code raised or a test of what it
    returns."""
    if isinstance(
        error.__cause__, StopIteration
    ):  # raised by the answer in a test that yields
        error = error.__cause__
    kind = traceback.format_exception_only(error)[-1].strip()
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if Path(__file__).parent not in Path(frame.f_code.co_filename).parents:
        return f"it stopped with {kind}"
    if re.search(r"\) (takes|missing|got) ", kind):
        return f"it takes other arguments than those asked for ({kind})"
    if "NoneType" in kind:
        return "it returns nothing: is the `return` missing?"
    subject = "it"
    if callable(answer) or isinstance(answer, tuple):
        subject = "what it returns"
    return f"{subject} is not what is asked for ({kind})"


def check(exercise: str, answer: Any) -> Verdict:
    """Check an answer: a number, a tensor or a function, as the exercise asks.

    An error in the answer is a reason, too. An empty answer cell is reported as such. A
    check that does not end is interrupted like any other cell.

    Parameters
    ----------
    exercise : str
        Its name, as the cell below the answer has it.
    answer : object
        What the answer's cell made.

    Returns
    -------
    Verdict
        "right", or "not yet, because ...".

    Raises
    ------
    ValueError
        For an exercise that there is not.

    Examples
    --------
    >>> check("rpn-pool", 0.5)
    rpn-pool: not yet, because two functions are asked for: pass the pair (pool, unpool).
    """
    test = pick(exercise, module_of(exercise).EXERCISES, "exercise")
    if empty(answer):
        return Verdict(exercise, "there is no answer yet", answered=False)
    if (
        isinstance(answer, FunctionType)
        and answer.__module__.split(".")[0] == "fedlearn"
    ):
        return Verdict(
            exercise,
            f"{answer.__name__} is the package's: write a function of your own",
        )
    reason: str | None
    if isinstance(test, Varied) and anonymous():
        reason = f"the numbers are your own: {NO_ID}"
    else:
        reason = reason_of(test, answer)
    if reason:
        reason = textwrap.shorten(reason, 500, placeholder=" ...")
    verdict = Verdict(exercise, reason)
    if kernel():
        record(verdict)
    return verdict


# ---- numbers that differ by student --------------------------------------------------


def seed() -> int:
    """The seed of the notebook, from which the data of checks and the numbers of
    exercises are drawn: made of the student's id in small letters, 0 where none is
    given."""
    name = unicodedata.normalize("NFC", CLASS.student or "").strip().casefold()
    if not name:
        return 0
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])


def anonymous() -> bool:
    """Are the numbers a student's own, and nobody said whose?"""
    return CLASS.student is not None and not seed()


@dataclass(frozen=True)
class Varied:
    """The test of a number that is computed from others: from the book's or, in the
    notebook of a student, from numbers of their own."""

    build: Callable[..., Callable[[Any], str | None]]
    numbers: dict[
        str, tuple[Any, Sequence[Any]]
    ]  # that of the book, and those to draw from

    def draw(self) -> dict[str, Any]:
        if not seed():
            return {name: book for name, (book, _) in self.numbers.items()}
        dice = random.Random(f"{seed()} {self.build.__module__}.{self.build.__name__}")
        return {name: dice.choice(pool) for name, (_, pool) in self.numbers.items()}

    def __call__(self, answer: Any) -> str | None:
        return self.build(**self.draw())(answer)


def varied(**numbers: tuple[Any, Sequence[Any]]) -> Callable[[Function], Varied]:
    """Makes a ``Varied`` of a function that makes a test of these numbers."""
    return lambda build: Varied(build, numbers)


def given(exercise: str) -> dict[str, Any]:
    """The numbers that an exercise begins with, by their names: the book's, or those of
    the notebook's student.

    >>> given("fedavg-bytes")
    {'rounds': 50, 'clients_in_a_round': 10}
    """
    test = pick(exercise, module_of(exercise).EXERCISES, "exercise")
    if not isinstance(test, Varied):
        raise ValueError(f"The numbers of {exercise} are the same for all.")
    if anonymous():
        raise ValueError(f"The numbers are your own: {NO_ID}.")
    return test.draw()


# ---- progress ------------------------------------------------------------------------


def progress_file() -> Path:
    """Beside the notebooks: in the folder of the book's ``_toc.yml``, or else in
    this one."""
    cwd = Path.cwd()
    folders = [f for f in (cwd, *cwd.parents) if (f / "_toc.yml").exists()]
    return (folders or [cwd])[0] / PROGRESS


def record(verdict: Verdict) -> None:
    """Write a verdict into the file. An exercise that was right once stays right."""
    # without a file that can be written there is no record
    with suppress(OSError, ValueError):
        table = progress()
        name = verdict.exercise
        right, checks = table.loc[name] if name in table.index else (False, 0)
        table.loc[name] = [right or bool(verdict), checks + 1]
        write_text(progress_file(), table.to_csv(lineterminator="\n"))


def progress() -> Any:
    """Which exercises are right so far: a table, a row an exercise that was checked.

    ``fl.check`` keeps it in ``progress.csv`` beside the notebooks, in the folder of the
    book's table of contents where there is one. ``fl.progress().to_csv("mine.csv")``
    exports it.

    Returns
    -------
    pandas.DataFrame
        columns *right* (was it ever) and *checks* (how many there were), by exercise

    Raises
    ------
    ValueError
        if the file is no longer such a table

    Examples
    --------
    >>> import fedlearn as fl
    >>> list(fl.progress().columns)
    ['right', 'checks']
    """
    import pandas as pd

    path = progress_file()
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS).set_index("exercise")
    table = pd.read_csv(path, true_values=["yes"], false_values=["no"])
    if list(table) != COLUMNS:
        raise ValueError(f"{path} has other columns than {', '.join(COLUMNS)}.")
    return table.set_index("exercise")


@dataclass(frozen=True)
class Solution:
    """A reference answer: its text and its code; shown folded."""

    exercise: str
    text: str
    code: str

    def _repr_html_(self) -> str:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer

        from .show import inline

        content = "".join(f"<p>{inline(part)}</p>" for part in self.text.split("\n\n"))
        if self.code:  # its colours, light and dark, are in book.css
            look = HtmlFormatter(classprefix="fl-", nowrap=True)
            content += f"<pre>{highlight(self.code, PythonLexer(), look)}</pre>"
        head = '<details class="fl fl-solution"><summary>Solution</summary>'
        return f"{head}{content}</details>"

    def __repr__(self) -> str:
        return "\n\n".join(filter(None, (self.text, self.code)))


def solutions(chapter: str, book: str | Path = "") -> dict[str, Solution]:
    """The reference answers of a chapter, by exercise; empty in a class and where there
    is no book.

        ``book/solutions/<chapter>.py`` has a section for each, which begins with ``# %%
        <exercise>``: a text in triple quotes, if any, and code that leaves the answer
        in
        ``answer``.
    """
    cwd = Path.cwd()
    checkout = Path(__file__).parents[2] / "book"
    folders = [Path(book)] if book else [checkout, cwd, *cwd.parents]
    paths = [folder / "solutions" / f"{chapter}.py" for folder in folders]
    path = next(filter(Path.exists, paths), None)
    if path is None or CLASS.hides_solutions:
        return {}
    text = path.read_text(encoding="utf-8")
    parts = re.split(r"^# %% *([\w-]+) *$", text, flags=re.MULTILINE)
    answers = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        words = re.match(r'\s*"""(.*?)"""', body, flags=re.DOTALL)
        code = body[words.end() :] if words else body
        answers[name] = Solution(name, words[1].strip() if words else "", code.strip())
    return answers


def solution(exercise: str) -> Solution:
    """The reference answer of an exercise, folded. A class notebook shows none.

    Parameters
    ----------
    exercise : str
        Its name.

    Returns
    -------
    Solution
        Its text and its code.

    Raises
    ------
    ValueError
        For an exercise that there is not.

    Examples
    --------
    >>> print(solution("rpn-pool").code.splitlines()[1].strip())
    return weight.mean((2, 3))
    """
    chapter = exercise.split("-")[0]
    pick(chapter, CHAPTERS, "chapter with exercises")
    answers = solutions(chapter)
    if not answers:
        return Solution(exercise, "The solutions are not part of this edition.", "")
    return pick(exercise, answers, "solution")


# ---- what checks are made of ---------------------------------------------------------


def number(
    expected: float, wrong: Mapping[float, str] | None = None, tolerance: float = 0.0
) -> Callable[[Any], str | None]:
    """A test for an answer that is one number, up to a relative ``tolerance``.

    ``wrong`` says which reason to give for a typical wrong answer. Of others the power
    of ten is compared.
    """

    def test(answer: Any) -> str | None:
        value = float(answer)
        if abs(value - expected) <= tolerance * abs(expected):
            return None
        for other, reason in (wrong or {}).items():
            if abs(value - other) <= max(tolerance, 1e-9) * abs(other):
                return reason
        if isinstance(expected, int) and value % 1:
            return "a whole number is asked for"
        # of the order only: "too large" and "too small" would lead to the answer by
        # halving
        order, right = (f"{x:.9e}".partition("e")[2] for x in (value, expected))
        if order == right:
            return f"{value:,.10g} is of the right order, and not right"
        return f"{value:,.10g} is too {'large' if value > expected else 'small'}"

    return test


def compared(
    answer: Any,
    right: Any,
    wrong: Mapping[str, Any],
    otherwise: str,
    atol: float = 1e-6,
) -> str | None:
    """``None`` if a tensor or number is the right one; the reason of the first of
    ``wrong`` that it is, if it is one of them; ``otherwise`` if not."""
    import torch

    value = torch.as_tensor(answer)

    def equals(other: Any) -> bool:
        return torch.allclose(value, torch.as_tensor(other).to(value.dtype), atol=atol)

    if equals(right):
        return None
    return next((reason for reason, other in wrong.items() if equals(other)), otherwise)


def generator(number: int) -> Any:
    """A generator of the data of checks: the same each time, and another for each
    student."""
    import torch

    return torch.Generator().manual_seed(number + seed())


def drawn(*shape: int, seed: int = 0, **options: Any) -> Any:
    """Normal numbers, the same each time."""
    import torch

    return torch.randn(shape, generator=generator(seed), **options)


def pair(answer: Any, names: str) -> str | None:
    """Why an answer is not two functions of these names; ``None`` if it is."""
    if isinstance(answer, tuple) and len(answer) == 2 and all(map(callable, answer)):
        return None
    return f"two functions are asked for: pass the pair {names}"


def labelled(
    answer: Any, example: str, call: str, names: tuple[str, ...], allowed: str
) -> str | None:
    """Why an answer is not what ``example`` shows, {label: method}, of methods with
    these names;
    ``None`` if it is."""
    from ..core import Method

    if not isinstance(answer, dict) or not answer:
        return f"a dictionary is asked for, such as {example}"
    for label, method in answer.items():
        if not isinstance(method, Method):
            return f"{label} is no method: write {call}, with brackets"
        if method.name not in names:
            return f"{label} is {method.name}; {allowed}"
    return None
