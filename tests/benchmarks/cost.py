"""What a round costs, part by part, for ``speed.py``.

profile  where a round spends its time
import   CPU seconds from the start of Python to `import fedlearn`, `--help`, a first round
message  GB/s of encoding, checksum, decoding and averaging a dense message, beside memcpy's
memory   the most memory that large federations hold
uneven   uneven clients, stacked, beside what their sizes alone allow

and what limits a round, for the table."""

import json
import os
import subprocess
import sys
import time
import zlib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from common import BATCH, LR, peak_memory, plain, random_task, timed, wait

import fedlearn as fl
from fedlearn import local, models, stacked
from fedlearn.parts import Context
from fedlearn.round import one_round

ROOT = Path(__file__).resolve().parents[2]
FEDLEARN = [sys.executable, "-m", "fedlearn.cli"]
DIGITS = "digits_cnn", (1, 8, 8)


def federation(method, task, engine="sequential", **settings):
    """(what the engine chose, the server, the clients, a function that plays the next round -> its
    row)"""
    settings = fl.Settings(**{"batch_size": BATCH, "evaluate_every": 10**9} | settings)
    chosen = stacked.choose(engine, method, task, settings, task.clients)
    server = method.server_side(task, settings)
    clients = fl.clients(method, task, settings, chosen.together)
    t, state, last_seen = 0, server.start(), {}

    def play():
        nonlocal t, state
        t += 1
        wait(task)
        state, row = one_round(server, clients, t, state, last_seen)
        return row

    return chosen, server, clients, play


# ---- profile: where a round spends its time ------------------------------------------------------


def profile(args):
    """The share of each part in the time of all rounds, evaluation included."""
    result = {}
    for engine in ("sequential", "stacked"):
        for clients, partition in ((10, "dirichlet:0.5"), (100, "iid")):
            task = fl.tasks.classification("digits", clients, partition)
            label = f"{engine}, {clients} clients"
            result[label] = shares(task, engine, 10 * args.repeats)
            print(label, {n: f"{s:.1%}" for n, s in result[label].items()}, flush=True)
    return result


def shares(task, engine, rounds):
    _, server, clients, play = federation(fl.methods.fedavg(), task, engine, evaluate_every=1)
    play()
    seconds = Counter()
    parts = {  # what a round consists of, and the functions in which it happens
        "training": [(local, "train"), (stacked, "train")],
        "batch assembly": [(type(task), "gather")],
        "messages down": [(server, "send"), (clients.side, "download")],
        "messages up": [(clients.side, "upload"), (server, "receive")],
        "aggregation": [(server, "aggregate")],
        "evaluation": [(server, "evaluate")],
    }
    inside, since = ["the rest"], time.perf_counter()

    def turn(*entered):  # the time since the last turn belongs to the innermost part
        nonlocal since
        now = time.perf_counter()
        seconds[inside[-1]] += now - since
        since = now
        inside.extend(entered)

    def clocked(function, part):
        def call(*args, **kwargs):
            turn(part)
            try:
                return function(*args, **kwargs)
            finally:
                turn()
                inside.pop()

        return call

    with ExitStack() as stack:
        for part, functions in parts.items():
            for owner, name in functions:
                function = clocked(getattr(owner, name), part)
                stack.enter_context(mock.patch.object(owner, name, function))
        turn()
        seconds.clear()
        for _ in range(rounds):
            play()
        turn()
    return {part: seconds[part] / seconds.total() for part in (*parts, "the rest")}


# ---- import: from the start of Python on ---------------------------------------------------------

