"""Self-check for the exercises: ``fl.check("fedavg-average", my_function)`` says "right", or what
is not yet right; ``fl.solution("fedavg-average")`` shows the reference answer, folded;
``fl.progress()`` lists what is right so far.

A chapter's module, named like the first word of the exercise, has them in ``EXERCISES``. Each is a
function that takes the reader's answer and returns the end of the sentence "not yet, because ...",
or ``None`` if it is right; or it yields such reasons one by one, of which the first that is one
counts. Reference answers are in ``book/solutions``, a file a chapter.
"""

import csv
import ctypes
import dis
import hashlib
import io
import os
import random
import re
import signal
import sys
import textwrap
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import FunctionType
from typing import Any

from ..errors import pick
from ..files import write_text

CHAPTERS = dict.fromkeys(
    (
        "fedavg heterogeneity wire rpn fed_kgf fed_mmd_fusion fed_gkt fed_repopt flower seeing "
        "choosing"
    ).split()
)
Function = Callable[..., Any]  # an answer that is a function
Reasons = Iterator[str | bool | None]  # of a wrong answer; what is false is none
TWICE = "the same generator gives another result the second time: use no other source of randomness"
SECONDS = 20.0  # that a check may take: nbgrader ends a cell after 30; right answers take 0.1
NO_ID = "write your id into the first cell, and run all cells again"
LETTERS = 100_000  # that it may print
STUDENT = "FEDLEARN_STUDENT"  # the variable with the id of the student who is marked
PROGRESS = "progress.csv"  # the file that keeps which exercises are right
COLUMNS = ["exercise", "right", "checks"]
# in a class notebook solutions are not shown, and the numbers may be a student's own
CLASS: dict[str, Any] = {"begun": False, "student": None, "marked": False}


@dataclass(frozen=True)
class Verdict:
    """What ``check`` returns; shown as its sentence, and true only for a right answer."""

    exercise: str
    reason: str | None
    answered: bool = True

    def __bool__(self) -> bool:
        return self.answered and self.reason is None

    def __repr__(self) -> str:
        if not self.answered:
            return f"{self.exercise}: no answer yet. Write yours in the cell above, then run both."
        result = "right" if self else f"not yet, because {self.reason}"
        return f"{self.exercise}: {result}."


def empty(answer: Any) -> bool:
    """Is it what the answer cell holds before anybody wrote there?

    ``...`` or ``None``, a function that returns one of them and does nothing else, an object with
    such a method, or a tuple with one of these in it.
    """
    if answer is None or answer is ...:
        return True
    if isinstance(answer, tuple):
        return any(map(empty, answer))
    if isinstance(answer, FunctionType):
        code = list(dis.get_instructions(answer))
        idle = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "COPY_FREE_VARS"}
        constants = [i.argval for i in code if "CONST" in i.opname]
        return {i.opname for i in code} <= idle and all(c is None or c is ... for c in constants)
    kind = answer if isinstance(answer, type) else type(answer)
    if kind.__module__ == "__main__" or isinstance(answer, type):
        return any(isinstance(m, FunctionType) and empty(m) for m in vars(kind).values())
    return False


def module_of(exercise: str) -> Any:
    """The module with the tests of a chapter's exercises; ``ValueError`` if there is none."""
    chapter = exercise.split("-")[0]
    pick(chapter, CHAPTERS, "chapter with exercises")
    return import_module(f".{chapter}", __package__)


class Unbounded(BaseException):
    """An answer takes or prints too much; its own ``except Exception`` does not catch that."""


