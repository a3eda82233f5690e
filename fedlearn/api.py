"""All that ``fl.`` offers: ``fedlearn`` loads it, and torch with it, when it is first asked for."""

from typing import TYPE_CHECKING

from . import methods, models, rng, tasks, wire
from .data import partition
from .errors import DataError, WireError
from .federation import Clients, Server, refit, run
from .history import History
from .lab.exercises import check
from .local import initial_network
from .method import SGD, Adam, Compressed, Downlink, Mean, Method, TaskLoss, TaskNetwork, Uplink
from .report import results, summary
from .settings import Experiment, Settings

if TYPE_CHECKING:  # loaded when first used
    from . import flower
    from .lab import plot, widgets
    from .ledger import claims

__all__ = [
    "SGD",
    "Adam",
    "Clients",
    "Compressed",
    "DataError",
    "Downlink",
    "Experiment",
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
    "claims",
    "flower",
    "plot",
    "widgets",
]
