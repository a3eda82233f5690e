"""What all methods share, and the compressing baselines: each part against its paper's update rule,
written out once more."""

import dataclasses
import math
from importlib import import_module

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn import local
from fedlearn.models import state_of
from fedlearn.parts import Arrival, Context
from fedlearn.wire import DOWN, UP, Message, Schema, pack

METHODS = sorted(fl.methods.METHODS)
AVERAGING = [name for name in METHODS if isinstance(fl.methods.get(name), fl.Averaging)]
QUICK = {"fed_gkt": {"asynchronous": True, "server_epochs": 1}}  # it also does without clients


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, train=120, test=60)


def uploads(method, task, rounds, each):
    """Encode the same update in every round; ``each`` sees context, update and what the server
    decodes."""
    server, client, memory = method.server_side(task), method.client_side(task), {}
    w = server.start().weights
    update = {n: torch.randn(t.shape, generator=fl.rng.generator(0, n)) for n, t in w.items()}
    for t in range(1, rounds + 1):
        ctx = client.context(t, 0, client.up, memory, start=w)
        sections = method.uplink.encode({n: w[n] + update[n] for n in w}, ctx)
        receiver = server.context(t, 0, server.up, {}, start=w)
        each(ctx, update, method.uplink.decode(sections, receiver))


def played(server, clients, t, k, state):
    """One client's part of a round -> what arrives."""
    return server.receive(t, k, clients.answer(t, k, server.send(t, k, state)[0]), state)


@pytest.mark.parametrize("name", METHODS)
def test_two_runs_are_the_same_run_also_after_a_stop(name, task, tmp_path):
    method = fl.methods.get(name, **QUICK.get(name, {}))
    whole = fl.run(method, task, 3, participation=0.5)
    fl.run(method, task, 2, participation=0.5, checkpoint=tmp_path / "c")
    assert fl.run(method, task, 3, participation=0.5, checkpoint=tmp_path / "c") == whole
    assert not any(row["refused"] for row in whole.rows)
    assert method == fl.methods.get(name, **QUICK.get(name, {})) and hash(method)
    assert dataclasses.replace(method, name="mine").parts() == method.parts()


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_it_learns(name):
    task, method = fl.tasks.classification("digits", 4), fl.methods.get(name)
    engine = "stacked" if method.sides[1].stacks else "sequential"
    assert fl.run(method, task, 10, batch_size=16, engine=engine).accuracy.max() > 0.5


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
            least = v[n].abs().flatten().topk(k).values[-1]
            expected = v[n] * (v[n].abs() >= least)
            torch.testing.assert_close(sent[n], expected, atol=1e-5, rtol=1e-4)
            u[n], v[n] = u[n] * (expected == 0), v[n] * (expected == 0)
        kept.append(k)

    uploads(method, task, 4, check)
    assert kept[0] > kept[1] > kept[2] == kept[3]


def test_qsgd_is_unbiased(task):
    totals, one = {}, {}

    def add(ctx, update, sent):
        one.update(update)
        totals.update({n: totals.get(n, 0) + t / 200 for n, t in sent.items()})

    uploads(fl.methods.qsgd(levels=4, bucket=None), task, 200, add)
    for n, u in one.items():
        if u.dim() > 1:  # five standard errors at most
            assert (totals[n] - u).abs().max() < 5 * float(u.norm()) / 4 / 2 / math.sqrt(200)


