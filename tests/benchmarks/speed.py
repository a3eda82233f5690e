"""How fast is it? Everything that the page "How fast is it" shows is measured here.

    python tests/benchmarks/speed.py                  # all of it, about an hour on two CPU cores
    python tests/benchmarks/speed.py table --quick    # one part, a few repeats
    python tests/benchmarks/speed.py table --only ResNet --out data/results/speed_cpu.json
    python tests/benchmarks/speed.py table --device cuda --out data/results/speed_cuda.json

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

With --out, rows and parts that were not measured keep their old entries. ``shares.py`` has the
profile, ``uneven.py`` the last part, ``cost.py`` the three before it and what limits a round.
"""

import argparse
import importlib.util
import itertools
import json
import math
import os
import sys
import time
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

import fedlearn as fl
from fedlearn import local
from fedlearn.files import write_text
from fedlearn.round import good_threads, one_round
from fedlearn.stacked import choose

sys.path.insert(0, str(Path(__file__).parent))
import cost  # noqa: E402
import shares  # noqa: E402
import uneven  # noqa: E402
from common import BATCH, LR, plain, plain_cnn, random_task, wait, watch  # noqa: E402
from peers import PEERS, shards_of  # noqa: E402

LONG = 8  # seconds: longer rounds are timed once
CORES = torch.get_num_threads()  # what torch takes by itself
# label -> network, image shape, samples a client by the number of clients, how they are split
NETWORKS = {
    "digits CNN, 8x8": ("digits_cnn", (1, 8, 8), {10: 134, 100: 13, 1000: 13}),
    "digits CNN, uneven clients": ("digits_cnn", (1, 8, 8), {10: 134, 100: 13}, "dirichlet:0.5"),
    "plain network, 8x8": (plain_cnn, (1, 8, 8), {10: 134, 100: 13}),
    "McMahan CNN, 32x32 colour": ("mcmahan_cnn", (3, 32, 32), {10: 128, 100: 32}),
    "ResNet-18, 32x32 colour": ("resnet18", (3, 32, 32), {10: 16}),
    "ResNet-56, 32x32 colour": ("resnet56", (3, 32, 32), {10: 16}),
}
# only on a GPU: what takes a CPU too long
MORE = {
    "McMahan CNN, 32x32 colour": ("mcmahan_cnn", (3, 32, 32), {1000: 32}),
    "ResNet-18, 32x32 colour": ("resnet18", (3, 32, 32), {100: 32, 1000: 32}),
    "ResNet-56, 32x32 colour": ("resnet56", (3, 32, 32), {100: 32, 1000: 32}),
}


def planned(device):
    """The rows of the table as (label, network, shape, clients, samples, partition), those with few
    clients first."""
    rows = [
        (label, network, shape, clients, samples, *(partition or [None]))
        for those in ((NETWORKS, MORE) if device.startswith("cuda") else (NETWORKS,))
        for label, (network, shape, counts, *partition) in those.items()
        for clients, samples in counts.items()
    ]
    return sorted(rows, key=lambda row: row[3])


def bare(task, layout=torch.contiguous_format, precision="float32"):
    """The loop that everything is compared with: the same batches into one network, no
    federation."""
    net = plain(task).train().to(memory_format=layout)
    rough = torch.autocast(task.device.type, torch.bfloat16)
    optimiser = torch.optim.SGD(net.parameters(), LR)
    turn = itertools.count(1)

    def round():
        t = next(turn)
        wait(task)
        began = time.perf_counter()
        for k in range(task.clients):
            generator = fl.rng.generator(task.seed, "shuffle", t, k)
            order = torch.randperm(task.sizes[k], generator=generator)
            x, y = task.epoch(k, order, None)
            x = x.to(memory_format=layout)
            for at in range(0, len(y), BATCH):
                optimiser.zero_grad()
                with rough if precision == "bf16" else nullcontext():
                    loss = F.cross_entropy(net(x[at : at + BATCH]), y[at : at + BATCH])
                loss.backward()
                optimiser.step()
        wait(task)
        return time.perf_counter() - began

    return round


def ours(task, engine, precision="float32"):
    """The package, real messages included. "auto" also chooses the number of threads, as ``fl.run``
    does by itself."""
    method = fl.methods.fedavg(LR)
    settings = fl.Settings(batch_size=BATCH, evaluate_every=10**9, precision=precision)
    with local.threads(CORES):
        own = good_threads(plain(task), task, BATCH)
    threads = own if engine == "auto" else torch.get_num_threads()
    with local.threads(threads, precision):
        chosen = choose(engine, method, task, settings, task.clients)
    server = method.server_side(task, settings)
    clients = fl.clients(method, task, settings, chosen.together)
    turn, state, last_seen = itertools.count(1), server.start(), {}

    def round():
        nonlocal state
        wait(task)
        with local.threads(threads, precision):
            state, row = one_round(server, clients, next(turn), state, last_seen)
        return row["seconds"]

    round.chosen, round.threads = chosen, threads
    return round


def interleaved(contenders, repeats):
    """Medians of rounds that take turns, of contenders that are warm. Rounds of more than ``LONG``
    seconds are taken once."""
    seconds = {name: [round()] for name, round in contenders.items()}
    if max(s[0] for s in seconds.values()) > LONG:
        return {name: s[0] for name, s in seconds.items()}
    for _ in range(repeats - 1):
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
        return sentence(error)


