"""Stored runs and their tables.

A line of ``data/<chapter>/results/<name>.jsonl.gz`` is a run: its experiment, the hash
of the experiment, and its history (or scales of FedRepOpt, which older recipes stored).
New runs are single files in ``runs/<name>/`` below the working directory, until ``fedlearn pack``
moves them into ``data``.
"""

import gzip
import hashlib
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..data import data_path
from ..errors import extra
from ..files import to_json, write_atomically
from ..history import COLUMNS, MEASURES, History

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

PACKED = ".jsonl.gz"
FEW = 5  # seeds, at least, for the word "ahead"
RECENT = Path("runs")  # below the working directory; git ignores it
SOURCES = (
    "fedlearn",
    "data",
    "pyproject.toml",
    ":(exclude)data/*/*.json*",
    ":(exclude)data/results",
)
Line = dict[str, Any]


def hash_of(experiment: dict[str, Any]) -> str:
    """The key of a run; equal experiments have equal keys."""
    text = to_json(experiment, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def git(*words: str) -> str:
    """What git says about the checkout; an error if this is none."""
    command = ["git", "-C", str(data_path().parent), *words]
    return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True)


def provenance() -> dict[str, str]:
    """Command, day and commit of a result; "-dirty" marks programs that differ from the
    commit."""
    try:
        commit = git("describe", "--always", "--abbrev=12").strip()
        if git("status", "--porcelain", "--", *SOURCES):
            commit += "-dirty"
    except (OSError, subprocess.CalledProcessError):
        commit = "not a checkout"
    command = shlex.join(["fedlearn", *sys.argv[1:]])
    return {"command": command, "date": date.today().isoformat(), "commit": commit}


def committed(line: Line) -> bool:
    """Whether the code of a run can be found by its commit."""
    commit = line["meta"].get("provenance", {}).get("commit", "not a checkout")
    return commit != "not a checkout" and not commit.endswith("-dirty")


# ---- files ---------------------------------------------------------------------------


def read(path: Path) -> list[Line]:
    """The lines of a file: packed, or JSON of a history or of several."""
    if path.name.endswith(PACKED):
        texts = gzip.decompress(path.read_bytes()).decode().splitlines()
        lines = [json.loads(text) for text in texts]
    else:
        data = json.loads(path.read_text(encoding="utf-8"))
        lines = data if isinstance(data, list) else [data]
    for line in lines:
        if "experiment" in line and line["hash"] != hash_of(line["experiment"]):
            raise ValueError(f"{line['hash']} is not the hash of its experiment")
    return lines


def write(path: Path, lines: Iterable[Line]) -> None:
    """Pack runs: equal runs give equal bytes."""
    text = "".join(to_json(line) + "\n" for line in lines)
    data = gzip.compress(text.encode(), mtime=0)
    write_atomically(path, lambda part: part.write_bytes(data))
    packed.cache_clear()


def packed_file(name: str) -> Path:
    """The file of the book's runs with that name."""
    chapter, _, _ = name.rpartition("_")
    return data_path(chapter, "results", name + PACKED)


@cache
def packed(name: str) -> list[Line]:
    """The book's runs with that name, such as "rpn_digits"; none if there is no such
    file."""
    path = packed_file(name)
    return read(path) if path.exists() else []


def recent(name: str) -> dict[Path, Line]:
    """The runs of that name in ``runs/``, by their files."""
    return {path: read(path)[0] for path in sorted((RECENT / name).glob("*.json"))}


def load(name: str | Path) -> list[History]:
    """The runs of a file, as histories, without the trials that chose an option.

    ``name`` is that of the book's runs in ``data/<chapter>/results``, or a file that
    ``fedlearn compare --out`` made. ``ValueError`` names a file that holds no runs.

    >>> {h.method for h in load("rpn_digits")} == {"fedavg", "rpn"}
    True
    """
    path = Path(name)
    if not path.suffix:
        path = packed_file(path.name).with_name(f"{name}.json")
        if not path.exists():
            return histories(packed(str(name)))
    try:
        return histories(read(path))
    except (LookupError, TypeError, ValueError, AttributeError, EOFError) as error:
        raise ValueError(f"{path} is no result of fedlearn ({error!r}).") from None


def histories(lines: Iterable[Line]) -> list[History]:
    """The histories of lines, without searches and trials."""
    runs = []
    for line in lines:
        experiment = line.get("experiment")
        if experiment is None:
            runs.append(History.from_dict(line))
        elif "rows" in line and "short" not in experiment:
            history = History.from_dict(line)
            history.meta["partition"] = experiment.get("partition", "iid")
            runs.append(history)
    return runs


# ---- tables --------------------------------------------------------------------------


def tables(
    runs: Iterable[History] | None = None,
) -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """Histories, by default all that the book has stored, as two tables.

    The first has a row a run: ``label``, ``method``, ``dataset``, ``partition``,
    ``clients``, ``network``, ``seed``, ``last test``, ``last quarter`` (mean of the
    tests in the last quarter of the rounds), ``commit``, ``hardware``, ... The second
    has a row a round of the ``run`` with that index: the columns of a history, where
    ``clients`` counts them.

    >>> runs, rounds = tables(load("rpn_digits"))
    >>> len(rounds) == int(runs["rounds"].sum())
    True
    """
    with extra("plot"):
        import pandas

    files: dict[str, Iterable[History]] = {"": runs or []}
    if runs is None:
        for path in sorted(data_path().glob(f"*/results/*{PACKED}")):
            name = path.name.removesuffix(PACKED)
            files[name] = load(name)
    first = []
    second = []
    for file, histories in files.items():
        for history in histories:
            for row in history.rows:
                count = len(row["clients"])
                second.append({"run": len(first), **row, "clients": count})
            first.append({"file": file, **run_row(history)})
    return pandas.DataFrame(first), pandas.DataFrame(second)


