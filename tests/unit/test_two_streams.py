"""FedMMD and FedFusion: the discrepancy against a double loop and scikit-learn, the streams, the
operators, the server."""

import math
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedlearn as fl
from fedlearn.models import state_of
from fedlearn.parts import Arrival, Batch, Context, Reference
from fedlearn.wire import DOWN, UP, Message, pack

mmd = import_module("fedlearn.methods.fedmmd")
fusion = import_module("fedlearn.methods.fedfusion")
OPERATORS = ["conv", "multi", "single"]


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "main_class:0.8", train=120, test=60)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def double_loop(a, b, widths):
    def K(x, y):
        return sum(
            math.exp(-sum((float(i) - float(j)) ** 2 for i, j in zip(x, y, strict=True)) / (2 * w))
            for w in widths
        )

    def mean(x, y):
        return sum(K(i, j) for i in x for j in y) / (len(x) * len(y))

    return mean(a, a) + mean(b, b) - 2 * mean(a, b)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(0, 99))
def test_mmd_is_the_double_loop(n, m, d, seed):
    a, b = noise(n, d, seed=seed), noise(m, d, seed=seed + 1) + 0.5
    assert float(mmd.mmd2(a, b)) == pytest.approx(double_loop(a, b, mmd.WIDTHS), abs=1e-9)


def test_mmd_has_the_right_gradient_and_a_client_axis():
    a, b = noise(4, 3).requires_grad_(), noise(4, 3, seed=1)
    assert torch.autograd.gradcheck(lambda x: mmd.mmd2(x, b, (0.5, 1.0, 5.0)), a)
    both = mmd.mmd2(torch.stack([a, b]), torch.stack([b, a]))
    torch.testing.assert_close(both, mmd.mmd2(a, b).expand(2))
    torch.testing.assert_close(
        mmd.l2(torch.stack([a, b]), torch.stack([b, b])), torch.stack([mmd.l2(a, b), mmd.l2(b, b)])
    )
    assert float(mmd.l2(torch.ones(2, 3), torch.zeros(2, 3))) == 3.0


def test_lambda_zero_is_federated_averaging(task):
    one, other = fl.run(fl.methods.fedmmd(lam=0.0), task, 2), fl.run(fl.methods.fedavg(), task, 2)
    assert all(torch.equal(t, other.state[n]) for n, t in one.state.items())


@pytest.mark.parametrize("network", ["digits_cnn", "rpn_cnn"])
def test_looked_up_outputs_are_those_of_the_frozen_model(network):
    task = fl.tasks.classification("digits", 2, train=40, network=network)
    net = fl.initial_network(fl.methods.fedavg(), task)
    ctx = Context(task, 1, 0, start=state_of(net))
    reference, calls = Reference(net, ctx), []
    reference.net.register_forward_hook(lambda *a: calls.append(1))
    frozen, (x, y) = (
        net.eval()(task.epoch(0, torch.arange(20), None)[0]).detach().clone(),
        task.epoch(0, torch.arange(20), None),
    )
    with torch.no_grad():
        for p in net.parameters():
            p += 1.0  # local training moves on
    for epoch in range(3):
        order = torch.randperm(20, generator=torch.Generator().manual_seed(epoch))
        for index in order.split(7):
            torch.testing.assert_close(
                reference(Batch(x[index], y[index], index)), frozen[index], atol=1e-5, rtol=1e-4
            )
    assert len(calls) == 3  # the first epoch only


def test_operators_are_their_equations():
    E_g, E_l = noise(3, 4, 2, 2).float(), noise(3, 4, 2, 2, seed=1).float()
    multi, conv = fusion.OPERATORS["multi"](4), fusion.OPERATORS["conv"](4)
    multi.lam.data = torch.tensor([0.0, 1.0, 0.25, 0.5]).reshape(1, 4, 1, 1)
    out = multi(E_g, E_l)
    torch.testing.assert_close(out[:, 0], E_l[:, 0])
    torch.testing.assert_close(out[:, 1], E_g[:, 1])  # lambda is the share of the global map
    torch.testing.assert_close(out[:, 2], 0.25 * E_g[:, 2] + 0.75 * E_l[:, 2])
    conv.mix.weight.data, conv.mix.bias.data = (
        noise(4, 8, 1, 1, seed=2).float(),
        noise(4, seed=3).float(),
    )
    expected = (
        torch.einsum("oi,nihw->nohw", conv.mix.weight[..., 0, 0], torch.cat([E_g, E_l], 1))
        + conv.mix.bias[:, None, None]
    )
    torch.testing.assert_close(conv(E_g, E_l), expected)
    assert [sum(p.numel() for p in fusion.OPERATORS[o](4).parameters()) for o in OPERATORS] == [
        2 * 4 * 4 + 4,
        4,
        1,
    ]


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_first_step_is_that_of_federated_averaging(operator):
    """lambda = 0 gives the gradient of federated averaging."""
    task = fl.tasks.classification("digits", 2, train=40, network="rpn_cnn")
    task_net = fl.initial_network(fl.methods.fedavg(), task)
    method = fl.methods.fedfusion(operator=operator)
    net = fl.initial_network(method, task)
    own = dict(task_net.named_parameters())
    net.load_state_dict(task_net.state_dict(), strict=False)
    batch = Batch(*task.epoch(0, torch.arange(20), None), torch.arange(20))
    ctx = Context(task, 1, 0, start=state_of(net))
    loss = method.objective.begin(net.eval(), ctx)(net, batch)
    torch.testing.assert_close(loss, task.loss(task_net.eval()(batch.x), batch.y))
    grads = dict(
        zip(
            (n for n, _ in net.named_parameters()),
            torch.autograd.grad(loss, list(net.parameters())),
            strict=True,
        )
    )
    expected = torch.autograd.grad(task.loss(task_net(batch.x), batch.y), list(own.values()))
    for name, g in zip(own, expected, strict=True):
        torch.testing.assert_close(grads[name], g, atol=1e-5, rtol=1e-4)