class Printed(io.TextIOBase):
    """Passes on what an answer prints, up to ``LETTERS``."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.left = stream, LETTERS

    def write(self, text: str) -> int:
        self.left -= len(text)
        if self.left < 0:
            raise Unbounded(f"it prints more than {LETTERS:,} letters")
        return self.stream.write(text)

    def flush(self) -> None:
        self.stream.flush()


def course(seconds: float = 0.0, student: str | None = None) -> None:
    """What a class notebook begins with: from here on ``solution`` shows none.

    With ``student``, an id, the numbers of exercises are that student's own. Whoever marks knows
    the id: for ``marks`` and nbgrader it is the name of the folder that was handed in.

    With ``seconds``, as in a notebook that is marked, each later cell may use so much time of the
    processor and print ``LETTERS``, and is then stopped: a marking program stores what is printed,
    and waits. While nbgrader or otter-grader marks, a cell's folder has links in place of the files
    that they need: an answer that deletes its folder loses those.
    """
    if student is not None and not CLASS["marked"]:
        graded = os.environ.get("NBGRADER_EXECUTION") == "autograde"
        known = Path.cwd().parent.name if graded else os.environ.get(STUDENT)
        CLASS.update(student=known or student, marked=bool(known))
    shell = None if CLASS["begun"] or not seconds else kernel()
    CLASS["begun"] = True
    if shell is None:
        return
    clock, streams = hasattr(signal, "setitimer"), (sys.stdout, sys.stderr)
    otter = getattr(sys.modules.get("otter"), "Notebook", None)
    marked = "NBGRADER_EXECUTION" in os.environ or getattr(otter, "_grading_mode", False)
    home, place = Path.cwd(), TemporaryDirectory(ignore_cleanup_errors=True)

    def stop(*_: Any) -> None:
        raise Unbounded(f"a cell may take {seconds:g} seconds of the processor")

    def begin(*_: Any) -> None:
        sys.stdout, sys.stderr = map(Printed, streams)
        if marked:
            os.makedirs(place.name, exist_ok=True)
            os.chdir(place.name)
            for path in home.iterdir():
                if not os.path.lexists(path.name):
                    os.symlink(path, path.name)
        if clock:  # again each second, should the answer catch it
            signal.setitimer(signal.ITIMER_PROF, seconds, 1)

    def end(*_: Any) -> None:
        sys.stdout, sys.stderr = streams
        if clock:
            signal.setitimer(signal.ITIMER_PROF, 0)

    if clock:
        signal.signal(signal.SIGPROF, stop)
    shell.events.register("pre_run_cell", begin)
    shell.events.register("post_run_cell", end)


def kernel() -> Any:
    """The notebook's IPython, ``None`` outside of one."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def bounded(test: Callable[[Any], Any], answer: Any) -> str | None:
    """``test(answer)``, or why it ended in an error, or did not end.

    It runs in a thread of its own: so ``SECONDS`` bound it wherever the check is called, and what
    the answer raises, even SystemExit, is told from the reader's own stop of the cell.
    """
    import torch

    outcomes: list[str | None] = []

    def run() -> None:
        try:
            outcome = test(answer)
            single = isinstance(outcome, str | None)
            outcomes.append(outcome if single else next(filter(None, outcome), None))
        except BaseException as error:  # of the reader's code, or of the test on what it returns
            outcomes.append(stopped(error, answer))

    thread = Thread(target=run, daemon=True)
    try:
        with (
            redirect_stdout(Printed(sys.stdout)),
            redirect_stderr(Printed(sys.stderr)),
            torch.random.fork_rng(devices=[]),  # the notebook's own draws stay as they are
        ):
            thread.start()
            thread.join(SECONDS)
    finally:
        if thread.is_alive():  # an endless loop ends with its next line
            ident, error = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Unbounded)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)
    return outcomes[0] if outcomes else f"it has not ended after {SECONDS:g} seconds"


def stopped(error: BaseException, answer: Any) -> str:
    """The reason for an error: in the answer's own code, or in a test that could not use it."""
    if isinstance(error.__cause__, StopIteration):  # the answer's, in a test that yields
        error = error.__cause__
    if isinstance(error, Unbounded):
        return str(error)
    kind = traceback.format_exception_only(error)[-1].strip()
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if Path(__file__).parent not in Path(frame.f_code.co_filename).parents:
        return f"it stopped with {kind}"
    if re.search(r"\) (takes|missing|got) ", kind):
        return f"it takes other arguments than those asked for ({kind})"
    if "NoneType" in kind:
        return "it returns nothing: is the `return` missing?"
    subject = "what it returns" if callable(answer) or isinstance(answer, tuple) else "it"
    return f"{subject} is not what is asked for ({kind})"


