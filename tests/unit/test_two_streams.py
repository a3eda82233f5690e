"""FedMMD and FedFusion: the discrepancy against a double loop, the streams, the operators, the
server."""

import math
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl
from fedlearn.models import state_of
from fedlearn.parts import Arrival, Batch, Context, Reference
from fedlearn.wire import DOWN, UP, Message, pack

mmd = import_module("fedlearn.methods.fedmmd")
fusion = import_module("fedlearn.methods.fedfusion")


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, "main_class:0.8", train=120, test=60)


def noise(*shape, seed=0):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize("n, m, d", [(1, 1, 1), (4, 2, 3), (5, 5, 2)])
def test_mmd_is_the_double_loop(n, m, d):
    def mean(x, y):
        K = 0.0
        for i in x.tolist():
            for j in y.tolist():
                K += sum(
                    math.exp(-(math.dist(i, j) ** 2) / (2 * w)) for w in mmd.WIDTHS
                )
        return K / (len(x) * len(y))

    a, b = noise(n, d), noise(m, d, seed=1) + 0.5
    D = float(mmd.mmd2(a, b))
    assert pytest.approx(mean(a, a) + mean(b, b) - 2 * mean(a, b), abs=1e-9) == D
    assert float(mmd.mmd2(b, a)) == pytest.approx(D) and D > 0 == round(
        float(mmd.mmd2(a, a)), 12
    )
    assert float(mmd.l2(torch.ones(2, 3), torch.zeros(2, 3))) == 3.0
    authors = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 5, 10, 15, 20, 25, 30, 35, 100]
    assert mmd.WIDTHS == pytest.approx([*authors, 1e3, 1e4, 1e5, 1e6], rel=1e-12)


def test_a_distance_below_the_least_pulls_no_more():
    """CE + lam max(D, 0.0001)."""
    task = fl.tasks.classification("digits", 2, train=20, test=10)
    net, x, y = nn.Linear(4, 3), noise(5, 4).float(), torch.tensor([0, 1, 2, 0, 1])
    objective = fl.methods.fedmmd(lam=0.5, least=1e-4).objective
    batch = Batch(x, y, torch.arange(5))
    loss, z = objective.begin(net, Context(task, 1, 0)), net(x).detach()
    torch.testing.assert_close(
        loss(net, batch).detach(), F.cross_entropy(z, y) + 0.5 * 1e-4
    )
    with torch.no_grad():
        net.weight += 0.5
    D = mmd.mmd2(z, net(x))
    assert D > 1e-4
    torch.testing.assert_close(loss(net, batch), F.cross_entropy(net(x), y) + 0.5 * D)


