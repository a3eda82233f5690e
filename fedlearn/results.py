"""Stored runs: packed, a file for each paper and scale; read as two tidy tables or as histories.

A line of ``data/results/<name>.jsonl.gz`` is a run: its experiment, the hash of it, by which the
run is known, and its history (of FedRepOpt's search, the scales). A run that was made lately is a
file of its own in ``runs/<name>/`` below the working directory, until ``pack`` moves it there.
"""

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import short
from .data import partition as partitions
from .data.sources import data_path
from .files import write_atomically
from .history import COLUMNS, History

if TYPE_CHECKING:
    import pandas  # takes long to load: only where a table is made

PACKED = ".jsonl.gz"
RECENT = Path("runs")  # below the working directory; git ignores it
Line = dict[str, Any]


def hash_of(experiment: dict[str, Any]) -> str:
    """The key of a run: of equal experiments it is equal."""
    text = json.dumps(experiment, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- files ---------------------------------------------------------------------------------------


def read(path: Path) -> list[Line]:
    """The runs in a file, packed or as JSON of a history or several; ``ValueError`` for a file that
    holds none, and for a run that is not the one its hash says, or is there twice."""
    try:
        if path.name.endswith(PACKED):
            lines = list(map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines()))
        else:
            data = json.loads(path.read_text(encoding="utf-8"))
            lines = data if isinstance(data, list) else [data]
    except (ValueError, RecursionError, EOFError, OSError) as error:
        raise ValueError(f"{path} is no result of fedlearn: it cannot be read ({error}).") from None
    if not lines:
        raise ValueError(f"{path} is no result of fedlearn: it holds no run.")
    hashes: set[str] = set()
    for line in lines:
        if not isinstance(line, dict) or not ({"rows", "scales"} & {*line}):
            raise ValueError(f"{path} is no result of fedlearn: it holds {short(line)}.")
        key = line.get("hash")
        if key != (hash_of(line["experiment"]) if "experiment" in line else None):
            raise ValueError(f"{path} holds a run whose experiment is not that of its hash {key}.")
        if key in hashes:
            raise ValueError(f"{path} holds the run {key} twice.")
        hashes |= {key} if key else set()
    return lines


