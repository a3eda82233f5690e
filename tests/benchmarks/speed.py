"""How fast is it? Everything that the page "How fast is it" shows is measured here.

    python tests/benchmarks/speed.py                  # all of it, about 25 minutes on two CPU cores
    python tests/benchmarks/speed.py table --quick    # one part, a few repeats
    python tests/benchmarks/speed.py --device cuda    # the same on a GPU
    python tests/benchmarks/speed.py --out data/results/speed_cpu.json

table    a round of federated averaging: bare PyTorch loop, fedlearn's engines, and the simulators
         of requirements-peers.txt that are installed; they take turns, medians count, ratios are to
         the bare loop
job      20 rounds on digits in a fresh process, start-up included: seconds and peak memory
growth   seconds a round against the number of clients and against the number of samples
profile  where a round spends its time
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import date
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn import training
from fedlearn.data import sources
from fedlearn.engines import choose
from fedlearn.round import good_threads, one_round

sys.path.insert(0, str(Path(__file__).parent))
from peers import PEERS, shards_of  # noqa: E402

BATCH, LR, LONG = 32, 0.1, 8
CORES = torch.get_num_threads()  # what torch takes by itself
# label -> network, image shape, samples a client for 10 and for 100 clients, how they are split;
# 100 clients of ResNet-18 would be 9 GB of messages and decoded updates, too much for most machines
NETWORKS = {
    "digits CNN, 8x8": ("digits_cnn", (1, 8, 8), {10: 134, 100: 13}),
    "digits CNN, uneven clients": ("digits_cnn", (1, 8, 8), {10: 134, 100: 13}, "dirichlet:0.5"),
    "McMahan CNN, 32x32 colour": ("mcmahan_cnn", (3, 32, 32), {10: 128, 100: 32}),
    "ResNet-18, 32x32 colour": ("resnet18", (3, 32, 32), {10: 16}),
}


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


def wait(task):
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)


def plain(task):
    """The network as anybody would build it, without the package's layout in memory."""
    with fl.rng.scope(task.seed, "initial weights"):
        return task.network().to(task.device)


def bare(task):
    """The loop that everything is compared with: the same batches into one network, no
    federation."""
    net = plain(task).train()
    optimiser = torch.optim.SGD(net.parameters(), LR)
    turn = iter(range(1, 10**9))

    def round():
        t = next(turn)
        wait(task)
        began = time.perf_counter()
        for k in range(task.clients):
            order = torch.randperm(
                task.sizes[k], generator=fl.rng.generator(task.seed, "shuffle", t, k)
            )
            x, y = task.epoch(k, order, None)
            for at in range(0, len(y), BATCH):
                optimiser.zero_grad()
                F.cross_entropy(net(x[at : at + BATCH]), y[at : at + BATCH]).backward()
                optimiser.step()
        wait(task)
        return time.perf_counter() - began

    return round


def ours(task, engine, precision="float32"):
    """The package, real messages included. "auto" also chooses the number of threads, as ``fl.run``
    does by itself."""
    method, settings = (
        fl.methods.fedavg(LR),
        fl.Settings(batch_size=BATCH, evaluate_every=10**9, precision=precision),
    )
    with training.threads(CORES):
        own = good_threads(plain(task), task, BATCH)
    threads = own if engine == "auto" else torch.get_num_threads()
    with training.threads(threads, precision):
        chosen = choose(engine, method, task, settings, task.clients)
    server, clients = (
        method.server_side(task, settings),
        fl.clients(method, task, settings, chosen.together),
    )
    turn, state, heard = iter(range(1, 10**9)), server.start(), {}

    def round():
        nonlocal state
        wait(task)
        with training.threads(threads, precision):
            state, row = one_round(server, clients, next(turn), state, heard)
        return row["seconds"]

    round.chosen, round.threads = chosen, threads
    return round


def interleaved(contenders, repeats):
    """Medians of rounds that take turns; each contender's first round only warms up. Rounds of more
    than ``LONG`` seconds are taken once and need no warming up."""
    seconds = {name: [round()] for name, round in contenders.items()}
    if max(s[0] for s in seconds.values()) > LONG:
        return {name: s[0] for name, s in seconds.items()}
    seconds = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, round in contenders.items():
            seconds[name].append(round())
    return {name: median(s) for name, s in seconds.items()}


