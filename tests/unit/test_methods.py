"""The compressing baselines: each part against its paper's update rule, written out once more."""

import dataclasses
import math
from importlib import import_module
from types import MappingProxyType

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn import local
from fedlearn.models import state_of
from fedlearn.parts import Arrival, Context, Feedback, Lossy, Update
from fedlearn.round import one_round
from fedlearn.wire import DOWN, UP, Message, TopK, pack

METHODS = sorted(fl.methods.METHODS)
STACKING = [name for name in METHODS if fl.methods.get(name).sides[1].stacks]
AVERAGING = [name for name in METHODS if isinstance(fl.methods.get(name), fl.Averaging)]
# what a method needs to do without some of the clients
ABSENT = {"fed_gkt": {"asynchronous": True}}


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, train=120, test=60)


def uploads(method, task, rounds, each=None):
    """Encode the same update in every round -> it, and what the server decodes. ``each`` sees
    context, update and that afterwards."""
    server, client, memory = method.server_side(task), method.client_side(task), {}
    w, decoded = server.start().weights, []
    update = {n: torch.randn(t.shape, generator=fl.rng.generator(0, n)) for n, t in w.items()}
    for t in range(1, rounds + 1):
        ctx = client.context(t, 0, client.up, memory, start=w)
        sections = method.uplink.encode({n: w[n] + update[n] for n in w}, ctx)
        there = server.context(t, 0, server.up, {}, start=w)
        decoded.append(method.uplink.decode(sections, there))
        if each:
            each(ctx, update, decoded[-1])
    return update, decoded, server.up


def played(server, clients, t, k, state, heard=MappingProxyType({})):
    """One client's part of a round -> what arrives."""
    answer = clients.answer(t, k, server.send(t, k, state, heard)[0])
    return server.receive(t, k, answer, state)


@pytest.mark.parametrize("name", METHODS)
def test_two_runs_are_the_same_run_also_after_a_stop(name, task, tmp_path):
    method = fl.methods.get(name, **ABSENT.get(name, {}))
    whole = fl.run(method, task, 3, participation=0.5)
    fl.run(method, task, 2, participation=0.5, checkpoint=tmp_path / "c")
    assert fl.run(method, task, 3, participation=0.5, checkpoint=tmp_path / "c") == whole
    assert not any(row["refused"] for row in whole.rows)


