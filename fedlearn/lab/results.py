"""Stored runs and their tables.

A line of ``data/<chapter>/results/<name>.jsonl.gz`` is a run: its experiment, the hash of the
experiment, and its history (or the scales that FedRepOpt's search has found). New runs
are single files in ``runs/<name>/`` below the working directory, until ``fedlearn
pack`` moves them into ``data``."""

import gzip
import hashlib
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..data import data_path
from ..data import partition as partitions
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


def provenance() -> dict[str, str]:
    """Command, day and commit of a result; "-dirty" marks programs that differ from the
    commit."""
    git = ["git", "-C", str(data_path().parent)]
    try:
        describe = [*git, "describe", "--always", "--abbrev=12"]
        commit = subprocess.check_output(
            describe, stderr=subprocess.DEVNULL, text=True
        ).strip()
        changed = subprocess.check_output(
            [*git, "status", "--porcelain", "--", *SOURCES]
        )
        if changed:
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
    """The runs of a file: packed, or JSON of a history or of several; ``ValueError``
    for a file without runs, and for a run with the hash of another experiment."""
    try:
        if path.name.endswith(PACKED):
            texts = gzip.decompress(path.read_bytes()).decode().splitlines()
            lines = [json.loads(text) for text in texts]
        else:
            data = json.loads(path.read_text(encoding="utf-8"))
            lines = data if isinstance(data, list) else [data]
    except (ValueError, EOFError, OSError, RecursionError) as error:
        raise ValueError(
            f"{path} is no result of fedlearn: it cannot be read ({error})."
        ) from None
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict) or not {"rows", "scales"} & line.keys():
            raise ValueError(
                f"{path} is no result of fedlearn: entry {number} is no run."
            )
        if "experiment" in line and line.get("hash") != hash_of(line["experiment"]):
            raise ValueError(
                f"{path}: the hash of entry {number} is not of its experiment."
            )
    return lines


def write(path: Path, lines: Iterable[Line]) -> None:
    """Pack runs: equal runs give equal bytes."""
    text = "".join(to_json(line) + "\n" for line in lines)
    data = gzip.compress(text.encode(), mtime=0)
    write_atomically(path, lambda part: part.write_bytes(data))


@lru_cache
def _read_once(path: Path, changed: int) -> list[Line]:
    return read(path)


def packed_file(name: str) -> Path:
    """The file of the book's runs with that name."""
    chapter, _, _ = name.rpartition("_")
    return data_path(chapter, "results", name + PACKED)


def packed(name: str) -> list[Line]:
    """The book's runs with that name, such as "rpn_digits"; none if there is no such
    file."""
    path = packed_file(name)
    return _read_once(path, path.stat().st_mtime_ns) if path.exists() else []


def recent(name: str) -> dict[Path, Line]:
    """The runs of that name in ``runs/``, by their files."""
    return {path: read(path)[0] for path in sorted((RECENT / name).glob("*.json"))}


def load(name: str) -> list[History]:
    """The book's runs of a file in ``data/<chapter>/results``, as histories; without the trials
    that chose an option. ``name`` is that of a packed file, or of one that ``fedlearn
    compare --out`` made.

    >>> {h.method for h in load("rpn_digits")} == {"fedavg", "rpn"}
    True
    """
    single = packed_file(name).with_name(f"{name}.json")
    lines = read(single) if single.exists() else packed(name)
    return [History.from_dict(line) for line in lines if is_whole(line)]


def is_whole(line: Line) -> bool:
    """Whether a line is neither a search nor a trial that chose an option."""
    return "rows" in line and not line.get("experiment", {}).get("short")


# ---- tables --------------------------------------------------------------------------


def tables(
    places: str | Path | Iterable[str | Path | History] | None = None,
) -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """The runs of ``places`` (files, folders or histories; by default the book's) as
    two tables.

    The first has a row a run: ``label``, ``method``, ``dataset``, ``partition``,
    ``clients``, ``network``, ``seed``, ``last test``, ``last quarter`` (mean of the
    tests in the last quarter of the rounds), ``chosen on`` ("test" or "validation"
    images, if an option was chosen), ``hours``, ``commit``, ``hardware``, ... The
    second has a row a round of the ``run`` with that index: ``round``, ``accuracy``,
    ``bytes_up``, ... Trials are left out, and files in a folder that hold no run.
    ``ValueError`` for a named file without runs, and for a folder without files.

    >>> runs, rounds = tables(load("rpn_digits"))
    >>> len(rounds) == int(runs["rounds"].sum())
    True
    """
    with extra("plot"):
        import pandas

    if places is None:
        places = sorted(data_path().glob("*/results"))
    runs: list[Line] = []
    rounds: list[Line] = []
    for place in [places] if isinstance(places, str | Path) else places:
        for run, rows in (
            [_rows(place)] if isinstance(place, History) else _runs_in(Path(place))
        ):
            rounds += [{"run": len(runs), **row} for row in rows]
            runs.append(run)
    return pandas.DataFrame(runs), pandas.DataFrame(rounds)


