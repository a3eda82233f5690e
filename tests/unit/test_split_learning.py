"""Split learning: the training of the whole network in two places, its messages, turns that another
process answers, and turns that come to no end."""

import math
from importlib import import_module

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl
from fedlearn import models
from fedlearn.local import new_network
from fedlearn.models import state_of
from fedlearn.parts import SGD, Adam, Context, Named
from fedlearn.round import Exchange
from fedlearn.wire import UP, Message, Schema, pack, unpack

split = import_module(
    "fedlearn.methods.split_learning"
)  # fl.methods.split_learning is the function
B = 16
FRAME = 26 + 1 + 4  # bytes of a message without sections
WEIGHTS = 4 * (144 + 32 + 32)  # of the extractor with batch statistics
HANDOVER = FRAME + 4 * 5 + WEIGHTS


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "dirichlet:1", train=120, test=60)


class Spied:
    """An engine that passes everything on and keeps who was asked for what, with what bytes both
    ways. ``change(what, k, i, data)`` has the last word about the i-th answer of client k in its
    turn (``WireError``: there is none). With ``fresh`` every exchange has a client of its own, as
    if each time another process answered."""

    def __init__(self, method, task, settings, change=None, fresh=False):
        self.make = lambda: method.client_side(task, settings)
        self.side, self.fresh = self.make(), fresh
        self.change = change or (lambda what, k, i, data: data)
        self.memories, self.seen = {}, []

    def exchange(self, t, what, clients, write):
        for k in clients:
            question = write(k)
            side = self.make() if self.fresh else self.side
            answer = side.answer(t, k, what, question, self.memories.setdefault(k, {}))
            if what == split.HAND_OVER:
                self.i = 0
            answer, self.i = self.change(what, k, self.i, answer), self.i + 1
            self.seen.append((k, what, question, answer))
            yield k, answer


def played(task, rounds=1, method=None, change=None, fresh=False, **settings):
    """-> the server, the states before and after each round, the rows, and the engine."""
    method = method or fl.methods.split_learning()
    settings = fl.Settings(**{"batch_size": B} | settings)
    server = method.server_side(task, settings)
    engine, states, rows = Spied(method, task, settings, change, fresh), [server.start()], []
    for t in range(1, rounds + 1):
        rows.append({"refused": {}})
        states.append(server.round(t, states[-1], Exchange(t, engine, rows[-1], {})))
    return server, states, rows, engine


def same(one, other, part=""):
    return one.weights.keys() == other.weights.keys() and all(
        torch.equal(w, other.weights[name])
        for name, w in one.weights.items()
        if name.startswith(part)
    )


def batches(task, k, epochs=1):
    return epochs * math.ceil(task.sizes[k] / B)


# ---- it is training of the whole


