"""Clients in other processes: Flower carries the bytes, and nothing else changes::

    history = fl.run("rpn", task, engine="flower")         # worker processes, Flower's simulation
    flwr run flower_app --run-config "method='rpn'"        # Flower's own programs, on any machines

``Simulation`` and ``Nodes`` are engines of ``fl.run``; ``client_app`` makes the app that
answers them. Flower is imported where it is used.

A node stores a client's memory in ``context.state``, together with the memory of the
round before. The next question says whether the last answer counted, and so which of
the two is valid. In a simulation the memory travels with the messages instead, uncounted,
so that checkpoints contain it.
"""

import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from importlib import metadata
from typing import Any

from safetensors import torch as safetensors

from ..checkpoint import contiguous
from ..core import EVALUATE, Method, Tensors, local
from ..errors import StartError, WireError
from ..extensions import FILES
from ..history import describe
from ..settings import Settings

OLDEST = (1, 41)  # the first version of Flower that works
RECORD = "fedlearn"  # the name of the one record in a message
JOIN = "join"  # the first question to a node: which client it is, and of which run
# Flower and Ray read these when they are imported: no reports to their makers
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Ray gives itself half a minute to start, too little on a busy machine
LIMIT = 120.0  # seconds
STARTS = 4  # attempts
DAY = 86400.0  # seconds
DEAD = re.compile(
    "ActorDied|RayActorError|ActorUnavailable|WorkerCrashed|OutOfMemoryError"
)


def require() -> str:
    """The version of Flower; ``ImportError`` for a version that does not work."""
    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise ImportError(
            "Flower is not installed in this environment: make puts it into "
            '.venv-flower; by hand, pip install ".[flower]" in the folder of the '
            "repository."
        ) from None
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        raise ImportError(
            f"Flower {version} is installed; fedlearn works with 1.41 or newer."
        )
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    return version


# ---- a client ------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What server and client both hold before the first message."""

    method: Method
    task: Any
    settings: Settings
    threads: int

    @cached_property
    def side(self) -> Any:
        """The clients of the run."""
        return self.method.client_side(self.task, self.settings)

    def head(self) -> dict[str, str]:
        """What has to be equal at server and client, as texts."""
        entries = describe(self.method, self.task, self.settings, self.threads)
        threads = "one" if self.threads == 1 else "several"
        head = {"method": self.method.name, "threads": threads}
        for group in ("parts", "task", "settings"):
            for name, value in entries[group].items():
                head[f"{group}.{name}"] = str(value)
        for name, digest in entries["data"].items():
            head[f"data.{name} (a hash)"] = str(digest)
        return head


def client_app(find: Callable[[Any, Any], Job]) -> Any:
    """A Flower ``ClientApp``.

    Parameters
    ----------
    find : function
        (record of the server's message, Flower's context) -> the ``Job`` of this process.
        The node's ``partition-id`` is its client.
    """
    require()
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query()(partial(_reply, find))
    return app


def _reply(find, message, context):
    """The reply to a Flower message."""
    from flwr.app import ConfigRecord, Message, RecordDict

    question = message.content[RECORD]
    k = context.node_config.get("partition-id", "absent")
    try:
        values = _answer(find(question, context), k, question, context)
    except WireError as error:
        values = {"refused": str(error)}
    except Exception as error:
        # ends the run of a simulation, and costs another node only its answer
        if "memory" in question:
            values = {"raised": f"Client {k} raised {traceback.format_exc()}"}
        else:
            values = {"refused": f"Client {k} raised {type(error).__name__}: {error}"}
    return Message(RecordDict({RECORD: ConfigRecord(values)}), reply_to=message)


