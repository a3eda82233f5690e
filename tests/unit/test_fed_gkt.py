"""FedGKT: the loss, a round written out with torch's own optimisers, the messages, both modes, and
the evaluation, which asks for edge networks."""

import math
import re
from contextlib import suppress
from importlib import import_module

import numpy as np
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


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "dirichlet:1", train=120, test=60)


def parties(method, task, **settings):
    settings = fl.Settings(**{"batch_size": B} | settings)
    return method.server_side(task, settings), fl.clients(method, task, settings)


class Only:
    """An engine that reaches these clients only; the others are silent. ``change`` has the last
    word about what a client answers."""

    def __init__(self, clients, who, change):
        self.clients, self.who, self.memories = clients, who, clients.memories
        self.change = change or (lambda k, data: data)

    def exchange(self, t, what, clients, write):
        for k in clients:
            data = write(k)
            if k in self.who:
                yield k, self.change(k, self.clients.answer(t, k, data, what))
            else:
                yield k, fl.WireError("silent")


def asking(clients, t, who=range(4), change=None):
    row = {"refused": {}, "unevaluated": {}}
    return Exchange(t, Only(clients, who, change), row, {})


def played(server, clients, state, t, who=range(4), change=None):
    """Round ``t`` with some of the clients -> the next state."""
    return server.round(t, state, asking(clients, t, who, change))


def message(server, state, t, k):
    """What client k hears in round t."""
    heard = {}

    class Ear:
        def exchange(self, t, what, clients, write):
            heard.update({k: write(k) for k in clients})
            return iter([(k, fl.WireError("only listening")) for k in heard])

    with suppress(fl.WireError):  # of a synchronous server, to which nobody has answered
        server.round(t, state, Exchange(t, Ear(), {"refused": {}}, {}))
    return heard[k]


def edge(clients, k):
    """The edge network that client k keeps."""
    kept = clients.memories[k].items()
    return {n.removeprefix("own/"): w for n, w in kept if n.startswith("own/")}


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- networks


@pytest.mark.parametrize(
    "edge, server, whole",
    [
        ("resnet8", "resnet55", "resnet56"),
        ("resnet8", "resnet109", "resnet110"),
        ("digits_edge", "digits_server", "digits_resnet"),
    ],
)
def test_extractor_and_server_network_make_the_large_network(edge, server, whole):
    f_e, f_s, f = (
        models.NETWORKS[edge]().extractor,
        models.NETWORKS[server](),
        models.NETWORKS[whole](),
    )
    weights = [*state_of(f_e).values(), *state_of(f_s).values()]
    local.load(dict(enumerate(state_of(f).values())), dict(enumerate(weights)))
    shape = (1, 8, 8) if edge == "digits_edge" else (3, 32, 32)
    x = noise(2, *shape)
    torch.testing.assert_close(f.eval()(x), f_s.eval()(f_e.eval()(x)))
    shortcuts = sum(isinstance(m, nn.Conv2d) for name, m in f.named_modules() if "shortcut" in name)
    layers = sum(isinstance(m, (nn.Conv2d, nn.Linear)) for m in f.modules()) - shortcuts
    assert layers == {"digits_resnet": 10}.get(whole) or whole == f"resnet{layers}"


# ---- the loss


@pytest.mark.parametrize("T", [1.0, 3.0, 10.0])
def test_distillation_is_torchs_kl_div(T):
    p, q = noise(6, 5), noise(6, 5, seed=1)
    expected = T**2 * F.kl_div(F.log_softmax(q / T, 1), F.softmax(p / T, 1), reduction="batchmean")
    torch.testing.assert_close(gkt.distillation(p, q, T), expected)
    assert float(gkt.distillation(p, p + 7.0, T)) == pytest.approx(
        0, abs=1e-6
    )  # a constant changes no probability
    torch.testing.assert_close(
        gkt.distillation(p.expand(2, 6, 5), torch.stack([q, p]), T),
        torch.stack([expected, expected * 0]),
        atol=1e-6,
        rtol=1e-5,
    )


