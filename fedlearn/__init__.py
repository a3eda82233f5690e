"""fedlearn: communication-efficient federated learning, small enough to read, in measured numbers.

import fedlearn as fl
task = fl.tasks.classification("digits", clients=10, partition="dirichlet:0.5")
history = fl.run(fl.methods.rpn(), task, rounds=20)
fl.plot.compare([history], against="bytes")
"""

from . import methods, models, rng, tasks, wire
from .data import partition
from .errors import DataError, WireError
from .federation import Clients, Server, refit, run
from .history import History
from .lab.exercises import check
from .local import initial_network
from .method import (
    SGD,
    Adam,
    Compressed,
    Downlink,
    Mean,
    Method,
    Settings,
    TaskLoss,
    TaskNetwork,
    Uplink,
)
from .report import results, summary

__version__ = "0.1.0"
# need matplotlib, ipywidgets, yaml, Flower: loaded when first used
_LAZY = {
    "plot": ".lab.plot",
    "widgets": ".lab.widgets",
    "claims": ".ledger.claims",
    "flower": ".flower",
}

__all__ = [
    "SGD",
    "Adam",
    "Clients",
    "Compressed",
    "DataError",
    "Downlink",
    "History",
    "Mean",
    "Method",
    "Server",
    "Settings",
    "TaskLoss",
    "TaskNetwork",
    "Uplink",
    "WireError",
    "check",
    "initial_network",
    "methods",
    "models",
    "partition",
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

        return import_module(_LAZY[name], __name__)
    raise AttributeError(f"module 'fedlearn' has no attribute {name!r}")
