"""How many bytes and seconds does a coder need? All that the book says about it is measured here.

    python tests/benchmarks/coders.py           # an update of ResNet-18: five minutes on a CPU core
    python tests/benchmarks/coders.py --quick   # a small network, two repeats
    python tests/benchmarks/coders.py --out data/results/coders_cpu.json
    python tests/benchmarks/coders.py --updates --out data/results/coders_updates.json

The update is normal times exp(normal), a heavy tail, for every tensor of the network by itself.
Speeds are megabytes of its float32 form in a second of the processor, of which other programs take
little; the coders take turns, medians count. Bits are an entry's share of what is really sent. The
bound is what no coder of the same values can beat on average: log2 C(n, k) for k of n positions, n
H(p) for masks, the empirical entropy for range-coded levels and for exponents, log2 3 for three
values, the numbers that fix a matrix of rank r, r (n + m - r), and their own
number of bits for all else.

``--updates`` measures errors instead: of what arrives of real updates of federated averaging on the
digits, in five rounds, and the accuracy that each coder reaches in six.
"""

import argparse
import json
import math
import os
import platform
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np
import torch

import fedlearn as fl
from fedlearn.parts import Feedback, Lossy, Update, WarmStart
from fedlearn.wire import (
    EDEN,
    QSGD,
    CountSketch,
    LowRank,
    Mask,
    Natural,
    RandomK,
    Signs,
    SmartIdx,
    TernGrad,
    TopK,
    Uniform,
    Zipped,
    decode_positions,
)

CODERS = {  # label -> coder, share of ones in the mask that it codes
    "top 1/32, float32": (TopK(1 / 32), None),
    "top 1/32, float16": (TopK(1 / 32, "float16"), None),
    "top 1/32, signs (STC)": (TopK(1 / 32, "sign"), None),
    "top 1/1000, float32": (TopK(1 / 1000), None),
    "SmartIdx, 1/32": (SmartIdx(1 / 32), None),
    "scaled signs": (Signs(), None),
    "uniform, 8 bits": (Uniform(8), None),
    "uniform, 5 bits": (Uniform(5), None),
    "QSGD, 127 levels": (QSGD(), None),
    "QSGD, 127 levels, entropy": (QSGD(entropy=True), None),
    "QSGD, 7 levels, entropy": (QSGD(7, entropy=True), None),
    "natural": (Natural(), None),
    "TernGrad": (TernGrad(), None),
    "DRIVE (EDEN, 1 bit)": (EDEN(1), None),
    "EDEN, 4 bits": (EDEN(4), None),
    "random 1/32": (RandomK(1 / 32), None),
    "PowerSGD, rank 2": (LowRank(2), None),
    "count sketch, 1/2": (CountSketch(1 / 2), None),
    "zipped floats": (Zipped(), None),
    "mask, half ones": (Mask(), 0.5),
    "mask, 1 in 10": (Mask(), 0.1),
}
KNOBS = {  # of --updates: label -> coders, from few bits to many, and the steps before them
    "top-k": ([TopK(1 / 4**i) for i in (5, 4, 3, 2, 1)], (Feedback(),)),
    "top-k, signs": ([TopK(1 / 4**i, "sign") for i in (5, 4, 3, 2, 1)], (Feedback(),)),
    "SmartIdx": ([SmartIdx(1 / 4**i) for i in (5, 4, 3, 2, 1)], (Feedback(),)),
    "random-k": ([RandomK(1 / 4**i, unbiased=False) for i in (5, 4, 3, 2, 1)], (Feedback(),)),
    "random-k, unbiased": ([RandomK(1 / 4**i) for i in (5, 4, 3, 2, 1)], ()),
    "count sketch": (
        [CountSketch(size, ratio=size / 32) for size in (1 / 8, 1 / 4, 1 / 2, 1.0)],
        (Feedback(),),
    ),
    "PowerSGD": ([LowRank(rank) for rank in (1, 2, 4)], (Feedback(),)),
    "signs": ([Signs()], (Feedback(),)),
    "TernGrad": ([TernGrad()], ()),
    "EDEN": ([EDEN(bits) for bits in (1, 2, 3, 4, 6, 8)], ()),
    "uniform": ([Uniform(bits) for bits in (1, 2, 3, 4, 6, 8)], ()),
    "QSGD": ([QSGD(levels) for levels in (1, 3, 7, 31, 127)], ()),
    "natural": ([Natural()], ()),
    "zipped": ([Zipped()], ()),
}
ROUNDS = (1, 3, 10, 30, 100)


def update(net):
    """A made-up update, tensor by tensor, and a uniform number for each entry for the masks."""
    generator = fl.rng.generator(0, "coders")
    shapes = [p.shape for p in net.parameters()]
    tensors = [
        torch.randn(s, generator=generator) * torch.randn(s, generator=generator).exp()
        for s in shapes
    ]
    return tensors, [torch.rand(s, generator=generator) for s in shapes]


