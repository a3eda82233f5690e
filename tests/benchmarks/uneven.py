"""How far are uneven clients, stacked, from what their sizes alone allow?

    python tests/benchmarks/speed.py uneven

There are at least as many steps as the largest client has batches, and each trains the clients that
still have one, on as many rows as these have. Such steps are timed with even clients, messages left
out; their sum, by the bare loop's time, is the bound. CPU seconds of this process, medians."""

import time
from statistics import median

import torch
from common import BATCH, random_task

import fedlearn as fl
from fedlearn import stacked
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


def uneven(args):
    """A row for each number of clients: what their sizes allow, and what stacked training takes."""
    from speed import bare, ours  # which imports this file

    rows, repeats = [], args.repeats
    for clients, samples in ((10, 134),) if args.quick else ((10, 134), (100, 13)):
        task = random_task(*NETWORK, clients, samples, partition="dirichlet:0.5")
        largest = max(task.sizes)
        left = [
            [min(BATCH, n - at) for n in task.sizes if n > at] for at in range(0, largest, BATCH)
        ]
        with torch.random.fork_rng():
            bound = sum(step(len(its), -(-sum(its) // len(its)), repeats) for its in left)
            base, stacked = cpu(bare(task), repeats), cpu(ours(task, "stacked"), repeats)
        row = {"clients": clients, "smallest": min(task.sizes), "largest": largest}
        rows.append(row | {"bound": bound / base, "stacked": stacked / base})
        print(rows[-1], flush=True)
    return rows
