"""Options by which a method is the authors' program: each against its formula, written out here on
small tensors."""

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl
from fedlearn import stacked
from fedlearn.methods.fedmmd import mmd2
from fedlearn.parts import Arrival, Batch, Context, Continued
from fedlearn.wire import Schema

kgf, pm = (import_module(f"fedlearn.methods.{name}") for name in ("fed_kgf", "fedpm"))


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, train=120, test=60)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- FedCAMS


def test_one_sign_scale_for_the_whole_model():
    """C(x) = (||x||_1 / d) sign(x) over all d parameters at once, e <- x - C(x); statistics whole.
    By tensor a large and a small tensor have scales of their own."""
    schema = Schema({"a": (2, 3), "b": (4,), "mean": (3,)}, frozenset({"mean"}))
    zero = {n: torch.zeros(s) for n, s in schema.shapes.items()}
    x = {"a": 10 * noise(2, 3), "b": noise(4, seed=1), "mean": noise(3, seed=2)}
    x["a"][0, 0] = 0  # sign(0) = 1
    flat = torch.cat([x["a"].flatten(), x["b"]])
    expected = flat.abs().sum() / 10 * torch.where(flat < 0, -1.0, 1.0)
    task = fl.tasks.classification("digits", 2, train=20, test=10)
    decoded = {}
    for scale in ("model", "tensor"):
        memory, link = {}, fl.methods.fedcams(scale=scale).uplink
        ctx = Context(task, 1, 0, zero, zero, memory, schema)
        sent = decoded[scale] = link.decode(link.encode(x, ctx), ctx)
        assert torch.equal(sent["mean"], x["mean"])
        for n in ("a", "b"):
            torch.testing.assert_close(memory[f"error/{n}"], x[n] - sent[n])
    got = torch.cat([decoded["model"]["a"].flatten(), decoded["model"]["b"]])
    torch.testing.assert_close(got, expected)
    by_tensor = decoded["tensor"]
    assert by_tensor["a"].abs().max() > 2 * by_tensor["b"].abs().max()
    lost = [flat - torch.cat([d["a"].flatten(), d["b"]]) for d in decoded.values()]
    assert lost[0].norm() > lost[1].norm()  # one scale for each tensor flatters


@pytest.mark.parametrize("corrected", [False, True])
def test_amsgrad_server(corrected):
    """w <- w + lr m / sqrt(v^), v^ from 0.001 on; corrected m / (1 - b1^t), v^ / (1 - b2^t)."""
    server = fl.methods.fedcams(server_lr=0.5, corrected=corrected).server
    state, memory = {"w": torch.zeros(3), "b": torch.zeros(1)}, {}
    schema = Schema({"w": (3,), "b": (1,)}, frozenset({"b"}))
    m, v, highest, expected = torch.zeros(3), torch.zeros(3), torch.full((3,), 1e-3), torch.zeros(3)
    for t in range(1, 6):
        D = noise(3, seed=t)
        ctx = Context(None, t, memory=memory, schema=schema)
        state = server.aggregate(state, [Arrival(0, 1, {"w": D, "b": torch.ones(1)})], ctx)
        m, v = 0.9 * m + 0.1 * D, 0.99 * v + 0.01 * D**2
        highest = torch.maximum(highest, v)
        b1, b2 = (0.9**t, 0.99**t) if corrected else (0, 0)
        expected = expected + 0.5 * (m / (1 - b1)) / (highest / (1 - b2)).sqrt()
        torch.testing.assert_close(state["w"], expected)
        assert state["b"] == t  # a buffer: plain mean
    assert ("corrected" in repr(server)) == corrected


# ---- FedPM


def test_the_gradient_of_a_mask_times_theta(task):
    """dL/ds = dL/dm theta sigma'(s) in place of dL/dm sigma'(s)."""
    slopes = {}
    for scaled in (False, True):
        net = fl.methods.fedpm(scaled=scaled).client_side(task).net.train()
        layer = next(m for m in net.modules() if isinstance(m, pm.Masked))
        upstream = noise(*layer.weight_score.shape)
        (slopes[scaled],) = torch.autograd.grad((layer.weight * upstream).sum(), layer.weight_score)
        theta, dm = layer.weight_score.detach().sigmoid(), upstream * layer.frozen_weight
        factor = theta if scaled else 1.0
        torch.testing.assert_close(slopes[scaled], dm * factor * theta * (1 - theta))
    both = stacked.stack(net, 2)
    assert all(m.scaled for m in both.modules() if isinstance(m, pm.Masked))


