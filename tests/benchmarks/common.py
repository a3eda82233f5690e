"""What the speed programs share: a task of random images, a plain network, other processes'
seconds and memory, turns, and the command line."""

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import time
from datetime import date
from pathlib import Path
from statistics import median

import torch
from torch import nn

import fedlearn as fl
from fedlearn.data import sources
from fedlearn.files import write_text

BATCH, LR = 32, 0.1


def random_task(network, shape, clients, samples, device="cpu", partition=None):
    """Random images, ``samples`` a client on average: times do not depend on what they show."""
    count = clients * samples
    x = torch.randint(
        0, 256, (count, *shape), dtype=torch.uint8, generator=fl.rng.generator(0, "images")
    )
    y = torch.randint(0, 10, (count,), generator=fl.rng.generator(0, "labels"))
    source = sources.Source(
        "random", x, y, x[:100], y[:100], (128.0,) * shape[0], (64.0,) * shape[0], 10
    )
    load, sources.load = sources.load, lambda name: source
    try:
        return fl.tasks.classification("random", clients, partition, network=network, device=device)
    finally:
        sources.load = load


def plain_cnn(shape, classes):
    """A network on which the package was never tuned: 1,898 parameters for the digits."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
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


def timed(function, repeats=5):
    """Seconds of a call: the fastest of several, after one that warms up."""
    function()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        found.append(time.perf_counter() - began)
    return min(found)


def cpu_of_children():
    """CPU seconds of all processes that have ended, of this one and of its descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def watch(command):
    """Run a command: its seconds, and the most memory (MB) that it and its children held."""
    import psutil

    began, peak = time.perf_counter(), 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        total = 0
        for p in [process, *_children(process)]:
            try:
                memory = p.memory_full_info()
                # pss shares out what processes have in common; Linux only
                total += getattr(memory, "pss", memory.rss)
            except psutil.Error:  # it has just ended
                pass
        peak = max(peak, total)
        time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with exit status {process.returncode}.")
    return time.perf_counter() - began, peak / 1e6


def _children(process):
    import psutil

    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def peak_memory():
    """The most that this process has held, MB. What getrusage says begins, on Linux, with the peak
    of the process that started this one."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # macOS counts in bytes


def ratios(timers, reference, turns):
    """Functions that each say how long they took take turns -> median ratios to the reference in
    the same turn, and the reference's median seconds."""
    seconds = [{name: timer() for name, timer in timers.items()} for _ in range(turns)]
    shares = {name: median(turn[name] / turn[reference] for turn in seconds) for name in timers}
    return shares, median(turn[reference] for turn in seconds)


def program(doc, measure, networks):
    """The command line of a program that fills a table: ``measure(label, case, repeats, device)``
    gives a row for each network; with --out they become JSON."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="one small network, two repeats")
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    repeats, rows = 2 if args.quick else args.repeats, {}
    for label, case in list(networks.items())[: 1 if args.quick else None]:
        rows[label] = measure(case, repeats, args.device)
        print(label, {name: round(value, 3) for name, value in rows[label].items()}, flush=True)
    if args.out:
        settings = {"date": date.today().isoformat(), "repeats": repeats, "threads": 1}
        settings |= {"cores": os.cpu_count(), "device": args.device}
        settings |= {"machine": platform.machine(), "torch": torch.__version__}
        content = json.dumps({"settings": settings, "rows": rows}, indent=1)
        write_text(Path(args.out), content + "\n")
