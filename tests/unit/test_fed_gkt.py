"""FedGKT: two rounds written out with torch's own optimisers, the messages, both modes."""

import math
import re
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl
from fedlearn import models
from fedlearn.core import Exchange
from fedlearn.errors import Diverged
from fedlearn.parts import Batch, Context
from fedlearn.wire import DOWN, UP, Message, pack, unpack

gkt = import_module("fedlearn.methods.fed_gkt")  # fl.methods.fed_gkt is the function
B = 16
LATE = {"asynchronous": True, "server_epochs": 1}


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "dirichlet:1", train=120, test=60)


def parties(task, **options):
    method, settings = fl.methods.fed_gkt(**options), fl.Settings(batch_size=B)
    return method.server_side(task, settings), fl.clients(method, task, settings)


class Only:
    """An engine that reaches these clients only; the others are silent. ``change`` has the last
    word about what a client answers."""

    def __init__(self, clients, who, change):
        self.clients, self.who = clients, who
        self.change = change or (lambda k, data: data)

    def exchange(self, t, kind, clients, write):
        for k in clients:
            data = write(k)
            if k in self.who:
                yield k, self.change(k, self.clients.answer(t, k, data, kind))
            else:
                yield k, fl.WireError("silent")


def asking(clients, t, who=range(4), change=None):
    return Exchange(
        t, Only(clients, who, change), {"refused": {}, "unevaluated": {}}, {}
    )


def played(server, clients, state, t, who=range(4), change=None):
    """Round ``t`` with some of the clients -> the next state."""
    return server.round(t, state, asking(clients, t, who, change))


def edge(clients, k):
    """The edge network that client k keeps."""
    kept = clients.memories[k].items()
    return {n.removeprefix("own/"): w.clone() for n, w in kept if n.startswith("own/")}


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(w, other[n]) for n, w in one.items()
    )


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def kl(teacher, student, T=3.0):
    p, log_q = F.softmax(teacher / T, 1), F.log_softmax(student / T, 1)
    return T**2 * F.kl_div(log_q, p, reduction="batchmean")


def test_stacked_clients_of_whom_some_have_no_teacher(task):
    method, who = fl.methods.fed_gkt(alpha=0.5), [0, 1, 2]
    net = fl.initial_network(method, task)
    memories = [
        {"z_s": noise(task.sizes[0], 10)},
        {},
        {"z_s": noise(task.sizes[2], 10, seed=2)},
    ]
    rows = torch.tensor([[2, 0], [1, 4], [3, 1]])
    x, y = zip(*(task.epoch(k, rows[k], None) for k in who), strict=True)
    alone = [F.cross_entropy(net(x[k]), y[k]) for k in who]
    for k in (0, 2):
        alone[k] = alone[k] + 0.5 * kl(memories[k]["z_s"][rows[k]], net(x[k]))
    logits = torch.stack([net(images) for images in x])
    loss = method.objective.begin(net, Context(task, 2, who, memory=memories))
    together = loss(lambda _: logits, Batch(None, torch.stack(y), rows))
    torch.testing.assert_close(together, torch.stack(alone))


def epoch(net, optimizer, batches):
    """An epoch of pairs of a loss and the network's input, by torch itself."""
    net.train()
    for loss, x in batches:
        optimizer.zero_grad()
        loss(net(x)).backward()
        optimizer.step()
    net.eval()


