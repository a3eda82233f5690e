"""The same methods past one process: Flower carries the bytes, and nothing else changes::

    history = fl.run("rpn", task, engine="flower")         # worker processes, Flower's simulation
    flwr run flower_app --run-config "method='rpn'"        # Flower's own programs, on any machines

``Simulation`` and ``Nodes`` are engines of ``fl.run``; ``server_app`` and ``client_app`` make a
Flower app. What a client keeps between rounds is in ``context.state``, with what it kept before:
the next question says whether its last answer counted. In a simulation it travels with the
messages, uncounted, so that checkpoints hold it. Flower is imported where it is used."""

import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache, partial
from importlib import metadata
from typing import Any

from ..checkpoint import apart, write_tensors
from ..core import EVALUATE, Method, Tensors, local, run
from ..errors import StartError, WireError
from ..extensions import FILES
from ..history import describe
from ..lab.experiment import Experiment, read_pairs
from ..settings import Settings

OLDEST, BEFORE = (1, 41), (2, 0)  # versions of Flower
RECORD = "fedlearn"  # the name of the one record in a message
JOIN = (
    "join"  # asked of a node before anything else: which client it is, and of which run
)
DATA = "data."  # begins the names of the hashes in a head
# Nothing leaves the machine that was not asked for. Flower and Ray read these when imported.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Seconds for Ray to start, and tries: it gives itself half a minute, too little on a busy machine.
LIMIT, STARTS = 120.0, 4
DAY = 86400.0
DEAD = re.compile(
    "ActorDied|RayActorError|ActorUnavailable|WorkerCrashed|OutOfMemoryError"
)


def require() -> str:
    """The version of Flower, which from now on is quiet; ``ImportError`` for an unknown one."""
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

    @cached_property
    def side(self) -> Any:
        """The clients of the run."""
        return self.method.client_side(self.task, self.settings)

    @classmethod
    def of(cls, client: Any, threads: int) -> "Job":
        """The job of the clients of a run."""
        return cls(client.method, client.task, client.settings, threads)

    def head(self) -> dict[str, str]:
        """What has to be equal on both sides, as texts."""
        about = describe(self.method, self.task, self.settings, self.threads)
        both = {
            "method": self.method.name,
            "threads": "one" if self.threads == 1 else "several",
        }
        both |= {
            f"{g}.{n}": v
            for g in ("parts", "task", "settings")
            for n, v in about[g].items()
        }
        both |= {f"{DATA}{n} (a hash)": v for n, v in about["data"].items()}
        return {name: str(value) for name, value in both.items()}


def experiment(config: Mapping[str, Any]) -> Experiment:
    """The run that a run config states; an empty text is the default, texts stand for lists."""
    known = {f.name for f in fields(Experiment)}
    stated = {
        name: value for name, value in config.items() if name in known and value != ""
    }
    for name in {"augment", "metrics"} & stated.keys():
        stated[name] = tuple(stated[name].split())
    if "options" in stated:
        stated["options"] = read_pairs(tuple(stated["options"].split()))
    return Experiment(**stated)


def client_app(task: Callable[[Any], Any] | None = None) -> Any:
    """A Flower ``ClientApp`` for the run that the run config states; a node's ``partition-id`` is
    its client. ``task(context)`` makes a task of a client's own data."""

    def find(question: Any, context: Any) -> Job:
        e = experiment(context.run_config)
        method, data = e.make_method(), task(context) if task else e.make_task()
        net = local.initial_network(method, data)
        threads = e.threads or local.good_threads(net, data, e.batch_size)
        return Job(method, data, e.settings, threads)

    return _client_app(find)


def _client_app(find: Callable[[Any, Any], Job]) -> Any:
    """``find``: (record of a message, Flower's context) -> the run, as this process holds it."""
    require()
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query()(partial(_reply, find))
    return app


