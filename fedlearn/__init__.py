"""fedlearn: communication-efficient federated learning, in code that fits in the head and numbers
that are measured.

import fedlearn as fl
task = fl.tasks.classification("digits", clients=10, partition="dirichlet:0.5")
history = fl.run(fl.methods.rpn(), task, rounds=20)
fl.plot.compare([history], against="bytes")"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        book,
        callbacks,
        data,
        engines,
        link,
        methods,
        models,
        parts,
        plot,
        rng,
        seeing,
        tasks,
        wire,
    )
    from .book.check import check, progress, solution
    from .book.explorers import explore
    from .core import (
        SGD,
        Adam,
        Averaging,
        Downlink,
        Mean,
        Method,
        TaskLoss,
        TaskNetwork,
        Uplink,
        clients,
        run,
    )
    from .core.local import initial_network, refit
    from .costs import Meter, cost
    from .data import partition
    from .engines import flower
    from .errors import DataError, WireError
    from .history import History
    from .lab import ledger as claims
    from .lab import results
    from .lab.experiment import Experiment
    from .lab.results import summary
    from .methods.fed_repopt_search import search as repopt_search
    from .settings import Settings

__version__ = "0.1.0"
# each name of the front and where it is: a module, or what a module has behind the colon
_FRONT = {
    name: home or name
    for name, _, home in (
        text.partition("=")
        for text in """
    Adam=core:Adam Averaging=core:Averaging DataError=errors:DataError Downlink=core:Downlink
    Experiment=lab.experiment:Experiment History=history:History Mean=core:Mean
    Meter=costs:Meter Method=core:Method
    SGD=core:SGD Settings=settings:Settings TaskLoss=core:TaskLoss TaskNetwork=core:TaskNetwork
    Uplink=core:Uplink WireError=errors:WireError book callbacks check=book.check:check
    claims=lab.ledger clients=core:clients cost=costs:cost data engines
    explore=book.explorers:explore
    flower=engines.flower initial_network=core.local:initial_network link methods models
    partition=data.partition parts plot progress=book.check:progress refit=core.local:refit
    repopt_search=methods.fed_repopt_search:search results=lab.results rng run=core:run
    seeing
    solution=book.check:solution summary=lab.results:summary tasks wire
    """.split()
    )
}
__all__ = list(_FRONT)


def __getattr__(name: str) -> Any:
    """A name of the front, or a module of the package, loaded when first asked for."""
    if name.startswith("__") or not (name in _FRONT or find_spec(f"{__name__}.{name}")):
        raise AttributeError(f"module 'fedlearn' has no attribute {name!r}")
    home, _, inside = _FRONT.get(name, name).partition(":")
    if inside == "run":
        import_module(f"{__name__}.methods")  # a run knows them by name
    module = import_module(f"{__name__}.{home}")
    return globals().setdefault(name, getattr(module, inside) if inside else module)


def __dir__() -> list[str]:
    return __all__
