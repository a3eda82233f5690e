"""Fed-KGF: kernel generation, the way there and back, modules and their assembly, the paper's
exact numbers."""

import copy
from importlib import import_module

import pytest
import torch
import torchvision
from torch import nn

import fedlearn as fl
from fedlearn import local
from fedlearn.models import parameter_count, state_of
from fedlearn.parts import Context
from fedlearn.wire import UP, Message, pack

kgf = import_module("fedlearn.methods.fed_kgf")  # fl.methods.fed_kgf is the function
PAPER = {
    1: 560,
    **dict.fromkeys((2, 3, 4, 5), 9_344),
    6: 9_472,
    7: 19_968,
    8: 18_688,
    9: 18_688,
    10: 18_944,
    11: 39_936,
    12: 37_376,
    13: 37_376,
    14: 37_888,
    15: 79_872,
    16: 74_752,
    17: 74_752,
    18: 5_130,
}


@pytest.fixture(scope="module")
def resnet():
    return fl.models.resnet18()


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, train=80, test=40)


def layer_of(weight, b=2, **options):
    conv = nn.Conv2d(weight.shape[1], len(weight), weight.shape[-1], bias=False)
    conv.weight.data = weight
    return kgf.represent(nn.Sequential(conv), b, **options)[0]


def test_generated_kernels_are_equation_2():
    w = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    layer, full = layer_of(w), layer_of(w).weight.detach()
    assert full.shape == w.shape and torch.equal(full[:2], w[:2])
    alpha, beta = kgf.draw((3, 3, 3, 3), 0, "0")
    assert 1e-5 <= alpha.min() and alpha.max() <= 0.1 and 2 <= beta.min() and beta.max() <= 10
    for i in range(3):  # copy i comes from base kernel i mod 2
        v = w[i % 2]
        for index in [(0, 0, 0), (2, 1, 2), (1, 2, 0)]:
            x, a, b = (float(t[index]) for t in (v, alpha[i], beta[i]))
            assert float(full[2 + i][index]) == pytest.approx(
                (1 if x > 0 else -1) * (abs(x) ** b + a), rel=1e-5
            )
    assert [name for name, _ in layer.named_parameters()] == ["base"]
    assert list(layer.state_dict()) == ["base"]  # alpha and beta never travel


def test_ablations():
    w = torch.rand(4, 2, 3, 3, generator=torch.Generator().manual_seed(2)) - 0.5
    assert (layer_of(w, sign=False).weight[2:] > 0).all()
    both, none = layer_of(w).weight[2:], layer_of(w, alpha=False).weight[2:]
    assert torch.allclose(both - none, w[:2].sign() * kgf.draw(both.shape, 0, "0")[0], atol=1e-4)
    zero = torch.zeros(4, 2, 3, 3)
    assert not layer_of(
        zero
    ).weight.any()  # sign(0) = 0: alpha does not help an entry that is exactly zero


@pytest.mark.parametrize("detach", [False, True])
def test_gradient_through_the_generated_kernels(detach):
    w = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(3))
    layer = layer_of(w, detach=detach).double()
    layer.weight[2:].sum().backward() if not detach else layer.weight.sum().backward()
    beta = layer.beta
    expected = (
        torch.ones_like(layer.base) if detach else beta * layer.base.detach().abs() ** (beta - 1)
    )
    torch.testing.assert_close(layer.base.grad, expected)


def test_every_party_generates_the_same_kernels(task):
    method = fl.methods.fed_kgf(base_kernels=8)
    server, client = method.server_side(task), method.client_side(task)
    for ours, theirs in zip(server.net.modules(), client.net.modules(), strict=True):
        if isinstance(ours, kgf.Generated):
            assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize("base", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("name", list(fl.models.NETWORKS))
def test_there_and_back(name, base):
    shape = {
        "digits_cnn": (1, 8, 8),
        "digits_resnet": (1, 8, 8),
        "mcmahan_cnn": (1, 28, 28),
        "rpn_cnn": (1, 28, 28),
    }.get(name, (3, 32, 32))
    net = fl.models.NETWORKS[name](shape).eval()
    widths = [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)]
    if max(widths, default=0) <= base:
        with pytest.raises(ValueError, match=f"No convolution has more than {base} kernels"):
            kgf.represent(net, base)
        return
    small = kgf.represent(net, base)
    plain = kgf.write_out(small)
    x = torch.randn(2, *shape)
    with torch.no_grad():
        torch.testing.assert_close(plain(x), small(x))
    assert list(plain.state_dict()) == list(net.state_dict())
    assert parameter_count(plain) == parameter_count(net) > parameter_count(small)
    assert not any(isinstance(m, kgf.Generated) for m in [*plain.modules(), *net.modules()])


