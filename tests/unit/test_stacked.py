"""Stacked training is sequential training: layer by layer, round by round, for every method that
allows it."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedlearn as fl
from fedlearn.core import local
from fedlearn.engines import stacked
from fedlearn.models import state_of
from fedlearn.parts import Context

CLIENTS = 3
LAYERS = [
    (nn.Conv2d(4, 8, 3, stride=2, groups=2, bias=False), (4, 7, 7)),
    (nn.BatchNorm2d(4), (4, 3, 3)),
    (nn.BatchNorm2d(4, track_running_stats=False), (4, 3, 3)),
    (nn.BatchNorm1d(7), (7,)),
    (nn.GroupNorm(2, 4), (4, 3, 3)),
    (nn.Linear(7, 5), (7,)),
    (nn.MaxPool2d(3, 2, 1), (4, 6, 6)),
    (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), (4, 3, 2)),
    (nn.Flatten(-2), (4, 2, 2)),
]


def different(net):
    """``net`` for three clients with parameters and statistics of their own, and the three networks
    one by one."""
    together = stacked.stack(net, CLIENTS)
    with torch.no_grad():
        for name, t in state_of(together).items():
            t.copy_(torch.rand_like(t) + 0.5 if "var" in name else torch.randn_like(t))
    alone = []
    for k in range(CLIENTS):
        alone.append(copy.deepcopy(net))
        for name, t in state_of(alone[k]).items():
            t.copy_(state_of(together)[name][k])
    return together, alone


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer, shape", LAYERS, ids=lambda v: str(v).split("(")[0])
def test_a_stacked_layer_is_a_loop_over_clients(layer, shape, training):
    """Outputs, gradients and running statistics."""
    with fl.rng.scope(0, "layer"):
        together, alone = different(
            nn.Sequential(copy.deepcopy(layer)).double().train(training)
        )
        batch = torch.randn(6, CLIENTS, *shape, dtype=torch.float64)
    images = stacked.channels_last(batch) if len(shape) == 3 else batch
    x = images.transpose(0, 1).requires_grad_()
    y = together(x)
    expected = [net(row) for net, row in zip(alone, x, strict=True)]
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    loss = (torch.stack(expected) * weights).sum()
    theirs = torch.autograd.grad(
        loss, [x, *(p for net in alone for p in net.parameters())]
    )
    ours = torch.autograd.grad((y * weights).sum(), [x, *together.parameters()])
    pairs = [(y, torch.stack(expected)), (ours[0], theirs[0])]
    pairs += [
        (g, torch.stack(theirs[1:][i :: len(ours) - 1])) for i, g in enumerate(ours[1:])
    ]
    each = [state_of(net) for net in alone]
    pairs += [
        (t, torch.stack([one[name] for one in each]))
        for name, t in state_of(together).items()
    ]
    for one, other in pairs:
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.integers(1, 12),
    st.floats(0, 100),
)
def test_steps_take_every_sample_once_in_batches_of_sequential_training(
    sizes, batch_size, spare
):
    sizes = sorted(sizes, reverse=True)
    taken = {k: [] for k in range(len(sizes))}
    for at, first, last, counts in stacked.steps(sizes, batch_size, spare):
        assert counts == tuple(sorted(counts, reverse=True))
        assert len(counts) == last - first
        assert spare or len(set(counts)) == 1
        for k in range(first, last):
            taken[k].append((at, counts[k - first]))
    for k, n in enumerate(sizes):
        assert taken[k] == [
            (at, min(batch_size, n - at)) for at in range(0, n, batch_size)
        ]


def trained_both_ways(method, task, settings, dtype, spare=0):
    """One local round of all clients from M^0: largest difference of any entry, and the largest
    movement. With ``spare`` batches of different size share steps."""
    net = fl.initial_network(method, task).to(dtype)
    initial = {name: t.clone() for name, t in state_of(net).items()}
    clients = sorted(range(task.clients), key=lambda k: -task.sizes[k])
    together = stacked.stack(net, task.clients)
    start = {name: t.clone() for name, t in state_of(together).items()}
    ctx = Context(task, 2, clients, initial, start, [{} for _ in clients], net=net)
    stacked.train(together, method, ctx, settings, spare)
    gap = moved = 0.0
    for i, k in enumerate(clients):
        local.load(state_of(net), initial)
        local.train(
            net, method, Context(task, 2, k, initial, initial, net=net), settings
        )
        for name, t in state_of(net).items():
            gap = max(gap, float((state_of(together)[name][i] - t).abs().max()))
            moved = max(moved, float((t - initial[name]).abs().max()))
    return gap, moved


def with_dropout(shape, classes):
    """Behind pooling, and behind a linear layer; digits are too small for its convolutions."""
    return nn.Sequential(
        nn.ZeroPad2d(2), fl.models.NETWORKS["rpn_cnn"]((1, 12, 12), classes)
    )


@pytest.mark.parametrize(
    "changes",
    [{"augment": ("crop", "flip")}, {"network": with_dropout, "partition": "permuted"}],
    ids=["augmented", "dropout"],
)
def test_what_is_drawn_is_drawn_the_same(changes):
    task = fl.tasks.classification("digits", 3, **{"train": 60} | changes)
    settings = fl.Settings(epochs=2, batch_size=16)
    gap, moved = trained_both_ways(
        fl.methods.fedavg(0.05), task, settings, torch.float64, 99
    )
    assert gap <= 1e-10
    assert moved > 1e-3


def test_a_stacked_run_resumes_with_what_clients_keep(task, tmp_path):
    options = {"engine": "stacked", "participation": 0.5}
    fl.run("dgc", task, 1, checkpoint=tmp_path / "c", **options)
    again = fl.run("dgc", task, 3, checkpoint=tmp_path / "c", **options)
    assert again == fl.run("dgc", task, 3, **options)
    assert again.meta["engine"]["name"] == "stacked"


class Anchored(fl.TaskLoss):
    """Adds one number, the distance of all clients together from the start, to each client's loss.
    At the start itself its gradient is zero."""

    def begin(self, net, ctx):
        loss = super().begin(net, ctx)
        start = ctx.start

        def anchored(net, batch):
            moved = ((p - start[n]).pow(2).sum() for n, p in net.named_parameters())
            return loss(net, batch) + 0.1 * sum(moved)

        return anchored


@pytest.mark.parametrize(
    "why, method, network",
    [
        ("losses of a first step", fl.methods.fedavg().but(objective=Anchored()), None),
        (
            "LayerNorm",
            fl.methods.fedavg(),
            lambda *_: nn.Sequential(nn.LayerNorm(8), nn.Flatten(), nn.Linear(64, 10)),
        ),
        ("take turns", fl.methods.split_learning(), None),
    ],
)
def test_what_cannot_be_stacked_is_refused_with_the_reason(why, method, network):
    task = fl.tasks.classification("digits", 3, train=60, test=20, network=network)
    history = fl.run(method, task, 1, engine="auto")
    assert history.meta["engine"]["name"] == "sequential"
    assert why in history.meta["engine"]["why"]
    assert history == fl.run(method, task, 1)
    with pytest.raises(ValueError, match=why):
        fl.run(method, task, 1, engine="stacked")


def test_memory_and_the_clients_of_a_round_say_how_many_train_together(
    task, monkeypatch
):
    method = fl.methods.fedavg()
    settings = fl.Settings()
    need = stacked.bytes_for_one(method, task, 32)
    assert need > stacked.bytes_for_one(method, task, 8) > 7 * 4 * (10_078 + 136)

    def chosen(count, limit=1000 * need, engine="stacked"):
        monkeypatch.setattr(stacked, "free_memory", lambda device: 2 * limit)
        return stacked.choose(engine, method, task, settings, count)

    one = "memory for one client at a time"
    assert chosen(4, 2.5 * need) == stacked.Choice("stacked", 2, "asked for")
    assert chosen(4, need) == stacked.Choice("sequential", 1, one)
    assert chosen(1) == stacked.Choice("sequential", 1, "one client a round")
    assert chosen(4).together == 4
    assert chosen(1000).together == 128
    with pytest.raises(ValueError, match="free memory"):
        chosen(4, need - 1)
    assert chosen(4, need - 1, engine="auto").why == one
