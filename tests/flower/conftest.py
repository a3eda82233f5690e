"""What the tests on Flower share. They need the environment of `make test-flower`."""

import itertools
import json
import os
from pathlib import Path

import pytest

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before torch: worker processes inherit it
os.environ["RAY_worker_niceness"] = "0"  # Ray's 15 starves them where anything else is running

from contextlib import contextmanager  # noqa: E402

import fedlearn as fl  # noqa: E402
from fedlearn import flower  # noqa: E402

flower.require()
flower.LIMIT = 1800  # seconds for Ray to start, where anything else may be running
from flwr.app import Context, RecordDict  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = (
    1  # without which no message can be made
)
RUNS = itertools.count(1)
ROOT = Path(__file__).resolve().parents[2]


class Grid:
    """A Flower grid without Flower's processes, and an engine: real messages, contexts and client
    apps, delivered in this process. What was pushed can be pulled from then on, the last answer
    first. ``simulated``: what clients keep travels with the messages."""

    def __init__(self, simulated=False, **waits):
        self.simulated, self.waits = simulated, {"wait": 5.0, "timeout": 5.0} | waits
        self.contexts, self.replies, self.sent = {}, [], []

    def describe(self):
        return {"name": "grid"}

    @contextmanager
    def connect(self, *job):
        self.job, run = flower.Job(*job), next(RUNS)
        own = self.job, self.job.method.client_side(*job[1:3])
        self.app = flower._client_app(lambda asked, context: (run, None))
        flower._SIDES[run] = own
        for k in range(self.job.task.clients):
            self.join(k)
        known = b"known" if self.simulated else None
        with flower.Nodes(self, **self.waits, simulated=known).connect(*job) as nodes:
            yield nodes

    def join(self, k, node=None):
        node = 100 + k if node is None else node
        self.contexts[node] = Context(1, node, {"partition-id": k}, RecordDict(), {})

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"
            self.sent.append(message)
            self.replies += self.deliver(message, self.contexts[message.metadata.dst_node_id])
            yield message.metadata.message_id

    def deliver(self, message, context):
        """The answers to a message; tests replace it with something worse."""
        return [self.app(message, context)]

    def pull_messages(self, ids):
        there = [r for r in reversed(self.replies) if r.metadata.reply_to_message_id in ids]
        self.replies = [r for r in self.replies if r not in there]
        return there


def small(clients=4, **more):
    return fl.tasks.classification("digits", clients, train=120, test=60, **more)


@pytest.fixture(scope="session")
def record():
    """Keep what a run on Flower saw beside the one in this process, for ``make record-flower``."""

    def keep(name, here, there, kind="simulation"):
        messages = sum(len(row["clients"]) for row in here.rows)
        seen = {"method": name, "equal": there == here}
        seen["bytes_up"] = round(here.bytes_up.sum() / messages)  # of a client's round
        path = ROOT / "_build" / "flower" / f"{kind}_{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(seen, indent=1), encoding="utf-8")

    return keep
