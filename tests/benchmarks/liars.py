"""How do server parts stand clients that lie? Test accuracy of FedAvg on the digits when 0 to 4
of 10 clients lie, for each lie of ``fedlearn.book.liars`` and each server part.

    python tests/benchmarks/liars.py --out data/results/liars_digits.json   # 20 minutes, one core
    python tests/benchmarks/liars.py --rounds 2 --most 1

Clients 0, 1, ... are the liars. The parts are set up for three of them, which is the most that Krum
allows among ten.
"""

import argparse
import json
import os
import platform
import sys
import warnings

import torch

import fedlearn as fl
from fedlearn.book.liars import FACTORS, lying
from fedlearn.cli import provenance
from fedlearn.files import write_text
from fedlearn.parts import Clipped, Krum, Median, TrimmedMean

SERVERS = {
    "Mean": fl.Mean(),
    "Clipped": Clipped(1.0),
    "TrimmedMean": TrimmedMean(0.3),
    "Median": Median(),
    "Krum": Krum(3),
    "Multi-Krum": Krum(3, keep=6),
}


def trained(server, count, lie, task, args):
    """A run with so many liars."""
    method = lying(fl.methods.fedavg().but(server=server), range(count), lie)
    how = {"epochs": args.epochs, "engine": "stacked", "threads": 1}
    h = fl.run(method, task, args.rounds, **how)
    row = {"liars": count, "accuracy": h.final["accuracy"]}
    row["untaken"] = sum(r["untaken"] is not None for r in h.rows)
    return row | {"seconds": float(h.seconds.sum())}


def measure(args, task):
    """{lie: {server: [row for each number of liars]}}; without liars all lies are the same."""
    rows, honest = {}, {}
    for lie in FACTORS:
        for name, server in SERVERS.items():
            if name not in honest:
                honest[name] = trained(server, 0, lie, task, args)
            some = [trained(server, n, lie, task, args) for n in range(1, args.most + 1)]
            row = rows.setdefault(lie, {})[name] = [honest[name], *some]
            print(f"{lie:8} {name:12}", *(f"{r['accuracy']:.3f}" for r in row), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--most", type=int, default=4, help="liars among the ten clients")
    parser.add_argument("--partition", default="dirichlet:0.5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".* rounds of fedavg were not taken")
    origin = provenance() | {"command": " ".join(["python", *sys.argv])}
    rows = measure(args, fl.tasks.classification("digits", 10, args.partition, args.seed))
    if args.out:
        names = "rounds", "epochs", "partition", "seed"
        settings = {name: getattr(args, name) for name in names} | {"clients": 10, "threads": 1}
        settings |= {"factors": FACTORS, "servers": {n: repr(s) for n, s in SERVERS.items()}}
        settings |= {"cores": os.cpu_count(), "machine": platform.machine()}
        settings["torch"] = torch.__version__
        results = {"provenance": origin, "settings": settings, "rows": rows}
        write_text(args.out, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
