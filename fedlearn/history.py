"""What a run leaves behind: one row a round, and under which settings it was made."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .data.sources import data_path


def write_atomically(path, write):
    """Let ``write(temporary_path)`` fill a file beside ``path``, then put it in place in one step."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write(part)
        with open(part, "rb") as f:
            os.fsync(f.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path, text):
    """``write_atomically`` for a text."""
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def spread(values, form=".3f"):
    """Mean and standard deviation of a few runs as text; values that are ``None`` (never reached) are counted."""
    there = [v for v in values if v is not None]
    if not there:
        return "not reached"
    text = f"{np.mean(there):{form}}" + (
        f" ± {np.std(there, ddof=1):{form}}" if len(there) > 1 else ""
    )
    return text if len(there) == len(values) else f"{text} ({len(there)} of {len(values)} runs)"


def summary(runs, target=None, megabytes=None):
    """What each method reached and what it cost: a row for each label of ``runs``, which holds a history or a list of
    histories (one a seed, shown as mean ± standard deviation). ``target`` is a test accuracy, ``megabytes`` a budget.
    """
    import pandas

    rows = {}
    for label, histories in runs.items():
        histories = histories if isinstance(histories, list) else [histories]
        row = rows[label] = {
            "rounds": len(histories[0]),
            "accuracy": spread([h.final["accuracy"] for h in histories]),
        }
        if megabytes is not None:
            row[f"accuracy at {megabytes:.1f} MB"] = spread(
                [h.accuracy_at(megabytes) for h in histories]
            )
        if target is not None:
            row[f"rounds to {target:.0%}"] = spread([h.rounds_to(target) for h in histories], ".1f")
            row[f"MB to {target:.0%}"] = spread([h.megabytes_to(target) for h in histories], ".2f")
        for way in ("up", "down"):
            row[f"MB {way}"] = (
                f"{np.mean([getattr(h, f'bytes_{way}').sum() for h in histories]) / 1e6:.2f}"
            )
    return pandas.DataFrame(rows).T.rename_axis("method")


def results(name):
    """The histories in ``data/results/<name>.json``, made by ``fedlearn compare ... --out``; empty if there is no such file."""
    path = data_path("results", f"{name}.json")
    if not path.exists():
        return []
    data = json.loads(path.read_text(encoding="utf-8"))
    return [History.from_dict(d) for d in (data if isinstance(data, list) else [data])]


@dataclass(eq=False)
class History:
    """Rows with the keys ``round, accuracy, loss`` (on the test set, ``None`` in rounds without evaluation),
    ``bytes_up, bytes_up_buffers, bytes_down, bytes_down_buffers`` (summed over the round's clients;
    the totals contain the buffers), ``bytes_evaluation_up, bytes_evaluation_down`` (what evaluation
    asked of clients, not in the totals), ``seconds`` (the round without its evaluation), ``clients``
    (who took part), ``refused`` and ``unevaluated`` (client -> why its answer was not used, in the
    round and in its evaluation). A method may have columns of its own. Every key but the last three
    is also an attribute that gives a numpy array.
    """

    method: str
    meta: dict = field(default_factory=dict)  # parts, task, settings, versions, hardware
    rows: list = field(default_factory=list)
    state: dict = field(default=None, repr=False)  # the final global state; not written to JSON

    def __getattr__(self, name):
        rows = self.__dict__.get("rows")
        if rows and name in rows[0]:
            return np.array([np.nan if row[name] is None else row[name] for row in rows])
        raise AttributeError(
            f"History has no {name!r}" + ("" if rows else ", and no rounds yet") + "."
        )

    def __len__(self):
        return len(self.rows)

    def __eq__(self, other):
        """The same run: the same rows but for the seconds they took."""
        strip = [
            [{k: v for k, v in row.items() if k != "seconds"} for row in h.rows]
            for h in (self, other)
        ]
        return self.method == other.method and strip[0] == strip[1]

    def heard(self):
        """Client -> the last round in which an answer of it was used."""
        return {
            k: row["round"] for row in self.rows for k in row["clients"] if k not in row["refused"]
        }

    @property
    def final(self):
        """The last evaluated row."""
        return next(row for row in reversed(self.rows) if row["accuracy"] is not None)

    def rounds_to(self, accuracy):
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
    def megabytes(self):
        """Megabytes sent so far, both ways and by all clients, after each round."""
        return np.cumsum(self.bytes_up + self.bytes_down) / 1e6

    def megabytes_to(self, accuracy):
        """Megabytes sent until the test accuracy first reaches ``accuracy``, or ``None``."""
        first = self.rounds_to(accuracy)
        return None if first is None else float(self.megabytes[first - self.rows[0]["round"]])

    def accuracy_at(self, megabytes):
        """Test accuracy of the last evaluated round that ends within a budget, or ``None``."""
        within = [
            r["accuracy"]
            for r, mb in zip(self.rows, self.megabytes, strict=True)
            if mb <= megabytes
        ]
        return next((a for a in reversed(within) if a is not None), None)

    def to_pandas(self):
        import pandas

        return pandas.DataFrame(self.rows).set_index("round")

    def to_dict(self):
        """Method, meta and rows, as ``to_json`` writes them."""
        return {"method": self.method, "meta": self.meta, "rows": self.rows}

    def to_json(self, path=None):
        """JSON text; also written to ``path`` if one is given."""
        text = json.dumps(self.to_dict(), indent=1) + "\n"
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def from_json(cls, source):
        """Read what ``to_json`` wrote: a path, or the text itself."""
        text = (
            source
            if str(source).lstrip().startswith("{")
            else Path(source).read_text(encoding="utf-8")
        )
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, data):
        """The inverse of ``to_dict``, also after a way through JSON, which turns the clients' numbers into text."""
        whose = ("refused", "unevaluated")  # client -> why
        rows = [
            {k: {int(c): why for c, why in v.items()} if k in whose else v for k, v in row.items()}
            for row in data["rows"]
        ]
        return cls(data["method"], data["meta"], rows)
