"""Grids: many short runs behind an explorer, made once and kept in ``data/<chapter>/grid.json``.

``python -m fedlearn.book.grids rpn`` runs what ``data/rpn/chapter.yaml`` states under
``grid``: each of its lines at each position of its control, for each number of clients
and each seed. If it states ``splits``, ``{control: .., positions: {position:
partition}}``, that is for each of them, too, except for lines with a ``partition`` of
their own. The file has columns, not rows; bytes are those of one client in one round,
on average over clients. Runs that the file has already are not repeated.
"""

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data import data_path
from ..errors import extra
from ..files import read_yaml, to_json, write_text
from ..lab.experiment import Experiment

if TYPE_CHECKING:
    import pandas

    from ..core import Method
    from ..history import History

RUN = ("line", "clients", "position", "seed", "split")  # which run a row is of
COLUMNS = (*RUN, "round", "accuracy", "up", "down")
Row = dict[str, Any]


def chapter_file(name: str) -> dict[str, Any]:
    """What ``data/<name>/chapter.yaml`` states; ``ValueError`` if there is no such
    chapter."""
    path = data_path(name, "chapter.yaml")
    if not path.exists():
        names = ", ".join(
            sorted(p.parent.name for p in data_path().glob("*/chapter.yaml"))
        )
        raise ValueError(f"There is no chapter {name!r} in data; there are: {names}.")
    return read_yaml(path)


def grid_file(name: str) -> Path:
    """The file of a chapter's grid."""
    return data_path(name, "grid.json")


def experiments(name: str) -> Iterator[tuple[tuple[Any, ...], Experiment]]:
    """Every run of a grid: (line, clients, position, seed, split), and what states
    it."""
    spec = chapter_file(name)["grid"]
    for line, of_line in spec["lines"].items():
        fixed = "splits" not in spec or "partition" in of_line
        splits = [None] if fixed else spec["splits"]["positions"]
        positions = of_line.get("positions", [None])
        for position, split, clients, seed in product(
            positions, splits, spec["clients"], spec["seeds"]
        ):
            run = line, clients, position, seed, split
            yield run, experiment(spec, *run)


def experiment(
    spec: Row, line: str, clients: int, position: Any, seed: int, split: Any
) -> Experiment:
    """What states one run of a grid. A line with a ``partition`` of its own has no
    split."""
    of_line = spec["lines"][line]
    partition = of_line.get("partition", spec["shared"].get("partition"))
    if split is not None:
        partition = spec["splits"]["positions"][split]
    method = of_line["method"]
    if method.startswith(
        "data/"
    ):  # a file beside the chapter's; a notebook runs elsewhere
        method = str(data_path(*method.split("/")[1:]))
    options = of_line.get("positions", {None: {}})[position]
    stated = {"method": method, "options": options, "partition": partition}
    return Experiment(**spec["shared"] | stated, clients=clients, seed=seed)


def trained(
    e: Experiment, method: "Method | None" = None, **settings: Any
) -> "History":
    """The history of an experiment, or of a method in the place of its own, all clients
    in one step, and in silence."""
    from ..core import run

    args = asdict(e.settings) | {"engine": "stacked", "progress": False} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(method or e.make_method(), e.make_task(), e.rounds, **args)


def rounds_of(name: str, run: tuple) -> list[tuple]:
    """One run of a grid -> its rows, a round each."""
    e = experiment(chapter_file(name)["grid"], *run)
    history = trained(e)
    up = history.bytes_up / e.clients
    down = history.bytes_down / e.clients
    return [
        (*run, row["round"], round(row["accuracy"], 4), round(u, 1), round(d, 1))
        for row, u, d in zip(history.rows, up, down, strict=True)
    ]


def origin(command: str) -> dict[str, Any]:
    """Which code made a file here and now, by which command, on what."""
    import torch

    from ..lab.results import provenance

    return {
        **provenance(),
        "command": command,
        "hardware": platform.processor() or platform.machine(),
        "torch": torch.__version__,
    }


def keep(
    name: str, columns: Mapping[str, list[Any]], command: str, **about: Any
) -> None:
    """Write ``data/grids/<name>.json``: where it comes from, what is said ``about`` it,
    and a line a column."""
    text = ",\n".join(
        f"{to_json(c)}: {to_json(v, separators=(',', ':'))}" for c, v in columns.items()
    )
    head = to_json(origin(command) | about, indent=1)[:-2]
    write_text(grid_file(name), f'{head},\n "columns": {{\n{text}\n}}}}\n')