def check(exercise: str, answer: Any) -> Verdict:
    """Check an answer: a number, a tensor or a function, as the exercise asks.

    Whatever it does is a reason, not a crash: an error, an exit, a loop or a print without end. An
    empty answer cell is said to be empty.

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
    if isinstance(answer, FunctionType) and answer.__module__.split(".")[0] == "fedlearn":
        return Verdict(
            exercise, f"{answer.__name__} is the package's: write a function of your own"
        )
    anybody = isinstance(test, Varied) and anonymous()
    reason = f"the numbers are your own: {NO_ID}" if anybody else bounded(test, answer)
    verdict = Verdict(exercise, reason and textwrap.shorten(reason, 500, placeholder=" ..."))
    if kernel():
        record(verdict)
    return verdict


# ---- numbers that differ by student --------------------------------------------------------------


def seed() -> int:
    """The seed of the notebook, from which the data of checks and the numbers of exercises are
    drawn: made of the student's id, 0 where none is given."""
    name = unicodedata.normalize("NFC", CLASS["student"] or "").strip()
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) if name else 0


def anonymous() -> bool:
    """Are the numbers a student's own, and nobody said whose?"""
    return CLASS["student"] is not None and not seed()


@dataclass(frozen=True)
class Varied:
    """The test of a number that is computed from others: from the book's or, in the notebook of a
    student, from numbers of their own."""

    build: Callable[..., Callable[[Any], str | None]]
    numbers: dict[str, tuple[Any, Sequence[Any]]]  # that of the book, and those to draw from

    def given(self) -> dict[str, Any]:
        dice = random.Random(f"{seed()} {self.build.__module__}.{self.build.__name__}")
        numbers = self.numbers.items()
        return {n: dice.choice(pool) if seed() else book for n, (book, pool) in numbers}

    def __call__(self, answer: Any) -> str | None:
        return self.build(**self.given())(answer)


def varied(**numbers: tuple[Any, Sequence[Any]]) -> Callable[[Function], Varied]:
    """Makes a ``Varied`` of a function that makes a test of these numbers."""
    return lambda build: Varied(build, numbers)


def given(exercise: str) -> dict[str, Any]:
    """The numbers that an exercise begins with, by their names: the book's, or those of the
    notebook's student.

    >>> given("fedavg-bytes")
    {'rounds': 50, 'clients_in_a_round': 10}
    """
    test = pick(exercise, module_of(exercise).EXERCISES, "exercise")
    if not isinstance(test, Varied):
        raise ValueError(f"The numbers of {exercise} are the same for all.")
    if anonymous():
        raise ValueError(f"The numbers are your own: {NO_ID}.")
    return test.given()


# ---- progress ------------------------------------------------------------------------------------


def progress_file() -> Path:
    """Beside the notebooks: in the folder of the book's ``_toc.yml``, or else in this one."""
    cwd = Path.cwd()
    return next((f for f in (cwd, *cwd.parents) if (f / "_toc.yml").exists()), cwd) / PROGRESS


def read_progress() -> dict[str, list[Any]]:
    """Of each exercise that was checked: is it right ("yes"), and after how many checks."""
    path = progress_file()
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ",".join(COLUMNS)
        columns, *rows = csv.reader(text.splitlines())
        if columns == COLUMNS:
            return {name: [right, int(checks)] for name, right, checks in rows}
    except (ValueError, csv.Error):
        pass
    raise ValueError(f"{path} has other columns than {', '.join(COLUMNS)}.")


def record(verdict: Verdict) -> None:
    """Keep a verdict. What was right once stays right; where no file can be written, none is."""
    with suppress(OSError, ValueError):  # a verdict is worth more than its record
        rows = read_progress()
        row = rows.setdefault(verdict.exercise, ["no", 0])
        row[:] = "yes" if verdict else row[0], row[1] + 1
        lines = [f"{name},{right},{checks}" for name, (right, checks) in rows.items()]
        write_text(progress_file(), "\n".join([",".join(COLUMNS), *lines, ""]))


