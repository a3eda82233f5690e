"""What may be called after each round: ``fl.run(..., on_round=[Lines("run.csv"), Until(0.9)])``.

A callback is any function of the row of the history and the state after it. One that returns True
ends the run. When a run goes on from a checkpoint, its last round comes again.
"""

import csv
import io
import math
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from .errors import pick, short
from .files import check_writable, to_json, write_text

Row = dict[str, Any]
EVERY = 10.0  # seconds at least between two lines that a log gets in place of a bar


def numbers(row: Row) -> dict[str, float]:
    """What in a row of a history a logger can draw: every column that is a number in this round.

    >>> numbers({"round": 3, "accuracy": None, "loss": 0.5, "bytes_up": 80, "refused": {}})
    {'loss': 0.5, 'bytes_up': 80}
    """
    return {k: v for k, v in row.items() if isinstance(v, int | float) and k != "round"}


@dataclass(frozen=True)
class Until:
    """Ends the run after the first round whose test accuracy reaches a target, 0 to 1.

    >>> Until(0.9)({"round": 3, "accuracy": 0.92}, None)
    True
    """

    accuracy: float

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy <= 1:
            raise ValueError(
                f"An accuracy lies between 0 and 1, not {self.accuracy!r}."
            )

    def __call__(self, row: Row, state: Any) -> bool:
        return row["accuracy"] is not None and row["accuracy"] >= self.accuracy


class Lines:
    """Every row as a line of a file, as the run goes: CSV (``.csv``) or JSON lines (``.jsonl``).

    Round 1 begins the file anew. A run that goes on from a checkpoint goes on with its file, and
    lines of later rounds than its own go. ``OSError`` if the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        pick(
            self.path.suffix,
            dict.fromkeys((".csv", ".jsonl")),
            "ending of a file of rows",
        )
        check_writable(self.path)

    def __call__(self, row: Row, state: Any) -> None:
        lines, comma = [], self.path.suffix == ".csv"
        if row["round"] > 1 and self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines()[
                : row["round"] - 1 + comma
            ]
        if comma:
            names = next(csv.reader(lines[:1]), [])
            names += [name for name in row if name not in names]
            lines[:1] = [_line(names)]
            cells = {
                k: to_json(v) if isinstance(v, dict | list) else v
                for k, v in row.items()
            }
            lines.append(_line(map(cells.get, names)))
        else:
            lines.append(to_json(row))
        write_text(self.path, "\n".join(lines) + "\n")


def _line(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


class _Log(nullcontext):
    """What a bar says, for a log: a line when a run begins, and one a round but not more often
    than ``EVERY``."""

    def __init__(self, name: str, done: int, rounds: int) -> None:
        super().__init__(self)
        self.name, self.done, self.rounds, self.reached = name, done, rounds, ""
        self.last = -math.inf
        self.update(0)

    def set_postfix(self, accuracy: str) -> None:
        self.reached = f", accuracy {accuracy}"

    def update(self, rounds: int = 1) -> None:
        self.done += rounds
        if time.monotonic() - self.last >= EVERY:
            self.last = time.monotonic()
            line = f"{self.name}: {self.done} of {self.rounds} rounds{self.reached}"
            print(line, file=sys.stderr, flush=True)


def progress_bar(name: str, done: int, rounds: int, show: bool | None) -> Any:
    """A bar, of text on a terminal and a widget in a notebook, if ``show`` is not False; lines
    elsewhere, if it is True."""
    kernel = hasattr(
        getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel"
    )
    visible = kernel or sys.stderr.isatty()
    if show and not visible:
        return _Log(name, done, rounds)
    if kernel and find_spec("ipywidgets"):
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

    hide = not (visible if show is None else show)
    return tqdm(
        initial=done, total=rounds, desc=name, unit="round", disable=hide, leave=False
    )


def list_callbacks(on_round: Any) -> list[Callable]:
    """The functions that are called after each round."""
    functions = [on_round] if callable(on_round) else on_round
    if isinstance(functions, Iterable):
        functions = list(functions)
        if all(callable(f) for f in functions):
            return functions
    raise ValueError(
        f"on_round is a function of the row and the state, or several, not {short(on_round)}."
    )


def call(callbacks: list[Callable], row: Row, state: Any) -> bool:
    """Call all of them; whether one returned True, of Python, numpy or torch."""
    ended = False
    for function in callbacks:
        answer = function(row, state)
        kind = getattr(answer, "dtype", type(answer))
        if kind in (bool, torch.bool) and bool(answer):
            ended = True
    return ended
