"""All methods on the same tasks with the same budget of tuning: the runs behind the chapter on
which one wins, kept in ``data/grids/shootout.json``.

``python -m fedlearn.book.shootout --jobs 2`` runs what ``data/chapters/shootout.yaml`` states and
the file does not have yet: each method on each task, split and number of clients. First short runs
with three values of one of its options, usually the learning rate, then whole runs with the best
of them, seed after seed. It may be stopped at any time. A row of the file is a run; ``accuracy``
has the rounds that were evaluated, ``up`` and ``down`` are bytes of one client in one round, on
average, ``seconds`` those that one client computed in a round.
"""

import itertools
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cache
from typing import Any

from ..errors import Diverged, WireError, pick
from ..experiment import Experiment
from .grids import Row, chapter_file, command_line, fill

RUN = ("task", "split", "clients", "method", "value", "seed", "short")
COLUMNS = (*RUN, "accuracy", "up", "down", "seconds")


@cache
def spec() -> dict[str, Any]:
    """What ``data/chapters/shootout.yaml`` states."""
    return chapter_file("shootout")


def contests(task: str) -> Iterator[tuple[str, str, int, str]]:
    """Every (task, split, number of clients, method) of a task, in the order in which they are run.
    First FedAvg with one client, who has all images: training without federation."""
    its = spec()
    yield task, next(iter(its["splits"])), 1, "FedAvg"
    for where in itertools.product(its["splits"], its["clients"], its["methods"]):
        yield task, *where


def tuning(method: str, entry: Row | None = None) -> tuple[str, list[float]]:
    """The option of a method that is tuned, and its three values. ``entry`` states a method that
    the file does not have."""
    its = spec()
    [of] = (entry or its["methods"][method]).get("tune", its["tune"]).items()
    return of


def experiment(
    task: str,
    split: str,
    clients: int,
    method: str,
    value: float,
    seed: int,
    short: bool,
    entry: Row | None = None,
) -> Experiment:
    """What states a run."""
    its = spec()
    of, row = its["tasks"][task], entry or its["methods"][method]
    how = {k: v for k, v in of.items() if k not in ("short", "seeds", "networks")}
    how |= of["short"] if short else {}
    option, _ = tuning(method, entry)
    return Experiment(
        method=row["method"],
        options=of["networks"].get(method, {}) | row.get("options", {}) | {option: value},
        partition=its["splits"][split],
        clients=clients,
        seed=seed,
        **how,
    )


def ran(where: tuple, entry: Row | None = None) -> tuple:
    """One run -> its row."""
    import torch

    from ..round import run

    torch.set_num_threads(1)
    e = experiment(**dict(zip(RUN, where, strict=True)), entry=entry)
    how = asdict(e.settings) | {"engine": "auto", "threads": 1, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = run(e.make_method(), e.make_task(), e.rounds, **how)
    count = [max(1, len(row["clients"])) for row in history.rows]
    means = [
        float((of / count).mean()) for of in (history.bytes_up, history.bytes_down, history.seconds)
    ]
    accuracy = [round(row["accuracy"], 4) for row in history.rows if row["accuracy"] is not None]
    return (*where, accuracy, round(means[0], 1), round(means[1], 1), round(means[2], 5))


def trained(where: tuple) -> tuple:
    """``ran``; but a run that diverges, or a method that the task cannot have, has no accuracy."""
    try:
        return ran(where)
    except (ValueError, Diverged, WireError):
        return (*where, [], None, None, None)


def enter(
    method: str,
    task: str = "digits",
    split: str = "one main class",
    clients: int = 10,
    tune: dict[str, list[float]] | None = None,
    **options: Any,
) -> list[Row]:
    """A method of your own in one contest, such as "mine.py:method": the short runs with the values
    of ``tune``, by default three learning rates, then the whole runs with the best; a row each, as
    in the file, which stays as it is."""
    its = spec()
    if method in its["methods"]:
        raise ValueError(f"The contest has {method!r} already.")
    pick(task, its["tasks"], "task of the contest")
    pick(split, its["splits"], "split of the contest")
    entry = {"method": method, "options": options} | ({"tune": tune} if tune else {})
    where = task, split, clients, method

    def rows(runs: Iterable[tuple]) -> list[Row]:
        return [dict(zip(COLUMNS, ran(run, entry), strict=True)) for run in runs]

    tried = rows((*where, value, 0, True) for value in tuning(method, entry)[1])
    value = best(tried)[where]
    return tried + rows((*where, value, seed, False) for seed in its["tasks"][task]["seeds"])


def best(rows: list[Row]) -> dict[tuple[str, str, int, str], float]:
    """(task, split, clients, method) -> the value whose short run ended highest, of equal ones the
    largest."""
    found: dict[tuple, tuple[float, float]] = {}
    for row in rows:
        if row["short"] and row["accuracy"]:
            key = row["task"], row["split"], row["clients"], row["method"]
            found[key] = max(found.get(key, (-1.0, 0.0)), (row["accuracy"][-1], row["value"]))
    return {key: value for key, (_, value) in found.items()}


def short(task: str) -> list[tuple]:
    """The runs that choose the methods' values on a task."""
    every = contests(task)
    return [(*which, value, 0, True) for which in every for value in tuning(which[-1])[1]]


def whole(task: str, rows: list[Row]) -> list[tuple]:
    """The runs with the best values on a task, the first seed of all before the second of any."""
    values = best(rows)
    every = [which for which in contests(task) if which in values]
    seeds = spec()["tasks"][task]["seeds"]
    return [(*which, values[which], seed, False) for seed in seeds for which in every]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", choices=spec()["tasks"], help="one task")
    args = parser.parse_args()
    stages: list[Any] = []
    for task in [args.only] if args.only else spec()["tasks"]:
        stages += [lambda _, task=task: short(task), lambda rows, task=task: whole(task, rows)]
    fill("shootout", len(RUN), COLUMNS, trained, stages, args)


if __name__ == "__main__":
    main()
