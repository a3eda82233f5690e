"""What runs take: hours (as measured, or estimated from multiply-adds), memory and disk."""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch

from . import models
from .data.sources import SETS
from .history import History
from .models.cnn import Shape
from .recipes import Run, make
from .tasks.classification import NETWORK

SPEED = {"cpu": 4.5e10, "cuda": 3e12}  # multiply-adds a second, where nothing is measured
PYTORCH = 4e8  # bytes that the program takes before it has any data


@lru_cache
def _network(name: str, shape: Shape, classes: int) -> tuple[int, int, int]:
    """Of a network for one image: multiply-adds, bytes of its state, and of all that its layers
    give."""
    net, numbers = models.NETWORKS[name](shape, classes), 0

    def note(layer: Any, inputs: Any, output: torch.Tensor) -> None:
        nonlocal numbers
        numbers += output.numel()

    for module in net.modules():
        if not list(module.children()):
            module.register_forward_hook(note)
    count = models.multiply_adds(net, shape)
    return count, sum(t.nbytes for t in models.state_of(net).values()), 4 * numbers


@lru_cache
def _edge(name: str, shape: Shape, classes: int) -> tuple[int, Shape]:
    """Of the extractor of an edge network: multiply-adds of one image, and the shape that it
    gives."""
    extractor = models.NETWORKS[name](shape, classes).extractor
    with torch.no_grad():
        channels, height, width = extractor.eval()(torch.zeros(1, *shape)).shape[1:]
    return models.multiply_adds(extractor, shape), (channels, height, width)


class Costs:
    """Of one run."""

    def __init__(self, run: Run) -> None:
        data, row = run.data, run.shared | run.row
        parts = make({k: v for k, v in run.row.items() if k != "scales"}, run.shared).parts()
        dataset, method = data.get("dataset", "digits"), row["method"]
        known = SETS[dataset]
        shape, classes = known.shape, known.classes
        self.clients = data.get("clients", 10)
        self.train, self.test = data["train"] or known.train, data["test"] or known.test
        self.network = row.get("network") or data.get("network") or NETWORK.get(dataset)
        self.network, self.method = self.network or "cifar_cnn", method
        self.rounds, self.settings = run.how["rounds"], run.settings
        forward, self.state, outputs = _network(self.network, shape, classes)
        step, look, views, self.maps = 3.0 * forward, float(forward), 1, 0
        if method in ("fed_gkt", "split_learning"):
            edge, server = row.get("edge", "digits_edge"), row.get("server", "digits_server")
            self.network = f"{edge}, {server}"
            whole, state, outputs = _network(edge, shape, classes)
            extractor, maps = _edge(edge, shape, classes)
            above, more, others = _network(server, maps, classes)
            self.state, outputs, look = state + more, outputs + others, extractor + above
            step = 3.0 * look
            if method == "fed_gkt":
                step = 3 * whole + (whole + 3 * row.get("server_epochs", 4) * above)
                self.maps, views = 4 * math.prod(maps) * self.train, self.clients
        elif method in ("fedmmd", "fedfusion"):
            step += forward  # of the global stream
        if data["partition"] == "permuted":
            views = self.clients
        looks = math.ceil(self.rounds / self.settings["evaluate_every"])
        passes = self.rounds * self.settings["participation"] * self.settings["epochs"] * self.train
        self.work = passes * step + looks * views * self.test * look
        batch = max(self.settings["batch_size"] * 3, 512)
        images = math.prod(shape) * (known.train + known.test) * 2
        self.memory = PYTORCH + images + 3 * self.maps + batch * outputs
        self.memory += (6 + 2 * self.clients * self.settings["participation"]) * self.state
        keeps = any(name in str(parts) for name in ("Feedback", "Momentum", "Remember"))
        clients = 2 * self.clients if keeps else 0  # what clients keep is in the checkpoint
        self.disk = 500 * self.rounds + (2 + clients) * self.state + self.maps


class Estimate:
    """Seconds of runs that are not stored, from those that are: of the same method and network
    best, of the same network else; from ``SPEED`` where there is none."""

    def __init__(self, get: Callable[[Run], History | None], runs: Iterable[Run]) -> None:
        self.measured: dict[tuple, tuple[float, float]] = {}  # seconds and multiply-adds
        for run in [r for main in runs for r in (*main.tries, main)]:
            history = get(run)
            if history is None:
                continue
            for key in self._keys(run, costs := Costs(run)):
                took, work = self.measured.get(key, (0.0, 0.0))
                self.measured[key] = took + seconds(history), work + costs.work

    @staticmethod
    def _keys(run: Run, costs: Costs) -> list[tuple]:
        where = run.data["device"].split(":")[0]
        batch = costs.settings["batch_size"]
        return [(costs.network, costs.method, batch, where), (costs.network, batch, where)]

    def of(self, run: Run) -> tuple[float, str]:
        """Seconds, and where they are from: "measured" on runs of its kind, or "estimated"."""
        costs = Costs(run)
        for key in self._keys(run, costs):
            if key in self.measured:
                took, work = self.measured[key]
                return costs.work * took / work, "measured"
        return costs.work / SPEED[run.data["device"].split(":")[0]], "estimated"

    def seconds(self, run: Run) -> float:
        """Only the seconds."""
        return self.of(run)[0]


def seconds(history: History) -> float:
    """What a stored run took."""
    stated = history.meta.get("provenance", {}).get("seconds")
    return float(stated) if stated else float(history.seconds.sum())


def plan(
    runs: list[Run],
    get: Callable[[Run], History | None],
    busy: Callable[[Run], bool],
    hours: float | None = None,
) -> str:
    """A line a run, in the order in which they are done: state, hours, memory, disk; the short runs
    that it is tuned with are part of it. Then the sums; with ``hours``, what fits."""
    estimate, left = Estimate(get, runs), hours
    lines = ["state      hours  from        GB memory  MB disk  run"]
    done = todo = disk = memory = 0.0
    counted: set[tuple[str, str]] = set()
    for run in runs:
        history = get(run)
        own = [r for r in (*run.tries, run) if (r.folder, r.name) not in counted]
        counted |= {(r.folder, r.name) for r in own}  # seeds share their tries
        spent = sum(seconds(h) for r in own if (h := get(r))) / 3600
        needed = sum(estimate.seconds(r) for r in own if not get(r)) / 3600
        done, costs = done + spent, Costs(run)
        if history is not None:
            state, shown, origin = "stored", spent, "measured"
        else:
            state, shown, origin = "to do", needed, estimate.of(run)[1]
            todo, memory = todo + needed, max(memory, costs.memory)
            disk += 500 * costs.rounds
            if busy(run):
                state = "running"
            elif left is not None:
                state, left = ("fits", left - needed) if needed <= left else ("no time", left)
        size = costs.disk / 1e6 if history is None else 0.0005 * costs.rounds
        tries = len(own) - 1
        name = f"{run.folder}/{run.name}" + (f" and {tries} tries" if tries else "")
        lines.append(
            f"{state:<9}{shown:>7.2f}  {origin:<10}{costs.memory / 1e9:>11.1f}{size:>9.1f}  {name}"
        )
    open_runs = sum(get(run) is None for run in runs)
    lines.append(
        f"{len(runs)} runs, {len(runs) - open_runs} stored ({done:.1f} hours), {open_runs} to do: "
        f"{todo:.1f} hours of one process, up to {memory / 1e9:.1f} GB of memory, "
        f"{disk / 1e6:.0f} MB of results and, while they run, their checkpoints."
    )
    return "\n".join(lines)
