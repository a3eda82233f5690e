"""What a run leaves behind: one row a round, and under which settings it was made."""

import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .errors import extra, short
from .files import from_json, numbers, to_json, write_text

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

MEASURES = (
    "last test",
    "last quarter",
)  # of the rounds, the mean: the two accuracies of a run
JUMP = 3.0  # times the lowest loss before
# those that a run has whatever its method and its task's metrics
COLUMNS = """
    round accuracy loss bytes_up bytes_up_buffers bytes_down bytes_down_buffers
    bytes_evaluation_up bytes_evaluation_down seconds clients refused unevaluated
""".split()


@dataclass(eq=False, repr=False)
class History:
    """The rounds of a run. Every key with a number a round is also an attribute that gives a numpy
    array.

    Parameters
    ----------
    method : str
        The method's name.
    meta : dict
        Parts, task, settings, versions and hardware.
    rows : list of dict
        One a round, with the keys ``round``; ``accuracy, loss`` (on the test set, ``None`` in
        rounds without evaluation; what accuracy is, ``measure`` says); ``bytes_up,
        bytes_up_buffers, bytes_down, bytes_down_buffers`` (summed over the round's clients; the
        totals contain the buffers); ``bytes_evaluation_up, bytes_evaluation_down`` (what evaluation
        asked of clients, not in the totals); ``seconds`` (the round without its evaluation);
        ``clients`` (who took part); ``refused`` and ``unevaluated`` (client -> why its answer was
        not used, in the round and in its evaluation); ``untaken`` (why the new model was not
        taken, or ``None``). A method and the task's metrics may have columns of their own.
    state : dict of tensors, optional
        The final global state; not written to JSON.
    trained : function, optional
        Gives the network of that state.

    Examples
    --------
    >>> import fedlearn as fl
    >>> rows = [{"round": t, "accuracy": t / 4, "bytes_up": 10**6, "bytes_down": 0} for t in (1, 2)]
    >>> history = fl.History("mine", rows=rows)
    >>> history
    History('mine', 2 rounds, accuracy 0.5000, 2.000 MB up, 0.000 MB down)
    >>> history.megabytes_to(0.5)
    2.0
    """

    method: str
    meta: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, torch.Tensor] | None = None
    trained: Callable[[], torch.nn.Module] | None = None

    def network(self) -> torch.nn.Module:
        """The trained network, in evaluation mode; ``task.predict(network, x)`` asks it.
        ``ValueError`` after a run elsewhere, and if there is no one network."""
        if self.trained is None:
            raise ValueError(
                "Only a run that ended here has its network: a file has numbers only."
            )
        return self.trained()

    def by_client(self, column: str = "per_client") -> np.ndarray:
        """The last test of each client, NaN where it has no samples: of a column that has a number
        a client, such as "personal"."""
        values = self.final.get(column)
        if not isinstance(values, list):
            raise ValueError(
                f"This run of {self.method} has no column {column!r} of numbers by client: give "
                f'its task metrics="{column}".'
            )
        return np.array(values, dtype=float)

    def fairness(self, column: str = "per_client") -> "pandas.Series":
        """``by_client``, then the mean, the worst, and the spread (standard deviation)."""
        with extra("plot"):
            import pandas

        each = pandas.Series(self.by_client(column))
        parts = {"mean": each.mean(), "worst": each.min(), "spread": each.std(ddof=0)}
        return pandas.concat([each, pandas.Series(parts)]).rename(self.measure)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"trained": None}

    def __getattr__(self, name: str) -> np.ndarray:
        rows = self.__dict__.get("rows")
        if rows and any(name in row for row in rows):
            values = [row.get(name) for row in rows]
            width = next((len(v) for v in values if isinstance(v, list)), None)
            blank = np.nan if width is None else [np.nan] * width
            column = np.array([blank if v is None else v for v in values])
            return column.astype(float) if width and column.dtype == object else column
        raise AttributeError(
            f"History has no {name!r}{'' if rows else ', and no rounds yet'}."
        )

    def __repr__(self) -> str:
        """One line; the rows are in ``rows``, and ``to_pandas()`` shows them."""
        if not self.rows:
            return f"History({self.method!r}, no rounds yet)"
        text = f"History({self.method!r}, {len(self)} rounds, "
        if self.evaluated:
            text += f"{self.measure} {self.final['accuracy']:.4f}, "
        up, down = self.bytes_up.sum() / 1e6, self.bytes_down.sum() / 1e6
        return f"{text}{up:.3f} MB up, {down:.3f} MB down)"

    def _repr_html_(self) -> str | None:
        """The same, and the evaluated rounds as a table, at most ten of them."""
        if not find_spec("pandas"):
            return None  # the text is shown
        from html import escape

        import pandas

        rows = self.evaluated
        some = np.unique(np.linspace(0, len(rows) - 1, min(10, len(rows))).astype(int))
        table = [
            {
                "round": str(row["round"]),
                self.measure: f"{row['accuracy']:.4f}",
                "loss": f"{row['loss']:.4f}",
                "MB so far": f"{self.megabytes[row['round'] - 1]:.3f}",
                "refused": str(len(row["refused"])),
            }
            for row in (rows[i] for i in some)
        ]
        return (
            f"<p>{escape(repr(self))}</p>{pandas.DataFrame(table).to_html(index=False)}"
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: Any) -> bool:
        """The same run: the same rows but for the seconds they took."""

        def timeless(history: History) -> list[dict[str, Any]]:
            return [row | {"seconds": 0} for row in history.rows]

        return self.method == other.method and timeless(self) == timeless(other)

    def last_seen(self) -> dict[int, int]:
        """Client -> the last round in which an answer of it was used."""
        return {
            k: row["round"]
            for row in self.rows
            for k in row["clients"]
            if k not in row["refused"] and not row.get("untaken")
        }

    @property
    def measure(self) -> str:
        """The name of what the column accuracy holds; tasks other than classification have their
        own main metric there."""
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
        """The rounds after which the loss was more than three times the lowest before, or NaN."""
        rows = self.evaluated
        lowest = accumulate((row["loss"] for row in rows), min)
        later = zip(rows[1:], lowest, strict=False)
        return [row["round"] for row, low in later if not row["loss"] <= JUMP * low]

    @property
    def late(self) -> list[dict[str, Any]]:
        """The rows of the tests in the last quarter of the rounds, or the last one if there is
        none: of 20 rounds, after rounds 16 to 20."""
        rows = [row for row in self.evaluated if row["round"] > 0.75 * len(self)]
        return rows or [self.final]

    def late_accuracy(self) -> float:
        """Mean accuracy of the tests in the last quarter of the rounds (``late``)."""
        return float(np.mean([row["accuracy"] for row in self.late]))

    @property
    def chosen_on(self) -> str:
        """The images, "test" or "validation", on which an option was chosen; empty if none was."""
        return str(self.meta.get("chosen_on", "test" if "tuned" in self.meta else ""))

    @property
    def reached(self) -> dict[str, float]:
        """The last test's accuracy and ``late_accuracy``, by the names of ``MEASURES``."""
        values = float(self.final["accuracy"]), self.late_accuracy()
        return dict(zip(MEASURES, values, strict=True))

    def rounds_to(self, accuracy: float) -> int | None:
        """The first round whose test accuracy reaches ``accuracy`` (0 to 1), or ``None``."""
        return next(
            (r["round"] for r in self.evaluated if r["accuracy"] >= accuracy), None
        )

    @property
    def megabytes(self) -> np.ndarray:
        """Megabytes sent so far, both ways and by all clients, after each round."""
        return np.cumsum(self.bytes_up + self.bytes_down) / 1e6

    def megabytes_to(self, accuracy: float) -> float | None:
        """Megabytes sent until the test accuracy first reaches ``accuracy``, or ``None``."""
        first = self.rounds_to(accuracy)
        return (
            None
            if first is None
            else float(self.megabytes[first - self.rows[0]["round"]])
        )

    def accuracy_at(self, megabytes: float) -> float | None:
        """Test accuracy of the last evaluated round that ends within a budget, or ``None``."""
        within = self.rows[: int((self.megabytes <= megabytes).sum())]
        return next(
            (r["accuracy"] for r in reversed(within) if r["accuracy"] is not None), None
        )

    def to_pandas(self) -> "pandas.DataFrame":
        """A row a round."""
        with extra("plot"):
            import pandas

        return pandas.DataFrame(self.rows).set_index("round")

    def to_dict(self) -> dict[str, Any]:
        """Method, meta and rows, as ``to_json`` writes them."""
        return {"method": self.method, "meta": self.meta, "rows": self.rows}

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON text, where NaN is the text "NaN"; also written to ``path`` if one is given."""
        text = to_json(self.to_dict(), indent=1) + "\n"
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> "History":
        """Read what ``to_json`` wrote: a path, or the text itself; ``ValueError`` names what is
        none."""
        text, name = str(source), "This text"
        try:
            if not text.lstrip().startswith("{"):
                name, text = text, Path(source).read_text(encoding="utf-8")
            return cls.from_dict(from_json(text))
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{name} is no history of fedlearn ({why}).") from None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "History":
        """The inverse of ``to_dict``, also after JSON has made text of the clients' numbers;
        ``ValueError`` and the like for what is no history."""
        meta, rows = data["meta"], [dict(numbers(row)) for row in data["rows"]]
        if not isinstance(meta, dict):
            raise ValueError(f"meta has names and values, not {short(meta)}")
        rounds = [row["round"] for row in rows]
        if rounds != list(range(1, len(rows) + 1)):
            raise ValueError(
                f"rounds 1 to {len(rows)} were expected, not {short(rounds)}"
            )
        for row in rows:
            for name in row.keys() & {"refused", "unevaluated"}:
                row[name] = {int(client): why for client, why in row[name].items()}
        return cls(data["method"], meta, rows)


def warn_of_round(history: History) -> None:
    """Say what went wrong in the last round, if it is the first of its kind in the run."""
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
