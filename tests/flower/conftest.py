"""What the tests on Flower share. They need the environment of `make test-flower`."""

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before torch: worker processes inherit it
# Ray's 15 starves them where anything else is running
os.environ["RAY_worker_niceness"] = "0"

import fedlearn as fl  # noqa: E402
from fedlearn.engines import flower  # noqa: E402

flower.require()
# for Ray to start where anything else may be running
flower.LIMIT = 1800
flower.STARTS = 20
from flwr.app import Context, RecordDict  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

for _name in ("task_id", "run_id", "node_id"):
    setattr(TaskIdentity, _name, 1)  # without which no message can be made
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "flower_app"))


class Grid:
    """A Flower grid without Flower's processes, and an engine: real messages, contexts
    and client apps, delivered in this process. What was pushed can be pulled from then
    on, the last answer first.

    ``simulated``: what clients keep travels with the messages. ``change``: (message,
    reply, context) -> the replies that come in its place; None: it comes as it now is.
    """

    def __init__(self, simulated=False, change=lambda *message: None, timeout=5.0):
        self.options = (5.0, timeout, b"known" if simulated else None)
        self.change = change
        self.contexts = {}
        self.replies = []
        self.sent = 0

    @contextmanager
    def connect(self, *job):
        client, threads = job
        self.job = flower.Job(client.method, client.task, client.settings, threads)
        self.app = flower.client_app(lambda question, context: self.job)
        for k in range(self.job.task.clients):
            self.join(k, 100 + k)
        nodes = flower.Nodes(self, *self.options)
        nodes.pause = 0.01
        with nodes.connect(*job):
            yield nodes

    def join(self, k, node):
        self.contexts[node] = Context(1, node, {"partition-id": k}, RecordDict(), {})

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {self.sent}"
            self.sent += 1
            context = self.contexts[message.metadata.dst_node_id]
            reply = self.app(message, context)
            changed = self.change(message, reply, context)
            self.replies += [reply] if changed is None else changed
            yield message.metadata.message_id

    def pull_messages(self, ids):
        pulled = [
            r for r in reversed(self.replies) if r.metadata.reply_to_message_id in ids
        ]
        self.replies = [r for r in self.replies if r not in pulled]
        return pulled


def small(clients=4, **options):
    return fl.tasks.classification("digits", clients, train=120, test=60, **options)


@pytest.fixture(scope="session")
def record():
    """Keep the history of a run on Flower beside that of this process, for
    tests/benchmarks/flower.py."""

    def keep(name, local, remote, kind="simulation"):
        messages = sum(len(row["clients"]) for row in local.rows)
        seen = {"method": name, "equal": remote == local}
        seen["bytes_up"] = round(local.bytes_up.sum() / messages)  # of a client's round
        path = ROOT / "_build" / "flower" / f"{kind}_{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(seen, indent=1), encoding="utf-8")

    return keep