def peer_seconds(task, function, rounds):
    """Median seconds a round of another simulator on the same data, or the sentence with which it
    failed."""
    shards = shards_of(task)
    try:
        return median(function(shards, lambda: plain(task), LR, BATCH, rounds + 1)[0][1:])
    except Exception as error:  # one simulator's trouble must not hide the others' numbers
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def installed():
    """The other simulators that are here, by label."""
    return {label: f for label, (module, f) in PEERS.items() if importlib.util.find_spec(module)}


def measured(task, engines):
    """The bare loop and the package's engines on one task, by label."""
    return {"bare loop": bare(task)} | {engine: ours(task, engine) for engine in engines}


def table(args):
    rows, peers = [], installed()
    absent = [label for label in PEERS if label not in peers]
    for label, (network, shape, samples, *partition) in NETWORKS.items():
        for clients, n in samples.items():
            task = random_task(network, shape, clients, n, args.device, *partition)
            contenders = measured(task, ("sequential", "stacked", "auto"))
            if args.device == "cuda":
                contenders["stacked, bf16"] = ours(task, "stacked", "bf16")
            seconds, auto = interleaved(contenders, args.repeats), contenders["auto"]
            rows.append(
                {
                    "network": label,
                    "clients": clients,
                    "samples": n,
                    "chosen": auto.chosen.name,
                    "threads": auto.threads,
                    "together": contenders["stacked"].chosen.together,
                    "seconds": seconds,
                }
            )
            del contenders, auto  # and the memory that they hold
            if args.device == "cpu" and not args.no_peers:
                few = 1 if seconds["bare loop"] > LONG / 2 else max(2, args.repeats // 2)
                seconds |= {name: peer_seconds(task, f, few) for name, f in peers.items()}
            show_row(rows[-1])
    if absent:
        print(f"not installed: {', '.join(absent)}")
    return {"rows": rows, "absent": absent}


def show_row(row):
    base = row["seconds"]["bare loop"]
    cells = [
        f"{name} {s / base:.2f}" if isinstance(s, float) else f"{name} failed: {s}"
        for name, s in row["seconds"].items()
    ]
    auto = f"(auto: {row['chosen']}, {row['threads']} threads)"
    print(f"{row['network']}, {row['clients']} clients: {', '.join(cells)} {auto}", flush=True)


# ---- a whole job in a fresh process --------------------------------------------------------------


def run_job(name):
    """What the fresh process of ``job`` does for the contenders that have no command line."""
    task = fl.tasks.classification("digits", 10)
    torch.set_num_threads(1)
    if name == "bare loop":
        round = bare(task)
        for _ in range(20):
            round()
    else:
        PEERS[name][1](shards_of(task), lambda: plain(task), LR, BATCH, 20)


def job(args):
    command = [
        sys.executable,
        "-m",
        "fedlearn.cli",
        "run",
        "fedavg",
        "--rounds",
        "20",
        "--no-progress",
        "--evaluate-every",
        "20",
    ]
    commands = {
        f"fedlearn, {e}": [*command, "--engine", e] for e in ("sequential", "stacked", "auto")
    }
    names = ["bare loop", *([] if args.no_peers else installed())]
    commands |= {name: [sys.executable, __file__, "--run-job", name] for name in names}
    found = {name: [] for name in commands}
    for _ in range(max(2, args.repeats // 2)):
        for name, line in commands.items():
            found[name].append(watch(line))
    result = {
        name: {"seconds": median(s for s, _ in runs), "megabytes": median(m for _, m in runs)}
        for name, runs in found.items()
    }
    for name, r in result.items():
        print(f"{name:<24}{r['seconds']:>8.1f} s{r['megabytes']:>8.0f} MB", flush=True)
    return result


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


# ---- growth --------------------------------------------------------------------------------------


def growth(args):
    result = {"clients": [], "samples": []}
    for clients in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        task = random_task("digits_cnn", (1, 8, 8), clients, BATCH, args.device)
        result["clients"].append({"clients": clients, "samples": BATCH} | three(task, args))
    for samples in (32, 64, 128, 256, 512, 1024, 2048):
        task = random_task("digits_cnn", (1, 8, 8), 10, samples, args.device)
        result["samples"].append({"clients": 10, "samples": samples} | three(task, args))
    return result


def three(task, args):
    seconds = interleaved(measured(task, ("sequential", "stacked")), args.repeats)
    print(
        f"{task.clients} clients, {task.sizes[0]} samples each: "
        + ", ".join(f"{n} {s:.4f} s" for n, s in seconds.items()),
        flush=True,
    )
    return {"seconds": seconds}


# ---- profile -------------------------------------------------------------------------------------

PARTS = {  # what a round consists of, and the functions in which it happens
    "training": [(training, "train"), (training, "train_stacked")],
    "batch assembly": [("task", "gather")],
    "messages down": [("server", "send"), ("clients", "download")],
    "messages up": [("clients", "upload"), ("clients", "upload_rows"), ("server", "receive")],
    "aggregation": [("server", "aggregate")],
    "evaluation": [("server", "evaluate")],
}


def profile(args):
    result = {}
    for engine in ("sequential", "stacked"):
        for clients, partition in ((10, "dirichlet:0.5"), (100, "iid")):
            task = fl.tasks.classification(
                "digits", clients, partition, augment=("crop",) if args.augment else ()
            )
            result[f"{engine}, {clients} clients"] = shares = profile_run(
                task, engine, 10 * args.repeats
            )
            print(
                f"{engine}, {clients} clients, {partition}: "
                + ", ".join(f"{n} {s:.1%}" for n, s in shares.items()),
                flush=True,
            )
    return result


def profile_run(task, engine, rounds):
    """The share of each part in the time of all rounds, evaluation included."""
    method, settings = fl.methods.fedavg(), fl.Settings()
    together = choose(engine, method, task, settings, task.clients).together
    server = method.server_side(task, settings)
    clients, heard = fl.clients(method, task, settings, together), {}
    state, _ = one_round(server, clients, 1, server.start(), heard)
    spent, undo, inside, since = Counter(), [], ["the rest"], 0.0

    def turn():  # the time since the last turn belongs to the innermost part
        nonlocal since
        now = time.perf_counter()
        spent[inside[-1]] += now - since
        since = now

    def timed(function, part):
        def call(*args, **kwargs):
            turn()
            inside.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                turn()
                inside.pop()

        return call

    owners = {"task": type(task), "server": server, "clients": clients.side}
    for part, functions in PARTS.items():
        for owner, name in functions:
            owner = owners[owner] if isinstance(owner, str) else owner
            undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, timed(getattr(owner, name), part))
    try:
        began = since = time.perf_counter()
        for t in range(2, rounds + 2):
            state, _ = one_round(server, clients, t, state, heard)
        turn()
        total = since - began
    finally:
        for owner, name, function in undo:
            setattr(owner, name, function)
    return {part: spent[part] / total for part in (*PARTS, "the rest")}


def main():
    what = {"table": table, "job": job, "growth": growth, "profile": profile}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", choices=[*what, []], help="which parts (default: all)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two repeats")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads of this process (default 1)"
    )
    parser.add_argument("--no-peers", action="store_true", help="leave the other simulators out")
    parser.add_argument("--augment", action="store_true", help="profile with random crops")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the results as JSON; parts that were not measured keep their old entries",
    )
    parser.add_argument("--run-job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run_job:
        return run_job(args.run_job)
    args.repeats = 2 if args.quick else args.repeats
    result = json.loads(Path(args.out).read_text()) if args.out and Path(args.out).exists() else {}
    result["settings"] = {
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "batch": BATCH,
        "repeats": args.repeats,
        "threads": args.threads,
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "CPU",
    }
    with training.threads(args.threads):
        for name in args.what or what:
            if args.device == "cpu" or name != "job":
                print(f"---- {name}")
                result[name] = what[name](args)
                if args.out:
                    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
