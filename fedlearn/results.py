"""Stored runs: packed, a file for each paper and scale; read as histories or as two tidy tables.

A line of ``data/results/<name>.jsonl.gz`` is a run: its experiment, the hash of it, by which the
run is known, and its history (of FedRepOpt's search, the scales). A run that was made lately is a
file of its own in ``runs/<name>/`` below the working directory, until ``pack`` moves it there.
"""

import gzip
import hashlib
import math
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .arguments import short
from .data import partition as partitions
from .data.sources import data_path
from .errors import extra
from .files import from_json, to_json, write_atomically
from .history import COLUMNS, MEASURES, History

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

PACKED = ".jsonl.gz"
FEW = 5  # seeds, at least, for which "ahead" is said
ADDED = ("results", "grids")  # folders of data to which runs add
RECENT = Path("runs")  # below the working directory; git ignores it
Line = dict[str, Any]


def hash_of(experiment: dict[str, Any]) -> str:
    """The key of a run: of equal experiments it is equal."""
    text = to_json(experiment, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def place_of(experiment: Mapping[str, Any]) -> str:
    """The same hash, and nobody's key, for runs that differ in how an option was chosen alone: one
    of them is kept."""
    return hash_of({**experiment, "tune": None})


def provenance() -> dict[str, str]:
    """Where a result comes from: the command, the day, and the commit of the checkout, if any;
    "dirty" if a program or what it reads is not as committed (what runs add, aside)."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    sources = ["fedlearn", "data", "pyproject.toml", *(f":(exclude)data/{n}" for n in ADDED)]
    try:
        name = [*git, "describe", "--always", "--abbrev=12"]
        commit = subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
        status = [*git, "status", "--porcelain", "--", *sources]
        changed = subprocess.run(status, capture_output=True, check=True).stdout
        commit += "-dirty" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        commit = "not a checkout"
    command = shlex.join(["fedlearn", *sys.argv[1:]])  # to be typed again as it is
    return {"command": command, "date": date.today().isoformat(), "commit": commit}


# ---- files ---------------------------------------------------------------------------------------


def read(path: Path, empty: bool = False, cut: bool = True) -> list[Line]:
    """The runs in a file, packed or as JSON of a history or several; ``ValueError`` for a file that
    holds none, unless it may be ``empty``, and for a run that is not the one its hash says, or is
    there twice. A line that cannot be read, such as one that was ``cut``, is left out with a
    warning, or refused."""
    lines, refusal = list[Line](), f"{path} is no result of fedlearn: it"
    try:
        if packed := path.name.endswith(PACKED):
            texts = gzip.decompress(path.read_bytes()).decode().splitlines()
        else:
            texts = [path.read_text(encoding="utf-8")]
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{refusal} cannot be read ({error}).") from None
    for number, text in enumerate(texts, 1):
        place = f"line {number} of {path}" if packed else str(path)
        try:
            data = from_json(text)
        except (ValueError, RecursionError) as error:
            if not cut:
                raise ValueError(
                    f"{place} cannot be read: mend it or take it out ({error})."
                ) from None
            warnings.warn(f"{place} is left out: move it away ({error}).", stacklevel=2)
            continue
        for line in data if isinstance(data, list) else [data]:
            if not isinstance(line, dict) or not ({"rows", "scales"} & {*line}):
                raise ValueError(f"{refusal} holds {short(line)}.")
            named = packed or {"hash", "experiment"} & {*line}
            if named and line.get("hash") != hash_of(line.get("experiment", {})):
                raise ValueError(f"{place}: the hash {line.get('hash')} is not of its experiment.")
            lines.append(line)
    if not lines and not empty:
        raise ValueError(f"{refusal} holds no run.")
    hashes = [line["hash"] for line in lines if "hash" in line]
    if len({*hashes}) < len(hashes):
        raise ValueError(f"{path} holds a run twice.")
    return lines


def write(path: Path, lines: Iterable[Line]) -> None:
    """Pack runs: the same bytes for the same runs."""
    text = "".join(to_json(line) + "\n" for line in lines)
    data = gzip.compress(text.encode(), mtime=0)
    write_atomically(path, lambda part: part.write_bytes(data))


@lru_cache
def _read_once(path: Path, changed: int) -> list[Line]:
    return read(path)


def packed_file(name: str) -> Path:
    """Where the runs of the book with that name are."""
    return data_path("results", name + PACKED)


def packed(name: str) -> list[Line]:
    """The runs of the book with that name, such as "rpn_digits"; none if there is no such file."""
    path = packed_file(name)
    return _read_once(path, path.stat().st_mtime_ns) if path.exists() else []


def recent(name: str, root: Path = RECENT) -> dict[Path, Line]:
    """The runs of that name that are not packed yet, by their files."""
    files = sorted((root / name).glob("*.json"))
    return {path: lines[0] for path in files if (lines := read(path, empty=True))}


def load(name: str) -> list[History]:
    """The book's runs of a packed file in ``data/results``, such as "rpn_digits", or of one there
    that ``fedlearn compare ... --out`` made, as histories, in the order of the recipes. Short runs
    that chose an option are left out.

    >>> {h.method for h in load("rpn_digits")} == {"fedavg", "rpn"}
    True
    """
    single = data_path("results", f"{name}.json")
    lines = (read(single) if single.exists() else []) + packed(name)
    return [History.from_dict(line) for line in lines if is_whole(line)]


def is_whole(line: Line) -> bool:
    """Whether it is neither a search nor a short run that chose an option."""
    return "rows" in line and not line.get("experiment", {}).get("short")


# ---- tables --------------------------------------------------------------------------------------


def tables(
    places: str | Path | Iterable[str | Path] | Iterable[History] | None = None,
) -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """The runs of ``places``, a file or folder or several of them, or histories, by default the
    book's own: two tidy tables. Short runs that chose an option are left out, and so is what is no
    result in a folder. ``ValueError`` for a named file that is none, and a place without a file.

    * A row a run: ``label``, ``method``, ``dataset``, ``partition`` (as it is typed), ``clients``,
      ``network``, ``seed``, ``last test`` and ``last quarter`` (mean over the tests in the last
      quarter of the rounds), ``chosen on`` ("test" or "validation" images, if an option was),
      ``hours``, ``commit``, ``hardware``, ...
    * A row a round of the ``run`` of that index: ``round``, ``accuracy``, ``bytes_up``, ...

    >>> runs, rounds = tables(load("rpn_digits"))
    >>> len(rounds) == int(runs["rounds"].sum())
    True
    """
    with extra("plot"):
        import pandas

    rows: list[tuple[Line, list[Line]]] = []
    if places is None or isinstance(places, str | Path):
        places = [Path(places or data_path("results"))]
    for place in places:
        if isinstance(place, History):
            rows.append(_rows(place))
            continue
        files = [place := Path(place)]
        if place.is_dir():
            files = [path for end in (".json", PACKED) for path in sorted(place.rglob(f"*{end}"))]
        if not files:
            raise ValueError(f"There is no result in the folder {place}: no .json, no {PACKED}.")
        for path in files:
            try:
                rows += [
                    _rows(History.from_dict(x), _shown(path), x) for x in read(path) if is_whole(x)
                ]
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                if path == place:
                    raise ValueError(f"{path} is no result of fedlearn ({error!r}).") from None
    rounds = [{"run": k, **row} for k, (_, rows_of) in enumerate(rows) for row in rows_of]
    return pandas.DataFrame([run for run, _ in rows]), pandas.DataFrame(rounds)


def _rows(h: History, file: str = "", line: Line | None = None) -> tuple[Line, list[Line]]:
    """What a run is in the two tables; an error for what is none."""
    meta, task, last = h.meta, h.meta["task"], h.final
    origin, options = meta.get("provenance", {}), meta.get("options", {})
    alike = [{k: v for k, v in task.items() if k != "seed"}, meta.get("settings"), len(h)]
    alike += [meta.get("parts"), meta.get("label"), h.method]
    run = {
        "file": file,
        "hash": (line or {}).get("hash", ""),
        "alike": hash_of({"": str(alike)}),  # the same for runs that differ in their seed alone
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
    numbers, counted = ("bytes_up", "bytes_down", "seconds"), ("clients", "refused")
    return run, [
        {k: v for k, v in row.items() if v is None or isinstance(v, int | float)}
        | {k: 0 + row[k] for k in numbers}  # an error for what is no number
        | {k: len(row.get(k, ())) for k in counted}
        for row in h.rows
    ]


def _shown(path: Path) -> str:
    """A file's name as people type it; those of the book from the checkout on."""
    book = data_path("results")
    inside = path.is_relative_to(book)
    return (Path("data/results", path.relative_to(book)) if inside else path).as_posix()


@lru_cache
def split_text(shown: str) -> str:
    """The partition that is shown so in a history, as it is typed: "Dirichlet(alpha=0.5,
    min_samples=1)" is "dirichlet:0.5". What cannot be typed stays as it is."""
    names = {make.__name__: name for name, (make, *_) in partitions.PARTS.items()}
    call = re.match(r"(\w+)\((?:\w+='?([^',)]+))?", shown)
    if call and call[1] in names:
        text = ":".join(filter(None, (names[call[1]], call[2])))
        with suppress(ValueError):  # a table that is not here
            if repr(partitions.parse(text)) == shown:
                return text
    return shown


# ---- several runs together -----------------------------------------------------------------------


def spread(values: Collection[float | None], form: str = ".3f") -> str:
    """Mean and standard deviation of a few runs as text.

    A sign that ``form`` asks for, as in "+.1f", is the mean's. Values that are ``None`` (never
    reached) are left out of both, and the text says how many are there.

    >>> spread([0.8, 0.6]), spread([0.8, None]), spread([None])
    ('0.700 ± 0.141', '0.800 (1 of 2 runs)', 'not reached')
    """
    present = [v for v in values if v is not None]
    if not present:
        return "not reached"
    text = f"{np.mean(present):{form}}"
    if len(present) > 1:
        text += f" ± {np.std(present, ddof=1):{form.lstrip('+')}}"
    return text if len(present) == len(values) else f"{text} ({len(present)} of {len(values)} runs)"


def text_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of texts as lines, the first column to the left, for a terminal and without pandas.

    >>> print(text_table([{"method": "FedAvg", "MB": "12.5"}, {"method": "RPN", "MB": "0.75"}]))
    method    MB
    FedAvg  12.5
    RPN     0.75
    """
    cells = [list(rows[0]), *(list(row.values()) for row in rows)]
    first, *others = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([left.ljust(first), *map(str.rjust, rest, others)]) for left, *rest in cells
    )


class Difference(NamedTuple):
    """Of paired seeds: the mean difference, its 95 % interval, in how many of them it is above
    zero. ``str`` says "ahead" or "behind" where the interval of at least five seeds excludes
    zero."""

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
        ends = sorted((abs(self.low), abs(self.high)))
        way = "ahead" if self.mean > 0 else "behind"
        return f"{way} by {abs(self.mean):.3g} [{ends[0]:.3g}, {ends[1]:.3g}]"


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
    """By how much ``a`` is above ``b``, numbers by their seeds, in the seeds that both have, with
    Student's interval of the mean, which has no bounds where there are not two.

    >>> a, b = dict(enumerate([3.0, 4.0, 3.0, 4.0, 3.5])), dict.fromkeys(range(5), 1.0)
    >>> print(paired(a, b), paired({0: 1.0}, b), sep="; ")
    ahead by 2.5 [1.88, 3.12]; higher in 0 of 1 seeds
    """
    with extra("plot"):
        from scipy.special import stdtrit

    gaps = np.array([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
    mean, n, half = float(gaps.mean()) if len(gaps) else math.nan, len(gaps), math.inf
    if n > 1:
        half = float(stdtrit(n - 1, 0.975) * gaps.std(ddof=1) / math.sqrt(n))
    return Difference(mean, mean - half, mean + half, int((gaps > 0).sum()), n)


def sent(histories: list[History]) -> tuple[float, float]:
    """Megabytes of all clients, up and down, the mean of the runs."""
    up, down = ([h.bytes_up.sum() for h in histories], [h.bytes_down.sum() for h in histories])
    return float(np.mean(up)) / 1e6, float(np.mean(down)) / 1e6


def summary(
    runs: Mapping[str, History | list[History]],
    target: float | None = None,
    megabytes: float | None = None,
) -> "pandas.DataFrame":
    """What each method reached and what it cost.

    Parameters
    ----------
    runs
        Labels, each with a history or a list of histories, one a seed, which are shown as mean ±
        standard deviation.
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
    >>> summary({"FedAvg": History("fedavg", {}, [row])}, target=0.5).loc["FedAvg"].to_list()
    [1, '0.900', '0.900', '1.0', '5.00', '2.00', '3.00']
    """
    with extra("plot"):
        import pandas

    rows = {}
    for label, runs_of in runs.items():
        histories = runs_of if isinstance(runs_of, list) else [runs_of]
        row: dict[str, Any] = {"rounds": len(histories[0])}
        row |= {name: spread([h.reached[name] for h in histories]) for name in MEASURES}
        if megabytes is not None:
            within = [h.accuracy_at(megabytes) for h in histories]
            row[f"accuracy at {megabytes:.1f} MB"] = spread(within)
        if target is not None:
            row[f"rounds to {target:.0%}"] = spread([h.rounds_to(target) for h in histories], ".1f")
            row[f"MB to {target:.0%}"] = spread([h.megabytes_to(target) for h in histories], ".2f")
        up, down = sent(histories)
        rows[label] = row | {"MB up": f"{up:.2f}", "MB down": f"{down:.2f}"}
    return pandas.DataFrame(rows).T.rename_axis("method")
