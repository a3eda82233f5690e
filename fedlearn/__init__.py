"""fedlearn: communication-efficient federated learning, small enough to read, in measured numbers.

import fedlearn as fl
task = fl.tasks.classification("digits", clients=10, partition="dirichlet:0.5")
history = fl.run(fl.methods.rpn(), task, rounds=20)
fl.plot.compare([history], against="bytes")
"""

from . import methods, models, parts, rng, tasks, wire
from .averaging import Averaging
from .data import partition
from .errors import DataError, WireError
from .history import History
from .lab.exercises import check
from .method import Method
from .metrics import refit
from .parts import SGD, Adam, Downlink, Mean, TaskLoss, TaskNetwork, Uplink
from .report import results, summary
from .round import clients, run
from .settings import Settings
from .training import initial_network

__version__ = "0.1.0"
# need matplotlib, ipywidgets, yaml, Flower: loaded when first used
_LAZY = {
    "plot": ".lab.plot",
    "widgets": ".lab.widgets",
    "claims": ".ledger.claims",
    "flower": ".flower",
}


def __getattr__(name):
    if name in _LAZY:
        from importlib import import_module

        return import_module(_LAZY[name], __name__)
    raise AttributeError(f"module 'fedlearn' has no attribute {name!r}")
