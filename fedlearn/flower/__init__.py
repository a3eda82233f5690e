"""The same methods past one process: Flower carries the bytes, and nothing else changes.

    pip install "fedlearn[flower]"
    history = fl.run(fl.methods.rpn(), task, engine="flower-sim")   # clients in processes of their own
    fedlearn serve rpn ...     fedlearn join HOST:PORT rpn ...      # real clients: see ``deploy``

    job.py         what every side of a run holds before the first byte
    envelope.py    what is in a Flower message, and what is said about it
    client.py      a client: answers what it is asked, and keeps notes between its answers
    server.py      ``Remote``, an engine as ``round.Exchange`` describes it, and ``lead``, a whole run
    simulation.py  both in worker processes of one machine, by Flower's simulation
    deploy.py      both in processes of their own, anywhere; guard.py and certificates.py keep others out
"""

from .client import Notes, client_app
from .envelope import say
from .job import QUIET, Job, require
from .server import Remote, lead
from .simulation import forget, simulate, start_ray
