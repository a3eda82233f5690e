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
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        with open(part, "rb") as f:
            os.fsync(f.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


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
    ``bytes_up, bytes_up_buffers, bytes_down, bytes_down_buffers`` (summed over the round's clients; the totals contain
    the buffers), ``seconds`` (the round without its evaluation), ``clients`` (who took part) and ``refused`` (client ->
    why its upload was not used). Every key but the last two is also an attribute that gives a numpy array.
    """

    method: str
    meta: dict = field(default_factory=dict)  # parts, task, settings, versions, hardware
    rows: list = field(default_factory=list)
    state: dict = field(default=None, repr=False)  # the final global state; not written to JSON

    def __getattr__(self, name):
        rows = self.__dict__.get("rows")
        if rows and name in rows[0]:
            return np.array([np.nan if row[name] is None else row[name] for row in rows])
        raise AttributeError(f"History has no {name!r}" + ("" if rows else ", and no rounds yet") + ".")

    def __len__(self):
        return len(self.rows)

    def __eq__(self, other):
        """The same run: the same rows but for the seconds they took."""
        strip = [[{k: v for k, v in row.items() if k != "seconds"} for row in h.rows] for h in (self, other)]
        return self.method == other.method and strip[0] == strip[1]

    @property
    def final(self):
        """The last evaluated row."""
        return next(row for row in reversed(self.rows) if row["accuracy"] is not None)

    def rounds_to(self, accuracy):
        """The first round whose test accuracy reaches ``accuracy`` (0 to 1), or ``None``."""
        return next((r["round"] for r in self.rows if r["accuracy"] is not None and r["accuracy"] >= accuracy), None)

    def to_pandas(self):
        import pandas

        return pandas.DataFrame(self.rows).set_index("round")

    def to_json(self, path=None):
        """JSON text; also written to ``path`` if one is given."""
        text = json.dumps({"method": self.method, "meta": self.meta, "rows": self.rows}, indent=1) + "\n"
        if path is not None:
            write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
        return text

    @classmethod
    def from_json(cls, source):
        """Read what ``to_json`` wrote: a path, or the text itself."""
        text = source if str(source).lstrip().startswith("{") else Path(source).read_text(encoding="utf-8")
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, data):
        """The inverse of what ``to_json`` writes, already parsed."""
        rows = [{**row, "refused": {int(k): why for k, why in row["refused"].items()}} for row in data["rows"]]
        return cls(data["method"], data["meta"], rows)
