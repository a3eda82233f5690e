"""What runs take: hours (as measured, or estimated from multiply-adds), memory and disk."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch

from . import models
from .data import published
from .data.published import known as known_of
from .errors import DataError
from .history import History
from .methods.fed_repopt_search import Search
from .models.cnn import Shape
from .recipes import KINDS, SPEEDS, Run, taken

PYTORCH = 6e8  # bytes that the program takes before it has any data
LAYERS = 6  # layers' outputs, as large as the largest, that are in memory at once without training
STEP = 0.01  # seconds of a GPU's step at least, however small: a guess, as is its speed
Get = Callable[[Run], History | None]  # the stored run, if there is one


class Counted(NamedTuple):
    """Of a network for one image: multiply-adds, of them the extractor's, bytes of its state, bytes
    of what all its layers give and of what the largest gives, and the shape of what the extractor
    gives, if that is one map."""

    forward: int
    extractor: int
    state: int
    outputs: int
    largest: int
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
    sizes = [4 * math.prod(y) for m, y in given.items() if not list(m.children())]
    maps = tuple(given.get(part, ()))
    return Counted(forward, extractor, state, sum(sizes), max(sizes), maps)


def pictures(task: str, dataset: str) -> int:
    """How many pictures are read: of a set that can be here in part, those that are."""
    known, there = known_of(task, dataset), None
    if task != "classification":
        with suppress(DataError):  # a damaged copy is said where it is read
            there = published.there(task, dataset)
    return sum(there or (known.train, known.test))


class Costs:
    """Of one run: multiply-adds (``work``), steps of training, bytes of memory, bytes on the disk
    while it runs."""

    def __init__(self, run: Run) -> None:
        e, (train, test) = run.experiment, run.images
        known = known_of(e.task, e.dataset)
        clients = int(e.clients)
        its, parts = run.options(), str(run.method().parts())
        network = its.get("network") or str(e.network)
        one = counted(network, known.shape, known.classes)
        # a training step is three passes: forward, and backward to inputs and to weights
        step, look, state, outputs, maps = 3 * one.forward, one.forward, one.state, one.outputs, 0
        largest, server_steps = one.largest, 0
        views = clients if e.partition == "permuted" else 1
        if "edge" in its:  # two networks, one behind the other's extractor
            network = f"{its['edge']}, {its['server']}"
            edge = counted(its["edge"], known.shape, known.classes)
            server = counted(its["server"], edge.maps, known.classes)
            state, outputs = edge.state + server.state, edge.outputs + server.outputs
            largest = max(edge.largest, server.largest)
            look = edge.extractor + server.forward
            step = 3 * look
        if e.method == "fed_gkt":
            server_steps, views = its["server_epochs"], clients
            step = 4 * edge.forward + 3 * server_steps * server.forward
            maps = 4 * math.prod(edge.maps) * train
        elif e.method in ("fedmmd", "fedfusion"):
            step += one.forward  # of the global stream
        self.kind = network, e.batch_size, e.device.split(":")[0]  # runs of it are equally fast
        looks = math.ceil(e.rounds / e.evaluate_every) * views * test
        self.work = e.rounds * e.participation * e.epochs * train * step + looks * look
        batches = math.ceil(train / clients / e.batch_size)
        self.steps = e.rounds * e.drawn(clients) * (e.epochs + server_steps) * batches
        looked_at = inspect.signature(KINDS[e.task].evaluate).parameters["batch"].default
        copies = 6 + 2 * clients * e.participation
        # a step of training keeps what all layers give, in two streams at most
        most = max(2 * e.batch_size * outputs, looked_at * LAYERS * largest)
        self._of, self._image = (e.task, e.dataset), math.prod(known.shape)
        self._held = PYTORCH + 3 * maps + most + copies * state
        keeps = any(name in parts for name in ("Feedback", "Momentum", "Remember", "Continued"))
        self.file = 500 * e.rounds  # of it the file that stays
        self.disk = self.file + (2 + 2 * clients * keeps) * state + maps

    @cached_property
    def memory(self) -> float:
        """Bytes; images are there twice while they are read."""
        return self._held + 2 * self._image * pictures(*self._of)


class Estimate:
    """Seconds of runs that are not stored, from those that are of the same network and batch size;
    from ``SPEEDS`` where there is none, and on a GPU at least ``STEP`` for each step. ``searched``:
    the seconds in which a run's scales were found, ``None`` if they are not."""

    def __init__(
        self,
        get: Get,
        runs: Iterable[Run],
        searched: Callable[[Run], float | None] = lambda run: None,
    ) -> None:
        self.get, self.searched = get, searched
        self.measured: dict[tuple, tuple[float, float]] = {}  # seconds and multiply-adds
        for run in [r for main in runs for r in (*main.tries, main)]:
            history = get(run)
            if history is not None:
                costs = Costs(run)
                ran_on = str(history.meta.get("device") or costs.kind[2]).split(" ")[0]
                kind = (*costs.kind[:2], ran_on)
                took, work = self.measured.get(kind, (0.0, 0.0))
                self.measured[kind] = took + seconds(history), work + costs.work

    def of(self, run: Run) -> tuple[float, str]:
        """Seconds, and where they are from: "measured" on runs of its kind, "estimated" from the
        speed of a CPU's core, or "guessed" of a GPU."""
        costs = Costs(run)
        return self._seconds(costs.kind, costs.work, costs.steps)

    def search(self, run: Run) -> float:
        """Seconds of its search for scales."""
        e, spec = run.experiment, run.search or {}
        known, network = known_of("classification", spec["dataset"]), e.options["network"]
        images, rounds = spec.get("train") or known.train, spec.get("rounds", Search.rounds)
        work = 3 * counted(network, known.shape, known.classes).forward * images * rounds
        batch_size = spec.get("batch_size", Search.batch_size)
        kind = network, batch_size, e.device.split(":")[0]
        return self._seconds(kind, work, rounds * math.ceil(images / batch_size))[0]

    def needed(self, run: Run, counted_before: set[Any]) -> float:
        """Hours to go until the run is stored, its short runs and its search included, but nothing
        that is in ``counted_before``, where they are put."""
        if self.get(run) is not None:
            return 0.0
        takes: dict[Any, float] = {}
        for r in (*run.tries, run):
            if self.get(r) is None and r not in counted_before:
                takes[r] = self.of(r)[0]
        if run.search and run.searched not in counted_before and self.searched(run) is None:
            takes[run.searched] = self.search(run)
        counted_before.update(takes)
        return sum(takes.values()) / 3600

    def _seconds(self, kind: tuple[str, int, str], work: float, steps: int) -> tuple[float, str]:
        if kind in self.measured:
            took, of = self.measured[kind]
            return work * took / of, "measured"
        network, _, device = kind
        if device in SPEEDS:  # a GPU's
            return max(work / SPEEDS[device] / 1e9, steps * STEP), "guessed"
        return work / SPEEDS.get(network, SPEEDS["other"]) / 1e9, "estimated"


