"""FedGKT and split learning: the loss, a round written out with torch's own optimisers, the
messages, both modes."""

import dataclasses
import math
from importlib import import_module

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fedlearn as fl
from fedlearn import local, models
from fedlearn.method import SGD, Adam, Arrival, Batch, Context
from fedlearn.models import state_of
from fedlearn.wire import DOWN, UP, Message, pack, unpack

gkt = import_module("fedlearn.methods.fed_gkt")
features = import_module("fedlearn.methods.features")
B = 16


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "dirichlet:1", train=120, test=60)


def parties(method, task, **settings):
    settings = fl.Settings(**{"batch_size": B} | settings)
    return fl.Server(method, task, settings), fl.Clients(method, task, settings)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- networks


@pytest.mark.parametrize(
    "name, classes, parameters",
    [
        ("resnet8", 10, 10_586),
        ("resnet8", 100, 16_436),
        ("resnet6", 10, 9_978),
        ("resnet4", 10, 5_306),
        ("resnet55", 10, 590_858),
        ("resnet109", 10, 1_147_274),
        ("resnet56", 10, 591_322),
        ("resnet110", 10, 1_147_738),
        ("resnet56", 100, 614_452),
        ("resnet110", 100, 1_170_868),
        ("digits_edge", 10, 2_138),
        ("digits_server", 10, 42_762),
    ],
)
def test_counts(name, classes, parameters):
    assert models.parameter_count(models.NETWORKS[name](classes=classes)) == parameters


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


def test_multiply_adds_are_torchs_own_count():
    counts = {}
    for name in ("resnet8", "resnet56", "resnet110"):
        net = models.NETWORKS[name]().eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            net(torch.zeros(1, 3, 32, 32))
        counts[name] = counter.get_total_flops() // 2
        assert counts[name] == models.multiply_adds(net, (3, 32, 32))
    assert counts["resnet8"] == 9_618_048
    assert counts["resnet56"] / counts["resnet8"] == pytest.approx(9.07, abs=0.005)
    assert counts["resnet110"] / counts["resnet8"] == pytest.approx(17.41, abs=0.005)


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


