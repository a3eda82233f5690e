"""The server on Flower: ``Remote`` is an engine, as ``round.Exchange`` describes it, whose clients
live elsewhere; ``lead`` is the server's part of a whole run."""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from ..errors import WireError
from ..history import History
from ..method import EVALUATE
from ..parts import Tensors
from ..round import describe, train
from .envelope import ASK, BYE, HELLO, Question, envelope, open_reply, plain
from .job import Job, differences, require

AGAIN = 10  # seconds after which a node that was turned away is greeted again: it may be mended


class Remote:
    """The clients of a run, wherever they are, on a Flower grid.

    ``wait``: seconds for clients to join. ``timeout``: seconds for their answers. ``start_with``:
    the number of clients with which the first round begins, by default all. ``stop``: an event that
    ends all waiting. ``say``: what to do with a line that says how the run goes.
    """

    def __init__(
        self,
        job: Job,
        grid: Any,
        history: History,
        wait: float,
        timeout: float,
        start_with: int | None = None,
        stop: threading.Event | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        self.job, self.grid, self.history = job, grid, history
        self.wait, self.timeout, self.start_with = wait, timeout, start_with or job.task.clients
        self.stop, self.say = stop or threading.Event(), say or (lambda text: None)
        self.memories: dict[int, Tensors] = {}  # what clients keep stays with them
        self.started, self.said = False, set[str]()
        self.nodes: dict[int, int] = {}  # client -> node
        self.names: dict[int, str] = {}  # node -> whose key it has
        self.away: dict[int, tuple[str, float]] = {}  # node -> why it may not join, since when
        self.greeted: dict[str, int] = {}  # message -> node
        self.asked: dict[str, int] = {}  # message -> client
        self.answered: dict[int, bytes | WireError] = {}
        self.heard: dict[int, int] = {}  # client -> the last round in which its answer was used
        self.numbers: dict[int, int] = {}  # client -> how many answers it has given in this round
        self.pulls: dict[str, Any] = {}  # message -> the answer, being fetched
        self.pool = ThreadPoolExecutor(16, thread_name_prefix="pull")
        # Seconds between two looks, each of which is a request for every answer that is missing: a
        # tenth of what has been waited so far, within these bounds.
        network = history.meta["engine"]["name"] == "flower"
        many = max(0.5, job.task.clients / 100)
        self.pauses = (many / 5, many) if network else (0.001, 0.02)

    # ---- a round ---------------------------------------------------------------------------------

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """Wait for the clients of round ``t``: the first time for ``start_with`` of them, later
        only if there is nobody at all. Then say how the last round went."""
        clients, everybody = list(clients), self.job.task.clients

        def enough():
            self.look()
            if not self.nodes and len(self.away) >= everybody:
                return True
            many = self.started or len(self.nodes) >= self.start_with
            return many and any(k in self.nodes for k in clients)

        self.until(enough, self.wait)
        if not any(k in self.nodes for k in clients):
            who = "".join(f" {why}" for why in dict.fromkeys(why for why, _ in self.away.values()))
            late = len(self.away) < everybody
            what = f"came within {self.wait:g} s" if late else "could join"
            raise ConnectionError(f"Round {t}: none of the {len(clients)} clients {what}.{who}")
        self.started = True
        self.heard, self.numbers = self.history.heard(), {}
        self.tell()

    def exchange(
        self, t: int, what: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """See ``round.Exchange``."""
        run, digest = self.history.meta["run"], self.job.digest

        def name(k: int) -> Question:
            return Question(run, digest, t, self.heard.get(k, 0), self.numbers.get(k, 0), what)

        for k, answer in self.ask(ASK, clients, write, name):
            if isinstance(answer, bytes) and what != EVALUATE:
                self.numbers[k] = self.numbers.get(k, 0) + 1
            yield k, answer

    def ask(
        self,
        kind: str,
        clients: Iterable[int],
        write: Callable[[int], bytes],
        name: Callable[[int], object] = lambda k: "",
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """Send each client that is here its bytes; then each client's answer as soon as it and
        those before it are there, or time is up."""
        self.asked, self.answered, order = {}, {}, []
        for k in clients:
            order.append(k)
            if k not in self.nodes:
                self.answered[k] = WireError("not connected")
                continue
            sent = self.push(self.nodes[k], kind, {"message": write(k)}, str(name(k)))
            if sent is None:
                self.answered[k] = WireError("Flower could not take the message.")
            else:
                self.asked[sent] = k
        end, late = time.monotonic() + self.timeout, f"No answer within {self.timeout:g} s."
        for k in order:
            self.until(partial(self.has, k), end - time.monotonic())
            yield k, self.answered.pop(k, WireError(late))
        self.asked = {}  # an answer that comes later is left where it is

    def has(self, k: int) -> bool:
        """Whether client ``k`` has answered; if it had not before, with a look."""
        if k not in self.answered:
            self.look()
        return k in self.answered

    # ---- what all of it is made of ---------------------------------------------------------------

    def push(self, node: int, kind: str, values: dict[str, Any], group: str = "") -> str | None:
        """Send a message -> its name, or nothing if Flower does not take it."""
        message = envelope(values, node, kind, group_id=group, ttl=self.timeout)
        return next(iter(self.grid.push_messages([message])), None)

    def look(self) -> None:
        """Greet nodes that are new, forget those that are gone, and take in what has come. A second
        answer to one message, or one to a message that nobody waits for, is not looked at."""
        self.names = {node.node_id: node.name for node in self.grid.get_nodes()}
        online = set(self.names)
        self.nodes = {k: node for k, node in self.nodes.items() if node in online}
        self.away = {
            node: (why, since)
            for node, (why, since) in self.away.items()
            if node in online and time.monotonic() < since + AGAIN
        }
        for node in online - {*self.nodes.values(), *self.away, *self.greeted.values()}:
            sent = self.push(node, HELLO, {"head": json.dumps(self.job.head)})
            if sent is not None:
                self.greeted[sent] = node
        for to, replies in self.pull([*self.greeted, *self.asked]):
            for reply in replies:
                if to in self.greeted:
                    self.introduce(self.greeted.pop(to), reply)
                elif to in self.asked:
                    self.answered[self.asked.pop(to)] = open_reply(reply, message=bytes)

    def pull(self, messages: list[str]) -> list[tuple[str, list[Any]]]:
        """(message, its replies) for the messages that have been answered. Each is fetched in a
        thread of its own: Flower goes on for minutes to fetch an answer whose sender died while it
        sent, and what it cannot read it raises."""
        for m in messages:
            if m not in self.pulls:
                self.pulls[m] = self.pool.submit(self.fetch, m)
        wait(self.pulls.values(), 1)
        done = [(m, self.pulls.pop(m)) for m in list(self.pulls) if self.pulls[m].done()]
        return [(m, future.result()) for m, future in done]

    def fetch(self, message: str) -> list[Any]:
        """The replies to a message that are there."""
        try:
            return list(self.grid.pull_messages([message]))
        except OSError:  # the connection to Flower itself
            raise
        except Exception as error:
            if type(error).__module__.startswith("httpx"):
                raise
            return [WireError(f"Flower cannot read the answer: {plain(str(error))}")]

    def introduce(self, node: int, reply: Any) -> None:
        """Take a node in as the client that it says it is, or turn it away and say why. It may have
        gone by now: whoever is turned away by its own side leaves at once."""
        try:
            values = open_reply(reply, client=int, head=str)
            if isinstance(values, WireError):
                if node not in self.names:
                    return
                raise values
            k, theirs = values[0], dict(json.loads(values[1]))
            other = differences(self.job.head, theirs, "here", "there")
            if other:
                raise WireError(f"Client {k} was turned away: {other}.")
            key = self.names.get(node, "")
            if key.isdecimal() and key != str(k):
                raise WireError(
                    f"A node was turned away: it says that it is client {k} and has the key of "
                    f"client {key}."
                )
            if not 0 <= k < self.job.task.clients or k in self.nodes:
                what = "already here" if k in self.nodes else "not one of this run"
                raise WireError(f"A node was turned away: client {k} is {what}.")
        except (ValueError, TypeError, RecursionError) as error:  # WireError is a ValueError
            why = plain(str(error))
            if why not in self.said and len(self.said) < 1000:
                self.said.add(why)
                self.say(why)
            self.away[node] = why, time.monotonic()
        else:
            if node in self.names:
                self.nodes[k] = node
                self.say(f"Client {k} is here.")

    def tell(self) -> None:
        """Say how the last round went."""
        if not self.history.rows:
            return
        row = self.history.rows[-1]
        many, used = len(row["clients"]), len(row["clients"]) - len(row["refused"])
        ending = "" if row["accuracy"] is None else f", accuracy {row['accuracy']:.4f}"
        ending += f", {row['seconds']:.1f} s"
        ending += "".join(f"; client {k}: {why}" for k, why in row["refused"].items())
        ending += "".join(
            f"; client {k} not evaluated: {why}" for k, why in row["unevaluated"].items()
        )
        self.say(f"Round {row['round']}: {used} of {many} uploads{ending}")

    def until(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait until the condition holds or the time is up."""
        began, (shortest, longest) = time.monotonic(), self.pauses
        while not condition() and (waited := time.monotonic() - began) < seconds:
            if self.stop.wait(min(max(shortest, waited / 10), longest)):
                raise ConnectionError("Flower has stopped.")


def check_waits(job: Job, wait: float, timeout: float, start_with: int | None) -> None:
    """``ValueError`` if this cannot be waited for; ``serve`` asks before it starts anything."""
    if not wait > 0 or not timeout > 0:
        raise ValueError(f"Seconds to wait must be above 0, not {wait!r} and {timeout!r}.")
    if start_with is not None and start_with not in range(1, job.task.clients + 1):
        raise ValueError(f"A run starts with 1 to {job.task.clients} clients, not {start_with!r}.")


def lead(
    job: Job,
    grid: Any,
    *,
    engine: str,
    wait: float = 600.0,
    timeout: float = 600.0,
    start_with: int | None = None,
    checkpoint: Any = None,
    progress: bool | None = None,
    stop: threading.Event | None = None,
    say: Callable[[str], object] | None = None,
) -> History:
    """The server's part of a run on a Flower grid. Whoever was missing is in its ``refused``, too,
    and why. ``engine`` is how the history calls the grid; the rest is for ``Remote``."""
    check_waits(job, wait, timeout, start_with)
    server = job.method.server_side(job.task, job.settings)
    about = describe(job.method, job.task, job.settings, job.cpu_threads)
    about |= {"engine": {"name": engine, "flower": require()}, "run": secrets.token_hex(8)}
    history = History(job.method.name, about)
    clients = Remote(job, grid, history, wait, timeout, start_with, stop, say)
    try:
        train(server, clients, history, job.rounds, checkpoint, progress)
        clients.tell()
        if engine == "flower":
            clients.look()
            clients.timeout = min(timeout, 300)  # who is gone is known after one minute
            for _ in clients.ask(BYE, list(clients.nodes), lambda k: b""):
                pass
    finally:
        clients.pool.shutdown(wait=False, cancel_futures=True)
    return history
