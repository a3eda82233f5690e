"""A table of anybody's runs that the reader sorts and filters: what each reached, what it sent, and
how to get it again. ``fedlearn leaderboard results/`` writes it as one HTML page."""

import html
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import results
from .book import shootout, sortable
from .book.show import Shown, inline
from .files import check_writable, write_text
from .report import spread

if TYPE_CHECKING:
    import pandas

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


def rows(
    runs: "pandas.DataFrame", rounds: "pandas.DataFrame", target: float | None = None
) -> list[dict[str, Any]]:
    """A row for runs that differ in their seed alone, in the words of ``HEADS``, and with ``data``,
    ``clients``, ``command`` and ``files``. The tables are those of ``results.tables``.

    ``target`` is an accuracy, 0 to 1; without one it is 0.9 of the best row on the same data set,
    clients and split, with the same measure.
    """
    if target is not None and not 0 < target <= 1:
        raise ValueError(f"A target is an accuracy above 0 and at most 1, not {target!r}.")
    again = runs.groupby(["folder", "alike", "seed"]).cumcount()  # the same seed is another row
    row = [runs["folder"], runs["alike"], again]
    mean = runs.groupby(row)["accuracy"].transform("mean")
    comparable = runs[["dataset", "clients", "partition", "measure"]].agg(tuple, axis=1)
    aim = target or SHARE * mean.groupby(comparable).transform("max")
    runs = runs.assign(target=aim)
    there = rounds["accuracy"] >= rounds["run"].map(runs["target"])
    first = rounds[there].groupby("run")["round"].min()
    until = rounds[rounds["round"] <= rounds["run"].map(first)]
    for way in ("up", "down"):
        runs[f"MB {way}"] = rounds.groupby("run")[f"bytes_{way}"].sum() / 1e6
        runs[f"MB {way} to it"] = until.groupby("run")[f"bytes_{way}"].sum() / 1e6
    computing = rounds["seconds"] / rounds["clients"].clip(lower=1)
    runs["client seconds"] = computing.groupby(rounds["run"]).sum()
    made = []
    for _, of in runs.groupby(row, sort=False):
        one = of.iloc[0]
        measure = "" if one["measure"] == "accuracy" else f" {one['measure']}"
        task = f"{one['dataset']}, {one['network']}, {one['clients']} client"
        made.append(
            {
                "method": one["label"],
                "task": task + ("" if one["clients"] == 1 else "s"),
                "split": one["partition"],
                "seeds": str(len(of)),
                "accuracy": spread(list(of["accuracy"])) + measure,
                **{f"MB {way}": f"{of[f'MB {way}'].mean():,.3f}" for way in ("up", "down")},
                "target": f"{one['target']:.3f}",
                **{f"MB {way} to it": _mean(of[f"MB {way} to it"]) for way in ("up", "down")},
                "rounds": str(one["rounds"]),
                "client seconds": f"{of['client seconds'].mean():,.2f}",
                "data": one["dataset"],
                "clients": str(one["clients"]),
                "command": command(of),
                "files": tuple(dict.fromkeys(of["file"])),
            }
        )
    return made


@cache
def recipe_runs() -> dict[tuple[str, str], tuple[Any, list[str]]]:
    """File and hash of the recipes' runs -> the run, and the words of the command that makes it."""
    from . import recipes

    found: dict[tuple[str, str], tuple[Any, list[str]]] = {}
    for name, recipe in recipes.RECIPES.items():
        for scale in [s for s in recipes.SCALES if s in recipe]:
            for run in recipes.runs(name, scale):
                words = ["fedlearn", "reproduce", name, *(["--scale", scale] * (scale != "quick"))]
                words += ["--only", run.label, "--partition", run.experiment.partition]
                found.setdefault((run.folder, run.key), (run, words))
    return found


def command(of: "pandas.DataFrame") -> str:
    """What to type to get the runs of a row again."""
    one = of.iloc[0]
    name = Path(one["file"]).name.removesuffix(results.PACKED)
    _, words = recipe_runs().get((name, one["hash"]), (None, []))
    if not words:
        return "; ".join(filter(None, dict.fromkeys(of["command"])))
    return shlex.join([*words, *(w for seed in of["seed"] for w in ("--seed", str(seed)))])


def _mean(values: "pandas.Series") -> str:
    """The mean of those that are there, and how many that are if not all."""
    there = values.dropna()
    if there.empty:
        return "not reached"
    some = "" if len(there) == len(values) else f" ({len(there)} of {len(values)} runs)"
    return f"{there.mean():,.3f}{some}"


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
    made = rows(*results.tables(places), target)
    made += rows(*shootout.tables(), target) if places is None else []
    return shown(number, caption, made)


def write(
    places: str | Path | Iterable[str | Path], out: str | Path, target: float | None = None
) -> tuple[int, int, list[str]]:
    """Write the page of all runs in a file or folder or several to ``out``, one file that needs no
    network; returns how many rows it has and of how many runs, and a sentence for each file left
    out. ``ValueError`` if ``out`` is one of the files that are read."""
    page, left = check_writable(out), list[str]()
    if page in [path.resolve() for path, _ in results.files(places) if path.is_file()]:
        raise ValueError(f"{out} is one of the results that are read: name another file.")
    runs, rounds = results.tables(places, left)
    made = rows(runs, rounds, target)
    caption = ABOUT + ("" if target else f" The target is {SHARE:.0%} of the best such row's.")
    write_text(out, sortable.page("Leaderboard", shown("1.1", caption, made).content))
    return len(made), len(runs), left