def run_row(h: History) -> Line:
    """The row of a run."""
    meta = h.meta
    task = meta["task"]
    row = {
        "label": meta.get("label", h.method),
        "method": h.method,
        "task": task.get("task", "classification"),
        "dataset": task["dataset"],
        "partition": meta.get("partition", task["partition"]),
        "clients": task["clients"],
        "network": str(task.get("network")),
        "seed": task["seed"],
        "rounds": len(h),
        "measure": h.measure,
        **h.reached,
        **meta.get("provenance", {}),
    }
    for name, value in h.final.items():
        if name not in COLUMNS and isinstance(value, float):
            row[name] = value
    return row


# ---- several runs together -----------------------------------------------------------


def spread(values: Collection[float | None], form: str = ".3f") -> str:
    """Mean and standard deviation of a few runs as text.

    A sign that ``form`` asks for, as in "+.1f", is the mean's. Values that are ``None``
    (never reached) are left out of both, and the text says how many are there.

    >>> spread([0.8, 0.6]), spread([0.8, None]), spread([None])
    ('0.700 ± 0.141', '0.800 (1 of 2 runs)', 'not reached')
    """
    present = [v for v in values if v is not None]
    if not present:
        return "not reached"
    text = f"{np.mean(present):{form}}"
    if len(present) > 1:
        text += f" ± {np.std(present, ddof=1):{form.lstrip('+')}}"
    if len(present) < len(values):
        text += f" ({len(present)} of {len(values)} runs)"
    return text


class Difference(NamedTuple):
    """Of paired seeds: the mean difference, its 95 % interval, and in how many it is
    above zero. ``str`` says "ahead" or "behind" where the interval of at least five
    seeds excludes zero."""

    mean: float
    low: float
    high: float
    wins: int
    seeds: int

    @property
    def sure(self) -> bool:
        """Whether there are five seeds, and the interval excludes zero."""
        return self.seeds >= FEW and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        if not self.sure:
            return f"higher in {self.wins} of {self.seeds} seeds"
        low, high = sorted((abs(self.low), abs(self.high)))
        word = "ahead" if self.mean > 0 else "behind"
        return f"{word} by {abs(self.mean):.3g} [{low:.3g}, {high:.3g}]"


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
    """How far the numbers ``a`` are above ``b``, both by seed, over the seeds of both;
    with Student's interval of the mean, which is unbounded below two seeds.

    >>> a, b = dict(enumerate([3.0, 4.0, 3.0, 4.0, 3.5])), dict.fromkeys(range(5), 1.0)
    >>> print(paired(a, b), paired({0: 1.0}, b), sep="; ")
    ahead by 2.5 [1.88, 3.12]; higher in 0 of 1 seeds
    """
    with extra("plot"):
        from scipy.special import stdtrit

    gaps = np.array([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
    n = len(gaps)
    mean = float(gaps.mean()) if n else math.nan
    half = math.inf
    if n > 1:
        half = float(stdtrit(n - 1, 0.975) * gaps.std(ddof=1) / math.sqrt(n))
    return Difference(mean, mean - half, mean + half, int((gaps > 0).sum()), n)


def summary(
    runs: Mapping[str, History | list[History]],
    target: float | None = None,
) -> "pandas.DataFrame":
    """What each method reached and what it cost.

    Parameters
    ----------
    runs
        Labels, each with a history or a list of histories, one a seed, which are shown
        as mean ± standard deviation.
    target
        A test accuracy, 0 to 1: rounds and megabytes until it is reached get columns.

    Returns
    -------
    pandas.DataFrame
        A row a label; cells are text.

    Examples
    --------
    >>> row = {"round": 1, "accuracy": 0.9, "bytes_up": 2e6, "bytes_down": 3e6}
    >>> history = History("fedavg", {}, [row])
    >>> summary({"FedAvg": history}, target=0.5).loc["FedAvg"].to_list()
    [1, '0.900', '0.900', '1.0', '5.00', '2.00', '3.00']
    """
    with extra("plot"):
        import pandas

    rows = {}
    for label, value in runs.items():
        group = value if isinstance(value, list) else [value]
        row: dict[str, Any] = {"rounds": len(group[0])}
        for name in MEASURES:
            row[name] = spread([h.reached[name] for h in group])
        if target is not None:
            rounds = [h.rounds_to(target) for h in group]
            row[f"rounds to {target:.0%}"] = spread(rounds, ".1f")
            sizes = [h.megabytes_to(target) for h in group]
            row[f"MB to {target:.0%}"] = spread(sizes, ".2f")
        for way in ("up", "down"):
            total = np.mean([getattr(h, f"bytes_{way}").sum() for h in group])
            row[f"MB {way}"] = f"{total / 1e6:.2f}"
        rows[label] = row
    return pandas.DataFrame(rows).T.rename_axis("method")
