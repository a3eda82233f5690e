"""FedGKT: the loss, a round written out with torch's own optimisers, the messages, both modes, and
the evaluation, which asks for edge networks."""

import math
import re
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl
from fedlearn import local, models
from fedlearn.models import state_of
from fedlearn.parts import SGD, Batch, Context, State
from fedlearn.round import Exchange
from fedlearn.wire import DOWN, UP, Message, pack, unpack

gkt = import_module("fedlearn.methods.fed_gkt")  # fl.methods.fed_gkt is the function
B = 16
EMPTY = 26 + 1 + 4  # bytes of a message without sections


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "dirichlet:1", train=120, test=60)


def parties(method, task):
    settings = fl.Settings(batch_size=B)
    return method.server_side(task, settings), fl.clients(method, task, settings)


class Only:
    """An engine that reaches these clients only; the others are silent. ``change`` has the last
    word about what a client answers."""

    def __init__(self, clients, who, change):
        self.clients, self.who = clients, who
        self.change = change or (lambda k, data: data)

    def exchange(self, t, what, clients, write):
        for k in clients:
            data = write(k)
            if k in self.who:
                yield k, self.change(k, self.clients.answer(t, k, data, what))
            else:
                yield k, fl.WireError("silent")


def asking(clients, t, who=range(4), change=None):
    return Exchange(t, Only(clients, who, change), {"refused": {}, "unevaluated": {}}, {})


def played(server, clients, state, t, who=range(4), change=None):
    """Round ``t`` with some of the clients -> the next state."""
    return server.round(t, state, asking(clients, t, who, change))


def edge(clients, k):
    """The edge network that client k keeps."""
    kept = clients.memories[k].items()
    return {n.removeprefix("own/"): w for n, w in kept if n.startswith("own/")}


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "edge, server, whole",
    [("resnet8", "resnet55", "resnet56"), ("digits_edge", "digits_server", "digits_resnet")],
)
def test_extractor_and_server_network_make_the_large_network(edge, server, whole):
    f_e, f_s, f = (models.NETWORKS[name]() for name in (edge, server, whole))
    weights = [*state_of(f_e.extractor).values(), *state_of(f_s).values()]
    local.load(dict(enumerate(state_of(f).values())), dict(enumerate(weights)))
    x = noise(2, *((1, 8, 8) if edge == "digits_edge" else (3, 32, 32)))
    torch.testing.assert_close(f.eval()(x), f_s.eval()(f_e.eval().extractor(x)))


@pytest.mark.parametrize("T", [1.0, 3.0])
def test_distillation_is_torchs_kl_div(T):
    p, q = noise(6, 5), noise(6, 5, seed=1)
    expected = T**2 * F.kl_div(F.log_softmax(q / T, 1), F.softmax(p / T, 1), reduction="batchmean")
    torch.testing.assert_close(gkt.distillation(p, q, T), expected)
    assert float(gkt.distillation(p, p + 7.0, T)) == pytest.approx(0, abs=1e-6)
    both = gkt.distillation(p.expand(2, 6, 5), torch.stack([q, p]), T)
    torch.testing.assert_close(both, torch.stack([expected, 0 * expected]), atol=1e-6, rtol=1e-5)


def test_stacked_training_when_only_some_have_heard_of_the_server(task):
    method, who = fl.methods.fed_gkt(), [0, 1, 2]
    net = fl.initial_network(method, task)
    memories = [{"z_s": noise(task.sizes[0], 10)}, {}, {"z_s": noise(task.sizes[2], 10, seed=2)}]
    rows = torch.tensor([[2, 0], [1, 4], [3, 1]])
    x, y = zip(*(task.epoch(k, rows[k], None) for k in who), strict=True)
    alone = []
    for k in who:
        loss = method.objective.begin(net, Context(task, 2, k, memory=memories[k]))
        alone.append(loss(net, Batch(x[k], y[k], rows[k])))
    expected = F.cross_entropy(net(x[0]), y[0])
    expected = expected + gkt.distillation(memories[0]["z_s"][rows[0]], net(x[0]))
    torch.testing.assert_close(alone[0], expected)
    logits = torch.stack([net(images) for images in x])
    loss = method.objective.begin(net, Context(task, 2, who, memory=memories))
    together = loss(lambda _: logits, Batch(None, torch.stack(y), rows))
    torch.testing.assert_close(together, torch.stack(alone))


