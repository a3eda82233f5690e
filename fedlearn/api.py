"""All that ``fl.`` offers: ``fedlearn`` loads it, and torch with it, when it is first asked for."""

from typing import TYPE_CHECKING

from . import callbacks, link, methods, models, parts, results, rng, tasks, wire
from .book.check import check, solution
from .data import partition
from .errors import DataError, WireError
from .experiment import Experiment
from .history import History
from .local import initial_network
from .method import Method
from .methods.fed_repopt_search import search as repopt_search
from .metrics import refit
from .parts import SGD, Adam, Downlink, Mean, TaskLoss, TaskNetwork, Uplink
from .report import summary
from .round import Averaging, clients, run
from .settings import Settings

if TYPE_CHECKING:  # loaded when first used
    from . import book, flower
    from .book import plot, widgets
    from .ledger import claims

__all__ = """
    Adam Averaging DataError Downlink Experiment History Mean Method SGD Settings TaskLoss
    TaskNetwork Uplink WireError callbacks check claims clients flower
    book initial_network link methods models partition parts plot refit repopt_search results rng run
    solution
    summary tasks widgets wire
""".split()
