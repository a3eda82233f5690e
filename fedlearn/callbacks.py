"""What may be called after each round with the row of the history and the state after it: any
function; one that returns True ends the run. After a checkpoint the last round comes again."""

import csv
import io
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import pick
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
            raise ValueError(f"An accuracy lies between 0 and 1, not {self.accuracy!r}.")

    def __call__(self, row: Row, state: Any) -> bool:
        return row["accuracy"] is not None and row["accuracy"] >= self.accuracy


class Lines:
    """Every row as a line of a CSV (``.csv``) or JSON lines (``.jsonl``) file; later rounds' lines
    go."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        pick(self.path.suffix, dict.fromkeys((".csv", ".jsonl")), "ending of a file of rows")
        check_writable(self.path)

    def __call__(self, row: Row, state: Any) -> None:
        lines, comma = [], self.path.suffix == ".csv"
        if row["round"] > 1 and self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines()[: row["round"] - 1 + comma]
        if comma:
            lines = lines or [_line(row)]
            cells = {k: to_json(v) if isinstance(v, dict | list) else v for k, v in row.items()}
            lines.append(_line(cells.get(name) for name in next(csv.reader(lines[:1]))))
        else:
            lines.append(to_json(row))
        write_text(self.path, "\n".join(lines) + "\n")


def _line(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


class TensorBoard:
    """Every number of a row as a scalar, for ``tensorboard --logdir FOLDER``."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("TensorBoard is not installed: pip install tensorboard.") from None
        self._open, self._writer = lambda: SummaryWriter(str(folder)), None

    def __call__(self, row: Row, state: Any) -> None:
        self._writer = writer = self._writer or self._open()  # a file, only if a round comes
        for name, value in numbers(row).items():
            writer.add_scalar(name, value, row["round"])
        writer.flush()


def progress_bar(name: str, done: int, rounds: int, show: bool | None) -> Any:
    """A bar on a terminal or in a notebook, if not ``show`` is False; elsewhere, if it is True."""
    kernel = hasattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel")
    visible, how = kernel or sys.stderr.isatty(), dict[str, Any]()
    if show and not visible:
        line = "{desc}: {n_fmt} of {total_fmt} rounds{postfix}\n"
        how = {"bar_format": line, "mininterval": EVERY, "miniters": 1}
    if kernel and find_spec("ipywidgets"):
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

    hide = not (visible if show is None else show)
    how |= {"initial": done, "total": rounds, "desc": name, "disable": hide, "leave": False}
    return tqdm(unit="round", **how)