# oneDNN sums in another order for each layout of the maps, and what follows makes much of it
@torch.backends.mkldnn.flags(enabled=False)
def test_two_rounds_written_out(task):
    server, clients = parties(task, lr=0.01, server_epochs=2, optimizer="sgd")
    state, f_s, close = (
        server.start(),
        models.digits_server(),
        torch.testing.assert_close,
    )
    nets, n = [fl.initial_network(server.method, task) for _ in range(4)], task.sizes
    f_s.load_state_dict(state.weights, strict=False)
    sgd, z_s = torch.optim.SGD(f_s.parameters(), lr=0.01, momentum=0.9), {}
    x, y = zip(
        *(task.epoch(k, torch.arange(n[k]), None) for k in range(4)), strict=True
    )

    def loss(k, rows, z):
        """Eqs. (6) and (7)."""
        return lambda z_k: (
            F.cross_entropy(z_k, y[k][rows]) + (kl(z[k][rows], z_k) if z else 0)
        )

    for t in (1, 2):
        state, H, z = played(server, clients, state, t), {}, {}
        for k, net in enumerate(nets):
            order = fl.rng.generator(task.seed, "shuffle", t, k)
            batches = torch.randperm(n[k], generator=order).split(B)
            sgd_k = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
            epoch(net, sgd_k, [(loss(k, rows, z_s), x[k][rows]) for rows in batches])
            with torch.no_grad():
                H[k], z[k] = net.extractor(x[k]), net(x[k])
        order = fl.rng.generator(task.seed, "server shuffle", t, -1)
        for _ in range(2):
            who = torch.randperm(4, generator=order).tolist()
            turns = [(k, torch.randperm(n[k], generator=order).split(B)) for k in who]
            epoch(
                f_s,
                sgd,
                [(loss(k, r, z), H[k][r]) for k, split in turns for r in split],
            )
        for k in range(4):
            close(state.memory[f"z_s {k}"], f_s(H[k]).detach(), atol=2e-3, rtol=2e-3)
        # from here on both go on from the package's numbers: last bits grow
        f_s.load_state_dict(state.weights, strict=False)
        z_s = {k: state.memory[f"z_s {k}"].clone() for k in range(4)}
        for k, net in enumerate(nets):
            net.load_state_dict(edge(clients, k), strict=False)
    results = [task.evaluate(nn.Sequential(net.extractor, f_s))["loss"] for net in nets]
    for who in ((0, 1, 2, 3), (0, 2)):  # over those who show theirs
        shown = server.evaluate(2, state, asking(clients, 2, who))
        assert shown["loss"] == pytest.approx(sum(results[k] for k in who) / len(who))
    assert server.evaluate(2, state, asking(clients, 2, ())) == {
        "accuracy": None,
        "loss": None,
    }


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


