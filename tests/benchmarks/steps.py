"""What does a local step cost, method by method? Local training of one client, two epochs, beside
federated averaging.

    python tests/benchmarks/steps.py                      # about three minutes on two CPU cores
    python tests/benchmarks/steps.py --quick              # one small network, two repeats
    python tests/benchmarks/steps.py --out data/results/steps_cpu.json

The methods take turns; medians of ratios to federated averaging's time in the same turn. "looked
up" is FedFusion as it is: feature maps of the frozen extractor are computed in the first epoch and
looked up in the second. "each step" computes them anew.
"""

import argparse
import json
import os
import platform
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median

import torch

import fedlearn as fl
from fedlearn import local
from fedlearn.models import state_of
from fedlearn.parts import Context

sys.path.insert(0, str(Path(__file__).parent))
from common import random_task  # noqa: E402

NETWORKS = {  # label -> network, image shape, samples, batch size
    "digits CNN, 8x8": ("digits_cnn", (1, 8, 8), 320, 16),
    "McMahan CNN, 28x28": ("mcmahan_cnn", (1, 28, 28), 256, 32),
    "CIFAR CNN, 32x32 colour": ("cifar_cnn", (3, 32, 32), 256, 128),
}


class Alone:
    """A task that says of itself that it augments, so that nothing is looked up; its images stay as
    they are."""

    def __init__(self, task):
        self.task, self.augment = task, ("nothing",)

    def __getattr__(self, name):
        return getattr(self.task, name)


METHODS = {
    "FedAvg": (fl.methods.fedavg(), False),
    "FedMMD": (fl.methods.fedmmd(), False),
    "FedMMD, each step": (fl.methods.fedmmd(), True),
    "L2": (fl.methods.fedmmd(distance="l2", lam=0.001), False),
    "FedFusion, single": (fl.methods.fedfusion(operator="single"), False),
    "FedFusion, multi": (fl.methods.fedfusion(operator="multi"), False),
    "FedFusion, conv": (fl.methods.fedfusion(operator="conv"), False),
    "FedFusion, multi, each step": (fl.methods.fedfusion(operator="multi"), True),
}


def trainer(method, task, batch_size, anew):
    """A function that trains once, from the same state, and says how long it took."""
    net, settings = fl.initial_network(method, task), fl.Settings(epochs=2, batch_size=batch_size)
    initial = {n: t.clone() for n, t in state_of(net).items()}

    def train():
        local.load(state_of(net), initial)
        began = time.perf_counter()
        where = Alone(task) if anew else task
        local.train(net, method, Context(where, 1, 0, initial, initial, net=net), settings)
        return time.perf_counter() - began

    train()  # warms up
    return train


def measure(networks, repeats):
    rows = {}
    for label, (network, shape, samples, batch_size) in networks.items():
        task = random_task(network, shape, 1, samples)
        trainers = {
            name: trainer(method, task, batch_size, anew)
            for name, (method, anew) in METHODS.items()
        }
        turns = [{name: train() for name, train in trainers.items()} for _ in range(repeats)]
        rows[label] = {
            name: median(turn[name] / turn["FedAvg"] for turn in turns) for name in METHODS
        }
        print(label, {name: round(ratio, 2) for name, ratio in rows[label].items()})
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one small network, two repeats")
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    args = parser.parse_args()
    networks = dict(list(NETWORKS.items())[:1]) if args.quick else NETWORKS
    repeats = 2 if args.quick else args.repeats
    torch.set_num_threads(1)
    rows = measure(networks, repeats)
    if args.out:
        settings = {
            "date": date.today().isoformat(),
            "repeats": repeats,
            "threads": 1,
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "torch": torch.__version__,
        }
        Path(args.out).write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
