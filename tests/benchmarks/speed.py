"""How fast is it? Everything that the page "How fast is it" shows is measured here.

    python tests/benchmarks/speed.py                  # all of it, about an hour on two CPU cores
    python tests/benchmarks/speed.py table --quick    # one part, a few repeats
    python tests/benchmarks/speed.py table --only ResNet --out data/results/speed_cpu.json
    python tests/benchmarks/speed.py table --device cuda --out data/results/speed_cuda.json

table    a round of federated averaging: bare PyTorch loop and fedlearn's engines, which take turns;
         medians count. On a GPU also channels last, bfloat16
job      20 rounds on digits in a fresh process, start-up included: seconds and peak memory
growth   seconds a round against the number of clients
import   CPU seconds from the start of Python to `import fedlearn`, `--help`, a first round
memory   the most memory that large federations hold

With --out, rows and parts that were not measured keep their old entries.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn.core import local
from fedlearn.core.local import good_threads
from fedlearn.files import to_json, write_text

sys.path.insert(0, str(Path(__file__).parent))
from common import (  # noqa: E402
    BATCH,
    DIGITS,
    LR,
    federation,
    peak_memory,
    plain,
    plain_cnn,
    random_task,
    wait,
)

LONG = 8  # seconds: longer rounds are timed once
ROOT = Path(__file__).resolve().parents[2]
FEDLEARN = [sys.executable, "-m", "fedlearn"]
CORES = torch.get_num_threads()  # what torch takes by itself
# label -> network, image shape, samples a client by the number of clients, how they are split
NETWORKS = {
    "digits CNN, 8x8": (*DIGITS, {10: 134, 100: 13, 1000: 13}),
    "digits CNN, uneven clients": (*DIGITS, {10: 134, 100: 13}, "dirichlet:0.5"),
    "plain network, 8x8": (plain_cnn, (1, 8, 8), {10: 134, 100: 13}),
    "McMahan CNN, 32x32 colour": ("mcmahan_cnn", (3, 32, 32), {10: 128, 100: 32}),
    "ResNet-18, 32x32 colour": ("resnet18", (3, 32, 32), {10: 16}),
    "ResNet-56, 32x32 colour": ("resnet56", (3, 32, 32), {10: 16}),
}
ON_GPU = {  # what takes a CPU too long
    "McMahan CNN, 32x32 colour": ("mcmahan_cnn", (3, 32, 32), {1000: 32}),
    "ResNet-18, 32x32 colour": ("resnet18", (3, 32, 32), {100: 32, 1000: 32}),
    "ResNet-56, 32x32 colour": ("resnet56", (3, 32, 32), {100: 32, 1000: 32}),
}


# ---- table ---------------------------------------------------------------------------------------


def bare(task, layout=torch.contiguous_format, precision="float32"):
    """The loop that everything is compared with: the same batches into one network, no
    federation. Returns a function that plays the next round -> seconds."""
    net = plain(task).train().to(memory_format=layout)
    rough = torch.autocast(task.device.type, torch.bfloat16)
    optimiser = torch.optim.SGD(net.parameters(), LR)
    rounds = itertools.count(1)

    def play():
        t = next(rounds)
        wait(task)
        began = time.perf_counter()
        for k in range(task.clients):
            generator = fl.rng.generator(task.seed, "shuffle", t, k)
            x, y = task.epoch(
                k, torch.randperm(task.sizes[k], generator=generator), None
            )
            x = x.to(memory_format=layout)
            for at in range(0, len(y), BATCH):
                optimiser.zero_grad()
                with rough if precision == "bf16" else nullcontext():
                    loss = F.cross_entropy(net(x[at : at + BATCH]), y[at : at + BATCH])
                loss.backward()
                optimiser.step()
        wait(task)
        return time.perf_counter() - began

    return play


def packaged(task, engine, precision="float32"):
    """The package, real messages included. "auto" also chooses the number of threads, as ``fl.run``
    does by itself."""
    threads = torch.get_num_threads()
    if engine == "auto":
        with local.threads(CORES):
            threads = good_threads(plain(task), task, BATCH)
    with local.threads(threads, precision):
        method = fl.methods.fedavg(LR)
        chosen, *_, next_round = federation(method, task, engine, precision=precision)

    def play():
        with local.threads(threads, precision):
            return next_round()["seconds"]

    play.chosen, play.threads = chosen, threads
    return play


def interleaved(contenders, repeats):
    """Medians of rounds that take turns, after one that warmed up; if one takes more than ``LONG``
    seconds, once."""
    seconds = {name: [play()] for name, play in contenders.items()}
    for _ in range(repeats - 1 if max(s[0] for s in seconds.values()) <= LONG else 0):
        for name, play in contenders.items():
            seconds[name].append(play())
    return {name: median(s) for name, s in seconds.items()}


def row_of(args, label, network, shape, samples, clients, partition):
    """One row of the table. Where memory does not suffice, the row has the reason."""
    task = random_task(network, shape, clients, samples, args.device, partition)
    makers = {"bare loop": partial(bare, task)}
    for engine in ("sequential", "stacked", "auto"):
        makers[engine] = partial(packaged, task, engine)
    if args.device.startswith("cuda"):
        makers["bare loop, channels last"] = partial(bare, task, torch.channels_last)
        makers["bare loop, bf16"] = partial(bare, task, precision="bf16")
        for engine in ("sequential", "stacked"):
            makers[f"{engine}, bf16"] = partial(packaged, task, engine, "bf16")
    ready = {}
    seconds = dict.fromkeys(makers)
    for name, make in makers.items():
        try:
            play = make()
            play()  # warms up, and shows whether there is memory enough
            ready[name] = play
        except (RuntimeError, ValueError) as error:
            seconds[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    seconds |= interleaved(ready, args.repeats)
    row = {"network": label, "clients": clients, "samples": samples, "seconds": seconds}
    row["date"] = date.today().isoformat()
    if auto := ready.get("auto"):
        row |= {"chosen": auto.chosen["name"], "threads": auto.threads}
    print(row, flush=True)
    return row


def cases(device):
    """The arguments of ``row_of`` for each row of the table."""
    for networks in (NETWORKS, ON_GPU) if device.startswith("cuda") else (NETWORKS,):
        for label, (network, shape, counts, *partition) in networks.items():
            for clients, samples in counts.items():
                yield label, network, shape, samples, clients, *(partition or [None])


def table(args, old):
    """The table after each row that is measured; other rows are those of ``old``."""
    rows = {(row["network"], row["clients"]): row for row in old.get("rows", [])}
    labels = list(NETWORKS)
    end = time.monotonic() + 60 * args.minutes
    for case in cases(args.device):
        label, *_, clients, _ = case
        if args.only.lower() not in label.lower():
            continue
        if time.monotonic() > end:
            print(f"{label}, {clients} clients: no time left")
            continue
        rows[label, clients] = row_of(args, *case)
        order = sorted(rows, key=lambda key: (labels.index(key[0]), key[1]))
        yield {"rows": [rows[key] for key in order]}


# ---- a whole job in a fresh process --------------------------------------------------------------


def run_job():
    """What the fresh process of ``job`` does for the bare loop, which has no command line."""
    task = fl.tasks.classification("digits", 10)
    torch.set_num_threads(1)
    play = bare(task)
    for _ in range(20):
        play()


def watch(command):
    """Run a command: its seconds, and the most memory (MB) that it and its children held."""
    began, peak = time.perf_counter(), 0
    process = psutil.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None:
        with suppress(psutil.Error):  # it has just ended
            memories = [
                p.memory_full_info()
                for p in (process, *process.children(recursive=True))
            ]
            # pss shares out what processes have in common; Linux only
            peak = max(
                peak, sum(getattr(memory, "pss", memory.rss) for memory in memories)
            )
        time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command)} failed with exit status {process.returncode}."
        )
    return time.perf_counter() - began, peak / 1e6


def job(args):
    words = "run fedavg --rounds 20 --no-progress --evaluate-every 20 --engine".split()
    engines = "sequential", "stacked", "auto"
    commands = {f"fedlearn, {e}": [*FEDLEARN, *words, e] for e in engines}
    commands["bare loop"] = [sys.executable, __file__, "--run-job"]
    runs = {name: [] for name in commands}
    for _ in range(max(2, args.repeats // 2)):
        for name, command in commands.items():
            runs[name].append(watch(command))
    result = {}
    for name, pairs in runs.items():
        seconds, megabytes = map(median, zip(*pairs, strict=True))
        result[name] = {"seconds": seconds, "megabytes": megabytes}
    print(result, flush=True)
    return result


# ---- growth --------------------------------------------------------------------------------------


def growth(args):
    result = []
    for clients in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)[
        : 2 if args.quick else None
    ]:
        task = random_task(*DIGITS, clients, BATCH, args.device)
        ready = {"bare loop": bare(task)}
        ready |= {e: packaged(task, e) for e in ("sequential", "stacked")}
        for play in ready.values():
            play()  # warms up
        result.append({"clients": clients, "seconds": interleaved(ready, args.repeats)})
        print(result[-1], flush=True)
    return result


# ---- import: from the start of Python on ---------------------------------------------------------

STARTS = {
    "python, nothing else": [sys.executable, "-c", "pass"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import fedlearn": [sys.executable, "-c", "import fedlearn"],
    "fedlearn --version": [*FEDLEARN, "--version"],
    "fedlearn --help": [*FEDLEARN, "--help"],
    "fedlearn run fedavg --rounds 1": [
        *FEDLEARN,
        *"run fedavg --rounds 1 --no-progress".split(),
    ],
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
        result[label] = dict(
            zip(("seconds", "cpu"), np.median(rows, 0).tolist(), strict=True)
        )
    print(result, flush=True)
    return result


# ---- memory: the most that a run holds -----------------------------------------------------------

FEDERATIONS = {  # network, shape, clients, samples of each, how many of them a round
    "ResNet-18, 100 clients": ("resnet18", (3, 32, 32), 100, 16, 100),
    "McMahan CNN, 1,000 clients, 100 a round": (
        "mcmahan_cnn",
        (3, 32, 32),
        1000,
        32,
        100,
    ),
    "digits CNN, 10,000 clients, 100 a round": (*DIGITS, 10_000, 13, 100),
}


def memory(args):
    """Peak resident memory (MB) of two rounds in a process of its own; --quick: the last, with a
    tenth of the clients."""
    result = {}
    for label in list(FEDERATIONS)[-1:] if args.quick else FEDERATIONS:
        command = [
            sys.executable,
            __file__,
            "--federation",
            label,
            "10" if args.quick else "1",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        last = (
            (done.stderr if done.returncode else done.stdout).splitlines() or ["killed"]
        )[-1]
        result[label] = {"failed": last} if done.returncode else json.loads(last)
        print(f"{label}: {result[label]}", flush=True)
    return result


def run_federation(label, part):
    """What the process of ``memory`` does."""
    network, shape, clients, samples, drawn = FEDERATIONS[label]
    clients, drawn = clients // part, drawn // part
    task, before = random_task(network, shape, clients, samples), peak_memory()
    options = {
        "participation": drawn / clients,
        "batch_size": BATCH,
        "evaluate_every": 2,
    }
    history = fl.run(
        fl.methods.fedavg(LR), task, 2, threads=1, progress=False, **options
    )
    row = {
        "clients": clients,
        "a_round": drawn,
        "before_MB": before,
        "peak_MB": peak_memory(),
    }
    row |= {"message_MB": float(history.bytes_up[-1]) / drawn / 1e6}
    return row | {"seconds": float(history.seconds[-1])}


def main():
    parts = {
        "table": table,
        "job": job,
        "growth": growth,
        "import": starts,
        "memory": memory,
    }
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("parts", nargs="*", choices=[*parts, []], help="default: all")
    add("--repeats", type=int, default=7)
    add("--quick", action="store_true", help="two repeats")
    add("--device", default="cpu")
    add("--only", default="", metavar="TEXT", help="rows of the table with it")
    add("--minutes", type=float, default=math.inf, help="for rows of the table")
    add("--out", metavar="FILE", type=Path, help="write the results as JSON")
    add("--run-job", action="store_true", help=argparse.SUPPRESS)
    add("--federation", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.repeats = 2 if args.quick else args.repeats
    if args.run_job:
        return run_job()
    if args.federation:
        return print(
            json.dumps(run_federation(args.federation[0], int(args.federation[1])))
        )
    result = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    cuda = args.device.startswith("cuda")
    settings = {
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "batch": BATCH,
        "repeats": args.repeats,
        "threads": 1,
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(args.device) if cuda else "CPU",
    }
    chosen = args.parts or (("table", "growth") if cuda else parts)
    if "table" in chosen or "settings" not in result:  # the table's settings
        result["settings"] = settings
    with local.threads(1):
        for name in chosen:
            print(f"---- {name}", flush=True)
            # the table row by row, so that an interrupted one is stored
            old = result.get(name, {})
            for part in table(args, old) if name == "table" else [parts[name](args)]:
                result[name] = part
                if args.out:
                    write_text(args.out, to_json(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