def test_at_a_high_temperature_distillation_compares_logits():
    p, q = noise(6, 5), noise(6, 5, seed=1)
    p, q = p - p.mean(1, keepdim=True), q - q.mean(1, keepdim=True)
    assert float(gkt.distillation(p.double(), q.double(), 1e3)) == pytest.approx(
        float((p - q).square().mean(1).mean() / 2), rel=1e-2
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


def test_two_rounds_written_out(task):
    method = fl.methods.fed_gkt(lr=0.01, server_epochs=2, optimizer="sgd")
    server, clients = parties(method, task)
    edges = [fl.initial_network(method, task) for _ in range(4)]
    f_s = models.digits_server()
    f_s.load_state_dict(server.state, strict=False)
    optimizer, z_s = torch.optim.SGD(f_s.parameters(), lr=0.01, momentum=0.9), {}

    def kl(teacher, student):
        return 9 * F.kl_div(
            F.log_softmax(student / 3, 1), F.softmax(teacher / 3, 1), reduction="batchmean"
        )

    for t in (1, 2):
        arrivals, H, z, y = [], {}, {}, {}
        for k, net in enumerate(edges):
            answer = clients.answer(t, k, server.send(t, k))
            arrivals.append(server.receive(t, k, answer))
            own = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
            order = torch.randperm(
                task.sizes[k], generator=fl.rng.generator(task.seed, "shuffle", t, k)
            )
            x, y[k] = task.epoch(k, torch.arange(task.sizes[k]), None)
            net.train()
            for rows in order.split(B):
                own.zero_grad()
                out = net(x[rows])
                (
                    F.cross_entropy(out, y[k][rows]) + (kl(z_s[k][rows], out) if t > 1 else 0)
                ).backward()
                own.step()
            with torch.no_grad():
                net.eval()
                H[k], z[k] = net.extractor(x), net(x)
            torch.testing.assert_close(arrivals[-1].update["features"], H[k], atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(arrivals[-1].update["logits"], z[k], atol=1e-3, rtol=1e-3)
        server.aggregate(t, arrivals)
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
            torch.testing.assert_close(server.memory[f"z_s {k}"], z_s[k], atol=2e-3, rtol=2e-3)
        # from here on both go on from the package's numbers: last bits grow
        f_s.load_state_dict(server.state, strict=False)
        z_s = {k: server.memory[f"z_s {k}"].clone() for k in range(4)}
        for k, net in enumerate(edges):
            net.load_state_dict(
                {
                    n.removeprefix("edge/"): w
                    for n, w in clients.memories[k].items()
                    if n.startswith("edge/")
                },
                strict=False,
            )
    x = task.inputs(task.test[0])
    with torch.no_grad():
        right = [
            float((f_s.eval()(net.eval().extractor(x)).argmax(1) == task.test[1]).float().mean())
            for net in edges
        ]
    assert server.evaluate(2, clients.kept)["accuracy"] == pytest.approx(sum(right) / 4)


@pytest.mark.parametrize(
    "decoupled, theirs_is", [(False, torch.optim.Adam), (True, torch.optim.AdamW)]
)
def test_adam_with_weight_decay_is_torchs(decoupled, theirs_is):
    ours, theirs = [noise(3, 2)], [noise(3, 2).requires_grad_()]
    part, optimizer = (
        Adam(0.01, weight_decay=0.1, decoupled=decoupled),
        theirs_is(theirs, lr=0.01, weight_decay=0.1),
    )
    state = part.init(ours, None)
    for i in range(5):
        theirs[0].grad = noise(3, 2, seed=i)
        optimizer.step()
        part.step(ours, [noise(3, 2, seed=i)], state)
    torch.testing.assert_close(ours[0], theirs[0].detach())


# ---- messages


def upload(task, method=None, change=None, client=1):
    """The upload of a client in round 1, with its sections changed; and the server that is to read
    it."""
    server, clients = parties(method or fl.methods.fed_gkt(), task)
    answer = clients.answer(1, client, server.send(1, client))
    message = unpack(answer, server.up, kind=UP, round=1, client=client)
    sections = {name: bytes(data) for name, data in message.sections.items()}
    samples = message.samples
    if change:
        sections, samples = change(sections, samples)
    return server, pack(Message(UP, 1, client, samples, sections), server.up), sections


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
    one, other = one.receive(1, 1, data), other.receive(1, 1, mixed)
    assert all(torch.equal(one.update[name], other.update[name]) for name in one.update)


def with_index(*values):
    def change(sections, n):
        index = np.arange(n, dtype="<u4")
        index[: len(values)] = values
        return sections | {"index": index.tobytes()}, n

    return change


BAD = {
    "sample twice": (with_index(1), "each of its .* images once"),
    "foreign sample": (with_index(100_000), "each of its .* images once"),
    "missing sample": (lambda s, n: (s | {"index": s["index"][:-4]}, n), "entries of index"),
    "more samples than it has": (lambda s, n: (s, n + 1), "images, and sent"),
    "one sample left out": (
        lambda s, n: ({name: d[: len(d) // n * (n - 1)] for name, d in s.items()}, n - 1),
        "images, and sent",
    ),
    "logits of samples without features": (
        lambda s, n: (s | {"logits": s["logits"] + bytes(40)}, n),
        "bytes came for a tensor",
    ),
    "maps of another shape": (
        lambda s, n: (s | {"features": s["features"] + bytes(4)}, n),
        "bytes came for a tensor",
    ),
    "more than its images can be": (
        lambda s, n: (s | {"features": s["features"] * 4}, n),
        "longer than the .* that the schema allows",
    ),
    "no features": (
        lambda s, n: ({name: d for name, d in s.items() if name != "features"}, n),
        "did not send index",
    ),
    "nothing": (lambda s, n: ({}, n), "did not send index"),
    "half a label": (lambda s, n: (s | {"labels": s["labels"] + b"\0"}, n), "entries of labels"),
    "a label too high": (
        lambda s, n: (s | {"labels": b"\x0a\0" + s["labels"][2:]}, n),
        "the label 10; there are 10",
    ),
    "NaN": (lambda s, n: (s | {"features": b"\xff" * 4 + s["features"][4:]}, n), "NaN or infinite"),
}


@pytest.mark.parametrize("change, reason", BAD.values(), ids=BAD)
def test_bad_uploads_are_refused_and_nothing_changes(change, reason, task):
    server, data, _ = upload(task, change=change)
    before = {name: t.clone() for name, t in server.state.items()}
    with pytest.raises(fl.WireError, match=reason):
        server.receive(1, 1, data)
    assert not server.memory and all(
        torch.equal(t, server.state[name]) for name, t in before.items()
    )


def test_logits_for_another_number_of_images_are_refused(task):
    server, clients = parties(fl.methods.fed_gkt(), task)
    data = pack(Message(DOWN, 1, 0, 0, {"z_s": bytes(40 * (task.sizes[0] + 1))}), server.down)
    with pytest.raises(fl.WireError, match="bytes came for a tensor"):
        clients.answer(1, 0, data)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"T": 0}, "temperature T > 0"),
        ({"alpha": -1}, "alpha >= 0"),
        ({"alpha": math.nan}, "alpha >= 0"),
        ({"server_epochs": 0}, "server_epochs"),
        ({"optimizer": "adamw"}, "There is no optimizer 'adamw'"),
        ({"edge": "resnet9"}, "There is no network 'resnet9'"),
        ({"server": "digits_serve"}, "Did you mean 'digits_server'"),
        ({"bits": 8}, "16 or 32 bits"),
        ({"edge": lambda shape, classes: nn.Flatten()}, "unlike this Flatten"),
        ({"server_lr": 0}, "lr > 0"),
        (
            {"server": lambda shape, classes: models.digits_server(shape, 9)},
            r"gives \[9\] logits an image, the edge network \[10\]",
        ),
        ({"memory_limit": "1e9"}, "number of bytes"),
        ({"memory_limit": -1}, "number of bytes"),
        ({"memory_limit": math.nan}, "number of bytes"),
    ],
)
def test_bad_options_are_one_clear_sentence(options, sentence, task, monkeypatch):
    monkeypatch.setattr(local, "train", lambda *a: pytest.fail("training began"))
    with pytest.raises(ValueError, match=sentence):
        fl.run(fl.methods.fed_gkt(**options), task, 1)


# ---- both modes


def answers(server, clients, t, who):
    return [server.receive(t, k, clients.answer(t, k, server.send(t, k))) for k in who]


def test_synchronous_needs_everybody(task):
    with pytest.raises(ValueError, match="needs every client in every round"):
        fl.run(fl.methods.fed_gkt(), task, 1, participation=0.5)
    server, clients = parties(fl.methods.fed_gkt(), task)
    server.aggregate(1, answers(server, clients, 1, range(4)))
    before, memory = server.state, dict(server.memory)
    for who, gone in (((0, 2), r"\[1, 3\]"), ((), r"\[0, 1, 2, 3\]")):
        with pytest.raises(fl.WireError, match=f"round 2 nothing usable came from clients {gone}"):
            server.aggregate(2, answers(server, clients, 2, who))
    assert server.state is before and server.memory == memory
    server.aggregate(2, answers(server, clients, 2, range(4)))  # all of them try again


def test_asynchronous_keeps_the_features_of_those_who_are_away(task):
    method = fl.methods.fed_gkt(asynchronous=True, server_epochs=1)
    server, clients = parties(method, task)
    server.aggregate(1, answers(server, clients, 1, (0, 1, 2)))
    kept = server.memory["features 1"].clone()
    assert "z_s 3" not in server.memory and len(server.memory["z_s 1"]) == task.sizes[1]
    old = server.memory["z_s 1"].clone()
    server.aggregate(2, answers(server, clients, 2, (0, 3)))
    assert torch.equal(server.memory["features 1"], kept) and not torch.equal(
        server.memory["z_s 1"], old
    )
    clients.answer(3, 1, server.send(3, 1))  # back after a missed round: it hears the newest logits
    assert torch.equal(clients.memories[1]["z_s"], server.memory["z_s 1"])
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
        alone.append(
            method.objective.begin(net, Context(task, 2, k, memory=memory))(
                net, Batch(images, labels, index)
            )
        )
    logits = torch.stack([net(images) for images in x])
    loss = method.objective.begin(net, Context(task, 2, who, memory=memories))
    torch.testing.assert_close(
        loss(lambda _: logits, Batch(None, torch.stack(y), rows)), torch.stack(alone)
    )


def test_features_on_disk_change_nothing(task, tmp_path):
    def history(limit, **how):
        return fl.run(fl.methods.fed_gkt(memory_limit=limit, asynchronous=True), task, 3, **how)

    assert history(0) == history(1e9)
    method = fl.methods.fed_gkt(memory_limit=0, asynchronous=True)
    fl.run(method, task, 2, checkpoint=tmp_path / "c")
    seen, stored = [], gkt.stored
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            gkt, "stored", lambda H, ctx, limit: seen.append(stored(H, ctx, limit)) or seen[-1]
        )
        assert history(0, checkpoint=tmp_path / "c") == history(0)
    assert seen and all(
        isinstance(H, features.OnDisk) for H in seen
    )  # also what the checkpoint had brought into memory


