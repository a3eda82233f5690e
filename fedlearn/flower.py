"""The same methods past one process: Flower carries the bytes (``pip install "fedlearn[flower]"``), nothing else changes.

    history = fl.run(fl.methods.rpn(), task, engine="flower-sim")     # Flower's simulation: clients in processes of their own
    fedlearn serve rpn ...     fedlearn join HOST:PORT rpn ...        # real clients: see ``fedlearn.deploy``

A Flower message holds one ``bytes`` value, the one that a run in one process encodes. Its ``group_id`` says which run it
belongs to, its round and the last round in which the server heard from this client. Three more kinds of message are not part
of a round and not counted: "hello", by which the server learns which client a node is and that both mean the same run,
"kept", for methods that evaluate with what clients keep (FedGKT), and "bye", after which real clients end.

What a client keeps stays with it, in Flower's context and, if it has a folder, in a file there: as it was before and after
its last round, so that a server that was set back to its last checkpoint can ask for a round again.
"""

import json
import os
import re
import secrets
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path

import torch

from . import local
from .checkpoint import apart
from .errors import WireError
from .federation import Clients, Server, describe, good_threads, train
from .history import History, write_atomically
from .method import Link, Settings, whole_number
from .wire import UP, Message, Schema, pack, unpack

FLOWER = (1, 41), (2, 0)  # from this version on, and before that one
RECORD = "fedlearn"  # the name of the one record in a message
OVER = "The run is over."  # a client's last line
AGAIN = 10  # seconds after which a node that was turned away is greeted again: somebody may have mended it
# Nothing leaves the machine that was not asked for. Flower and Ray read these when they are imported.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Ray's own processes may take their time on a busy machine.
PATIENT = {"RAY_agent_register_timeout_ms": "600000", "RAY_worker_register_timeout_seconds": "600"}


def require():
    """Raise ``ImportError`` unless a Flower that this module was written for is installed."""
    from importlib import metadata

    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise ImportError(
            'Flower is not installed: pip install "fedlearn[flower]", best in an environment of its own.'
        ) from None
    first, end = FLOWER
    if not first <= tuple(map(int, re.findall(r"\d+", version)[:2])) < end:
        raise ImportError(
            f"Flower {version} is installed; fedlearn works with {'.'.join(map(str, first))} or newer, before {end[0]}."
        )
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    return version


@dataclass(frozen=True)
class Job:
    """What every side of a run holds before the first byte."""

    method: object
    task: object
    rounds: int = 20
    settings: Settings = Settings()
    threads: int | None = None  # CPU threads; None: the rule of ``fl.run``

    def __post_init__(self):
        whole_number("rounds", self.rounds)

    @cached_property
    def cpu_threads(self):
        return self.threads or good_threads(
            local.initial_network(self.method, self.task), self.task, self.settings.batch_size
        )

    @cached_property
    def head(self):
        """What has to be equal on both sides, as a flat dict of texts. Several threads may be another number elsewhere."""
        about = describe(self.method, self.task, self.settings, self.cpu_threads)
        flat = {
            f"{group}.{name}": value
            for group in ("parts", "task", "settings")
            for name, value in about[group].items()
        }
        threads = "one" if self.cpu_threads == 1 else "several"
        return {
            name: str(value)
            for name, value in {"method": self.method.name, "threads": threads, **flat}.items()
        }

    @cached_property
    def digest(self):
        """A short name of the head. Messages carry it, so that a client which changed its mind after the greeting is noticed."""
        return blake2b(json.dumps(self.head, sort_keys=True).encode(), digest_size=8).hexdigest()


# ---- the client's side --------------------------------------------------------------------------------------------------

_HERE = {}  # run -> (job, clients): what this process has built, for it may answer many messages


def _party(make, context):
    """The job, the client's number and the clients of this process."""
    run, k = context.run_id, context.node_config.get("partition-id")
    if run not in _HERE:
        _HERE.clear()
        job = make(context)
        _HERE[run] = job, Clients(job.method, job.task, job.settings)
    job, clients = _HERE[run]
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < job.task.clients:
        raise ValueError(
            f"The node's partition-id must be a client's number, 0 to {job.task.clients - 1}, not {k!r}."
        )
    return job, k, clients


