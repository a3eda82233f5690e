"""What does a local step cost, method by method? Local training of one client, two epochs, beside
federated averaging.

    python tests/benchmarks/steps.py                      # about three minutes on two CPU cores
    python tests/benchmarks/steps.py --quick              # one small network, two repeats
    python tests/benchmarks/steps.py --out data/results/steps_cpu.json

The methods take turns; medians of ratios to federated averaging's time in the same turn. "looked
up" is FedFusion as it is: feature maps of the frozen extractor are computed in the first epoch and
looked up in the second. "each step" computes them anew.
"""

import time

from common import program, random_task, ratios

import fedlearn as fl
from fedlearn import local
from fedlearn.models import state_of
from fedlearn.parts import Context

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


def trainer(method, task, batch_size):
    """A function that trains once, from the same state, and says how long it took."""
    net, settings = fl.initial_network(method, task), fl.Settings(epochs=2, batch_size=batch_size)
    initial = {n: t.clone() for n, t in state_of(net).items()}

    def train():
        local.load(state_of(net), initial)
        start = time.perf_counter()
        local.train(net, method, Context(task, 1, 0, initial, initial, net=net), settings)
        return time.perf_counter() - start

    train()  # warms up
    return train


def measure(case, repeats, device):
    network, shape, samples, batch_size = case
    task = random_task(network, shape, 1, samples, device)
    timers = {
        name: trainer(method, Alone(task) if anew else task, batch_size)
        for name, (method, anew) in METHODS.items()
    }
    return ratios(timers, "FedAvg", repeats)[0]


if __name__ == "__main__":
    program(__doc__, measure, NETWORKS)
