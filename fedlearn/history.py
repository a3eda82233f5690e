"""What a run leaves behind: one row a round, and under which settings it was made."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .arguments import short
from .files import write_text

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

# those that a run has whatever its method and its task's metrics
COLUMNS = """
    round accuracy loss bytes_up bytes_up_buffers bytes_down bytes_down_buffers
    bytes_evaluation_up bytes_evaluation_down seconds clients refused unevaluated
""".split()
VERSION = 1  # of what is written; a file that states none is of the first
# what a run's meta has values by name for
TABLES = ("parts", "task", "data", "settings", "options", "tuned", "provenance")


@dataclass(eq=False, repr=False)
class History:
    """Rows with the keys ``round, accuracy, loss`` (on the test set, ``None`` in rounds without
    evaluation; what accuracy is, ``measure`` says), ``bytes_up, bytes_up_buffers, bytes_down,
    bytes_down_buffers`` (summed over the round's clients; the totals contain the buffers),
    ``bytes_evaluation_up, bytes_evaluation_down`` (what evaluation asked of clients, not in the
    totals), ``seconds`` (the round without its evaluation), ``clients`` (who took part),
    ``refused`` and ``unevaluated`` (client -> why its answer was not used, in the round and in its
    evaluation), ``untaken`` (why what the round made was not taken, or ``None``) and ``suspects``
    (the clients whose answers were the largest then). A method and the task's metrics may have
    columns of their own. Every key with a number a round is also an attribute that gives a numpy
    array.
    """

    method: str
    meta: dict[str, Any] = field(default_factory=dict)  # parts, task, settings, versions, hardware
    rows: list[dict[str, Any]] = field(default_factory=list)
    # the final global state; not written to JSON
    state: dict[str, torch.Tensor] | None = None

    def __getattr__(self, name: str) -> np.ndarray:
        rows = self.__dict__.get("rows")
        if rows and any(name in row for row in rows):
            values = [row.get(name) for row in rows]
            wide = next((len(v) for v in values if isinstance(v, list)), None)
            blank = np.nan if wide is None else [np.nan] * wide
            found = np.array([blank if v is None else v for v in values])
            return found.astype(float) if wide and found.dtype == object else found
        raise AttributeError(
            f"History has no {name!r}" + ("" if rows else ", and no rounds yet") + "."
        )

    def __repr__(self) -> str:
        """One line; the rows are in ``rows``, and ``to_pandas()`` shows them."""
        if not self.rows:
            return f"History({self.method!r}, no rounds yet)"
        up, down = self.bytes_up.sum() / 1e6, self.bytes_down.sum() / 1e6
        last = next((row for row in reversed(self.rows) if row["accuracy"] is not None), None)
        end = f"{self.measure} {last['accuracy']:.4f}, " if last else ""
        return (
            f"History({self.method!r}, {len(self)} rounds, {end}{up:.3f} MB up, {down:.3f} MB down)"
        )

    def _repr_html_(self) -> str:
        """The same, and the evaluated rounds as a table, at most ten of them."""
        from html import escape

        seen = [i for i, row in enumerate(self.rows) if row["accuracy"] is not None]
        some = dict.fromkeys(
            seen[i] for i in np.linspace(0, len(seen) - 1, min(10, len(seen))).astype(int)
        )
        mb = self.megabytes if self.rows else []
        lines = [
            f"<tr><td>{(row := self.rows[i])['round']}</td><td>{row['accuracy']:.4f}</td>"
            f"<td>{row['loss']:.4f}</td><td>{mb[i]:.3f}</td><td>{len(row['refused'])}</td></tr>"
            for i in some
        ]
        names = ("round", self.measure, "loss", "MB so far", "refused")
        head = "".join(f"<th>{name}</th>" for name in names)
        return f"<p>{escape(repr(self))}</p><table><tr>{head}</tr>{''.join(lines)}</table>"

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: Any) -> bool:
        """The same run: the same rows but for the seconds they took."""
        strip = [
            [{k: v for k, v in row.items() if k != "seconds"} for row in h.rows]
            for h in (self, other)
        ]
        return self.method == other.method and strip[0] == strip[1]

    def last_seen(self) -> dict[int, int]:
        """Client -> the last round in which an answer of it was used."""
        return {
            k: row["round"] for row in self.rows for k in row["clients"] if k not in row["refused"]
        }

    @property
    def measure(self) -> str:
        """The name of what the column accuracy holds; tasks other than classification have their
        own main metric there."""
        return self.meta.get("task", {}).get("accuracy", "accuracy")

    @property
    def final(self) -> dict[str, Any]:
        """The last evaluated row; ``ValueError`` if there is none."""
        seen = [row for row in self.rows if row["accuracy"] is not None]
        if not seen:
            raise ValueError(f"No round of this run of {self.method} was evaluated.")
        return seen[-1]

    def late_accuracy(self, tests: int = 5) -> float:
        """Mean accuracy of the last ``tests`` evaluated rounds: a curve that jumps from one test to
        the next says little by the last one alone."""
        evaluated = [row["accuracy"] for row in self.rows if row["accuracy"] is not None]
        return float(np.mean(evaluated[-tests:]))

    def rounds_to(self, accuracy: float) -> int | None:
        """The first round whose test accuracy reaches ``accuracy`` (0 to 1), or ``None``."""
        return next(
            (
                r["round"]
                for r in self.rows
                if r["accuracy"] is not None and r["accuracy"] >= accuracy
            ),
            None,
        )

    @property
    def megabytes(self) -> np.ndarray:
        """Megabytes sent so far, both ways and by all clients, after each round."""
        return np.cumsum(self.bytes_up + self.bytes_down) / 1e6

    def megabytes_to(self, accuracy: float) -> float | None:
        """Megabytes sent until the test accuracy first reaches ``accuracy``, or ``None``."""
        first = self.rounds_to(accuracy)
        return None if first is None else float(self.megabytes[first - self.rows[0]["round"]])

    def accuracy_at(self, megabytes: float) -> float | None:
        """Test accuracy of the last evaluated round that ends within a budget, or ``None``."""
        within = [
            r["accuracy"]
            for r, mb in zip(self.rows, self.megabytes, strict=True)
            if mb <= megabytes
        ]
        return next((a for a in reversed(within) if a is not None), None)

    def to_pandas(self) -> "pandas.DataFrame":
        """A row a round."""
        import pandas

        return pandas.DataFrame(self.rows).set_index("round")

    def to_dict(self) -> dict[str, Any]:
        """Method, meta and rows, as ``to_json`` writes them."""
        return {"method": self.method, "meta": self.meta, "rows": self.rows}

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON text; also written to ``path`` if one is given."""
        text = json.dumps(self.to_dict(), indent=1) + "\n"
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> "History":
        """Read what ``to_json`` wrote: a path, or the text itself; ``ValueError`` names what is
        none."""
        text, where = str(source), "This text"
        try:
            if not text.lstrip().startswith("{"):
                where = text
                text = Path(source).read_text(encoding="utf-8")
            return cls.from_dict(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{where} is no history of fedlearn ({why}).") from None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "History":
        """The inverse of ``to_dict``, also after JSON has made text of the clients' numbers;
        ``ValueError`` and the like for what is no history."""
        meta = data["meta"]
        for its in filter(lambda its: isinstance(its, dict), (data, meta)):
            if (version := its.get("version", VERSION)) != VERSION:
                raise ValueError(f"its version is {short(version)}; this program reads {VERSION}")
        tables = {"meta": meta} | ({n: meta[n] for n in TABLES if n in meta} if meta else {})
        for name, its in tables.items():
            if not isinstance(its, dict):
                raise ValueError(f"{name} has names and values, not {its!r:.40}")
        whose = ("refused", "unevaluated")  # client -> why
        if any(not isinstance(row.get(k, {}), dict) for row in data["rows"] for k in whose):
            raise ValueError(f"{' and '.join(whose)} are of clients, each with a reason")
        rows = [
            {k: {int(c): why for c, why in v.items()} if k in whose else v for k, v in row.items()}
            for row in data["rows"]
        ]
        rounds = [row["round"] for row in rows]
        if rounds != list(range(1, len(rows) + 1)) or any(type(r) is not int for r in rounds):
            raise ValueError(f"rounds 1 to {len(rows)} were expected, not {short(rounds)}")
        return cls(data["method"], data["meta"], rows)
