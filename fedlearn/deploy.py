"""Real clients: what ``fedlearn serve`` and ``fedlearn join`` start (Flower's SuperLink and SuperNode), and the apps they run.

Each side states the run on its own command line and keeps all that is its own in one folder. The app that Flower carries to
the clients is the same few lines whatever the method: a client trains what its own command line says.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from . import flower
from .certificates import check_certificate, make_certificates, make_key
from .checkpoint import apart
from .federation import Server
from .history import History, write_atomically, write_text

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
    "fedlearn_app/server_app.py": "from fedlearn.deploy import deployed_server\n\napp = deployed_server()\n",
    "fedlearn_app/client_app.py": "from fedlearn.deploy import deployed_client\n\napp = deployed_client()\n",
    "LICENSE": "MIT License: the app in this folder may be used, changed and passed on by anybody, without any warranty.\n",
}
FRAME = 100_000  # bytes that Flower may add to a message
SERVER = "fedlearn"  # the name of the server in Flower's config.toml
PATIENCE = 600  # seconds that Flower's own programs may take on a busy machine


# ---- what runs inside Flower's processes ----------------------------------------------------------------------------------


def read_job(folder):
    """The job that ``serve`` or ``join`` wrote down, and its other settings."""
    from . import cli

    saved = json.loads((Path(folder) / "job.json").read_text(encoding="utf-8"))
    return cli.job(cli.parser().parse_args(["run", *saved.pop("argv")])), saved


def deployed_server():
    """The ``ServerApp``: it reads ``job.json`` in the folder that the run's configuration names, and writes ``history.json``,
    ``model.safetensors``, and into ``run.log`` what ``serve`` shows."""
    flower.require()
    from flwr.serverapp import ServerApp
    from safetensors.torch import save_file

    app = ServerApp()

    @app.main()
    def main(grid, context):
        folder = Path(context.run_config["folder"])
        say = partial(flower.say, folder)
        try:
            job, saved = read_job(folder)
            path = folder / "checkpoint"
            history = flower.lead(
                job,
                grid,
                engine="flower",
                **saved["waits"],
                checkpoint=path,
                progress=False,
                say=say,
            )
            history.meta["provenance"] = saved["provenance"]
            write_atomically(
                folder / "model.safetensors", lambda part: save_file(apart(history.state), part)
            )
            history.to_json(folder / "history.json")
            path.unlink()
        except Exception as error:
            say(f"Stopped: {error}")
            raise

    return app


def deployed_client():
    """The ``ClientApp``: it reads ``job.json`` in the folder that its node's configuration names, and keeps its notes there."""
    return flower.client_app(lambda context: read_job(context.node_config["folder"])[0])


# ---- what the two commands start ------------------------------------------------------------------------------------------


