"""Fed-KGF: kernel generation, the way there and back, modules and their assembly, the paper's
exact numbers."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.core import local
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


def layer_of(weight, **options):
    conv = nn.Conv2d(weight.shape[1], len(weight), weight.shape[-1], bias=False)
    conv.weight.data = weight
    return kgf.represent(nn.Sequential(conv), 2, **options)[0]


def test_generated_kernels_are_equation_2():
    w = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    layer, full = layer_of(w), layer_of(w).weight.detach()
    alpha, beta = kgf.draw((3, 3, 3, 3), 0, "0")
    assert (
        1e-5 <= alpha.min()
        and alpha.max() <= 0.1
        and 2 <= beta.min()
        and beta.max() <= 10
    )
    of = w[[0, 1, 0]]  # copy i comes from base kernel i mod 2
    torch.testing.assert_close(
        full, torch.cat([w[:2], of.sign() * (of.abs() ** beta + alpha)])
    )
    assert list(layer.state_dict()) == ["base"]  # alpha and beta never travel
    assert (layer_of(w, sign=False).weight[2:] > 0).all()
    without = layer_of(w, alpha=False).weight[2:]
    torch.testing.assert_close(full[2:] - without, of.sign() * alpha, atol=1e-4, rtol=0)
    assert not layer_of(0 * w).weight.any()  # sign(0) = 0: alpha does not help a zero


@pytest.mark.parametrize("detach", [False, True])
def test_gradient_through_the_generated_kernels(detach):
    w = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(3))
    layer = layer_of(w, detach=detach).double()
    layer.weight.sum().backward()
    w, beta = layer.base.detach(), layer.beta
    expected = 1 + (0 if detach else beta * w.abs() ** (beta - 1))
    torch.testing.assert_close(layer.base.grad, expected * torch.ones_like(w))


def test_kernels_drawn_at_each_call():
    """w' = sign(w) (|w|^beta + alpha) with alpha and beta of this call; in evaluation mode named
    after seed, layer, round and call."""
    net = kgf.represent(nn.Sequential(nn.Conv2d(3, 8, 3)), 2, seed=5, every_call=True)
    layer, shape = net[0], (6, 3, 3, 3)
    torch.manual_seed(1)
    first = layer.weight.detach()
    torch.manual_seed(1)
    alpha, beta = (
        torch.rand(2, *shape)
        * torch.tensor([0.1 - 1e-5, 8.0])[:, None, None, None, None]
    )
    w = torch.cat([layer.base.detach()] * 3)
    expected = w.sign() * (w.abs() ** (beta + 2) + alpha + 1e-5)
    torch.testing.assert_close(first, torch.cat([layer.base.detach(), expected]))
    assert not torch.equal(layer.weight, layer.weight)
    one, two = net.eval()[0].weight, layer.weight
    layer.calls = 0
    assert torch.equal(layer.weight, one) and torch.equal(layer.weight, two)


def test_resnet18_has_510778_parameters_in_18_modules(resnet):
    """The paper's table, module by module."""
    first = [560, 9_344, 9_344, 9_344, 9_344, 9_472, 19_968, 18_688, 18_688]
    paper = [
        *first,
        18_944,
        39_936,
        37_376,
        37_376,
        37_888,
        79_872,
        74_752,
        74_752,
        5_130,
    ]
    small = kgf.represent(resnet)
    state, learned = state_of(small), {name for name, _ in small.named_parameters()}
    modules = kgf.modules(fl.wire.Schema({n: tuple(t.shape) for n, t in state.items()}))
    assert [sum(state[n].numel() for n in m if n in learned) for m in modules] == paper
    assert parameter_count(small) == sum(paper) == 510_778


@pytest.mark.parametrize("name", ["digits_resnet", "repghost_05"])
def test_there_and_back(name):
    shape = (1, 8, 8) if name.startswith("digits") else (3, 32, 32)
    net = fl.models.NETWORKS[name](shape).eval()
    small = kgf.represent(net, 8)
    plain, x = kgf.write_out(small), torch.randn(2, *shape)
    with torch.no_grad():
        torch.testing.assert_close(plain(x), small(x))
    assert list(plain.state_dict()) == list(net.state_dict())
    assert parameter_count(plain) == parameter_count(net) > parameter_count(small)


