"""Flower's simulation: the same apps in worker processes of one machine, or of a Ray cluster."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from ..extensions import FILES
from ..history import History
from .client import client_app
from .job import QUIET, Job, require
from .server import lead

# Ray's own processes may take their time on a busy machine. A raylet whose helpers take more than a
# quarter of a minute ends, and so it may have to be started several times.
STARTS = 10
PATIENT = {"RAY_agent_register_timeout_ms": "600000", "RAY_worker_register_timeout_seconds": "600"}


def simulate(
    job: Job,
    *,
    cpus_per_client: float = 1,
    gpus_per_client: float = 0.0,
    timeout: float = 86400.0,
    checkpoint: Any = None,
    progress: bool | None = None,
    on_round: Any = (),
) -> History:
    """Run a ``Job`` on Flower's simulation.

    Clients train in worker processes, as many at a time as Ray has room for when each takes so many
    CPUs and GPUs. A Ray that was started before is used and left running: ``start_ray()`` for
    several runs, or ``ray.init(address=...)`` for many machines. With ``checkpoint`` what clients
    keep is written to the folder ``<checkpoint>.clients``. ``timeout``: seconds for an answer.
    """
    require()
    try:
        import ray
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation
    except ImportError:
        raise ImportError(
            "Flower is installed without its simulation: "
            'pip install ".[flower]" in the folder of the repository.'
        ) from None
    if not cpus_per_client > 0 or not gpus_per_client >= 0:
        raise ValueError(
            "A client needs CPUs above 0 and GPUs of at least 0, not "
            f"{cpus_per_client!r} and {gpus_per_client!r}."
        )
    if job.task.device.type == "cuda" and not gpus_per_client:
        raise ValueError(
            "The task is on a GPU: say with gpus_per_client how much of one a client takes, such "
            "as 0.1."
        )
    job.head  # noqa: B018  a network that cannot be built is noticed here, not in a worker
    keep = None if checkpoint is None else os.path.abspath(f"{checkpoint}.clients")
    stop, histories, problems = threading.Event(), [], []
    how = {"wait": timeout, "timeout": timeout, "checkpoint": checkpoint, "progress": progress}
    how["on_round"] = on_round
    server = ServerApp()

    @server.main()
    def main(grid, context):
        try:
            histories.append(lead(job, grid, engine="flower-sim", stop=stop, **how))
        except BaseException as error:  # Flower would print it; it is raised below instead
            problems.append(error)

    mine = not ray.is_initialized()
    with _silence(), nullcontext() if mine else _left_running(ray):
        if mine:
            start_ray()
        try:
            there = ray.cluster_resources()
            if there.get("CPU", 0) < cpus_per_client or there.get("GPU", 0) < gpus_per_client:
                has = f"{there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs"
                raise ValueError(
                    f"Ray has {has}; one client is to take {cpus_per_client:g} and "
                    f"{gpus_per_client:g}."
                )
            for module in FILES.values():  # workers cannot import what was loaded from a file
                ray.cloudpickle.register_pickle_by_value(module)
            # The task goes into Ray's store once; a message carries only where it lies.
            client = client_app(partial(_fetch, ray.put(job)), keep)
            resources = {"num_cpus": cpus_per_client, "num_gpus": gpus_per_client}
            backend = {"client_resources": resources}
            run_simulation(server, client, job.task.clients, backend_config=backend)
        finally:
            stop.set()
            ray.shutdown()
    if problems:
        raise problems[0]
    return histories[0]


def forget(checkpoint: Any) -> None:
    """Remove what the clients of a finished simulation kept beside its checkpoint."""
    folder = Path(f"{checkpoint}.clients")
    for path in folder.glob("client-*.safetensors"):
        path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def start_ray(cpus: int | None = None) -> Any:
    """Start Ray on this machine, with that many CPUs (by default all) and without its log."""
    require()
    import ray

    path = os.pathsep.join(sys.path)  # what is imported here can be imported in its workers
    environment = {"env_vars": {"PYTHONPATH": path, **QUIET}}
    how = {"include_dashboard": False, "logging_level": "ERROR", "log_to_driver": False}
    for name, value in PATIENT.items():
        os.environ.setdefault(name, value)
    for left in reversed(range(STARTS)):
        try:
            with _unhurried():
                return ray.init(num_cpus=cpus, runtime_env=environment, **how)
        except Exception:  # of no class of its own
            ray.shutdown()
            if not left:
                raise


@contextmanager
def _unhurried() -> Iterator[None]:
    """Ray gives itself half a minute to start; here it has five, as long as its raylet lives."""
    services: Any = sys.modules.get("ray._private.services")
    look = getattr(services, "get_node", None)
    if look is None:  # another Ray than the one that Flower 1.41 asks for
        yield
        return

    def get_node(*where):
        end = time.monotonic() + 300
        while True:
            try:
                return look(*where)
            except RuntimeError:  # it has not started yet
                if time.monotonic() > end or not _raylet_lives():
                    raise
                time.sleep(0.2)

    services.get_node = get_node
    try:
        yield
    finally:
        services.get_node = look


def _raylet_lives() -> bool:
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.name() == "raylet" and child.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _fetch(ref: Any, context: Any) -> Job:
    import ray

    return ray.get(ref)


@contextmanager
def _left_running(ray: Any) -> Iterator[None]:
    """Flower shuts Ray down after each simulation. Inside this block it cannot: somebody else
    started it."""
    shutdown, ray.shutdown = ray.shutdown, lambda: None
    try:
        yield
    finally:
        ray.shutdown = shutdown


@contextmanager
def _silence() -> Iterator[None]:
    """Flower and Ray without their log: what goes wrong is in the history."""
    import logging

    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
