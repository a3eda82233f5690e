"""How fast is it? Everything that the page "How fast is it" shows is measured here.

    python tests/benchmarks/speed.py                  # all of it, about an hour on two CPU cores
    python tests/benchmarks/speed.py table --quick    # one part, a few repeats
    python tests/benchmarks/speed.py table --only ResNet --out data/results/speed_cpu.json
    python tests/benchmarks/speed.py table --device cuda --out data/results/speed_cuda.json
    python tests/benchmarks/speed.py --beside HEAD~9  # this code and that commit, in turns

table    a round of federated averaging: bare PyTorch loop, fedlearn's engines, and the simulators
         of requirements-peers.txt that are installed; they take turns, medians count, ratios are to
         the bare loop. On a GPU also channels last, bfloat16
job      20 rounds on digits in a fresh process, start-up included: seconds and peak memory
growth   seconds a round against the number of clients and against the number of samples
profile  where a round spends its time
import   CPU seconds from the start of Python to `import fedlearn`, `--help`, a first round
message  GB/s of encoding, checksum, decoding and averaging a dense message, beside memcpy's
memory   the most memory that large federations hold
uneven   uneven clients, stacked, beside what their sizes alone allow

With --out, rows and parts that were not measured keep their old entries. ``cost.py`` has the last
five parts and what limits a round.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import psutil
import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn import local
from fedlearn.files import write_text
from fedlearn.round import good_threads

sys.path.insert(0, str(Path(__file__).parent))
import cost  # noqa: E402
from common import BATCH, LR, plain, plain_cnn, random_task, wait  # noqa: E402
from peers import PEERS, shards_of  # noqa: E402

LONG = 8  # seconds: longer rounds are timed once
CORES = torch.get_num_threads()  # what torch takes by itself
# label -> network, image shape, samples a client by the number of clients, how they are split
NETWORKS = {
    "digits CNN, 8x8": (*cost.DIGITS, {10: 134, 100: 13, 1000: 13}),
    "digits CNN, uneven clients": (*cost.DIGITS, {10: 134, 100: 13}, "dirichlet:0.5"),
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
            x, y = task.epoch(k, torch.randperm(task.sizes[k], generator=generator), None)
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
        chosen, *_, next_round = cost.federation(method, task, engine, precision=precision)

    def play():
        with local.threads(threads, precision):
            return next_round()["seconds"]

    play.chosen, play.threads = chosen, threads
    return play


def interleaved(contenders, repeats):
    """Medians of rounds that take turns, of contenders that are warm. Rounds of more than ``LONG``
    seconds are taken once."""
    seconds = {name: [play()] for name, play in contenders.items()}
    for _ in range(repeats - 1 if max(s[0] for s in seconds.values()) <= LONG else 0):
        for name, play in contenders.items():
            seconds[name].append(play())
    return {name: median(s) for name, s in seconds.items()}


def installed():
    """The other simulators that are here, by label."""
    return {label: f for label, (module, f) in PEERS.items() if find_spec(module)}


def sentence(error):
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def row_of(args, label, network, shape, clients, samples, partition, peak):
    """One row of the table. One contender's trouble does not hide the others' numbers."""
    task = random_task(network, shape, clients, samples, args.device, partition)
    makers = {"bare loop": partial(bare, task)}
    makers |= {e: partial(packaged, task, e) for e in ("sequential", "stacked", "auto")}
    if args.forms:
        makers["bare loop, channels last"] = partial(bare, task, torch.channels_last)
        makers["bare loop, bf16"] = partial(bare, task, precision="bf16")
        makers |= {
            f"{e}, bf16": partial(packaged, task, e, "bf16") for e in ("sequential", "stacked")
        }
    ready, seconds = {}, dict.fromkeys(makers)
    for name, make in makers.items():
        try:
            ready[name] = make()
            ready[name]()  # warms up, and shows whether there is memory enough
        except (RuntimeError, ValueError) as error:
            ready.pop(name, None)
            seconds[name] = sentence(error)
    seconds |= interleaved(ready, args.repeats)
    if args.device == "cpu" and not args.no_peers:
        few = 1 if seconds["bare loop"] > LONG / 2 else max(2, args.repeats // 2)
        for name, simulate in installed().items():
            try:
                times, _ = simulate(shards_of(task), lambda: plain(task), LR, BATCH, few + 1)
                seconds[name] = median(times[1:])
            except Exception as error:
                seconds[name] = sentence(error)
    auto, stacked = ready.get("auto"), ready.get("stacked")
    row = {"network": label, "clients": clients, "samples": samples}
    row |= {"date": date.today().isoformat(), "chosen": auto and auto.chosen.name}
    row |= {"threads": auto and auto.threads, "together": stacked and stacked.chosen.together}
    base = seconds["bare loop"]
    ratios = {
        n: f"{s / base:.2f}" if isinstance(s, float) else f"failed: {s}" for n, s in seconds.items()
    }
    print(f"{label}, {clients} clients ({base:.3f} s): {ratios}, auto {row['chosen']}", flush=True)
    return row | {"seconds": seconds, "limits": cost.limits(task, peak)}


def table(args, old):
    """Rows that are measured now, those of ``old`` otherwise, and empty ones for what is left."""
    rows = {(row["network"], row["clients"]): row for row in old.get("rows", [])}
    absent = [label for label in PEERS if label not in installed()]
    result = {"machine": cost.machine(args.device, args.quick), "absent": absent}
    began, planned = time.monotonic(), []
    for networks in (NETWORKS, ON_GPU) if args.device.startswith("cuda") else (NETWORKS,):
        for label, (network, shape, counts, *partition) in networks.items():
            planned += [
                (n, label, network, shape, m, *(partition or [None])) for n, m in counts.items()
            ]
    for clients, label, network, shape, samples, partition in sorted(
        planned, key=lambda row: row[0]
    ):
        key, late = (label, clients), time.monotonic() - began > 60 * args.minutes
        row = rows.setdefault(key, {"network": label, "clients": clients, "seconds": {}})
        wanted = args.only.lower() in label.lower() and clients <= args.most
        if wanted and late:
            print(f"{label}, {clients} clients: no time left")
        elif wanted and not (args.missing and row["seconds"]):
            case = network, shape, clients, samples, partition
            rows[key] = row_of(args, label, *case, result["machine"])
        order = [*NETWORKS, *dict.fromkeys(name for name, _ in rows)]
        kept = sorted(rows, key=lambda key: (order.index(key[0]), key[1]))
        yield result | {"rows": [rows[key] for key in kept]}
    if absent:
        print(f"not installed: {', '.join(absent)}")


# ---- a whole job in a fresh process --------------------------------------------------------------


def run_job(name):
    """What the fresh process of ``job`` does for the contenders that have no command line."""
    task = fl.tasks.classification("digits", 10)
    torch.set_num_threads(1)
    if name == "bare loop":
        play = bare(task)
        for _ in range(20):
            play()
    else:
        PEERS[name][1](shards_of(task), lambda: plain(task), LR, BATCH, 20)


def watch(command):
    """Run a command: its seconds, and the most memory (MB) that it and its children held."""
    began, peak = time.perf_counter(), 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        total = 0
        try:
            for p in (process, *process.children(recursive=True)):
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


def job(args):
    words = "run fedavg --rounds 20 --no-progress --evaluate-every 20 --engine".split()
    engines = "sequential", "stacked", "auto"
    commands = {f"fedlearn, {e}": [*cost.FEDLEARN, *words, e] for e in engines}
    names = ["bare loop", *([] if args.no_peers else installed())]
    commands |= {name: [sys.executable, __file__, "--run-job", name] for name in names}
    runs = {name: [] for name in commands}
    for _ in range(max(2, args.repeats // 2)):
        for name, command in commands.items():
            runs[name].append(watch(command))
    result = {}
    for name, pairs in runs.items():
        seconds, megabytes = map(median, zip(*pairs, strict=True))
        result[name] = {"seconds": seconds, "megabytes": megabytes}
        print(f"{name:<24}{seconds:>8.1f} s{megabytes:>8.0f} MB", flush=True)
    return result


# ---- growth --------------------------------------------------------------------------------------


def growth(args):
    cases = {"clients": [(n, BATCH) for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)]}
    cases |= {"samples": [(10, n) for n in (32, 64, 128, 256, 512, 1024, 2048)]}
    result = {}
    for name, (clients, samples) in ((n, case) for n in cases for case in cases[n]):
        task = random_task(*cost.DIGITS, clients, samples, args.device)
        ready = {"bare loop": bare(task)}
        ready |= {e: packaged(task, e) for e in ("sequential", "stacked")}
        for play in ready.values():
            play()  # warms up
        row = {"clients": clients, "samples": samples, "seconds": interleaved(ready, args.repeats)}
        result.setdefault(name, []).append(row)
        print(row, flush=True)
    return result


# ---- this code and a commit ----------------------------------------------------------------------

ROUND = """
import fedlearn as fl
task = fl.tasks.classification("digits", 10, "dirichlet:0.5")
for engine in ("sequential", "stacked"):
    how = {"engine": engine, "threads": 1, "progress": False, "evaluate_every": 100}
    print(sorted(fl.run(fl.methods.fedavg(), task, 20, **how).seconds)[10])