def stored(name: str) -> tuple[list[Row], float]:
    """The rows of a grid's file and the seconds that they took; none if there is no
    file."""
    path = grid_file(name)
    if not path.exists():
        return [], 0.0
    grid = json.loads(path.read_text(encoding="utf-8"))
    rows = zip(*grid["columns"].values(), strict=True)
    return [dict(zip(grid["columns"], row, strict=True)) for row in rows], grid[
        "seconds"
    ]


def command_line(description: str | None) -> argparse.ArgumentParser:
    """The options of a command that calls ``fill``, to which it adds its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--hours", type=float, default=1e9, help="begin no run after them"
    )
    return parser


def fill(
    name: str,
    command: str,
    width: int,
    columns: Sequence[str],
    played: Callable[[tuple], list[tuple]],
    stages: Sequence[Callable[[list[Row]], Iterable[tuple]]],
    args: argparse.Namespace,
    **about: Any,
) -> None:
    """Do what is missing of a grid, and write the file every minute and at the end, so
    that it may be stopped at any time.

    A run is the values of the first ``width`` columns; ``played`` turns it into its
    rows. A stage lists runs, given the rows of the stages before it. ``args`` are those
    of ``command_line``.
    """
    with extra("lab"):
        from joblib import Parallel, delayed

    (rows, before), began = stored(name), time.monotonic()
    written = began
    for stage in stages:
        done = {tuple(row.get(c) for c in columns[:width]) for row in rows}
        missing = [run for run in stage(rows) if run not in done]
        jobs = Parallel(args.jobs, return_as="generator")
        for i, new in enumerate(jobs(delayed(played)(run) for run in missing), 1):
            rows += [dict(zip(columns, row, strict=True)) for row in new]
            now = time.monotonic()
            late = now - began > 3600 * args.hours
            if late or now - written > 60 or i == len(missing):
                values = {c: [row.get(c) for row in rows] for c in columns}
                spent = round(before + args.jobs * (now - began))
                keep(name, values, command, **about, seconds=spent)
                print(f"{i} of {len(missing)}", flush=True)
                written = now
            if late:
                return


def grid(name: str) -> "pandas.DataFrame":
    """The stored grid, a row for each line, number of clients, position and round.

    Over the seeds: ``accuracy`` is the mean, ``low`` and ``high`` the extremes. ``up``
    and ``down`` are bytes of one client so far. The position stands in the column of
    the line's own control, the split in that of the splits' control; other lines have
    ``None`` there.
    """
    with extra("lesson"):
        import pandas as pd

    path = grid_file(name)
    if not path.exists():
        raise ValueError(
            f"There is no grid {name!r} yet; python -m fedlearn.book.grids {name}"
        )
    spec = chapter_file(name)["grid"]
    columns = json.loads(path.read_text(encoding="utf-8"))["columns"]
    rows = pd.DataFrame(
        columns, columns=list(COLUMNS)
    )  # a grid without splits has no such column
    sums = rows.groupby(list(RUN), dropna=False, sort=False)[["up", "down"]]
    rows[["up", "down"]] = sums.cumsum()
    keys = ["line", "clients", "position", "split", "round"]
    means = rows.groupby(keys, dropna=False, sort=False).agg(
        accuracy=("accuracy", "mean"),
        low=("accuracy", "min"),
        high=("accuracy", "max"),
        up=("up", "mean"),
        down=("down", "mean"),
    )
    table = means.round({"accuracy": 4, "up": 0, "down": 0}).reset_index()
    for line, of_line in spec["lines"].items():
        if "control" in of_line:
            table[of_line["control"]] = table["position"].where(
                table["line"] == line, None
            )
    if "splits" in spec:
        table[spec["splits"]["control"]] = table["split"]
    return table.drop(columns=["position", "split"])


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="+", help="chapters")
    args = parser.parse_args()
    for name in args.names:
        runs = [run for run, _ in experiments(name)]
        command = f"python -m fedlearn.book.grids {name}"
        rows_of = partial(rounds_of, name)
        stages = [lambda _, runs=runs: runs]
        fill(name, command, len(RUN), COLUMNS, rows_of, stages, args)


if __name__ == "__main__":
    from fedlearn.book import (
        grids,  # processes look functions up where they are imported from
    )

    grids.main()
