"""How far are uneven clients, stacked, from what their sizes alone allow?

    python tests/benchmarks/uneven.py

There are at least as many steps as the largest client has batches, and each trains the clients that
still have one, on as many rows as these have. Such steps are timed with even clients, messages left
out; their sum, by the bare loop's time, is the bound. CPU seconds of this process, medians."""

import time
from statistics import median

import torch
from speed import BATCH, bare, ours, random_task

import fedlearn as fl
from fedlearn import training
from fedlearn.engines import layers
from fedlearn.models import state_of
from fedlearn.parts import Context

NETWORK = ("digits_cnn", (1, 8, 8))


def cpu(function, repeats=7):
    """Median CPU seconds of a call; the first only warms up."""
    found = []
    for _ in range(repeats + 1):
        began = time.process_time()
        function()
        found.append(time.process_time() - began)
    return median(found[1:])


def step(clients, rows):
    """One stacked step of even clients."""
    task, method = random_task(*NETWORK, clients, rows), fl.methods.fedavg()
    net = fl.initial_network(method, task)
    both = layers.stack(net, clients)
    start = {name: t.clone() for name, t in state_of(both).items()}
    ctx = Context(task, 1, list(range(clients)), start, start, [{} for _ in start], net=net)
    settings = [fl.Settings(epochs=epochs, batch_size=BATCH) for epochs in (1, 6)]
    few, many = (cpu(lambda s=s: training.train_stacked(both, method, ctx, s)) for s in settings)
    return (many - few) / 5  # without what comes before the first step


def main():
    for clients, samples in ((10, 134), (100, 13)):
        task = random_task(*NETWORK, clients, samples, partition="dirichlet:0.5")
        left = [
            [min(BATCH, n - at) for n in task.sizes if n > at]
            for at in range(0, max(task.sizes), BATCH)
        ]
        bound = sum(step(len(rows), -(-sum(rows) // len(rows))) for rows in left)
        base, stacked = cpu(bare(task)), cpu(ours(task, "stacked"))
        print(
            f"{clients} clients of {min(task.sizes)} to {max(task.sizes)} samples, "
            f"{[len(rows) for rows in left]} left in each step: the sizes allow {bound / base:.2f} "
            f"of the bare loop, stacked takes {stacked / base:.2f}, messages included",
            flush=True,
        )


if __name__ == "__main__":
    with training.threads(1), torch.random.fork_rng():
        main()
