"""Stacked training is sequential training: layer by layer, round by round, for every method that
allows it."""

import copy
import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedlearn as fl
from fedlearn import local, stacked
from fedlearn.models import state_of
from fedlearn.parts import Context, Step, Update

CLIENTS = 3
STACKING = [name for name in fl.methods.METHODS if fl.methods.get(name).sides[1].stacks]
LAYERS = [
    (nn.Conv2d(4, 6, 3, padding=1), (4, 5, 5)),
    (nn.Conv2d(4, 8, 3, stride=2, groups=2, bias=False), (4, 7, 7)),
    (nn.BatchNorm2d(4), (4, 3, 3)),
    (nn.BatchNorm2d(4, affine=False), (4, 3, 3)),
    (nn.BatchNorm2d(4, track_running_stats=False), (4, 3, 3)),
    (nn.BatchNorm1d(7), (7,)),
    (nn.GroupNorm(2, 4), (4, 3, 3)),
    (nn.Linear(7, 5), (7,)),
    (nn.Linear(7, 5, bias=False), (7,)),
    (nn.MaxPool2d(3, 2, 1), (4, 6, 6)),
    (nn.AvgPool2d(2), (4, 6, 6)),
    (nn.AdaptiveAvgPool2d(1), (4, 5, 5)),
    (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), (4, 3, 2)),
    (nn.Flatten(-2), (4, 2, 2)),
    (nn.Flatten(0, 1), (4, 2, 2)),
]


def different(net):
    """``net`` for three clients with parameters and statistics of their own, and the three networks
    one by one."""
    both = stacked.stack(net, CLIENTS)
    with torch.no_grad():
        for name, t in state_of(both).items():
            t.copy_(torch.rand_like(t) + 0.5 if "var" in name else torch.randn_like(t))
    alone = []
    for k in range(CLIENTS):
        alone.append(copy.deepcopy(net))
        for name, t in state_of(alone[k]).items():
            t.copy_(state_of(both)[name][k])
    return both, alone


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "layer, shape", LAYERS, ids=lambda v: repr(v) if isinstance(v, nn.Module) else ""
)
def test_a_stacked_layer_is_a_loop_over_clients(layer, shape, training):
    """Outputs, gradients and running statistics."""
    with fl.rng.scope(0, "layer"):
        both, alone = different(nn.Sequential(copy.deepcopy(layer)).double().train(training))
        batch = torch.randn(6, CLIENTS, *shape, dtype=torch.float64)
    images = stacked.channels_last(batch) if len(shape) == 3 else batch
    x = images.transpose(0, 1).requires_grad_()
    y, expected = both(x), [net(row) for net, row in zip(alone, x, strict=True)]
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    loss = (torch.stack(expected) * weights).sum()
    theirs = torch.autograd.grad(loss, [x, *(p for net in alone for p in net.parameters())])
    ours = torch.autograd.grad((y * weights).sum(), [x, *both.parameters()])
    pairs = [(y, torch.stack(expected)), (ours[0], theirs[0])]
    pairs += [(g, torch.stack(theirs[1:][i :: len(ours) - 1])) for i, g in enumerate(ours[1:])]
    each = [state_of(net) for net in alone]
    pairs += [(t, torch.stack([one[name] for one in each])) for name, t in state_of(both).items()]
    for one, other in pairs:
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_statistics_of_padded_rows_need_two_values_as_those_of_torch_do():
    both = stacked.stack(nn.Sequential(nn.BatchNorm1d(4)), 2).train()
    stacked.prepare(both, (3, 2), [])
    assert both(torch.randn(2, 3, 4)).isfinite().all()
    stacked.prepare(both, (3, 1), [])
    with pytest.raises(ValueError, match="1 value"):
        both(torch.randn(2, 3, 4))


def test_narrow_shows_some_clients_and_shares_their_memory():
    tied, frozen = nn.Linear(4, 4), nn.Linear(4, 4)
    frozen.weight.requires_grad_(False)
    both, _ = different(nn.Sequential(fl.models.digits_cnn(), tied, tied, frozen))
    part = stacked.narrow(both, 1, 3)
    assert list(state_of(part)) == list(state_of(both))
    for name, t in state_of(part).items():
        t.fill_(7)
        whole = state_of(both)[name]
        assert (whole[1:] == 7).all() and (whole[0] != 7).any()
    assert part[1].weight is part[2].weight
    assert not part[3].weight.requires_grad and part[3].bias.requires_grad


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 12), st.floats(0, 100))
def test_steps_take_every_sample_once_in_batches_of_sequential_training(sizes, batch_size, spare):
    sizes = sorted(sizes, reverse=True)
    taken = {k: [] for k in range(len(sizes))}
    for at, first, last, counts in stacked.steps(sizes, batch_size, spare):
        assert counts == tuple(sorted(counts, reverse=True)) and len(counts) == last - first
        assert spare or len(set(counts)) == 1
        for k in range(first, last):
            taken[k].append((at, counts[k - first]))
    for k, n in enumerate(sizes):
        assert taken[k] == [(at, min(batch_size, n - at)) for at in range(0, n, batch_size)]


