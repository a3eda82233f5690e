"""FedGKT: its messages, and both modes."""

import re

import pytest
import torch
import torch.nn.functional as F
from test_round import equal

import fedlearn as fl
from fedlearn.core import Exchange
from fedlearn.parts import Batch, Context
from fedlearn.wire import DOWN, UP, Message, pack, unpack

B = 16
LATE = {"asynchronous": True, "server_epochs": 1}


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "dirichlet:1", train=120, test=60)


def parties(task, **options):
    method = fl.methods.fed_gkt(**options)
    settings = fl.Settings(batch_size=B)
    return method.server_side(task, settings), fl.clients(method, task, settings)


class Only:
    """An engine that reaches these clients only; the others are silent. ``change`` has the last
    word about what a client answers."""

    def __init__(self, clients, present, change):
        self.clients = clients
        self.present = present
        self.change = change or (lambda k, data: data)

    def exchange(self, t, kind, clients, write):
        for k in clients:
            data = write(k)
            if k in self.present:
                yield k, self.change(k, self.clients.answer(t, k, data, kind))
            else:
                yield k, fl.WireError("silent")


def asking(clients, t, present=range(4), change=None):
    return Exchange(
        t, Only(clients, present, change), {"refused": {}, "unevaluated": {}}, {}
    )


def played(server, clients, state, t, present=range(4), change=None):
    """Round ``t`` with some of the clients -> the next state."""
    return server.round(t, state, asking(clients, t, present, change))


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def kl(teacher, student, T=3.0):
    p = F.softmax(teacher / T, 1)
    log_q = F.log_softmax(student / T, 1)
    return T**2 * F.kl_div(log_q, p, reduction="batchmean")


def test_stacked_clients_of_whom_some_have_no_teacher(task):
    method = fl.methods.fed_gkt(alpha=0.5)
    present = [0, 1, 2]
    net = fl.initial_network(method, task)
    memories = [
        {"z_s": noise(task.sizes[0], 10)},
        {},
        {"z_s": noise(task.sizes[2], 10, seed=2)},
    ]
    rows = torch.tensor([[2, 0], [1, 4], [3, 1]])
    x, y = zip(*(task.epoch(k, rows[k], None) for k in present), strict=True)
    alone = [F.cross_entropy(net(x[k]), y[k]) for k in present]
    for k in (0, 2):
        alone[k] = alone[k] + 0.5 * kl(memories[k]["z_s"][rows[k]], net(x[k]))
    logits = torch.stack([net(images) for images in x])
    loss = method.objective.begin(net, Context(task, 2, present, memory=memories))
    together = loss(lambda _: logits, Batch(None, torch.stack(y), rows))
    torch.testing.assert_close(together, torch.stack(alone))


def upload(task, change=None, **options):
    """The server, and the upload of client 1 in round 1 with its sections changed."""
    server, clients = parties(task, **options)
    schema = server.upload_of(1).schema
    data = clients.answer(1, 1, server.question(1).write(DOWN, 1, 1, {}))
    taken = unpack(data, schema, kind=UP, round=1, client=1)
    sections = {name: bytes(data) for name, data in taken.sections.items()}
    sections, samples = (
        change(sections, taken.samples) if change else (sections, taken.samples)
    )
    return server, pack(Message(UP, 1, 1, samples, sections), schema), sections


def changed(name, change):
    """The sections with one of them changed."""
    return lambda sections, n: (sections | {name: change(sections[name])}, n)


BAD = {
    "a sample twice": (
        changed("index", lambda d: d[:4] + d[:4] + d[8:]),
        "images once",
    ),
    "another shape": (
        changed("features", lambda d: d + bytes(4)),
        "bytes came for a tensor",
    ),
    "nothing": (lambda s, n: ({}, n), "not whole"),
    "a label too high": (
        changed("labels", lambda d: b"\x0a\0" + d[2:]),
        "a label above 9",
    ),
}


@pytest.mark.parametrize("change, reason", BAD.values(), ids=BAD)
def test_bad_uploads_are_refused_and_nothing_changes(change, reason, task):
    server, data, _ = upload(task, change)
    state = server.start()
    before = {n: w.clone() for n, w in server.start().weights.items()}
    ask = asking(fl.clients(server.method, task), 1, (1,), lambda k, answer: data)
    with pytest.raises(fl.WireError, match=r"\[0, 1, 2, 3\]"):
        server.round(1, state, ask)
    assert re.search(reason, ask.row["refused"][1])
    assert state.memory.keys() == {"plateau"}
    assert equal(before, state.weights)


def test_synchronous_needs_everybody(task):
    with pytest.raises(ValueError, match="participation"):
        fl.run(fl.methods.fed_gkt(), task, 1, participation=0.5)
    server, clients = parties(task, server_epochs=1)
    state = played(server, clients, server.start(), 1)
    stored = {name: x.clone() for name, x in (state.weights | state.memory).items()}
    with pytest.raises(fl.WireError, match=r"round 2 .* \[1, 3\]"):
        played(server, clients, state, 2, (0, 2))
    assert equal(stored, state.weights | state.memory)


def other_logits(shape, classes):
    return torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(shape[0], classes + 1),
    )


def test_a_network_with_other_logits_is_refused(task):
    """Or else an asynchronous run goes on without the uploads that do not fit."""
    method = fl.methods.fed_gkt(**LATE, server=other_logits)
    with pytest.raises(ValueError, match="logit"):
        fl.run(method, task, 1)


def test_asynchronous_keeps_the_features_of_those_who_are_away(task):
    server, clients = parties(task, **LATE)
    first = played(server, clients, server.start(), 1, (0, 1, 2))
    assert "z_s 3" not in first.memory
    assert len(first.memory["z_s 1"]) == task.sizes[1]
    state = played(server, clients, first, 2, (0, 3))
    assert torch.equal(state.memory["features 1"], first.memory["features 1"])
    assert not torch.equal(state.memory["z_s 1"], first.memory["z_s 1"])
    played(server, clients, state, 3, (1,))  # back after a missed round
    assert torch.equal(clients.memories[1]["z_s"], state.memory["z_s 1"])
    assert (
        played(server, clients, state, 3, ()) is state
    )  # nobody came: nothing to learn from
