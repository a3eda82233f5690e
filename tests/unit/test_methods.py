"""What all methods share, and the compressing baselines: each part against its paper's update rule,
written out once more."""

import math
from functools import partial
from importlib import import_module

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.core import local
from fedlearn.engines import stacked
from fedlearn.methods.dgc import Warming
from fedlearn.methods.fednova import Normalised
from fedlearn.methods.fedpm import Masked
from fedlearn.methods.rpn import Pool
from fedlearn.models import state_of
from fedlearn.parts import Arrival, Context, Continued
from fedlearn.wire import DOWN, Message, Schema, Signs, TopK, pack

METHODS = sorted(fl.methods.METHODS)
AVERAGING = [name for name in METHODS if isinstance(fl.methods.get(name), fl.Averaging)]
QUICK = {
    "fed_gkt": {"asynchronous": True, "server_epochs": 1}
}  # it also does without clients


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, train=120, test=60)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def played(server, clients, t, k, state):
    """One client's part of a round -> what arrives."""
    return server.receive(
        t, k, clients.answer(t, k, server.send(t, k, state)[0]), state
    )


@pytest.mark.parametrize("name", METHODS)
def test_two_runs_are_the_same_run_also_after_a_stop(name, task, tmp_path):
    method = fl.methods.get(name, **QUICK.get(name, {}))
    whole = fl.run(method, task, 3, participation=0.5)
    fl.run(method, task, 2, participation=0.5, checkpoint=tmp_path / "c")
    assert (
        fl.run(method, task, 3, participation=0.5, checkpoint=tmp_path / "c") == whole
    )
    assert not any(row["refused"] for row in whole.rows)


def test_dgc_is_momentum_correction_with_masking(task):
    """The same update in every round."""
    method, m, u, v, kept = (
        fl.methods.dgc(ratio=1 / 32, warmup=2, clip=3.0),
        0.9,
        {},
        {},
        [],
    )
    server, client, memory = method.server_side(task), method.client_side(task), {}
    w = server.start().weights
    g = {
        n: torch.randn(t.shape, generator=fl.rng.generator(0, n)) for n, t in w.items()
    }
    names = [n for n in g if g[n].dim() > 1]
    norm = math.sqrt(sum(float(g[n].square().sum()) for n in names))
    for t in range(1, 5):
        ctx = client.context(t, 0, client.up, memory, start=w)
        sections = method.uplink.encode({n: w[n] + g[n] for n in w}, ctx)
        sent = method.uplink.decode(
            sections, server.context(t, 0, server.up, {}, start=w)
        )
        for n in names:
            u[n] = m * u.get(n, 0) + g[n] * min(1.0, 3.0 / math.sqrt(4) / norm)
            v[n] = v.get(n, 0) + u[n]
            k = math.ceil(v[n].numel() * max(1 / 32, 0.25**t if t <= 2 else 0))
            least = v[n].abs().flatten().topk(k).values[-1]
            expected = v[n] * (v[n].abs() >= least)
            torch.testing.assert_close(sent[n], expected, atol=1e-5, rtol=1e-4)
            u[n], v[n] = u[n] * (expected == 0), v[n] * (expected == 0)
        kept.append(k)
    assert kept[0] > kept[1] > kept[2] == kept[3]


@pytest.mark.parametrize("missed", [0, 2])
def test_fedcomgate_tracks_the_difference_from_the_mean(missed, task):
    """delta_j is (mean of the client's gradients) - (movement of the model in the rounds it
    missed, their mean)."""
    method, settings = (
        fl.methods.fedcomgate(lr=0.05, bits=16),
        fl.Settings(batch_size=10),
    )
    server, clients = (
        method.server_side(task, settings),
        fl.clients(method, task, settings),
    )
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


def test_majority_vote():
    """One client, one vote, also in the mean of the buffers, however many samples it has."""
    majority = import_module("fedlearn.methods.signsgd").Majority(0.1)
    state = {"w": torch.zeros(3), "b": torch.ones(1)}
    votes = torch.tensor([[1.0, -1, 1], [1, -1, -1], [-1, -1, 1]])
    ctx = Context(None, 1, schema=Schema({"w": (3,), "b": (1,)}, frozenset({"b"})))
    arrivals = [
        Arrival(k, 10**k, {"w": votes[k], "b": torch.tensor([3.0 * k])})
        for k in range(3)
    ]
    new = majority.aggregate(state, arrivals, ctx)
    torch.testing.assert_close(new["w"], torch.tensor([0.1, -0.1, 0.1]))
    torch.testing.assert_close(new["b"], torch.tensor([1 + (0.0 + 3 + 6) / 3]))