def entropy(counts):
    """Bits of the best code of so many symbols of each kind."""
    counts = counts[counts > 0]
    return float(counts @ np.log2(counts.sum() / counts))


def choices(n, k):
    """log2 C(n, k)"""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def parts(coder, section, decoded):
    """What a section consists of: part -> bits sent and the bound, ``None`` where there is none."""
    n, bits = decoded.numel(), 8 * len(section)
    if isinstance(coder, Zipped):
        exponents = np.unique(np.frexp(decoded.numpy())[1], return_counts=True)[1]
        return {"sign, fraction": (24 * n, 24 * n), "exponent": (bits - 24 * n, entropy(exponents))}
    if isinstance(coder, TernGrad):
        return {"scale": (32, 32), "three values": (bits - 32, n * math.log2(3))}
    if isinstance(coder, EDEN):
        return {"scale": (32, 32), "levels": (bits - 32, coder.bits * n)}
    if isinstance(coder, LowRank):
        sizes = coder.factors(decoded.shape)
        return {"factors": (bits, 32 * coder.rank * (sum(sizes) - coder.rank) if sizes else bits)}
    if isinstance(coder, Natural | RandomK | CountSketch):
        return {"numbers": (bits, 9 * n if isinstance(coder, Natural) else bits)}
    if isinstance(coder, TopK):
        index, used = decode_positions(section, n)
        values = bits - 8 * used
        return {"positions": (8 * used, choices(n, len(index))), "values": (values, values)}
    if isinstance(coder, Mask):
        ones = int(decoded.sum())
        return {"mask": (bits, entropy(np.array([ones, n - ones])))}
    if isinstance(coder, Signs):
        return {"scale": (32, 32), "signs": (bits - 32, n)}
    if isinstance(coder, Uniform):
        return {"scale": (64, 64), "levels": (bits - 64, coder.bits * n)}
    if isinstance(coder, QSGD):
        norms = np.frombuffer(section, "<f4", -(-n // coder.bucket)).repeat(coder.bucket)[:n]
        levels = np.rint(decoded.flatten().numpy() / np.where(norms, norms, 1) * coder.levels)
        head, fixed = 32 * -(-n // coder.bucket), n * (1 + math.ceil(math.log2(coder.levels + 1)))
        bound = entropy(np.unique(levels, return_counts=True)[1]) if coder.entropy else fixed
        return {"norms": (head, head), "levels": (bits - head, bound)}
    return {"all": (bits, None)}


def round_trip(coder, tensors, seed=0):
    """Seconds to encode and to decode, the sections and what came out."""

    def draws(needed):
        return (fl.rng.generator(seed, "rounding"),) if needed else ()

    began, extra = time.process_time(), draws(coder.stochastic or coder.shared)
    sections = [coder.encode(t, *extra) for t in tensors]
    between, extra = time.process_time(), draws(coder.shared)
    # on both sides one generator goes on from tensor to tensor
    decoded = [coder.decode(s, t.shape, *extra) for s, t in zip(sections, tensors, strict=True)]
    return between - began, time.process_time() - between, sections, decoded


def measure(net, repeats):
    tensors, chances = update(net)
    inputs = {
        name: tensors if p is None else [(c < p).float() for c in chances]
        for name, (_, p) in CODERS.items()
    }
    entries = sum(t.numel() for t in tensors)
    rows = {name: {"coder": repr(coder), "parts": {}} for name, (coder, _) in CODERS.items()}
    for name, (coder, _) in CODERS.items():  # also warms up
        _, _, sections, decoded = round_trip(coder, inputs[name])
        each = [parts(coder, s, d) for s, d in zip(sections, decoded, strict=True)]
        for part in each[0]:
            sent, bound = (
                sum(p[part][i] for p in each) if each[0][part][i] is not None else None
                for i in (0, 1)
            )
            rows[name]["parts"][part] = {
                "bits": sent / entries,
                "bound": None if bound is None else bound / entries,
            }
        rows[name]["bytes"] = sum(map(len, sections))
    seconds = {name: [] for name in CODERS}
    for _ in range(repeats):
        for name, (coder, _) in CODERS.items():
            seconds[name].append(round_trip(coder, inputs[name])[:2])
    for name, row in rows.items():
        row["encode_s"], row["decode_s"] = (median(s) for s in zip(*seconds[name], strict=True))
    return entries, rows


def real_updates(task, settings):
    """The large tensors of the update of the client with most images, in some rounds."""
    fedavg, states = fl.methods.fedavg(), {}
    server, workers = fedavg.server_side(task, settings), fl.clients(fedavg, task, settings)
    states[1] = server.start()

    def keep(row, state):
        if row["round"] + 1 in ROUNDS:
            states[row["round"] + 1] = state

    how = {"batch_size": settings.batch_size, "engine": "stacked"}
    fl.run(fedavg, task, rounds=max(ROUNDS) - 1, on_round=[keep], **how)
    client = max(range(task.clients), key=lambda k: task.sizes[k])
    for t, state in states.items():
        answer = workers.answer(t, client, server.send(t, client, state)[0])
        update = server.receive(t, client, answer, state).update
        yield t, [u for u in update.values() if u.dim() > 1]


def errors(task, settings, draws=5):
    """For each coder, setting and round: bits an entry, and the squared error of what arrives as a
    share of the update's energy, the mean of some draws."""
    found = []
    for t, tensors in real_updates(task, settings):
        entries = sum(u.numel() for u in tensors)
        energy = sum(float(u.double().square().sum()) for u in tensors)
        for label, (coders, _) in KNOBS.items():
            for coder in coders:
                wrong = []
                for seed in range(draws if coder.stochastic or coder.shared else 1):
                    _, _, sections, came = round_trip(coder, tensors, seed)
                    pairs = zip(came, tensors, strict=True)
                    wrong.append(sum(float((c - u).double().square().sum()) for c, u in pairs))
                row = {"coder": label, "setting": repr(coder), "round": t}
                bits = 8 * sum(map(len, sections)) / entries
                found.append(row | {"bits": bits, "error": np.mean(wrong) / energy})
    return found


def accuracies(task, settings, rounds=6):
    """What federated averaging reaches with each coder in its uplink."""
    chains = {"dense": ()}
    for label, (coders, steps) in KNOBS.items():
        for coder in coders:
            warm = (WarmStart(coder.rank),) if isinstance(coder, LowRank) else ()
            chains[label, repr(coder)] = (*steps, *warm, Lossy(coder))
    found = []
    for key, chain in chains.items():
        method = fl.methods.fedavg().but(uplink=fl.Uplink(Update(), *chain))
        history = fl.run(
            method, task, rounds=rounds, batch_size=settings.batch_size, engine="stacked"
        )
        label, setting = key if isinstance(key, tuple) else (key, "")
        row = {"coder": label, "setting": setting, "uplink": repr(method.uplink)}
        row["accuracy"] = float(history.final["accuracy"])
        found.append(row | {"bytes_up": int(history.bytes_up[-1]) // task.clients})
        print(f"{label:<20}{setting:<48}{row['accuracy']:>8.3f}", flush=True)
    return found


def show(entries, rows):
    print(f"{'':<28}{'encode':>8}{'decode':>8}{'both':>8}{'bits an':>9}{'bound':>9}{'excess':>9}")
    print(f"{'':<28}{'MB/s':>8}{'MB/s':>8}{'s':>8}{'entry':>9}")
    for name, row in rows.items():
        speed = [4e-6 * entries / row[way] for way in ("encode_s", "decode_s")]
        both = row["encode_s"] + row["decode_s"]
        bits = 8 * row["bytes"] / entries
        print(f"{name:<28}{speed[0]:>8.0f}{speed[1]:>8.0f}{both:>8.2f}{bits:>9.4f}")
        for part, r in row["parts"].items():
            bound = (
                ""
                if r["bound"] is None
                else f"{r['bound']:>9.4f}{r['bits'] / r['bound'] - 1:>9.2%}"
            )
            print(f"{'  ' + part:<52}{r['bits']:>9.4f}{bound}")


def write_updates(out):
    """The errors and accuracies of ``--updates``, printed and written."""
    torch.set_num_threads(1)
    what = {"dataset": "digits", "clients": 10, "partition": "dirichlet:0.5", "seed": 0}
    task = fl.tasks.classification("digits", 10, "dirichlet:0.5", network="digits_cnn", seed=0)
    settings = fl.Settings(batch_size=16)
    rows = errors(task, settings)
    for row in rows:
        print(
            f"{row['coder']:<20}{row['setting']:<48}{row['round']:>4}"
            f"{row['bits']:>9.3f}{row['error']:>9.4f}"
        )
    after = accuracies(task, settings)
    if out:
        how = what | {"network": "digits_cnn", "batch_size": 16, "lr": 0.1, "rounds": 6}
        about = how | {
            "command": "python tests/benchmarks/coders.py --updates",
            "date": date.today().isoformat(),
            "machine": platform.machine(),
            "versions": {name: version(name) for name in ("torch", "numpy")},
        }
        Path(out).write_text(
            json.dumps({"settings": about, "errors": rows, "accuracy": after}, indent=1) + "\n"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a small network, two repeats")
    parser.add_argument("--updates", action="store_true", help="errors on real updates instead")
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    args = parser.parse_args()
    if args.updates:
        return write_updates(args.out)
    repeats = 2 if args.quick else args.repeats
    torch.set_num_threads(1)
    entries, rows = measure(fl.models.digits_cnn() if args.quick else fl.models.resnet18(), repeats)
    show(entries, rows)
    if args.out:
        settings = {
            "date": date.today().isoformat(),
            "network": "digits_cnn" if args.quick else "resnet18",
            "entries": entries,
            "repeats": repeats,
            "threads": 1,
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "versions": {name: version(name) for name in ("torch", "numpy", "constriction")},
        }
        Path(args.out).write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
