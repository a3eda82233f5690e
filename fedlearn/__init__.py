"""fedlearn: communication-efficient federated learning, in code that fits in the head
and numbers that are measured.

import fedlearn as fl
task = fl.tasks.classification("digits", clients=10, partition="dirichlet:0.5")
history = fl.run(fl.methods.rpn(), task, rounds=20)
fl.plot.compare([history], against="bytes")
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.1.0"

# the public names by the module that has them; it is loaded with its first name
_NAMES = {
    "book.check": "check progress solution",
    "book.explorers": "explore",
    "core": (
        "Adam Averaging Downlink Mean Method SGD TaskLoss TaskNetwork Uplink clients run"
    ),
    "core.local": "initial_network refit",
    "costs": "Meter cost",
    "errors": "DataError WireError",
    "history": "History",
    "lab.experiment": "Experiment",
    "lab.results": "summary",
    "methods.fed_repopt_search": "repopt_search",
    "settings": "Settings",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
# the public modules, of which four have a shorter name here
_MODULES = "book data engines link methods models parts plot rng seeing tasks wire"
_SHORT = {
    "claims": "lab.ledger",
    "flower": "engines.flower",
    "partition": "data.partition",
    "results": "lab.results",
}
__all__ = [*_HOMES, *_SHORT, *_MODULES.split()]


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package, when it is first asked for."""
    if name == "run":
        import_module(f"{__name__}.methods")  # a run takes their names
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in _SHORT:
        value = import_module(f"{__name__}.{_SHORT[name]}")
    elif not name.startswith("__") and find_spec(f"{__name__}.{name}"):
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module 'fedlearn' has no attribute {name!r}")
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return __all__