def _reply(find, message, context):
    """A Flower message -> the reply to it."""
    from flwr.app import ConfigRecord, Message, RecordDict

    question, k = (
        message.content[RECORD],
        context.node_config.get("partition-id", "absent"),
    )
    try:
        values = _answer(find(question, context), k, question, context)
    except WireError as error:
        values = {"refused": str(error)}
    except Exception as error:
        # in a simulation it ends the run, of a node elsewhere only its answer is lost
        simulated = "memory" in question
        text = (
            traceback.format_exc() if simulated else f"{type(error).__name__}: {error}"
        )
        values = {"raised" if simulated else "refused": f"Client {k} raised {text}"}
    return Message(RecordDict({RECORD: ConfigRecord(values)}), reply_to=message)


def _answer(job, k, question, context):
    from flwr.app import ConfigRecord

    kind, simulated = question["question"], "memory" in question
    if kind == JOIN:
        return {"client": k} | job.head()
    stored, seen = (
        question if simulated else context.state.get(RECORD, {}),
        question["last seen"],
    )
    last, t = stored.get("round", 0), question["round"]
    # what a node kept last is the client's own once its answer counted, and as long as the round
    # goes on; if it did not count, what was kept before is
    counted = simulated or last == seen or (last == t and kind != EVALUATE)
    kept = stored.get("memory" if counted else "before", b"")
    memory = _unpack(kept, job.task.device)
    with local.threads(job.threads, job.settings.precision):
        answer = job.side.answer(t, k, kind, question["message"], memory)
    lost = not simulated and last < seen
    if lost and job.side.remembers and (memory or kind == EVALUATE):
        raise WireError(
            f"Client {k} was started anew: what it kept in round {seen} is lost."
        )
    if kind == EVALUATE:  # which changes nothing
        return {"message": answer}
    if simulated:
        return {"message": answer, "memory": _pack(memory)}
    before = stored["before"] if last == t else kept
    notes = {"memory": _pack(memory), "round": t, "before": before}
    context.state[RECORD] = ConfigRecord(notes)
    return {"message": answer}


def _pack(tensors: Tensors) -> bytes:
    from safetensors.torch import save

    return save(apart(tensors)) if tensors else b""


def _unpack(data: bytes, device: Any) -> Tensors:
    from safetensors.torch import load

    return {n: x.to(device) for n, x in load(data).items()} if data else {}


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
    engine = Nodes(
        grid, float(config.get("wait", 600)), float(config.get("timeout", 600))
    )

    def log(row, state):
        names = "round", "accuracy", "loss", "refused", "unevaluated", "untaken"
        about = ", ".join(f"{n} {row[n]}" for n in names if row[n] not in (None, {}))
        logging.getLogger("flwr").info(about)

    options = vars(e.settings) | {
        "threads": e.threads,
        "engine": engine,
        "on_round": log,
    }
    history = run(e.make_method(), e.make_task(), e.rounds, progress=False, **options)
    if config.get("out"):
        history.to_json(config["out"])
    if config.get("model"):
        write_tensors(config["model"], apart(history.state or {}))


