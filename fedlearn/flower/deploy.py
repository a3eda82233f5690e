"""Real clients: ``fedlearn serve`` and ``fedlearn join``, and what they start, Flower's SuperLink
and SuperNode.

Each side states the run, an ``Experiment``, for itself and keeps all that is its own in one folder.
The server's part of a run is in ``serve`` itself, a client's in ``join`` (``worker.py``): nothing
is run that Flower carries. What they have started ends with them, however they end.
"""

import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checkpoint import apart, write_tensors
from ..files import write_text
from ..history import History
from ..options import words
from ..settings import Experiment
from .certificates import check_certificate, make_certificates, make_key, read_key
from .client import client_app
from .envelope import say
from .job import Job, require
from .processes import PATIENCE, check_port, complaint, parse_address, reach, running
from .server import check_waits, lead
from .superlink import SuperLink
from .worker import Report, secret_file, work

FRAME = 100_000  # bytes that Flower may add to a message


def job_of(experiment: Experiment) -> Job:
    """The run that is stated, with its method and its data. What is wrong with it is said here."""
    method, task = experiment.make_method(), experiment.make_task()
    return Job(method, task, experiment.rounds, experiment.settings, experiment.threads)


def serve(
    experiment: Experiment,
    folder: str | Path,
    *,
    host: str | None = None,
    port: int = 8000,
    names: Sequence[str] = (),
    keys: str | Path | None = None,
    insecure: bool = False,
    wait: float = 600.0,
    timeout: float = 600.0,
    start_with: int | None = None,
    provenance: dict[str, str] | None = None,
) -> History:
    """Start a SuperLink and be the server of the run that ``experiment`` states -> its
    ``History``, whose meta has Flower's count of the bytes.

    With TLS, which is on unless ``insecure``, only clients whose public keys lie in the folder
    ``keys`` may join, and whoever has the key of ``3.key.pub`` only as client 3; ``names`` are
    those under which clients reach this machine. ``wait``, ``timeout`` and
    ``start_with``: see ``server.Remote``.
    """
    job = job_of(experiment)  # what is wrong with it is said before anything is started
    require()
    check_waits(job, wait, timeout, start_with)
    folder, limit = own_folder(folder), longest(job) + FRAME
    host = host or ("127.0.0.1" if insecure else "0.0.0.0")
    # where this machine itself reaches the server
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    check_port(host, port)
    registered, ca, tls = [], None, list[Any](["--insecure"])
    if not insecure:
        paths = sorted(Path(keys).glob("*.pub")) if keys else []
        if not paths:
            raise ValueError(
                "Only clients with a known key may join: name with --keys a folder that holds "
                "their .pub files (or say --insecure)."
            )
        for path in paths:
            name = path.name.split(".")[0]
            if not name.isdecimal():
                raise ValueError(
                    f"{path} must be named after its client: K.key.pub, with the client's number "
                    "for K."
                )
            registered.append((read_key(path), name))
        ca = folder / "tls" / "ca.pem"
        if not ca.parent.exists():
            known_as = [*names, socket.gethostname(), "localhost", "127.0.0.1", local]
            make_certificates(ca.parent, list(dict.fromkeys(known_as)))
        check_certificate(ca)
        own, private = ca.with_name("server.pem"), ca.with_name("server.key")
        check_certificate(own, [*names, local])
        tls = ["--ssl-ca-certfile", ca, "--ssl-certfile", own, "--ssl-keyfile", private]
        tls += ["--enable-supernode-auth"]
    address = f"[{local}]:{port}" if ":" in local else f"{local}:{port}"
    home, log, done = folder / "flower", folder / "superlink.log", folder / "history.json"
    done.unlink(missing_ok=True)
    write_text(log, "")
    secret = home / "secret"
    command = [sys.executable, "-P", Path(__file__).with_name("guard.py"), limit, secret]
    command += ["--host", host, "--port", port, "--isolation", "process", *tls]
    with secret_file(secret) as known, running(command, home, log) as process:
        reach(local, port, ca, PATIENCE, process)
        link = SuperLink(process, address, ca, known)
        with link.problems():
            for key, name in registered:
                link.register(key, name)
            with link.grid() as grid:
                how = "--insecure" if insecure else "--root-certificate ca.pem --key K.key"
                where = f"{[*names, local if insecure else socket.gethostname()][0]}:{port}"
                told = f"fedlearn join {where} {shlex.join(words(experiment))} --client K {how}"
                print("The server is up. Start each client, with its number for K:", flush=True)
                print(f"\n    {told}\n", flush=True)
                kept = folder / "checkpoint"
                history = lead(
                    job,
                    grid,
                    engine="flower",
                    wait=wait,
                    timeout=timeout,
                    start_with=start_with,
                    checkpoint=kept,
                    progress=False,
                    say=say,
                )
            history.meta["flower_bytes"] = link.traffic()
    history.meta["provenance"] = provenance
    write_tensors(folder / "model.safetensors", apart(history.state or {}))
    history.to_json(done)
    kept.unlink()
    return history


