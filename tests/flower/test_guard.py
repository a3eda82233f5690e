"""Who is not one of the clients: what the guard lets through, how long a connection may stay, and a
run that goes on among 200 of them. In the first tests time passes only when they say so."""

import asyncio
import http.client
import socket
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
import uvicorn

import fedlearn as fl
from fedlearn.flower import bounds
from fedlearn.flower.bounds import MOST, RATE, STEP, Bounded
from fedlearn.flower.guard import HEAD, SECRET, Guard
from fedlearn.options import words
from fedlearn.settings import Experiment

from .conftest import MINE
from .processes import Deployment, wait_until

POST = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: server\r\n"


# ---- what the guard lets through


def refusal(path, length=None, secret=None, more=(), **headers):
    headers = {k.replace("_", "-").encode(): v.encode() for k, v in headers.items()}
    headers |= {b"content-length": str(length).encode()} if length else {}
    headers |= {SECRET.encode(): secret} if secret else {}
    scope = {"path": path, "headers": [*headers.items(), *more]}
    return Guard(None, 1000, "beef").refusal(scope)


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/runtime/acquire-task", "/", "/docs", "/v1/fleetx"]
)
def test_all_but_the_clients_part_is_for_those_who_know_the_secret(path):
    """Wherever they are: other accounts of this machine are strangers, too."""
    assert refusal(path) == refusal(path, secret=b"bee") == refusal(path, secret=b"\xff") == 403
    assert refusal(path, secret=b"beef", length=10**9) is None


def test_a_request_of_a_client_says_its_length_which_is_not_above_the_limit():
    path = "/v1/fleet/push-object"
    assert refusal(path, 1000) is None
    assert refusal(path, 1001) == refusal(path, "many") == refusal(path, "\u00b2") == 413
    assert refusal(path, transfer_encoding="chunked") == 411


def test_a_long_head_is_refused_even_if_it_came_at_once():
    path = "/v1/fleet/push-object"
    assert refusal(path, x="a" * (HEAD[0] - 100)) is None and refusal(path, x="a" * HEAD[0]) == 431
    assert refusal("/v1/fleet/" + "a" * HEAD[0]) == 431
    assert refusal(path, more=[(b"x", b"")] * HEAD[1]) is None
    assert refusal(path, more=[(b"x", b"")] * (HEAD[1] + 1)) == 431


# ---- how long a connection may stay


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time is ``now``."""

    now = 0.0

    def time(self):
        return self.now

    def after(self, seconds=0.0):
        """Let all happen that happens in so many seconds."""
        self.now += seconds
        for _ in range(20):
            self.run_until_complete(asyncio.sleep(0))


class Line(asyncio.Transport):
    """The server's end of a connection that ends nowhere."""

    def __init__(self):
        super().__init__({"peername": ("10.0.0.2", 5), "sockname": ("10.0.0.1", 8000)})
        self.sent, self.gone = b"", False

    def write(self, data):
        self.sent += data

    def abort(self):
        self.gone = True

    close, is_closing = abort, lambda self: self.gone
    pause_reading = resume_reading = lambda self: None


@pytest.fixture
def connect():
    """connect() -> a new connection: ``bounds.Bounded`` before an app that reads a request's body
    and answers "thank you". ``connect.loop`` is its clock."""
    loop = Clock()

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"thank you"})

    config = uvicorn.Config(app, http=Bounded, ws="none", lifespan="off", log_config=None)
    state = uvicorn.server.ServerState()

    def make():
        connection = Bounded(config, state, {}, loop)
        connection.connection_made(Line())
        return connection

    make.loop = loop
    yield make
    for connection in list(state.connections):
        connection.connection_lost(None)
    loop.after()
    loop.close()


@pytest.mark.parametrize("sent", [b"", POST, POST + b"Content-Length: 1000000\r\n\r\nabc"])
def test_a_connection_on_which_little_comes_is_closed(sent, connect):
    """Nothing at all, a head that does not end, or a body of which too little comes."""
    line = connect()
    if sent:
        line.data_received(sent)
    for _ in range(int(STEP)):
        assert not line.transport.gone
        if sent:
            line.data_received(b"x")
        connect.loop.after(1)
    connect.loop.after(1.1)
    assert line.transport.gone


def test_a_connection_that_was_answered_is_not_kept_alive_by_single_bytes(connect):
    line = connect()
    line.data_received(POST + b"Content-Length: 0\r\n\r\n")
    connect.loop.after()
    assert b"thank you" in line.transport.sent
    for _ in range(int(STEP) + 1):
        assert not line.transport.gone
        line.data_received(b"x")
        connect.loop.after(1)
    assert line.transport.gone


def test_a_body_that_comes_at_the_least_rate_has_all_the_time_it_needs(connect):
    line, parts = connect(), 10
    line.data_received(POST + b"Content-Length: %d\r\n\r\n" % (parts * STEP * RATE))
    for _ in range(parts):
        assert not line.transport.gone and not line.transport.sent
        line.data_received(b"x" * int(STEP * RATE))
        connect.loop.after(STEP)
    assert b"thank you" in line.transport.sent


def test_the_server_itself_may_take_its_time_but_its_answer_must_be_read(connect):
    line = connect()
    line.data_received(POST + b"Content-Length: 0\r\n\r\n")
    line.pause_writing()
    line.resume_writing()
    connect.loop.now += 100 * STEP  # before the app has run
    line.pause_writing()  # which it has to wait for
    connect.loop.after()
    connect.loop.after(STEP)
    assert not line.transport.gone and not line.transport.sent
    connect.loop.after(1)
    assert line.transport.gone


