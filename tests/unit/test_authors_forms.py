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
from fedlearn.wire import Pooled, Schema, SmartIdx

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
    masks = [torch.tensor([0.0, 0, 1, 1]), torch.tensor([0.0, 1, 1, 1])]
    arrivals = [Arrival(k, 1, {"w": m}) for k, m in enumerate(masks)]
    theta = {}
    for softened in (False, True):
        ctx = Context(None, 1, schema=Schema({"w": (4,)}))
        server = fl.methods.fedpm(softened=softened).server
        theta[softened] = server.aggregate({"w": torch.zeros(4)}, arrivals, ctx)["w"].sigmoid()
    torch.testing.assert_close(theta[False], torch.tensor([0.01, 0.5, 0.99, 0.99]))
    torch.testing.assert_close(theta[True], torch.tensor([0.01, 0.5, 0.99, 0.99]))
    three = [*arrivals, Arrival(2, 1, {"w": torch.tensor([0.0, 0, 0, 1])})]
    softened = fl.methods.fedpm(softened=True).server
    got = softened.aggregate({"w": torch.zeros(4)}, three, ctx)["w"].sigmoid()[1]
    assert abs(float(got) - (0.01 + 0.98 / 3)) < 1e-6


@pytest.mark.parametrize("name", ["fedpm", "fed_gkt", "fedfusion"])
def test_keep_is_the_same_optimiser_continued(name, task):
    method = fl.methods.get(name, keep=True)
    assert method.optimizer == Continued(fl.methods.get(name).optimizer)
    options = {"fed_gkt": {"server_epochs": 1}, "fedfusion": {"momentum": 0.9}}.get(name, {})
    runs = [fl.run(fl.methods.get(name, keep=k, **options), task, 2) for k in (True, False)]
    assert runs[0].loss[0] == runs[1].loss[0] and runs[0].loss[1] != runs[1].loss[1]


# ---- RPN


def test_the_threshold_on_the_plain_sum():
    """A filter is sent if |sum of its entries| reaches the threshold; entries of both signs cancel,
    in the sum of absolute values they do not."""
    x = noise(6, 3, 3, 3)
    x[1] -= x[1].mean()  # sums to nothing, and is large
    x[2] *= 0.01
    for plain in (False, True):
        coder = Pooled(threshold=1.0, plain=plain)
        size = x.flatten(1).sum(1).abs() if plain else x.abs().flatten(1).sum(1)
        there = size >= 1.0
        means = x.mean((2, 3), keepdim=True) * there[:, None, None, None]
        torch.testing.assert_close(coder.decode(coder.encode(x), x.shape), means.expand(x.shape))
        assert bool(there[1]) is not plain and not there[2]
    assert fl.methods.rpn(threshold=1.0, plain=True).uplink.code.coder.plain
    assert repr(Pooled()) == "Pooled(bits=32, threshold=0.0)"


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
    """lam max(D, 0.0001): the gradient of a smaller distance is 0."""
    task = fl.tasks.classification("digits", 2, train=20, test=10)
    net, x, y = nn.Linear(4, 3), noise(5, 4), torch.tensor([0, 1, 2, 0, 1])
    method = fl.methods.fedmmd(lam=0.5, least=1e-4)
    ctx = Context(task, 1, 0, settings=fl.Settings())
    loss = method.objective.begin(net, ctx)
    batch = Batch(x, y, torch.arange(5))
    z = net(x).detach()
    torch.testing.assert_close(loss(net, batch).detach(), F.cross_entropy(z, y) + 0.5 * 1e-4)
    with torch.no_grad():
        net.weight += 0.5
        net.bias += noise(3)
    D = mmd2(z, net(x))
    assert D > 1e-4
    torch.testing.assert_close(loss(net, batch), F.cross_entropy(net(x), y) + 0.5 * D)


# ---- SmartIdx


@pytest.mark.parametrize("full", [0.2, 0.5, 1.0])
def test_a_kernel_with_more_than_that_share_selected_goes_whole(full):
    """Of 4 kernels of 9 entries 0, 2, 5 and 9 are selected: a full one decodes to signs everywhere,
    another only where it was selected; 1 is no kernel package at all."""
    x, sign = 0.01 * torch.ones(1, 4, 3, 3), torch.tensor([1.0, -1, 1, -1, -1, 1, 1, 1, -1])
    for kernel, count in enumerate((0, 2, 5, 9)):
        x[0, kernel].view(-1)[:count] = 1 + kernel
    x *= sign.view(3, 3)
    coder = SmartIdx(16 / 36, full)
    sent = coder.decode(coder.encode(x), x.shape)
    for kernel, count in enumerate((0, 2, 5, 9)):
        whole = count > full * 9
        there = torch.arange(9).view(3, 3) < (9 if whole else count)
        assert torch.equal(sent[0, kernel].sign(), sign.view(3, 3) * there), (kernel, whole)
    assert repr(SmartIdx()) == "SmartIdx(ratio=0.03125)"
