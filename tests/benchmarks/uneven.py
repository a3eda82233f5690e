"""How far are uneven clients, stacked, from what their sizes alone allow?

    python tests/benchmarks/speed.py uneven        (or this file, which only prints)

There are at least as many steps as the largest client has batches, and each trains the clients that
still have one, on as many rows as these have. Such steps are timed with even clients, messages left
out; their sum, by the bare loop's time, is the bound. CPU seconds of this process, medians."""

import time
from statistics import median

import torch
from speed import BATCH, bare, ours, random_task

import fedlearn as fl
from fedlearn import local, stacked
from fedlearn.models import state_of
from fedlearn.parts import Context

NETWORK = ("digits_cnn", (1, 8, 8))


def cpu(function, repeats):
    """Median CPU seconds of a call; the first only warms up."""
    found = []
    for _ in range(repeats + 1):
        began = time.process_time()
        function()
        found.append(time.process_time() - began)
    return median(found[1:])


def step(clients, rows, repeats):
    """One stacked step of even clients."""
    task, method = random_task(*NETWORK, clients, rows), fl.methods.fedavg()
    net = fl.initial_network(method, task)
    both = stacked.stack(net, clients)
    start = {name: t.clone() for name, t in state_of(both).items()}
    ctx = Context(task, 1, list(range(clients)), start, start, [{} for _ in start], net=net)
    settings = [fl.Settings(epochs=epochs, batch_size=BATCH) for epochs in (1, 6)]
    few, many = (cpu(lambda s=s: stacked.train(both, method, ctx, s), repeats) for s in settings)
    return (many - few) / 5  # without what comes before the first step


def bounds(repeats=7, cases=((10, 134), (100, 13))):
    """A row for each number of clients: what their sizes allow, and what stacked training takes."""
    found = []
    for clients, samples in cases:
        task = random_task(*NETWORK, clients, samples, partition="dirichlet:0.5")
        left = [
            [min(BATCH, n - at) for n in task.sizes if n > at]
            for at in range(0, max(task.sizes), BATCH)
        ]
        rows = [(len(its), -(-sum(its) // len(its))) for its in left]
        with torch.random.fork_rng():
            bound = sum(step(*row, repeats) for row in rows)
            base, stacked = cpu(bare(task), repeats), cpu(ours(task, "stacked"), repeats)
        row = {"clients": clients, "smallest": min(task.sizes), "largest": max(task.sizes)}
        found.append(row | {"bound": bound / base, "stacked": stacked / base})
        print(
            f"{clients} clients of {min(task.sizes)} to {max(task.sizes)} samples, "
            f"{[n for n, _ in rows]} left in each step: the sizes allow {bound / base:.2f} "
            f"of the bare loop, stacked takes {stacked / base:.2f}, messages included",
            flush=True,
        )
    return found


if __name__ == "__main__":
    with local.threads(1):
        bounds()
