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
from collections.abc import Iterable, Iterator
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


# ---- reading -------------------------------------------------------------------------------------


def read(path: Path) -> list[Line]:
    """The runs in a file, packed or as JSON of a history or several; ``ValueError`` for a file that
    holds none, and for a run that is not the one its hash says, or is there twice."""
    try:
        if path.name.endswith(PACKED):
            text = gzip.decompress(path.read_bytes()).decode()
            found = list(map(json.loads, text.splitlines()))
        else:
            data = json.loads(path.read_text(encoding="utf-8"))
            found = data if isinstance(data, list) else [data]
    except (ValueError, RecursionError, EOFError, OSError) as error:
        raise ValueError(f"{path} is no result of fedlearn: it cannot be read ({error}).") from None
    if not found:
        raise ValueError(f"{path} is no result of fedlearn: it holds no run.")
    seen: set[str] = set()
    for line in found:
        if not isinstance(line, dict) or not ({"rows", "scales"} & {*line}):
            raise ValueError(f"{path} is no result of fedlearn: it holds {short(line)}.")
        key = line.get("hash")
        if key != ("experiment" in line and hash_of(line["experiment"]) or None):
            raise ValueError(f"{path} holds a run whose experiment is not that of its hash {key}.")
        if key in seen:
            raise ValueError(f"{path} holds the run {key} twice.")
        if key:
            seen.add(key)
    return found


@lru_cache
def _packed(path: Path, changed: int) -> list[Line]:
    return read(path)


def packed(name: str) -> list[Line]:
    """The runs of the book with that name, such as "rpn_small"; none if there is no such file."""
    path = data_path("results", name + PACKED)
    return _packed(path, path.stat().st_mtime_ns) if path.exists() else []


def recent(name: str, root: Path = RECENT) -> dict[Path, Line]:
    """The runs of that name that are not packed yet, by their files."""
    found = {path: read(path) for path in sorted((root / name).glob("*.json"))}
    return {path: lines[0] for path, lines in found.items() if lines}


def stored(name: str, root: Path = RECENT) -> dict[str, Line]:
    """Both, by their hash."""
    return {line["hash"]: line for line in (*recent(name, root).values(), *packed(name))}


def load(name: str) -> list[History]:
    """The book's runs of that name as histories: of the packed file, in the order of the recipes,
    without the short runs that chose an option, and of data/results/<name>.json, which ``fedlearn
    compare ... --out`` made; an empty list if there are none."""
    single = data_path("results", f"{name}.json")
    lines = (read(single) if single.exists() else []) + packed(name)
    return [History.from_dict(line) for line in lines if is_whole(line)]


def is_whole(line: Line) -> bool:
    """Whether it is neither a search nor a short run that chose an option."""
    return "rows" in line and not line.get("experiment", {}).get("short")


# ---- two tables ----------------------------------------------------------------------------------


def tables(
    places: Any = None, left: list[str] | None = None
) -> "tuple[pandas.DataFrame, pandas.DataFrame]":
    """Runs and rounds, each a tidy table, of a file or folder or several, of histories or, by
    default, of the book's own.

    A row of the first is a run: ``label``, ``method``, ``dataset``, ``partition`` (as it is typed),
    ``clients``, ``network``, ``seed``, ``accuracy`` (the last), ``late`` (mean of the last five
    tests), ``hours``, ``commit``, ``hardware``, ... A row of the second is a round of the ``run``
    of that index: ``round``, ``accuracy``, ``bytes_up``, ... Short runs that chose an option are
    left out. ``ValueError`` for a named file that is no result, and if there is no run at all; for
    what is none in a folder ``left`` gets a sentence.
    """
    import pandas

    left = [] if left is None else left
    sources = _sources(data_path("results") if places is None else places, left)
    rows = [row for its in sources for row in its]
    if not rows and left:
        raise ValueError(" ".join(["There is no run in these files.", *left[:3]]))
    rounds = [{"run": k, **its} for k, (_, rows_of) in enumerate(rows) for its in rows_of]
    return pandas.DataFrame([run for run, _ in rows]), pandas.DataFrame(rounds)