STARTS = {
    "python, nothing else": [sys.executable, "-c", "pass"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import fedlearn": [sys.executable, "-c", "import fedlearn"],
    "fedlearn --version": [*FEDLEARN, "--version"],
    "fedlearn --help": [*FEDLEARN, "--help"],
    "fedlearn run fedavg --rounds 1": [*FEDLEARN, *"run fedavg --rounds 1 --no-progress".split()],
}


def starts(args):
    """CPU seconds and seconds of commands in processes of their own, medians of turns."""
    turns = {label: [] for label in STARTS}
    for label, command in list(STARTS.items()) * args.repeats:
        before = os.times()
        subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
        _, _, user, system, elapsed = np.subtract(os.times(), before)
        turns[label].append((elapsed, user + system))
    result = {}
    for label, rows in turns.items():
        result[label] = dict(zip(("seconds", "cpu"), np.median(rows, 0).tolist(), strict=True))
    print(result, flush=True)
    return result


# ---- message: how often a dense message is touched -----------------------------------------------

MESSAGES = {
    "digits CNN": DIGITS,
    "McMahan CNN": ("mcmahan_cnn", (3, 32, 32)),
    "ResNet-18": ("resnet18", (3, 32, 32)),
}


def message(args):
    """GB/s of each stage of FedAvg's upload, the bytes of the message over the seconds."""
    networks = dict(list(MESSAGES.items())[:1]) if args.quick else MESSAGES
    return {label: stages(*case, args.repeats) for label, case in networks.items()}


def stages(network, shape, repeats, clients=4):
    task = random_task(network, shape, clients, BATCH)
    _, server, people, _ = federation(fl.methods.fedavg(LR), task)
    state, side = server.start(), people.side
    contexts = [side.download(1, k, server.send(1, k, state)[0], {}) for k in range(clients)]
    trained = {n: w + 0.01 * torch.rand_like(w) for n, w in state.weights.items()}
    up = [side.upload(trained, ctx) for ctx in contexts]
    sent, copy = np.frombuffer(up[0], np.uint8), np.empty(len(up[0]), np.uint8)

    def decode():
        return [server.receive(1, k, data, state) for k, data in enumerate(up)]

    times = {
        "memcpy": (lambda: np.copyto(copy, sent), 1),
        "checksum": (lambda: zlib.crc32(up[0]), 1),
        "update, encode, pack": (lambda: side.upload(trained, contexts[0]), 1),
        "unpack, decode": (decode, clients),
        "unpack, decode, average": (lambda: server.aggregate(1, state, decode()), clients),
    }
    many = max(1, 2_000_000 // len(up[0]))  # short calls are timed several at a time
    result = {"bytes": len(up[0])}
    for stage, (function, messages) in times.items():
        seconds = timed(lambda f=function: [f() for _ in range(many)], repeats) / many / messages
        result[stage] = len(up[0]) / seconds / 1e9
    print(network, {name: round(value, 2) for name, value in result.items()}, flush=True)
    return result


# ---- memory: the most that a run holds -----------------------------------------------------------

FEDERATIONS = {  # network, shape, clients, samples of each, how many of them a round
    "ResNet-18, 100 clients": ("resnet18", (3, 32, 32), 100, 16, 100),
    "McMahan CNN, 1,000 clients, 100 a round": ("mcmahan_cnn", (3, 32, 32), 1000, 32, 100),
    "digits CNN, 10,000 clients, 100 a round": (*DIGITS, 10_000, 13, 100),
}


def memory(args):
    """Peak resident memory (MB) of two rounds in a process of its own; --quick: the last, with a
    tenth of the clients."""
    result = {}
    for label in list(FEDERATIONS)[-1:] if args.quick else FEDERATIONS:
        command = [sys.executable, __file__, label, "10" if args.quick else "1"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        last = ((done.stderr if done.returncode else done.stdout).splitlines() or ["killed"])[-1]
        result[label] = {"failed": last} if done.returncode else json.loads(last)
        print(f"{label}: {result[label]}", flush=True)
    return result


def held(label, part):
    """What the process of ``memory`` does."""
    network, shape, clients, samples, drawn = FEDERATIONS[label]
    clients, drawn = clients // part, drawn // part
    task, before = random_task(network, shape, clients, samples), peak_memory()
    how = {"participation": drawn / clients, "batch_size": BATCH, "evaluate_every": 2}
    history = fl.run(fl.methods.fedavg(LR), task, 2, threads=1, progress=False, **how)
    row = {"clients": clients, "a_round": drawn, "before_MB": before, "peak_MB": peak_memory()}
    row |= {"message_MB": float(history.bytes_up[-1]) / drawn / 1e6}
    return row | {"seconds": float(history.seconds[-1])}


# ---- what limits a round -------------------------------------------------------------------------


def machine(device, quick=False):
    """What the device can do at most: GFLOP/s of a large product of matrices, and GB/s of a large
    copy, bytes read and bytes written."""
    cuda, side = device.startswith("cuda"), 256 if quick else 1024
    side, size = (8192, 2**30) if cuda else (side, 2**22 if quick else 2**27)
    a, b = torch.rand(2, side, side, device=device)
    x, y = torch.rand(2, size // 4, device=device)

    def seconds(function):
        return timed(lambda: (function(), torch.cuda.synchronize(device) if cuda else None))

    gflops = 2 * side**3 / seconds(lambda: a @ b) / 1e9
    return {"gflops": gflops, "memcpy": 2 * x.nbytes / seconds(lambda: y.copy_(x)) / 1e9}


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

    def step(n):
        def call():
            optimiser.zero_grad()
            F.cross_entropy(net(x[:n]), y[:n]).backward()
            optimiser.step()
            wait(task)

        return timed(call)

    few, many = 2, min(BATCH, len(y))  # a batch of one image has no variance
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


# ---- uneven clients ------------------------------------------------------------------------------


def cpu(function, repeats):
    return timed(function, repeats, time.process_time, median)


def stacked_step(clients, rows, repeats):
    """CPU seconds of one stacked step of even clients."""
    task, method = random_task(*DIGITS, clients, rows), fl.methods.fedavg()
    net = fl.initial_network(method, task)
    both = stacked.stack(net, clients)
    start = {name: t.clone() for name, t in models.state_of(both).items()}
    ctx = Context(task, 1, list(range(clients)), start, start, [{} for _ in start], net=net)
    settings = [fl.Settings(epochs=epochs, batch_size=BATCH) for epochs in (1, 6)]
    few, many = (cpu(lambda s=s: stacked.train(both, method, ctx, s), repeats) for s in settings)
    return (many - few) / 5  # without what comes before the first step


def uneven(args, bare):
    """A row for each number of clients: what their sizes allow, and what stacked training takes,
    the bare loop being 1.

    There are at least as many steps as the largest client has batches, and each trains the clients
    that still have one, on as many rows as these have. Such steps are timed with even clients,
    messages left out; their sum is the bound."""
    rows, repeats = [], args.repeats
    for clients, samples in ((10, 134),) if args.quick else ((10, 134), (100, 13)):
        task = random_task(*DIGITS, clients, samples, partition="dirichlet:0.5")
        largest = max(task.sizes)
        steps = [
            [min(BATCH, n - at) for n in task.sizes if n > at] for at in range(0, largest, BATCH)
        ]
        with torch.random.fork_rng():
            each = [stacked_step(len(s), -(-sum(s) // len(s)), repeats) for s in steps]
            base = cpu(bare(task), repeats)
            both = cpu(federation(fl.methods.fedavg(LR), task, "stacked")[-1], repeats)
        row = {"clients": clients, "smallest": min(task.sizes), "largest": largest}
        rows.append(row | {"bound": sum(each) / base, "stacked": both / base})
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    print(json.dumps(held(sys.argv[1], int(sys.argv[2]))))