def _hello(make, keep, message, context):
    job, k, _ = _party(make, context)
    other = differences(
        job.head, json.loads(message.content[RECORD]["head"]), "here", "at the server"
    )
    say(
        context.node_config.get("folder"),
        f"Stopped: The server turned this client away: {other}."
        if other
        else "The server is there and means the same run.",
    )
    return _reply(message, client=k, head=json.dumps(job.head))


def differences(mine, other, here, there):
    """What two jobs' heads do not have in common, in words; empty if nothing."""
    return "; ".join(
        f"{n} is {other.get(n)} {there} and {value} {here}"
        for n, value in mine.items()
        if other.get(n) != value
    )


def plain(text):
    """What may be shown of a text from outside: one line, no control characters, not endless."""
    return "".join(c if c.isprintable() else " " for c in text[:2000])


def say(folder, text):
    """A line for whoever looks at this side's terminal (``fedlearn.deploy`` shows it)."""
    if folder:
        with open(Path(folder) / "run.log", "a", encoding="utf-8", errors="replace") as log:
            log.write(plain(text) + "\n")


def _train(make, keep, message, context):
    job, k, clients = _party(make, context)
    run, t, heard = message.metadata.group_id.split(".")
    notes, began, folder = (
        Notes(context, keep, k),
        time.perf_counter(),
        context.node_config.get("folder"),
    )
    try:
        agreed(job, run, k)
        at, memory = notes.before(run, int(t), k)
        clients.memories[k] = {
            name: tensor.to(job.task.device, copy=True) for name, tensor in memory.items()
        }
        with local.threads(job.cpu_threads, job.settings.precision):
            data = message.content[RECORD]["message"]
            answer = clients.answer(int(t), k, data)
        after = clients.memories.pop(k)
        if at < int(heard) and after:
            raise WireError(
                f"Client {k} answered round {heard}, but what it kept has been lost; it needs its folder."
            )
    except (WireError, KeyError, TypeError) as error:
        say(folder, f"Round {t}: {error}")
        return _reply(message, refused=str(error))
    notes.write(run, int(t), memory, after)
    say(
        folder,
        f"Round {t}: {len(data)} bytes came, {len(answer)} go back, {time.perf_counter() - began:.1f} s of work",
    )
    return _reply(message, message=answer)


def agreed(job, run, k):
    """``WireError`` if this side means another run than the one that the message's ``run-digest`` names."""
    if run.rpartition("-")[2] != job.digest:
        raise WireError(f"Client {k} means another run than when it was greeted.")


def _kept(make, keep, message, context):
    """What evaluation looks at, as a message in the usual envelope."""
    job, k, clients = _party(make, context)
    run, t, _ = message.metadata.group_id.split(".")
    agreed(job, run, k)
    schema = shown(clients, job.method)
    memory = Notes(context, keep, k).latest(run)
    sections = Link().pack(
        {name: memory[name].cpu() for name in schema.shapes if name in memory}, schema
    )
    return _reply(
        message, message=pack(Message(UP, int(t), k, job.task.sizes[k], sections), schema)
    )


def _bye(make, keep, message, context):
    say(context.node_config.get("folder"), OVER)
    return _reply(message, message=b"")


def _reply(message, /, **values):
    return envelope(values, reply_to=message)


def envelope(values, *to, **how):
    """A Flower message of one record, with the arguments that Flower's own takes after its content."""
    from flwr.app import ConfigRecord, RecordDict
    from flwr.app import Message as Envelope

    return Envelope(RecordDict({RECORD: ConfigRecord(values)}), *to, **how)


def shown(party, method):
    """The schema of what the method's evaluation needs of a client's memory."""
    shapes = method.server.looks_at(party.context(0, -1, party.up, {}))
    return Schema(shapes, frozenset(), "kept")