def serve(
    job,
    argv,
    folder,
    *,
    host=None,
    port=8000,
    names=(),
    keys=None,
    insecure=False,
    wait=600.0,
    timeout=600.0,
    start_with=None,
    provenance=None,
):
    """Start a SuperLink and the server of the ``job`` that ``argv`` states -> ``History``, whose meta has Flower's count of the bytes.

    With TLS, which is on unless ``insecure``, only clients whose public keys lie in the folder ``keys`` may join, and whoever has
    the key of ``3.key.pub`` only as client 3; ``names`` are those under which clients reach this
    machine. ``wait``, ``timeout`` and ``start_with``: see ``flower.Remote``.
    """
    flower.require()
    flower.check_waits(job, wait, timeout, start_with)
    folder, limit = own_folder(folder), longest(job) + FRAME
    host = host or ("127.0.0.1" if insecure else "0.0.0.0")
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(
        host, host
    )  # where this machine itself reaches the server
    check_port(host, port)
    known, ca, tls = [], None, ["--insecure"]
    if not insecure:
        known = sorted(Path(keys).glob("*.pub")) if keys else []
        if not known:
            raise ValueError(
                "Only clients with a known key may join: name with --keys a folder that holds their .pub files (or say --insecure)."
            )
        for path in known:
            if not path.name.split(".")[0].isdecimal():
                raise ValueError(
                    f"{path} must be named after its client: K.key.pub, with the client's number for K."
                )
        ca = folder / "tls" / "ca.pem"
        if not ca.parent.exists():
            make_certificates(
                ca.parent,
                list(
                    dict.fromkeys([*names, socket.gethostname(), "localhost", "127.0.0.1", local])
                ),
            )
        check_certificate(ca)
        check_certificate(ca.with_name("server.pem"), [*names, local])
        tls = [
            "--ssl-ca-certfile",
            ca,
            "--ssl-certfile",
            ca.with_name("server.pem"),
            "--ssl-keyfile",
            ca.with_name("server.key"),
            "--enable-supernode-auth",
        ]
    home, log = folder / "flower", folder / "run.log"
    for name, text in APP.items():
        write_text(folder / "app" / name, text)
    write_text(
        folder / "job.json",
        json.dumps(
            {
                "argv": argv,
                "waits": {"wait": wait, "timeout": timeout, "start_with": start_with},
                "provenance": provenance,
            },
            indent=1,
        ),
    )
    security, address = (
        f'root-certificates = "{ca}"' if ca else "insecure = true",
        f"[{local}]:{port}" if ":" in local else f"{local}:{port}",
    )
    write_text(
        home / "config.toml",
        f'[superlink]\ndefault = "{SERVER}"\n\n[superlink.{SERVER}]\naddress = "{address}"\n{security}\n',
    )
    (folder / "history.json").unlink(missing_ok=True)
    for old in (log, folder / "superlink.log"):
        write_text(old, "")
    command = [
        sys.executable,
        "-m",
        "fedlearn.superlink",
        str(limit),
        "--host",
        host,
        "--port",
        str(port),
        "--disable-runtime-dependency-installation",
    ]
    with running([*command, *map(str, tls)], home, folder / "superlink.log") as superlink:
        reach(local, port, ca, PATIENCE, superlink)
        for path in known:
            flwr(home, "supernode", "register", path, SERVER, "--name", path.name.split(".")[0])
        run = flwr(home, "run", folder / "app", SERVER, "--run-config", f'folder="{folder}"')[
            "run-id"
        ]
        how = "--insecure" if insecure else "--root-certificate ca.pem --key K.key"
        where = f"{[*names, local if insecure else socket.gethostname()][0]}:{port}"
        print(
            f"The server is up. Start each client, with its number for K:\n\n    fedlearn join {where} {shlex.join(argv)} --client K {how}\n",
            flush=True,
        )
        follow(
            log,
            superlink,
            (folder / "history.json").exists,
            lambda: about(home, run).get("status", ""),
        )
        if superlink.poll() is not None:
            raise ConnectionError(f"Flower's SuperLink has stopped: {complaint(superlink.log)}")
        traffic = about(home, run).get("network-traffic")
    history = History.from_json(folder / "history.json")
    history.meta["flower_bytes"] = traffic and {
        "to_server": traffic["inbound-bytes"],
        "from_server": traffic["outbound-bytes"],
    }
    return history


def longest(job):
    """Bytes of the longest message that a client of this job may send."""
    server = Server(job.method, job.task, job.settings)
    return max(
        server.up.limit,
        flower.shown(server, job.method).limit if hasattr(job.method.server, "looks_at") else 0,
    )