def progress() -> Any:
    """Which exercises are right so far: a table, a row an exercise that was checked.

    ``fl.check`` keeps it in ``progress.csv`` beside the notebooks, in the folder of the book's
    table of contents where there is one. ``fl.progress().to_csv("mine.csv")`` exports it.

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

    rows = pd.DataFrame.from_dict(read_progress(), orient="index", columns=["right", "checks"])
    return rows.assign(right=rows["right"] == "yes").rename_axis("exercise")


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

        paragraphs = re.split(r"\n\s*\n", self.text.strip())
        text = "".join(f"<p>{inline(p)}</p>" for p in paragraphs if p)
        look = HtmlFormatter(classprefix="fl-", nowrap=True)  # colours: book.css, light and dark
        code = f"<pre>{highlight(self.code, PythonLexer(), look)}</pre>" if self.code else ""
        return f'<details class="fl fl-solution"><summary>Solution</summary>{text}{code}</details>'

    def __repr__(self) -> str:
        return "\n\n".join(filter(None, (self.text, self.code)))


def solutions(chapter: str, book: str | Path = "") -> dict[str, Solution]:
    """The reference answers of a chapter, by exercise; empty in a class and where there is no book.

    ``book/solutions/<chapter>.py`` has a section for each, which begins with ``# %% <exercise>``: a
    text in triple quotes, if any, and code that leaves the answer in ``answer``.
    """
    cwd = Path.cwd()
    folders = [Path(book)] if book else [Path(__file__).parents[2] / "book", cwd, *cwd.parents]
    path = next((p for f in folders if (p := f / "solutions" / f"{chapter}.py").exists()), None)
    if path is None or CLASS["begun"]:
        return {}
    sections = re.split(r"^# %% *([\w-]+) *$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    answers = {}
    for name, body in zip(sections[1::2], sections[2::2], strict=True):
        text = re.match(r'\s*"""(.*?)"""', body, flags=re.DOTALL)
        code = body[text.end() :] if text else body
        answers[name] = Solution(name, text[1].strip() if text else "", code.strip())
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


# ---- what checks are made of ---------------------------------------------------------------------


def number(
    expected: float, wrong: Mapping[float, str] | None = None, tolerance: float = 0.0
) -> Callable[[Any], str | None]:
    """A test for an answer that is one number, up to a relative ``tolerance``.

    ``wrong`` says which reason to give for a typical wrong answer. Of others the power of ten is
    compared.
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
        # of the order only: "too large" and "too small" would lead to the answer by halving
        order, right = (f"{x:.9e}".partition("e")[2] for x in (value, expected))
        if order == right:
            return f"{value:,.10g} is of the right order, and not right"
        return f"{value:,.10g} is too {'large' if value > expected else 'small'}"

    return test


def compared(
    answer: Any, right: Any, wrong: Mapping[str, Any], otherwise: str, atol: float = 1e-6
) -> str | None:
    """``None`` if a tensor or number is the right one; the reason of the first of ``wrong`` that it
    is, if it is one of them; ``otherwise`` if not."""
    import torch

    value = torch.as_tensor(answer)

    def same(other: Any) -> bool:
        return torch.allclose(value, torch.as_tensor(other).to(value.dtype), atol=atol)

    if same(right):
        return None
    return next((reason for reason, other in wrong.items() if same(other)), otherwise)


def generator(number: int) -> Any:
    """A generator of the data of checks: the same each time, and another for each student."""
    import torch

    return torch.Generator().manual_seed(number + seed())


def drawn(*shape: int, seed: int = 0, **options: Any) -> Any:
    """Normal numbers, the same each time."""
    import torch

    return torch.randn(shape, generator=generator(seed), **options)


def labelled(
    answer: Any, example: str, call: str, names: tuple[str, ...], about: str
) -> str | None:
    """Why an answer is not what ``example`` shows, {label: method}, of methods with these names;
    ``None`` if it is."""
    from ..core import Method

    if not isinstance(answer, dict) or not answer:
        return f"a dictionary is asked for, such as {example}"
    for label, method in answer.items():
        if not isinstance(method, Method):
            return f"{label} is no method: write {call}, with brackets"
        if method.name not in names:
            return f"{label} is {method.name}; {about}"
    return None
