"""What a run leaves behind: one row a round, and under which settings it was made."""

import json
import math
import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .errors import extra
from .files import to_json, write_text

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

# the two accuracies of a run; the second is the mean of the tests in that quarter
MEASURES = ("last test", "last quarter")
JUMP = 3.0  # times the lowest loss before
# the columns of every run
COLUMNS = """
    round accuracy loss bytes_up bytes_up_buffers bytes_down bytes_down_buffers
    bytes_evaluation_up bytes_evaluation_down seconds clients refused unevaluated untaken
""".split()
# the texts that ``to_json`` writes for numbers that JSON lacks
TEXTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(eq=False, repr=False)
class History:
    """The rounds of a run. Every column is also an attribute that gives a numpy array.

    Parameters
    ----------
    method : str
        The method's name.
    meta : dict
        Parts, task, settings, versions and hardware.
    rows : list of dict
        One a round. A method and the task's metrics may have columns of their own;
        every run has these:

        * ``round``
        * ``accuracy, loss`` on the test set, ``None`` in rounds without evaluation
        * ``bytes_up, bytes_down``, summed over the round's clients
        * ``bytes_up_buffers, bytes_down_buffers``, the part of them that is no
          parameter: batch statistics, and tensors that a step of a link adds, such as
          SCAFFOLD's control variates
        * ``bytes_evaluation_up, bytes_evaluation_down``, not in the others
        * ``seconds``, the round without its evaluation
        * ``clients``, who took part
        * ``refused, unevaluated``: client -> why its answer was not used, in the round
          and in its evaluation
        * ``untaken``: why the new model was not taken, or ``None``
    state : dict of tensors, optional
        The final global state; not written to JSON.
    trained : function, optional
        Gives the network of that state.

    Examples
    --------
    >>> import fedlearn as fl
    >>> row = {"accuracy": 0.5, "bytes_up": 10**6, "bytes_down": 0}
    >>> history = fl.History("mine", rows=[{"round": 1} | row, {"round": 2} | row])
    >>> history
    History('mine', 2 rounds, accuracy 0.5000, 2.000 MB up, 0.000 MB down)
    >>> history.megabytes_to(0.5)
    1.0
    """

    method: str
    meta: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, torch.Tensor] | None = None
    trained: Callable[[], torch.nn.Module] | None = None

    def network(self) -> torch.nn.Module:
        """The trained network, in evaluation mode; ``task.predict(network, x)`` asks it.

        ``ValueError`` after a run elsewhere, and if there is no one network.
        """
        if self.trained is None:
            raise ValueError(
                "Only a run that ended here has its network: a file has numbers only."
            )
        return self.trained()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"trained": None}

    def __getattr__(self, name: str) -> np.ndarray:
        rows = self.__dict__.get("rows", [])
        values = [row.get(name) for row in rows]
        if not any(name in row for row in rows):
            raise AttributeError(f"History has no column {name!r}.")
        lists = [value for value in values if isinstance(value, list)]
        blank = [math.nan] * len(lists[0]) if lists else math.nan
        column = np.array([blank if value is None else value for value in values])
        return column.astype(float) if lists and column.dtype == object else column

    def __repr__(self) -> str:
        """One line; the rows are in ``rows``, and ``to_pandas()`` shows them."""
        if not self.rows:
            return f"History({self.method!r}, no rounds yet)"
        text = f"History({self.method!r}, {len(self)} rounds, "
        if self.evaluated:
            text += f"{self.measure} {self.final['accuracy']:.4f}, "
        up = self.bytes_up.sum() / 1e6
        down = self.bytes_down.sum() / 1e6
        return f"{text}{up:.3f} MB up, {down:.3f} MB down)"

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: Any) -> bool:
        """Equal rows of one method, whatever the seconds."""
        if not isinstance(other, History):
            return NotImplemented

        def timeless(history: History) -> list[dict[str, Any]]:
            return [row | {"seconds": 0} for row in history.rows]

        return self.method == other.method and timeless(self) == timeless(other)

    def last_seen(self) -> dict[int, int]:
        """Client -> the last round in which an answer of it was used."""
        rounds = {}
        for row in self.rows:
            for client in row["clients"]:
                if client not in row["refused"] and not row.get("untaken"):
                    rounds[client] = row["round"]
        return rounds

    @property
    def measure(self) -> str:
        """The name of the task's main metric, which the column accuracy holds."""
        return self.meta.get("task", {}).get("accuracy", "accuracy")

    @property
    def evaluated(self) -> list[dict[str, Any]]:
        """The rows of the rounds in which the test set was looked at."""
        return [row for row in self.rows if row["accuracy"] is not None]

    @property
    def final(self) -> dict[str, Any]:
        """The last evaluated row; ``ValueError`` if there is none."""
        if not self.evaluated:
            raise ValueError(f"No round of this run of {self.method} was evaluated.")
        return self.evaluated[-1]

    @property
    def jumps(self) -> list[int]:
        """The rounds whose loss is NaN or more than three times the lowest before."""
        rows = self.evaluated
        lowest = accumulate((row["loss"] for row in rows), min)
        later = zip(rows[1:], lowest, strict=False)
        return [row["round"] for row, low in later if not row["loss"] <= JUMP * low]

    @property
    def late(self) -> list[dict[str, Any]]:
        """The evaluated rows of the last quarter of the rounds (of 20 rounds, after
        rounds 16 to 20). Without one, the last evaluated row."""
        rows = [row for row in self.evaluated if row["round"] > 0.75 * len(self)]
        return rows or [self.final]

    def late_accuracy(self) -> float:
        """Mean accuracy of the tests in the last quarter of the rounds (``late``)."""
        return float(np.mean([row["accuracy"] for row in self.late]))

    @property
    def reached(self) -> dict[str, float]:
        """The last test's accuracy and ``late_accuracy``, by the names of ``MEASURES``."""
        values = float(self.final["accuracy"]), self.late_accuracy()
        return dict(zip(MEASURES, values, strict=True))

    @property
    def megabytes(self) -> np.ndarray:
        """Megabytes sent so far, both ways and by all clients, after each round."""
        return np.cumsum(self.bytes_up + self.bytes_down) / 1e6

    def rounds_to(self, accuracy: float) -> int | None:
        """The first round whose test accuracy reaches ``accuracy`` (0 to 1), or ``None``."""
        for row in self.evaluated:
            if row["accuracy"] >= accuracy:
                return row["round"]
        return None

    def megabytes_to(self, accuracy: float) -> float | None:
        """Megabytes sent until the test accuracy first reaches ``accuracy``, or ``None``."""
        first = self.rounds_to(accuracy)
        return None if first is None else float(self.megabytes[first - 1])

    def accuracy_at(self, megabytes: float) -> float | None:
        """Test accuracy of the last evaluated round that ends within a budget, or ``None``."""
        within = None
        for row, spent in zip(self.rows, self.megabytes, strict=True):
            if spent <= megabytes and row["accuracy"] is not None:
                within = row["accuracy"]
        return within

    def to_pandas(self) -> "pandas.DataFrame":
        """A row a round."""
        with extra("plot"):
            import pandas

        return pandas.DataFrame(self.rows).set_index("round")

    def to_dict(self) -> dict[str, Any]:
        """Method, meta and rows, as ``to_json`` writes them."""
        return {"method": self.method, "meta": self.meta, "rows": self.rows}

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON text, where NaN is the text "NaN"; also written to ``path``."""
        text = to_json(self.to_dict(), indent=1) + "\n"
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> "History":
        """Read what ``to_json`` wrote: a path, or the text itself.

        ``ValueError`` for what is no history.
        """
        text = str(source)
        name = "This text"
        try:
            if not text.lstrip().startswith("{"):
                name = text
                text = Path(source).read_text(encoding="utf-8")
            return cls.from_dict(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{name} is no history of fedlearn ({error!r}).") from None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "History":
        """The inverse of ``to_dict``, also after JSON has made text of the clients' numbers;
        ``ValueError`` and the like for what is no history."""
        rows = [dict(_numbers(row)) for row in data["rows"]]
        for row in rows:
            for name in row.keys() & {"refused", "unevaluated"}:
                row[name] = {int(client): why for client, why in row[name].items()}
        return cls(data["method"], dict(data["meta"]), rows)


def _numbers(value: Any) -> Any:
    """The same with the numbers that ``TEXTS`` stand for."""
    if isinstance(value, dict):
        return {key: _numbers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_numbers(entry) for entry in value]
    return TEXTS.get(value, value) if isinstance(value, str) else value


def warn_of_round(history: History) -> None:
    """Warn of what went wrong in the last round, the first time in a run."""
    *earlier, row = history.rows
    name = f"Round {row['round']} of {history.method}"
    later = "history.rows has this and later ones."
    if row["untaken"] and not any(r.get("untaken") for r in earlier):
        warnings.warn(f"{name} was not taken: {row['untaken']} {later}", stacklevel=3)
    for column, noun in (("refused", "answer"), ("unevaluated", "evaluation")):
        for k, why in row[column].items():
            if not any(k in r[column] for r in earlier):
                text = f"{name}: the {noun} of client {k} does not count: {why} {later}"
                warnings.warn(text, stacklevel=3)
    if history.jumps == [row["round"]]:
        text = f"{name}: the loss is more than {JUMP:g} times the lowest before."
        warnings.warn(text, stacklevel=3)


def describe(method: Any, task: Any, settings: Any, threads: int) -> dict[str, Any]:
    """The head of a history: parts, task, settings, versions and hardware."""
    hardware = platform.processor() or platform.machine()
    if task.device.type == "cuda":
        hardware = torch.cuda.get_device_name(task.device)
    return {
        "parts": method.parts(),
        "task": task.describe(),
        "data": task.digests,
        "settings": asdict(settings),
        "threads": threads,
        "device": f"{task.device.type} ({hardware})",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