class Notes:
    """What a client keeps between rounds: tensors, before and after the last round that it answered. They live in Flower's
    context, and in a file if there is a folder, both without pickle (safetensors)."""

    def __init__(self, context, folder, k):
        folder = folder or context.node_config.get("folder")
        self.context, self.path = context, folder and Path(folder) / f"client-{k}.safetensors"

    def read(self, run):
        """The last round of this run that was answered, and the tensors; 0 and none if there was no such round."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        record = self.context.state.get(RECORD)
        data = (
            record["notes"]
            if record
            else self.path.read_bytes()
            if self.path and self.path.exists()
            else None
        )
        try:
            tensors = load(data) if data else {}
        except SafetensorError as error:
            raise WireError(
                f"The client's notes in {self.path} cannot be read ({error})."
            ) from None
        if not tensors or bytes(tensors.pop("run").tolist()).decode() != run:
            return 0, {}
        return int(tensors.pop("round")), tensors

    def before(self, run, t, k):
        """The last round before ``t`` that is known here, and the memory after it."""
        at, tensors = self.read(run)
        if at > t:
            raise WireError(
                f"Client {k} has answered round {at} and is now asked for round {t}; resume from the server's last checkpoint."
            )
        which = "before/" if at == t else "after/"
        return (at - 1 if at == t else at), {
            n.removeprefix(which): x for n, x in tensors.items() if n.startswith(which)
        }

    def latest(self, run):
        return {
            n.removeprefix("after/"): x
            for n, x in self.read(run)[1].items()
            if n.startswith("after/")
        }

    def write(self, run, t, before, after):
        from flwr.app import ConfigRecord
        from safetensors.torch import save

        tensors = {f"before/{n}": x for n, x in before.items()} | {
            f"after/{n}": x for n, x in after.items()
        }
        data = save(
            apart(tensors)
            | {"run": torch.tensor(list(run.encode()), dtype=torch.uint8), "round": torch.tensor(t)}
        )
        if self.path:
            write_atomically(self.path, lambda part: part.write_bytes(data))
        self.context.state[RECORD] = ConfigRecord({"notes": data})


def client_app(make, keep=None):
    """A Flower ``ClientApp``. ``make(context)`` gives the ``Job``; it is called once in each process. Which client it is says
    the node's ``partition-id``. ``keep`` is a folder for what the client keeps between rounds, by default the node's ``folder``."""
    require()
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query("hello")(partial(_hello, make, keep))
    app.train()(partial(_train, make, keep))
    app.query("kept")(partial(_kept, make, keep))
    app.query("bye")(partial(_bye, make, keep))
    return app


# ---- the server's side --------------------------------------------------------------------------------------------------


class Remote:
    """The clients of a run, wherever they live: what a round needs of ``federation.Clients``, on a Flower grid.

    ``wait``: seconds for clients to join. ``timeout``: seconds for their answers. ``stop``: an event that ends all waiting.
    ``start_with``: the number of clients with which the first round begins, by default all.
    """

    def __init__(
        self, job, grid, server, history, wait, timeout, stop=None, say=None, start_with=None
    ):
        self.job, self.grid, self.server, self.history, self.wait, self.timeout = (
            job,
            grid,
            server,
            history,
            wait,
            timeout,
        )
        self.stop, self.say = stop or threading.Event(), say or (lambda text: None)
        self.start_with = start_with or job.task.clients
        self.nodes, self.away, self.absent, self.started = (
            {},
            {},
            {},
            False,
        )  # client -> node; node -> why it may not join, since when
        self.said = set()
        self.greeted, self.asked, self.answered = (
            {},
            {},
            {},
        )  # message -> node; message -> client; client -> bytes or WireError
        self.memories = {}  # what clients keep stays with them; here is what evaluation was shown of it last, if the method shows any
        self.pulls, self.pool = (
            {},
            ThreadPoolExecutor(16, thread_name_prefix="pull"),
        )  # message -> the answer, being fetched
        # seconds between two looks, each of which is a request for every answer that is missing
        self.pause = (
            max(0.5, job.task.clients / 100) if history.meta["engine"]["name"] == "flower" else 0.02
        )

    def groups(self, clients):
        """All clients of the round that are here, as one group. The first round waits for
        ``start_with`` clients, a later one only if there is nobody at all; the others are
        ``absent``."""
        everybody = range(self.job.task.clients)

        def enough():
            self.look()
            if not self.nodes and len(self.away) >= len(everybody):
                return True
            many = self.started or len(self.nodes) >= self.start_with
            return many and any(k in self.nodes for k in clients)

        self.until(enough, self.wait)
        if not any(k in self.nodes for k in clients):
            who = "".join(f" {why}" for why in dict.fromkeys(why for why, _ in self.away.values()))
            what = (
                "could join" if len(self.away) >= len(everybody) else f"came within {self.wait:g} s"
            )
            raise ConnectionError(
                f"Round {len(self.history) + 1}: none of the {len(clients)} clients {what}.{who}"
            )
        self.started = True
        self.tell()
        self.absent = {k: "not connected" for k in clients if k not in self.nodes}
        return [[k for k in clients if k in self.nodes]]

    def answers(self, round, messages):
        """{client: bytes} -> {client: bytes, or a WireError that says why there are none}, by client."""
        return self.ask("train", round, messages)

    def kept(self):
        """What the evaluation may see of what clients keep. A client that does not answer now is judged by what it showed last."""
        schema = shown(self.server, self.job.method)
        t, missing = (
            len(self.history) + 1,
            dict.fromkeys(range(self.job.task.clients), "not connected"),
        )
        for k, data in self.ask("query.kept", t, dict.fromkeys(self.nodes, b"")).items():
            try:
                if isinstance(data, WireError):
                    raise data
                message = unpack(data, schema, kind=UP, round=t, client=k)
                tensors = Link().unpack(message.sections, schema)
                self.memories[k] = {name: x.to(self.job.task.device) for name, x in tensors.items()}
                del missing[k]
            except WireError as error:
                missing[k] = str(error)
        for k, why in missing.items():
            warnings.warn(
                f"Round {t}: client {k} is judged by what it showed last, if anything: {why}",
                stacklevel=2,
            )
        return self.memories

    def ask(self, kind, round, contents):
        """Send each client its bytes, and wait until all have answered or time is up."""
        self.asked, self.answered = {}, {}
        for k, data in contents.items():
            group = f"{self.history.meta['run']}-{self.job.digest}.{round}.{self.heard(k)}"
            sent = self.push(self.nodes[k], kind, {"message": data}, group)
            if sent is None:
                self.answered[k] = WireError("Flower could not take the message.")
            else:
                self.asked[sent] = k
        self.until(lambda: self.look() or not self.asked, self.timeout)
        late = {k: WireError(f"No answer within {self.timeout:g} s.") for k in self.asked.values()}
        self.asked = {}  # an answer that comes later is left where it is
        return dict(sorted((self.answered | late).items()))

    def heard(self, k):
        """The last round in which this client's upload was used; 0 if there is none."""
        rows = reversed(self.history.rows)
        return next(
            (row["round"] for row in rows if k in row["clients"] and k not in row["refused"]), 0
        )

    def push(self, node, kind, values, group=""):
        message = envelope(values, node, kind, group_id=group, ttl=self.timeout)
        return next(iter(self.grid.push_messages([message])), None)

    def look(self):
        """Greet nodes that are new, forget those that are gone, and take in what has come. A second answer to one message, or
        one to a message that nobody waits for, is not looked at."""
        self.names = {node.node_id: node.name for node in self.grid.get_nodes()}
        online = set(self.names)
        self.nodes = {k: node for k, node in self.nodes.items() if node in online}
        self.away = {
            node: (why, since)
            for node, (why, since) in self.away.items()
            if node in online and time.monotonic() < since + AGAIN
        }
        for node in online - {*self.nodes.values(), *self.away, *self.greeted.values()}:
            sent = self.push(node, "query.hello", {"head": json.dumps(self.job.head)})
            if sent is not None:
                self.greeted[sent] = node
        for to, replies in self.pull([*self.greeted, *self.asked]):
            for reply in replies:
                if to in self.greeted:
                    node = self.greeted.pop(to)
                    if node in online:
                        self.introduce(node, reply)
                elif to in self.asked:
                    self.answered[self.asked.pop(to)] = read(reply, message=bytes)

    def pull(self, messages):
        """(message, its replies) for the messages that have been answered. Each is fetched in a thread of its own: Flower goes on for
        minutes to fetch an answer whose sender died while it sent, and what it cannot read it raises."""
        for m in messages:
            if m not in self.pulls:
                self.pulls[m] = self.pool.submit(self.fetch, m)
        wait(self.pulls.values(), 1)
        done = [(m, self.pulls.pop(m)) for m in list(self.pulls) if self.pulls[m].done()]
        return [(m, future.result()) for m, future in done]

    def fetch(self, message):
        try:
            return list(self.grid.pull_messages([message]))
        except OSError:  # the connection to Flower itself
            raise
        except Exception as error:
            if type(error).__module__.startswith("httpx"):
                raise
            return [WireError(f"Flower cannot read the answer: {plain(str(error))}")]

    def tell(self):
        """Say how the last round went."""
        if self.history.rows:
            row = self.history.rows[-1]
            ending = "" if row["accuracy"] is None else f", accuracy {row['accuracy']:.4f}"
            missing = "".join(f"; client {k}: {why}" for k, why in row["refused"].items())
            used = len(row["clients"]) - len(row["refused"])
            self.say(
                f"Round {row['round']}: {used} of {len(row['clients'])} uploads{ending}, {row['seconds']:.1f} s{missing}"
            )

    def introduce(self, node, reply):
        """Take a node in as the client that it says it is, or turn it away and say why."""
        try:
            values = read(reply, client=int, head=str)
            if isinstance(values, WireError):
                raise values
            k, theirs = values[0], dict(json.loads(values[1]))
            other = differences(self.job.head, theirs, "here", "there")
            if other:
                raise WireError(f"Client {k} was turned away: {other}.")
            if self.names[node].isdecimal() and self.names[node] != str(k):
                raise WireError(
                    f"A node was turned away: it says that it is client {k} and has the key of client {self.names[node]}."
                )
            if not 0 <= k < self.job.task.clients or k in self.nodes:
                raise WireError(
                    f"A node was turned away: client {k} is {'already here' if k in self.nodes else 'not one of this run'}."
                )
        except (ValueError, TypeError, RecursionError) as error:  # WireError is a ValueError
            why = plain(str(error))
            if why not in self.said and len(self.said) < 1000:
                self.said.add(why)
                self.say(why)
            self.away[node] = why, time.monotonic()
        else:
            self.nodes[k] = node
            self.say(f"Client {k} is here.")

    def until(self, condition, seconds):
        """Wait until the condition holds or the time is up."""
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            if self.stop.wait(self.pause):
                raise ConnectionError("Flower has stopped.")