def join(
    argv, client, address, folder, *, root_certificate=None, key=None, insecure=False, wait=600.0
):
    """Start a SuperNode that is this client of the run that ``argv`` states, and stay until it is told to stop."""
    flower.require()
    folder, (host, port) = own_folder(folder), parse_address(address)
    security = ["--insecure"]
    if not insecure:
        if not root_certificate or not key:
            raise ValueError(
                "A client needs the server's ca.pem (--root-certificate) and a key of its own (--key), or --insecure on both sides."
            )
        check_certificate(root_certificate)
        if not Path(key).exists():
            make_key(Path(key))
            raise ValueError(
                f"A new key is in {key}: put {key}.pub into the server's folder of keys, start the server, and join again."
            )
        security = [
            "--root-certificates",
            str(root_certificate),
            "--auth-supernode-private-key",
            str(key),
        ]
    write_text(folder / "job.json", json.dumps({"argv": argv}, indent=1))
    log = folder / "run.log"
    for old in (log, folder / "supernode.log"):
        write_text(old, "")
    with socket.socket() as free:  # the node's own port, for the processes that it starts
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
    config = f'partition-id={client} folder="{folder}"'
    command = [
        "flower-supernode",
        "--superlink",
        address,
        "--port",
        str(own),
        "--node-config",
        config,
        "--max-wait-time",
        str(wait),
        *security,
    ]

    def over():
        return log.read_text(encoding="utf-8").endswith(f"{flower.OVER}\n")

    end, told = time.monotonic() + wait, False
    while True:  # a server that was restarted does not know the node any more, and Flower ends it
        if not told:
            print(f"Client {client} looks for {address}. Ctrl-C ends it.", flush=True)
        reach(host, port, None if insecure else root_certificate, wait)
        before = log.stat().st_size
        with running(command, folder / "flower", folder / "supernode.log") as node:
            follow(log, node, over, grace=5)
        if over():
            return
        if log.stat().st_size > before:
            print("The connection is lost.", flush=True)
            end, told = time.monotonic() + wait, False
            continue
        why = complaint(node.log)
        if key and "Failed to activate SuperNode" in why:
            if time.monotonic() < end:
                if not told:
                    print(
                        "The server does not let this client in, or not yet: it may still be starting, or remember the last connection for a minute.",
                        flush=True,
                    )
                told = True
                time.sleep(2)
                continue
            why = f"The server does not know its key; put {key}.pub into the server's folder of keys and start it again."
        raise ConnectionError(f"Client {client} cannot join: {why}")


def own_folder(folder):
    """The folder as an absolute path, which Flower must be able to pass on."""
    if os.name == "nt":
        raise ValueError("fedlearn serve and join need Linux or macOS (or WSL).")
    folder = Path(folder).absolute()
    if any(c in '"\\' or not c.isprintable() for c in str(folder)):
        raise ValueError(
            f"The folder must have a name without quotes, backslashes and control characters, not {str(folder)!r}."
        )
    return folder


def about(home, run):
    """What Flower says of a run; nothing if it cannot be asked just now."""
    try:
        return flwr(home, "list", SERVER, "--run-id", run)["runs"][0]
    except (ConnectionError, LookupError):
        return {}


