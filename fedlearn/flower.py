"""The same methods past one process: Flower carries the bytes, and nothing else changes::

    history = fl.run("rpn", task, engine="flower-sim")     # worker processes, Flower's simulation
    flwr run flower_app --run-config "method='rpn'"        # Flower's own programs, on any machines

``Simulation`` and ``Nodes`` are engines of ``fl.run``; ``server_app`` and ``client_app`` make the
two components of a Flower app. A message holds what a run in one process encodes, as one ``bytes``
value. What a client keeps between rounds is Flower's to keep (``context.state``); in a simulation
it travels with the messages, uncounted, so that a checkpoint holds it like any other run's.

Flower itself is imported only where it is used.
"""

import json
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from importlib import metadata
from typing import Any

from . import local
from .checkpoint import apart, write_tensors
from .context import Tensors
from .errors import StartError, WireError, said
from .experiment import Experiment, read_pairs
from .extensions import FILES
from .method import EVALUATE, Method
from .round import describe, good_threads, run
from .settings import Settings

OLDEST, BEFORE = (1, 41), (2, 0)  # versions of Flower
RECORD = "fedlearn"  # the name of the one record in a message
JOIN = "join"  # asked of a node before anything else: which client it is, and of which run
DATA = "data."  # begins the names of the hashes in what is compared then
# Nothing leaves the machine that was not asked for. Flower and Ray read these when imported.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
LIMIT, STARTS = 120.0, 10  # seconds and tries for Ray to start
DEAD = re.compile("ActorDied|RayActorError|ActorUnavailable|WorkerCrashed|OutOfMemoryError")


def require() -> str:
    """The version of Flower, which from now on is quiet; ``ImportError`` unless it is one that this
    package was written for."""
    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise ImportError(
            "Flower is not installed in this environment: make puts it into .venv-flower; by hand, "
            'pip install ".[flower]" in the folder of the repository.'
        ) from None
    if not OLDEST <= tuple(map(int, re.findall(r"\d+", version)[:2])) < BEFORE:
        raise ImportError(
            f"Flower {version} is installed; fedlearn works with {OLDEST[0]}.{OLDEST[1]} or newer, "
            f"before {BEFORE[0]}."
        )
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    return version


@dataclass(frozen=True)
class Job:
    """What both sides of a run hold before the first byte."""

    method: Method
    task: Any
    settings: Settings
    threads: int

    def head(self) -> dict[str, str]:
        """What has to be equal on both sides, as texts. Several threads may be another number
        elsewhere."""
        about = describe(self.method, self.task, self.settings, self.threads)
        both = {"method": self.method.name, "threads": "one" if self.threads == 1 else "several"}
        both |= {f"{g}.{n}": v for g in ("parts", "task", "settings") for n, v in about[g].items()}
        both |= {f"{DATA}{n} (a hash)": v for n, v in about["data"].items()}
        return {name: str(value) for name, value in both.items()}


def _differences(server: Mapping[str, str], client: Mapping[str, str]) -> str:
    """What two heads do not have in common, as a sentence; empty if nothing. That other seeds or
    partitions make other data goes without saying."""
    names = [n for n, value in server.items() if client.get(n) != value]
    stated = [n for n in names if not n.startswith(DATA)]
    return "; ".join(f"{n} is {client.get(n)} there and {server[n]} here" for n in stated or names)


# ---- a client ------------------------------------------------------------------------------------

_SIDES: dict[Any, tuple[Job, Any]] = {}  # what this process has built to answer in one run


def client_app(task: Callable[[Any], Any] | None = None) -> Any:
    """A Flower ``ClientApp`` for the run that the app's run config states.

    Which client it is says the node's ``partition-id``. ``task`` makes the task of Flower's
    context where a client reads data of its own; by default it is the one that is stated."""

    def find(question: Any, context: Any) -> tuple[Any, Callable]:
        def make() -> Job:
            e = experiment(context.run_config)
            method, data = e.make_method(), task(context) if task else e.make_task()
            net = local.initial_network(method, data)
            threads = e.threads or good_threads(net, data, e.batch_size)
            return Job(method, data, e.settings, threads)

        return context.run_id, make

    return _client_app(find)


def _simulated(question: Any, context: Any) -> tuple[Any, Callable]:
    import ray

    return question["job"], lambda: ray.get(ray.cloudpickle.loads(question["job"]))