def test_teacher_is_looked_up_by_sample(task):
    method, z_s = fl.methods.fed_gkt(), noise(task.sizes[0], 10)
    net = fl.initial_network(method, task)
    ctx = Context(task, 2, 0, memory={"z_s": z_s})
    rows = torch.tensor([5, 0, 3])
    x, y = task.epoch(0, rows, None)
    expected = F.cross_entropy(net(x), y) + gkt.distillation(z_s[rows], net(x), 3.0)
    torch.testing.assert_close(method.objective.begin(net, ctx)(net, Batch(x, y, rows)), expected)
    none = method.objective.begin(net, Context(task, 1, 0, memory={}))(net, Batch(x, y, rows))
    torch.testing.assert_close(none, F.cross_entropy(net(x), y))


# ---- a round, written out


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
            z_s = {k: f_s(H[k]) for k in range(4)}
        for k in range(4):
            torch.testing.assert_close(state.memory[f"z_s {k}"], z_s[k], atol=2e-3, rtol=2e-3)
        # from here on both go on from the package's numbers: last bits grow
        f_s.load_state_dict(state.weights, strict=False)
        z_s = {k: state.memory[f"z_s {k}"].clone() for k in range(4)}
        for k, net in enumerate(edges):
            net.load_state_dict(edge(clients, k), strict=False)
    x = task.inputs(task.test[0])
    with torch.no_grad():
        right = [
            float((f_s.eval()(net.eval().extractor(x)).argmax(1) == task.test[1]).float().mean())
            for net in edges
        ]
    found = server.evaluate(2, state, asking(clients, 2))
    assert found["accuracy"] == pytest.approx(sum(right) / 4)


# ---- messages


def upload(task, method=None, change=None, client=1):
    """The upload of a client in round 1, with its sections changed; and the server that is to read
    it."""
    server, clients = parties(method or fl.methods.fed_gkt(), task)
    answer = clients.answer(1, client, message(server, server.start(), 1, client))
    schema = server.messages.up(client).schema
    taken = unpack(answer, schema, kind=UP, round=1, client=client)
    sections = {name: bytes(data) for name, data in taken.sections.items()}
    samples = taken.samples
    if change:
        sections, samples = change(sections, samples)
    return server, pack(Message(UP, 1, client, samples, sections), schema), sections


def test_bytes_on_the_wire(task):
    n, floats = task.sizes[1], 16 * 4 * 4
    sizes = {32: (4 * n * floats, 4 * n * 10), 16: (2 * n * floats, 2 * n * 10)}
    for bits, (H, z) in sizes.items():
        _, data, sections = upload(task, fl.methods.fed_gkt(bits=bits))
        assert {name: len(s) for name, s in sections.items()} == {
            "index": 4 * n,
            "labels": 2 * n,
            "features": H,
            "logits": z,
        }
        assert len(data) == 26 + 1 + 4 * 4 + sum(map(len, sections.values())) + 4
    _, data, sections = upload(task, fl.methods.fed_gkt(kd_to_server=False))
    assert "logits" not in sections
    for method, rows in ((fl.methods.fed_gkt(), 10), (fl.methods.fed_gkt(kd_to_client=False), 0)):
        history = fl.run(method, task, 2)
        empty = 26 + 1 + 4
        assert history.bytes_down[0] == 4 * empty
        assert history.bytes_down[1] == 4 * (empty + 4 * bool(rows)) + 4 * rows * sum(task.sizes)