def test_steps_example():
    both = (4, 0, 2, (1, 1))
    assert stacked.steps([5, 5, 3], 4) == [(0, 0, 2, (4, 4)), (0, 2, 3, (3,)), both]
    assert stacked.steps([5, 5, 3], 4, spare=2) == [(0, 0, 3, (4, 4, 3)), both]


def trained_both_ways(method, task, settings, dtype, spare=0):
    """One local round of all clients from M^0: largest difference of any entry, and the largest
    movement. With ``spare`` batches of different size share steps."""
    net = fl.initial_network(method, task).to(dtype)
    initial = {name: t.clone() for name, t in state_of(net).items()}
    clients = sorted(range(task.clients), key=lambda k: -task.sizes[k])
    both = stacked.stack(net, task.clients)
    start = {name: t.clone() for name, t in state_of(both).items()}
    ctx = Context(task, 2, clients, initial, start, [{} for _ in clients], net=net)
    stacked.train(both, method, ctx, settings, spare)
    apart = moved = 0.0
    for i, k in enumerate(clients):
        local.load(state_of(net), initial)
        local.train(net, method, Context(task, 2, k, initial, initial, net=net), settings)
        for name, t in state_of(net).items():
            apart = max(apart, float((state_of(both)[name][i] - t).abs().max()))
            moved = max(moved, float((t - initial[name]).abs().max()))
    return apart, moved


@pytest.mark.parametrize("name", STACKING)
def test_every_method_trains_the_same(task, name):
    method = fl.methods.get(name).but(optimizer=fl.SGD(0.05, momentum=0.9, weight_decay=1e-3))
    apart, moved = trained_both_ways(method, task, fl.Settings(), torch.float64, spare=50)
    assert apart <= 1e-10 and moved > 1e-2


@pytest.mark.parametrize(
    "network, changes",
    [
        ("digits_cnn", {"augment": ("crop", "flip")}),
        ("rpn_cnn", {"partition": "permuted"}),  # dropout behind pooling, and behind a linear layer
        ("mcmahan_cnn", {"partition": "dirichlet:0.5"}),
        pytest.param("resnet18", {"train": 30}, marks=pytest.mark.slow),
    ],
)
def test_every_network_trains_the_same(network, changes):
    def padded(shape, classes):  # digits are too small for the valid convolutions of rpn_cnn
        return nn.Sequential(nn.ZeroPad2d(2), fl.models.NETWORKS[network]((1, 12, 12), classes))

    build = padded if network == "rpn_cnn" else network
    task = fl.tasks.classification("digits", 3, **{"train": 60, "network": build} | changes)
    settings = fl.Settings(epochs=2, batch_size=16)
    apart, moved = trained_both_ways(fl.methods.fedavg(0.05), task, settings, torch.float64, 99)
    assert apart <= 1e-10 and moved > 1e-3


# a last bit that differs is enough for another draw: a mask, or a level rounded up instead of down
@pytest.mark.parametrize("name", [n for n in STACKING if n not in ("fedpm", "qsgd")])
def test_a_stacked_round_is_a_sequential_round(task, name):
    """Also with messages of other kinds, and what evaluation asks of the clients."""
    one, other = (
        fl.run(fl.methods.get(name), task, 1, engine=e) for e in ("sequential", "stacked")
    )
    assert other.meta["engine"] == {"name": "stacked", "together": 4, "why": "asked for"}
    rounded = {"accuracy", "loss", "seconds"}
    for row, twin in zip(one.rows, other.rows, strict=True):
        assert not row["refused"] and not row["unevaluated"]
        assert all(row[column] == twin[column] for column in row.keys() - rounded)
    for tensor, t in one.state.items():
        torch.testing.assert_close(other.state[tensor], t, atol=1e-5, rtol=0)


class Half(Step):
    """Sends half of the update and remembers the rest: a step is handed one client at a time."""

    def encode(self, x, ctx):
        whole = {name: t + ctx.memory.get(name, 0) for name, t in x.items()}
        ctx.memory.update({name: t / 2 for name, t in whole.items()})
        return {name: t / 2 / (1 + t.norm()) for name, t in whole.items()}