def _client_app(find: Callable[[Any, Any], tuple[Any, Callable]]) -> Any:
    """``find``: (message, context) -> by what the run is known in this process, and how its ``Job``
    is made here."""
    require()
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query()(partial(_reply, find))
    return app


def _reply(find, message, context):
    """A Flower message -> the reply to it."""
    from flwr.app import ConfigRecord, Message, RecordDict

    question = message.content[RECORD]
    k = context.node_config.get("partition-id")
    try:
        key, make = find(question, context)
        if key not in _SIDES:
            _SIDES.clear()
            job = make()
            _SIDES[key] = job, job.method.client_side(job.task, job.settings)
        values = _answer(*_SIDES[key], k, question, context)
    except WireError as error:
        values = {"refused": str(error)}
    except Exception as error:  # the same words as for a client in the server's own process
        values = {"refused": f"Client {k} raised {type(error).__name__}: {error}"}
    return Message(RecordDict({RECORD: ConfigRecord(values)}), reply_to=message)


def _answer(job, side, k, question, context):
    from flwr.app import ConfigRecord

    if type(k) is not int or not 0 <= k < job.task.clients:
        last = job.task.clients - 1
        raise WireError(f"A node's partition-id is a client's number, 0 to {last}, not {k!r}.")
    t, what, simulated = question.get("round"), question["what"], "memory" in question
    if what == JOIN:
        return {"client": k, "head": json.dumps(job.head())}
    stored = question if simulated else context.state.get(RECORD, {})
    memory = _unpack(stored.get("memory"), job.task.device)
    with local.threads(job.threads, job.settings.precision):
        answer = side.answer(t, k, what, question["message"], memory)
    lost = not simulated and stored.get("round", 0) < question["last seen"]
    if lost and side.remembers and (memory or what == EVALUATE):
        raise WireError(
            f"Client {k} answered round {question['last seen']}, but what it kept has been lost: "
            "its node was started anew."
        )
    if what == EVALUATE:  # which changes nothing
        return {"message": answer}
    if simulated:
        return {"message": answer, "memory": _pack(memory)}
    context.state[RECORD] = ConfigRecord({"memory": _pack(memory), "round": t})
    return {"message": answer}


def _pack(tensors: Tensors) -> bytes:
    from safetensors.torch import save

    return save(apart(tensors)) if tensors else b""


def _unpack(data: bytes | None, device: Any) -> Tensors:
    from safetensors.torch import load

    return {n: x.to(device) for n, x in load(data).items()} if data else {}


# ---- the server ----------------------------------------------------------------------------------