def test_what_travels(task):
    n, floats = task.sizes[1], 16 * 4 * 4
    for bits in (32, 16):
        sizes = {"index": 4 * n, "labels": 2 * n}
        sizes |= {"features": bits // 8 * n * floats, "logits": bits // 8 * n * 10}
        assert {name: len(s) for name, s in upload(task, bits=bits)[2].items()} == sizes
    assert "logits" not in upload(task, kd_to_server=False)[2]
    for rows in (10, 0):
        method = fl.methods.fed_gkt(server_epochs=1, kd_to_client=bool(rows))
        down = fl.run(method, task, 2, evaluate_every=2).bytes_down
        assert down[1] - down[0] == 4 * 4 * bool(rows) + 4 * rows * sum(task.sizes)


def changed(name, change):
    """The sections with one of them changed."""
    return lambda sections, n: (sections | {name: change(sections[name])}, n)


BAD = {
    "a sample twice": (
        changed("index", lambda d: d[:4] + d[:4] + d[8:]),
        "images once",
    ),
    "other samples": (lambda s, n: (s, n + 1), "images, and sent"),
    "another shape": (
        changed("features", lambda d: d + bytes(4)),
        "bytes came for a tensor",
    ),
    "a part": (lambda s, n: ({"index": s["index"]}, n), "not whole"),
    "nothing": (lambda s, n: ({}, n), "sent nothing"),
    "a label too high": (
        changed("labels", lambda d: b"\x0a\0" + d[2:]),
        "a label above 9",
    ),
    "NaN": (changed("features", lambda d: b"\xff" * 4 + d[4:]), "NaN or infinite"),
}


@pytest.mark.parametrize("change, reason", BAD.values(), ids=BAD)
def test_bad_uploads_are_refused_and_nothing_changes(change, reason, task):
    server, data, _ = upload(task, change)
    state, before = (
        server.start(),
        {n: w.clone() for n, w in server.start().weights.items()},
    )
    ask = asking(fl.clients(server.method, task), 1, (1,), lambda k, answer: data)
    with pytest.raises(fl.WireError, match=r"\[0, 1, 2, 3\]"):
        server.round(1, state, ask)
    assert re.search(reason, ask.row["refused"][1])
    assert not state.memory and same(before, state.weights)


def filled(server, value):
    """A client's edge network with this value everywhere."""
    schema = server.personal().schema
    sections = {
        n: torch.full(s, value).numpy().tobytes() for n, s in schema.shapes.items()
    }
    return pack(Message(UP, 1, 2, server.task.sizes[2], sections), schema)


@pytest.mark.parametrize(
    "value, reason", [(3e38, "loss is not finite"), (math.nan, "NaN")]
)
def test_hostile_networks_are_left_out_of_the_mean(value, reason, task):
    server, clients = parties(task, server_epochs=1)
    state = played(server, clients, server.start(), 1)
    expected = server.evaluate(1, state, asking(clients, 1, (0, 1, 3)))
    ask = asking(
        clients, 1, change=lambda k, data: filled(server, value) if k == 2 else data
    )
    assert server.evaluate(1, state, ask) == expected
    assert list(ask.row["unevaluated"]) == [2] and reason in ask.row["unevaluated"][2]
    assert not ask.row["refused"] and not ask.last_seen  # which are about training


def test_synchronous_needs_everybody(task):
    with pytest.raises(ValueError, match="participation"):
        fl.run(fl.methods.fed_gkt(), task, 1, participation=0.5)
    server, clients = parties(task, server_epochs=1)
    state = played(server, clients, server.start(), 1)
    kept = {name: x.clone() for name, x in (state.weights | state.memory).items()}
    with pytest.raises(fl.WireError, match=r"round 2 .* \[1, 3\]"):
        played(server, clients, state, 2, (0, 2))
    assert same(kept, state.weights | state.memory)


def test_asynchronous_keeps_the_features_of_those_who_are_away(task):
    server, clients = parties(task, **LATE)
    first = played(server, clients, server.start(), 1, (0, 1, 2))
    assert "z_s 3" not in first.memory and len(first.memory["z_s 1"]) == task.sizes[1]
    state = played(server, clients, first, 2, (0, 3))
    assert torch.equal(state.memory["features 1"], first.memory["features 1"])
    assert not torch.equal(state.memory["z_s 1"], first.memory["z_s 1"])
    played(server, clients, state, 3, (1,))  # back after a missed round
    assert torch.equal(clients.memories[1]["z_s"], state.memory["z_s 1"])
    assert (
        played(server, clients, state, 3, ()) is state
    )  # nobody came: nothing to learn from


def test_a_round_whose_soft_labels_cannot_be_sent_is_not_taken(task, monkeypatch):
    def train(server, t, clients, memory):
        [*server.f_s.parameters()][-1].data.fill_(1e5)  # the bias of the logits

    monkeypatch.setattr(gkt.Server, "train", train)
    server, clients = parties(task, bits=16)
    with pytest.raises(Diverged, match="half precision"):
        played(server, clients, server.start(), 1)


def test_the_servers_optimiser_goes_on_and_its_rate_is_cut_on_a_plateau(
    task, monkeypatch
):
    server, clients = parties(task, server_epochs=1)
    server.method = server.method.but(patience=1)
    rates, init, state = [], fl.Adam.init, server.start()

    def spy(part, params, ctx):
        if ctx.net is server.f_s:
            rates.append(part.lr)
        return init(part, params, ctx)

    monkeypatch.setattr(fl.Adam, "init", spy)
    batches = sum(math.ceil(n / B) for n in task.sizes)
    for t in range(1, 6):
        if t == 2:  # as if everything had been right
            state.memory["plateau"][0] = 1.0
        state = played(server, clients, state, t)
        grown = float(state.memory["optimizer c1 0"].flatten()[0])
        assert grown == pytest.approx(1 - 0.9 ** (t * batches), rel=1e-4)
    assert rates == pytest.approx([0.001, 0.001, 0.001, 0.0001, 0.0001])


def test_optimisers_are_those_of_the_authors_program():
    """Its words, weight decay included; SGD is the paper's."""
    made = {
        w: fl.methods.fed_gkt(0.1, optimizer=w).optimizer
        for w in ("sgd", "amsgrad", "nesterov")
    }
    assert made == {
        "sgd": fl.SGD(0.1, 0.9),
        "amsgrad": fl.Adam(0.1, weight_decay=1e-4, amsgrad=True),
        "nesterov": fl.SGD(0.1, 0.9, weight_decay=5e-4, nesterov=True),
    }
