"""How many bytes and seconds does a coder need? All that the book says about it is measured here.

    python tests/benchmarks/coders.py           # an update of ResNet-18: two minutes on a CPU core
    python tests/benchmarks/coders.py --quick   # a small network, two repeats
    python tests/benchmarks/coders.py --out data/results/coders_cpu.json

The update is normal times exp(normal), a heavy tail, for every tensor of the network by itself.
Speeds are megabytes of its float32 form a second; the coders take turns, medians count. Bits are an
entry's share of what is really sent. The bound is what no coder of the same values can beat on
average: log2 C(n, k) for k of n positions, n H(p) for masks, the empirical entropy for range-coded
levels, their own number of bits for all else.
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
from fedlearn.wire import QSGD, Mask, Signs, SmartIdx, TopK, Uniform, decode_positions

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
    "mask, half ones": (Mask(), 0.5),
    "mask, 1 in 10": (Mask(), 0.1),
}


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


def round_trip(coder, tensors):
    """Seconds to encode and to decode, the sections and what came out."""
    extra = (fl.rng.generator(0, "rounding"),) if getattr(coder, "stochastic", False) else ()
    began = time.perf_counter()
    sections = [coder.encode(t, *extra) for t in tensors]
    between = time.perf_counter()
    decoded = [coder.decode(s, t.shape) for s, t in zip(sections, tensors, strict=True)]
    return between - began, time.perf_counter() - between, sections, decoded


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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a small network, two repeats")
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    args = parser.parse_args()
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
