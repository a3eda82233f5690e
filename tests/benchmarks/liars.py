"""How do server parts stand clients that lie? Test accuracy of FedAvg on the digits when 0 to 4
of 10 clients lie, for each lie of ``fedlearn.book.liars`` and each server part.

    python tests/benchmarks/liars.py --out data/results/liars_digits.json   # 20 minutes, one core
    python tests/benchmarks/liars.py --quick              # two rounds, 0 and 1 liars

Clients 0, 1, ... are the liars. The parts are set up for three of them, which is the most that Krum
allows among ten.
"""

import argparse
import json
import os
import platform
import sys
import time
import warnings

import torch

import fedlearn as fl
from fedlearn.cli import provenance
from fedlearn.files import write_text
from fedlearn.book.liars import FACTORS, lying
from fedlearn.parts import Clipped, Krum, Median, TrimmedMean

SERVERS = {
    "Mean": fl.Mean(),
    "Clipped": Clipped(1.0),
    "TrimmedMean": TrimmedMean(0.3),
    "Median": Median(),
    "Krum": Krum(3),
    "Multi-Krum": Krum(3, keep=6),
}


def measure(liars, task, rounds, epochs):
    """{lie: {server: [row for each number of liars]}}; without liars all lies are the same."""
    rows, honest = {}, {}
    for lie in FACTORS:
        for name, server in SERVERS.items():
            out = rows.setdefault(lie, {}).setdefault(name, [])
            for count in liars:
                row = honest.get(name) if count == 0 else None
                if row is None:
                    method = lying(fl.methods.fedavg().but(server=server), range(count), lie)
                    began = time.perf_counter()
                    h = fl.run(method, task, rounds, epochs=epochs, engine="stacked", threads=1)
                    row = {
                        "liars": count,
                        "accuracy": h.final["accuracy"],
                        "untaken": sum(r["untaken"] is not None for r in h.rows),
                        "seconds": time.perf_counter() - began,
                    }
                if count == 0:
                    honest[name] = row
                out.append(row)
            print(f"{lie:8} {name:12}", *(f"{row['accuracy']:.3f}" for row in out), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--partition", default="dirichlet:0.5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="two rounds, 0 and 1 liars")
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".* rounds of fedavg were not taken")
    origin = provenance() | {"command": " ".join(["python", *sys.argv])}
    if args.quick:
        args.rounds = 2
    task = fl.tasks.classification("digits", 10, args.partition, args.seed)
    rows = measure(range(2) if args.quick else range(5), task, args.rounds, args.epochs)
    if args.out:
        settings = {
            "rounds": args.rounds,
            "epochs": args.epochs,
            "clients": 10,
            "partition": args.partition,
            "seed": args.seed,
            "factors": FACTORS,
            "servers": {name: repr(server) for name, server in SERVERS.items()},
            "threads": 1,
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "torch": torch.__version__,
        }
        results = {"provenance": origin, "settings": settings, "rows": rows}
        write_text(args.out, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