@pytest.mark.parametrize("augment, calls", [((), 3), (("crop",), 9)])
def test_the_frozen_stream_is_looked_up_unless_images_are_augmented(augment, calls):
    task = fl.tasks.classification("digits", 2, train=40, augment=augment)
    net = fl.initial_network(fl.methods.fedavg(), task)
    reference, seen = Reference(net, Context(task, 1, 0, start=state_of(net))), []
    reference.net.register_forward_hook(lambda *a: seen.append(1))
    x, y = task.epoch(0, torch.arange(20), fl.rng.generator(0))
    frozen = net.eval()(x).detach().clone()
    with torch.no_grad():
        for p in net.parameters():
            p += 1.0  # local training moves on
    for epoch in range(3):
        order = torch.randperm(20, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(7):
            result = reference(Batch(x[rows], y[rows], rows))
            torch.testing.assert_close(result, frozen[rows], atol=1e-5, rtol=1e-4)
    assert len(seen) == calls  # the first epoch only, or all


def test_operators_are_their_equations():
    E_g, E_l = noise(3, 4, 2, 2).float(), noise(3, 4, 2, 2, seed=1).float()
    first = {name: make(4) for name, make in fusion.OPERATORS.items()}
    for operator in first.values():  # training begins as the local stream
        torch.testing.assert_close(operator(E_g, E_l), E_l)
    multi, conv = first["multi"], first["conv"]
    multi.lam.data = torch.tensor([0.0, 1.0, 0.25, 0.5]).reshape(1, 4, 1, 1)
    out = multi(E_g, E_l)
    torch.testing.assert_close(
        out[:, 1], E_g[:, 1]
    )  # lambda is the share of the global map
    torch.testing.assert_close(out[:, 2], 0.25 * E_g[:, 2] + 0.75 * E_l[:, 2])
    W, b = noise(4, 8, seed=2).float(), noise(4, seed=3).float()
    conv.mix.weight.data, conv.mix.bias.data = W[..., None, None], b
    expected = (
        torch.einsum("oi,nihw->nohw", W, torch.cat([E_g, E_l], 1)) + b[:, None, None]
    )
    torch.testing.assert_close(conv(E_g, E_l), expected)


def test_networks_that_cannot_be_fused():
    def network(shape, classes):
        return fl.models.Network(nn.Flatten(), nn.Linear(64, classes))

    task = fl.tasks.classification("digits", 2, train=40, network=network)
    with pytest.raises(ValueError, match=r"feature maps \[channels, height, width\]"):
        fl.run(fl.methods.fedfusion(), task, 1)


def test_a_fusion_refreshes_the_network_below_it():
    class Counted(fl.TaskNetwork):
        def refresh(self, net, task, round):
            rounds.append(round)

    rounds = []
    fusion.FusionNetwork(of=Counted()).refresh(None, None, 3)
    assert rounds == [3]


def test_the_server_averages_fusions_slowly():
    part, lam = fusion.MovingAverage(0.9), torch.tensor([0.5, 0.0])
    state = {"extractor.w": torch.zeros(2), "fusion.lam": lam}
    arrivals = [
        Arrival(
            k,
            n,
            {
                "extractor.w": torch.full((2,), k + 0.0),
                "fusion.lam": torch.full((2,), v),
            },
        )
        for k, n, v in ((0, 1, 1.0), (1, 3, -1.0))
    ]
    new = part.aggregate(state, arrivals, Context(None, 1))
    torch.testing.assert_close(new["extractor.w"], torch.tensor([0.75, 0.75]))
    torch.testing.assert_close(new["fusion.lam"], 0.9 * lam + 0.1 * (lam - 0.5))


def test_a_personal_fusion_stays_with_its_client(task):
    method = fl.methods.fedfusion(lr=0.3, personal=True)
    server, clients = method.server_side(task), fl.clients(method, task)
    state = server.start()
    for t in (1, 2):
        answers = [clients.answer(t, k, server.send(t, k, state)[0]) for k in range(4)]
        arrivals = [server.receive(t, k, a, state) for k, a in enumerate(answers)]
        state = server.aggregate(t, state, arrivals)
    kept = [clients.memories[k]["fusion.lam"].clone() for k in range(4)]
    assert all(bool(v.any()) for v in kept) and not torch.equal(kept[0], kept[1])
    assert not state.weights["fusion.lam"].any()
    got = clients.side.download(
        3, 1, server.send(3, 1, state)[0], clients.memories[1]
    ).start
    for (
        name,
        w,
    ) in state.weights.items():  # the shared body, and the client's fusion beside it
        assert torch.equal(got[name], kept[1] if name == "fusion.lam" else w)
    clients.side.method = method.but(
        optimizer=fl.SGD(1e38)
    )  # a fusion that diverges is not kept
    answer = clients.answer(3, 0, server.send(3, 0, state)[0])
    with pytest.raises(fl.WireError, match="diverged"):
        server.receive(3, 0, answer, state)
    assert torch.equal(clients.memories[0]["fusion.lam"], kept[0])
    # neither side believes the other a fusion
    ctx = server.context(3, 0, server.down, {})
    sections = fl.methods.fedfusion().downlink.encode(state.weights, ctx)
    with pytest.raises(fl.WireError, match="fusion"):
        clients.side.download(
            3, 0, pack(Message(DOWN, 3, 0, 0, sections), server.down), {}
        )
    with pytest.raises(fl.WireError, match="Client 0"):
        server.receive(
            3, 0, pack(Message(UP, 3, 0, task.sizes[0], sections), server.up), state
        )