def test_moving_average():
    part = fusion.MovingAverage(0.9)
    state = {"extractor.w": torch.zeros(2), "fusion.lam": torch.tensor([0.5, 0.0])}
    arrivals = [
        Arrival(
            k, n, {"extractor.w": torch.full((2,), float(k)), "fusion.lam": torch.tensor([v, v])}, 0
        )
        for k, n, v in ((0, 1, 1.0), (1, 3, -1.0))
    ]
    new = part.aggregate(state, arrivals, Context(None, 1))
    torch.testing.assert_close(new["extractor.w"], torch.tensor([0.75, 0.75]))
    torch.testing.assert_close(
        new["fusion.lam"], 0.9 * state["fusion.lam"] + 0.1 * (state["fusion.lam"] - 0.5)
    )


def test_server_follows_the_operator():
    assert fl.methods.fedfusion(operator="conv").server == fl.Mean()
    assert (
        fl.methods.fedfusion(operator="multi").server
        == fusion.MovingAverage(0.9)
        == fl.methods.fedfusion(operator="single").server
    )


def test_personal_fusion_stays_with_its_client(task):
    method, both = fl.methods.fedfusion(lr=0.3, personal=True), fl.methods.fedfusion(lr=0.3)
    server, clients = method.server_side(task), fl.clients(method, task)
    shared, state = fl.run(both, task, 1), server.start()
    for t in (1, 2):
        messages = {k: server.send(t, k, state)[0] for k in range(4)}
        answers = {k: clients.answer(t, k, m) for k, m in messages.items()}
        arrivals = [server.receive(t, k, a, state) for k, a in answers.items()]
        state = server.aggregate(t, state, arrivals)
    own = [clients.memories[k]["fusion.lam"] for k in range(4)]
    assert all(bool(v.any()) for v in own) and not torch.equal(own[0], own[1])
    assert not state.weights["fusion.lam"].any()
    assert len(messages[0]) < shared.bytes_down[0] / 4
    for k in (1, 2):  # the same body, and each one's own beside it
        message, memory = server.send(3, k, state)[0], clients.memories[k]
        got = clients.side.download(3, k, message, memory).start
        assert torch.equal(got["fusion.lam"], own[k])
        assert torch.equal(got["extractor.0.weight"], state.weights["extractor.0.weight"])


def test_a_fusion_in_a_message_is_refused(task):
    """Neither side believes the other a fusion: it is the client's own."""
    method, shared = fl.methods.fedfusion(personal=True), fl.methods.fedfusion()
    server, side = method.server_side(task), method.client_side(task)
    state = server.start()
    sections = shared.server_side(task).method.downlink.encode(
        state.weights, server.context(1, 0, server.down, {})
    )
    data = pack(Message(DOWN, 1, 0, 0, sections), server.down)
    with pytest.raises(fl.WireError, match="The server sent a fusion, which is the client's own"):
        side.download(1, 0, data, {})
    short = {n: s for n, s in sections.items() if n not in ("fusion.lam", "extractor.0.weight")}
    data = pack(Message(DOWN, 1, 0, 0, short), server.down)
    with pytest.raises(fl.WireError, match="whole model"):
        side.download(1, 0, data, {})
    for sent in (sections, short):
        data = pack(Message(UP, 1, 0, 20, sent), server.up)
        with pytest.raises(fl.WireError, match="Client 0 did not send the tensors"):
            server.receive(1, 0, data, state)


@pytest.mark.parametrize("operator", OPERATORS)
def test_fusion_begins_as_the_local_stream_and_equal_streams_stay(operator):
    F = fusion.OPERATORS[operator](5)
    E_g, E_l = noise(3, 5, 2, 2).float(), noise(3, 5, 2, 2, seed=1).float()
    torch.testing.assert_close(F(E_g, E_l), E_l)
    if operator != "conv":
        F.lam.data.uniform_(-2, 2)
        torch.testing.assert_close(F(E_l, E_l), E_l)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("network", [n for n in fl.models.NETWORKS if n != "mlp"])  # no maps
def test_every_network_can_be_fused(network, operator):
    shape = (1, 8, 8) if network.startswith("digits") else (3, 32, 32)
    make = fl.models.NETWORKS[network]
    task = SimpleNamespace(shape=shape, network=lambda: make(shape, 10))
    net, plain, x = fusion.FusionNetwork(operator).build(task).eval(), make(shape, 10), None
    plain.load_state_dict(net.state_dict(), strict=False)
    if operator != "conv":
        x = torch.randn(2, *shape)
        torch.testing.assert_close(net(x), plain.eval()(x))
    assert all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize(
    "network",
    [
        lambda s, c: nn.Sequential(nn.Flatten(), nn.Linear(64, c)),
        lambda s, c: fl.models.Network(nn.Flatten(), nn.Linear(64, c)),
    ],
)
def test_networks_that_cannot_be_fused(network):
    task = fl.tasks.classification("digits", 2, train=40, network=network)
    with pytest.raises(ValueError, match=r"feature maps \[channels, height, width\]"):
        fl.run(fl.methods.fedfusion(), task, 1)


