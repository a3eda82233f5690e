"""What a round costs besides training, for ``speed.py``: start-up, messages, memory; and what
limits a round."""

import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from common import BATCH, LR, cpu_of_children, peak_memory, plain, random_task, timed, wait

import fedlearn as fl
from fedlearn import models

ROOT = Path(__file__).resolve().parents[2]
FEDLEARN = [sys.executable, "-m", "fedlearn.cli"]
ONE_ROUND = [*FEDLEARN, "run", "fedavg", "--rounds", "1", "--no-progress"]

# ---- import: from the start of Python on ---------------------------------------------------------

STARTS = {
    "python, nothing else": [sys.executable, "-c", "pass"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import fedlearn": [sys.executable, "-c", "import fedlearn"],
    "fedlearn --version": [*FEDLEARN, "--version"],
    "fedlearn --help": [*FEDLEARN, "--help"],
    "fedlearn run fedavg --rounds 1": ONE_ROUND,
}


def starts(args):
    """CPU seconds and seconds of commands in processes of their own, medians of turns."""
    found = {label: [] for label in STARTS}
    for _ in range(args.repeats):
        for label, command in STARTS.items():
            before, began = cpu_of_children(), time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
            found[label].append((time.perf_counter() - began, cpu_of_children() - before))
            if done.returncode:  # a command that this version does not have
                found[label] = [done.stderr.strip().splitlines()[-1]]
    result = {}
    for label, runs in found.items():
        if isinstance(runs[0], str):
            print(f"{label:<34}failed: {runs[0]}")
            continue
        result[label] = dict(
            zip(("seconds", "cpu"), map(median, zip(*runs, strict=True)), strict=True)
        )
        print(
            f"{label:<34}{result[label]['cpu']:6.2f} s CPU {result[label]['seconds']:6.2f} s",
            flush=True,
        )
    return result


# ---- message: how often a dense message is touched -----------------------------------------------

SENT = {
    "digits CNN": ("digits_cnn", (1, 8, 8)),
    "McMahan CNN": ("mcmahan_cnn", (3, 32, 32)),
    "ResNet-18": ("resnet18", (3, 32, 32)),
}


def message(args):
    """GB/s of each stage of FedAvg's upload, the bytes of the message over the seconds."""
    networks = dict(list(SENT.items())[:1]) if args.quick else SENT
    return {label: stages(*case, args.repeats) for label, case in networks.items()}


def stages(network, shape, repeats, clients=4):
    task = random_task(network, shape, clients, BATCH)
    method, settings = fl.methods.fedavg(LR), fl.Settings(batch_size=BATCH)
    server, people = method.server_side(task, settings), fl.clients(method, task, settings)
    state, side = server.start(), people.side
    down = [server.send(1, k, state)[0] for k in range(clients)]
    contexts = [side.download(1, k, data, {}) for k, data in enumerate(down)]
    trained = {n: w + 0.01 * torch.rand_like(w) for n, w in state.weights.items()}
    up = [side.upload(trained, ctx) for ctx in contexts]
    big, copy = np.frombuffer(up[0], np.uint8), np.empty(len(up[0]), np.uint8)

    def receive(k):
        return server.receive(1, k, up[k], state)

    def decode():
        for k in range(clients):
            receive(k)

    def add():  # as a round does it, whether it adds at once or at the end
        server.aggregate(1, state, [receive(k) for k in range(clients)])

    def turns(function, times):
        return lambda: [function() for _ in range(times)]

    many = max(1, 2_000_000 // len(up[0]))  # short calls are timed several at a time
    once = {
        "memcpy": (lambda: np.copyto(copy, big), 1),
        "checksum": (lambda: zlib.crc32(up[0]), 1),
        "update, encode, pack": (lambda: side.upload(trained, contexts[0]), 1),
        "unpack, decode": (decode, clients),
        "unpack, decode, average": (add, clients),
    }
    result = {"bytes": len(up[0])}
    for stage, (function, messages) in once.items():
        seconds = timed(turns(function, many), repeats) / many / messages
        result[stage] = len(up[0]) / seconds / 1e9
    print(
        f"{network}, {len(up[0]):,} bytes, GB/s: "
        + ", ".join(f"{n} {v:.2f}" for n, v in result.items() if n != "bytes"),
        flush=True,
    )
    return result


# ---- memory: the most that a run holds -----------------------------------------------------------

HELD = {  # network, shape, clients, samples of each, how many of them a round
    "ResNet-18, 100 clients": ("resnet18", (3, 32, 32), 100, 16, 100),
    "McMahan CNN, 1,000 clients, 100 a round": ("mcmahan_cnn", (3, 32, 32), 1000, 32, 100),
    "digits CNN, 10,000 clients, 100 a round": ("digits_cnn", (1, 8, 8), 10_000, 13, 100),
}


def memory(args):
    """Peak resident memory (MB) of two rounds in a process of its own; --quick: a tenth of the
    clients of the smallest."""
    result = {}
    for label in list(HELD)[-1:] if args.quick else HELD:
        command = [sys.executable, __file__, label, *(["--quick"] if args.quick else [])]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            result[label] = {"failed": (done.stderr.strip().splitlines() or ["killed"])[-1]}
        else:
            result[label] = json.loads(done.stdout.splitlines()[-1])
        print(f"{label}: {result[label]}", flush=True)
    return result


def held(label, quick=False):
    """What the process of ``memory`` does."""
    network, shape, clients, samples, drawn = HELD[label]
    clients, drawn = (clients // 10, drawn // 10) if quick else (clients, drawn)
    task = random_task(network, shape, clients, samples)
    before = peak_memory()
    how = {"participation": drawn / clients, "batch_size": BATCH, "evaluate_every": 2}
    history = fl.run(fl.methods.fedavg(LR), task, 2, threads=1, progress=False, **how)
    return {
        "clients": clients,
        "a_round": drawn,
        "before_MB": before,
        "peak_MB": peak_memory(),
        "message_MB": float(history.bytes_up[-1]) / drawn / 1e6,
        "seconds": float(history.seconds[-1]),
    }


# ---- what limits a round -------------------------------------------------------------------------


def machine(device, quick=False):
    """What the device can do at most: GFLOP/s of a large product of matrices, and GB/s of a large
    copy, bytes read and bytes written."""
    cuda, side = device.startswith("cuda"), 256 if quick else 1024
    side, size = (8192, 2**30) if cuda else (side, 2**22 if quick else 2**27)
    a, b = torch.rand(2, side, side, device=device)
    x, y = torch.rand(2, size // 4, device=device)

    def done(function):
        def call():
            function()
            if cuda:
                torch.cuda.synchronize(device)

        return timed(call)

    return {
        "gflops": 2 * side**3 / done(lambda: a @ b) / 1e9,
        "memcpy": 2 * x.nbytes / done(lambda: y.copy_(x)) / 1e9,
    }


def limits(task, peak):
    """Where the seconds of a sequential round go, by what a local step takes with few images and
    with a whole batch: a + b images.

    Arithmetic is what grows with the images, the memory of their activations included; ``gflops``
    is its speed (backward does twice the multiply-adds of forward, and each counts as two). Memory
    is, at the speed of a copy, what moves however few the images are. In a step the weights are
    read twice, gradients written and read, weights read and written (6 times the network); of each
    client's messages the weights are copied in, become an update, are summed, checked and added
    (10 times). Overhead is the rest of a."""
    net, order = plain(task).train(), torch.arange(max(task.sizes))
    optimiser = torch.optim.SGD(net.parameters(), LR)
    x, y = task.epoch(task.sizes.index(max(task.sizes)), order, None)
    x, y = x[:BATCH], y[:BATCH]

    def step(n):  # a batch of one image has no variance
        def call():
            optimiser.zero_grad()
            F.cross_entropy(net(x[:n]), y[:n]).backward()
            optimiser.step()
            wait(task)

        return timed(call)

    few, many = 2, len(y)
    image = max(0.0, (step(many) - step(few)) / (many - few)) if many > few else 0.0
    fixed = max(0.0, step(few) - few * image)
    size = sum(t.nbytes for t in models.state_of(net).values()) / peak["memcpy"] / 1e9
    steps = sum(-(-n // BATCH) for n in task.sizes)
    work = 6 * models.multiply_adds(net, task.shape)
    return {
        "arithmetic": sum(task.sizes) * image,
        "memory": steps * min(fixed, 6 * size) + task.clients * 10 * size,
        "overhead": steps * max(0.0, fixed - 6 * size),
        "gflops": work / image / 1e9 if image else None,
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(json.dumps(held(sys.argv[1], "--quick" in sys.argv)))