"""


def beside(commit, repeats):
    """Median seconds of a round on digits: of that commit, of this code, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=cost.ROOT, stdout=-1, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        turns = []
        for place in [folder, cost.ROOT] * repeats:
            env = os.environ | {"PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, "-c", ROUND], cwd=place, env=env, stdout=-1, check=True
            )
            turns.append([float(s) for s in done.stdout.split()])
    for k, engine in enumerate(("sequential", "stacked")):
        old, new = median(t[k] for t in turns[::2]), median(t[k] for t in turns[1::2])
        print(f"{engine}: {commit} {old:.4f} s, this code {new:.4f} s, ratio {new / old:.3f}")


def main():
    parts = {"table": table, "job": job, "growth": growth, "profile": cost.profile}
    parts |= {"import": cost.starts, "message": cost.message, "memory": cost.memory}
    parts |= {"uneven": partial(cost.uneven, bare=bare)}
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two repeats")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-peers", action="store_true", help="leave the other simulators out")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows of the table with it")
    parser.add_argument("--most", type=int, default=10**9, metavar="N", help="rows up to N clients")
    parser.add_argument("--missing", action="store_true", help="only what FILE does not have")
    parser.add_argument("--forms", action="store_true", help="what only a GPU's table has")
    late = "begin no row of the table after them"
    parser.add_argument("--minutes", type=float, default=math.inf, help=late)
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    parser.add_argument("--beside", metavar="COMMIT", help="compare with it, and no more")
    parser.add_argument("--run-job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.repeats = 2 if args.quick else args.repeats
    if args.run_job:
        return run_job(args.run_job)
    if args.beside:
        return beside(args.beside, args.repeats)
    cuda = args.device.startswith("cuda")
    args.forms |= cuda
    result = json.loads(Path(args.out).read_text()) if args.out and Path(args.out).exists() else {}
    device = torch.cuda.get_device_name(args.device) if cuda else "CPU"
    result["settings"] = {"date": date.today().isoformat(), "torch": torch.__version__}
    result["settings"] |= {"batch": BATCH, "repeats": args.repeats, "threads": 1}
    result["settings"] |= {"cores": os.cpu_count(), "device": device}
    with local.threads(1):
        for name in args.parts or (("table", "growth") if cuda else parts):
            if args.missing and name != "table" and name in result:
                continue
            print(f"---- {name}", flush=True)
            # the table row by row, so that what was measured is there whatever comes
            rows = name == "table"
            for part in table(args, result.get(name, {})) if rows else [parts[name](args)]:
                result[name] = part
                if args.out:
                    write_text(Path(args.out), json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
