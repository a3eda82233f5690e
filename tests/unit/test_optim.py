"""Optimisers: options against torch's own, and what is kept of their state."""

import pytest
import torch
from torch import nn

import fedlearn as fl
from fedlearn.methods.scaffold import Controlled
from fedlearn.parts import SGD, Adam, Context, Continued

SHAPES = [(4, 3), (4,), (2, 1, 3, 3), ()]


def walked(optimizer, reference, count=6):
    """The parameters after so many steps of ours, and of torch's ``reference`` on the same
    gradients."""
    dice = torch.Generator().manual_seed(0)
    start, *grads = [
        [torch.randn(s, generator=dice) for s in SHAPES] for _ in range(count + 1)
    ]
    ours = [t.clone() for t in start]
    theirs = [nn.Parameter(t.clone()) for t in start]
    state = optimizer.init(ours, Context(None, 1))
    torchs = reference(theirs)
    for gs in grads:
        optimizer.step(ours, gs, state)
        for p, g in zip(theirs, gs, strict=True):
            p.grad = g.clone()
        torchs.step()
    return ours, [p.detach() for p in theirs]


PAIRS = {
    "weight decay": (
        SGD(0.05, 0.9, 0.01),
        lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01),
    ),
    "Adam": (
        Adam(0.05, 0.8, 0.95, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, 0.05, (0.8, 0.95), weight_decay=0.01),
    ),
}


@pytest.mark.parametrize("ours, theirs", PAIRS.values(), ids=PAIRS)
def test_the_arithmetic_is_torchs(ours, theirs):
    for w, expected in zip(*walked(ours, theirs), strict=True):
        torch.testing.assert_close(w, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_continued_goes_on_where_it_stopped(engine, smooth):
    """One client with all images, and a server that takes its model: two rounds of one epoch are
    two epochs of torch's optimiser, whose state is never reset."""
    alone = fl.tasks.classification("digits", 1, train=64, test=60, network=smooth)
    method = fl.methods.fedavg().but(optimizer=Continued(Adam(0.01)))
    history = fl.run(method, alone, 2, engine=engine)
    net = method.client_side(alone).net
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for t in (1, 2):
        order = torch.randperm(64, generator=fl.rng.generator(0, "shuffle", t, 0))
        x, y = alone.epoch(0, order, None)
        for at in (0, 32):
            optimizer.zero_grad()
            alone.loss(net(x[at : at + 32]), y[at : at + 32]).backward()
            optimizer.step()
    for name, p in net.named_parameters():
        torch.testing.assert_close(
            history.state[name], p.detach(), atol=1e-5, rtol=1e-4
        )


def test_a_shift_is_computed_anew(task):
    method = fl.methods.scaffold()
    continued = method.but(optimizer=Continued(method.optimizer))
    assert fl.run(continued, task, 3) == fl.run(method, task, 3)


OUT_OF_RANGE = [
    (SGD, {"decay": 1.1}),
    (Controlled, {"momentum": 0.9}),
    (Adam, {"eps": 0}),
]


@pytest.mark.parametrize("kind, options", OUT_OF_RANGE)
def test_options_that_cannot_be(kind, options):
    with pytest.raises(ValueError, match=f"{kind.__name__}|{[*options][0]}"):
        kind(**options)