def longest(job: Job) -> int:
    """Bytes of the longest message that a client of this job may send."""
    return job.method.server_side(job.task, job.settings).longest()


def join(
    experiment: Experiment,
    address: str,
    client: int,
    folder: str | Path | None = None,
    *,
    root_certificate: str | Path | None = None,
    key: str | Path | None = None,
    insecure: bool = False,
    wait: float = 600.0,
) -> None:
    """Start a SuperNode that is this client of the run that ``experiment`` states, and stay until
    it is told to stop. Its own ``folder`` is by default ``fedlearn-client-K``."""
    job = job_of(experiment)
    clients = job.task.clients
    if not 0 <= client < clients:
        raise ValueError(f"--client is a client's number, 0 to {clients - 1}, not {client}.")
    require()
    folder, report = own_folder(folder or f"fedlearn-client-{client}"), Report()
    app = client_app(lambda context: job, folder, report)
    host, port = parse_address(address)
    security: list[Any] = ["--insecure"]
    if not insecure:
        if not root_certificate or not key:
            raise ValueError(
                "A client needs the server's ca.pem (--root-certificate) and a key of its own "
                "(--key), or --insecure on both sides."
            )
        if not Path(key).exists():  # the server wants it before it makes a certificate
            make_key(Path(key))
            raise ValueError(
                f"A new key is in {key}: put {key}.pub into the server's folder of keys, start the "
                "server, and join again."
            )
        check_certificate(root_certificate)
        security = ["--root-certificates", root_certificate, "--auth-supernode-private-key", key]
    log, secret = folder / "supernode.log", folder / "flower" / "secret"
    write_text(log, "")
    with socket.socket() as free:  # where the node hands its messages to this process
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
    program = Path(__file__).with_name("node.py")
    # all nodes together look for work a hundred times a second at most
    command = [sys.executable, "-P", program, max(0.1, clients / 100)]
    command += ["--superlink", address, "--port", own, *security, "--max-wait-time", wait]
    command += ["--isolation", "process", "--superexec-auth-secret-file", secret]
    command += ["--node-config", f"partition-id={client}"]

    end, told = time.monotonic() + wait, False
    while True:  # a server that was restarted does not know the node any more, and Flower ends it
        if not told:
            print(f"Client {client} looks for {address}. Ctrl-C ends it.", flush=True)
        reach(host, port, None if insecure else root_certificate, wait)
        before = report.lines
        with secret_file(secret) as known, running(command, folder / "flower", log) as node:
            work(node, f"127.0.0.1:{own}", known, app, report)
        if report.refusal:
            raise ConnectionError(report.refusal)
        if report.over:
            return
        if report.lines > before:
            print("The connection is lost.", flush=True)
            end, told = time.monotonic() + wait, False
            continue
        why = complaint(node.log)
        if key and "Failed to activate SuperNode" in why:
            if time.monotonic() < end:
                if not told:
                    print(
                        "The server does not let this client in, or not yet: it may still be "
                        "starting, or remember the last connection for a minute.",
                        flush=True,
                    )
                told = True
                time.sleep(2)
                continue
            why = (
                f"The server does not know its key; put {key}.pub into the server's folder of keys "
                "and start it again."
            )
        raise ConnectionError(f"Client {client} cannot join: {why}")


def own_folder(folder: str | Path) -> Path:
    """The folder as an absolute path, which Flower must be able to pass on."""
    if os.name == "nt":
        raise ValueError("fedlearn serve and join need Linux or macOS (or WSL).")
    folder = Path(folder).absolute()
    if any(c in '"\\' or not c.isprintable() for c in str(folder)):
        raise ValueError(
            "The folder must have a name without quotes, backslashes and control characters, not "
            f"{str(folder)!r}."
        )
    return folder
