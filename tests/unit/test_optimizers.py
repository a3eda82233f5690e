"""Optimisers and label smoothing: each option against torch's own, or its formula written out."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl
from fedlearn.parts import SGD, Adam, Batch, Context, Continued, Smoothed, TaskLoss

SHAPES = [(4, 3), (4,), (2, 1, 3, 3), ()]


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, train=120, test=60)


def walked(optimizer, reference, steps=6):
    """The parameters after so many steps of ours, and of torch's ``reference`` on the same
    gradients."""
    g = torch.Generator().manual_seed(0)
    start = [torch.randn(s, generator=g) for s in SHAPES]
    ours, theirs = [t.clone() for t in start], [nn.Parameter(t.clone()) for t in start]
    state, torchs = optimizer.init(ours, Context(None, 1)), reference(theirs)
    for _ in range(steps):
        grads = [torch.randn(s, generator=g) for s in SHAPES]
        optimizer.step(ours, grads, state)
        for p, grad in zip(theirs, grads, strict=True):
            p.grad = grad.clone()
        torchs.step()
    return ours, [p.detach() for p in theirs]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            SGD(0.05, 0.9, 0.01, nesterov=True),
            lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01, nesterov=True),
        ),
        (
            Adam(0.05, weight_decay=0.01, amsgrad=True),
            lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.01, amsgrad=True),
        ),
        (
            Adam(0.05, weight_decay=0.1, decoupled=True, amsgrad=True),
            lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1, amsgrad=True),
        ),
    ],
)
def test_nesterov_and_amsgrad_are_torchs(ours, theirs):
    for w, expected in zip(*walked(ours, theirs), strict=True):
        torch.testing.assert_close(w, expected, atol=1e-6, rtol=1e-5)
    plain = type(ours)(0.05, **({"momentum": 0.9} if isinstance(ours, SGD) else {}))
    assert any(not torch.equal(a, b) for a, b in zip(*walked(plain, theirs), strict=True))


@pytest.mark.parametrize("optimizer", [SGD(0.5, 0.0, 0.1, spare=True), Adam(0.5, spare=True)])
def test_spared_weight_decay_leaves_vectors_alone(optimizer, task):
    """w <- w - lr wd w for kernels and matrices; biases and normalisation stay, where g = 0. The
    trained scale of a branch is decayed as the kernels are, or CSLA would not be RepOpt."""
    decoupled = {"weight_decay": 0.1, "decoupled": True} if isinstance(optimizer, Adam) else {}
    optimizer = type(optimizer)(**(vars(optimizer) | decoupled))
    side = fl.methods.fed_repopt(form="csla").client_side(task)
    named = dict(side.net.named_parameters())
    params = [p.detach().clone() + 1 for p in named.values()]
    before = [p.clone() for p in params]
    state = optimizer.init(params, side.context(1, 0, side.up, {}))
    optimizer.step(params, [torch.zeros_like(p) for p in params], state)
    for name, p, was in zip(named, params, before, strict=True):
        shrinks = p.dim() > 1 or name.endswith("s_id.value")
        torch.testing.assert_close(p, was * (1 - 0.5 * 0.1) if shrinks else was)
    assert sum(name.endswith("s_id.value") for name in named) == 3


def test_the_rate_falls_to_its_floor():
    rates = [SGD(0.1, decay=0.5, floor=0.02).init([], Context(None, t))["lr"] for t in (1, 2, 3, 4)]
    assert rates == [0.1, 0.05, 0.025, 0.02]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("of", [Adam(0.01), SGD(0.05, 0.9)])
def test_continued_goes_on_where_it_stopped(of, engine):
    """One client with all images, and a server that takes its model: two rounds of one epoch are
    two epochs of torch's optimiser, whose state is never reset."""
    alone = fl.tasks.classification("digits", 1, train=64, test=60, network="digits_resnet")
    method = fl.methods.fedavg().but(optimizer=Continued(of))
    history = fl.run(method, alone, 2, engine=engine)
    net = method.client_side(alone).net
    make = (
        (lambda p: torch.optim.Adam(p, 0.01))
        if isinstance(of, Adam)
        else (lambda p: torch.optim.SGD(p, 0.05, 0.9))
    )
    optimizer = make(net.parameters())
    for t in (1, 2):
        order = torch.randperm(64, generator=fl.rng.generator(0, "shuffle", t, 0))
        x, y = alone.epoch(0, order, None)
        for at in (0, 32):
            optimizer.zero_grad()
            alone.loss(net(x[at : at + 32]), y[at : at + 32]).backward()
            optimizer.step()
    for name, p in net.named_parameters():
        torch.testing.assert_close(history.state[name], p.detach(), atol=1e-5, rtol=1e-4)
    anew = fl.run(method.but(optimizer=of), alone, 2, engine=engine)
    assert any(not torch.allclose(anew.state[n], t, atol=1e-4) for n, t in history.state.items())


def test_continued_is_the_same_run_after_a_stop_and_when_stacked(task, tmp_path):
    method = fl.methods.fedavg().but(optimizer=Continued(Adam(0.01)))
    whole = fl.run(method, task, 4, participation=0.5)
    fl.run(method, task, 2, participation=0.5, checkpoint=tmp_path / "c")
    assert fl.run(method, task, 4, participation=0.5, checkpoint=tmp_path / "c") == whole
    stacked = fl.run(method, task, 4, participation=0.5, engine="stacked")
    for n, t in whole.state.items():
        torch.testing.assert_close(stacked.state[n], t, atol=1e-4, rtol=1e-3)


def test_a_state_that_is_not_finite_begins_anew():
    memory, p = {}, [torch.ones(3)]
    ctx = Context(None, 1, memory=memory)
    state = Continued(Adam()).init(p, ctx)
    Adam().step(p, [torch.tensor([1.0, float("inf"), 1.0])], state)
    again = Continued(Adam()).init(p, ctx)
    assert all(not t.any() for key in ("m", "v", "c1") for t in again[key])
    assert all(torch.isfinite(t).all() for t in memory.values())


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7)])
def test_label_smoothing_is_torchs(shape, task):
    z = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    y = torch.randint(7, shape[:-1], generator=torch.Generator().manual_seed(1))
    loss = Smoothed(0.1).begin(nn.Identity(), Context(task, 1))(nn.Identity(), Batch(z, y, y))
    rows = zip(z, y, strict=True) if len(shape) > 2 else [(z, y)]
    torchs = [F.cross_entropy(one, its, label_smoothing=0.1) for one, its in rows]
    torch.testing.assert_close(loss.reshape(-1), torch.stack(torchs))
    hard = TaskLoss().begin(nn.Identity(), Context(task, 1))(nn.Identity(), Batch(z, y, y))
    assert not torch.allclose(loss, hard)


def test_an_option_that_is_off_is_not_in_the_name():
    """By their text stored runs are known again: what came later must not change it."""
    assert repr(SGD()) == "SGD(lr=0.1, momentum=0.0, weight_decay=0.0, decay=1.0)"
    assert repr(SGD(floor=0.01)).endswith("decay=1.0, floor=0.01)")
    assert repr(Adam()).endswith("decoupled=False)")
    assert repr(Adam(amsgrad=True)).endswith("decoupled=False, amsgrad=True)")


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(floor=0.2),
        lambda: SGD(floor=-0.1),
        lambda: SGD(nesterov=True),
        lambda: Continued(0.1),
        lambda: Smoothed(1.0),
    ],
)
def test_options_that_cannot_be(make):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).count("\n") == 0 and str(error.value).endswith(".")
