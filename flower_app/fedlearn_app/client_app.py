"""A client's part. The client of a node is the node's ``partition-id``."""

from typing import Any

from fedlearn.core import local
from fedlearn.engines.flower import Job, client_app

from .config import experiment


def task(context: Any) -> Any:
    """The data set that the run config names. A client with data of its own makes its
    task of them here; ``context`` is Flower's."""
    return experiment(context.run_config).make_task()


def job(question: Any, context: Any) -> Job:
    """What this client holds before the first message."""
    e = experiment(context.run_config)
    method = e.make_method()
    data = task(context)
    net = local.initial_network(method, data)
    threads = e.threads or local.good_threads(net, data, e.batch_size)
    return Job(method, data, e.settings, threads)


app = client_app(job)
