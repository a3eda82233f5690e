"""What ``serve`` says to its SuperLink, in place of Flower's own command and of the process that
Flower would start for the server's part.

Flower carries an app from the server's command line to processes that run it. Here nothing is in
the app: the server's part of a run is in ``serve`` itself, as a client's is in ``join``.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from .guard import SECRET
from .processes import Process, complaint

EMPTY = '"""Empty: fedlearn itself is at both ends."""\n\nfrom flwr.{0}app import {1}App\n\n'
EMPTY += "app = {1}App()\n"
APP = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedlearn-app"
version = "0.1.0"
description = "A fedlearn run"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41.0"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedlearn"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "fedlearn_app.server_app:app"
clientapp = "fedlearn_app.client_app:app"
""",
    "fedlearn_app/__init__.py": '"""A fedlearn run on Flower."""\n',
    "fedlearn_app/server_app.py": EMPTY.format("server", "Server"),
    "fedlearn_app/client_app.py": EMPTY.format("client", "Client"),
    "LICENSE": "MIT License: the app in this folder may be used, changed and passed on by anybody, "
    "without any warranty.\n",
}
RETRY = 60.0  # seconds in which a request is sent again that was not answered


class SuperLink:
    """A SuperLink behind the guard, for whoever knows its secret."""

    def __init__(
        self, process: Process, address: str, ca: str | Path | None, secret: bytes
    ) -> None:
        self.process, self.address, self.secret = process, address, secret
        self.ca = Path(ca).read_bytes() if ca else None
        self.run = 0

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Put the secret on a request (Flower's form of an interceptor)."""
        context.request.headers[SECRET] = self.secret.hex()
        return call_next(context)

    def client(self, kind: Any, *interceptors: Any) -> Any:
        """One of Flower's own clients, which asks again for as long as the SuperLink lives."""
        import httpx
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.retry import RetryInvoker, exponential

        again = RetryInvoker(
            lambda: exponential(max_delay=5),
            httpx.TransportError,
            max_tries=None,
            max_time=RETRY,
            should_giveup=lambda error: self.process.poll() is not None,
        )
        all_of_them = [RuntimeVersionHttpInterceptor("flwr-serverapp"), self, *interceptors]
        where = self.address, self.ca is None, self.ca, all_of_them
        return kind.from_server_address(*where, retry_invoker=again)

    @contextmanager
    def problems(self) -> Iterator[None]:
        """``ConnectionError`` if it cannot be asked inside the block, with its own last words."""
        import httpx

        try:
            yield
        except httpx.HTTPError as error:
            with suppress(TimeoutExpired):
                self.process.wait(1)
            if self.process.poll() is not None:
                why = f"has stopped: {complaint(self.process.log)}"
            else:
                response = getattr(error, "response", None)
                why = f"refuses: {response.text[:300] if response is not None else error}"
            raise ConnectionError(f"Flower's SuperLink {why}") from error

    def register(self, key: bytes, name: str) -> None:
        """Let whoever has the private half of this key (PEM) in as a client of this name."""
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.control import ControlHttpClient

        asks = RegisterNodeRequest(public_key=key, name=name)
        self.client(ControlHttpClient).RegisterNode(asks)

    @contextmanager
    def grid(self) -> Iterator[Any]:
        """Begin a run -> Flower's grid, with which its server reaches the clients inside the
        block."""
        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto, run_from_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.fab import Fab
        from flwr.supercore.heartbeat import HeartbeatSender
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient
        from flwr.supercore.task_identity import TaskIdentity
        from flwr.superlink.grid import HttpGrid

        from .worker import beat

        logging.getLogger("flwr").setLevel(logging.CRITICAL + 1)  # errors are raised as well
        content, _ = build_fab_from_files({name: text.encode() for name, text in APP.items()})
        app = Fab(sha256(content).hexdigest(), content, {})
        started = self.client(ControlHttpClient).StartRun(StartRunRequest(fab=fab_to_proto(app)))
        self.run = started.run_id
        asks = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        token = self.client(RuntimeHttpClient).AcquireTask(asks).token
        client = self.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token))
        given = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id = given.task_id
        TaskIdentity.run_id = given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid = HttpGrid(self.address, self.ca is None, self.ca, token=token)
        grid._client = client  # which has the secret
        grid.set_run(run_from_proto(given.run))
        heart = HeartbeatSender(beat(client))
        heart.start()
        try:
            yield grid
        finally:
            heart.stop()
            grid.close()

    def traffic(self) -> dict[str, int]:
        """Flower's count of the bytes of the run."""
        from flwr.proto.control_pb2 import ListRunsRequest
        from flwr.supercore.control import ControlHttpClient

        asks = ListRunsRequest(run_id=self.run)
        run = self.client(ControlHttpClient).ListRuns(asks).run_dict[self.run]
        return {"to_server": run.bytes_recv, "from_server": run.bytes_sent}