def _answer(job, k, question, context):
    """The values of a reply."""
    from flwr.app import ConfigRecord

    kind = question["question"]
    if kind == JOIN:
        return {"client": k} | job.head()
    t = question["round"]
    seen = question["last seen"]
    stored = context.state.get(RECORD, {})  # empty in a simulation
    last = stored.get("round", 0)
    # the memory after the last answer is valid if that answer counted, and as long as
    # its round lasts; otherwise the memory before it
    valid = last == seen or (last == t and kind != EVALUATE)
    before = stored.get("memory" if valid else "before", b"")
    memory = _unpack(question.get("memory", before), job.task.device)
    with local.threads(job.threads, job.settings.precision):
        answer = job.side.answer(t, k, kind, question["message"], memory)
    if "memory" in question:
        return {"message": answer, "memory": _pack(memory)}
    if last < seen and job.side.remembers and (memory or kind == EVALUATE):
        raise WireError(
            f"Client {k} was started anew: its memory of round {seen} is lost."
        )
    if kind != EVALUATE:  # an evaluation changes no memory
        before = stored["before"] if last == t else before
        notes = {"memory": _pack(memory), "round": t, "before": before}
        context.state[RECORD] = ConfigRecord(notes)
    return {"message": answer}


def _pack(tensors: Tensors) -> bytes:
    return safetensors.save(contiguous(tensors)) if tensors else b""


def _unpack(data: bytes, device: Any) -> Tensors:
    tensors = safetensors.load(data) if data else {}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


# ---- the server ----------------------------------------------------------------------