class Nodes:
    """The nodes that a Flower grid reaches, as an engine of ``fl.run`` and the clients of its run.
    ``wait``, ``timeout``: seconds for clients to join, and to answer. ``simulated``: how workers
    find the run; ``check`` raises if Flower has ended."""

    def __init__(
        self,
        grid: Any,
        wait: float = 600.0,
        timeout: float = 600.0,
        simulated: bytes | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self.grid, self.wait, self.timeout, self.check = grid, wait, timeout, check
        self.common = (
            {} if simulated is None else {"job": simulated}
        )  # in every message
        self.pause = 0.01 if simulated else 0.5  # seconds between two looks

    @contextmanager
    def connect(self, client: Any, threads: int) -> Iterator["Nodes"]:
        """The clients of one run."""
        self.job = Job.of(client, threads)
        self.about = {"name": "flower", "flower": require()}  # for the history
        self.memories: dict[
            int, Tensors
        ] = {}  # what clients keep; only in a simulation
        self.nodes: dict[int, int] = {}  # client -> node
        self.new: dict[int, Tensors] = {}  # the same of the round at hand
        self.last_seen: dict[
            int, int
        ] = {}  # client -> the last round in which its answer counted
        self.begun = False
        yield self

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """Wait for the clients of round ``t``: all of the run at first, later any of them."""
        clients, end = list(clients), time.monotonic() + self.wait
        rejected: dict[
            int, str
        ] = {}  # node -> why it takes no part; by the next round, it may
        while True:
            self.greet(rejected)
            anybody = any(k in self.nodes for k in clients)
            everybody = len(self.nodes) + len(rejected) >= self.job.task.clients
            if everybody or (anybody and self.begun) or time.monotonic() > end:
                break
            self.check()
            time.sleep(self.pause)
        if not anybody:
            reasons = "".join(f" {why}" for why in dict.fromkeys(rejected.values()))
            raise ConnectionError(
                f"Round {t}: none of its {len(clients)} clients has joined within {self.wait:g} s."
                f"{reasons}"
            )

    def greet(self, rejected: dict[int, str]) -> None:
        """Forget nodes that have gone, and ask new ones which client they are."""
        online = set(self.grid.get_node_ids())
        self.nodes = {k: node for k, node in self.nodes.items() if node in online}
        new = sorted(online - {*self.nodes.values(), *rejected})
        for node, values in self.deliver(
            (node, {"question": JOIN}) for node in new
        ).items():
            try:
                self.nodes[self.identify(values)] = node
            except WireError as error:
                rejected[node] = str(error)
                logging.getLogger("flwr").warning(rejected[node])

    def identify(self, values: dict[str, Any] | WireError) -> int:
        """The client that a new node is; ``WireError`` if it cannot take part."""
        if isinstance(values, WireError):
            raise values
        k, count = values.get("client"), self.job.task.clients
        if type(k) is not int or not 0 <= k < count:
            raise WireError(f"A node's partition-id is 0 to {count - 1}, not {k!r}.")
        if k in self.nodes:
            raise WireError(
                f"Client {k} was turned away: it is already here, as another node."
            )
        if difference := _differences(self.job.head(), values):
            raise WireError(f"Client {k} was turned away: {difference}.")
        return k

    def exchange(
        self, t: int, kind: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """See ``core.OneByOne.exchange``."""

        def question(k: int) -> dict[str, Any]:
            seen = self.last_seen.get(k, 0)
            values = {
                "question": kind,
                "round": t,
                "last seen": seen,
                "message": write(k),
            }
            memory = self.new.get(k, self.memories.get(k, {}))
            return values | ({"memory": _pack(memory)} if self.common else {})

        clients, self.begun = list(clients), True
        answers = self.deliver(
            (self.nodes[k], question(k)) for k in clients if k in self.nodes
        )
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
        """See ``core.OneByOne.settle``; a node hears it with the next question."""
        clients = list(clients)
        self.last_seen |= dict.fromkeys(clients, t)
        self.memories |= {k: self.new[k] for k in clients if k in self.new}
        self.new = {}

    def deliver(
        self, questions: Iterable[tuple[int, dict[str, Any]]]
    ) -> dict[int, dict[str, Any] | WireError]:
        """Send nodes a record each -> the record that each answers, or why there is none."""
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
                if identifier in pending:  # not a second answer
                    answers[pending.pop(identifier)] = _open(reply)
            if pending:
                self.check()
                time.sleep(self.pause)
        return answers


def _differences(server: Mapping[str, str], client: Mapping[str, str]) -> str:
    """What two heads do not have in common; where more differs than data, not the data."""
    names = [n for n, value in server.items() if client.get(n) != value]
    stated = [n for n in names if not n.startswith(DATA)]
    return "; ".join(
        f"{n} is {client.get(n)} there and {server[n]} here" for n in stated or names
    )


def _open(reply: Any) -> dict[str, Any] | WireError:
    """The values of a reply, or why there are none.

    ``ConnectionError`` if a worker died; ``RuntimeError`` for an error in a client's code.
    """
    if reply.has_error():
        reason = str(reply.error.reason)
        if DEAD.search(reason):  # Ray would hand all that follows to the dead one
            raise ConnectionError(
                "A worker process of the simulation has died; memory may be short. Finished rounds "
                "are in the checkpoint, if there is one."
            )
        return WireError(f"Flower reports: {reason.strip().splitlines()[-1]}")
    values = dict(reply.content.get(RECORD) or {})
    if "raised" in values:
        raise RuntimeError(str(values["raised"]))
    return WireError(str(values["refused"])) if "refused" in values else values


class Simulation:
    """An engine of ``fl.run``: Flower's simulation, in worker processes of this machine, where a
    client takes ``cpus_per_client`` and ``gpus_per_client`` (0.1: a tenth of one) while it trains.
    ``cpus``: how many to use, by default all. Several runs share the workers inside a ``with``
    block. Ray ends with the workers, also one that was connected to many machines before.

    >>> import fedlearn as fl
    >>> fl.flower.Simulation(cpus_per_client=2).resources
    {'num_cpus': 2, 'num_gpus': 0.0}
    """

    def __init__(
        self,
        cpus_per_client: float = 1,
        gpus_per_client: float = 0.0,
        cpus: int | None = None,
    ) -> None:
        self.resources = {"num_cpus": cpus_per_client, "num_gpus": gpus_per_client}
        if not cpus_per_client > 0 or not gpus_per_client >= 0:
            raise ValueError(
                f"A client needs CPUs above 0, GPUs from 0 on, not {self.resources}."
            )
        self.cpus, self.clients = cpus, 0
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
                import ray

                for module in (
                    FILES.values()
                ):  # workers cannot import what was loaded from a file
                    ray.cloudpickle.register_pickle_by_value(module)
                stored = ray.put(
                    Job.of(client, threads)
                )  # once; a message carries only where it lies
                known = ray.cloudpickle.dumps(stored)
                engine = Nodes(self.grid, DAY, DAY, known, self.check)
                with engine.connect(client, threads) as nodes:
                    yield nodes
            except ConnectionError:  # the next run starts it anew
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

        logging.getLogger("flwr").setLevel(
            logging.CRITICAL + 1
        )  # the history says what goes wrong
        server, done = ServerApp(), threading.Event()
        self.clients, self.done, self.problem = clients, done, None

        @server.main()
        def main(grid, context):
            self.grid = grid
            done.wait()

        def play():
            try:
                backend = {"client_resources": self.resources}
                run_simulation(
                    server, _client_app(_simulated), clients, backend_config=backend
                )
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
        self.thread = self.grid = None


@lru_cache(1)
def _fetch(known: bytes) -> Job:
    """In a worker: the run that is known by this."""
    import ray

    return ray.get(ray.cloudpickle.loads(known))


def _simulated(question: Any, context: Any) -> Job:
    return _fetch(question["job"])


def start_ray(cpus: int | None = None) -> None:
    """Start Ray on this machine, unless it runs, quietly; ``StartError`` if it does not start."""
    require()
    import ray

    if ray.is_initialized():
        return
    path = os.pathsep.join(
        sys.path
    )  # what is imported here can be imported in its workers
    options: dict[str, Any] = {
        "include_dashboard": False,
        "logging_level": "ERROR",
        "log_to_driver": False,
        "num_cpus": cpus,
        "runtime_env": {"env_vars": {"PYTHONPATH": path, **QUIET}},
    }
    logging.getLogger("ray").setLevel(
        logging.ERROR
    )  # it would say that it starts in a thread
    started, failures = threading.Event(), list[str]()

    def keep() -> None:
        reason = ""
        for _ in range(STARTS):
            try:
                ray.init(**options)
                break
            except BaseException as error:  # of no class of its own
                ray.shutdown()
                reason = str(error)
        else:
            failures.append(reason)
        if failures:  # nobody waits any more
            ray.shutdown()
        started.set()
        while (
            ray.is_initialized()
        ):  # on Linux its processes end with the thread that started them
            time.sleep(1)

    threading.Thread(
        target=keep, daemon=True
    ).start()  # one that hangs can be left alone
    if not started.wait(LIMIT):
        failures.append(f"it took longer than {LIMIT:g} seconds")
    if failures:
        reason = re.split(r"\.\s|\n", failures[0])[0].rstrip(".")
        raise StartError(
            f"Ray, which carries Flower's simulation, did not start: {reason}; all other engines "
            "run without it."
        )
