"""The same methods past one process: Flower carries the bytes, and nothing else changes::

    history = fl.run(fl.methods.rpn(), task, engine="flower-sim")     # Flower's simulation
    fedlearn serve rpn ...     fedlearn join HOST:PORT rpn ...        # real clients

    job.py          what every side of a run holds before the first byte
    envelope.py     what is in a Flower message
    client.py       a client: answers what it is asked, and keeps notes between its answers
    server.py       ``Remote``, an engine (``round.Exchange``), and ``lead``, the server of a run
    simulation.py   both sides in worker processes of one machine
    deploy.py       both sides on machines of their own, with Flower's processes (processes.py)
                    between them; guard.py, bounds.py and certificates.py keep everybody else out
    superlink.py    the server there: what it asks of Flower's SuperLink
    worker.py       a client there: it takes the messages from its node (node.py) one by one

Flower itself is imported only where it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Notes, client_app
    from .envelope import say
    from .job import QUIET, Job, require
    from .server import Remote, lead
    from .simulation import forget, simulate, start_ray

_HOMES = {
    "client": ("Notes", "client_app"),
    "envelope": ("say",),
    "job": ("QUIET", "Job", "require"),
    "server": ("Remote", "lead"),
    "simulation": ("forget", "simulate", "start_ray"),
}


def __getattr__(name: str) -> Any:
    """A name of one of the files, loaded when it is asked for: Flower's own processes (guard.py,
    node.py) need neither torch nor data."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