DEAD = re.compile(
    "ActorDiedError|RayActorError|ActorUnavailableError|WorkerCrashedError|OutOfMemoryError"
)


def read(reply, **kinds):
    """The values of a reply, one of each of these types, or the only one; a ``WireError`` instead if they are not there."""
    from flwr.app import ConfigRecord

    if isinstance(reply, WireError):
        return reply
    if reply.has_error():
        reason = str(reply.error.reason)
        if DEAD.search(reason):  # Ray would hand all that follows to the dead one
            raise ConnectionError(
                "A worker process of the simulation has died; memory may be short. Finished rounds are in the checkpoint, if there is one."
            )
        return WireError(
            f"Flower reports: {plain((reason.strip().splitlines() or ['no reason given'])[-1])[:300]}"
        )
    record = reply.content.get(RECORD) if reply.has_content() else None
    if isinstance(record, ConfigRecord) and isinstance(record.get("refused"), str):
        return WireError(plain(record["refused"])[:1000])
    if not isinstance(record, ConfigRecord) or any(
        type(record.get(name)) is not kind for name, kind in kinds.items()
    ):
        return WireError("The answer does not hold what was asked for.")
    values = [record[name] for name in kinds]
    return values[0] if len(values) == 1 else values


def check_waits(job, wait, timeout, start_with):
    """``ValueError`` if this cannot be waited for; ``serve`` asks before it starts anything."""
    if not wait > 0 or not timeout > 0:
        raise ValueError(f"Seconds to wait must be above 0, not {wait!r} and {timeout!r}.")
    if start_with is not None and start_with not in range(1, job.task.clients + 1):
        raise ValueError(f"A run starts with 1 to {job.task.clients} clients, not {start_with!r}.")