def test_one_client_is_training_of_the_whole():
    task = fl.tasks.classification("digits", 1, train=100, test=50)
    history = fl.run(fl.methods.split_learning(), task, 2, batch_size=B)
    f_e = fl.initial_network(fl.methods.fed_gkt(), task).extractor
    f_s = new_network(Named("digits_server", (16, 4, 4)), task)
    whole = nn.Sequential(f_e, f_s).train()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    for t in (1, 2):
        x, y = task.epoch(
            0, torch.randperm(100, generator=fl.rng.generator(task.seed, "shuffle", t, 0)), None
        )
        for at in range(0, 100, B):
            optimizer.zero_grad()
            F.cross_entropy(whole(x[at : at + B]), y[at : at + B]).backward()
            optimizer.step()
        whole.eval()
        assert history.rows[t - 1]["accuracy"] == pytest.approx(
            task.evaluate(whole)["accuracy"], abs=0.021
        )
        whole.train()
    for mine, theirs in zip(
        history.state.values(), [*state_of(f_e).values(), *state_of(f_s).values()], strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("part", [SGD(0.05, momentum=0.9), Adam(0.01)], ids=repr)
def test_any_optimiser_goes_on_through_a_turn(part):
    """Its moments live through the steps of a turn, on both sides, and begin anew with the next."""
    task = fl.tasks.classification("digits", 2, train=80, test=20)
    method = fl.methods.split_learning().but(optimizer=part)
    _, states, _, _ = played(task, method=method, epochs=2)
    f_e = fl.initial_network(method, task).extractor.train()
    f_s = new_network(Named("digits_server", (16, 4, 4)), task).train()
    whole = [*f_e.parameters(), *f_s.parameters()]
    for k in (0, 1):
        own = part.init(whole, Context(task, 1, k))
        shuffle = fl.rng.generator(task.seed, "shuffle", 1, k)
        for _ in range(2):
            x, y = task.epoch(k, torch.randperm(task.sizes[k], generator=shuffle), None)
            for rows in torch.arange(task.sizes[k]).split(B):
                grads = torch.autograd.grad(F.cross_entropy(f_s(f_e(x[rows])), y[rows]), whole)
                with torch.no_grad():
                    part.step(whole, grads, own)
    for mine, theirs in zip(
        states[1].weights.values(), [*state_of(f_e).values(), *state_of(f_s).values()], strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


# ---- messages


def test_every_message_is_counted_and_clients_take_turns(task):
    _, _, rows, engine = played(task, 2, epochs=2)
    steps, n = sum(batches(task, k, 2) for k in range(4)), 2 * sum(task.sizes)
    up, down = steps * (FRAME + 8) + 4 * n * 257, steps * (FRAME + 4) + 4 * n * 256
    for row in rows:
        assert row["bytes_up"] == up + 4 * HANDOVER
        assert row["bytes_down"] == down + 4 * HANDOVER
        assert row["bytes_handover"] == 8 * HANDOVER
    turns = [[split.HAND_OVER] + batches(task, k, 2) * [split.STEP] for k in range(4)]
    expected = [(k, what) for k, turn in enumerate(turns) for what in turn]
    assert [(k, what) for k, what, _, _ in engine.seen] == 2 * expected
    assert all(not memory for memory in engine.memories.values())  # after its turn nothing is kept


# ---- another process may answer


@pytest.mark.parametrize("part", [SGD(0.1), SGD(0.05, momentum=0.9), Adam(0.01)], ids=repr)
def test_a_fresh_client_for_every_exchange_gives_the_same_bytes(part, task):
    """All that a client needs in its turn is in its memory."""
    method = fl.methods.split_learning().but(optimizer=part)
    one, other = (played(task, 2, method, fresh=fresh, epochs=2) for fresh in (False, True))
    assert [step for step in one[3].seen] == [step for step in other[3].seen]
    assert same(one[1][-1], other[1][-1])


def test_a_fresh_client_draws_and_augments_as_the_first_would_have():
    def dropping(shape, classes):
        net = models.digits_edge(shape, classes)
        net.extractor.append(nn.Dropout(0.3))
        return net

    task = fl.tasks.classification("digits", 2, train=50, test=20, augment=("crop",))
    method = fl.methods.split_learning(edge=dropping)
    one, other = (played(task, 2, method, fresh=fresh, epochs=2) for fresh in (False, True))
    assert one[3].seen == other[3].seen and same(one[1][-1], other[1][-1])


# ---- turns that come to no end


def gone(who, when):
    return lambda what, k, i, data: fl.WireError("gone") if (k, i) == (who, when) else data


@pytest.mark.parametrize("when", ["at once", "in the middle", "at the end"])
def test_a_client_that_drops_out_leaves_everything_as_before(when, task):
    last = batches(task, 1)
    assert last > 1
    i = {"at once": 0, "in the middle": 1, "at the end": last}[when]
    server, states, rows, engine = played(task, change=gone(1, i))
    assert rows[0]["refused"] == {1: "gone"}
    assert [what for k, what, _, _ in engine.seen if k == 1] == [split.HAND_OVER] + i * [split.STEP]
    # client 2 gets what client 0 left, and the round ends as if client 1 had not been drawn
    left = [a for k, _, _, a in engine.seen if k == 0][-1]
    got = next(q for k, what, q, _ in engine.seen if (k, what) == (2, split.HAND_OVER))
    W_e = [
        unpack(data, server.messages.weights.schema, kind=kind, round=1, client=k).sections
        for data, kind, k in ((left, UP, 0), (got, 0, 2))
    ]
    assert {n: bytes(s) for n, s in W_e[0].items()} == {n: bytes(s) for n, s in W_e[1].items()}
    without = fl.methods.split_learning().server_side(task, fl.Settings(batch_size=B))
    without.participants = lambda t: (0, 2, 3)
    ask = Exchange(1, Spied(without.method, task, without.settings), {"refused": {}}, {})
    assert same(states[1], without.round(1, without.start(), ask))


def other(change):
    """An answer with other sections: ``change(sections)`` -> sections."""

    def lie(server, k, i, data):
        steps = server.messages.steps(k)
        message = server.messages.weights if i == len(steps) else server.messages.features(steps[i])
        taken = unpack(data, message.schema, kind=UP, round=1, client=k)
        sections = change({n: bytes(s) for n, s in taken.sections.items()})
        return pack(Message(UP, 1, k, taken.samples, sections), message.schema)

    return lie


def filled(name, value):
    return lambda s: s | {name: np.full(len(s[name]) // 4, value, "<f4").tobytes()}


def test_training_that_diverges_leaves_a_finite_state_and_says_why(task):
    with pytest.warns(UserWarning, match="8 answers of split_learning were refused"):
        history = fl.run(fl.methods.split_learning(lr=1e30), task, 2, batch_size=B)
    assert all(torch.isfinite(w).all() for w in history.state.values())
    reasons = {why for row in history.rows for why in row["refused"].values()}
    assert reasons and all("finite" in why or "NaN" in why for why in reasons)
    first = fl.methods.split_learning().server_side(task).start()
    assert all(torch.equal(w, history.state[name]) for name, w in first.weights.items())


def test_a_client_answers_only_what_it_is_asked_for(task):
    method = fl.methods.split_learning()
    server, side = method.server_side(task), method.client_side(task)
    weights, memory = server.messages.weights, {}
    W_e = {n.removeprefix("edge."): w for n, w in server.start().weights.items() if n[0] == "e"}
    for what in ("train", "evaluate", split.STEP):  # a step before it has the weights
        with pytest.raises(fl.WireError, match="Client 0 cannot answer"):
            side.answer(1, 0, what, weights.write(0, 1, 0, W_e), memory)
    side.answer(1, 0, split.HAND_OVER, weights.write(0, 1, 0, W_e), memory)
    kept = dict(memory)
    for data in (weights.write(0, 1, 0, W_e), b"", bytes(100)):  # what is no gradient
        with pytest.raises(fl.WireError):
            side.answer(1, 0, split.STEP, data, memory)
    assert memory.keys() == kept.keys() and all(memory[n] is kept[n] for n in kept)


# ---- what cannot be


LIES = {
    "cut": (lambda server, k, i, data: data[:-20], "checksum"),
    "another tensor": (
        lambda server, k, i, data: pack(Message(UP, 1, k), Schema({"H": (3,)})),
        "another model, method or coder",
    ),
    "without labels": (other(lambda s: {"H": s["H"]}), "y is missing"),
    "maps of another shape": (other(lambda s: s | {"H": s["H"] + bytes(4)}), "bytes came for"),
    "NaN": (other(filled("H", math.nan)), "NaN or infinite"),
    "no finite gradient": (other(filled("H", 3e38)), "no finite gradient"),
    "a label too high": (other(filled("y", 10)), "labels"),
    "a label below zero": (other(filled("y", -1)), "labels"),
    "half a label": (other(filled("y", 0.5)), "labels"),
    "weights in part": (other(lambda s: {n: s[n] for n in list(s)[1:]}), "0.weight is missing"),
    "infinite weights": (other(filled("0.weight", math.inf)), "NaN or infinite"),
}


@pytest.mark.parametrize("what", LIES)
def test_hostile_answers_end_the_turn_without_a_trace(what, task):
    lie, reason = LIES[what]
    at = batches(task, 1) if "weights" in what else 1

    def change(asked, k, i, data):
        return lie(server, k, i, data) if (k, i) == (1, at) else data

    server = fl.methods.split_learning().server_side(task, fl.Settings(batch_size=B))
    _, states, rows, _ = played(task, change=change)
    assert list(rows[0]["refused"]) == [1] and reason in rows[0]["refused"][1]
    assert rows[0]["bytes_handover"] == 7 * HANDOVER
    assert same(states[1], played(task, change=gone(1, 0))[1][1])