def test_rows_on_disk_are_the_tensors(task):
    H = noise(9, 2, 3, 3)
    stored = features.OnDisk(H)
    assert (
        len(stored) == 9
        and torch.equal(stored[torch.tensor([8, 0, 3])], H[[8, 0, 3]])
        and torch.equal(stored.clone(), H)
    )


def test_a_client_that_diverged_goes_on_from_its_last_network(task):
    server, clients = parties(fl.methods.fed_gkt(asynchronous=True), task)
    server.aggregate(1, answers(server, clients, 1, (0, 1)))
    kept = clients.memories[0]["edge/classifier.3.weight"].clone()
    clients.method = clients.method.but(optimizer=SGD(1e30))
    answer = clients.answer(2, 0, server.send(2, 0))
    with pytest.raises(fl.WireError, match="whose training diverged sends nothing"):
        server.receive(2, 0, answer)
    assert torch.equal(clients.memories[0]["edge/classifier.3.weight"], kept)


def test_a_server_that_diverges_says_so(task):
    with pytest.raises(
        ValueError, match="server's network diverged in round 1: try a smaller server_lr"
    ):
        fl.run(fl.methods.fed_gkt(optimizer="sgd", lr=0.01, server_lr=1e30), task, 1)


def test_functions_are_named_in_histories(task):
    parts = fl.methods.fed_gkt(edge=models.digits_edge, server=models.digits_server).parts()
    assert parts["model"] == "Edge('digits_edge')" and "Named('digits_server')" in parts["server"]
    with pytest.raises(ValueError, match="refit needs a state of the network that clients"):
        fl.refit(fl.methods.fed_gkt(), task, fl.run(fl.methods.fed_gkt(), task, 1).state)