def sentence(error):
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def installed():
    """The other simulators that are here, by label."""
    return {label: f for label, (module, f) in PEERS.items() if importlib.util.find_spec(module)}


def contenders(task, forms):
    """What takes turns in a row of the table: functions that make it, by label."""
    made = {"bare loop": lambda: bare(task)}
    made |= {e: lambda e=e: ours(task, e) for e in ("sequential", "stacked", "auto")}
    if forms:
        made["bare loop, channels last"] = lambda: bare(task, torch.channels_last)
        made["bare loop, bf16"] = lambda: bare(task, precision="bf16")
        for e in ("sequential", "stacked"):
            made[f"{e}, bf16"] = lambda e=e: ours(task, e, "bf16")
    return made


def row_of(args, label, network, shape, clients, samples, partition, peak):
    """One row of the table."""
    task = random_task(network, shape, clients, samples, args.device, partition)
    made, failed, ready = contenders(task, args.forms), {}, {}
    for name, make in made.items():
        try:
            ready[name] = make()
            ready[name]()  # warms up, and shows whether there is memory enough
        except (RuntimeError, ValueError) as error:  # must not hide the others' numbers
            failed[name] = sentence(error)
    seconds = interleaved(ready, args.repeats)
    if args.device == "cpu" and not args.no_peers:
        few = 1 if seconds["bare loop"] > LONG / 2 else max(2, args.repeats // 2)
        seconds |= {name: peer_seconds(task, f, few) for name, f in installed().items()}
    auto, stacked = ready.get("auto"), ready.get("stacked")
    return {
        "network": label,
        "clients": clients,
        "samples": samples,
        "date": date.today().isoformat(),
        "chosen": auto and auto.chosen.name,
        "threads": auto and auto.threads,
        "together": stacked and stacked.chosen.together,
        "seconds": {name: {**seconds, **failed}[name] for name in {**made, **seconds}},
        "limits": cost.limits(task, peak),
    }


def table(args, old):
    """Rows that are measured now, those of ``old`` otherwise, and empty ones for what is left."""
    rows = {(row["network"], row["clients"]): row for row in old.get("rows", [])}
    peak = cost.machine(args.device, args.quick)
    began, result = time.monotonic(), {"machine": peak}
    result["absent"] = [label for label in PEERS if label not in installed()]
    for label, network, shape, clients, samples, partition in planned(args.device):
        key, late = (label, clients), time.monotonic() - began > 60 * args.minutes
        row = rows.setdefault(key, {"network": label, "clients": clients, "seconds": {}})
        wanted = args.only.lower() in label.lower() and clients <= args.most
        if wanted and late:
            print(f"{label}, {clients} clients: no time left")
        elif wanted and not (args.missing and row["seconds"]):
            rows[key] = row_of(args, label, network, shape, clients, samples, partition, peak)
            show_row(rows[key])
        order = [*NETWORKS, *MORE, *dict.fromkeys(name for name, _ in rows)]
        kept = sorted(rows.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
        yield result | {"rows": [row for _, row in kept]}
    if result["absent"]:
        print(f"not installed: {', '.join(result['absent'])}")


def show_row(row):
    base = row["seconds"]["bare loop"]
    cells = [
        f"{name} {s / base:.2f}" if isinstance(s, float) else f"{name} failed: {s}"
        for name, s in row["seconds"].items()
    ]
    auto = f"(auto: {row['chosen']}, {row['threads']} threads; bare loop {base:.3f} s)"
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
    words = "run fedavg --rounds 20 --no-progress --evaluate-every 20"
    command = [*cost.FEDLEARN, *words.split()]
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
    ready = {"bare loop": bare(task)} | {e: ours(task, e) for e in ("sequential", "stacked")}
    for round in ready.values():
        round()  # warms up
    seconds = interleaved(ready, args.repeats)
    print(f"{task.clients} clients, {task.sizes[0]} samples each: {seconds}", flush=True)
    return {"seconds": seconds}


def main():
    own = {"job": job, "growth": growth, "profile": shares.profile}
    more = {"import": cost.starts, "message": cost.message, "memory": cost.memory}
    what = {"table": table, **own, **more, "uneven": uneven.uneven}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", choices=[*what, []], help="which parts (default: all)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two repeats")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-peers", action="store_true", help="leave the other simulators out")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows of the table with it")
    parser.add_argument("--most", type=int, default=10**9, metavar="N", help="rows up to N clients")
    parser.add_argument("--missing", action="store_true", help="only what FILE does not have")
    parser.add_argument("--forms", action="store_true", help="what only a GPU's table has")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no row of the table after them"
    )
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    parser.add_argument("--run-job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run_job:
        return run_job(args.run_job)
    args.repeats = 2 if args.quick else args.repeats
    cuda = args.device.startswith("cuda")
    args.forms |= cuda
    result = json.loads(Path(args.out).read_text()) if args.out and Path(args.out).exists() else {}
    result["settings"] = {
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "batch": BATCH,
        "repeats": args.repeats,
        "threads": 1,
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(args.device) if cuda else "CPU",
    }
    with local.threads(1):
        for name in args.what or (what if not cuda else ("table", "growth")):
            if args.missing and name != "table" and name in result:
                continue
            print(f"---- {name}", flush=True)
            # the table row by row, so that what was measured is there whatever comes
            rows = name == "table"
            for part in table(args, result.get(name, {})) if rows else [what[name](args)]:
                result |= {} if part is None else {name: part}
                if args.out:
                    write_text(Path(args.out), json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