def test_the_order_in_which_samples_come_does_not_matter(task):
    def turned(sections, n):
        order = np.random.default_rng(0).permutation(n)
        width = {name: len(data) // n for name, data in sections.items()}
        return {
            name: np.frombuffer(d, np.uint8).reshape(n, width[name])[order].tobytes()
            for name, d in sections.items()
        }, n

    (one, data, _), (other, mixed, _) = upload(task), upload(task, change=turned)
    assert data != mixed
    one, other = (
        server.messages.read_knowledge(1, 1, d) for server, d in ((one, data), (other, mixed))
    )
    assert one.keys() == other.keys() == {"features", "labels", "logits"}
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_client_answers_only_what_it_is_asked_for(task):
    server, clients = parties(fl.methods.fed_gkt(), task)
    with pytest.raises(fl.WireError, match="cannot answer 'hand over'"):
        clients.answer(1, 0, message(server, server.start(), 1, 0), "hand over")
    with pytest.raises(fl.WireError, match="another model, method or coder"):
        clients.answer(1, 0, message(server, server.start(), 1, 1), "evaluate")


# ---- both modes


def test_synchronous_needs_everybody(task):
    with pytest.raises(ValueError, match="needs every client in every round"):
        fl.run(fl.methods.fed_gkt(), task, 1, participation=0.5)
    server, clients = parties(fl.methods.fed_gkt(), task)
    state = played(server, clients, server.start(), 1)
    weights = {name: w.clone() for name, w in state.weights.items()}
    memory = {name: x.clone() for name, x in state.memory.items()}
    for who, gone in (((0, 2), r"\[1, 3\]"), ((), r"\[0, 1, 2, 3\]")):
        with pytest.raises(fl.WireError, match=f"round 2 nothing usable came from clients {gone}"):
            played(server, clients, state, 2, who)
    for now, before in ((state.weights, weights), (state.memory, memory)):
        assert now.keys() == before.keys() and all(torch.equal(now[n], before[n]) for n in before)
    played(server, clients, state, 2)  # all of them try again


def test_asynchronous_keeps_the_features_of_those_who_are_away(task):
    method = fl.methods.fed_gkt(asynchronous=True, server_epochs=1)
    server, clients = parties(method, task)
    state = played(server, clients, server.start(), 1, (0, 1, 2))
    kept = state.memory["features 1"].clone()
    assert "z_s 3" not in state.memory and len(state.memory["z_s 1"]) == task.sizes[1]
    old = state.memory["z_s 1"].clone()
    state = played(server, clients, state, 2, (0, 3))
    assert torch.equal(state.memory["features 1"], kept)
    assert not torch.equal(state.memory["z_s 1"], old)
    # back after a missed round: it hears the newest logits
    clients.answer(3, 1, message(server, state, 3, 1))
    assert torch.equal(clients.memories[1]["z_s"], state.memory["z_s 1"])
    assert played(server, clients, state, 3, ()) is state  # nobody came: nothing to learn from
    history = fl.run(method, task, 4, participation=0.5, engine="stacked")
    other = fl.run(method, task, 4, participation=0.5)
    assert [row["clients"] for row in history.rows] == [row["clients"] for row in other.rows]
    assert not any(row["refused"] for row in history.rows)


def test_stacked_training_when_only_some_have_heard_of_the_server(task):
    method, who = fl.methods.fed_gkt(), [0, 1, 2]
    net = fl.initial_network(method, task)
    memories = [{"z_s": noise(task.sizes[0], 10)}, {}, {"z_s": noise(task.sizes[2], 10, seed=2)}]
    rows = torch.stack([torch.tensor([2, 0]), torch.tensor([1, 4]), torch.tensor([3, 1])])
    x, y, alone = [], [], []
    for k, memory, index in zip(who, memories, rows, strict=True):
        images, labels = task.epoch(k, index, None)
        x.append(images), y.append(labels)
        loss = method.objective.begin(net, Context(task, 2, k, memory=memory))
        alone.append(loss(net, Batch(images, labels, index)))
    logits = torch.stack([net(images) for images in x])
    loss = method.objective.begin(net, Context(task, 2, who, memory=memories))
    torch.testing.assert_close(
        loss(lambda _: logits, Batch(None, torch.stack(y), rows)), torch.stack(alone)
    )


def test_a_client_that_diverged_goes_on_from_its_last_network(task):
    server, clients = parties(fl.methods.fed_gkt(asynchronous=True), task)
    state = played(server, clients, server.start(), 1, (0, 1))
    kept = {name: w.clone() for name, w in edge(clients, 0).items()}
    clients.side.method = clients.side.method.but(optimizer=SGD(1e30))
    ask = asking(clients, 2, (0,))
    assert server.round(2, state, ask) is state
    assert "diverged" in ask.row["refused"][0]
    assert all(torch.equal(kept[name], w) for name, w in edge(clients, 0).items())


def test_soft_labels_that_half_precision_cannot_hold_are_not_taken(task):
    whole, half = (fl.methods.fed_gkt(bits=bits).server_side(task) for bits in (32, 16))
    before = whole.start()
    labels = State(before.weights, {"z_s 0": torch.full((task.sizes[0], 10), 7e4)})
    whole.check(1, labels, before, {})
    with pytest.raises(fl.errors.Diverged, match="half precision"):
        half.check(1, labels, before, {})
    own = State(before.weights, {"exp_avg_sq": torch.full((3,), 7e4)})  # is never sent
    half.check(1, own, before, {})


def test_the_rate_is_cut_on_a_plateau(task, monkeypatch):
    method = fl.methods.fed_gkt(server_epochs=1).but(patience=1)
    server, clients = parties(method, task)
    rates, init, state = [], fl.Adam.init, server.start()

    def spy(part, params, ctx):
        if ctx.net is server.f_s:
            rates.append(part.lr)
        return init(part, params, ctx)

    monkeypatch.setattr(fl.Adam, "init", spy)
    for t in range(1, 6):
        if t == 2:  # as if everything had been right
            state.memory["plateau"][0] = 1.0
        state = played(server, clients, state, t)
    assert rates == pytest.approx([0.001, 0.001, 0.001, 0.0001, 0.0001])


def test_servers_optimiser_goes_on_where_it_stopped(task):
    server, clients = parties(fl.methods.fed_gkt(server_epochs=1), task)
    batches, state = sum(math.ceil(n / B) for n in task.sizes), server.start()
    for t in (1, 2):
        state = played(server, clients, state, t)
        grown = float(state.memory["c1 0"].flatten()[0])
        assert grown == pytest.approx(1 - 0.9 ** (t * batches), rel=1e-4)


# ---- evaluation asks for edge networks


@pytest.fixture
def trained(task):
    """A server, clients and state after a round; and what it is worth when all show their
    network."""
    server, clients = parties(fl.methods.fed_gkt(server_epochs=1), task)
    state = played(server, clients, server.start(), 1)
    ask = asking(clients, 1)
    whole = server.evaluate(1, state, ask)
    assert not ask.row["unevaluated"]
    return server, clients, state, whole


def worth(server, clients, state, who):
    """Mean accuracy and loss of f_s on the extractors of these clients, without a message."""
    f_s, net, results = models.digits_server(), models.digits_edge(), []
    f_s.load_state_dict(state.weights, strict=False)
    for k in who:
        net.load_state_dict(edge(clients, k), strict=False)
        results.append(server.task.evaluate(nn.Sequential(net.extractor, f_s)))
    return {name: sum(r[name] for r in results) / len(results) for name in results[0]}


def test_evaluation_is_the_mean_over_those_who_show_their_network(trained):
    server, clients, state, whole = trained
    assert whole == pytest.approx(worth(server, clients, state, range(4)))
    for who in ((0, 2), (3,)):
        ask = asking(clients, 1, who)
        found = server.evaluate(1, state, ask)
        assert found == pytest.approx(worth(server, clients, state, who))
        assert ask.row["unevaluated"] == {k: "silent" for k in range(4) if k not in who}
        assert not ask.row["refused"] and not ask.last_seen  # which are about training
    assert server.evaluate(1, state, asking(clients, 1, ())) == {"accuracy": None, "loss": None}


ASKED = 26 + 1 + 4  # bytes of the question


def edge_bytes(answer=True):
    """Of a message with an edge network, or with none."""
    shapes = [t.shape for t in state_of(models.digits_edge()).values()]
    n, floats = len(shapes), sum(map(math.prod, shapes))
    return 26 + (n + 7) // 8 + (4 * n + 4 * floats) * answer + 4


def test_bytes_of_evaluation_have_columns_of_their_own(task):
    history = fl.run(fl.methods.fed_gkt(server_epochs=1), task, 3, evaluate_every=2)
    assert history.bytes_evaluation_up.tolist() == [0, 4 * edge_bytes(), 4 * edge_bytes()]
    assert history.bytes_evaluation_down.tolist() == [0] + 2 * [4 * ASKED]
    assert [row["accuracy"] is None for row in history.rows] == [True, False, False]
    often = fl.run(fl.methods.fed_gkt(server_epochs=1), task, 3)
    for column in ("bytes_up", "bytes_down"):  # evaluation is not in them
        assert getattr(often, column).tolist() == getattr(history, column).tolist()
    assert often.final == history.final | {"seconds": often.final["seconds"]}
    average = fl.run(fl.methods.fedavg(), task, 1)
    assert average.bytes_evaluation_up[0] == average.bytes_evaluation_down[0] == 0


NAME = "extractor.0.weight"


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


HOSTILE = {
    "altered": (lambda server, data: data[:-9] + b"?" + data[-8:], "checksum"),
    "an echo": (
        lambda server, data: server.messages.down(2).write(DOWN, 1, 2, {}),
        "another model",
    ),
    "too large": (lambda server, data: filled(server, data, 3e38), "the loss is not finite"),
    "NaN": (lambda server, data: filled(server, data, math.nan), "NaN or infinite"),
}


def filled(server, data, value):
    """A client's edge network with this value everywhere."""
    message = server.network_message()
    shapes, n = message.schema.shapes, server.task.sizes[2]
    tensors = {name: torch.full(shape, value) for name, shape in shapes.items()}
    if math.isfinite(value):
        return message.write(UP, 1, 2, tensors, n)
    sections = {name: t.numpy().tobytes() for name, t in tensors.items()}
    return pack(Message(UP, 1, 2, n, sections), message.schema)


@pytest.mark.parametrize("lie, reason", HOSTILE.values(), ids=HOSTILE)
def test_hostile_networks_are_left_out_of_the_mean(lie, reason, trained):
    server, clients, state, _ = trained
    ask = asking(clients, 1, change=lambda k, data: lie(server, data) if k == 2 else data)
    found = server.evaluate(1, state, ask)
    assert list(ask.row["unevaluated"]) == [2] and reason in ask.row["unevaluated"][2]
    assert found == pytest.approx(worth(server, clients, state, (0, 1, 3)))


def test_features_on_disk_change_nothing(task, tmp_path):
    def history(limit, **how):
        return fl.run(fl.methods.fed_gkt(memory_limit=limit, asynchronous=True), task, 3, **how)

    assert history(0) == history(1e9)
    fl.run(
        fl.methods.fed_gkt(memory_limit=0, asynchronous=True), task, 2, checkpoint=tmp_path / "c"
    )
    assert history(0, checkpoint=tmp_path / "c") == history(0)
    H = noise(9, 2, 3, 3)
    stored = gkt.OnDisk(H)
    assert torch.equal(stored[torch.tensor([8, 0, 3])], H[[8, 0, 3]])
    assert torch.equal(stored.clone(), H)


def test_features_too_large_to_compute_with_are_not_taken(task, monkeypatch):
    """They are finite, and overflow in the server's network: the round is that of the others."""
    method, knowledge = fl.methods.fed_gkt(asynchronous=True), gkt.Messages.knowledge

    def huge(messages, net, k, batch_size):
        own = knowledge(messages, net, k, batch_size)
        return own | {"features": own["features"] * 1e37} if k == 2 else own

    monkeypatch.setattr(gkt.Messages, "knowledge", huge)
    server, clients = parties(method, task)
    ask = asking(clients, 1)
    state = server.round(1, server.start(), ask)
    assert list(ask.row["refused"]) == [2] and "as large as what others" in ask.row["refused"][2]
    other, others = parties(method, task)
    without = played(other, others, other.start(), 1, (0, 1, 3))
    assert all(torch.equal(state.weights[n], w) for n, w in without.weights.items())
    server, clients = parties(fl.methods.fed_gkt(optimizer="sgd", server_lr=1e30), task)
    with pytest.raises(fl.errors.Diverged, match="server_lr"):
        played(server, clients, server.start(), 1)