def test_torchvision_classifier():
    net = torchvision.models.resnet18(num_classes=10).eval()
    small = kgf.represent(net)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(kgf.write_out(small)(x), small(x))
    shapes = {n: tuple(t.shape) for n, t in state_of(small).items()}
    assert len(kgf.modules(fl.wire.Schema(shapes))) == 18


def test_resnet18_has_510778_parameters_in_18_modules(resnet):
    small = kgf.represent(resnet)
    assert parameter_count(small) == 510_778
    state = state_of(small)
    learned = {name for name, _ in small.named_parameters()}
    found = kgf.modules(fl.wire.Schema({n: tuple(t.shape) for n, t in state.items()}))
    sizes = [sum(state[n].numel() for n in module if n in learned) for module in found]
    assert dict(enumerate(sizes, 1)) == PAPER and sum(sizes) == 510_778
    assert (
        round(parameter_count(resnet) / 510_778, 1) == 21.9
        and round(10 * parameter_count(resnet) / 510_778, 1) == 218.8
    )


def context(method, task, clients=10, round=1):
    """A server, its state, and what the uplink may know of each client."""
    server = method.server_side(task)
    state = server.start().weights
    return (
        server,
        state,
        [server.context(round, k, server.up, {}, start=state) for k in range(clients)],
    )


def test_groups_cover_every_tensor_once_and_change_with_the_round(resnet):
    task = fl.tasks.classification(
        "digits", 10, network=lambda shape, classes: copy.deepcopy(resnet)
    )
    method = fl.methods.fed_kgf()
    server, state, contexts = context(method, task)
    sent = [method.uplink.expected(ctx) for ctx in contexts]
    assert sorted(n for names in sent for n in names) == sorted(server.initial)
    of = {n: i for i, module in enumerate(kgf.modules(server.up)) for n in module}
    groups = sorted(sorted({of[n] for n in names}) for names in sent)
    assert [i for group in groups for i in group] == list(range(18))  # contiguous
    assert sorted(map(len, groups)) == [1, 1] + [2] * 8
    assert [method.uplink.expected(ctx) for ctx in context(method, task, round=2)[2]] != sent
    # the ratio with real bytes: a state of zeros and float32 sections
    total = sum(
        len(b)
        for ctx in contexts
        for n, b in method.uplink.encode(state, ctx).items()
        if n not in server.up.buffers
    )
    assert total == 4 * 510_778


def test_assembly_of_identical_clients_is_the_identity(task):
    method = fl.methods.fed_kgf(base_kernels=8)
    server, client = method.server_side(task), method.client_side(task)
    state = server.start()
    trained = {n: t + 1 for n, t in state.weights.items()}
    arrivals = []
    for k in range(4):
        ctx = client.context(1, k, client.up, {}, start=state.weights)
        data = pack(Message(UP, 1, k, 20, method.uplink.encode(trained, ctx)), client.up)
        arrivals.append(server.receive(1, k, data, state))
    after = server.aggregate(1, state, arrivals).weights
    assert after.keys() == trained.keys()
    for n, t in after.items():
        torch.testing.assert_close(t, trained[n])


def test_one_group_is_averaging(task):
    a = fl.run(fl.methods.fed_kgf(base_kernels=8, groups=1), task, 2)
    b = fl.run(fl.methods.fed_kgf(base_kernels=8).but(uplink=fl.Uplink()), task, 2)
    assert all(torch.equal(t, b.state[n]) for n, t in a.state.items())


def test_assembly_never_lies_nearer_to_the_clients_than_the_mean(task):
    """sum_k |w_k - w|^2 is least at the mean, so the paper's claim of a smaller variance cannot
    hold."""
    method = fl.methods.fed_kgf(base_kernels=8, groups=4)
    for seed in range(3):
        task = fl.tasks.classification("digits", 4, train=80, test=40, seed=seed)
        server, clients = method.server_side(task), fl.clients(method, task)
        models, arrivals, state = [], [], server.start()
        for k in range(4):
            answer = clients.answer(1, k, server.send(1, k, state)[0])
            arrivals.append(server.receive(1, k, answer, state))
            models.append({n: t.clone() for n, t in clients.side.tensors.items()})
        mean = {n: sum(m[n] for m in models) / 4 for n in models[0]}
        state = server.aggregate(1, state, arrivals)

        def spread(w, models=models):
            return sum(float((m[n] - w[n]).square().sum()) for m in models for n in m)

        assert spread(state.weights) > spread(mean)


def test_another_group_than_ones_own_is_refused(task):
    method = fl.methods.fed_kgf(base_kernels=8)
    server = method.server_side(task)
    state = server.start()
    ctx = server.context(1, 0, server.up, {}, start=state.weights)
    before = {n: t.clone() for n, t in state.weights.items()}
    data = pack(Message(UP, 1, 1, 20, method.uplink.encode(state.weights, ctx)), server.up)
    with pytest.raises(fl.WireError, match="Client 1 did not send the tensors .* its modules"):
        server.receive(1, 1, data, state)
    assert all(torch.equal(t, before[n]) for n, t in state.weights.items()) and not state.memory


