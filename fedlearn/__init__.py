"""fedlearn: communication-efficient federated learning, in code that fits in the head and numbers
that are measured.

import fedlearn as fl
task = fl.tasks.classification("digits", clients=10, partition="dirichlet:0.5")
history = fl.run(fl.methods.rpn(), task, rounds=20)
fl.plot.compare([history], against="bytes")
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import *  # noqa: F403

__version__ = "0.1.0"
# need ipywidgets, yaml, Flower
_ROOMS = {"widgets": "book.widgets", "claims": "ledger", "flower": "flower"}


def __getattr__(name: str) -> Any:
    """A module of the package, or what ``fedlearn.api`` has under this name.

    Both are loaded when they are first asked for: ``fedlearn --help`` answers without torch.
    """
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    room = _ROOMS.get(name, name)
    if name in _ROOMS or find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{room}")
    api = import_module(f"{__name__}.api")
    if name != "__all__" and name not in api.__all__:
        raise AttributeError(f"module 'fedlearn' has no attribute {name!r}")
    return globals().setdefault(name, getattr(api, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