class Nodes:
    """The nodes that a Flower grid reaches: an engine of ``fl.run``, and its clients.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        What Flower hands to the main function of a ``ServerApp``.
    wait, timeout : float
        Seconds for clients to join, and to answer.
    simulated : bytes, optional
        How the workers of a simulation find the run.
    check : function
        Raises if Flower has ended.
    """

    def __init__(
        self,
        grid: Any,
        wait: float = 600.0,
        timeout: float = 600.0,
        simulated: bytes | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self.grid = grid
        self.wait = wait
        self.timeout = timeout
        self.common = {"job": simulated} if simulated else {}  # in every message
        self.pause = 0.01 if simulated else 0.5  # seconds between two polls
        self.check = check

    @contextmanager
    def connect(self, client: Any, threads: int) -> Iterator["Nodes"]:
        """The clients of one run."""
        self.about = {"name": "flower", "flower": require()}  # for the history
        self.job = Job(client.method, client.task, client.settings, threads)
        self.nodes: dict[int, int] = {}  # client -> node
        self.last_seen: dict[int, int] = {}  # client -> the last round that counted
        self.memories: dict[int, Tensors] = {}  # of clients; only in a simulation
        self.new: dict[int, Tensors] = {}  # those of this round
        self.running = False
        yield self

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """Wait for clients of round ``t``: before the first round for all of the run,
        later for one."""
        clients = list(clients)
        end = time.monotonic() + self.wait
        rejected: dict[int, str] = {}  # node -> the reason; it may join later
        while True:
            self.greet(rejected)
            present = any(k in self.nodes for k in clients)
            joined = len(self.nodes) + len(rejected)
            complete = joined >= self.job.task.clients
            if complete or (present and self.running) or time.monotonic() > end:
                break
            self.check()
            time.sleep(self.pause)
        if not present:
            reasons = "".join(
                f" {reason}" for reason in dict.fromkeys(rejected.values())
            )
            raise ConnectionError(
                f"Round {t}: none of its {len(clients)} clients has joined within "
                f"{self.wait:g} s.{reasons}"
            )

    def greet(self, rejected: dict[int, str]) -> None:
        """Forget nodes that have gone, and ask new ones which client they are."""
        online = set(self.grid.get_node_ids())
        self.nodes = {k: node for k, node in self.nodes.items() if node in online}
        new = sorted(online - {*self.nodes.values(), *rejected})
        answers = self.deliver((node, {"question": JOIN}) for node in new)
        for node, values in answers.items():
            try:
                self.nodes[self.identify(values)] = node
            except WireError as error:
                rejected[node] = str(error)
                logging.getLogger("flwr").warning(rejected[node])

    def identify(self, values: dict[str, Any] | WireError) -> int:
        """The client that a new node is; ``WireError`` if it cannot take part."""
        if isinstance(values, WireError):
            raise values
        k = values.get("client")
        count = self.job.task.clients
        if type(k) is not int or not 0 <= k < count:
            raise WireError(f"A node's partition-id is 0 to {count - 1}, not {k!r}.")
        if k in self.nodes:
            raise WireError(
                f"Client {k} was turned away: it is already here, as another node."
            )
        differences = [
            f"{name} is {values.get(name)} there and {value} here"
            for name, value in self.job.head().items()
            if values.get(name) != value
        ]
        if differences:
            raise WireError(f"Client {k} was turned away: {'; '.join(differences)}.")
        return k

    def exchange(
        self, t: int, kind: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """See ``core.OneByOne.exchange``."""

        def question(k: int) -> dict[str, Any]:
            values: dict[str, Any] = {
                "question": kind,
                "round": t,
                "last seen": self.last_seen.get(k, 0),
                "message": write(k),
            }
            if self.common:
                values["memory"] = _pack(self.new.get(k, self.memories.get(k, {})))
            return values

        self.running = True
        clients = list(clients)
        present = [k for k in clients if k in self.nodes]
        answers = self.deliver((self.nodes[k], question(k)) for k in present)
        for k in clients:
            values = answers.get(self.nodes.get(k, -1), WireError("not connected"))
            if isinstance(values, WireError):
                yield k, values
                continue
            if "memory" in values:
                self.new[k] = _unpack(values["memory"], self.job.task.device)
            message = values.get("message")
            if not isinstance(message, bytes):
                message = WireError(f"Client {k} must answer with bytes.")
            yield k, message

    def settle(self, t: int, clients: Iterable[int]) -> None:
        """See ``core.OneByOne.settle``; a node learns it from the next question."""
        for k in clients:
            self.last_seen[k] = t
            if k in self.new:
                self.memories[k] = self.new[k]
        self.new = {}

    def deliver(
        self, questions: Iterable[tuple[int, dict[str, Any]]]
    ) -> dict[int, dict[str, Any] | WireError]:
        """Send a record to each node; return its answer, or why there is none."""
        from flwr.app import ConfigRecord, Message, RecordDict

        answers: dict[int, dict[str, Any] | WireError] = {}
        pending: dict[str, int] = {}  # message -> node
        for node, values in questions:
            content = RecordDict({RECORD: ConfigRecord(values | self.common)})
            message = Message(content, node, "query", ttl=self.timeout)
            answers[node] = WireError("Flower could not take the message.")
            for identifier in filter(None, self.grid.push_messages([message])):
                pending[identifier] = node
                answers[node] = WireError(f"No answer within {self.timeout:g} s.")
        end = time.monotonic() + self.timeout
        while pending and time.monotonic() < end:
            for reply in self.grid.pull_messages([*pending]):
                identifier = reply.metadata.reply_to_message_id
                if identifier in pending:  # the first answer
                    answers[pending.pop(identifier)] = _open(reply)
            if pending:
                self.check()
                time.sleep(self.pause)
        return answers


def _open(reply: Any) -> dict[str, Any] | WireError:
    """The values of a reply, or why there are none.

    ``ConnectionError`` if a worker died; ``RuntimeError`` for an error in a client's code.
    """
    if reply.has_error():
        reason = str(reply.error.reason)
        if DEAD.search(reason):  # Ray would hand all later messages to the dead worker
            raise ConnectionError(
                "A worker process of the simulation has died; memory may be short. "
                "Finished rounds are in the checkpoint, if there is one."
            )
        return WireError(f"Flower reports: {reason.strip().splitlines()[-1]}")
    values = dict(reply.content.get(RECORD) or {})
    if "raised" in values:
        raise RuntimeError(str(values["raised"]))
    return WireError(str(values["refused"])) if "refused" in values else values


# ---- the simulation ------------------------------------------------------------------


class Simulation:
    """An engine of ``fl.run``: Flower's simulation, in worker processes of this machine.

    Several runs share the workers inside a ``with`` block. Ray ends with the workers,
    even if it was connected to other machines before.

    Parameters
    ----------
    cpus : int, optional
        How many CPUs to use, one for a client that trains, by default all.
    gpus_per_client : float
        What a client takes of a GPU while it trains; 0.1 is a tenth.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.flower.Simulation(gpus_per_client=0.1).resources
    {'num_cpus': 1, 'num_gpus': 0.1}
    """

    def __init__(self, cpus: int | None = None, gpus_per_client: float = 0.0) -> None:
        self.resources = {"num_cpus": 1, "num_gpus": gpus_per_client}
        self.cpus = cpus
        self.clients = 0
        self.users = 0  # blocks and runs that need the workers
        self.grid: Any = None
        self.thread: threading.Thread | None = None
        self.problem: BaseException | None = None

    def __enter__(self) -> "Simulation":
        self.users += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.users -= 1
        if not self.users:
            self.stop()

    @contextmanager
    def connect(self, client: Any, threads: int) -> Iterator[Nodes]:
        """The clients of one run."""
        task = client.task
        if task.device.type == "cuda" and not self.resources["num_gpus"]:
            raise ValueError(
                "The task is on a GPU: gpus_per_client=0.1 lets ten clients share it."
            )
        with self:
            try:
                self.start(task.clients)
                engine = Nodes(
                    self.grid, DAY, DAY, publish(client, threads), self.check
                )
                with engine.connect(client, threads) as nodes:
                    yield nodes
            except ConnectionError:  # the next run starts Flower anew
                self.stop()
                raise

    def start(self, clients: int) -> None:
        """Start Ray and Flower with so many clients, unless they run."""
        if self.thread and self.thread.is_alive() and self.clients == clients:
            return
        self.stop()
        start_ray(self.cpus)
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation

        silent = logging.CRITICAL + 1  # the history says what goes wrong
        logging.getLogger("flwr").setLevel(silent)
        server = ServerApp()
        done = threading.Event()
        self.done = done
        self.clients = clients
        self.problem = None

        @server.main()
        def main(grid, context):
            self.grid = grid
            done.wait()

        def play():
            try:
                app = client_app(lambda question, context: _load(question["job"]))
                backend = {"client_resources": self.resources}
                run_simulation(server, app, clients, backend_config=backend)
            except BaseException as error:
                self.problem = error

        self.thread = threading.Thread(target=play, daemon=True)
        self.thread.start()
        while self.grid is None:
            self.check()
            time.sleep(0.02)

    def check(self) -> None:
        """``ConnectionError`` if Flower has ended by itself."""
        if self.thread and not self.thread.is_alive():
            cause = self.problem
            while cause and cause.__cause__:
                cause = cause.__cause__
            raise ConnectionError(
                f"Flower's simulation has ended: {cause}"
            ) from self.problem

    def stop(self) -> None:
        """End Flower, its workers and Ray, if they run."""
        if self.thread:
            self.done.set()
            self.thread.join(60)
        self.thread = None
        self.grid = None


def publish(client: Any, threads: int) -> bytes:
    """Store a run in Ray, once, and return its address, which every message carries."""
    import ray

    for module in FILES.values():  # workers cannot import modules loaded from files
        ray.cloudpickle.register_pickle_by_value(module)
    job = Job(client.method, client.task, client.settings, threads)
    return ray.cloudpickle.dumps(ray.put(job))


@lru_cache(1)
def _load(address: bytes) -> Job:
    """In a worker: the run that was published."""
    import ray

    return ray.get(ray.cloudpickle.loads(address))


def start_ray(cpus: int | None = None) -> None:
    """Start Ray quietly on this machine, unless it runs; ``StartError`` if it cannot."""
    require()
    import ray

    if ray.is_initialized():
        return
    path = os.pathsep.join(sys.path)  # workers import what this process can import
    options: dict[str, Any] = {
        "include_dashboard": False,
        "logging_level": "ERROR",
        "log_to_driver": False,
        "num_cpus": cpus,
        "runtime_env": {"env_vars": {"PYTHONPATH": path, **QUIET}},
    }
    logging.getLogger("ray").setLevel(logging.ERROR)  # it would mention the thread
    started = threading.Event()
    failures: list[str] = []

    def watch() -> None:
        reason = ""
        for _ in range(STARTS):
            try:
                ray.init(**options)
                break
            except BaseException as error:  # Ray has no class of its own for it
                ray.shutdown()
                reason = str(error)
        else:
            failures.append(reason)
        if failures:  # the caller waits no longer
            ray.shutdown()
        started.set()
        while ray.is_initialized():  # on Linux Ray's processes end with this thread
            time.sleep(1)

    threading.Thread(target=watch, daemon=True).start()  # so that a hang can be left
    if not started.wait(LIMIT):
        failures.append(f"it took longer than {LIMIT:g} seconds")
    if failures:
        reason = re.split(r"\.\s|\n", failures[0])[0].rstrip(".")
        raise StartError(
            f"Ray, which carries Flower's simulation, did not start: {reason}; all other "
            "engines run without it."
        )