def test_the_rate_is_cut_on_a_plateau(task, monkeypatch):
    part = dataclasses.replace(fl.methods.fed_gkt().server, patience=1, epochs=1)
    server, clients = parties(fl.methods.fed_gkt().but(server=part), task)
    rates, step = [], local.local_step

    def spy(net, method, *rest):
        rates.append(method.optimizer.lr)
        return step(net, method, *rest)

    for t in range(1, 6):
        arrivals = answers(server, clients, t, range(4))
        with monkeypatch.context() as patch:
            patch.setattr(local, "local_step", spy)
            if t == 2:  # as if everything had been right
                server.memory["plateau"][0] = 1.0
            server.aggregate(t, arrivals)
    assert rates == pytest.approx([0.001, 0.001, 0.001, 0.0001, 0.0001])


def test_servers_optimiser_goes_on_where_it_stopped(task):
    server, clients = parties(fl.methods.fed_gkt(server_epochs=1), task)
    batches = sum(math.ceil(n / B) for n in task.sizes)
    for t in (1, 2):
        server.aggregate(t, answers(server, clients, t, range(4)))
        assert float(server.memory["c1 0"].flatten()[0]) == pytest.approx(
            1 - 0.9 ** (t * batches), rel=1e-4
        )


def test_edge_networks_stay_with_their_clients(task):
    def frozen(shape, classes):
        net = models.digits_edge(shape, classes)
        net.extractor[0].weight.requires_grad_(False)
        return net

    method = fl.methods.fed_gkt(edge=frozen)
    server, clients = parties(method, task)
    for t in (1, 2):
        server.aggregate(t, answers(server, clients, t, range(4)))
    own = [clients.memories[k]["edge/classifier.3.weight"] for k in range(4)]
    assert all(not torch.equal(own[0], w) for w in own[1:])
    assert all(
        torch.equal(
            clients.memories[k]["edge/extractor.0.weight"], server.initial["extractor.0.weight"]
        )
        for k in range(4)
    )
    assert server.state.keys() == state_of(models.digits_server()).keys()


