"""Real servers and clients on loopback: `fedlearn serve` and `fedlearn join`, with Flower's own
processes below them."""

import datetime
import http.client
import shutil
import socket
import ssl
import types

import pytest

import fedlearn as fl
from fedlearn import cli, flower
from fedlearn.flower import deploy as deployment
from fedlearn.flower.certificates import make_certificates, make_key
from fedlearn.flower.guard import SECRET
from fedlearn.flower.worker import Report, work
from fedlearn.options import words
from fedlearn.settings import Experiment

from .processes import LIMIT, Deployment, wait_until

pytestmark = pytest.mark.timeout(3 * LIMIT)
# A run, and how many questions it asks. RPN: with encryption and keys, below. FedGKT's evaluation
# asks both clients in each round; a turn of split learning has three questions here.
RUNS = {
    "fedavg": ({"rounds": 3}, 6),
    "fed_kgf": ({"rounds": 3}, 6),
    "fed_gkt": ({"rounds": 3}, 12),
    "split_learning": ({"rounds": 2, "train": 64, "test": 60, "batch_size": 16}, 12),
}


@pytest.fixture
def deploy(tmp_path):
    made = []

    def make(options):
        made.append(Deployment(tmp_path, options))
        return made[-1]

    yield make
    for d in made:
        d.stop()


def asked(d, secret=""):
    """The HTTP status that Flower's control part gives somebody on this machine."""
    context = ssl.create_default_context(cafile=d.folder / "server" / "tls" / "ca.pem")
    connection = http.client.HTTPSConnection("127.0.0.1", d.port, context=context, timeout=LIMIT)
    connection.request("POST", "/v1/control/list-runs", b"", {SECRET: secret})
    return connection.getresponse().status


def here(e):
    """The same run in one process."""
    return fl.run(e.make_method(), e.make_task(), e.rounds, **vars(e.settings), threads=1)


@pytest.mark.parametrize("name", RUNS)
def test_history_is_that_of_one_process(name, deploy, record):
    more, questions = RUNS[name]
    stated = Experiment(method=name, clients=2, **more)
    d = deploy(" ".join(words(stated)))
    clients = [d.join(k, "--insecure") for k in (0, 1)]  # before the server is there
    server = d.serve("--insecure")
    assert server.end() == 0, server.lines
    there = fl.History.from_json(d.folder / "history.json")
    expected = here(stated)
    record(
        f"deployment_{name}",
        {"method": name, "equal": there == expected, "flower_bytes": there.meta["flower_bytes"]},
    )
    assert there == expected
    assert (
        there.meta["provenance"]["command"].startswith("fedlearn")
        and there.meta["engine"]["name"] == "flower"
    )
    assert [c.end() for c in clients] == [0, 0] and clients[0].lines[-1] == "The run is over."
    assert (
        not (d.folder / "server" / "checkpoint").exists()
        and (d.folder / "server" / "model.safetensors").exists()
    )
    assert not list(d.folder.glob("*/flower/apps"))  # the app that Flower carries is run nowhere
    assert not list(d.folder.glob("*/flower/secret"))
    counted = "bytes_up", "bytes_down", "bytes_evaluation_up", "bytes_evaluation_down"
    ours = sum(getattr(there, column).sum() for column in counted)
    framing = sum(there.meta["flower_bytes"].values()) - ours
    assert 0 < framing < 2 * (questions + 2) * 3000  # with two greetings; not another model


