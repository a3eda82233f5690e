"""Fed-KGF: kernel generation, the way there and back, modules and their assembly, the paper's
exact numbers."""

import copy
from importlib import import_module

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.models import parameter_count, state_of
from fedlearn.parts import Context
from fedlearn.wire import UP, Message, pack

kgf = import_module("fedlearn.methods.fed_kgf")  # fl.methods.fed_kgf is the function


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


def test_resnet18_has_510778_parameters_in_18_modules(resnet):
    """Table 2 of the paper, module by module."""
    first = [560, 9_344, 9_344, 9_344, 9_344, 9_472, 19_968, 18_688, 18_688]
    paper = [*first, 18_944, 39_936, 37_376, 37_376, 37_888, 79_872, 74_752, 74_752, 5_130]
    small = kgf.represent(resnet)
    state, learned = state_of(small), {name for name, _ in small.named_parameters()}
    modules = kgf.modules(fl.wire.Schema({n: tuple(t.shape) for n, t in state.items()}))
    assert [sum(state[n].numel() for n in m if n in learned) for m in modules] == paper
    assert parameter_count(small) == sum(paper) == 510_778


@pytest.mark.parametrize("name", ["digits_cnn", "digits_resnet", "resnet8", "repghost_05"])
def test_there_and_back(name):
    shape = (1, 8, 8) if name.startswith("digits") else (3, 32, 32)
    net = fl.models.NETWORKS[name](shape).eval()
    small = kgf.represent(net, 8)
    plain, x = kgf.write_out(small), torch.randn(2, *shape)
    with torch.no_grad():
        torch.testing.assert_close(plain(x), small(x))
    assert list(plain.state_dict()) == list(net.state_dict())
    assert parameter_count(plain) == parameter_count(net) > parameter_count(small)