@pytest.mark.parametrize("count, groups", [(10, 10), (24, 18)])
def test_groups_cover_every_tensor_once_and_change_with_the_round(
    resnet, count, groups
):
    """As many as participants or modules, contiguous, and none is sent much more often."""
    names, rounds = {n: tuple(t.shape) for n, t in state_of(resnet).items()}, []
    schema, task, who = fl.wire.Schema(names), SimpleNamespace(seed=0), range(count)
    of = {n: i for i, module in enumerate(kgf.modules(schema)) for n in module}
    for t in (1, 2):
        contexts = [Context(task, t, k, schema=schema, participants=who) for k in who]
        rounds.append(
            [tuple(kgf.Modules().names(list(names), ctx)) for ctx in contexts]
        )
    one, two = rounds
    sent = set(one)
    assert one != two and len(sent) == groups
    if groups == count:  # one module each may be asked for
        kgf.Modules(groups).validate(contexts[0])
    assert sorted(n for group in sent for n in group) == sorted(names)
    found = sorted(sorted({of[n] for n in group}) for group in sent)
    assert [i for group in found for i in group] == list(range(18))
    assert max(map(one.count, sent)) - min(map(one.count, sent)) <= 1


def test_assembly_of_identical_clients_is_the_identity(task):
    method = fl.methods.fed_kgf(base_kernels=8)
    server, client = method.server_side(task), method.client_side(task)
    state, data = server.start(), {}
    trained = {n: t + 1 for n, t in state.weights.items()}
    for k in range(4):
        ctx = client.context(1, k, client.up, {}, start=state.weights)
        data[k] = method.uplink.encode(trained, ctx)

    def receive(k, sections):
        return server.receive(
            1, k, pack(Message(UP, 1, k, 20, sections), server.up), state
        )

    new = server.aggregate(
        1, state, [receive(k, sections) for k, sections in data.items()]
    )
    torch.testing.assert_close(new.weights, trained)
    with pytest.raises(fl.WireError, match="Client 1"):
        receive(1, data[3])


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_redraw_gives_both_sides_new_kernels_each_round(task, engine):
    method = fl.methods.fed_kgf(base_kernels=8, redraw=True)
    history, losses = fl.run(method, task, 2, engine=engine), []
    net = fl.initial_network(method, task)
    for t in (1, 2):
        method.model.refresh(net, task, t)
        net.load_state_dict(history.state, strict=False)
        losses.append(task.evaluate(net)["loss"])
    assert losses[1] == pytest.approx(history.rows[-1]["loss"]) != losses[0]


def test_random_kernels_are_the_networks_own_and_stay():
    w = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(2))
    layer = layer_of(w, copies="frozen")
    assert torch.equal(layer.weight, w) and torch.equal(layer.eval().weight, w)
    assert (
        [name for name, _ in layer.named_parameters()]
        == list(layer.state_dict())
        == ["base"]
    )


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_trained_copies_begin_as_equation_2_says_and_are_discarded(smooth, engine):
    """Two rounds by hand: what each client made of its copies is gone in the second."""
    task = fl.tasks.classification("digits", 4, train=80, test=40, network=smooth)
    method = fl.methods.fed_kgf(0.3, base_kernels=8, groups=1, copies="trained")
    history = fl.run(method, task, 2, engine=engine, progress=False)
    net, its = fl.initial_network(method, task), fl.Settings()
    client, state = method.client_side(task), dict(method.server_side(task).initial)
    for t in (1, 2):
        models = []
        for k in range(4):
            net.load_state_dict(state, strict=False)
            plain = kgf.write_out(net).train()  # every kernel is a parameter
            local.train(
                plain, fl.methods.fedavg(0.3), client.context(t, k, None, {}), its
            )
            trained = {n: t.clone() for n, t in state_of(plain).items()}
            models.append(
                [trained.get(n, trained.get(f"{n[:-4]}weight")) for n in state]
            )
        for (name, w), its_of_all in zip(
            state.items(), zip(*models, strict=True), strict=True
        ):
            state[name] = sum(its_of_all)[: len(w)] / 4  # equally many images each
    for name, w in history.state.items():
        torch.testing.assert_close(w, state[name], atol=1e-5, rtol=1e-4)
    net.load_state_dict(
        net.state_dict()
    )  # copies are in no state, and nobody misses them
    shifted = fl.methods.scaffold().but(model=method.model)
    assert fl.run(shifted, task, 1, engine=engine, progress=False).loss[0] < 3


@pytest.mark.parametrize(
    "start, least, most", [("torch", 0.3, 1 / 3), ("uniform", 0.95, 1)]
)
def test_where_kernels_start(task, start, least, most):
    """torch's rule for nine inputs: uniform up to 1 / sqrt(9)."""
    net = fl.initial_network(fl.methods.fed_kgf(base_kernels=8, start=start), task)
    first = next(p for p in net.parameters() if p.dim() == 4).abs()
    assert first[0].numel() == 9 and least < first.max() <= most


def test_a_kernel_of_two_by_two_begins_a_module():
    shapes = {
        "a": (4, 3, 3, 3),
        "b": (4,),
        "c": (4, 4, 1, 1),
        "d": (2, 4, 1, 2),
        "e": (9, 2),
    }
    assert kgf.modules(fl.wire.Schema(shapes)) == [["a", "b", "c"], ["d"], ["e"]]
