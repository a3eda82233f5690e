"""Mixes of the six parts of all methods, trained on the digits: the grid behind the chapter on
composing, kept in ``data/grids/mixes.json``.

``python -m fedlearn.book.mixes --jobs 2`` runs what is missing, a process each: first every method
and every single-part swap, then mixes drawn at random, each under two splits and at three learning
rates with one seed; then the most accurate, the front and the methods with four more seeds at their
best rate, and what trained badly with a much smaller one. It may be stopped at any time. The file
has columns, not rows; a part is named by the first method that has it, bytes are those of one
client over all rounds.
"""

import itertools
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import Diverged, WireError
from ..round import Averaging
from .grids import Row, command_line, fill, stored

if TYPE_CHECKING:
    import pandas

SPLITS = ("iid", "dirichlet:0.1")
RATES = (0.3, 1.0, 3.0)  # times the learning rate that the optimizer has in its method
ROUNDS, CLIENTS, BEST, SEEDS = 20, 10, 50, 5
KINDS = tuple(Averaging.kinds)
SLOWER, POOR = min(RATES) / 10, 0.7  # what trains so badly is tried once more, with that rate
RUN = (*KINDS, "split", "rate", "seed")
COLUMNS = (*RUN, "accuracy", "up", "down")
Mix = tuple[str, ...]  # for each kind of part a method that has it


@cache
def methods() -> dict[str, Averaging]:
    """The methods that are six parts, by name, and what their options make another method of."""
    from .. import methods as known

    made = {name: make() for name, make in known.METHODS.items()}
    made["fedfusion, personal"] = known.fedfusion(personal=True)
    return {name: m for name, m in made.items() if isinstance(m, Averaging)}


def distinct(kind: str) -> list[tuple[str, Any]]:
    """(name of the first method that has it, part) for each different part of a kind."""
    found: dict[Any, str] = {}
    for name, method in methods().items():
        found.setdefault(getattr(method, kind), name)
    return [(name, part) for part, name in found.items()]


@cache
def choices(kind: str) -> dict[str, Any]:
    """The parts of a kind by name: those of the methods, and uplinks with coders of no method."""
    found = dict(distinct(kind))
    if kind == "uplink":
        from ..parts import Feedback, Lossy, Update, Uplink, WarmStart
        from ..wire import EDEN, LowRank, Natural, TernGrad

        found["eden, 1 bit"] = Uplink(Update(), Lossy(EDEN(1)))
        found["eden, 2 bits"] = Uplink(Update(), Lossy(EDEN(2)))
        found["natural"] = Uplink(Update(), Lossy(Natural()))
        found["terngrad"] = Uplink(Update(), Lossy(TernGrad()))
        found["powersgd"] = Uplink(Update(), Feedback(), WarmStart(2), Lossy(LowRank(2)))
    return found


def build(mix: Mix, rate: float = 1.0) -> Averaging:
    """The method of these parts; ``ValueError`` if they do not fit."""
    parts = {k: choices(k)[name] for k, name in zip(KINDS, mix, strict=True)}
    parts["optimizer"] = replace(parts["optimizer"], lr=rate * parts["optimizer"].lr)
    return methods()["fedavg"].but(**parts)


def mixes(count: int, seed: int = 0) -> list[Mix]:
    """So many mixes that can be built: methods, single-part swaps, and others drawn at random."""
    names = {kind: {part: name for name, part in distinct(kind)} for kind in KINDS}
    known = [tuple(names[k][getattr(m, k)] for k in KINDS) for m in methods().values()]
    fedavg = known[list(methods()).index("fedavg")]

    def wanted() -> Iterator[Mix]:
        yield from known
        uplink = KINDS.index("uplink")
        yield from ((*fedavg[:uplink], up, *fedavg[uplink + 1 :]) for up in choices("uplink"))
        for own, i in itertools.product(known, range(len(KINDS))):
            yield (*fedavg[:i], own[i], *fedavg[i + 1 :])
            yield (*own[:i], fedavg[i], *own[i + 1 :])
        dice = random.Random(seed)
        while True:
            yield tuple(dice.choice(list(choices(kind))) for kind in KINDS)

    found: dict[Mix, None] = {}
    for mix in itertools.islice(wanted(), 1000 * count):
        if mix not in found:
            try:
                build(mix)
            except ValueError:
                continue
            found[mix] = None
        if len(found) == count:
            break
    return list(found)


def trained(where: tuple) -> tuple:
    """One run -> its row. A mix that this task cannot have, or that diverges, has accuracy None."""
    import torch

    from ..round import run
    from ..tasks import classification

    torch.set_num_threads(1)
    *mix, split, rate, seed = where
    task = classification("digits", CLIENTS, split, seed=seed)
    how: dict[str, Any] = {"engine": "stacked", "batch_size": 16, "threads": 1}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            how |= {"evaluate_every": ROUNDS, "progress": False}
            history = run(build(tuple(mix), rate), task, ROUNDS, **how)
    except (ValueError, Diverged, WireError):
        return (*where, None, None, None)
    up, down = (round(float(b.sum()) / CLIENTS) for b in (history.bytes_up, history.bytes_down))
    return (*where, round(history.final["accuracy"], 4), up, down)


