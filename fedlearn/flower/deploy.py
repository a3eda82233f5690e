"""Real clients: what ``fedlearn serve`` and ``fedlearn join`` start (Flower's SuperLink and
SuperNode), and the apps that these run.

Each side states the run, an ``Experiment``, for itself and keeps all that is its own in one folder.
The server's part runs in a process that Flower starts once for the run; a client's part, in
``join`` itself (``worker.py``), which runs nothing of what Flower carries to the clients.
"""

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ..checkpoint import apart
from ..files import write_atomically, write_text
from ..history import History
from ..options import words
from ..settings import Experiment
from .certificates import check_certificate, make_certificates, make_key
from .client import client_app
from .envelope import say
from .job import Job, require
from .processes import (
    PATIENCE,
    about,
    check_port,
    complaint,
    flwr,
    follow,
    has_started,
    parse_address,
    reach,
    running,
)
from .server import check_waits, lead
from .worker import Report, secret_file, work

APP = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedlearn-app"
version = "0.1.0"
description = "The server's and the client's part of a fedlearn run"
license = { file = "LICENSE" }
dependencies = ["flwr[simulation]>=1.41.0", "fedlearn"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedlearn"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "fedlearn_app.server_app:app"
clientapp = "fedlearn_app.client_app:app"

[tool.flwr.app.config]
folder = ""
""",
    "fedlearn_app/__init__.py": '"""A fedlearn run on Flower."""\n',
    "fedlearn_app/server_app.py": """from fedlearn.flower.deploy import deployed_server

app = deployed_server()
""",
    "fedlearn_app/client_app.py": '"""Empty: `fedlearn join` answers by itself."""\n\n'
    "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n",
    "LICENSE": "MIT License: the app in this folder may be used, changed and passed on by anybody, "
    "without any warranty.\n",
}
FRAME = 100_000  # bytes that Flower may add to a message
SERVER = "fedlearn"  # the name of the server in Flower's config.toml


# ---- what runs inside Flower's processes ---------------------------------------------------------


def job_of(experiment: Experiment) -> Job:
    """The run that is stated, with its method and its data. What is wrong with it is said here."""
    method, task = experiment.make_method(), experiment.make_task()
    return Job(method, task, experiment.rounds, experiment.settings, experiment.threads)


def read_job(folder: str | Path) -> tuple[Job, dict[str, Any]]:
    """The job that ``serve`` wrote down, and what else is in its ``job.json``."""
    saved = json.loads((Path(folder) / "job.json").read_text(encoding="utf-8"))
    return job_of(Experiment.from_json(saved.pop("experiment"))), saved


def write_job(folder: Path, experiment: Experiment, **more: Any) -> None:
    """What ``read_job`` reads."""
    saved = {"experiment": asdict(experiment), **more}
    write_text(folder / "job.json", json.dumps(saved, indent=1))


def deployed_server() -> Any:
    """The ``ServerApp``. It reads ``job.json`` in the folder that the run's configuration names,
    and writes ``history.json``, ``model.safetensors``, and into ``run.log`` what ``serve`` shows.
    """
    require()
    from flwr.serverapp import ServerApp
    from safetensors.torch import save_file

    app = ServerApp()

    @app.main()
    def main(grid, context):
        folder = Path(context.run_config["folder"])
        tell = partial(say, folder)
        try:
            job, saved = read_job(folder)
            path = folder / "checkpoint"
            history = lead(
                job,
                grid,
                engine="flower",
                **saved["waits"],
                checkpoint=path,
                progress=False,
                say=tell,
            )
            history.meta["provenance"] = saved["provenance"]
            write_atomically(
                folder / "model.safetensors", lambda part: save_file(apart(history.state), part)
            )
            history.to_json(folder / "history.json")
            path.unlink()
        except Exception as error:
            tell(f"Stopped: {error}")
            raise

    return app


# ---- what the two commands start -----------------------------------------------------------------


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
    """Start a SuperLink and the server of the run that ``experiment`` states -> its ``History``,
    whose meta has Flower's count of the bytes.

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
    known, ca, tls = [], None, list[Any](["--insecure"])
    if not insecure:
        known = sorted(Path(keys).glob("*.pub")) if keys else []
        if not known:
            raise ValueError(
                "Only clients with a known key may join: name with --keys a folder that holds "
                "their .pub files (or say --insecure)."
            )
        for path in known:
            if not path.name.split(".")[0].isdecimal():
                raise ValueError(
                    f"{path} must be named after its client: K.key.pub, with the client's number "
                    "for K."
                )
        ca = folder / "tls" / "ca.pem"
        if not ca.parent.exists():
            known_as = [*names, socket.gethostname(), "localhost", "127.0.0.1", local]
            make_certificates(ca.parent, list(dict.fromkeys(known_as)))
        check_certificate(ca)
        own, secret = ca.with_name("server.pem"), ca.with_name("server.key")
        check_certificate(own, [*names, local])
        tls = ["--ssl-ca-certfile", ca, "--ssl-certfile", own, "--ssl-keyfile", secret]
        tls += ["--enable-supernode-auth"]
    home, log = folder / "flower", folder / "run.log"
    for name, text in APP.items():
        write_text(folder / "app" / name, text)
    waits = {"wait": wait, "timeout": timeout, "start_with": start_with}
    write_job(folder, experiment, waits=waits, provenance=provenance)
    security = f'root-certificates = "{ca}"' if ca else "insecure = true"
    address = f"[{local}]:{port}" if ":" in local else f"{local}:{port}"
    write_text(
        home / "config.toml",
        f'[superlink]\ndefault = "{SERVER}"\n\n'
        f'[superlink.{SERVER}]\naddress = "{address}"\n{security}\n',
    )
    (folder / "history.json").unlink(missing_ok=True)
    for old in (log, folder / "superlink.log"):
        write_text(old, "")
    command = [sys.executable, "-P", Path(__file__).with_name("guard.py"), limit]
    command += ["--host", host, "--port", port]
    command += ["--disable-runtime-dependency-installation", *tls]
    with running(command, home, folder / "superlink.log") as superlink:
        reach(local, port, ca, PATIENCE, superlink)
        for path in known:
            flwr(home, "supernode", "register", path, SERVER, "--name", path.name.split(".")[0])
        config = f'folder="{folder}"'
        run = flwr(home, "run", folder / "app", SERVER, "--run-config", config)["run-id"]
        how = "--insecure" if insecure else "--root-certificate ca.pem --key K.key"
        where = f"{[*names, local if insecure else socket.gethostname()][0]}:{port}"
        told = f"fedlearn join {where} {shlex.join(words(experiment))} --client K {how}"
        print("The server is up. Start each client, with its number for K:", flush=True)
        print(f"\n    {told}\n", flush=True)
        done = (folder / "history.json").exists

        def status():  # Flower's command takes seconds: it is asked if the app is not there
            there = has_started(superlink, "flwr-serverapp")
            return "" if there else about(home, SERVER, run).get("status", "")

        follow(log, superlink, done, status)
        if superlink.poll() is not None:
            raise ConnectionError(f"Flower's SuperLink has stopped: {complaint(superlink.log)}")
        traffic = about(home, SERVER, run).get("network-traffic")
    history = History.from_json(folder / "history.json")
    history.meta["flower_bytes"] = traffic and {
        "to_server": traffic["inbound-bytes"],
        "from_server": traffic["outbound-bytes"],
    }
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
        check_certificate(root_certificate)
        if not Path(key).exists():
            make_key(Path(key))
            raise ValueError(
                f"A new key is in {key}: put {key}.pub into the server's folder of keys, start the "
                "server, and join again."
            )
        security = ["--root-certificates", root_certificate, "--auth-supernode-private-key", key]
    log, secret = folder / "supernode.log", folder / "flower" / "secret"
    write_text(log, "")
    with socket.socket() as free:  # where the node hands its messages to this process
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
    program = Path(__file__).with_name("node.py")
    # all nodes together look for work a hundred times a second at most
    command = [sys.executable, "-P", program, os.getpid(), max(0.1, clients / 100)]
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