def test_what_a_step_keeps_is_each_clients_own_and_a_stacked_run_resumes(task, tmp_path):
    method = fl.methods.fedavg().but(uplink=fl.Uplink(Update(), Half()))
    one, other = (
        fl.run(method, task, 3, engine=e, participation=0.5) for e in ("sequential", "stacked")
    )
    assert other.meta["engine"]["name"] == "stacked"
    for name, t in one.state.items():
        torch.testing.assert_close(other.state[name], t, atol=1e-4, rtol=0)
    how = dict(checkpoint=tmp_path / "c", engine="stacked", participation=0.5)
    fl.run(method, task, 1, **how)
    assert fl.run(method, task, 3, **how) == other


def test_groups_do_not_matter(task):
    """And no message of a later group is written before an earlier one's answers are out."""
    states, method = [], fl.methods.fedavg()
    for together, groups in ((2, [2, 2]), (3, [3, 1]), (4, [4])):
        server, clients = method.server_side(task), fl.clients(method, task, together=together)
        state, log = server.start(), []

        def write(k, server=server, state=state, log=log):
            log.append("down")
            return server.send(1, k, state)[0]

        arrivals = []
        for k, answer in clients.exchange(1, "train", server.participants(1), write):
            arrivals.append(server.receive(1, k, answer, state))
            log.append("up")
        assert log == [way for n in groups for way in ["down"] * n + ["up"] * n]
        assert [a.client for a in arrivals] == [0, 1, 2, 3]
        states.append(server.aggregate(1, state, arrivals).weights)
    for name, t in states[0].items():
        for state in states[1:]:
            torch.testing.assert_close(state[name], t, atol=1e-5, rtol=0)


# ---- what cannot be stacked ----------------------------------------------------------------------


class Pooled(fl.TaskLoss):
    """Averages over the clients as well: the mistake that the comparison is there for."""

    def begin(self, net, ctx):
        return lambda net, batch: F.cross_entropy(net(batch.x).flatten(0, -2), batch.y.flatten())


class Anchored(fl.TaskLoss):
    """Adds one number, the distance of all clients together from the start, to each client's loss.
    At the start itself its gradient is zero."""

    def begin(self, net, ctx):
        loss, start = super().begin(net, ctx), ctx.start

        def anchored(net, batch):
            moved = ((p - start[n]).pow(2).sum() for n, p in net.named_parameters())
            return loss(net, batch) + 0.1 * sum(moved)

        return anchored


class Clipped(fl.SGD):
    """Clips the gradient by its norm over everything, so that one client's gradient changes
    another's step."""

    def step(self, params, grads, state):
        norm = torch.stack([g.norm() for g in grads]).norm()
        super().step(params, [g / norm for g in grads], state)


def normalised(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, classes))


