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
from .arguments import is_whole
from .checkpoint import apart, write_tensors
from .context import Tensors
from .errors import StartError, WireError, said
from .experiment import Experiment, read_pairs
from .extensions import FILES
from .method import EVALUATE, Method
from .round import describe, good_threads, run
from .settings import Settings

FLOWER = (1, 41), (2, 0)  # from this version on, and before that one
RECORD = "fedlearn"  # the name of the one record in a message
HELLO = "hello"  # asked of a node before anything else: which client it is, and of which run
DATA = "data."  # begins the names of the hashes in what is compared then
# Nothing leaves the machine that was not asked for. Flower and Ray read these when imported.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
LIMIT = 120.0  # seconds for all starts of Ray together
STARTS = 10
DEAD = re.compile(
    "ActorDiedError|RayActorError|ActorUnavailableError|WorkerCrashedError|OutOfMemoryError"
)


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
    first, end = FLOWER
    if not first <= tuple(map(int, re.findall(r"\d+", version)[:2])) < end:
        oldest = ".".join(map(str, first))
        raise ImportError(
            f"Flower {version} is installed; fedlearn works with {oldest} or newer, before "
            f"{end[0]}."
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


def _differences(mine: Mapping[str, str], other: Mapping[str, str]) -> str:
    """What two heads do not have in common, in words; empty if nothing. That other seeds or
    partitions make other data goes without saying."""
    names = [n for n, value in mine.items() if other.get(n) != value]
    stated = [n for n in names if not n.startswith(DATA)]
    return "; ".join(f"{n} is {other.get(n)} there and {mine[n]} here" for n in stated or names)


# ---- a client ------------------------------------------------------------------------------------

_HERE: dict[Any, tuple[Job, Any]] = {}  # what this process has built to answer in one run


def client_app(task: Callable[[Any], Any] | None = None) -> Any:
    """A Flower ``ClientApp`` for the run that the app's run config states.

    Which client it is says the node's ``partition-id``. ``task`` makes the task of Flower's
    context where a client reads data of its own; by default it is the one that is stated."""
    return _client_app(partial(_stated, task))


def _stated(task: Callable[[Any], Any] | None, asked: Any, context: Any) -> tuple[Any, Callable]:
    def make() -> Job:
        e = experiment(context.run_config)
        method, own = e.make_method(), task(context) if task else e.make_task()
        net = local.initial_network(method, own)
        threads = e.threads or good_threads(net, own, e.batch_size)
        return Job(method, own, e.settings, threads)

    return context.run_id, make


def _simulated(asked: Any, context: Any) -> tuple[Any, Callable]:
    import ray

    return asked["job"], lambda: ray.get(ray.cloudpickle.loads(asked["job"]))


def _client_app(find: Callable[[Any, Any], tuple[Any, Callable]]) -> Any:
    require()
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query()(partial(_reply, find))
    return app


def _reply(find, message, context):
    """A Flower message -> the reply to it. ``find`` says by what the run is known in this process,
    and how its ``Job`` is made here."""
    from flwr.app import ConfigRecord, Message, RecordDict

    asked = message.content[RECORD]
    k = context.node_config.get("partition-id")
    try:
        key, make = find(asked, context)
        if key not in _HERE:
            _HERE.clear()
            job = make()
            _HERE[key] = job, job.method.client_side(job.task, job.settings)
        values = _answer(*_HERE[key], k, asked, context)
    except WireError as error:
        values = {"refused": str(error)}
    except Exception as error:  # the same words as for a client in the server's own process
        values = {"refused": f"Client {k} raised {type(error).__name__}: {error}"}
    return Message(RecordDict({RECORD: ConfigRecord(values)}), reply_to=message)


def _answer(job, side, k, asked, context):
    from flwr.app import ConfigRecord

    if not is_whole(k) or not 0 <= k < job.task.clients:
        last = job.task.clients - 1
        raise WireError(f"A node's partition-id is a client's number, 0 to {last}, not {k!r}.")
    if asked["what"] == HELLO:
        return {"client": k, "head": json.dumps(job.head())}
    kept = context.state.get(RECORD, {})
    elsewhere = "memory" in asked  # in a simulation
    memory = _unpack(asked["memory"] if elsewhere else kept.get("memory"), job.task.device)
    t, what = asked["round"], asked["what"]
    with local.threads(job.threads, job.settings.precision):
        answer = side.answer(t, k, what, asked["message"], memory)
    lost = not elsewhere and kept.get("round", 0) < asked["heard"]
    if lost and side.remembers and (memory or what == EVALUATE):
        raise WireError(
            f"Client {k} answered round {asked['heard']}, but what it kept has been lost: its node "
            "was started anew."
        )
    if what == EVALUATE:  # which changes nothing
        return {"message": answer}
    if elsewhere:
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
        self.away: dict[int, str] = {}  # node -> why it takes no part
        self.heard: dict[int, int] = {}  # client -> the last round in which it answered
        self.began = False
        yield self

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """Wait for the clients of round ``t``: the first time for all, later only if there is
        nobody at all."""
        clients, end = list(clients), time.monotonic() + self.wait
        self.away = {}  # whoever was turned away may have been mended
        while True:
            self.greet()
            here = any(k in self.nodes for k in clients)
            everybody = len(self.nodes) + len(self.away) >= self.job.task.clients
            if everybody or (here and self.began) or time.monotonic() > end:
                break
            self.check()
            time.sleep(self.pause)
        if not here:
            who = "".join(f" {why}" for why in dict.fromkeys(self.away.values()))
            what = "could join" if everybody else f"came within {self.wait:g} s"
            raise ConnectionError(f"Round {t}: none of the {len(clients)} clients {what}.{who}")
        self.began = True

    def greet(self) -> None:
        """Forget nodes that have gone, and ask new ones which client they are, and of which
        run."""
        online = set(self.grid.get_node_ids())
        self.nodes = {k: node for k, node in self.nodes.items() if node in online}
        self.away = {node: why for node, why in self.away.items() if node in online}
        new, head = online - {*self.nodes.values(), *self.away}, self.job.head()
        for node, values in self.deliver((node, {"what": HELLO}) for node in sorted(new)):
            try:
                if isinstance(values, WireError):
                    raise values
                k, theirs = int(values["client"]), dict(json.loads(values["head"]))
                if k in self.nodes or not 0 <= k < self.job.task.clients:
                    what = "already here" if k in self.nodes else "not one of this run"
                    raise WireError(f"A node was turned away: client {k} is {what}.")
                if other := _differences(head, theirs):
                    raise WireError(f"Client {k} was turned away: {other}.")
                self.nodes[k] = node
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                self.away[node] = _plain(str(error))
                logging.getLogger("flwr").warning(self.away[node])

    def exchange(
        self, t: int, what: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """See ``round.Exchange``."""

        def question(k: int) -> dict[str, Any]:
            about = {"what": what, "round": t, "heard": self.heard.get(k, 0), "message": write(k)}
            return about | ({"memory": _pack(self.memories.get(k, {}))} if self.common else {})

        clients = list(clients)
        here = [k for k in clients if k in self.nodes]
        answers = self.deliver((self.nodes[k], question(k)) for k in here)
        for k in clients:
            if k not in here:
                yield k, WireError("not connected")
                continue
            _, values = next(answers)
            if isinstance(values, WireError):
                yield k, values
                continue
            if what != EVALUATE:
                self.heard[k] = t
            if "memory" in values:
                self.memories[k] = _unpack(values["memory"], self.job.task.device)
            answer: Any = values.get("message")
            yield k, answer

    def deliver(
        self, contents: Iterable[tuple[int, dict[str, Any]]]
    ) -> Iterator[tuple[int, dict[str, Any] | WireError]]:
        """Send nodes a record each; then each node's own, or why there is none, as soon as it and
        those before it are there, or time is up."""
        from flwr.app import ConfigRecord, Message, RecordDict

        asked: dict[str, int] = {}  # message -> node
        answers: dict[int, dict[str, Any] | WireError] = {}
        order = []
        for node, values in contents:
            content = RecordDict({RECORD: ConfigRecord(values | self.common)})
            message = Message(content, node, "query", ttl=self.timeout)
            sent = next(iter(self.grid.push_messages([message])), None)
            if sent is None:
                answers[node] = WireError("Flower could not take the message.")
            else:
                asked[sent] = node
            order.append(node)
        began = time.monotonic()
        for node in order:
            while node not in answers:
                for reply in self.grid.pull_messages([*asked]):
                    to = asked.pop(reply.metadata.reply_to_message_id, None)
                    if to is not None:  # not a second answer
                        answers[to] = _opened(reply)
                waited = time.monotonic() - began
                if node in answers:
                    break
                if waited > self.timeout:
                    answers[node] = WireError(f"No answer within {self.timeout:g} s.")
                self.check()
                time.sleep(min(max(self.pause / 20, waited / 10), self.pause))
            yield node, answers.pop(node)


def _opened(reply: Any) -> dict[str, Any] | WireError:
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
    app.main()(_lead)
    return app


def _lead(grid, context):
    config = context.run_config
    e = experiment(config)
    engine = Nodes(grid, float(config.get("wait", 600)), float(config.get("timeout", 600)))

    def say(row, state):
        names = "round", "accuracy", "loss", "refused", "unevaluated", "untaken"
        about = ", ".join(f"{n} {row[n]}" for n in names if row[n] not in (None, {}))
        logging.getLogger("flwr").info(about)

    how = vars(e.settings) | {"threads": e.threads, "engine": engine, "on_round": say}
    history = run(e.make_method(), e.make_task(), e.rounds, progress=False, **how)
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


# ---- engines -------------------------------------------------------------------------------------


class Simulation:
    """An engine of ``fl.run``: Flower's simulation, in worker processes of this machine.

    As many clients train at a time as there is room for when each takes so many CPUs and GPUs.
    ``cpus``: how many to use, by default all. ``timeout``: seconds for an answer. Several runs
    share the workers inside a ``with`` block. Ray ends with the workers, as Flower wants it, also
    one that was connected to many machines before."""

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
        own = Job(*job)
        if own.task.device.type == "cuda" and not self.resources["num_gpus"]:
            raise ValueError(
                "The task is on a GPU: say with gpus_per_client how much of one a client takes, "
                "such as 0.1."
            )
        try:
            self.start(own.task.clients)
            import ray

            for module in FILES.values():  # workers cannot import what was loaded from a file
                ray.cloudpickle.register_pickle_by_value(module)
            there = ray.put(own)  # once; a message carries only where it lies
            known = ray.cloudpickle.dumps(there)
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
        there, needs = ray.cluster_resources(), self.resources
        has = there.get("CPU", 0), there.get("GPU", 0)
        if has[0] < needs["num_cpus"] or has[1] < needs["num_gpus"]:
            ray.shutdown()
            raise ValueError(
                f"Ray has {has[0]:g} CPUs and {has[1]:g} GPUs; one client is to take "
                f"{needs['num_cpus']:g} and {needs['num_gpus']:g}."
            )
        server, grids, done = ServerApp(), queue.Queue[Any](), threading.Event()
        self.clients, self.done, self.problem = clients, done, None

        @server.main()
        def main(grid, context):
            grids.put(grid)
            done.wait()

        def play():
            try:
                client, how = _client_app(_simulated), {"client_resources": needs}
                run_simulation(server, client, clients, backend_config=how)
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
    environment = {"env_vars": {"PYTHONPATH": path, **QUIET}}
    how = {"include_dashboard": False, "logging_level": "ERROR", "log_to_driver": False}
    init = partial(ray.init, num_cpus=cpus, runtime_env=environment, **how)
    logging.getLogger("ray").setLevel(logging.ERROR)  # it would say that it starts in a thread
    end, why = time.monotonic() + LIMIT, f" within {LIMIT:g} seconds"
    for _ in range(STARTS):
        outcome: Future[Any] = Future()
        threading.Thread(target=_init, args=(init, outcome), daemon=True).start()
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


def _init(init: Callable[[], Any], outcome: "Future[Any]") -> None:
    """One start of Ray, in a thread of its own: one that hangs can be left alone, and on Linux what
    a failed one leaves running ends with its thread. So the thread stays as long as Ray does."""
    import ray

    try:
        context = init()
    except BaseException as error:  # of no class of its own
        ray.shutdown()
        if outcome.set_running_or_notify_cancel():
            outcome.set_exception(error)
    else:
        if outcome.set_running_or_notify_cancel():
            outcome.set_result(context)
            while ray.is_initialized():
                time.sleep(1)
        else:  # nobody waits any more
            ray.shutdown()