@pytest.mark.parametrize("scaled", [False, True])
def test_fedpm_draws_masks_of_fixed_weights(scaled, task):
    """dL/ds = dL/dm sigma'(s), straight through the draw; scaled, times theta."""
    net = fl.initial_network(fl.methods.fedpm(scaled=scaled), task)
    layers = [m for m in stacked.stack(net, 2).modules() if isinstance(m, Masked)]
    assert layers and all(layer.scaled == scaled for layer in layers)
    assert not any("frozen" in name for name in state_of(net)), "never sent"
    for layer in filter(lambda m: isinstance(m, Masked), net.modules()):
        score, c = layer.weight_score, math.e / math.sqrt(layer.weight_score[0].numel())
        torch.testing.assert_close(layer.frozen_weight.abs(), torch.full_like(score, c))
        w, upstream, theta = (
            layer.train().weight,
            noise(*score.shape),
            score.detach().sigmoid(),
        )
        assert (
            (w.abs() < 1e-6) | ((w.abs() - c).abs() < 1e-6)
        ).all()  # off, or on with its sign
        (slope,) = torch.autograd.grad((w * upstream).sum(), score)
        expected = upstream * layer.frozen_weight * theta * (1 - theta)
        torch.testing.assert_close(slope, expected * (theta if scaled else 1.0))
        on = score > 0
        assert (
            torch.equal(layer.eval().weight, layer.frozen_weight * on) and not on.all()
        )
        score.data.fill_(20.0)
        assert layer.train().weight.all(), "on, as theta is 1"


def test_masks_between_the_end_points():
    """theta = mean_k (0.01 or 0.99) in place of the mean of 0 and 1, cut to 0.01 and 0.99."""
    masks = torch.tensor([[0.0, 0, 1, 1], [0.0, 1, 1, 1], [0.0, 0, 0, 1]])
    arrivals = [
        Arrival(k, 10**k, {"w": m, "b": m[:1] + k}) for k, m in enumerate(masks)
    ]
    ctx = Context(None, 1, schema=Schema({"w": (4,), "b": (1,)}, frozenset("b")))
    for softened, third in ((False, 1 / 3), (True, 0.01 + 0.98 / 3)):
        expected = [0.01, third, 1 - third, 0.99]
        server = fl.methods.fedpm(softened=softened).server
        new = server.aggregate({"w": torch.zeros(4), "b": torch.ones(1)}, arrivals, ctx)
        torch.testing.assert_close(new["w"].sigmoid(), torch.tensor(expected))
        torch.testing.assert_close(
            new["b"], torch.tensor([1 + 210 / 111])
        )  # statistics, by n_k


def test_one_sign_scale_for_the_whole_model(task):
    """C(x) = (||x||_1 / d) sign(x) over all d parameters at once, e <- x - C(x); statistics
    whole."""
    schema = Schema({"a": (2, 3), "b": (4,), "mean": (3,)}, frozenset({"mean"}))
    zero, memory = {n: torch.zeros(s) for n, s in schema.shapes.items()}, {}
    x = {"a": 10 * noise(2, 3), "b": noise(4, seed=1), "mean": noise(3, seed=2)}
    x["a"][0, 0] = 0  # sign(0) = 1
    scale = (x["a"].abs().sum() + x["b"].abs().sum()) / 10
    link, ctx = (
        fl.methods.fedcams(scale="model").uplink,
        Context(task, 1, 0, zero, zero),
    )
    ctx.memory, ctx.schema = memory, schema
    sent = link.decode(link.encode(x, ctx), ctx)
    assert torch.equal(sent["mean"], x["mean"])
    for n in ("a", "b"):
        torch.testing.assert_close(sent[n], scale * torch.where(x[n] < 0, -1.0, 1.0))
        torch.testing.assert_close(memory[f"error/{n}"], x[n] - sent[n])


@pytest.mark.parametrize("corrected", [False, True])
def test_amsgrad_server(corrected):
    """w <- w + lr m / sqrt(v^), v^ from 0.001 on; corrected m / (1 - b1^t), v^ / (1 - b2^t)."""
    server = fl.methods.fedcams(server_lr=0.5, corrected=corrected).server
    state, memory = {"w": torch.zeros(3), "b": torch.zeros(1)}, {}
    schema = Schema({"w": (3,), "b": (1,)}, frozenset({"b"}))
    m, v, highest, expected = (
        torch.zeros(3),
        torch.zeros(3),
        torch.full((3,), 1e-3),
        torch.zeros(3),
    )
    for t in range(1, 6):
        D = noise(3, seed=t)
        ctx = Context(None, t, memory=memory, schema=schema)
        state = server.aggregate(
            state, [Arrival(0, 1, {"w": D, "b": torch.ones(1)})], ctx
        )
        m, v = 0.9 * m + 0.1 * D, 0.99 * v + 0.01 * D**2
        highest = torch.maximum(highest, v)
        b1, b2 = (0.9**t, 0.99**t) if corrected else (0, 0)
        expected = expected + 0.5 * (m / (1 - b1)) / (highest / (1 - b2)).sqrt()
        torch.testing.assert_close(state["w"], expected)
        assert state["b"] == t  # a buffer: plain mean


