"""Split learning: a turn that does not end."""

import math
from importlib import import_module

import pytest
from test_round import equal

import fedlearn as fl
from fedlearn.core import Exchange

split = import_module("fedlearn.methods.split_learning")  # fl.methods has the function
B = 16
HANDOVER = 26 + 1 + 4 + 4 * 5 + 4 * (144 + 32 + 32)


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "dirichlet:1", train=120, test=60)


class Engine:
    """Clients in one process. ``change(k, i, data)`` changes the i-th answer of client k."""

    def __init__(self, side, change=None):
        self.side = side
        self.change = change or (lambda k, i, data: data)
        self.memories = {}
        self.questions = []

    def exchange(self, t, kind, clients, write):
        for k in clients:
            answer = self.side.answer(
                t, k, kind, write(k), self.memories.setdefault(k, {})
            )
            self.i = 0 if kind == split.HAND_OVER else self.i + 1
            self.questions.append((k, kind))
            yield k, self.change(k, self.i, answer)


def played(task, change=None, drawn=None):
    """The weights after a round, its row, and the engine."""
    method = fl.methods.split_learning()
    settings = fl.Settings(batch_size=B)
    server = method.server_side(task, settings)
    if drawn:
        server.participants = lambda t: drawn
    engine = Engine(method.client_side(task, settings), change)
    row = {"refused": {}}
    state = server.round(1, server.start(), Exchange(1, engine, row, {}))
    return state.weights, row, engine


def batches(task, k):
    return math.ceil(task.sizes[k] / B)


@pytest.mark.parametrize("at", [0, "the end"])
def test_a_client_that_drops_out_leaves_everything_as_before(at, task):
    at = batches(task, 1) if at == "the end" else at

    def gone(k, i, data):
        return fl.WireError("gone") if (k, i) == (1, at) else data

    state, row, engine = played(task, change=gone)
    assert row["refused"] == {1: "gone"}
    assert row["bytes_handover"] == 7 * HANDOVER
    kinds = [kind for k, kind in engine.questions if k == 1]
    assert kinds == [split.HAND_OVER] + at * [split.STEP]
    assert equal(state, played(task, drawn=(0, 2, 3))[0])  # as if it had not been drawn