@pytest.mark.parametrize("missed", [0, 2])
def test_fedcomgate_tracks_the_difference_from_the_mean(missed, task):
    """delta_j is (mean of the client's gradients) - (movement of the model in the rounds it
    missed, their mean), and shifts the steps."""
    method, settings = fl.methods.fedcomgate(lr=0.05, bits=16), fl.Settings(batch_size=10)
    server, clients = method.server_side(task, settings), fl.clients(method, task, settings)
    states, sent = [server.start()], {}
    for t in range(1, missed + 2):
        who = range(4) if t == 1 else range(1, 4)
        arrivals = [played(server, clients, t, k, states[-1]) for k in who]
        states.append(server.aggregate(t, states[-1], arrivals))
        sent = sent or arrivals[0].update
    played(server, clients, missed + 2, 0, states[-1])
    for n in sent.keys() - server.up.buffers:
        moved = (states[-1].weights[n] - states[0].weights[n]) / (missed + 1)
        expected = (moved - sent[n]) / (0.05 * -(-task.sizes[0] // 10))
        torch.testing.assert_close(
            clients.memories[0][f"delta/{n}"], expected, atol=1e-5, rtol=1e-4
        )
    p, g, d = (torch.randn(3, 2) for _ in range(3))
    shifted = p.clone()
    method.optimizer.step([shifted], [g], {"lr": 0.5, "velocity": None, "shift": [d]})
    torch.testing.assert_close(shifted, p - 0.5 * (g - d))


def test_majority_vote():
    """One client, one vote, also in the mean of the buffers, however many samples it has."""
    majority = import_module("fedlearn.methods.signsgd").Majority(0.1)
    state = {"w": torch.zeros(3), "b": torch.ones(1)}
    votes = torch.tensor([[1.0, -1, 1], [1, -1, -1], [-1, -1, 1]])
    ctx = Context(None, 1, schema=Schema({"w": (3,), "b": (1,)}, frozenset({"b"})))
    arrivals = [Arrival(k, 10**k, {"w": votes[k], "b": torch.tensor([3.0 * k])}) for k in range(3)]
    new = majority.aggregate(state, arrivals, ctx)
    torch.testing.assert_close(new["w"], torch.tensor([0.1, -0.1, 0.1]))
    torch.testing.assert_close(new["b"], torch.tensor([1 + (0.0 + 3 + 6) / 3]))


@pytest.mark.parametrize("name", ["stc", "signsgd"])
def test_late_clients_rebuild_the_server_model_exactly(name, task):
    method = fl.methods.get(name)
    server, clients = method.server_side(task), fl.clients(method, task)
    state, last_seen, sizes = server.start(), {}, {}
    for t, who in {1: [0, 1], 2: [0], 3: [0, 1], 4: [0, 1, 2]}.items():
        arrivals = []
        for k in who:
            message = server.send(t, k, state, last_seen)[0]
            sizes[t, k] = len(message)
            memory = clients.memories.setdefault(k, {})
            # and once more below: what comes twice counts once
            got = clients.side.download(t, k, message, memory).start
            assert all(torch.equal(got[n], w) for n, w in state.weights.items())
            arrivals.append(server.receive(t, k, clients.answer(t, k, message), state))
        last_seen |= dict.fromkeys(who, t)
        state = server.aggregate(t, state, arrivals, last_seen)
    # who missed round 2 hears two steps, the first round nothing
    assert sizes[3, 1] > sizes[3, 0] > sizes[1, 0] and sizes[4, 2] > sizes[4, 0]
    with pytest.raises(fl.WireError, match="this client knows the model of round 0"):
        method.client_side(task).download(5, 0, server.send(5, 0, state, last_seen)[0], {})


DAMAGES = [b"", b"\2abcde", b"\1\0\0", b"\1\1\0\0\0", b"\1\0\0\0\0\xff\xff\xff\xff", b"\0abc"]


@pytest.mark.parametrize("damage", [*DAMAGES, b"\1\0\0\0\0\3\0\0\0abc"])
def test_damaged_steps_are_refused(damage, task):
    side, memory = fl.methods.stc().client_side(task), {}
    sections = {n: b"\1\0\0\0\0" for n in side.down.shapes}
    name = next(n for n, s in side.down.shapes.items() if len(s) == 4)
    data = pack(Message(DOWN, 1, 0, 0, {**sections, name: damage}), side.down)
    with pytest.raises(fl.WireError):
        side.download(1, 0, data, memory)
    assert not memory


@pytest.mark.parametrize("name", ["fedavg", "stc", "signsgd", "qsgd", "fedcomgate", "dgc"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_diverged_clients_are_refused_and_the_run_goes_on(name, engine):
    def network(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    task = fl.tasks.classification("digits", 3, train=60, test=40, network=network)
    with pytest.warns(UserWarning, match="answers of .* were refused or missing"):
        history = fl.run(fl.methods.get(name, lr=1e38), task, 2, engine=engine, batch_size=4)
    assert len(history) == 2 and all(torch.isfinite(t).all() for t in history.state.values())


def test_a_client_that_was_not_drawn_is_refused(task):
    server = fl.methods.fedavg().server_side(task, fl.Settings(participation=0.5))
    k = next(k for k in range(4) if k not in server.participants(1))
    with pytest.raises(fl.WireError, match=f"Client {k} was not drawn"):
        server.receive(1, k, pack(Message(UP, 1, k, 5, {}), server.up), server.start())


def test_fedpm_trains_scores_only_and_sends_at_most_a_bit(task):
    net = fl.initial_network(fl.methods.fedpm(), task)
    layers = [m for m in net.modules() if hasattr(m, "weight_score")]
    assert layers and not any("frozen" in name for name in state_of(net)), "never sent"
    for layer in layers:
        score = layer.weight_score
        c = math.e / math.sqrt(score[0].numel())
        torch.testing.assert_close(layer.frozen_weight.abs(), torch.full_like(score, c))
        w = layer.train().weight
        assert ((w.abs() < 1e-6) | ((w.abs() - c).abs() < 1e-6)).all()  # off, or on with its sign
        theta = score.sigmoid()
        (grad,) = torch.autograd.grad(w.sum(), score)  # straight through the draw
        torch.testing.assert_close(grad, layer.frozen_weight * theta * (1 - theta))
        on = theta > 0.5
        assert torch.equal(layer.eval().weight, layer.frozen_weight * on) and not on.all()
        score.data.fill_(20.0)
        assert layer.train().weight.all(), "on, as theta is 1"
    up = fl.run(fl.methods.fedpm(), task, 1)
    bits = 8 * (up.bytes_up[0] - up.bytes_up_buffers[0]) / 4
    assert bits < 1.1 * sum(p.numel() for p in net.parameters()) + 8 * 400  # and the envelope


WRONG = [  # numbers out of range: test_options
    ("dgc", {"warmup": 1.5}, "warmup"),
    ("fedcams", {"server_lr": -1}, "server_lr"),
    ("fedcams", {"scale": "layer"}, "scale"),
    ("fedcams", {"scale": "model", "ratio": 0.1}, "scale"),
    ("fedmmd", {"distance": "l1"}, "distance"),
    ("fedfusion", {"operator": "mult"}, "multi"),
    ("fed_kgf", {"base_kernels": True}, "base_kernels"),
    ("fed_kgf", {"base_kernels": 32}, "No convolution has more than 32 kernels"),
    ("fed_kgf", {"base_kernels": 8, "groups": 3}, "groups"),
    ("fed_kgf", {"base_kernels": 8, "groups": 5}, "groups"),
    ("fed_kgf", {"base_kernels": 8, "groups": 0}, "groups"),
    ("fed_gkt", {"optimizer": "amsgrd"}, "amsgrad"),
    ("fed_gkt", {"edge": "resnet9"}, "resnet9"),
    ("fed_gkt", {"edge": lambda shape, classes: nn.Flatten()}, "Flatten"),
    ("fed_gkt", {"server": lambda s, c: fl.models.digits_server(s, 9)}, r"\[9\] logits"),
    ("fed_gkt", {"server_lr": 0}, "server_lr"),
    ("split_learning", {"edge": "resnet_8"}, "resnet8"),
    ("fed_repopt", {"network": None}, "multi-branch blocks"),
    ("fed_repopt", {"form": "search"}, "form"),
    ("fed_repopt", {"scales": {"a": 0}}, "scales"),
    ("fed_repopt", {"optimizer": "adamw", "momentum": 0.9}, "momentum"),
    ("fed_repopt", {"optimizer": "adam"}, "adamw"),
]


@pytest.mark.parametrize("name, options, noun", WRONG)
def test_options_that_cannot_be(name, options, noun, task, monkeypatch):
    monkeypatch.setattr(local, "train", lambda *args: pytest.fail("training began"))
    with pytest.raises(ValueError, match=noun) as error:
        fl.run(fl.methods.get(name, **options), task, 1)
    assert str(error.value).count("\n") == 0 and str(error.value).endswith(".")


@pytest.mark.parametrize(
    "method, parts, need",
    [
        ("fedavg", {"optimizer": "scaffold"}, "needs Controls,"),
        ("scaffold", {"downlink": "fedavg"}, "needs Controls,"),
        ("scaffold", {"server": "fedavg"}, "needs (Controlling|Update),"),
        ("scaffold", {"uplink": "fedavg"}, "needs Changes,"),
        ("fedavg", {"objective": "feddyn"}, "needs Sum,"),
        ("fedavg", {"server": "feddyn"}, "needs Sum,"),
        ("dgc", {"optimizer": "fedcomgate"}, "needs Remember,"),
        ("fedavg", {"optimizer": "fed_repopt"}, "needs Repopt,"),
        ("fedavg", {"downlink": "fed_repopt"}, "needs Repopt,"),
        ("fedavg", {"objective": "fedfusion"}, "needs FusionNetwork,"),
        ("signsgd", {"server": "fednova"}, "needs"),
        ("fedavg", {"server": "fedpm"}, "needs"),
        ("fedavg", {"uplink": "fedpm"}, "needs"),
        ("fedpm", {"server": "fedcams"}, "needs"),
        ("fedpm", {"server": "fednova"}, "needs"),
    ],
)
def test_parts_that_would_silently_do_something_else_are_refused(method, parts, need):
    parts = {part: getattr(fl.methods.get(name), part) for part, name in parts.items()}
    with pytest.raises(ValueError, match=need):
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