def test_what_waits_to_be_read_is_read_before_a_connection_is_closed(connect):
    """When the machine slept for an hour, the request may be there."""
    line = connect()
    connect.loop.after(3600)
    line.data_received(POST + b"Content-Length: 0\r\n\r\n")
    connect.loop.after(0.5)
    connect.loop.after(2)
    assert b"thank you" in line.transport.sent and not line.transport.gone


def test_when_there_are_too_many_the_one_that_has_waited_longest_goes(connect):
    first = connect()
    first.data_received(POST + b"Content-Length: 5\r\n\r\n")  # is in the middle of something
    connect.loop.after(1)
    others = []
    for _ in range(MOST):
        connect.loop.now += 0.001
        others.append(connect())
    assert others[0].transport.gone and not first.transport.gone
    assert not any(line.transport.gone for line in others[1:])


def test_an_endless_head_is_refused_at_once_and_not_kept(connect):
    line = connect()
    line.data_received(POST)
    for _ in range(1000):
        line.data_received(b"x-a: " + b"a" * 1000 + b"\r\n")
        if line.transport.gone:
            break
    assert line.came < 20_000 and b" 400 " in line.transport.sent


def test_flowers_programs_serve_within_these_bounds(monkeypatch):
    monkeypatch.setattr(uvicorn.config, "HTTP_PROTOCOLS", dict(uvicorn.config.HTTP_PROTOCOLS))
    monkeypatch.setattr(uvicorn.config, "WS_PROTOCOLS", dict(uvicorn.config.WS_PROTOCOLS))
    nothing = SimpleNamespace(Thread=lambda **how: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(bounds, "threading", nothing)
    bounds.bind(0)
    config = uvicorn.Config(None)
    config.load()
    assert config.http_protocol_class is Bounded and config.ws_protocol_class is None


# ---- a run among them


class Attack:
    """Two hundred connections to a server: a quarter says nothing, a quarter sends a head byte by
    byte, a quarter a body, a quarter a head without end. Each is opened anew when it was closed;
    ``closed`` counts how often that was for each."""

    def __init__(self, port, many=200):
        self.address, self.closed = ("127.0.0.1", port), [0] * many
        self.lines, self.over = [None] * many, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.over.wait(0.1):
            for i in range(len(self.lines)):
                try:
                    self.step(i)
                except OSError:
                    self.lines[i].close()
                    self.lines[i] = None
                    self.closed[i] += 1
        for line in filter(None, self.lines):
            line.close()

    def step(self, i):
        if self.lines[i] is None:
            self.lines[i] = line = socket.socket()
            line.connect(self.address)
            line.setblocking(False)
            if i % 4:
                line.send(POST + (b"Content-Length: 9999\r\n\r\n" if i % 4 == 2 else b""))
            return
        with suppress(BlockingIOError):
            if i % 4:
                self.lines[i].send((b"x: " + 9999 * b"x" + b"\r\n") if i % 4 == 3 else b"x")
        with suppress(BlockingIOError):
            if not self.lines[i].recv(9999):
                raise ConnectionError("closed by the server")

    def end(self):
        self.over.set()
        self.thread.join()


def test_a_run_goes_on_among_two_hundred_connections_that_keep_it_busy(tmp_path, monkeypatch):
    """A run of somebody's own method and network, each side with a file of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    own = {"method": "mine.py:halved", "network": "mine.py:net"}
    stated = Experiment(**own, clients=2, rounds=3, train=120, test=60, threads=1)
    d = Deployment(tmp_path, " ".join(words(stated)))
    attack = None
    try:
        server = d.serve("--insecure", fault="hasty")
        server.wait_for("fedlearn join")
        (link,) = server.programs()
        before, most = link.memory_info().rss, 0
        attack = Attack(d.port)
        wait_until(lambda: all(attack.closed), lambda: f"some stay: {attack.closed}", 120)
        clients = [d.join(k, "--insecure") for k in (0, 1)]
        for t in (1, 2):
            server.wait_for(f"Round {t}: 2 of 2")
            most = max(most, link.memory_info().rss)
        assert server.end() == 0, server.lines
        assert [c.end() for c in clients] == [0, 0]
    finally:
        if attack:
            attack.end()
        d.stop()
    there = fl.History.from_json(tmp_path / "history.json")
    task = stated.make_task()
    assert there == fl.run(stated.make_method(), task, 3, threads=1)
    assert most - before < 50e6, f"{(most - before) / 1e6:.0f} MB more"


def test_nobody_else_on_this_machine_can_submit_a_program(tmp_path):
    """As ``flwr run`` does, which knows the address but not the secret."""
    d = Deployment(tmp_path, "fedavg --clients 2 --rounds 1 --train 120 --test 60")
    try:
        server = d.serve("--insecure")
        server.wait_for("fedlearn join")
        for path in ("control/start-run", "control/list-runs", "runtime/acquire-task", "docs"):
            line = http.client.HTTPConnection("127.0.0.1", d.port)
            line.request("POST", f"/v1/{path}", b"", {"content-type": "application/x-protobuf"})
            assert line.getresponse().status == 403
        server.kill()  # nothing that it has started lives on, and its port is free
        again = d.serve("--insecure")
        again.wait_for("fedlearn join")
        (link,) = again.programs()
        link.kill()
        assert again.end() == 2 and "Flower's SuperLink has stopped" in again.lines[-1]
        again = d.serve("--insecure", "--wait", "1")
        assert again.end() == 2
        assert again.lines[-1] == "fedlearn: Round 1: none of the 2 clients came within 1 s."
    finally:
        d.stop()
