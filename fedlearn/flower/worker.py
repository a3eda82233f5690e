"""The worker of ``join``: it answers the messages that the client's node fetches, in one process
that holds torch, data and network.

Left to itself, Flower starts a process for each message, and that process runs what the server has
sent. But it also lets a process of ours fetch the messages (``--isolation process``), and so this
one does. Nothing that a server sends is run here, and nothing is loaded twice.

Messages go from the node to the worker over loopback, to whoever can sign with a secret that lies
in a file of this user's for as long as the node runs.
"""

import logging
import os
import secrets
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from .client import OVER
from .envelope import plain, say
from .processes import Process

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
STOPPED = "Stopped: "
LINGER = 5.0  # seconds


class Report:
    """What a client says on its terminal."""

    def __init__(self) -> None:
        self.lines, self.last = 0, ""

    def __call__(self, text: str) -> None:
        """Show a line, unless it is the reason of an end, which is raised elsewhere."""
        self.lines, self.last = self.lines + 1, plain(text)
        if not self.refusal:
            say(self.last)

    @property
    def refusal(self) -> str:
        """Why the server turned this client away, if it did."""
        return self.last.removeprefix(STOPPED) if self.last.startswith(STOPPED) else ""

    @property
    def over(self) -> bool:
        """Whether nothing more will be asked."""
        return self.last == OVER or bool(self.refusal)


@contextmanager
def secret_file(path: Path) -> Iterator[bytes]:
    """A new secret, in a file that only this user can read, inside the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    secret = secrets.token_bytes(32)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
    try:
        yield secret
    finally:
        path.unlink(missing_ok=True)


def work(node: Process, address: str, secret: bytes, app: Any, report: Report) -> None:
    """Let ``app`` answer what the node at ``address`` fetches, until the node has ended, or all is
    over and it has sent the last answer."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )

    logging.getLogger("flwr").setLevel(logging.CRITICAL + 1)  # errors are raised as well
    asks = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE])
    last = time.monotonic()
    with closing(_connect(address, signed)) as client:
        while node.poll() is None and not report.over:
            try:
                token = client.AcquireTask(asks).token
            except httpx.TransportError:  # the node is starting or ending
                token = ""
            except httpx.HTTPStatusError as error:
                raise ConnectionError(f"The node keeps its messages to itself: {error}") from None
            if not token:
                time.sleep(min(0.5, max(0.02, (time.monotonic() - last) / 10)))
                continue
            last = time.monotonic()
            with closing(_connect(address, RuntimeTokenHttpInterceptor(token))) as own:
                try:
                    _answer(own, app, report, node.log)
                except Exception as error:  # between node and worker; the server will miss it
                    _failed(error, report, node.log)
    if report.refusal:  # the server looks for the reason, which Flower forgets with the node
        time.sleep(LINGER)


def _connect(address, interceptor):
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    both = [RuntimeVersionHttpInterceptor("flwr-clientapp"), interceptor]
    return RuntimeHttpClient.from_server_address(address, True, None, both)


def _failed(error, report, log):
    """Say that a message has no answer -> why."""
    why = f"{type(error).__name__}: {error}"
    with open(log, "a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    if not report.over:
        report(f"No answer: {why}; {log} says where.")
    return why


def beat(client: Any) -> Callable[[], bool]:
    """What tells Flower, time and again, that somebody is at work on a task of ``client``."""
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    def once() -> bool:
        with suppress(Exception):  # who has gone is noticed elsewhere
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    return once


def _answer(client, app, report, log):
    """Fetch a message, answer it, hand the answer to the node."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.proto.message_pb2 import PullObjectRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supernode.runtime import run_clientapp as flower

    heart = HeartbeatSender(beat(client))  # without which Flower gives up an answer after a minute
    heart.start()
    try:
        message, context, run, _ = flower.pull_task_input(client)
        try:
            reply = app(message, context)
        except Exception as error:
            why = _failed(error, report, log)
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)
        flower.push_message(client, reply, context)
        node, sent = Node(node_id=context.node_id), reply.metadata.message_id
        asks = PullObjectRequest(node=node, run_id=run.run_id, object_id=sent)
        while report.over and client.PullObject(asks).object_found:  # gone once the node sent it
            time.sleep(0.1)
        flower.push_task_output(client, context, SubStatus.COMPLETED, "")
    finally:
        heart.stop()
