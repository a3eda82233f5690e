"""Split learning: the training of the whole network in two places, and turns without an end."""

import math
from importlib import import_module

import pytest
import torch

import fedlearn as fl
from fedlearn.core import Exchange
from fedlearn.wire import UP, Message, pack, unpack

split = import_module("fedlearn.methods.split_learning")  # fl.methods has the function
B = 16
HANDOVER = 26 + 1 + 4 + 4 * 5 + 4 * (144 + 32 + 32)


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "dirichlet:1", train=120, test=60)


class Spied:
    """An engine that keeps who was asked for what. ``change(k, i, data)`` has the last word about
    the i-th answer of client k. With ``fresh`` each exchange has another client."""

    def __init__(self, method, task, settings, change=None, fresh=False):
        self.make = lambda: method.client_side(task, settings)
        self.side, self.fresh = self.make(), fresh
        self.change = change or (lambda k, i, data: data)
        self.memories, self.seen = {}, []

    def exchange(self, t, kind, clients, write):
        for k in clients:
            question = write(k)
            side = self.make() if self.fresh else self.side
            answer = side.answer(t, k, kind, question, self.memories.setdefault(k, {}))
            self.i = 0 if kind == split.HAND_OVER else self.i + 1
            answer = self.change(k, self.i, answer)
            self.seen.append((k, kind, question, answer))
            yield k, answer


def played(task, rounds=1, method=None, change=None, fresh=False, who=None, **settings):
    """-> the server, the state after the last round, the rows, and the engine."""
    method = method or fl.methods.split_learning()
    settings = fl.Settings(**{"batch_size": B} | settings)
    server = method.server_side(task, settings)
    if who:
        server.participants = lambda t: who
    engine, state, rows = (
        Spied(method, task, settings, change, fresh),
        server.start(),
        [],
    )
    for t in range(1, rounds + 1):
        rows.append({"refused": {}})
        state = server.round(t, state, Exchange(t, engine, rows[-1], {}))
    return server, state.weights, rows, engine


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(w, other[n]) for n, w in one.items()
    )


def batches(task, k):
    return math.ceil(task.sizes[k] / B)


@pytest.mark.parametrize("at", [0, "the end"])
def test_a_client_that_drops_out_leaves_everything_as_before(at, task):
    at = batches(task, 1) if at == "the end" else at

    def gone(k, i, data):
        return fl.WireError("gone") if (k, i) == (1, at) else data

    _, state, rows, engine = played(task, change=gone)
    assert (
        rows[0]["refused"] == {1: "gone"} and rows[0]["bytes_handover"] == 7 * HANDOVER
    )
    asked = [kind for k, kind, _, _ in engine.seen if k == 1]
    assert asked == [split.HAND_OVER] + at * [split.STEP]
    assert same(state, played(task, who=(0, 2, 3))[1])  # as if it had not been drawn


def lie(name, value=None):
    """The answer without this section, or with one of this number only."""

    def change(messages, i, data):
        steps = messages.steps(1)
        message = messages.weights if i == len(steps) else messages.features(steps[i])
        taken = unpack(data, message.schema, kind=UP, round=1, client=1)
        s = {n: bytes(section) for n, section in taken.sections.items()}
        count = len(s.pop(name)) // 4
        if value is not None:
            s[name] = torch.full((count,), value).numpy().tobytes()
        return pack(Message(UP, 1, 1, taken.samples, s), message.schema)

    return change


LIES = {
    "without labels": (lie("y"), "y is missing"),
    "no finite gradient": (lie("H", 3e38), "no finite gradient"),
    "half a label": (lie("y", 0.5), "labels"),
    "weights in part": (lie("0.weight"), "0.weight is missing"),
}


@pytest.mark.parametrize("kind", LIES)
def test_hostile_answers_end_the_turn_without_a_trace(kind, task):
    change, reason = LIES[kind]
    at = batches(task, 1) if "weights" in kind else 1
    messages = fl.methods.split_learning().server_side(task, fl.Settings(batch_size=B))

    def lying(k, i, data):
        return change(messages, i, data) if (k, i) == (1, at) else data

    _, state, rows, _ = played(task, change=lying)
    assert list(rows[0]["refused"]) == [1] and reason in rows[0]["refused"][1]
    assert same(state, played(task, who=(0, 2, 3))[1])
