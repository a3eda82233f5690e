"""FedGKT with a server that begins to train as soon as the first client has answered,
beside one that waits for all; and the processor time of two of the paper's networks.

    python data/fed_gkt/early.py     (some eight minutes -> data/fed_gkt/early.json)

Arrivals are simulated. A client needs ``n_k * client_seconds / speed_k`` for a round.
The speeds are drawn once a run, between 1 and ``SPREAD``, uniformly in their
logarithm. A pass of the server over an image takes ``server_seconds``. The server
makes ``PASSES`` passes over each client's maps. An epoch that begins at some moment
passes over the clients that have arrived by then and have passes left. If there is
none, the server waits for the next client. It answers all clients when its last epoch
is over, and then the next round begins.

So both servers make the same number of steps, in another order. A *load* is the time of
all passes over the time of the slowest client.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl
from fedlearn.book.grids import keep
from fedlearn.core import Tensors
from fedlearn.data import data_path
from fedlearn.methods.fed_gkt import GroupTransfer, Server

SEEDS = range(10)
SPLITS = "iid", "dirichlet:0.5"
CLIENTS, ROUNDS, BATCH, PASSES = 10, 6, 32, 4
SPREAD = 10.0  # the fastest client has at most so many times the speed of the slowest
LOADS = 0.1, 1.0  # trained at; durations are counted at more of them
MORE_LOADS = 0.01, 0.1, 0.3, 1.0, 3.0, 10.0
REPEATS, IMAGES = 9, 64  # of the two networks, and images of a batch


@dataclass(frozen=True)
class Clock:
    """When clients arrive in a round, and how fast the server is."""

    arrivals: tuple[float, ...] = ()
    server_seconds: float = 0.0  # of one image in one pass
    wait: bool = True  # for all clients

    def epochs(
        self, sizes: Sequence[int], passes: int
    ) -> tuple[list[list[int]], float]:
        """The clients of each epoch of the server, and the end of the last epoch."""
        left = dict.fromkeys(range(len(sizes)), passes)
        now = max(self.arrivals) if self.wait else min(self.arrivals)
        epochs = []
        while left:
            present = [k for k in left if self.arrivals[k] <= now]
            if not present:
                now = min(self.arrivals[k] for k in left)
                continue
            epochs.append(present)
            for k in present:
                now += self.server_seconds * sizes[k]
                left[k] -= 1
            left = {k: count for k, count in left.items() if count}
        return epochs, now


def clock(
    task: fl.tasks.Task, load: float, wait: bool, client_seconds: float = 1.0
) -> Clock:
    """The clock of a task, whose seed gives the speeds of its clients."""
    draw = fl.rng.numpy_generator(task.seed, "speeds").random(task.clients)
    arrivals = [
        n * client_seconds / SPREAD**u for n, u in zip(task.sizes, draw, strict=True)
    ]
    server_seconds = load * max(arrivals) / (PASSES * sum(task.sizes))
    return Clock(tuple(arrivals), server_seconds, wait)


class EarlyServer(Server):
    """Trains epoch after epoch on the clients that have arrived."""

    def train(self, t: int, clients: list[int], memory: Tensors) -> None:
        sizes = self.task.sizes
        epochs, _ = self.method.clock.epochs(sizes, self.method.passes)
        for e, present in enumerate(epochs):
            # each epoch shuffles anew: the number of the round names the shuffle
            super().train(1000 * t + e, present, memory)


@dataclass(frozen=True)
class EarlyTransfer(GroupTransfer):
    """FedGKT with a clock."""

    passes: int = PASSES  # over each client's maps; ``server_epochs`` is 1
    clock: Clock = Clock()

    server_class = EarlyServer


def digits(split: str, seed: int) -> fl.tasks.Task:
    """The task of a run."""
    its = {"clients": CLIENTS, "partition": split, "seed": seed}
    return fl.tasks.classification("digits", network="digits_resnet", **its)


def accuracy(task: fl.tasks.Task, its: Clock) -> float:
    """The mean over the last quarter of the rounds."""
    own = {"name": "fed_gkt_early", "server_epochs": 1, "clock": its}
    method = EarlyTransfer(**vars(fl.methods.fed_gkt()) | own)
    how = {"batch_size": BATCH, "engine": "stacked", "progress": False}
    return fl.run(method, task, ROUNDS, **how).late_accuracy()


def trained() -> dict[str, list]:
    """A row for each split, seed and load: accuracies with a server that waits and with
    one that begins early, and ``duration``."""
    names = "split", "seed", "load", "waits", "early", "time"
    rows = []
    for split in SPLITS:
        for seed in SEEDS:
            task = digits(split, seed)
            waited = round(accuracy(task, clock(task, 1.0, wait=True)), 4)
            for load in LOADS:
                early = round(accuracy(task, clock(task, load, wait=False)), 4)
                rows.append((split, seed, load, waited, early, duration(task, load)))
                print(*rows[-1], flush=True)
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def duration(task: fl.tasks.Task, load: float) -> float:
    """The duration of a round with an early server, over that with one that waits."""
    ends = [
        clock(task, load, wait).epochs(task.sizes, PASSES)[1] for wait in (False, True)
    ]
    return round(ends[0] / ends[1], 4)


def durations() -> dict[str, dict[str, float]]:
    """``duration`` by split and load, mean over the seeds; without training."""
    table: dict[str, dict[str, float]] = {}
    for split in SPLITS:
        tasks = [digits(split, seed) for seed in SEEDS]
        table[split] = {
            str(a): round(statistics.mean(duration(task, a) for task in tasks), 3)
            for a in MORE_LOADS
        }
    return table


def step_seconds(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Processor seconds of a forward and a backward pass."""
    began = time.process_time()
    F.cross_entropy(net(x), y).backward()
    return time.process_time() - began


def networks() -> dict[str, float]:
    """ResNet-8 over ResNet-110: median and range of ``REPEATS`` interleaved ratios."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(IMAGES, 3, 32, 32, generator=draw)
    y = torch.randint(10, (IMAGES,), generator=draw)
    small, large = (fl.models.NETWORKS[name]() for name in ("resnet8", "resnet110"))
    ratios = []
    for _ in range(REPEATS + 1):
        ratios.append(step_seconds(small, x, y) / step_seconds(large, x, y))
    ratios = ratios[1:]  # the first pair warms up
    its = {"median": statistics.median(ratios), "low": min(ratios)}
    return {name: round(r, 4) for name, r in (its | {"high": max(ratios)}).items()}


def main() -> None:
    torch.set_num_threads(1)
    facts = {"networks": networks(), "durations": durations()}
    print(facts, flush=True)
    keep(
        data_path("fed_gkt", "early.json"),
        trained(),
        "python data/fed_gkt/early.py",
        seeds=list(SEEDS),
        **facts,
    )


if __name__ == "__main__":
    main()