def mixtures(rows: Sequence[Row] | None = None) -> "pandas.DataFrame":
    """The grid, a row a mix and split, each at the learning rate that was best with seed 0.

    The six parts; ``method`` if the mix is one; ``rate``, and ``rates``, how many of them trained;
    ``accuracy`` with seed 0, and ``slower``, the same with the rate ``SLOWER``, if that was tried;
    ``up``, ``down`` and their sum ``bytes`` of one client in all rounds; ``again`` and ``spread``,
    mean and standard deviation of the accuracy with the other seeds, and ``seeds``, how many these
    are. A mix that trained at no rate has no row.
    """
    import pandas

    rows = stored("mixes")[0] if rows is None else rows
    if not rows:
        raise ValueError("There is no grid 'mixes' yet; python -m fedlearn.book.mixes")
    named = methods_by_mix()
    best: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        mix = tuple(row[k] for k in KINDS)
        if row["seed"] or row["accuracy"] is None or row["rate"] not in RATES:
            continue
        last = best.get((row["split"], *mix), {"rates": 0, "accuracy": -1.0})
        better = row if row["accuracy"] > last["accuracy"] else last
        own = {k: better[k] for k in ("rate", "accuracy", "up", "down")}
        of = {"split": row["split"], "method": named.get(mix, "")}
        best[row["split"], *mix] = {**dict(zip(KINDS, mix, strict=True)), **of, **own}
        best[row["split"], *mix] |= {"bytes": own["up"] + own["down"], "rates": last["rates"] + 1}
        best[row["split"], *mix]["slower"] = None
    found: dict[tuple, list[float]] = {where: [] for where in best}
    for row in rows:
        where = (row["split"], *(row[k] for k in KINDS))
        if row["seed"] and row["accuracy"] is not None and row["rate"] == best[where]["rate"]:
            found[where].append(row["accuracy"])
        if row["rate"] == SLOWER:
            best[where]["slower"] = row["accuracy"]
    for where, its in found.items():
        several = pandas.Series(its, dtype=float)
        best[where] |= {"again": several.mean(), "spread": several.std(), "seeds": len(its)}
    return pandas.DataFrame(list(best.values()))


def origins() -> dict[str, Mix]:
    """The methods as mixes: a part is named by the first method that has it."""
    names = {kind: {part: name for name, part in distinct(kind)} for kind in KINDS}
    return {
        name: tuple(names[kind][getattr(method, kind)] for kind in KINDS)
        for name, method in methods().items()
    }


@cache
def methods_by_mix() -> dict[Mix, str]:
    """The inverse of ``origins``; of methods that are the same mix the first."""
    return {mix: name for name, mix in reversed(list(origins().items()))}


def pareto(table: "pandas.DataFrame", cost: str = "bytes") -> "pandas.DataFrame":
    """The rows that no other row beats, cheapest first: more accurate than all that cost as much or
    less. Of several that are equal in both the first one stands for all."""
    ordered = table.sort_values([cost, "accuracy"], ascending=[True, False], kind="stable")
    before = ordered["accuracy"].cummax().shift(fill_value=-1.0)
    return ordered[ordered["accuracy"] > before]


def again(rows: list[Row]) -> Iterator[tuple]:
    """With the other seeds, at the rate that was their best: of each split the most accurate mixes,
    those on the front, and the methods."""
    import pandas

    every = mixtures(rows)
    for split in SPLITS:
        own = every[every["split"] == split]
        best = own.sort_values("accuracy", ascending=False, kind="stable").head(BEST)
        chosen = pandas.concat([best, pareto(own), own[own["method"] != ""]])
        for _, row in chosen.drop_duplicates(list(KINDS)).iterrows():
            yield from ((*row[list(KINDS)], split, row["rate"], seed) for seed in range(1, SEEDS))


def slower(rows: list[Row]) -> Iterator[tuple]:
    """With a tenth of the smallest rate: FedAvg, FedAvg with Adam, and what is ``POOR`` where
    clients differ, but for FedPM's network, which learns nothing without FedPM's uplink."""
    split = SPLITS[-1]
    of = mixtures(rows).query("split == @split and model != 'fedpm' and accuracy < @POOR")
    plain = ("fedavg",) * len(KINDS)
    adam = tuple("fedpm" if kind == "optimizer" else "fedavg" for kind in KINDS)
    poor = of[list(KINDS)].itertuples(index=False, name=None)
    yield from ((*mix, split, SLOWER, 0) for mix in dict.fromkeys([plain, adam, *poor]))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=500, help="mixes")
    args = parser.parse_args()

    def first(_: list[Row]) -> list[tuple]:
        every = itertools.product(mixes(args.count), RATES, SPLITS)
        return [(*mix, split, rate, 0) for mix, rate, split in every]

    about = {"rounds": ROUNDS, "clients": CLIENTS}
    fill("mixes", len(RUN), COLUMNS, trained, (first, again, slower), args, **about)


if __name__ == "__main__":
    main()