class Nodes:
    """The nodes that a Flower grid reaches: an engine of ``fl.run``, and what a round needs of one
    (``round.Exchange``).

    ``wait``: seconds for clients to join. ``timeout``: seconds for their answers. ``simulated``: by
    which the workers of a simulation find the run. ``check`` raises if Flower has ended."""

    def __init__(
        self,
        grid: Any,
        wait: float = 600.0,
        timeout: float = 600.0,
        simulated: bytes | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        if not wait > 0 or not timeout > 0:
            raise ValueError(f"Seconds to wait must be above 0, not {wait!r} and {timeout!r}.")
        self.grid, self.wait, self.timeout, self.check = grid, wait, timeout, check
        self.common = {} if simulated is None else {"job": simulated}  # in every message
        self.pause = 0.02 if simulated else 1.0  # seconds between two looks at most

    def describe(self) -> dict[str, Any]:
        """What a history says of its engine."""
        return {"name": "flower", "flower": require()}

    @contextmanager
    def connect(self, *job: Any) -> Iterator["Nodes"]:
        """The clients of one run: method, task, settings, threads."""
        self.job = Job(*job)
        self.memories: dict[int, Tensors] = {}  # what clients keep; only in a simulation
        self.nodes: dict[int, int] = {}  # client -> node
        self.rejected: dict[int, str] = {}  # node -> why it takes no part
        self.last_seen: dict[int, int] = {}  # client -> the last round in which it answered
        self.begun = False
        yield self

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """Wait for the clients of round ``t``: the first time for all, later only if there is
        nobody at all."""
        clients, end = list(clients), time.monotonic() + self.wait
        self.rejected = {}  # whoever was turned away may have been mended
        while True:
            self.greet()
            anybody = any(k in self.nodes for k in clients)
            everybody = len(self.nodes) + len(self.rejected) >= self.job.task.clients
            if everybody or (anybody and self.begun) or time.monotonic() > end:
                break
            self.check()
            time.sleep(self.pause)
        if not anybody:
            reasons = "".join(f" {why}" for why in dict.fromkeys(self.rejected.values()))
            what = "could join" if everybody else f"came within {self.wait:g} s"
            raise ConnectionError(f"Round {t}: none of the {len(clients)} clients {what}.{reasons}")
        self.begun = True

    def greet(self) -> None:
        """Forget nodes that have gone, and ask new ones which client they are, and of which
        run."""
        online = set(self.grid.get_node_ids())
        self.nodes = {k: node for k, node in self.nodes.items() if node in online}
        self.rejected = {node: why for node, why in self.rejected.items() if node in online}
        new = online - {*self.nodes.values(), *self.rejected}
        for node, values in self.deliver((node, {"what": JOIN}) for node in sorted(new)):
            try:
                self.nodes[self.identify(values)] = node
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                self.rejected[node] = _plain(str(error))
                logging.getLogger("flwr").warning(self.rejected[node])

    def identify(self, values: Any) -> int:
        """The client that a new node is."""
        if isinstance(values, WireError):
            raise values
        k, head = int(values["client"]), dict(json.loads(values["head"]))
        if k in self.nodes or not 0 <= k < self.job.task.clients:
            what = "already here" if k in self.nodes else "not one of this run"
            raise WireError(f"A node was turned away: client {k} is {what}.")
        if difference := _differences(self.job.head(), head):
            raise WireError(f"Client {k} was turned away: {difference}.")
        return k

    def exchange(
        self, t: int, what: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """See ``round.Exchange``."""

        def question(k: int) -> dict[str, Any]:
            seen = self.last_seen.get(k, 0)
            about = {"what": what, "round": t, "last seen": seen, "message": write(k)}
            return about | ({"memory": _pack(self.memories.get(k, {}))} if self.common else {})

        clients = list(clients)
        connected = [k for k in clients if k in self.nodes]
        answers = self.deliver((self.nodes[k], question(k)) for k in connected)
        for k in clients:
            if k not in connected:
                yield k, WireError("not connected")
                continue
            _, values = next(answers)
            if isinstance(values, WireError):
                yield k, values
                continue
            if what != EVALUATE:
                self.last_seen[k] = t
            if "memory" in values:
                self.memories[k] = _unpack(values["memory"], self.job.task.device)
            answer: Any = values.get("message")
            yield k, answer

    def deliver(
        self, contents: Iterable[tuple[int, dict[str, Any]]]
    ) -> Iterator[tuple[int, dict[str, Any] | WireError]]:
        """Send nodes a record each; then each node's own, or why there is none, as soon as it and
        those before it have come, or time is up."""
        from flwr.app import ConfigRecord, Message, RecordDict

        pending: dict[str, int] = {}  # message -> node
        answers: dict[int, dict[str, Any] | WireError] = {}
        order = []
        for node, values in contents:
            content = RecordDict({RECORD: ConfigRecord(values | self.common)})
            message = Message(content, node, "query", ttl=self.timeout)
            identifier = next(iter(self.grid.push_messages([message])), None)
            if identifier is None:
                answers[node] = WireError("Flower could not take the message.")
            else:
                pending[identifier] = node
            order.append(node)
        start = time.monotonic()
        for node in order:
            while node not in answers:
                for reply in self.grid.pull_messages([*pending]):
                    sender = pending.pop(reply.metadata.reply_to_message_id, None)
                    if sender is not None:  # not a second answer
                        answers[sender] = _open(reply)
                waited = time.monotonic() - start
                if node in answers:
                    break
                if waited > self.timeout:
                    answers[node] = WireError(f"No answer within {self.timeout:g} s.")
                self.check()
                time.sleep(min(max(self.pause / 20, waited / 10), self.pause))
            yield node, answers.pop(node)


def _open(reply: Any) -> dict[str, Any] | WireError:
    """The values of a reply, or why there are none. ``ConnectionError`` if a worker of the
    simulation has died."""
    if reply.has_error():
        reason = str(reply.error.reason)
        if DEAD.search(reason):  # Ray would hand all that follows to the dead one
            raise ConnectionError(
                "A worker process of the simulation has died; memory may be short. Finished rounds "
                "are in the checkpoint, if there is one."
            )
        last = (reason.strip().splitlines() or ["no reason given"])[-1]
        return WireError(f"Flower reports: {_plain(last)[:300]}")
    values = dict(reply.content.get(RECORD) or {})
    refused = values.get("refused")
    return WireError(_plain(refused)[:1000]) if isinstance(refused, str) else values


def _plain(text: str) -> str:
    """What may be shown of a text from outside: one line, no control characters, not endless."""
    return "".join(c if c.isprintable() else " " for c in text[:2000])


# ---- a Flower app --------------------------------------------------------------------------------


def server_app() -> Any:
    """A Flower ``ServerApp`` for the run that the app's run config states."""
    require()
    from flwr.serverapp import ServerApp

    app = ServerApp()
    app.main()(_serve)
    return app


def _serve(grid, context):
    config = context.run_config
    e = experiment(config)
    engine = Nodes(grid, float(config.get("wait", 600)), float(config.get("timeout", 600)))

    def log(row, state):
        names = "round", "accuracy", "loss", "refused", "unevaluated", "untaken"
        about = ", ".join(f"{n} {row[n]}" for n in names if row[n] not in (None, {}))
        logging.getLogger("flwr").info(about)

    options = vars(e.settings) | {"threads": e.threads, "engine": engine, "on_round": log}
    history = run(e.make_method(), e.make_task(), e.rounds, progress=False, **options)
    if config.get("out"):
        history.to_json(config["out"])
    if config.get("model"):
        write_tensors(config["model"], apart(history.state or {}))


def experiment(config: Mapping[str, Any]) -> Experiment:
    """The run that a Flower run config states: the fields of an ``Experiment``, where an empty text
    is the default, and texts in place of lists."""
    known = {f.name for f in fields(Experiment)}
    stated = {name: value for name, value in config.items() if name in known and value != ""}
    for name in {"augment", "metrics"} & stated.keys():
        stated[name] = tuple(stated[name].split())
    if "options" in stated:
        stated["options"] = read_pairs(tuple(stated["options"].split()))
    return Experiment(**stated)


# ---- the simulation ------------------------------------------------------------------------------


class Simulation:
    """An engine of ``fl.run``: Flower's simulation, in worker processes of this machine.

    As many clients train at a time as there is room for. Several runs share the workers inside a
    ``with`` block. Ray ends with the workers, as Flower wants it, also one that was connected to
    many machines before.

    Parameters
    ----------
    cpus_per_client, gpus_per_client : float
        What a client takes while it trains; a GPU may be shared, 0.1 of it each.
    cpus : int, optional
        How many to use, by default all.
    timeout : float
        Seconds for an answer.

    Raises
    ------
    ValueError
        If a client is to take nothing, or more than there is.
    fedlearn.errors.StartError
        When Ray does not start.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.flower.Simulation(cpus_per_client=2).resources
    {'num_cpus': 2, 'num_gpus': 0.0}
    """

    def __init__(
        self,
        cpus_per_client: float = 1,
        gpus_per_client: float = 0.0,
        cpus: int | None = None,
        timeout: float = 86400.0,
    ) -> None:
        if not cpus_per_client > 0 or not gpus_per_client >= 0:
            raise ValueError(
                "A client needs CPUs above 0 and GPUs of at least 0, not "
                f"{cpus_per_client!r} and {gpus_per_client!r}."
            )
        self.resources = {"num_cpus": cpus_per_client, "num_gpus": gpus_per_client}
        self.cpus, self.timeout, self.clients, self.stays = cpus, timeout, 0, False
        self.levels: dict[str, int] = {}  # of others' logs before
        self.grid: Any = None
        self.thread: threading.Thread | None = None
        self.problem: BaseException | None = None

    def describe(self) -> dict[str, Any]:
        """What a history says of its engine."""
        return {"name": "flower-sim", "flower": require()}

    def __enter__(self) -> "Simulation":
        self.stays = True
        return self

    def __exit__(self, *error: object) -> None:
        self.stays = False
        self.stop()

    @contextmanager
    def connect(self, *job: Any) -> Iterator[Nodes]:
        """The clients of one run: method, task, settings, threads."""
        task = job[1]
        if task.device.type == "cuda" and not self.resources["num_gpus"]:
            raise ValueError(
                "The task is on a GPU: say with gpus_per_client how much of one a client takes, "
                "such as 0.1."
            )
        try:
            self.start(task.clients)
            import ray

            for module in FILES.values():  # workers cannot import what was loaded from a file
                ray.cloudpickle.register_pickle_by_value(module)
            stored = ray.put(Job(*job))  # once; a message carries only where it lies
            known = ray.cloudpickle.dumps(stored)
            nodes = Nodes(self.grid, self.timeout, self.timeout, known, self.check)
            with nodes.connect(*job):
                yield nodes
        except ConnectionError:  # whatever has died there
            self.stop()
            raise
        finally:
            if not self.stays:
                self.stop()

    def start(self, clients: int) -> None:
        """Start Ray and Flower with so many clients, unless they run."""
        if self.thread and self.thread.is_alive() and self.clients == clients:
            return
        self.stop()
        require()
        import ray
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation

        for name in ("flwr", "ray"):  # what goes wrong is in the history
            self.levels[name] = logging.getLogger(name).level
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        start_ray(self.cpus)
        available, wanted = ray.cluster_resources(), self.resources
        cpus, gpus = available.get("CPU", 0), available.get("GPU", 0)
        if cpus < wanted["num_cpus"] or gpus < wanted["num_gpus"]:
            ray.shutdown()
            raise ValueError(
                f"Ray has {cpus:g} CPUs and {gpus:g} GPUs; one client is to take "
                f"{wanted['num_cpus']:g} and {wanted['num_gpus']:g}."
            )
        server, grids, done = ServerApp(), queue.Queue[Any](), threading.Event()
        self.clients, self.done, self.problem = clients, done, None

        @server.main()
        def main(grid, context):
            grids.put(grid)
            done.wait()

        def play():
            try:
                backend = {"client_resources": wanted}
                run_simulation(server, _client_app(_simulated), clients, backend_config=backend)
            except BaseException as error:
                self.problem = error

        self.thread = threading.Thread(target=play, daemon=True)
        self.thread.start()
        while self.grid is None:
            with suppress(queue.Empty):
                self.grid = grids.get(timeout=0.2)
            self.check()

    def check(self) -> None:
        """``ConnectionError`` if Flower has ended by itself."""
        if self.thread and not self.thread.is_alive():
            raise ConnectionError("Flower's simulation has ended.") from self.problem

    def stop(self) -> None:
        """End Flower, its workers and Ray, if they run."""
        if self.thread:
            self.done.set()
            self.thread.join(60)
        self.thread = self.grid = None
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)


def start_ray(cpus: int | None = None) -> None:
    """Start Ray on this machine, unless it runs, with so many CPUs (by default all) and without its
    log.

    ``StartError`` if it does not start; a start that hangs is given up after two minutes. Ray gives
    itself half a minute, which may be too little on a busy machine, so it is tried again."""
    require()
    import ray

    if ray.is_initialized():
        return
    path = os.pathsep.join(sys.path)  # what is imported here can be imported in its workers
    options: dict[str, Any] = {
        "include_dashboard": False,
        "logging_level": "ERROR",
        "log_to_driver": False,
    }
    options |= {"runtime_env": {"env_vars": {"PYTHONPATH": path, **QUIET}}, "num_cpus": cpus}
    logging.getLogger("ray").setLevel(logging.ERROR)  # it would say that it starts in a thread
    end, why = time.monotonic() + LIMIT, f" within {LIMIT:g} seconds"
    for _ in range(STARTS):
        outcome: Future[Any] = Future()
        threading.Thread(target=_keep_ray, args=(options, outcome), daemon=True).start()
        try:
            wait([outcome], end - time.monotonic())
        finally:
            late = outcome.cancel()
        if late:
            break
        error = outcome.exception()
        if error is None:
            return
        why = ": " + re.split(r"\.\s|\n", said(error))[0].rstrip(".")
        if time.monotonic() > end:
            break
    raise StartError(
        f"Ray, which carries Flower's simulation, did not start{why}; all other engines run "
        "without it."
    )


def _keep_ray(options: Mapping[str, Any], outcome: "Future[Any]") -> None:
    """One start of Ray, in a thread of its own: one that hangs can be left alone, and on Linux what
    a failed one leaves running ends with its thread. So the thread stays as long as Ray does."""
    import ray

    try:
        ray.init(**options)
    except BaseException as error:  # of no class of its own
        ray.shutdown()
        if outcome.set_running_or_notify_cancel():
            outcome.set_exception(error)
        return
    if outcome.set_running_or_notify_cancel():
        outcome.set_result(None)
        while ray.is_initialized():
            time.sleep(1)
    else:  # nobody waits any more
        ray.shutdown()
