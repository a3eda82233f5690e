"""Grids: many short runs behind an explorer, made once and kept in ``data/<chapter>/grid.json``.

``python -m fedlearn.book.grids rpn`` does the runs that ``data/rpn/chapter.yaml`` lists
under ``grid``: each of its lines at each position of its control, for each number of
clients and each seed. With ``splits``, ``{control: .., positions: {position:
partition}}``, they are done for each of them, too, but for lines with a ``partition`` of
their own. The file has columns, not rows; bytes are those of one client in one round,
on average over clients. Runs that the file has already are not repeated.
"""

import json
import platform
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import link
from ..data import data_path
from ..errors import extra, pick
from ..files import read_yaml, to_json, write_text
from ..lab.experiment import Experiment

if TYPE_CHECKING:
    import pandas

    from ..history import History

RUN = ["line", "clients", "position", "seed", "split"]  # which run a row is of
COLUMNS = [*RUN, "round", "accuracy", "up", "down"]
Row = dict[str, Any]


def chapter_file(name: str) -> dict[str, Any]:
    """``data/<name>/chapter.yaml``; ``ValueError`` if there is no such chapter."""
    paths = {path.parent.name: path for path in data_path().glob("*/chapter.yaml")}
    return read_yaml(pick(name, paths, "chapter in data"))


def runs_of(spec: Row) -> Iterator[tuple]:
    """Every run of a grid, the values of ``RUN``."""
    for line, entry in spec["lines"].items():
        fixed = "splits" not in spec or "partition" in entry
        splits = [None] if fixed else spec["splits"]["positions"]
        positions = entry.get("positions", [None])
        for position, split, clients, seed in product(
            positions, splits, spec["clients"], spec["seeds"]
        ):
            yield line, clients, position, seed, split


def experiment(
    spec: Row, line: str, clients: int, position: Any, seed: int, split: Any
) -> Experiment:
    """The experiment of a run. A line with a ``partition`` of its own has no split."""
    entry = spec["lines"][line]
    values = spec["shared"] | {"clients": clients, "seed": seed}
    option = entry.get("positions", {None: {}})[position]
    values["options"] = entry.get("options", {}) | option
    values["method"] = entry["method"]
    if values["method"].startswith(
        "data/"
    ):  # beside the chapter's; notebooks run elsewhere
        values["method"] = str(data_path(*entry["method"].split("/")[1:]))
    if "partition" in entry:
        values["partition"] = entry["partition"]
    elif split is not None:
        values["partition"] = spec["splits"]["positions"][split]
    return Experiment(**values)


def trained(e: Experiment, **settings: Any) -> "History":
    """The history of an experiment, all clients in one step, and in silence."""
    from ..core import run

    settings = asdict(e.settings) | {"engine": "stacked", "progress": False} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(e.make_method(), e.make_task(), e.rounds, **settings)


def rows_of(spec: Row, run: tuple) -> list[tuple]:
    """The rows of a run, a round each."""
    history = trained(experiment(spec, *run))
    sizes = link.shares(history)
    rounds = zip(history.accuracy, sizes["up"], sizes["down"], strict=True)
    return [
        (*run, t, round(float(accuracy), 4), round(float(up), 1), round(float(down), 1))
        for t, (accuracy, up, down) in enumerate(rounds, 1)
    ]


def origin(command: str) -> dict[str, Any]:
    """Which code made a file here and now, by which command, on what."""
    import torch

    from ..lab.results import provenance

    hardware = platform.processor() or platform.machine()
    origin = {"command": command, "hardware": hardware, "torch": torch.__version__}
    return provenance() | origin


def keep(
    path: Path, columns: Mapping[str, Sequence[Any]], command: str, **facts: Any
) -> None:
    """Write a file of columns, a line each, below where they come from and further
    ``facts``."""
    text = ",\n".join(
        f"{to_json(name)}: {to_json(values, separators=(',', ':'))}"
        for name, values in columns.items()
    )
    head = to_json(origin(command) | facts, indent=1)[:-2]
    write_text(path, f'{head},\n "columns": {{\n{text}\n}}}}\n')


def stored(name: str) -> list[Row]:
    """The rows of a chapter's grid; none if there is no file."""
    path = data_path(name, "grid.json")
    if not path.exists():
        return []
    columns = json.loads(path.read_text(encoding="utf-8"))["columns"]
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def fill(
    name: str,
    columns: Sequence[str],
    runs: Iterable[tuple],
    rows_of: Callable[[tuple], list[tuple]],
    command: str,
) -> None:
    """Do those of the ``runs`` that a grid lacks, and write its file after each, so that
    the command may be stopped at any time. A run is the values of the first columns;
    ``rows_of`` turns it into its rows."""
    rows = stored(name)
    listed = list(runs)
    keys = columns[: len(listed[0])] if listed else []
    done = {tuple(map(row.get, keys)) for row in rows}
    for run in listed:
        if run not in done:
            rows += [dict(zip(columns, row, strict=True)) for row in rows_of(run)]
            values = {c: [row.get(c) for row in rows] for c in columns}
            keep(data_path(name, "grid.json"), values, command)
            print(*run, flush=True)


def grid(name: str) -> "pandas.DataFrame":
    """The stored grid, a row for each line, number of clients, position and round.

    Over the seeds: ``accuracy`` is the mean, ``low`` and ``high`` the extremes. ``up``
    and ``down`` are bytes of one client so far. The position stands in the column of
    the line's own control, the split in that of the splits' control; other lines have
    ``None`` there.
    """
    with extra("lesson"):
        import pandas as pd

    spec = chapter_file(name)["grid"]
    rows = pd.DataFrame(
        stored(name), columns=COLUMNS
    )  # without splits there is no such
    sizes = ["up", "down"]
    rows[sizes] = rows.groupby(RUN, dropna=False, sort=False)[sizes].cumsum()
    keys = ["line", "clients", "position", "split", "round"]
    groups = rows.groupby(keys, dropna=False, sort=False)
    table = groups[["accuracy"]].mean().round(4)
    table["low"] = groups["accuracy"].min()
    table["high"] = groups["accuracy"].max()
    table = table.join(groups[sizes].mean().round()).reset_index()
    for line, entry in spec["lines"].items():
        if "control" in entry:
            of_line = table["line"] == line
            table[entry["control"]] = table["position"].where(of_line, None)
    if "splits" in spec:
        table[spec["splits"]["control"]] = table["split"]
    return table.drop(columns=["position", "split"])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        spec = chapter_file(name)["grid"]
        command = f"python -m fedlearn.book.grids {name}"
        fill(name, COLUMNS, runs_of(spec), partial(rows_of, spec), command)