# oneDNN sums in another order for each layout of the maps, and what follows makes much of it
@torch.backends.mkldnn.flags(enabled=False)
def test_two_rounds_written_out(task):
    method = fl.methods.fed_gkt(lr=0.01, server_epochs=2, optimizer="sgd")
    server, clients = parties(method, task)
    state = server.start()
    edges = [fl.initial_network(method, task) for _ in range(4)]
    f_s = models.digits_server()
    f_s.load_state_dict(state.weights, strict=False)
    optimizer, z_s = torch.optim.SGD(f_s.parameters(), lr=0.01, momentum=0.9), {}

    def kl(teacher, student):
        p, log_q = F.softmax(teacher / 3, 1), F.log_softmax(student / 3, 1)
        return 9 * F.kl_div(log_q, p, reduction="batchmean")

    for t in (1, 2):
        came, H, z, y = {}, {}, {}, {}

        def keep(k, data, t=t, came=came):
            came[k] = server.messages.read_knowledge(t, k, data)
            return data

        state = played(server, clients, state, t, change=keep)
        for k, net in enumerate(edges):
            own = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
            shuffle = fl.rng.generator(task.seed, "shuffle", t, k)
            order = torch.randperm(task.sizes[k], generator=shuffle)
            x, y[k] = task.epoch(k, torch.arange(task.sizes[k]), None)
            net.train()
            for rows in order.split(B):
                own.zero_grad()
                out = net(x[rows])
                loss = F.cross_entropy(out, y[k][rows]) + (kl(z_s[k][rows], out) if t > 1 else 0)
                loss.backward()
                own.step()
            with torch.no_grad():
                net.eval()
                H[k], z[k] = net.extractor(x), net(x)
            torch.testing.assert_close(came[k]["features"], H[k], atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(came[k]["logits"], z[k], atol=1e-3, rtol=1e-3)
            assert torch.equal(came[k]["labels"], y[k])
        shuffle = fl.rng.generator(task.seed, "server shuffle", t, -1)
        f_s.train()
        for _ in range(2):
            for k in torch.randperm(4, generator=shuffle).tolist():
                for rows in torch.randperm(task.sizes[k], generator=shuffle).split(B):
                    optimizer.zero_grad()
                    out = f_s(H[k][rows])
                    (F.cross_entropy(out, y[k][rows]) + kl(z[k][rows], out)).backward()
                    optimizer.step()
        with torch.no_grad():
            f_s.eval()
            for k in range(4):
                torch.testing.assert_close(
                    state.memory[f"z_s {k}"], f_s(H[k]), atol=2e-3, rtol=2e-3
                )
        # from here on both go on from the package's numbers: last bits grow
        f_s.load_state_dict(state.weights, strict=False)
        z_s = {k: state.memory[f"z_s {k}"].clone() for k in range(4)}
        for k, net in enumerate(edges):
            net.load_state_dict(edge(clients, k), strict=False)
    results = [task.evaluate(nn.Sequential(net.extractor, f_s)) for net in edges]
    found = server.evaluate(2, state, asking(clients, 2))
    for name, value in found.items():
        assert value == pytest.approx(sum(r[name] for r in results) / 4)
    found = server.evaluate(2, state, asking(clients, 2, (0, 2)))  # over those who show theirs
    assert found["loss"] == pytest.approx((results[0]["loss"] + results[2]["loss"]) / 2)
    assert server.evaluate(2, state, asking(clients, 2, ())) == {"accuracy": None, "loss": None}


def upload(task, method=None, change=None, client=1):
    """The upload of a client in round 1, with its sections changed; and the server that is to read
    it."""
    server, clients = parties(method or fl.methods.fed_gkt(), task)
    question = server.messages.down(client).write(DOWN, 1, client, {})
    schema = server.messages.up(client).schema
    taken = unpack(clients.answer(1, client, question), schema, kind=UP, round=1, client=client)
    sections = {name: bytes(data) for name, data in taken.sections.items()}
    samples = taken.samples
    if change:
        sections, samples = change(sections, samples)
    return server, pack(Message(UP, 1, client, samples, sections), schema), sections


def test_bytes_on_the_wire(task):
    n, floats = task.sizes[1], 16 * 4 * 4
    for bits in (32, 16):
        _, data, sections = upload(task, fl.methods.fed_gkt(bits=bits))
        sizes = {"index": 4 * n, "labels": 2 * n}
        sizes |= {"features": bits // 8 * n * floats, "logits": bits // 8 * n * 10}
        assert {name: len(s) for name, s in sections.items()} == sizes
        assert len(data) == EMPTY + 4 * 4 + sum(sizes.values())
    assert "logits" not in upload(task, fl.methods.fed_gkt(kd_to_server=False))[2]
    for rows in (10, 0):
        method = fl.methods.fed_gkt(server_epochs=1, kd_to_client=bool(rows))
        history = fl.run(method, task, 2, evaluate_every=2)
        assert history.bytes_down[0] == 4 * EMPTY
        assert history.bytes_down[1] == 4 * (EMPTY + 4 * bool(rows)) + 4 * rows * sum(task.sizes)
    shapes = [t.shape for t in state_of(models.digits_edge()).values()]
    network = 26 + -(-len(shapes) // 8) + 4 * len(shapes) + 4 * sum(map(math.prod, shapes)) + 4
    assert history.bytes_evaluation_up.tolist() == [0, 4 * network]
    assert history.bytes_evaluation_down.tolist() == [0, 4 * EMPTY]


def changed(name, change):
    """The sections with one of them changed."""
    return lambda sections, n: (sections | {name: change(sections[name])}, n)


BAD = {
    "a sample twice": (changed("index", lambda d: d[:4] + d[:4] + d[8:]), "each of its .* images"),
    "a foreign sample": (changed("index", lambda d: b"\0\0\1\0" + d[4:]), "each of its .* images"),
    "other samples": (lambda s, n: (s, n + 1), "images, and sent"),
    "another shape": (changed("features", lambda d: d + bytes(4)), "bytes came for a tensor"),
    "a part": (lambda s, n: ({"index": s["index"]}, n), "not whole"),
    "nothing": (lambda s, n: ({}, n), "sent nothing"),
    "a label too high": (changed("labels", lambda d: b"\x0a\0" + d[2:]), "the label 10"),
    "NaN": (changed("features", lambda d: b"\xff" * 4 + d[4:]), "NaN or infinite"),
}


@pytest.mark.parametrize("change, reason", BAD.values(), ids=BAD)
def test_bad_uploads_are_refused_and_nothing_changes(change, reason, task):
    server, data, _ = upload(task, change=change)
    state = server.start()
    before = {name: w.clone() for name, w in state.weights.items()}
    ask = asking(fl.clients(server.method, task), 1, (1,), lambda k, answer: data)
    with pytest.raises(fl.WireError, match=r"nothing usable came from clients \[0, 1, 2, 3\]"):
        server.round(1, state, ask)
    assert re.search(reason, ask.row["refused"][1])
    assert not state.memory and all(torch.equal(w, state.weights[n]) for n, w in before.items())


def test_samples_may_come_in_any_order(task):
    def turned(sections, n):
        order = torch.randperm(n).tolist()
        rows = {m: (d, len(d) // n) for m, d in sections.items()}
        return {m: b"".join(d[i * w : i * w + w] for i in order) for m, (d, w) in rows.items()}, n

    (one, data, _), (_, mixed, _) = upload(task), upload(task, change=turned)
    tensors = [one.messages.read_knowledge(1, 1, d) for d in (data, mixed)]
    assert data != mixed and all(torch.equal(tensors[0][n], x) for n, x in tensors[1].items())


def filled(server, value):
    """A client's edge network with this value everywhere."""
    message = server.network_message()
    sections = {n: torch.full(s, value).numpy().tobytes() for n, s in message.schema.shapes.items()}
    return pack(Message(UP, 1, 2, server.task.sizes[2], sections), message.schema)


HOSTILE = {
    "cut": (lambda server: filled(server, 1.0)[:-9], "checksum"),
    "an echo": (lambda server: server.messages.down(2).write(DOWN, 1, 2, {}), "another model"),
    "too large": (lambda server: filled(server, 3e38), "the loss is not finite"),
    "NaN": (lambda server: filled(server, math.nan), "NaN or infinite"),
}


def test_hostile_networks_are_left_out_of_the_mean(task):
    server, clients = parties(fl.methods.fed_gkt(server_epochs=1), task)
    state = played(server, clients, server.start(), 1)
    expected = server.evaluate(1, state, asking(clients, 1, (0, 1, 3)))
    for lie, reason in HOSTILE.values():
        ask = asking(clients, 1, change=lambda k, data, lie=lie: lie(server) if k == 2 else data)
        assert server.evaluate(1, state, ask) == expected
        assert list(ask.row["unevaluated"]) == [2] and reason in ask.row["unevaluated"][2]
        assert not ask.row["refused"] and not ask.last_seen  # which are about training


def test_synchronous_needs_everybody(task):
    with pytest.raises(ValueError, match="needs every client in every round"):
        fl.run(fl.methods.fed_gkt(), task, 1, participation=0.5)
    server, clients = parties(fl.methods.fed_gkt(server_epochs=1), task)
    state = played(server, clients, server.start(), 1)
    assert {name.split()[0] for name in state.memory} & {"features", "labels", "logits"} == set()
    kept = {name: x.clone() for name, x in (state.weights | state.memory).items()}
    with pytest.raises(fl.WireError, match=r"round 2 nothing usable came from clients \[1, 3\]"):
        played(server, clients, state, 2, (0, 2))
    assert all(torch.equal(x, (state.weights | state.memory)[n]) for n, x in kept.items())


def test_asynchronous_keeps_the_features_of_those_who_are_away(task):
    server, clients = parties(fl.methods.fed_gkt(asynchronous=True, server_epochs=1), task)
    first = played(server, clients, server.start(), 1, (0, 1, 2))
    assert "z_s 3" not in first.memory and len(first.memory["z_s 1"]) == task.sizes[1]
    state = played(server, clients, first, 2, (0, 3))
    assert torch.equal(state.memory["features 1"], first.memory["features 1"])
    assert not torch.equal(state.memory["z_s 1"], first.memory["z_s 1"])
    played(server, clients, state, 3, (1,))  # back after a missed round
    assert torch.equal(clients.memories[1]["z_s"], state.memory["z_s 1"])
    assert played(server, clients, state, 3, ()) is state  # nobody came: nothing to learn from


def test_features_on_disk_change_nothing(task, tmp_path):
    def run(limit, rounds=2, **how):
        method = fl.methods.fed_gkt(memory_limit=limit, asynchronous=True, server_epochs=1)
        return fl.run(method, task, rounds, **how)

    assert run(0) == run(1e9)
    run(0, 1, checkpoint=tmp_path / "c")
    assert run(0, checkpoint=tmp_path / "c") == run(0)
    H = noise(9, 2, 3, 3)
    stored = gkt.OnDisk(H)
    assert torch.equal(stored[torch.tensor([8, 0, 3])], H[[8, 0, 3]])
    assert torch.equal(stored.clone(), H)


def test_a_client_that_diverged_goes_on_from_its_last_network(task):
    server, clients = parties(fl.methods.fed_gkt(asynchronous=True, server_epochs=1), task)
    state = played(server, clients, server.start(), 1, (0, 1))
    kept = {name: w.clone() for name, w in edge(clients, 0).items()}
    clients.side.method = clients.side.method.but(optimizer=SGD(1e30))
    ask = asking(clients, 2, (0,))
    assert server.round(2, state, ask) is state
    assert "diverged" in ask.row["refused"][0]
    assert all(torch.equal(kept[name], w) for name, w in edge(clients, 0).items())
    side = clients.side  # a network that is not finite is not kept, even if what it knows is
    ctx = side.download(3, 1, server.messages.down(1).write(DOWN, 3, 1, {}), {})
    local.load(side.tensors, side.initial)
    side.upload({n: w / 0 for n, w in side.initial.items()}, ctx)
    assert not ctx.memory


def test_soft_labels_that_half_precision_cannot_hold_are_not_taken(task):
    whole, half = (fl.methods.fed_gkt(bits=bits).server_side(task) for bits in (32, 16))
    before = whole.start()
    labels = State(before.weights, {"z_s 0": torch.full((task.sizes[0], 10), 7e4)})
    whole.check(1, labels, before, {})
    with pytest.raises(fl.errors.Diverged, match="half precision"):
        half.check(1, labels, before, {})


def test_features_too_large_to_compute_with_are_not_taken(task, monkeypatch):
    """They are finite, and overflow in the server's network: the round is that of the others."""
    method = fl.methods.fed_gkt(asynchronous=True, server_epochs=1)
    knowledge = gkt.Messages.knowledge

    def huge(messages, net, k, batch_size):
        own = knowledge(messages, net, k, batch_size)
        return own | {"features": own["features"] * 1e37} if k == 2 else own

    monkeypatch.setattr(gkt.Messages, "knowledge", huge)
    server, clients = parties(method, task)
    ask = asking(clients, 1)
    state = server.round(1, server.start(), ask)
    assert list(ask.row["refused"]) == [2] and "as large as what others" in ask.row["refused"][2]
    without = played(server, parties(method, task)[1], server.start(), 1, (0, 1, 3))
    assert all(torch.equal(state.weights[n], w) for n, w in without.weights.items())
    server, clients = parties(fl.methods.fed_gkt(optimizer="sgd", server_lr=1e30), task)
    with pytest.raises(fl.errors.Diverged, match="server_lr"):
        played(server, clients, server.start(), 1)


def test_the_servers_optimiser_goes_on_and_its_rate_is_cut_on_a_plateau(task, monkeypatch):
    server, clients = parties(fl.methods.fed_gkt(server_epochs=1).but(patience=1), task)
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
        grown = float(state.memory["c1 0"].flatten()[0])
        assert grown == pytest.approx(1 - 0.9 ** (t * batches), rel=1e-4)
    assert rates == pytest.approx([0.001, 0.001, 0.001, 0.0001, 0.0001])
