"""Flower's own programs on loopback, with certificates and keys: a SuperLink, SuperNodes, and
``flwr`` to submit the app."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LIMIT = 1800  # seconds; only so that a test which waits in vain comes to an end
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"} | dict.fromkeys(
    ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"), "1"
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Deployment:
    """A SuperLink with TLS that knows the keys of its clients. Whatever was started is ended when
    the block is left."""

    def __init__(self, folder, clients):
        self.folder, self.clients, self.running = folder, clients, []
        self.address = f"127.0.0.1:{free_port()}"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.env = (
            os.environ | QUIET | {"PYTHONPATH": path, "FLWR_HOME": str(folder / "home")}
        )
        self.env["PATH"] = os.pathsep.join(
            [str(BIN), os.environ["PATH"]]
        )  # Flower looks there
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n'
            f'root-certificates = "{folder / "ca.pem"}"\n'
        )

    def call(self, command, *arguments):
        """Run a command to its end -> its output; fails if it does."""
        options = {"cwd": self.folder, "env": self.env, "text": True, "timeout": LIMIT}
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run([*command.split(), *arguments], **options)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def start(self, name, command, *arguments):
        """Start a command in the background, in a process group of its own; its output goes to the
        file ``name``."""
        with open(self.folder / f"{name}.log", "w") as log:
            options = {
                "cwd": self.folder,
                "env": self.env,
                "stdout": log,
                "stderr": log,
            }
            words = [*command.split(), *arguments]
            self.running.append(
                subprocess.Popen(words, **options, start_new_session=True)
            )
        return self.running[-1]

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def __enter__(self):
        try:
            self.make_certificates()
            self.start(
                "superlink",
                "flower-superlink --ssl-ca-certfile ca.pem --ssl-certfile server.pem "
                "--ssl-keyfile server.key --enable-supernode-auth "
                f"--host 127.0.0.1 --port {self.address.split(':')[1]} "
                "--disable-runtime-dependency-installation",
            )
            self.wait()
            for k in range(self.clients):
                self.make_key(f"client{k}")
                self.call(f"flwr supernode register client{k}.pub here")
                self.join(k, f"client{k}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for process in self.running:  # and what each of them has started
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def make_certificates(self):
        ec = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc"
        self.call(
            f"openssl req -x509 {ec} -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"
        )
        self.call(
            f"openssl req {ec} -keyout server.key -out server.csr -subj /CN=localhost"
        )
        (self.folder / "names").write_text(
            "subjectAltName=DNS:localhost,IP:127.0.0.1\n"
        )
        self.call(
            "openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial "
            "-out server.pem -days 2 -extfile names"
        )

    def make_key(self, name):
        self.call("ssh-keygen -q -t ecdsa -b 384 -f", name, "-N", "", "-C", "")

    def join(self, k, key):
        """Start the node of client ``k`` with this key."""
        return self.start(
            key,
            f"flower-supernode --root-certificates ca.pem --superlink {self.address} "
            f"--auth-supernode-private-key {key} --port {free_port()} --node-config",
            f"partition-id={k} num-partitions={self.clients}",
        )

    def wait(self):
        """For the SuperLink to listen."""
        host, port = self.address.split(":")
        end = time.monotonic() + LIMIT
        while True:
            with suppress(OSError), socket.create_connection((host, int(port)), 1):
                return
            assert time.monotonic() < end, self.log("superlink")
            assert self.running[0].poll() is None, self.log("superlink")
            time.sleep(0.2)

    def run(self, **config):
        """Submit the app with this run config and follow it to its end -> what it says."""
        pairs = [
            f"{k}='{v}'" if isinstance(v, str) else f"{k}={v}"
            for k, v in config.items()
        ]
        app = str(ROOT / "flower_app")
        return self.call(
            "flwr run", app, "here", "--stream", "--run-config", " ".join(pairs)
        )