@pytest.mark.parametrize("name", ["fedpm", "fed_gkt", "fedfusion"])
def test_keep_is_the_same_optimiser_continued(name):
    kept, anew = (fl.methods.get(name, keep=keep).optimizer for keep in (True, False))
    assert kept == Continued(anew) != anew


WRONG = [  # numbers out of range: test_options
    ("dgc", {"warmup": 1.5}, "warmup"),
    ("fedcams", {"server_lr": -1}, "lr of AMSGrad"),
    ("fedcams", {"scale": "model", "ratio": 0.1}, "scale"),
    ("fedmmd", {"distance": "l1"}, "distance"),
    ("fedfusion", {"operator": "mult"}, "multi"),
    ("fed_kgf", {"base_kernels": 32}, "No convolution has more than 32 kernels"),
    ("fed_kgf", {"base_kernels": 8, "groups": 3}, "groups"),
    ("fed_kgf", {"copies": "none"}, "copies"),
    ("fed_kgf", {"start": "zero"}, "start"),
    ("fed_gkt", {"optimizer": "amsgrd"}, "amsgrad"),
    ("fed_gkt", {"edge": "resnet9"}, "resnet9"),
    ("fed_gkt", {"edge": lambda shape, classes: nn.Flatten()}, "Flatten"),
    (
        "fed_gkt",
        {"server": lambda s, c: fl.models.digits_server(s, 9)},
        r"\[9\] logits",
    ),
    ("fed_repopt", {"network": None}, "multi-branch blocks"),
    ("fed_repopt", {"form": "search"}, "form"),
    ("fed_repopt", {"scales": {"a": 0}}, "scales"),
    ("fed_repopt", {"optimizer": "adamw", "momentum": 0.9}, "momentum"),
]


@pytest.mark.parametrize("name, options, noun", WRONG)
def test_options_that_cannot_be(name, options, noun, task, monkeypatch):
    monkeypatch.setattr(local, "train", lambda *args: pytest.fail("training began"))
    with pytest.raises(ValueError, match=noun) as error:
        fl.run(fl.methods.get(name, **options), task, 1)
    assert str(error.value).count("\n") == 0 and str(error.value).endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(set(AVERAGING) - {"fed_repopt"})
)  # which has a network
def test_frozen_layers_stay_frozen(name):
    def network(shape, classes):
        net = fl.models.digits_cnn(shape, classes)
        net.extractor[0].weight.requires_grad_(False)
        return net

    task = fl.tasks.classification("digits", 4, train=80, test=40, network=network)
    method = fl.methods.get(name, **({"base_kernels": 8} if name == "fed_kgf" else {}))
    first = next(iter(fl.initial_network(method, task).state_dict()))
    state = fl.run(method, task, 3).state
    assert torch.equal(state[first], method.server_side(task).initial[first])


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
    with pytest.raises(fl.WireError, match="does not begin"):
        method.client_side(task).download(
            5, 0, server.send(5, 0, state, last_seen)[0], {}
        )


DAMAGES = [
    b"",
    b"\2abcde",
    b"\1\0\0",
    b"\1\1\0\0\0",
    b"\1\0\0\0\0\xff\xff\xff\xff",
    b"\0abc",
]


@pytest.mark.parametrize("damage", [*DAMAGES, b"\1\0\0\0\0\3\0\0\0abc"])
def test_damaged_steps_are_refused(damage, task):
    side, memory = fl.methods.stc().client_side(task), {}
    sections = {n: b"\1\0\0\0\0" for n in side.down.shapes}
    name = next(n for n, s in side.down.shapes.items() if len(s) == 4)
    data = pack(Message(DOWN, 1, 0, 0, {**sections, name: damage}), side.down)
    with pytest.raises(fl.WireError):
        side.download(1, 0, data, memory)
    assert not memory


@pytest.mark.parametrize("name", ["fedavg", "stc", "dgc"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_diverged_clients_are_refused_and_the_run_goes_on(name, engine):
    def network(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    task = fl.tasks.classification("digits", 3, train=60, test=40, network=network)
    with pytest.warns(UserWarning, match="client 0 does not count"):
        history = fl.run(
            fl.methods.get(name, lr=1e38), task, 2, engine=engine, batch_size=4
        )
    assert len(history) == 2 and all(
        torch.isfinite(t).all() for t in history.state.values()
    )


@pytest.mark.parametrize(
    "make, noun",
    [
        (lambda: Warming(Signs()), "TopK"),
        (lambda: Warming(TopK(0.1), warmup=-1), "warmup"),
        (lambda: Normalised(momentum=1.0), "momentum"),
        (lambda: Pool(share=1.01), "share"),
        (lambda: fl.run(partial(print), None), "method"),
    ],
)
def test_a_part_that_cannot_be_is_refused(make, noun):
    with pytest.raises(ValueError, match=noun) as raised:
        make()
    assert "call it" not in str(raised.value)