def _sources(places: Any, left: list[str]) -> Iterator[list[tuple[dict[str, Any], list[Line]]]]:
    """The rows of one file after the other."""
    if not isinstance(places, str | Path):
        its = list(places)
        if all(isinstance(h, History) for h in its):
            yield [_rows(h.to_dict(), "", "") for h in its]
            return
    for path, asked in files(places):
        folder = path if path.name.endswith(PACKED) else path.parent
        try:
            where = named(path), named(folder)
            yield [_rows(line, *where) for line in read(path) if is_whole(line)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            sentence = str(error)
            if not isinstance(error, ValueError) or str(path) not in sentence:
                sentence = f"{path} is no result of this version of fedlearn ({error!r})."
            if asked:
                raise ValueError(sentence) from None
            left.append(sentence)


def files(places: str | Path | Iterable[str | Path]) -> list[tuple[Path, bool]]:
    """The result files of files and folders, each once, and whether it was named itself;
    ``ValueError`` for what is not there and for a folder without one."""
    found: dict[str, tuple[Path, bool]] = {}
    for place in map(Path, [places] if isinstance(places, str | Path) else places):
        if not place.exists():
            raise ValueError(f"There is no file or folder {place}.")
        its = [p for end in (".json", PACKED) for p in sorted(place.rglob(f"*{end}"))]
        if not its and not place.is_file():
            raise ValueError(f"There is no result in the folder {place}: no .json, no {PACKED}.")
        for path in [place] if place.is_file() else its:
            found.setdefault(os.path.realpath(path), (path, path == place))
    return list(found.values())


def _rows(line: Line, file: str, folder: str) -> tuple[dict[str, Any], list[Line]]:
    """What a run is in the two tables; an error for what is none."""
    h = History.from_dict(line)
    meta, task = h.meta, h.meta["task"]
    whence, options = meta.get("provenance", {}), meta.get("options", {})
    alike = [{k: v for k, v in task.items() if k != "seed"}, meta.get("settings"), len(h)]
    alike += [meta.get("parts"), options, meta.get("label"), h.method]
    last = h.final
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
        "hours": float(whence.get("seconds") or h.seconds.sum()) / 3600,
        **{k: whence.get(k, "") for k in ("commit", "date", "hardware", "command")},
    }
    numbers = ("bytes_up", "bytes_down", "seconds")
    rounds = [
        {k: v for k, v in row.items() if v is None or isinstance(v, int | float)}
        | {k: 0 + row[k] for k in numbers}
        | {k: len(row.get(k, ())) for k in ("clients", "refused")}
        for row in h.rows
    ]
    return run, rounds


def named(path: Path) -> str:
    """A file's name as people type it; those of the book from the checkout on."""
    book, whole = (Path(os.path.realpath(p)) for p in (data_path("results"), path))
    inside = whole.is_relative_to(book)
    its = Path("data/results", whole.relative_to(book)) if inside else path
    return its.as_posix()


@lru_cache
def split_text(shown: str) -> str:
    """The partition that is shown so in a history, as it is typed: "Dirichlet(alpha=0.5,
    min_samples=1)" is "dirichlet:0.5". What cannot be typed stays as it is."""
    names = {make.__name__: name for name, (make, *_) in partitions.PARTS.items()}
    found = re.match(r"(\w+)\((?:\w+='?([^',)]+))?", shown)
    if not found or found[1] not in names:
        return shown
    text = ":".join(filter(None, (names[found[1]], found[2])))
    with suppress(ValueError):  # a table that is not here
        if repr(partitions.parse(text)) == shown:
            return text
    return shown


# ---- packing -------------------------------------------------------------------------------------


def write(path: Path, lines: Iterable[Line]) -> None:
    """Pack runs: the same bytes for the same runs."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    data = gzip.compress(text.encode(), mtime=0)
    write_atomically(path, lambda part: part.write_bytes(data))