def test_encrypted_run_with_keys_and_who_is_kept_out(deploy, record):
    d = deploy("rpn --clients 2 --rounds 3")
    keys, refusals = d.folder / "keys", []

    # a client makes its key first, before there is a certificate, and is told what to do with it
    unknown = ["--root-certificate", "unknown/ca.pem", "--key"]
    firsts = [d.join(k, *unknown, f"{k}.key") for k in (0, 1)]
    for k, first in enumerate(firsts):
        assert first.end() == 2
        assert (
            f"A new key is in {k}.key: put {k}.key.pub into the server's folder of keys"
            in first.lines[-1]
        )
    refusals.append({"what": "a client without a key", **first.shown("client 1")})
    keys.mkdir()
    for k in (0, 1):
        shutil.copy(d.folder / f"{k}.key.pub", keys)
    make_key(d.folder / "stranger.key")
    make_certificates(d.folder / "unknown", ["localhost"])

    server = d.serve("--keys", "keys")
    server.wait_for("fedlearn join")
    safe = ["--root-certificate", "server/tls/ca.pem", "--key"]
    secret = d.folder / "server" / "flower" / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert asked(d) == asked(d, "guessed") == 403  # certificate or not
    assert asked(d, secret.read_bytes().hex()) != 403
    stranger = d.join(1, *safe, "stranger.key", "--wait", "5", name="stranger")
    distrusting = d.join(1, *unknown, "1.key", name="distrusting")
    assert distrusting.end() == 2 and "cannot be trusted" in distrusting.lines[-1]
    refusals.append(
        {"what": "a server with an unknown certificate", **distrusting.shown("client 1")}
    )
    impostor = d.join(1, *safe, "0.key", name="impostor")
    away = server.wait_for("turned away")
    assert (
        away == "A node was turned away: it says that it is client 1 and has the key of client 0."
    )
    refusals.append(
        {
            "what": "a client with another client's key",
            "where": "server",
            "command": server.command,
            "output": [away],
        }
    )
    secret = d.folder / "impostor" / "flower" / "secret"
    assert impostor.programs() and secret.exists()
    impostor.stop()
    assert not impostor.programs() and not secret.exists()
    plain = d.join(1, "--insecure", name="plain")

    away = ""
    while not away:  # it leaves at once; a server that is slow to look does not learn why
        other = d.join(
            1, *safe, "1.key", name="other", options="rpn --clients 2 --rounds 3 --seed 7"
        )
        assert other.end() == 2
        away = next((x for x in server.lines if "Client 1 was turned away" in x), "")
    assert away == "Client 1 was turned away: task.seed is 7 there and 0 here."
    assert (
        other.lines[-1]
        == "fedlearn: The server turned this client away: task.seed is 0 at the server and 7 here."
    )
    refusals.append({"what": "a client of a run with another seed", **other.shown("client 1")})
    refusals.append(
        {
            "what": "the same, seen by the server",
            "where": "server",
            "command": server.command,
            "output": [away],
        }
    )
    plain.stop()

    clients = [d.join(0, *safe, "0.key")]
    server.wait_for("Client 0 is here")
    (node,) = clients[0].programs()
    with pytest.raises(ConnectionError, match="keeps its messages to itself: .*40[13]"):
        port = node.cmdline()[node.cmdline().index("--port") + 1]
        stranger_here = types.SimpleNamespace(poll=lambda: None)
        work(stranger_here, f"127.0.0.1:{port}", b"guessed", None, Report())
    node.kill()  # Flower lets the key in again only when it has missed the old node for long
    clients[0].wait_for("The connection is lost.")
    log = d.folder / "client-0" / "supernode.log"
    wait_until(lambda: log.read_text().count("SuperNode ID:") >= 2, log.read_text)
    clients.append(d.join(1, *safe, "1.key"))
    assert server.end() == 0, server.lines
    there = fl.History.from_json(d.folder / "history.json")
    expected = here(Experiment(method="rpn", clients=2, rounds=3))
    record(
        "deployment_rpn",
        {"method": "rpn", "equal": there == expected, "flower_bytes": there.meta["flower_bytes"]},
    )
    assert there == expected
    assert [c.end() for c in clients] == [0, 0]
    assert stranger.end() == 2 and "The server does not know its key" in stranger.lines[-1]
    assert any("does not let this client in, or not yet" in line for line in clients[0].lines)
    refusals.insert(2, {"what": "a client with an unknown key", **stranger.shown("client 1")})
    assert (d.folder / "server" / "tls" / "server.key").stat().st_mode & 0o077 == 0
    record(
        "transcript",
        [server.shown("server"), *(c.shown(f"client {k}") for k, c in enumerate(clients))],
    )
    record("refusals", refusals)


# ---- bad input: one sentence each, before anything is started


