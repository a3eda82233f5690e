"""A table of anybody's runs that the reader sorts and filters: what each reached, what it sent, and
how to get it again. ``fedlearn leaderboard results/`` writes it as one HTML page."""

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .data.sources import data_path
from .evidence import Group, contests, files, paths, read
from .files import check_writable, write_text
from .history import History
from .lab import sortable
from .lab.show import Shown, inline
from .link import shares
from .report import spread

SHARE = 0.9  # of the best accuracy on the same task and split: the target, unless one is stated
ABOUT = """A row is a method on a task: mean and standard deviation of its seeds. Rows can be
    compared where data, split and clients are the same. A row's command opens to show its files."""
WORDS = ("method", "task", "split")
HEADS = {"method": "text", "task": "text", "split": "text", "seeds": "", "accuracy": "",
         "MB up": "", "MB down": "", "target": "", "MB up to it": "", "MB down to it": "",
         "rounds": "", "client seconds": ""}  # fmt: skip
UNITS = {
    "accuracy": "at the end",
    "MB up": "all clients",
    "MB down": "all clients",
    "target": "accuracy",
    "MB up to it": "all clients",
    "MB down to it": "all clients",
    "client seconds": "of one",
}


def field(group: Group) -> tuple[Any, ...]:
    """What rows are compared on: data set, clients, split, and the measure in their accuracy."""
    return group.task["dataset"], group.task["clients"], group.split, group.runs[0].measure


def sent(history: History, way: str, target: float | None = None) -> float | None:
    """Megabytes of all clients until the end, or until ``target`` is reached, if it is."""
    last = len(history) if target is None else history.rounds_to(target)
    return None if last is None else float(getattr(history, f"bytes_{way}")[:last].sum() / 1e6)


def rows(groups: Sequence[Group], target: float | None = None) -> list[dict[str, Any]]:
    """A row a group, in the words of ``HEADS``, and with ``data``, ``clients``, ``command`` and
    ``files``.

    ``target`` is an accuracy, 0 to 1; without one it is 0.9 of the best row on the same data set,
    clients and split.
    """
    if target is not None and not 0 < target <= 1:
        raise ValueError(f"A target is an accuracy above 0 and at most 1, not {target!r}.")
    best: dict[tuple[Any, ...], float] = {}
    for g in groups:
        best[field(g)] = max(best.get(field(g), 0.0), float(g.finals.mean()))
    made = []
    for g in groups:
        task, aim = g.task, target or SHARE * best[field(g)]
        measure = "" if g.runs[0].measure == "accuracy" else f" {g.runs[0].measure}"
        seconds = [float(shares(h)["computing"].sum()) for h in g.runs]
        row = {
            "method": g.label,
            "task": f"{task['dataset']}, {task.get('network')}, {task['clients']} client"
            + "s" * (task["clients"] != 1),
            "split": g.split,
            "seeds": str(len(g.runs)),
            "accuracy": spread([float(a) for a in g.finals]) + measure,
            **{f"MB {w}": f"{np.mean([sent(h, w) for h in g.runs]):,.3f}" for w in ("up", "down")},
            "target": f"{aim:.3f}",
            **{f"MB {w} to it": _mean([sent(h, w, aim) for h in g.runs]) for w in ("up", "down")},
            "rounds": str(len(g.runs[0])),
            "client seconds": f"{np.mean(seconds):,.2f}",
        }
        more = {"data": str(task["dataset"]), "clients": str(task["clients"])}
        made.append({**row, **more, "command": g.command, "files": g.files})
    return made


def _mean(values: list[float | None]) -> str:
    """The mean of those that are there, and how many that are if not all."""
    there = [v for v in values if v is not None]
    if not there:
        return "not reached"
    some = "" if len(there) == len(values) else f" ({len(there)} of {len(values)} runs)"
    return f"{np.mean(there):,.3f}{some}"


def body(row: Mapping[str, Any]) -> str:
    """A row as HTML: its numbers, and below them the command and the files."""
    kinds = ["" if name in WORDS else ' class="fl-number"' for name in HEADS]
    cells = "".join(
        f"<td{kind}>{inline(row[name]) if kind else html.escape(row[name])}</td>"
        for name, kind in zip(HEADS, kinds, strict=True)
    )
    how = row["command"] or "made in Python: the file does not say how"
    inside = "".join(f"<code>{html.escape(f)}</code>" for f in row["files"])
    marks = "".join(f' data-{k}="{html.escape(row[k])}"' for k in ("data", "split", "clients"))
    return (
        f'<tbody{marks}><tr>{cells}</tr><tr class="fl-formula"><td colspan="{len(HEADS)}"><details>'
        f"<summary><code>{html.escape(how)}</code></summary>{inside}</details></td></tr></tbody>"
    )


def shown(number: str, caption: str, made: Sequence[Mapping[str, Any]]) -> Shown:
    """The rows as a table with its form."""

    def several(name: str, key: Any = None) -> dict[str, str]:
        return {v: v for v in sorted({row[name] for row in made}, key=key)}

    form = (
        sortable.choose("data", several("data")),
        sortable.choose("split", several("split")),
        sortable.choose("clients", several("clients", lambda n: (len(n), n))),
        sortable.find("method, network, command or file", "rpn"),
    )
    content = sortable.table(
        number, caption, "rows", HEADS, map(body, made), form, "fl-leaderboard", UNITS
    )
    lines = ["  ".join(str(row[name]) for name in HEADS) for row in made]
    return Shown(content, "\n".join([f"Table {number}. {caption}", *lines]))


def table(
    number: str,
    caption: str,
    places: str | Path | Iterable[str | Path] | None = None,
    target: float | None = None,
) -> Shown:
    """The table of the runs in ``places``, a file or folder or several; without any, of the book's
    own in data/results and in the contest of all methods."""
    groups, _ = read([data_path("results")] if places is None else places)
    groups += contests() if places is None else []
    return shown(number, caption, rows(groups, target))


def write(
    places: str | Path | Iterable[str | Path], out: str | Path, target: float | None = None
) -> tuple[int, int, list[str]]:
    """Write the page of all runs in a file or folder or several to ``out``, one file that needs no
    network; returns how many rows it has and of how many runs, and a sentence for each file left
    out. ``ValueError`` if ``out`` is one of the files that are read."""
    places, page = paths(places), check_writable(out)
    if page in [path.resolve() for path, _ in files(places) if path.is_file()]:
        raise ValueError(f"{out} is one of the results that are read: name another file.")
    groups, left = read(places)
    made = rows(groups, target)
    caption = ABOUT + ("" if target else f" The target is {SHARE:.0%} of the best such row's.")
    write_text(out, sortable.page("Leaderboard", shown("1.1", caption, made).content))
    return len(made), sum(len(g.runs) for g in groups), left
