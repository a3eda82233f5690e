"""What may be called after each round: ``fl.run(..., on_round=[Lines("run.csv"), Until(0.9)])``.

A callback is any function of the row of the history and the state after it. One that returns True
ends the run. When a run goes on from a checkpoint, its last round comes again.
"""

import csv
import io
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .errors import pick
from .files import check_writable, write_text

Row = dict[str, Any]


def numbers(row: Row) -> dict[str, float]:
    """What in a row a logger can draw: every column that is a number in this round."""
    return {k: v for k, v in row.items() if isinstance(v, int | float) and k != "round"}


@dataclass(frozen=True)
class Until:
    """Ends the run after the first round whose test accuracy reaches ``accuracy`` (0 to 1)."""

    accuracy: float

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy <= 1:
            raise ValueError(f"An accuracy lies between 0 and 1, not {self.accuracy!r}.")

    def __call__(self, row: Row, state: Any) -> bool:
        return row["accuracy"] is not None and row["accuracy"] >= self.accuracy


class Lines:
    """Every row as a line of a file, as the run goes: CSV (``.csv``), or JSON lines (``.jsonl``).

    Round 1 begins the file anew. A run that goes on from a checkpoint goes on with its file, and
    lines of later rounds than its own go.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        pick(self.path.suffix, dict.fromkeys((".csv", ".jsonl")), "ending of a file of rows")
        check_writable(self.path)

    def __call__(self, row: Row, state: Any) -> None:
        kept, comma = [], self.path.suffix == ".csv"
        if row["round"] > 1 and self.path.exists():
            kept = self.path.read_text(encoding="utf-8").splitlines()[: row["round"] - 1 + comma]
        if comma:
            kept = kept or [_line(row)]
            cells = {k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()}
            kept.append(_line(cells.get(name) for name in next(csv.reader(kept[:1]))))
        else:
            kept.append(json.dumps(row))
        write_text(self.path, "\n".join(kept) + "\n")


def _line(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


class TensorBoard:
    """Every number of a row as a scalar, for ``tensorboard --logdir FOLDER`` (needs the package
    ``tensorboard``)."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("TensorBoard is not installed: pip install tensorboard.") from None
        self._open, self._writer = partial(SummaryWriter, str(folder)), None

    def __call__(self, row: Row, state: Any) -> None:
        self._writer = writer = self._writer or self._open()  # a file, only if a round comes
        for name, value in numbers(row).items():
            writer.add_scalar(name, value, row["round"])
        writer.flush()