def _runs_in(place: Path) -> list[tuple[Line, list[Line]]]:
    """The runs of a file, or of all files of a folder that hold runs."""
    files = [place]
    if place.is_dir():
        files = sorted(place.rglob("*.json")) + sorted(place.rglob(f"*{PACKED}"))
    if not files:
        raise ValueError(
            f"There is no result in the folder {place}: no .json, no {PACKED}."
        )
    runs = []
    for path in files:
        try:
            whole = [line for line in read(path) if is_whole(line)]
            runs += [
                _rows(History.from_dict(line), _title(path), line) for line in whole
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if path == place:
                raise ValueError(
                    f"{path} is no result of fedlearn ({error!r})."
                ) from None
    return runs


def _rows(
    h: History, file: str = "", line: Line | None = None
) -> tuple[Line, list[Line]]:
    """The row of a run, and those of its rounds; an error for what is no history."""
    meta = h.meta
    task = meta["task"]
    last = h.final
    origin = meta.get("provenance", {})
    options = meta.get("options", {})
    unseeded = {name: value for name, value in task.items() if name != "seed"}
    names = [meta.get("parts"), meta.get("label"), h.method]
    run = {
        "file": file,
        "hash": (line or {}).get("hash", ""),
        # equal for runs with other seeds
        "alike": hash_of({"": str([unseeded, meta.get("settings"), len(h), *names])}),
        "label": str(meta.get("label") or h.method),
        "method": str(options.get("method", h.method)),
        "options": to_json(options),
        "task": str(task.get("task", "classification")),
        "dataset": str(task["dataset"]),
        "partition": split_text(str(task["partition"])),
        "clients": int(task["clients"]),
        "network": str(task.get("network")),
        "train": task.get("train"),
        "seed": int(task.get("seed", 0)),
        "rounds": len(h),
        "measure": str(h.measure),
        **h.reached,
        "chosen on": h.chosen_on,
        "loss": last["loss"],
        **{k: v for k, v in last.items() if k not in COLUMNS and isinstance(v, float)},
        "hours": float(origin.get("seconds") or h.seconds.sum()) / 3600,
        **{k: origin.get(k, "") for k in ("commit", "date", "hardware", "command")},
    }
    rounds = []
    for row in h.rows:
        entry = {
            k: v for k, v in row.items() if v is None or isinstance(v, int | float)
        }
        for name in ("bytes_up", "bytes_down", "seconds"):
            entry[name] = 0 + row[name]  # an error for what is no number
        for name in ("clients", "refused"):
            entry[name] = len(row.get(name, ()))
        rounds.append(entry)
    return run, rounds


def _title(path: Path) -> str:
    """A file's name as people type it; that of a book's file begins at the checkout."""
    root = data_path()
    inside = path.is_relative_to(root)
    return (Path("data", path.relative_to(root)) if inside else path).as_posix()


@lru_cache
def split_text(text: str) -> str:
    """A partition as people type it: "Dirichlet(alpha=0.5, min_samples=1)" is
    "dirichlet:0.5". Other texts are returned as they are."""
    names = {make.__name__: name for name, (make, *_) in partitions.PARTS.items()}
    call = re.match(r"(\w+)\((?:\w+='?([^',)]+))?", text)
    if call is None or call[1] not in names:
        return text
    typed = names[call[1]] + (f":{call[2]}" if call[2] else "")
    try:
        return typed if repr(partitions.parse(typed)) == text else text
    except ValueError:  # a table that is not here
        return text


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
    return (
        text
        if len(present) == len(values)
        else f"{text} ({len(present)} of {len(values)} runs)"
    )


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


def sent(histories: list[History]) -> tuple[float, float]:
    """Megabytes of all clients, up and down, the mean of the runs."""
    up = np.mean([h.bytes_up.sum() for h in histories]) / 1e6
    down = np.mean([h.bytes_down.sum() for h in histories]) / 1e6
    return float(up), float(down)


def summary(
    runs: Mapping[str, History | list[History]],
    target: float | None = None,
    megabytes: float | None = None,
) -> "pandas.DataFrame":
    """What each method reached and what it cost.

    Parameters
    ----------
    runs
        Labels, each with a history or a list of histories, one a seed, which are shown as
        mean ± standard deviation.
    target
        A test accuracy, 0 to 1: rounds and megabytes until it is reached get columns.
    megabytes
        A budget: the accuracy within it gets a column.

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
        histories = value if isinstance(value, list) else [value]
        row: dict[str, Any] = {"rounds": len(histories[0])}
        for name in MEASURES:
            row[name] = spread([h.reached[name] for h in histories])
        if megabytes is not None:
            within = [h.accuracy_at(megabytes) for h in histories]
            row[f"accuracy at {megabytes:.1f} MB"] = spread(within)
        if target is not None:
            row[f"rounds to {target:.0%}"] = spread(
                [h.rounds_to(target) for h in histories], ".1f"
            )
            row[f"MB to {target:.0%}"] = spread(
                [h.megabytes_to(target) for h in histories], ".2f"
            )
        up, down = sent(histories)
        rows[label] = row | {"MB up": f"{up:.2f}", "MB down": f"{down:.2f}"}
    return pandas.DataFrame(rows).T.rename_axis("method")