def test_masks_between_the_end_points():
    """theta = mean_k (0.01 or 0.99) in place of the mean of 0 and 1, cut to 0.01 and 0.99."""
    masks = torch.tensor([[0.0, 0, 1, 1], [0.0, 1, 1, 1], [0.0, 0, 0, 1]])
    arrivals = [Arrival(k, 10**k, {"w": m, "b": m[:1] + k}) for k, m in enumerate(masks)]
    ctx = Context(None, 1, schema=Schema({"w": (4,), "b": (1,)}, frozenset("b")))
    means = {
        False: [0.01, 1 / 3, 2 / 3, 0.99],
        True: [0.01, 0.01 + 0.98 / 3, 0.99 - 0.98 / 3, 0.99],
    }
    for softened, expected in means.items():
        server = fl.methods.fedpm(softened=softened).server
        new = server.aggregate({"w": torch.zeros(4), "b": torch.ones(1)}, arrivals, ctx)
        torch.testing.assert_close(new["w"].sigmoid(), torch.tensor(expected))
        torch.testing.assert_close(new["b"], torch.tensor([1 + 210 / 111]))  # statistics, by n_k


@pytest.mark.parametrize("name", ["fedpm", "fed_gkt", "fedfusion"])
def test_keep_is_the_same_optimiser_continued(name, task):
    method = fl.methods.get(name, keep=True)
    assert method.optimizer == Continued(fl.methods.get(name).optimizer)
    options = {"fed_gkt": {"server_epochs": 1}, "fedfusion": {"momentum": 0.9}}.get(name, {})
    runs = [fl.run(fl.methods.get(name, keep=k, **options), task, 2) for k in (True, False)]
    assert runs[0].loss[0] == runs[1].loss[0] and runs[0].loss[1] != runs[1].loss[1]


# ---- Fed-KGF


def test_kernels_drawn_at_each_call(task):
    """w' = sign(w) (|w|^beta + alpha) with alpha and beta of this call; in evaluation mode named
    after seed, layer, round and call."""
    net = kgf.represent(nn.Sequential(nn.Conv2d(3, 8, 3)), 2, seed=5, every_call=True)
    layer, shape = net[0], (6, 3, 3, 3)
    torch.manual_seed(1)
    first = layer.weight.detach()
    torch.manual_seed(1)
    alpha, beta = torch.rand(2, *shape) * torch.tensor([0.1 - 1e-5, 8.0])[:, None, None, None, None]
    w = torch.cat([layer.base.detach()] * 3)
    expected = w.sign() * (w.abs() ** (beta + 2) + alpha + 1e-5)
    torch.testing.assert_close(first, torch.cat([layer.base.detach(), expected]))
    assert not torch.equal(layer.weight, layer.weight)
    net.eval()
    one, two = layer.weight, layer.weight
    layer.calls = 0
    assert torch.equal(layer.weight, one) and torch.equal(layer.weight, two)
    assert not torch.equal(one, two)


# ---- FedMMD


def test_a_distance_below_the_least_pulls_no_more():
    """CE + lam max(D, 0.0001)."""
    task = fl.tasks.classification("digits", 2, train=20, test=10)
    net, x, y = nn.Linear(4, 3), noise(5, 4), torch.tensor([0, 1, 2, 0, 1])
    objective, batch = (
        fl.methods.fedmmd(lam=0.5, least=1e-4).objective,
        Batch(x, y, torch.arange(5)),
    )
    loss, z = objective.begin(net, Context(task, 1, 0)), net(x).detach()
    torch.testing.assert_close(loss(net, batch).detach(), F.cross_entropy(z, y) + 0.5 * 1e-4)
    with torch.no_grad():
        net.weight += 0.5
    D = mmd2(z, net(x))
    assert D > 1e-4
    torch.testing.assert_close(loss(net, batch), F.cross_entropy(net(x), y) + 0.5 * D)