@pytest.mark.parametrize("name", STACKING)
def test_stacked_and_sequential_runs_agree(name, task):
    one, other = (
        fl.run(fl.methods.get(name), task, 1, engine=e) for e in ("sequential", "stacked")
    )
    assert abs(one.bytes_up[0] - other.bytes_up[0]) <= 0.02 * one.bytes_up[0]
    # elsewhere a last bit may decide who is in the top k
    if name in ("fedavg", "rpn", "fed_kgf", "fedpm", "fedcomgate"):
        for n, t in one.state.items():
            torch.testing.assert_close(other.state[n], t, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_it_learns(name):
    task = fl.tasks.classification("digits", 4)
    engine = "stacked" if name in STACKING else "sequential"
    history = fl.run(fl.methods.get(name), task, 10, batch_size=16, engine=engine)
    assert history.accuracy.max() > 0.5


def test_dgc_is_momentum_correction_with_masking(task):
    method, m, clip = fl.methods.dgc(ratio=1 / 32, warmup=2, clip=3.0), 0.9, 3.0
    u, v, kept = {}, {}, []

    def check(ctx, g, sent):
        names = [n for n in g if g[n].dim() > 1]
        norm = math.sqrt(sum(float(g[n].square().sum()) for n in names))
        share = min(1.0, clip / math.sqrt(4) / norm)
        for n in names:
            u[n] = m * u.get(n, 0) + g[n] * share
            v[n] = v.get(n, 0) + u[n]
            k = math.ceil(v[n].numel() * max(1 / 32, 0.25**ctx.round if ctx.round <= 2 else 0))
            top = v[n].abs().flatten().topk(k).indices
            expected = (
                torch.zeros(v[n].numel()).index_put((top,), v[n].flatten()[top]).reshape(v[n].shape)
            )
            torch.testing.assert_close(sent[n], expected, atol=1e-5, rtol=1e-4)
            u[n], v[n] = u[n] * (expected == 0), v[n] * (expected == 0)
        kept.append(k)

    uploads(method, task, 4, check)
    assert kept[0] > kept[1] > kept[2] == kept[3]


def test_qsgd_is_unbiased(task):
    update, sent, schema = uploads(fl.methods.qsgd(levels=4, bucket=None), task, 200)
    for n in (n for n in update if update[n].dim() > 1):
        mean, norm = sum(d[n] for d in sent) / 200, float(update[n].norm())
        assert (mean - update[n]).abs().max() < 5 * norm / 4 / 2 / math.sqrt(
            200
        )  # five standard errors at most


def test_fedcomgate_tracks_the_difference_from_the_mean(task):
    """delta_j after a round is (mean of the client's gradients) - (movement of the model), up to
    quantisation."""
    method, settings = fl.methods.fedcomgate(lr=0.05, bits=16), fl.Settings(batch_size=10)
    server, clients = method.server_side(task, settings), fl.clients(method, task, settings)
    start, own, arrivals = server.start(), {}, []
    for k in range(4):
        arrivals.append(played(server, clients, 1, k, start))
        trained, buffers = clients.side.tensors, server.up.buffers
        own[k] = {n: t - start.weights[n] for n, t in trained.items() if n not in buffers}
    state = server.aggregate(1, start, arrivals)
    for k in range(4):
        played(server, clients, 2, k, state)
        steps = -(-task.sizes[k] // 10)
        for n, moved in own[k].items():
            expected = ((state.weights[n] - start.weights[n]) - moved) / (0.05 * steps)
            torch.testing.assert_close(
                clients.memories[k][f"delta/{n}"], expected, atol=1e-3, rtol=1e-3
            )


def test_who_was_absent_tracks_the_mean_movement_of_the_rounds_it_missed(task):
    """Client 0 answers in rounds 1 and 4; the others in every round."""
    method, settings = fl.methods.fedcomgate(lr=0.05, bits=16), fl.Settings(batch_size=10)
    server, clients = method.server_side(task, settings), fl.clients(method, task, settings)
    states = [server.start()]
    for t in (1, 2, 3):
        who = range(4) if t == 1 else range(1, 4)
        arrivals = [played(server, clients, t, k, states[-1]) for k in who]
        states.append(server.aggregate(t, states[-1], arrivals))
        if t == 1:
            sent = arrivals[0].update
    played(server, clients, 4, 0, states[3])
    steps = -(-task.sizes[0] // 10)
    for n in sent.keys() - server.up.buffers:
        moved = (states[3].weights[n] - states[0].weights[n]) / 3
        expected = (moved - sent[n]) / (0.05 * steps)
        torch.testing.assert_close(
            clients.memories[0][f"delta/{n}"], expected, atol=1e-5, rtol=1e-4
        )


def test_gradient_tracking_changes_steps_by_delta(task):
    tracked = fl.methods.fedcomgate(lr=0.5).optimizer
    p, g, d = (torch.randn(3, 2) for _ in range(3))
    moved = p.clone()
    tracked.step([moved], [g], {"lr": 0.5, "velocity": None, "shift": [d]})
    torch.testing.assert_close(moved, p - 0.5 * (g - d))


def test_amsgrad_server():
    part, state = (
        import_module("fedlearn.methods.fedcams").AMSGrad(lr=0.5),
        {"w": torch.tensor([1.0, -2.0]), "b": torch.zeros(1)},
    )
    ctx = Context(None, 1, schema=fl.wire.Schema({"w": (2,), "b": (1,)}, frozenset({"b"})))
    m, v, top, w = torch.zeros(2), torch.zeros(2), torch.full((2,), 1e-3), state["w"].clone()
    for t in range(4):
        D = torch.tensor([0.3, -0.1]) / (t + 1)
        state = part.aggregate(state, [Arrival(0, 5, {"w": D, "b": torch.ones(1)})], ctx)
        m, v = 0.9 * m + 0.1 * D, 0.99 * v + 0.01 * D**2
        top = torch.maximum(top, v)
        w = w + 0.5 * m / top.sqrt()
        torch.testing.assert_close(state["w"], w)
        assert state["b"] == t + 1  # a buffer: plain mean


def test_majority_vote():
    """One client, one vote, also in the mean of the buffers, however many samples it has."""
    majority = import_module("fedlearn.methods.signsgd").Majority(0.1)
    state = {"w": torch.zeros(3), "b": torch.ones(1)}
    votes = [torch.tensor(v) for v in ([1.0, -1, 1], [1, -1, -1.0], [-1, -1, 1.0])]
    ctx = Context(None, 1, schema=fl.wire.Schema({"w": (3,), "b": (1,)}, frozenset({"b"})))
    arrivals = [
        Arrival(k, 10**k, {"w": v, "b": torch.tensor([3.0 * k])}) for k, v in enumerate(votes)
    ]
    new = majority.aggregate(state, arrivals, ctx)
    torch.testing.assert_close(new["w"], torch.tensor([0.1, -0.1, 0.1]))
    torch.testing.assert_close(new["b"], torch.tensor([1 + (0.0 + 3 + 6) / 3]))


@pytest.mark.parametrize("name", ["stc", "signsgd"])
def test_late_clients_rebuild_the_server_model_exactly(name, task):
    method = fl.methods.get(name)
    server, clients = method.server_side(task), fl.clients(method, task)
    schedule, sizes = {1: [0, 1], 2: [0], 3: [0, 1], 4: [0, 1, 2]}, {}
    state, heard = server.start(), {}
    for t, who in schedule.items():
        arrivals = []
        for k in who:
            message = server.send(t, k, state, heard)[0]
            sizes[t, k] = len(message)
            memory = clients.memories.setdefault(k, {})
            # and once more below: what comes twice counts once
            got = clients.side.download(t, k, message, memory).start
            assert all(torch.equal(got[n], w) for n, w in state.weights.items())
            arrivals.append(server.receive(t, k, clients.answer(t, k, message), state))
        heard |= dict.fromkeys(who, t)
        state = server.aggregate(t, state, arrivals, heard)
    # who missed round 2 hears two steps, the first round nothing
    assert sizes[3, 1] > sizes[3, 0] > sizes[1, 0]
    assert sizes[4, 2] > sizes[4, 0]


def test_a_client_that_missed_a_message_notices(task):
    method = fl.methods.stc()
    server, clients = method.server_side(task), fl.clients(method, task)
    state, heard = server.start(), {}
    for t in (1, 2, 3):  # all answer in round 1 to 3
        state, _ = one_round(server, clients, t, state, heard)
    message, forgetful = server.send(4, 0, state, heard)[0], method.client_side(task)
    with pytest.raises(
        fl.WireError, match="begin after round 2, this client knows the model of round 0"
    ):
        forgetful.download(4, 0, message, {})


@pytest.mark.parametrize(
    "name", ["fedavg", "stc", "signsgd", "qsgd", "fedcomgate", "dgc", "fedcams"]
)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_diverged_clients_are_refused_and_the_run_goes_on(name, engine):
    task = fl.tasks.classification(
        "digits",
        3,
        train=60,
        test=40,
        network=lambda s, c: nn.Sequential(nn.Flatten(), nn.Linear(64, c)),
    )
    with pytest.warns(UserWarning, match="answers of .* were refused or missing"):
        history = fl.run(fl.methods.get(name, lr=1e38), task, 2, engine=engine, batch_size=4)
    assert len(history) == 2 and all(torch.isfinite(t).all() for t in history.state.values())


def test_a_client_that_was_not_drawn_is_refused(task):
    for name in AVERAGING:
        server = fl.methods.get(name).server_side(task, fl.Settings(participation=0.5))
        k = next(k for k in range(4) if k not in server.participants(1))
        with pytest.raises(fl.WireError, match=f"Client {k} was not drawn"):
            server.receive(1, k, pack(Message(UP, 1, k, 5, {}), server.up), server.start())


def test_fed_kgf_is_evaluated_with_the_kernels_drawn_for_the_round(task):
    method = fl.methods.fed_kgf(base_kernels=4, redraw=True)
    history, net = fl.run(method, task, 2), fl.initial_network(method, task)
    found = []
    for t in (1, 2):
        method.model.refresh(net, task, t)
        net.load_state_dict(history.state, strict=False)
        found.append(task.evaluate(net))
    row = history.rows[-1]
    assert found[1] == {"accuracy": row["accuracy"], "loss": row["loss"]}
    assert found[0]["loss"] != found[1]["loss"], "the round shows"


def test_fedpm_is_evaluated_with_the_weights_that_are_likelier_on_than_off(task):
    net = fl.initial_network(fl.methods.fedpm(), task).eval()
    layers = [m for m in net.modules() if hasattr(m, "weight_score")]
    for layer in layers:
        score = layer.weight_score.data
        score.copy_(torch.linspace(-3, 3, score.numel()).reshape(score.shape))
        on = score.sigmoid() > 0.5
        assert torch.equal(layer.weight, layer.frozen_weight * on) and on.any() and not on.all()
    assert layers


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\2abcde",
        b"\1\0\0",
        b"\1\1\0\0\0",
        b"\1\0\0\0\0\xff\xff\xff\xff",
        b"\1\0\0\0\0\3\0\0\0abc",
        b"\0abc",
    ],
)
def test_damaged_steps_are_refused(damage, task):
    side, memory = fl.methods.stc().client_side(task), {}
    sections = {n: b"\1\0\0\0\0" for n in side.down.shapes}
    name = next(n for n, s in side.down.shapes.items() if len(s) == 4)
    data = pack(Message(DOWN, 1, 0, 0, {**sections, name: damage}), side.down)
    with pytest.raises(fl.WireError):
        side.download(1, 0, data, memory)
    assert not memory


def test_fedpm_server_is_the_mode_of_the_posterior():
    part = import_module("fedlearn.methods.fedpm").BetaPosterior()
    ctx = Context(None, 1, schema=fl.wire.Schema({"s": (3,)}))
    masks = [torch.tensor(m) for m in ([1.0, 0, 1], [1, 0, 0.0], [1, 0, 1.0])]
    new = part.aggregate(
        {"s": torch.zeros(3)}, [Arrival(k, 1, {"s": m}) for k, m in enumerate(masks)], ctx
    )
    torch.testing.assert_close(new["s"].sigmoid(), torch.tensor([0.99, 0.01, 2 / 3]))


def test_fedpm_trains_scores_only_and_sends_at_most_a_bit(task):
    net = fl.initial_network(fl.methods.fedpm(), task)
    plain = task.network()
    layers = [m for m in net.modules() if hasattr(m, "weight_score")]
    assert not any("frozen" in name for name in state_of(net)), "drawn on both sides, never sent"
    assert sum(p.numel() for p in net.parameters()) == sum(
        p.numel()
        for m in plain.modules()
        if isinstance(m, (nn.Conv2d, nn.Linear))
        for p in m.parameters()
    )
    for layer in layers:
        c = math.e / math.sqrt(layer.weight_score[0].numel())
        torch.testing.assert_close(
            layer.frozen_weight.abs(), torch.full_like(layer.frozen_weight, c)
        )
        w = layer.train().weight
        assert ((w.abs() < 1e-6) | ((w.abs() - c).abs() < 1e-6)).all()  # off, or on with its sign
        theta = layer.weight_score.sigmoid()
        (grad,) = torch.autograd.grad(w.sum(), layer.weight_score)
        torch.testing.assert_close(
            grad, layer.frozen_weight * theta * (1 - theta)
        )  # straight through the draw
    up = fl.run(fl.methods.fedpm(), task, 1)
    bits = 8 * (up.bytes_up[0] - up.bytes_up_buffers[0]) / 4
    assert bits < 1.1 * sum(p.numel() for p in net.parameters()) + 8 * 400  # and the envelope


def test_a_method_is_a_record():
    for name in METHODS:
        method = fl.methods.get(name)
        assert method == fl.methods.get(name) and hash(method) == hash(fl.methods.get(name))
        assert dataclasses.replace(method, name="mine").parts() == method.parts()


WRONG = [
    ("dgc", {"ratio": 0}, "share|ratio"),
    ("dgc", {"momentum": 1}, "[Mm]omentum"),
    ("dgc", {"clip": 0}, "norm"),
    ("dgc", {"warmup": -1}, "warmup"),
    ("dgc", {"warmup": 1.5}, "warmup"),
    ("stc", {"ratio": 1.5}, "share|ratio"),
    ("smartidx", {"ratio": -1}, "share|ratio"),
    ("smartidx", {"full": 1.5}, "between 0 and 1"),
    ("fedcams", {"server_lr": -1}, "server_lr"),
    ("fedcams", {"scale": "layer"}, "scale"),
    ("fedcams", {"scale": "model", "ratio": 0.1}, "scale"),
    ("fedcom", {"bits": 0}, "bits"),
    ("qsgd", {"levels": 0}, "levels"),
    ("signsgd", {"server_lr": 0}, "server_lr"),
    ("fedpm", {"lr": 0}, "lr"),
    ("rpn", {"share": 1.1}, "share"),
    ("fedprox", {"mu": -1}, "mu"),
    ("fedprox", {"mu": math.inf}, "mu"),
    ("scaffold", {"server_lr": 0}, "server_lr"),
    ("fednova", {"momentum": 1}, "momentum"),
    ("fedadagrad", {"server_lr": math.inf}, "server_lr"),
    ("fedyogi", {"beta1": 1}, "beta1"),
    ("fedadam", {"beta2": -0.1}, "beta2"),
    ("fedadam", {"tau": 0}, "tau"),
    ("feddyn", {"alpha": 0}, "alpha"),
    ("local", {"lr": 0}, "lr"),
    ("fedmmd", {"lam": -0.1}, "lam"),
    ("fedmmd", {"lam": math.nan}, "lam"),
    ("fedmmd", {"distance": "l1"}, "distance"),
    ("fedmmd", {"least": -1}, "least"),
    ("fedfusion", {"operator": "mult"}, "Did you mean 'multi'"),
    ("fedfusion", {"floor": 1.0}, "floor"),
    ("fed_kgf", {"base_kernels": 0}, "base_kernels"),
    ("fed_kgf", {"base_kernels": True}, "base_kernels"),
    ("fed_kgf", {"base_kernels": 32}, "No convolution has more than 32 kernels"),
    ("fed_kgf", {"base_kernels": 8, "groups": 3}, "groups"),
    ("fed_kgf", {"base_kernels": 8, "groups": 0}, "groups"),
    ("fed_gkt", {"T": 0}, "T"),
    ("fed_gkt", {"alpha": -1}, "alpha"),
    ("fed_gkt", {"server_epochs": 0}, "server_epochs"),
    ("fed_gkt", {"optimizer": "amsgrd"}, "Did you mean 'amsgrad'"),
    ("fed_gkt", {"edge": "resnet9"}, "network 'resnet9'"),
    ("fed_gkt", {"edge": lambda shape, classes: nn.Flatten()}, "unlike this Flatten"),
    ("fed_gkt", {"server": lambda s, c: fl.models.digits_server(s, 9)}, r"\[9\] logits an image"),
    ("fed_gkt", {"server_lr": 0}, "server_lr"),
    ("fed_gkt", {"bits": 8}, "bits"),
    ("fed_gkt", {"memory_limit": -1}, "memory_limit"),
    ("split_learning", {"lr": 0}, "lr"),
    ("split_learning", {"edge": "resnet_8"}, "Did you mean 'resnet8'"),
    ("fed_repopt", {"network": None}, "multi-branch blocks"),
    ("fed_repopt", {"form": "search"}, "There is no form 'search'"),
    ("fed_repopt", {"scales": {"a": 0}}, "scales"),
    ("fed_repopt", {"optimizer": "adamw", "momentum": 0.9}, "momentum"),
    ("fed_repopt", {"optimizer": "adam"}, "Did you mean 'adamw'"),
]


@pytest.mark.parametrize("name, options, noun", WRONG)
def test_options_that_cannot_be(name, options, noun, task, monkeypatch):
    monkeypatch.setattr(local, "train", lambda *args: pytest.fail("training began"))
    with pytest.raises(ValueError, match=noun) as error:
        fl.run(fl.methods.get(name, **options), task, 1)
    assert str(error.value).count("\n") == 0 and str(error.value).endswith(".")


@pytest.mark.parametrize(
    "method, parts, sentence",
    [
        ("fedavg", {"optimizer": "scaffold"}, "needs the server's control variates"),
        ("scaffold", {"downlink": "fedavg"}, "needs the server's control variates"),
        ("scaffold", {"server": "fedavg"}, "needs (a server that keeps control|updates of the)"),
        ("scaffold", {"uplink": "fedavg"}, "needs changes of control variates beside the updates"),
        ("fedavg", {"objective": "feddyn"}, "needs an uplink that keeps the sum"),
        ("fedavg", {"server": "feddyn"}, "needs an uplink that keeps the sum"),
        ("dgc", {"optimizer": "fedcomgate"}, "needs an uplink that remembers"),
        ("fedavg", {"optimizer": "fed_repopt"}, 'needs a network in the form "repopt"'),
        ("fedavg", {"downlink": "fed_repopt"}, 'needs a network in the form "repopt"'),
        ("fedavg", {"objective": "fedfusion"}, "needs a network with a fusion operator"),
        ("signsgd", {"server": "fednova"}, "needs"),
    ],
)
def test_parts_that_would_silently_do_something_else_are_refused(method, parts, sentence):
    parts = {part: getattr(fl.methods.get(name), part) for part, name in parts.items()}
    with pytest.raises(ValueError, match=sentence):
        fl.methods.get(method).but(**parts)


@pytest.mark.slow
def test_frozen_layers_stay_frozen():
    def network(shape, classes):
        net = fl.models.digits_cnn(shape, classes)
        net.extractor[0].weight.requires_grad_(False)
        return net

    task = fl.tasks.classification("digits", 4, train=80, test=40, network=network)
    for name in set(AVERAGING) - {"fed_repopt"}:  # which trains a network of its own
        method = fl.methods.get(name, **({"base_kernels": 8} if name == "fed_kgf" else {}))
        first = next(iter(fl.initial_network(method, task).state_dict()))
        history = fl.run(method, task, 3)
        assert torch.equal(history.state[first], method.server_side(task).initial[first]), name