def seconds(history: History) -> float:
    """What a stored run took."""
    return taken(history.meta.get("provenance", {})) or float(history.seconds.sum())


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
        spent = sum(seconds(h) for r in own if (h := get(r)) is not None)
        if run.search and (file := ("", run.searched)) not in counted_before:
            counted_before.add(file)  # and rows their search
            spent += estimate.searched(run) or 0.0
        found.append(
            {
                "run": run,
                "stored": there,
                "tries": len(own) - 1,
                "spent": spent / 3600,
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


def fitting(runs: list[Run], estimate: Estimate, hours: float | None) -> list[Run]:
    """Of runs that are to be done, most valuable first, those for which ``hours`` are enough, with
    all that each needs, in the order in which they are to be begun: whole comparisons
    (``Run.groups``), and then single runs in what time these leave."""
    left, begun, found = time_there_is(hours), set[Any](), dict[Run, None]()
    if left is None:
        return list(runs)
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        for group in run.groups:
            groups.setdefault(group, []).append(run)
    whole = [groups[group] for group in sorted(groups, key=lambda group: group[0])]  # its turn
    for several in (*whole, *([run] for run in runs)):
        also = set(begun)
        needed = sum(estimate.needed(run, also) for run in several if run not in found)
        if needed <= left:
            left, begun = left - needed, also
            found |= dict.fromkeys(several)
    return list(found)


def plan(
    runs: list[Run], estimate: Estimate, states: Mapping[Run, str], hours: float | None = None
) -> str:
    """A line a run, most valuable first: state, hours, memory, disk; the short runs that tune it,
    and its search, are part of it. Then the sums; with ``hours``, what fits of the runs that
    have no state of their own in ``states``."""
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
            f"{row['memory'] / 1e9:>11.1f}{row['disk'] / 1e6:>9.1f}  {run.where}"
            + (f" and {row['tries']} tries" if row["tries"] else "")
        )
    if any(row["from"] == "guessed" for row in listed):
        lines.append(
            "Guessed: no run of that network is measured on a GPU, and these hours may be several "
            "times too few or too many."
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
