"""What the tests on Flower share. They need the environment of `make test-flower`; two of the files
start real processes."""

import itertools
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before torch: worker processes inherit it
os.environ["RAY_worker_niceness"] = "0"  # Ray's 15 starves them where anything else is running

import fedlearn as fl  # noqa: E402
from fedlearn import flower  # noqa: E402

flower.require()
from flwr.app import Context, RecordDict  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = (
    1  # without which no message can be made
)

ROOT = Path(__file__).resolve().parents[2]
MINE = """
import fedlearn as fl
from torch import nn


class Halved(fl.SGD):
    pass


class Own(fl.Averaging):
    pass


def halved(lr=0.05):
    return Own("halved", optimizer=Halved(lr / 2))


def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""  # a method and a network of somebody's own, for mine.py
RUNS = itertools.count(1)


@pytest.fixture(scope="session")
def record():
    """Keep what a test saw, for ``tests/flower/record.py`` and the chapter: ``record("faults",
    {...})``."""

    def keep(name, value):
        path = ROOT / "_build" / "flower" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1), encoding="utf-8")

    return keep


class Loop:
    """A Flower grid without Flower's processes: real messages, contexts and client apps, delivered
    in this process. What was pushed is answered at once and can be pulled from then on, the last
    answer first."""

    def __init__(self, job, folder=None, clients=None):
        self.job, self.run = job, next(RUNS)
        self.app, self.contexts, self.replies, self.sent = (
            flower.client_app(lambda context: job, folder),
            {},
            [],
            [],
        )
        self.names, self.stuck = {}, set()  # messages whose answer somebody goes on fetching
        for k in range(job.task.clients) if clients is None else clients:
            self.join(k)

    def join(self, k, node=None):
        node = node or 100 + k
        self.contexts[node] = Context(self.run, node, {"partition-id": k}, RecordDict(), {})

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=node, name=self.names.get(node, "")) for node in self.contexts
        ]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(f"message {len(self.sent)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.sent.append(message)
            self.replies += self.deliver(message, self.contexts[message.metadata.dst_node_id])
        return ids

    def deliver(self, message, context):
        """The answers to a message; tests replace it with something worse."""
        return [self.app(message, context)]

    def pull_messages(self, ids):
        there = [r for r in reversed(self.replies) if r.metadata.reply_to_message_id in ids]
        self.replies = [r for r in self.replies if r not in there]
        return there


def small(clients=4, **more):
    return fl.tasks.classification("digits", clients, train=120, test=60, **more)