def fails(capsys, *argv):
    assert cli.main([*argv]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_bad_input_is_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    serve, join = (
        ["serve", "rpn", "--clients", "2"],
        ["join", "localhost:8000", "rpn", "--clients", "2"],
    )
    assert "Only clients with a known key may join" in fails(capsys, *serve)
    (tmp_path / "empty").mkdir()
    assert "name with --keys a folder" in fails(capsys, *serve, "--keys", "empty")
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = str(used.getsockname()[1])
        assert f"Port {port} of 127.0.0.1 cannot be used" in fails(
            capsys, *serve, "--insecure", "--host", "127.0.0.1", "--port", port
        )
    assert "There is no method 'rpm'. Did you mean 'rpn'" in fails(
        capsys, "serve", "rpm", "--insecure"
    )
    assert "--client is a client's number, 0 to 1, not 2" in fails(
        capsys, *join, "--client", "2", "--insecure"
    )
    assert "needs the server's ca.pem" in fails(capsys, *join, "--client", "0")
    make_key(tmp_path / "k")
    assert "There is no certificate ca.pem" in fails(
        capsys, *join, "--client", "0", "--root-certificate", "ca.pem", "--key", "k"
    )
    (tmp_path / "ca.pem").write_text("hello")
    assert "ca.pem is not a certificate" in fails(
        capsys, *join, "--client", "0", "--root-certificate", "ca.pem", "--key", "k"
    )
    assert "has the form HOST:PORT" in fails(
        capsys, "join", "localhost", "rpn", "--clients", "2", "--client", "0", "--insecure"
    )
    assert "Nothing answered at" in fails(
        capsys, "join", f"127.0.0.1:{port}", "rpn", "--client", "0", "--insecure", "--wait", "0.5"
    )
    assert "A port is a number from 1 to 65535, not 99999" in fails(
        capsys, *serve, "--insecure", "--port", "99999"
    )
    assert "without quotes, backslashes" in fails(capsys, *serve, "--insecure", "--folder", 'a"b')
    (tmp_path / "empty" / "alice.pub").write_text("key")
    assert "alice.pub must be named after its client: K.key.pub" in fails(
        capsys, *serve, "--keys", "empty"
    )
    make_certificates(tmp_path / "fedlearn-server" / "tls", ["localhost", "127.0.0.1"])
    (tmp_path / "empty" / "alice.pub").rename(tmp_path / "empty" / "0.key.pub")
    assert "0.key.pub is not a public key that `fedlearn join` has made" in fails(
        capsys, *serve, "--keys", "empty"
    )
    make_key(tmp_path / "empty" / "0.key")
    assert "is not made out to example.org" in fails(
        capsys, *serve, "--keys", "empty", "--name", "example.org"
    )
    for n in ("0", "3", "-1"):
        assert f"A run starts with 1 to 2 clients, not {n}." in fails(
            capsys, *serve, "--insecure", "--start-with", n
        )
    assert "Seconds to wait must be above 0" in fails(capsys, *serve, "--insecure", "--wait", "0")
    assert not list(tmp_path.glob("**/superlink.log"))


def test_the_limit_of_the_guard_is_that_of_the_schemas():
    task = fl.tasks.classification("digits", 2)
    for name in fl.methods.METHODS:
        job = flower.Job(fl.methods.get(name), task)
        server = job.method.server_side(task, job.settings)
        assert deployment.longest(job) == server.longest()
        if isinstance(job.method, fl.Averaging):
            assert server.longest() == server.up.limit


def test_expired_certificate_is_refused_by_both_sides(tmp_path, capsys, monkeypatch, record):
    monkeypatch.chdir(tmp_path)

    today = datetime.datetime.now(datetime.UTC)

    class Past(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return today - datetime.timedelta(days=400)

    with monkeypatch.context() as then:
        shifted = types.SimpleNamespace(
            datetime=Past, timedelta=datetime.timedelta, UTC=datetime.UTC
        )
        then.setattr("fedlearn.flower.certificates.datetime", shifted)
        make_certificates(tmp_path / "fedlearn-server" / "tls", ["localhost"])
    (tmp_path / "keys").mkdir()
    make_key(tmp_path / "keys" / "0.key")
    lines = [
        fails(capsys, "serve", "rpn", "--clients", "2", "--keys", "keys"),
        fails(
            capsys,
            "join",
            "localhost:8000",
            "rpn",
            "--clients",
            "2",
            "--client",
            "0",
            "--key",
            "keys/0.key",
            "--root-certificate",
            "fedlearn-server/tls/ca.pem",
        ),
    ]
    assert all(
        "ca.pem expired on 20" in line and "remove the server's folder tls" in line
        for line in lines
    )
    record(
        "expired",
        {
            "what": "an expired certificate",
            "where": "server",
            "command": "fedlearn serve rpn --clients 2 --keys keys",
            "output": lines[:1],
        },
    )