def lead(
    job,
    grid,
    *,
    engine,
    wait=600.0,
    timeout=600.0,
    start_with=None,
    checkpoint=None,
    progress=None,
    stop=None,
    say=None,
):
    """The server's part of a run on a Flower grid -> ``History``. Its ``refused`` also says who was missing, and why."""
    check_waits(job, wait, timeout, start_with)
    server = Server(job.method, job.task, job.settings)
    about = describe(job.method, job.task, job.settings, job.cpu_threads)
    about |= {"engine": {"name": engine, "flower": require()}, "run": secrets.token_hex(8)}
    history = History(job.method.name, about)
    clients = Remote(job, grid, server, history, wait, timeout, stop, say, start_with)
    try:
        train(server, clients, history, job.rounds, checkpoint, progress)
        clients.tell()
        if engine == "flower":
            clients.look()
            clients.timeout = min(timeout, 300)  # who is gone is known after one minute
            clients.ask("query.bye", job.rounds, dict.fromkeys(clients.nodes, b""))
    finally:
        clients.pool.shutdown(wait=False, cancel_futures=True)
    return history


# ---- the simulation -----------------------------------------------------------------------------------------------------


def forget(checkpoint):
    """Remove what the clients of a finished simulation kept beside its checkpoint."""
    folder = Path(f"{checkpoint}.clients")
    for path in folder.glob("client-*.safetensors"):
        path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _fetch(ref, context):
    import ray

    return ray.get(ref)


