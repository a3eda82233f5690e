"""fedlearn: communication-efficient federated learning, in code that fits in the head and numbers that are measured.

import fedlearn as fl
task = fl.tasks.classification("digits", clients=10, partition="dirichlet:0.5")
history = fl.run(fl.methods.rpn(), task, rounds=20)
fl.plot.compare([history], against="bytes")
"""

from . import methods, models, parts, rng, tasks, wire
from .averaging import Averaging
from .data import partition
from .errors import DataError, WireError
from .exercises import check
from .history import History, results, summary
from .method import Method
from .metrics import refit
from .parts import SGD, Adam, Downlink, Mean, TaskLoss, TaskNetwork, Uplink
from .round import clients, run
from .settings import Settings
from .training import initial_network

__version__ = "0.1.0"
_LAZY = (
    "plot",
    "widgets",
    "claims",
    "flower",
)  # need matplotlib, ipywidgets, yaml, Flower: loaded when first used

__all__ = [
    "SGD",
    "Adam",
    "Averaging",
    "DataError",
    "Downlink",
    "History",
    "Mean",
    "Method",
    "Settings",
    "TaskLoss",
    "TaskNetwork",
    "Uplink",
    "WireError",
    "check",
    "clients",
    "initial_network",
    "methods",
    "models",
    "partition",
    "parts",
    "refit",
    "results",
    "rng",
    "run",
    "summary",
    "tasks",
    "wire",
    *_LAZY,
]


def __getattr__(name):
    if name in _LAZY:
        from importlib import import_module

        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'fedlearn' has no attribute {name!r}")
