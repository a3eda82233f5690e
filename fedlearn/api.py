"""All that ``fl.`` offers: ``fedlearn`` loads it, and torch with it, when it is first asked for."""

from typing import TYPE_CHECKING

from . import callbacks, engines, link, methods, models, parts, rng, tasks, wire
from .advice import advise
from .averaging import Averaging
from .data import partition
from .errors import DataError, WireError
from .history import History
from .lab.exercises import check, solution
from .method import Method
from .metrics import refit
from .parts import SGD, Adam, Downlink, Mean, TaskLoss, TaskNetwork, Uplink
from .report import results, summary
from .round import clients, run
from .settings import Experiment, Settings
from .training import initial_network

if TYPE_CHECKING:  # loaded when first used
    from . import flower, lab
    from .lab import plot, widgets
    from .ledger import claims

__all__ = """
    Adam Averaging DataError Downlink Experiment History Mean Method SGD Settings TaskLoss
    TaskNetwork Uplink WireError advise callbacks check claims clients engines flower
    initial_network lab link methods models partition parts plot refit results rng run solution
    summary tasks widgets wire
""".split()