def test_permuted_pixels_are_each_clients_own():
    task = fl.tasks.classification("digits", 3, "permuted", train=90, test=40)
    server, clients = parties(fl.methods.fed_gkt(), task)
    server.aggregate(1, answers(server, clients, 1, range(3)))
    f_s, net, right = models.digits_server().eval(), models.digits_edge().eval(), []
    f_s.load_state_dict(server.state, strict=False)
    for k in range(3):
        net.load_state_dict(
            {n.removeprefix("edge/"): w for n, w in clients.memories[k].items()}, strict=False
        )
        right.append(
            float(
                (f_s(net.extractor(task.inputs(task.test[0], k))).argmax(1) == task.test[1])
                .float()
                .mean()
            )
        )
    assert server.evaluate(1, clients.kept)["accuracy"] == pytest.approx(sum(right) / 3)


def test_aggregate_of_arrivals_made_by_hand(task):
    server, clients = parties(fl.methods.fed_gkt(alpha=0, kd_to_client=False), task)
    arrivals = answers(server, clients, 1, range(4))
    again = [Arrival(a.client, a.samples, a.update, 0) for a in reversed(arrivals)]
    server.aggregate(1, again)
    other, _ = parties(fl.methods.fed_gkt(alpha=0, kd_to_client=False), task)
    other.aggregate(1, arrivals)
    assert all(torch.equal(t, other.state[name]) for name, t in server.state.items())
    assert not any(name.startswith("z_s") for name in server.memory)


# ---- split learning


def test_split_learning_with_one_client_is_training_of_the_whole():
    task = fl.tasks.classification("digits", 1, train=100, test=50)
    history = fl.methods.split_learning(task, 2, batch_size=B)
    f_e = local.initial_network(fl.methods.fed_gkt(), task).extractor
    f_s = local.initial_network(fl.Method(model=gkt.Named("digits_server", (16, 4, 4))), task)
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


def test_split_learning_counts_every_message(task):
    history = fl.methods.split_learning(task, 2, epochs=2, batch_size=B)
    batches, n = 2 * sum(math.ceil(k / B) for k in task.sizes), 2 * sum(task.sizes)
    weights, frame = (
        4 * (144 + 32 + 32),
        26 + 1 + 4,
    )  # of the extractor with batch statistics; of a message without sections
    handover = 4 * (frame + 4 * 5 + weights)
    assert history.bytes_up.tolist() == [batches * (frame + 8) + n * 4 * (256 + 1) + handover] * 2
    assert history.bytes_down.tolist() == [batches * (frame + 4) + n * 4 * 256 + handover] * 2
    assert [row["bytes_handover"] for row in history.rows] == [2 * handover] * 2
    assert history == fl.methods.split_learning(task, 2, epochs=2, batch_size=B)


def test_split_learning_refuses_what_cannot_be(task):
    with pytest.raises(ValueError, match="rounds must be"):
        fl.methods.split_learning(task, 0)
    with pytest.raises(ValueError, match="unlike this Flatten"):
        fl.methods.split_learning(task, 1, edge=lambda shape, classes: nn.Flatten())
    with pytest.raises(ValueError, match="Did you mean 'resnet8'"):
        fl.methods.split_learning(task, 1, edge="resnet_8")
