"""What runs take: hours (as measured, or estimated from multiply-adds), memory and disk."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from . import models
from .data.published import known as known_of
from .history import History
from .methods.fed_repopt_search import Search
from .models.cnn import Shape
from .recipes import SPEEDS, Run

PYTORCH = 4e8  # bytes that the program takes before it has any data
Get = Callable[[Run], History | None]  # the stored run, if there is one


class Counted(NamedTuple):
    """Of a network for one image: multiply-adds, of them the extractor's, bytes of its state, bytes
    of what all its layers give, and the shape of what the extractor gives, if that is one map."""

    forward: int
    extractor: int
    state: int
    outputs: int
    maps: Shape


@lru_cache
def counted(name: str, shape: Shape, classes: int) -> Counted:
    """The network of that name for images of ``shape``."""
    every = {**models.NETWORKS, **models.DETECTORS, **models.SEGMENTERS}
    with torch.device("meta"):  # shapes without memory and without work
        net: Any = every[name](shape, classes)
    part = getattr(net, "extractor", net)
    extractor = models.multiply_adds(part, shape)
    given: dict[Any, torch.Size] = {}

    def note(module: Any, x: Any, y: Any) -> None:
        if torch.is_tensor(y):
            given[module] = y.shape[1:]

    for module in net.modules():
        module.register_forward_hook(note)
    forward = models.multiply_adds(net, shape)
    state = sum(t.nbytes for t in models.state_of(net).values())
    numbers = sum(math.prod(y) for m, y in given.items() if not list(m.children()))
    return Counted(forward, extractor, state, 4 * numbers, tuple(given.get(part, ())))


class Costs:
    """Of one run: multiply-adds (``work``), bytes of memory, bytes on the disk while it runs."""

    def __init__(self, run: Run) -> None:
        e, (train, test) = run.experiment, run.images
        known = known_of(e.task, e.dataset)
        clients = int(e.clients)
        its, parts = run.options(), str(run.method().parts())
        network = its.get("network") or str(e.network)
        one = counted(network, known.shape, known.classes)
        # a training step is three passes: forward, and backward to inputs and to weights
        step, look, state, outputs, maps = 3 * one.forward, one.forward, one.state, one.outputs, 0
        views = clients if e.partition == "permuted" else 1
        if "edge" in its:  # two networks, one behind the other's extractor
            network = f"{its['edge']}, {its['server']}"
            edge = counted(its["edge"], known.shape, known.classes)
            server = counted(its["server"], edge.maps, known.classes)
            state, outputs = edge.state + server.state, edge.outputs + server.outputs
            look = edge.extractor + server.forward
            step = 3 * look
        if e.method == "fed_gkt":
            step = 4 * edge.forward + 3 * its["server_epochs"] * server.forward
            maps, views = 4 * math.prod(edge.maps) * train, clients
        elif e.method in ("fedmmd", "fedfusion"):
            step += one.forward  # of the global stream
        self.kind = network, e.batch_size, e.device.split(":")[0]  # runs of it are equally fast
        looks = math.ceil(e.rounds / e.evaluate_every) * views * test
        self.work = e.rounds * e.participation * e.epochs * train * step + looks * look
        images = math.prod(known.shape) * (known.train + known.test) * 2
        batch = max(3 * e.batch_size, 512)
        copies = 6 + 2 * clients * e.participation
        self.memory = PYTORCH + images + 3 * maps + batch * outputs + copies * state
        keeps = any(name in parts for name in ("Feedback", "Momentum", "Remember", "Continued"))
        self.file = 500 * e.rounds  # of it the file that stays
        self.disk = self.file + (2 + 2 * clients * keeps) * state + maps


class Estimate:
    """Seconds of runs that are not stored, from those that are of the same network and batch size;
    from ``SPEEDS`` where there is none. ``searched``: whether the scales of such a file are
    found."""

    def __init__(
        self, get: Get, runs: Iterable[Run], searched: Callable[[str], bool] = lambda name: False
    ) -> None:
        self.get, self.searched = get, searched
        self.measured: dict[tuple, tuple[float, float]] = {}  # seconds and multiply-adds
        for run in [r for main in runs for r in (*main.tries, main)]:
            history = get(run)
            if history is not None:
                costs = Costs(run)
                took, work = self.measured.get(costs.kind, (0.0, 0.0))
                self.measured[costs.kind] = took + seconds(history), work + costs.work

    def of(self, run: Run) -> tuple[float, str]:
        """Seconds, and where they are from: "measured" on runs of its kind, or "estimated"."""
        costs = Costs(run)
        return self._seconds(costs.kind, costs.work)

    def search(self, run: Run) -> float:
        """Seconds of its search for scales."""
        e, spec = run.experiment, run.search or {}
        known, network = known_of("classification", spec["dataset"]), e.options["network"]
        images, rounds = spec.get("train") or known.train, spec.get("rounds", Search.rounds)
        work = 3 * counted(network, known.shape, known.classes).forward * images * rounds
        kind = network, spec.get("batch_size", Search.batch_size), e.device.split(":")[0]
        return self._seconds(kind, work)[0]

    def needed(self, run: Run, counted_before: set[Any]) -> float:
        """Hours to go until the run is stored, its short runs and its search included, but nothing
        that is in ``counted_before``, where they are put."""
        if self.get(run) is not None:
            return 0.0
        takes: dict[Any, float] = {}
        for r in (*run.tries, run):
            if self.get(r) is None and r not in counted_before:
                takes[r] = self.of(r)[0]
        if run.search and run.searched not in counted_before and not self.searched(run.searched):
            takes[run.searched] = self.search(run)
        counted_before.update(takes)
        return sum(takes.values()) / 3600

    def _seconds(self, kind: tuple[str, int, str], work: float) -> tuple[float, str]:
        if kind in self.measured:
            took, of = self.measured[kind]
            return work * took / of, "measured"
        network, _, device = kind
        speed = SPEEDS.get(device) or SPEEDS.get(network, SPEEDS["other"])
        return work / speed / 1e9, "estimated"


def seconds(history: History) -> float:
    """What a stored run took."""
    stated = history.meta.get("provenance", {}).get("seconds")
    return float(stated) if stated else float(history.seconds.sum())


def rows(runs: list[Run], get: Get, estimate: Estimate) -> list[dict[str, Any]]:
    """For each run: whether it is stored, its short runs that are not counted before, hours that
    are spent and needed with them, where the needed are from, bytes of memory and disk."""
    counted_before: set[tuple[str, str]] = set()
    to_go: set[Any] = set()
    found = []
    for run in runs:
        names = {(r.folder, r.name): r for r in (*run.tries, run)}
        own = [r for name, r in names.items() if name not in counted_before]
        counted_before |= names.keys()  # seeds share their tries
        there, costs = get(run) is not None, Costs(run)
        found.append(
            {
                "run": run,
                "stored": there,
                "tries": len(own) - 1,
                "spent": sum(seconds(h) for r in own if (h := get(r)) is not None) / 3600,
                "needed": estimate.needed(run, to_go),
                "from": "measured" if there else estimate.of(run)[1],
                "memory": costs.memory,
                "disk": costs.file if there else costs.disk,
            }
        )
    return found


def time_there_is(hours: float | None) -> float | None:
    """``hours`` themselves, or ``None`` for no limit; ``ValueError`` if they are no length of
    time."""
    if hours is not None and not hours >= 0:
        raise ValueError(f"hours must be at least 0, not {hours:g}.")
    return hours


def fitting(runs: list[Run], estimate: Estimate, hours: float | None) -> set[Run]:
    """Of runs that are to be done, in this order, those for which ``hours`` are enough, with all
    that each needs."""
    left, begun, found = time_there_is(hours), set[Any](), set[Run]()
    for run in runs:
        also = set(begun)
        needed = 0.0 if left is None else estimate.needed(run, also)
        if left is None or needed <= left:
            left, begun = (None if left is None else left - needed), also
            found.add(run)
    return found


def plan(
    runs: list[Run], estimate: Estimate, states: Mapping[Run, str], hours: float | None = None
) -> str:
    """A line a run, in the order in which they are done: state, hours, memory, disk; the short runs
    that it is tuned with, and its search, are part of it. Then the sums; with ``hours``, what fits
    of the runs that have no state of their own in ``states``."""
    get, listed = estimate.get, rows(runs, estimate.get, estimate)
    todo = [run for run in runs if get(run) is None and run not in states]
    fits = fitting(todo, estimate, hours)
    lines = ["state      hours  from        GB memory  MB disk  run"]
    for row in listed:
        run, state = row["run"], "stored"
        if not row["stored"]:
            fit = "to do" if hours is None else "fits" if run in fits else "no time"
            state = states.get(run, fit)
        lines.append(
            f"{state:<9}{row['spent' if row['stored'] else 'needed']:>7.2f}  {row['from']:<10}"
            f"{row['memory'] / 1e9:>11.1f}{row['disk'] / 1e6:>9.1f}  {run.folder}/{run.name}"
            + (f" and {row['tries']} tries" if row["tries"] else "")
        )
    rest = [row for row in listed if not row["stored"]]
    lines.append(
        f"{len(runs)} runs, {len(runs) - len(rest)} stored "
        f"({sum(row['spent'] for row in listed):.1f} hours), {len(rest)} to do: "
        f"{sum(row['needed'] for row in listed):.1f} hours of one process, up to "
        f"{max([row['memory'] for row in rest], default=0) / 1e9:.1f} GB of memory, "
        f"{sum(500 * row['run'].experiment.rounds for row in rest) / 1e6:.0f} MB of results and, "
        "while they run, their checkpoints."
    )
    return "\n".join(lines)