def write(path: Path, lines: Iterable[Line]) -> None:
    """Pack runs: the same bytes for the same runs."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    data = gzip.compress(text.encode(), mtime=0)
    write_atomically(path, lambda part: part.write_bytes(data))


@lru_cache
def _packed(path: Path, changed: int) -> list[Line]:
    return read(path)


def packed(name: str) -> list[Line]:
    """The runs of the book with that name, such as "rpn_small"; none if there is no such file."""
    path = data_path("results", name + PACKED)
    return _packed(path, path.stat().st_mtime_ns) if path.exists() else []


def recent(name: str, root: Path = RECENT) -> dict[Path, Line]:
    """The runs of that name that are not packed yet, by their files."""
    return {path: read(path)[0] for path in sorted((root / name).glob("*.json"))}


def stored(name: str, root: Path | None = RECENT) -> dict[str, Line]:
    """Both, by their hash; without ``root`` the packed ones."""
    lines = (*packed(name), *(recent(name, root).values() if root else ()))
    return {line["hash"]: line for line in lines}


def load(name: str) -> list[History]:
    """The book's runs of a name as histories, in the order of the recipes.

    Parameters
    ----------
    name
        Of a packed file in ``data/results``, such as "rpn_small", or of a file there that
        ``fedlearn compare ... --out`` made.

    Returns
    -------
    list of History
        Without the short runs that chose an option; empty if there are none.

    Examples
    --------
    >>> {h.method for h in load("rpn_digits")} == {"fedavg", "rpn"}
    True
    """
    single = data_path("results", f"{name}.json")
    lines = (read(single) if single.exists() else []) + packed(name)
    return [History.from_dict(line) for line in lines if is_whole(line)]


def is_whole(line: Line) -> bool:
    """Whether it is neither a search nor a short run that chose an option."""
    return "rows" in line and not line.get("experiment", {}).get("short")


def files(places: str | Path | Iterable[str | Path]) -> list[tuple[Path, bool]]:
    """The result files of files and folders, each once, and whether it was named itself;
    ``ValueError`` for what is not there and for a folder without one."""
    by_path: dict[str, tuple[Path, bool]] = {}
    for place in map(Path, [places] if isinstance(places, str | Path) else places):
        if not place.exists():
            raise ValueError(f"There is no file or folder {place}.")
        inside = [p for end in (".json", PACKED) for p in sorted(place.rglob(f"*{end}"))]
        if not inside and not place.is_file():
            raise ValueError(f"There is no result in the folder {place}: no .json, no {PACKED}.")
        for path in [place] if place.is_file() else inside:
            by_path.setdefault(os.path.realpath(path), (path, path == place))
    return list(by_path.values())


# ---- two tables ----------------------------------------------------------------------------------


def tables(
    places: Any = None, left: list[str] | None = None
) -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """Runs and rounds, each a tidy table; short runs that chose an option are left out.

    Parameters
    ----------
    places
        A file or folder or several of them, or histories; by default the book's own runs.
    left
        A list that gets a sentence for each file of a folder that is no result.

    Returns
    -------
    runs : pandas.DataFrame
        A row a run: ``label``, ``method``, ``dataset``, ``partition`` (as it is typed),
        ``clients``, ``network``, ``seed``, ``accuracy`` (the last), ``late`` (mean of the last five
        tests), ``hours``, ``commit``, ``hardware``, ...
    rounds : pandas.DataFrame
        A row a round of the ``run`` of that index: ``round``, ``accuracy``, ``bytes_up``, ...

    Raises
    ------
    ValueError
        For a named file that is no result, and if there is no run at all.

    Examples
    --------
    >>> runs, rounds = tables(load("rpn_digits"))
    >>> len(rounds) == int(runs["rounds"].sum())
    True
    """
    import pandas

    left = [] if left is None else left
    if places is not None and not isinstance(places, str | Path):
        places = list(places)
    if isinstance(places, list) and all(isinstance(h, History) for h in places):
        rows = [_rows(h.to_dict(), "", "") for h in places]
    else:
        named = files(data_path("results") if places is None else places)
        rows = [row for path, asked in named for row in _rows_of(path, asked, left)]
        if not rows and left:
            raise ValueError(" ".join(["There is no run in these files.", *left[:3]]))
    rounds = [{"run": k, **row} for k, (_, rows_of) in enumerate(rows) for row in rows_of]
    return pandas.DataFrame([run for run, _ in rows]), pandas.DataFrame(rounds)


def _rows_of(path: Path, asked: bool, left: list[str]) -> list[tuple[Line, list[Line]]]:
    """What the runs of a file are in the two tables; all of them or none."""
    folder = path if path.name.endswith(PACKED) else path.parent
    try:
        return [_rows(line, _shown(path), _shown(folder)) for line in read(path) if is_whole(line)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        sentence = str(error)
        if not isinstance(error, ValueError) or str(path) not in sentence:
            sentence = f"{path} is no result of this version of fedlearn ({error!r})."
        if asked:
            raise ValueError(sentence) from None
        left.append(sentence)
        return []


def _rows(line: Line, file: str, folder: str) -> tuple[Line, list[Line]]:
    """What a run is in the two tables; an error for what is none."""
    h = History.from_dict(line)
    meta, task, last = h.meta, h.meta["task"], h.final
    origin, options = meta.get("provenance", {}), meta.get("options", {})
    alike = [{k: v for k, v in task.items() if k != "seed"}, meta.get("settings"), len(h)]
    alike += [meta.get("parts"), options, meta.get("label"), h.method]
    run = {
        "file": file,
        "folder": folder,
        "hash": line.get("hash"),
        "alike": hash_of({"": str(alike)}),  # the same for runs that differ in their seed alone
        "label": str(meta.get("label") or h.method),
        "method": str(options.get("method", h.method)),
        "options": json.dumps(options),
        "task": str(task.get("task", "classification")),
        "dataset": str(task["dataset"]),
        "partition": split_text(str(task["partition"])),
        "clients": int(task["clients"]),
        "network": str(task.get("network")),
        "train": task.get("train"),
        "seed": int(task.get("seed", 0)),
        "rounds": len(h),
        "measure": str(h.measure),
        "accuracy": float(last["accuracy"]),
        "late": h.late_accuracy(),
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
    book, real = (Path(os.path.realpath(p)) for p in (data_path("results"), path))
    inside = real.is_relative_to(book)
    return (Path("data/results", real.relative_to(book)) if inside else path).as_posix()


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