def simulate(
    job, *, cpus_per_client=1, gpus_per_client=0.0, timeout=86400.0, checkpoint=None, progress=None
):
    """Run a ``Job`` on Flower's simulation: clients train in worker processes, as many at a time as Ray has room for when each
    takes so many CPUs and GPUs. A Ray that was started before is used and left running: ``start_ray()`` for several runs, or
    ``ray.init(address=...)`` for many machines. With ``checkpoint`` what clients keep is written to the folder ``<checkpoint>.clients``."""
    require()
    try:
        import ray
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation
    except ImportError:
        raise ImportError(
            'Flower is installed without its simulation: pip install "fedlearn[flower]".'
        ) from None
    if not cpus_per_client > 0 or not gpus_per_client >= 0:
        raise ValueError(
            f"A client needs CPUs above 0 and GPUs of at least 0, not {cpus_per_client!r} and {gpus_per_client!r}."
        )
    if job.task.device.type == "cuda" and not gpus_per_client:
        raise ValueError(
            "The task is on a GPU: say with gpus_per_client how much of one a client takes, such as 0.1."
        )
    job.head  # noqa: B018  a network that cannot be built is noticed here, not in a worker
    keep = None if checkpoint is None else os.path.abspath(f"{checkpoint}.clients")
    stop, histories, problems = threading.Event(), [], []
    server = ServerApp()

    @server.main()
    def main(grid, context):
        try:
            more = {
                "engine": "flower-sim",
                "wait": timeout,
                "timeout": timeout,
                "checkpoint": checkpoint,
                "progress": progress,
                "stop": stop,
            }
            histories.append(lead(job, grid, **more))
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
                    f"Ray has {has}; one client is to take {cpus_per_client:g} and {gpus_per_client:g}."
                )
            # The task goes into Ray's store once; a message carries only where it lies.
            client = client_app(partial(_fetch, ray.put(job)), keep)
            resources = {"num_cpus": cpus_per_client, "num_gpus": gpus_per_client}
            run_simulation(
                server, client, job.task.clients, backend_config={"client_resources": resources}
            )
        finally:
            stop.set()
            ray.shutdown()
    if problems:
        raise problems[0]
    return histories[0]


def start_ray(cpus=None):
    """Start Ray on this machine, with that many CPUs (by default all) and without its log."""
    require()
    import ray

    path = os.pathsep.join(sys.path)  # what is imported here can be imported in its workers
    environment = {"env_vars": {"PYTHONPATH": path, **QUIET}}
    for name, value in PATIENT.items():
        os.environ.setdefault(name, value)
    try:
        with _unhurried():
            return ray.init(
                num_cpus=cpus,
                include_dashboard=False,
                logging_level="ERROR",
                log_to_driver=False,
                runtime_env=environment,
            )
    except Exception:
        ray.shutdown()
        raise


@contextmanager
def _unhurried():
    """Ray gives itself half a minute to start; here it has five, for a machine that is busy."""
    services = sys.modules.get("ray._private.services")
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
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    services.get_node = get_node
    try:
        yield
    finally:
        services.get_node = look


@contextmanager
def _left_running(ray):
    """Flower shuts Ray down after each simulation. Inside this block it cannot: somebody else started it."""
    shutdown, ray.shutdown = ray.shutdown, lambda: None
    try:
        yield
    finally:
        ray.shutdown = shutdown


@contextmanager
def _silence():
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