@pytest.mark.parametrize("base", [0, -1, 2.5, "16", True])
def test_base_kernels_is_a_positive_integer(base, task):
    with pytest.raises(ValueError, match="base_kernels( of fed_kgf)? must be a whole number"):
        fl.run(fl.methods.fed_kgf(base_kernels=base), task, 1)


def test_more_base_kernels_than_any_layer_has(task):
    with pytest.raises(ValueError, match="No convolution has more than 32 kernels"):
        fl.run(fl.methods.fed_kgf(base_kernels=32), task, 1)


@pytest.mark.parametrize("groups", [3, 5, 8, 0, 1.5])
def test_groups_that_cannot_be(groups, task, monkeypatch):
    monkeypatch.setattr(local, "train", lambda *a: pytest.fail("training began"))
    with pytest.raises(ValueError, match="groups( of fed_kgf)? must be"):
        fl.run(fl.methods.fed_kgf(base_kernels=8, groups=groups), task, 1)


@pytest.mark.parametrize("clients, groups", [(4, 4), (6, 4), (10, 4), (7, 4), (3, 3), (1, 1)])
def test_by_default_as_many_groups_as_participants_or_modules(clients, groups, task):
    schema = fl.methods.fed_kgf(base_kernels=8).server_side(task).up
    assert len(kgf.modules(schema)) == 4  # of digits_cnn
    step, all_of_them, sent = kgf.Modules(), list(schema.shapes), []
    for k in range(clients):
        ctx = Context(task, 1, k, schema=schema, participants=tuple(range(clients)))
        step.validate(ctx)
        sent.append(tuple(step.names(all_of_them, ctx)))
    assert len(set(sent)) == groups
    assert sorted(n for names in set(sent) for n in names) == sorted(all_of_them)
    assert max(map(sent.count, sent)) - min(map(sent.count, sent)) <= 1  # none is sent more often


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_redraw_gives_both_sides_new_kernels_each_round(task, engine):
    method = fl.methods.fed_kgf(base_kernels=8, redraw=True)
    one, two = fl.run(method, task, 2, engine=engine), fl.run(method, task, 2, engine=engine)
    assert one == two
    assert one != fl.run(fl.methods.fed_kgf(base_kernels=8), task, 2, engine=engine)
    net = fl.initial_network(method, task)
    layer = next(m for m in net.modules() if isinstance(m, kgf.Generated))
    before = layer.beta.clone()
    method.model.refresh(net, task, 1)
    assert not torch.equal(layer.beta, before) and layer.beta.min() >= 2


def test_composes_with_a_compressing_uplink(task):
    compressed = fl.methods.fed_kgf(base_kernels=8).but(uplink=fl.methods.dgc().uplink)
    assert (
        fl.run(compressed, task, 2, engine="stacked").bytes_up[0]
        < fl.run(fl.methods.fed_kgf(base_kernels=8, groups=1), task, 1).bytes_up[0]
    )


def test_a_detector_and_the_ledgers_own_count():
    """The converter and the formula of the claims ledger, written apart from each other, agree on
    YOLOX-S."""
    from fedlearn.ledger import evaluate
    from fedlearn.models.yolo import YOLOX

    small = kgf.represent(YOLOX())
    assert parameter_count(small) == evaluate("base_params(yolox_s(), 16)")


def test_more_participants_than_modules_share_groups():
    task = fl.tasks.classification("digits", 6, train=90, test=40)
    method = fl.methods.fed_kgf(base_kernels=8)
    server, _, contexts = context(method, task, clients=6)
    sent = [tuple(method.uplink.expected(ctx)) for ctx in contexts]
    assert len(set(sent)) == 4
    assert sorted(n for names in set(sent) for n in names) == sorted(server.initial)
    assert not fl.run(method, task, 2).rows[-1]["refused"]


def test_frozen_layers_stay_frozen():
    def network(shape, classes):
        net = fl.models.digits_cnn(shape, classes)
        net.extractor[0].weight.requires_grad_(False)
        return net

    task = fl.tasks.classification("digits", 4, train=80, test=40, network=network)
    own = {"fed_gkt", "fed_repopt", "split_learning"}  # which train networks of their own
    for name in fl.methods.METHODS.keys() - own:
        method = fl.methods.get(name, **({"base_kernels": 8} if name == "fed_kgf" else {}))
        first = next(iter(fl.initial_network(method, task).state_dict()))
        history = fl.run(method, task, 3)
        assert torch.equal(history.state[first], method.server_side(task).initial[first]), name