class Viewing(nn.Module):
    """Counts on the default layout, and on a batch in front."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(144, 10)

    def forward(self, x):
        return self.out(self.conv(x).view(x.size(0), -1))


@pytest.mark.parametrize(
    "why, method, network",
    [
        ("losses of a first step", fl.methods.fedavg().but(objective=Pooled()), None),
        ("losses of a first step", fl.methods.fedavg().but(objective=Anchored()), None),
        ("losses of a first step", fl.methods.fedavg().but(optimizer=Clipped()), None),
        ("LayerNorm", fl.methods.fedavg(), normalised),
        ("Error", fl.methods.fedavg(), lambda shape, classes: Viewing()),
        ("take turns", fl.methods.split_learning(), None),
    ],
)
def test_what_cannot_be_stacked_is_refused_with_the_reason(why, method, network, monkeypatch):
    task = fl.tasks.classification("digits", 3, train=60, test=20, network=network)
    history = fl.run(method, task, 1, engine="auto")
    assert history.meta["engine"]["name"] == "sequential"
    assert why in history.meta["engine"]["why"] and history == fl.run(method, task, 1)
    monkeypatch.setattr("fedlearn.local.OneByOne.exchange", lambda *a: pytest.fail("trained"))
    with pytest.raises(ValueError, match=f"cannot be trained stacked: .*{why}"):
        fl.run(method, task, 1, engine="stacked")


# ---- which engine --------------------------------------------------------------------------------


def test_memory_and_the_clients_of_a_round_say_how_many_train_together(task, monkeypatch):
    method, settings = fl.methods.fedavg(), fl.Settings()
    need = stacked.bytes_for_one(method, task, 32)
    assert need > stacked.bytes_for_one(method, task, 8) > 7 * 4 * (10_078 + 136)

    few, many = (fl.tasks.classification("digits", 3, train=n) for n in (60, 120))
    more = stacked.bytes_for_one(method, many, 8) - stacked.bytes_for_one(method, few, 8)
    assert more == 2 * 20 * few.train[0][0].nbytes

    def chosen(count, limit=None, engine="stacked"):
        return stacked.choose(engine, method, task, settings, count, limit)

    assert chosen(4, 2.5 * need) == stacked.Choice("stacked", 2, "asked for")
    assert chosen(4, need) == stacked.Choice("sequential", 1, "memory for one client at a time")
    assert chosen(1) == stacked.Choice("sequential", 1, "one client a round")
    assert chosen(4, need, "sequential") == stacked.Choice("sequential", 1, "asked for")
    assert chosen(4).together == 4 and chosen(1000).together == 128
    with pytest.raises(ValueError, match="memory_limit allows"):
        chosen(4, need - 1)
    full = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=need))
    monkeypatch.setattr(stacked, "psutil", full)
    assert chosen(4, engine="auto").why == "memory for one client at a time"
    with pytest.raises(ValueError, match="memory_limit allows"):
        chosen(4)


@pytest.mark.parametrize(
    "network, batch_size, name, why",
    [
        ("digits_cnn", 32, "stacked", "2.4 million multiply-adds a step"),
        ("cifar_cnn", 32, "sequential", "million multiply-adds a step"),
        ("cifar_cnn", 8, "stacked", "million multiply-adds a step"),
    ],
)
def test_auto_stacks_small_steps(network, batch_size, name, why):
    task = fl.tasks.classification("digits", 3, train=120, network=network)
    settings = fl.Settings(batch_size=batch_size)
    choice = stacked.choose("auto", fl.methods.fedavg(), task, settings, 3)
    assert choice.name == name and why in choice.why


GROWTH = """
import re, sys
sys.path.insert(0, sys.argv[1])
import fedlearn as fl
from fedlearn import stacked
from fedlearn.round import one_round
from common import random_task

def peak(clients):
    task, method = random_task("digits_cnn", (1, 28, 28), clients, 64), fl.methods.fedavg(0.1, 0.9)
    server, engine = method.server_side(task), fl.clients(method, task, together=clients)
    state = server.start()
    for t in (1, 2):
        state, row = one_round(server, engine, t, state, {})
    # unlike getrusage, it does not begin with the peak of the process that started this one
    status = open("/proc/self/status").read()
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]), task, method

few, (many, task, method) = peak(4)[0], peak(20)
print((many - few) / 16, stacked.bytes_for_one(method, task, 32))
"""


@pytest.mark.slow
def test_the_estimate_of_memory_holds_what_a_client_really_takes_and_not_thrice_that():
    """Measured: by how much the peak of a process grows with every client in the stack."""
    status = Path("/proc/self/status")
    if not status.exists() or "VmHWM" not in status.read_text():
        pytest.skip("the peak of a process is read from Linux's /proc")
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    command = [sys.executable, "-c", GROWTH, str(folder)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    growth, need = map(float, output.split())
    assert need / 3 < growth < need


# ---- arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sequential", "stacked"])
def test_bf16_trains_in_bf16_and_keeps_float32_weights(task, name):
    exact, rough = (
        fl.run(fl.methods.fedavg(), task, 1, engine=name, precision=p) for p in ("float32", "bf16")
    )
    differ = max(float((rough.state[n] - t).abs().max()) for n, t in exact.state.items())
    assert 1e-5 < differ < 0.3 and all(t.dtype == torch.float32 for t in rough.state.values())
    assert rough.meta["settings"]["precision"] == "bf16"


@pytest.mark.slow
def test_a_run_leaves_no_tensor_behind():
    """Also not the choice of the engine, which watches what is saved."""

    def alive():
        task = fl.tasks.classification("digits", 4, "dirichlet:0.5", train=160, test=20)
        fl.run(fl.methods.fedavg(0.1), task, 1, engine="auto", progress=False)
        del task
        gc.collect()
        return sum(type(o) in (torch.Tensor, torch.nn.Parameter) for o in gc.get_objects())

    alive()
    assert alive() == alive()


def test_clients_of_one_image_share_a_step():
    """Torch's grouped convolution has a wrong gradient for strides that one image may have."""
    task = fl.tasks.detection(clients=3, partition="dirichlet:0.5", train=12, test=4)
    assert task.sizes == [1, 1, 10]
    settings = fl.Settings(batch_size=4)
    apart, moved = trained_both_ways(fl.methods.fedavg(0.05), task, settings, torch.float64)
    assert apart <= 1e-9 and moved > 1e-3