def parse_address(address):
    """ "host:port" -> (host, port)."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f"An address has the form HOST:PORT, such as 192.168.1.5:8000, not {address!r}."
        )
    return host.strip("[]"), int(port)


def check_port(host, port):
    if not 0 < port < 65536:
        raise ValueError(f"A port is a number from 1 to 65535, not {port}.")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"Port {port} of {host} cannot be used ({error.strerror}): choose another with --port."
            ) from None


def reach(host, port, ca, wait, process=None):
    """Wait until something listens there; with ``ca`` it must have a certificate that this one signed."""
    end = time.monotonic() + wait
    while True:
        try:
            with socket.create_connection((host, port), 5) as plain:
                if ca:
                    with ssl.create_default_context(cafile=ca).wrap_socket(
                        plain, server_hostname=host
                    ):
                        pass
                return
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", None) or error.reason or "it does not speak TLS"
            raise ConnectionError(
                f"The server at {host}:{port} cannot be trusted: {why}."
            ) from None
        except OSError as error:
            if process and process.poll() is not None:
                raise ConnectionError(
                    f"Flower's SuperLink did not start: {complaint(process.log)}"
                ) from None
            if time.monotonic() > end:
                raise ConnectionError(
                    f"Nothing answered at {host}:{port} within {wait:g} s: {error.strerror or error}."
                ) from None
            time.sleep(0.2)


def follow(log, process, done=lambda: False, status=lambda: "", grace=0):
    """Show what an app of ours writes into its log until it is done or the process has ended; ``ConnectionError`` if the app
    has failed, which it says in its log unless it could not even be loaded (then Flower's status of the run does). ``grace``:
    seconds that its last message may still take."""
    shown, asked, ended = len(log.read_text(encoding="utf-8").splitlines()), time.monotonic(), ""
    while True:
        over = done() or process.poll() is not None
        lines = log.read_text(encoding="utf-8").splitlines()
        for line in lines[shown:]:
            if line.startswith("Stopped: "):
                time.sleep(grace)
                raise ConnectionError(line.removeprefix("Stopped: "))
            print(line, flush=True)
        shown = len(lines)
        if over:
            time.sleep(grace if done() else 0)
            return
        if ended:
            raise ConnectionError(f"The server's app ended ({ended}); {process.log} says why.")
        if time.monotonic() > asked + 15:
            asked, now = time.monotonic(), status()
            ended = (
                now if now.startswith("finished") else ""
            )  # what it wrote last is read once more
        time.sleep(0.2)


def environment(home):
    """Flower's processes find this Python's commands, keep their files in ``home`` and report to nobody."""
    there = {
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }
    return os.environ | flower.QUIET | there | {"FLWR_HOME": str(home)}


@contextmanager
def running(command, home, log):
    """A process of Flower's, ended with everything that it has started when the block is left."""
    home.mkdir(parents=True, exist_ok=True)
    env = environment(home)
    program = shutil.which(command[0], path=env["PATH"])
    with open(log, "a", encoding="utf-8") as out:
        process = subprocess.Popen(
            [program, *command[1:]],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    process.log = log
    endings = (
        signal.SIGTERM,
        signal.SIGHUP,
    )  # `kill`, or a closed terminal: the children shall end, too
    before = [signal.signal(s, lambda number, _: sys.exit(128 + number)) for s in endings]
    try:
        yield process
    finally:
        for s, handler in zip(endings, before, strict=True):
            signal.signal(s, handler)
        family = _family(process.pid)
        process.terminate()  # Flower's own way of ending; what is left after that is killed
        psutil.wait_procs(family, 10)
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()


def _family(pid):
    """A process and everything that it has started, some of it in sessions of its own."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def flwr(home, *command):
    """What Flower's own command answers, from its JSON; ``ConnectionError`` if it fails."""
    env = environment(home)
    whole = [shutil.which("flwr", path=env["PATH"]), *map(str, command), "--format", "json"]
    try:
        done = subprocess.run(
            whole, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        answer = {"error-message": f"no answer within {PATIENCE} s"}
    except ValueError:
        answer = {"error-message": (done.stderr or done.stdout).strip()[-300:]}
    if not answer.get("success"):
        raise ConnectionError(
            f"flwr {' '.join(map(str, command[:2]))} failed: {answer.get('error-message')}"
        )
    return answer


def complaint(log):
    """What a process of Flower's gave as the reason of its end: its own sentences if it did, else the last line of its log."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", Path(log).read_text(encoding="utf-8", errors="replace"))
    text = re.split("Starting Flower Super(?:Node|Link)", text)[-1]  # of the last start
    code = re.search(r"Exit Code: \d+\n(.*?)(\n\s*\n|$)", text, re.DOTALL)
    lines = [line.strip() for line in (code[1] if code else text).splitlines() if line.strip()] or [
        "it said nothing"
    ]
    return (" ".join(lines) if code else lines[-1])[-500:]
