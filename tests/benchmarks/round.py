"""Seconds per round: (a) a bare PyTorch loop over the same batches, without any federation, and (b) `fedlearn.run`.

    python tests/benchmarks/round.py [--repeats 7] [--clients 10]

(a) and (b) take turns in one process; the table gives medians and their ratio, for one thread and for all cores.
The first column of the threads table is what `federation.good_threads` decides by.
"""

import argparse
import os
import statistics
import time

import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn import local
from fedlearn.data import sources
from fedlearn.federation import good_threads, one_round

BATCH = 32


def colour_images(count=3200):
    """Random 32x32 colour images: what is timed does not depend on what they show."""
    x = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=fl.rng.generator(0, "images"))
    y = torch.randint(0, 10, (count,), generator=fl.rng.generator(0, "labels"))
    return sources.Source("colour", x, y, x[:100], y[:100], (128.0,) * 3, (64.0,) * 3, 10)


def bare_round(task, net, t):
    """Every client's batches of round ``t``, one after another, into one network."""
    optimiser = torch.optim.SGD(net.parameters(), 0.1)
    net.train()
    began = time.perf_counter()
    for k in range(task.clients):
        order = torch.randperm(task.sizes[k], generator=fl.rng.generator(task.seed, "shuffle", t, k))
        x, y = task.epoch(k, order, None)
        for at in range(0, len(y), BATCH):
            optimiser.zero_grad()
            F.cross_entropy(net(x[at : at + BATCH]), y[at : at + BATCH]).backward()
            optimiser.step()
    return time.perf_counter() - began


def measure(task, repeats, threads):
    method, settings = fl.methods.fedavg(), fl.Settings(batch_size=BATCH, evaluate_every=10**9)
    server, clients = fl.Server(method, task, settings), fl.Clients(method, task, settings)
    net, seconds = fl.initial_network(method, task), {"bare": [], "run": []}
    with local.threads(threads):
        for t in range(1, repeats + 2):
            seconds["bare"].append(bare_round(task, net, t))
            seconds["run"].append(one_round(server, clients, t)["seconds"])
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first of each warms up


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clients", type=int, default=10)
    args = parser.parse_args()
    tasks = {"digits CNN, 8x8": fl.tasks.classification("digits", args.clients)}
    loader, sources.load = sources.load, lambda name: colour_images()
    tasks["McMahan CNN, 32x32 colour"] = fl.tasks.classification("colour", args.clients, network="mcmahan_cnn")
    sources.load = loader
    print(f"{args.clients} clients, batch {BATCH}, one epoch, medians of {args.repeats} interleaved rounds, torch {torch.__version__}")
    print(f"{'network':<28}{'M multiply-adds':>16}{'threads':>9}{'bare s':>9}{'run s':>9}{'run/bare':>10}  chosen")
    for name, task in tasks.items():
        net = fl.initial_network(fl.methods.fedavg(), task)
        work = fl.models.multiply_adds(net, task.shape) * BATCH / 1e6
        for threads in sorted({1, os.cpu_count() or 1}):
            found = measure(task, args.repeats, threads)
            mark = "<-" if threads == good_threads(net, task, BATCH) else ""
            ratio = found["run"] / found["bare"]
            print(f"{name:<28}{work:>16.1f}{threads:>9}{found['bare']:>9.3f}{found['run']:>9.3f}{ratio:>10.3f}  {mark}")


if __name__ == "__main__":
    main()
