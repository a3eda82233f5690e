"""A table of anybody's runs that the reader sorts and filters: what each reached, what it sent, and
how to get it again."""

import html
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..history import MEASURES
from ..lab import recipes, results
from ..lab.results import spread
from . import choosing, datatable
from .claims import TESTED, dagger
from .show import Shown

if TYPE_CHECKING:
    import pandas

SHARE = 0.9  # of the best accuracy on what is comparable: the target, unless one is stated
COUNTS = "_bytes.json"  # the ends of files whose runs are there for their bytes alone
COMPARABLE = ["task", "dataset", "train", "network", "clients", "partition", "measure"]
ABOUT = f"""A row is a method on a task: mean and standard deviation of its seeds. Rows can be
    compared where data, images, network, split and clients are the same. A {TESTED} marks methods
    with an option that was chosen on test images in tries of their own; those on digits have rates
    that were set by hand. The last cell unfolds the command and the files.
    The field above finds the rows that have all its words."""
UNITS = {  # of the columns with numbers
    "seeds": "",
    "images": "to train",
    "last test": "accuracy",
    "last quarter": "accuracy",
    "MB up": "all clients",
    "MB down": "all clients",
    "target": "accuracy",
    "MB up to it": "all clients",
    "MB down to it": "all clients",
    "rounds": "",
    "client seconds": "of one",
}
HEADS = ("method", "task", "split", *UNITS, "how")


def rows(
    runs: "pandas.DataFrame", rounds: "pandas.DataFrame", target: float | None = None
) -> list[dict[str, Any]]:
    """A row for runs that differ in their seed alone, by the names of ``HEADS``, and with
    ``command`` and ``files``. The tables are those of ``results.tables``.

    ``target`` is an accuracy, 0 to 1; without one it is 0.9 of the best row that is equal in what
    ``COMPARABLE`` names. Runs that are there for their bytes alone are left out.
    """
    if target is not None and not 0 < target <= 1:
        raise ValueError(f"A target is an accuracy above 0 and at most 1, not {target!r}.")
    runs = runs[~runs["file"].str.endswith(COUNTS)]
    packed = runs["file"].str.endswith(results.PACKED)  # the runs of a paper; else of a folder
    place = runs["file"].where(packed, runs["file"].map(lambda file: str(Path(file).parent)))
    again = runs.groupby([place, "alike", "seed"]).cumcount()  # the same seed is another row
    row = [place, runs["alike"], again]
    mean = runs.groupby(row)["last test"].transform("mean")
    comparable = runs[COMPARABLE].agg(tuple, axis=1)
    aim = target or SHARE * mean.groupby(comparable).transform("max")
    runs = runs.assign(target=aim)
    reached = rounds["accuracy"] >= rounds["run"].map(runs["target"])
    first = rounds[reached].groupby("run")["round"].min()
    counted = rounds[rounds["round"] <= rounds["run"].map(first)]
    for way in ("up", "down"):
        runs[f"MB {way}"] = rounds.groupby("run")[f"bytes_{way}"].sum() / 1e6
        runs[f"MB {way} to it"] = counted.groupby("run")[f"bytes_{way}"].sum() / 1e6
    computing = rounds["seconds"] / rounds["clients"].clip(lower=1)
    runs["client seconds"] = computing.groupby(rounds["run"]).sum()
    table = []
    for _, seeds in runs.groupby(row, sort=False):
        one = seeds.iloc[0]
        measure = "" if one["measure"] == "accuracy" else f" {one['measure']}"
        task = f"{one['dataset']}, {one['network']}, {one['clients']} client"
        table.append(
            {
                "name": one["method"],
                "method": one["label"] + dagger([one["chosen on"]]),
                "task": task + ("" if one["clients"] == 1 else "s"),
                "split": one["partition"],
                "seeds": str(len(seeds)),
                "images": str(one["train"]),
                **{name: spread(list(seeds[name])) + measure for name in MEASURES},
                **{f"MB {way}": f"{seeds[f'MB {way}'].mean():,.3f}" for way in ("up", "down")},
                "target": f"{one['target']:.3f}",
                **{f"MB {way} to it": _mean(seeds[f"MB {way} to it"]) for way in ("up", "down")},
                "rounds": str(one["rounds"]),
                "client seconds": f"{seeds['client seconds'].mean():,.2f}",
                "command": command(seeds),
                "files": tuple(dict.fromkeys(seeds["file"])),
            }
        )
    return table


@cache
def recipe_commands() -> dict[tuple[str, str], list[str]]:
    """The recipes' rows -> the words of the command that makes their runs."""
    commands: dict[tuple[str, str], list[str]] = {}
    for name, recipe in recipes.RECIPES.items():
        for scale in [s for s in recipes.SCALES if s in recipe]:
            for run in recipes.runs(name, scale):  # without the seed
                commands.setdefault(run.key, [*run.command[:-2]])
    return commands


def command(row: "pandas.DataFrame") -> str:
    """What to type to get the runs of a row again."""
    one = row.iloc[0]
    name = Path(one["file"]).name.removesuffix(results.PACKED)
    if words := recipe_commands().get((name, one["hash"])):
        return shlex.join(
            [*words, *(word for seed in row["seed"] for word in ("--seed", str(seed)))]
        )
    old = one["file"].endswith(results.PACKED)  # of a recipe that has changed since
    at = [f"at commit {commit}: " if old else "" for commit in row["commit"]]
    pairs = dict.fromkeys(zip(at, row["command"], strict=True))
    return "; ".join(at + words for at, words in pairs if words)


def _mean(values: "pandas.Series") -> str:
    """The mean of those that are there, and how many that are if not all."""
    count, mean = values.count(), f"{values.mean():,.3f}"
    text = mean if count == len(values) else f"{mean} ({count} of {len(values)} runs)"
    return text if count else "not reached"


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row as HTML: its numbers, the command, and the files, which unfold."""
    texts = [html.escape(row[name]) for name in HEADS[:-1]]
    recipe = html.escape(row["command"] or "made in Python: the file does not say how")
    files = "".join(f"<code>{html.escape(f)}</code>" for f in row["files"])
    return [*texts, f"<details><summary>again</summary><code>{recipe}</code>{files}</details>"]


def shown(number: str, caption: str, entries: Sequence[Mapping[str, Any]]) -> Shown:
    """The rows as a table that is sorted and searched."""
    texts = map(cells, entries)
    content = datatable.table(number, caption, "rows", HEADS, texts, UNITS, "fl-leaderboard")
    lines = ["  ".join(str(row[name]) for name in HEADS[:-1]) for row in entries]
    return Shown(content, "\n".join([f"Table {number}. {caption}", *lines]))


def table(
    number: str,
    caption: str,
    places: str | Path | Iterable[str | Path] | None = None,
    target: float | None = None,
) -> Shown:
    """The table of the runs in ``places``, a file or folder or several; without any, of the book's
    own in data and in the contest of all methods."""
    entries = rows(*results.tables(places), target)
    entries += rows(*choosing.tables(), target) if places is None else []
    return shown(number, caption, entries)
