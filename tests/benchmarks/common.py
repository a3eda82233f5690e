"""What the programs share: a task of random images, networks, clocks, a command line."""

import argparse
import os
import platform
import re
import sys
from pathlib import Path
from statistics import median

import torch
from torch import nn

import fedlearn as fl
from fedlearn.core.federation import one_round
from fedlearn.data import images
from fedlearn.engines import stacked
from fedlearn.files import to_json, write_text
from fedlearn.lab.results import provenance

BATCH, LR = 32, 0.1
DIGITS = "digits_cnn", (1, 8, 8)


def random_task(network, shape, clients, samples, device="cpu", partition=None):
    """Random images, ``samples`` a client on average: times do not depend on what they show."""
    count = clients * samples
    generator = fl.rng.generator(0, "images")
    x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (count,), generator=fl.rng.generator(0, "labels"))
    mean = (128.0,) * shape[0]
    std = (64.0,) * shape[0]
    source = images.Source("random", x, y, x[:100], y[:100], mean, std, 10)
    return fl.tasks.classification(
        source, clients, partition, network=network, device=device
    )


def plain_cnn(shape, classes):
    """A network on which the package was never tuned: 1,898 parameters for the digits."""
    return nn.Sequential(
        *(nn.Conv2d(shape[0], 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Linear(16 * (shape[1] // 4) * (shape[2] // 4), classes),
    )


def plain(task):
    """The network as anybody would build it, without the package's layout in memory."""
    with fl.rng.scope(task.seed, "initial weights"):
        return task.network().to(task.device)


def wait(task):
    """Until the GPU has done what it was asked to do."""
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)


def federation(method, task, engine="sequential", **settings):
    """The engine's name in the history, the server, the clients, and a function that plays the next
    round and returns its row."""
    settings = fl.Settings(**{"batch_size": BATCH, "evaluate_every": 10**9} | settings)
    server = method.server_side(task, settings)
    clients = fl.clients(method, task, settings)
    if engine != "sequential":
        clients = stacked.connect(engine, clients.side)
    t = 0
    state = server.start()
    last_seen = {}

    def play():
        nonlocal t, state
        t += 1
        wait(task)
        state, row = one_round(server, clients, t, state, last_seen)
        return row

    return clients.about, server, clients, play


def ratios(timers, reference, repeats):
    """Functions that return their seconds take turns, after one that warms up -> medians of the
    ratios to the reference in the same turn."""
    turns = [
        {name: timer() for name, timer in timers.items()} for _ in range(repeats + 1)
    ][1:]
    return {
        name: median(turn[name] / turn[reference] for turn in turns) for name in timers
    }


def peak_memory():
    """The most that this process has held, MB (Linux; what getrusage says begins with the peak of
    the process that started this one)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / 1e6


def program(parts, doc):
    """The command line of a program. A part is a function ``quick`` -> what is stored, with
    settings of its own."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=raw)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    origin = provenance() | {"command": " ".join(["python", *sys.argv])}
    result = parts[args.part](args.quick)
    settings = {
        "threads": 1,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "torch": torch.__version__,
    }
    settings |= origin | result.pop("settings", {})
    text = to_json({"settings": settings, **result}, indent=1) + "\n"
    if args.out:
        write_text(args.out, text)
    print(text)
