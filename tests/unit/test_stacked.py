"""Stacked training is sequential training: layer by layer, round by round, for every method that
allows it."""

import copy
import dataclasses
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedlearn as fl
from fedlearn import local, stacked
from fedlearn.models import state_of
from fedlearn.parts import Code, Context, Step, Update

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
    (nn.MaxPool2d(2), (4, 6, 6)),
    (nn.MaxPool2d(3, 2, 1), (4, 6, 6)),
    (nn.AvgPool2d(2), (4, 6, 6)),
    (nn.AdaptiveAvgPool2d(1), (4, 5, 5)),
    (nn.AdaptiveAvgPool2d((2, 1)), (4, 6, 5)),
    (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), (4, 3, 2)),
    (nn.Flatten(), (4, 2, 2)),
    (nn.Flatten(-2), (4, 2, 2)),
    (nn.ReLU(), (4, 2, 2)),
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
    with fl.rng.scope(0, "layer"):
        both, alone = different(nn.Sequential(copy.deepcopy(layer)).double().train(training))
        batch = torch.randn(6, CLIENTS, *shape, dtype=torch.float64)
    x = (
        (stacked.channels_last(batch) if len(shape) == 3 else batch)
        .transpose(0, 1)
        .requires_grad_()
    )
    y = both(x)
    expected = torch.stack([net(x[k]) for k, net in enumerate(alone)])
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=0)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    wanted = [x, *both.parameters()]
    ours = torch.autograd.grad((y * weights).sum(), wanted)
    theirs = torch.autograd.grad(
        (expected * weights).sum(), [x, *(p for net in alone for p in net.parameters())]
    )
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-12, rtol=0)
    for i, g in enumerate(ours[1:]):
        torch.testing.assert_close(
            g, torch.stack(theirs[1:][i :: len(ours) - 1]), atol=1e-12, rtol=0
        )
    for name, t in state_of(both).items():  # running statistics
        torch.testing.assert_close(
            t, torch.stack([state_of(net)[name] for net in alone]), atol=1e-12, rtol=0
        )


def test_narrow_shows_some_clients_and_shares_their_memory():
    with fl.rng.scope(0, "narrow"):
        both, _ = different(fl.models.digits_cnn())
    part = stacked.narrow(both, 1, 3)
    assert list(state_of(part)) == list(state_of(both))
    for name, t in state_of(part).items():
        t.fill_(7)
        whole = state_of(both)[name]
        assert (whole[1:] == 7).all() and (whole[0] != 7).any()


def test_narrow_keeps_frozen_parameters_frozen():
    net = nn.Linear(4, 4)
    net.weight.requires_grad_(False)
    part = stacked.narrow(stacked.stack(net, 3), 0, 2)
    assert not part.weight.requires_grad and part.bias.requires_grad


def test_a_network_that_counts_on_the_default_layout_still_trains():
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.out, self.extra = (
                nn.Conv2d(1, 4, 3),
                nn.Linear(144, 10),
                nn.Parameter(torch.zeros(1, 1, 1, 1, 1)),
            )

        def forward(self, x):
            x = self.conv(x)
            return self.out(x.view(x.size(0), -1)) + self.extra.sum()

    task = fl.tasks.classification("digits", 3, train=60, network=lambda shape, classes: Viewing())
    assert (
        fl.run(fl.methods.fedavg(), task, 1, engine="auto").meta["engine"]["name"] == "sequential"
    )


def test_narrow_keeps_tied_parameters_tied():
    first = nn.Linear(4, 4)
    net = stacked.stack(nn.Sequential(first, first), 3)
    part = stacked.narrow(net, 0, 2)
    assert part[0].weight is part[1].weight


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


@pytest.mark.parametrize("dtype, limit", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", STACKING)
def test_every_method_trains_the_same(task, name, dtype, limit):
    method = fl.methods.get(name).but(optimizer=fl.SGD(0.05, momentum=0.9, weight_decay=1e-3))
    spare = 50 if dtype == torch.float64 else 0
    apart, moved = trained_both_ways(method, task, fl.Settings(epochs=1), dtype, spare)
    # random masks switch weights on and off, so that rounding grows within a few steps
    if name == "fedpm" and dtype == torch.float32:
        limit = 1e-2
    assert apart <= limit and moved > 1e-2


@pytest.mark.parametrize(
    "network, changes",
    [
        ("digits_cnn", {"augment": ("crop", "flip")}),
        (
            "rpn_cnn",
            {"partition": "permuted"},
        ),  # dropout behind a pooling layer and behind a linear one
        ("mcmahan_cnn", {"partition": "dirichlet:0.5"}),
        pytest.param("resnet18", {"train": 30}, marks=pytest.mark.slow),
    ],
)
def test_every_network_trains_the_same(network, changes):
    def padded(shape, classes):  # digits are too small for the valid convolutions of rpn_cnn
        return nn.Sequential(nn.ZeroPad2d(2), fl.models.NETWORKS[network]((1, 12, 12), classes))

    build = padded if network == "rpn_cnn" else network
    task = fl.tasks.classification("digits", 3, **{"train": 90, "network": build} | changes)
    settings = fl.Settings(epochs=2, batch_size=16)
    apart, moved = trained_both_ways(fl.methods.fedavg(0.05), task, settings, torch.float64, 99)
    assert apart <= 1e-10 and moved > 1e-3


# a last bit that differs is enough for another draw: a mask, or a level rounded up instead of down
@pytest.mark.parametrize("name", [n for n in STACKING if n not in ("fedpm", "qsgd")])
def test_a_stacked_round_is_a_sequential_round(task, name):
    one, other = (
        fl.run(fl.methods.get(name), task, 1, engine=e) for e in ("sequential", "stacked")
    )
    assert other.meta["engine"] == {"name": "stacked", "together": 4, "why": "asked for"}
    for key in ("bytes_up", "bytes_down", "bytes_up_buffers", "bytes_down_buffers", "clients"):
        assert one.rows[0][key] == other.rows[0][key]
    for tensor, t in one.state.items():
        torch.testing.assert_close(other.state[tensor], t, atol=1e-5, rtol=0)


def test_a_stacked_round_with_dropout():
    task = fl.tasks.classification("digits", 3, train=60, network="mcmahan_cnn")
    one, other = (fl.run(fl.methods.fedavg(), task, 1, engine=e) for e in ("sequential", "stacked"))
    for tensor, t in one.state.items():
        torch.testing.assert_close(other.state[tensor], t, atol=1e-5, rtol=0)


def test_fed_gkt_gives_the_same_in_the_loop_and_stacked(task):
    """Messages of both kinds, the server's network, and what evaluation asks of the clients."""
    one, other = (
        fl.run(fl.methods.fed_gkt(), task, 2, engine=e) for e in ("sequential", "stacked")
    )
    assert other.meta["engine"]["together"] == 4
    for mine, its in zip(one.rows, other.rows, strict=True):
        assert not mine["refused"] and not mine["unevaluated"]
        numbers = {"accuracy", "loss", "seconds"}
        assert {k: v for k, v in mine.items() if k not in numbers} == {
            k: v for k, v in its.items() if k not in numbers
        }
        assert min(mine["bytes_evaluation_up"], mine["bytes_evaluation_down"]) > 0
        assert mine["accuracy"] == pytest.approx(its["accuracy"], abs=0.0051)
        assert mine["loss"] == pytest.approx(its["loss"], rel=1e-3)
    for name, t in one.state.items():
        torch.testing.assert_close(other.state[name], t, atol=1e-3, rtol=0)


def test_groups_do_not_matter(task):
    """And no message of a later group is written before an earlier one's answers are out."""
    states, method = [], fl.methods.fedavg()
    for together in (2, 3, 4):
        server, clients = method.server_side(task), fl.clients(method, task, together=together)
        state, log = server.start(), []

        def write(k, server=server, state=state, log=log):
            log.append("down")
            return server.send(1, k, state)[0]

        arrivals = []
        for k, answer in clients.exchange(1, "train", server.participants(1), write):
            arrivals.append(server.receive(1, k, answer, state))
            log.append("up")
        groups = {2: [2, 2], 3: [3, 1], 4: [4]}[together]
        assert log == [way for n in groups for way in ["down"] * n + ["up"] * n]
        assert [a.client for a in arrivals] == [0, 1, 2, 3]
        states.append(server.aggregate(1, state, arrivals).weights)
    for name, t in states[0].items():
        for state in states[1:]:
            torch.testing.assert_close(state[name], t, atol=1e-5, rtol=0)


def test_a_stacked_run_resumes(task, tmp_path):
    work = dict(participation=0.5, engine="stacked")
    fl.run(fl.methods.fedavg(), task, 1, checkpoint=tmp_path / "c", **work)
    assert fl.run(fl.methods.fedavg(), task, 3, checkpoint=tmp_path / "c", **work) == fl.run(
        fl.methods.fedavg(), task, 3, **work
    )


class Remembering(fl.Uplink):
    """Sends half of the update and remembers the rest for the next round: error feedback in its
    simplest form."""

    def encode(self, trained, ctx):
        update = {
            name: t - ctx.start[name] + ctx.memory.get(name, 0) for name, t in trained.items()
        }
        ctx.memory.update({name: t / 2 for name, t in update.items()})
        halves = {name: t / 2 for name, t in update.items()}
        return self.write(halves, ctx)


class Half(Step):
    """The same as a step of a chain."""

    def encode(self, x, ctx):
        whole = {name: t + ctx.memory.get(name, 0) for name, t in x.items()}
        ctx.memory.update({name: t / 2 for name, t in whole.items()})
        return {name: t / 2 for name, t in whole.items()}


@pytest.mark.parametrize("uplink", [Remembering(), fl.Uplink(Update(), Half())])
def test_an_uplink_that_remembers_gets_one_client_at_a_time(task, uplink):
    method = fl.methods.fedavg().but(uplink=uplink)
    one, other = (fl.run(method, task, 2, engine=e) for e in ("sequential", "stacked"))
    assert other.meta["engine"]["name"] == "stacked"
    for name, t in one.state.items():
        torch.testing.assert_close(other.state[name], t, atol=1e-4, rtol=0)


def test_a_step_of_ones_own_is_handed_one_client_at_a_time(task):
    class Normed(Update):
        def encode(self, x, ctx):
            return {name: t / (1 + t.norm()) for name, t in super().encode(x, ctx).items()}

    method = fl.methods.fedavg().but(uplink=fl.Uplink(Normed()))
    one, other = (fl.run(method, task, 1, engine=e) for e in ("sequential", "stacked"))
    for name, t in one.state.items():
        torch.testing.assert_close(other.state[name], t, atol=1e-5, rtol=0)


def test_a_coder_needs_no_list_functions(task):
    class Plain(fl.wire.Coder):
        def encode(self, tensor):
            return tensor.numpy().tobytes()

        def decode(self, section, shape):
            return torch.frombuffer(bytearray(section), dtype=torch.float32).view(shape)

    uplink, downlink = fl.Uplink(Update(), Code(Plain())), fl.Downlink(Code(Plain()))
    for e in ("sequential", "stacked"):
        method = fl.methods.fedavg().but(uplink=uplink, downlink=downlink)
        odd, usual = (fl.run(m, task, 2, engine=e) for m in (method, fl.methods.fedavg()))
        assert odd == usual
        assert all(torch.equal(odd.state[n], t) for n, t in usual.state.items())


def forbidden(*args):
    pytest.fail("training started")


# ---- what cannot be stacked ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pooled(fl.TaskLoss):
    """Averages over the clients as well: the mistake that the comparison is there for."""

    def begin(self, net, ctx):
        return lambda net, batch: F.cross_entropy(net(batch.x).flatten(0, -2), batch.y.flatten())


@dataclasses.dataclass(frozen=True)
class Anchored(fl.TaskLoss):
    """Adds one number, the distance of all clients together from the start, to each client's loss.
    At the start itself its gradient is zero."""

    def begin(self, net, ctx):
        loss, start = super().begin(net, ctx), ctx.start

        def anchored(net, batch):
            return loss(net, batch) + 0.1 * sum(
                (p - start[n]).pow(2).sum() for n, p in net.named_parameters()
            )

        return anchored


@dataclasses.dataclass(frozen=True)
class Clipped(fl.SGD):
    """Clips the gradient by its norm over everything, so that one client's gradient changes
    another's step."""

    def step(self, params, grads, state):
        norm = torch.stack([g.norm() for g in grads]).norm()
        super().step(params, [g / norm for g in grads], state)


def normalised(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, classes))


@pytest.mark.parametrize(
    "why, method, network",
    [
        ("losses of a first step", fl.methods.fedavg().but(objective=Pooled()), None),
        ("losses of a first step", fl.methods.fedavg().but(objective=Anchored()), None),
        ("losses of a first step", fl.methods.fedavg().but(optimizer=Clipped()), None),
        ("LayerNorm", fl.methods.fedavg(), normalised),
    ],
)
def test_what_cannot_be_stacked_is_refused_with_the_reason(why, method, network, monkeypatch):
    task = fl.tasks.classification("digits", 3, train=60, network=network)
    history = fl.run(method, task, 1, engine="auto")
    assert history.meta["engine"]["name"] == "sequential"
    assert why in history.meta["engine"]["why"]
    assert history == fl.run(method, task, 1)
    monkeypatch.setattr("fedlearn.local.OneByOne.exchange", forbidden)
    with pytest.raises(ValueError, match=f"cannot be trained stacked: .*{why}"):
        fl.run(method, task, 1, engine="stacked")


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"engine": "stakced"}, "Did you mean 'stacked'"),
        (
            {"engine": "stacked", "memory_limit": 1e5},
            "Training one client takes about .* MB, but memory_limit allows 0.1 MB",
        ),
        ({"engine": "sequential", "memory_limit": 0}, "memory_limit allows"),
        ({"engine": "auto", "memory_limit": float("nan")}, "memory_limit.*nan"),
        ({"engine": "auto", "memory_limit": -1}, "a number of bytes, not -1"),
        ({"engine": "auto", "memory_limit": "1e9"}, "memory_limit.*1e9"),
        ({"precision": "fp8"}, "no precision 'fp8'"),
    ],
)
def test_bad_input_stops_before_training(task, monkeypatch, settings, words):
    monkeypatch.setattr("fedlearn.local.OneByOne.exchange", forbidden)
    with pytest.raises(ValueError, match=words):
        fl.run(fl.methods.fedavg(), task, 1, **settings)


# ---- which engine --------------------------------------------------------------------------------


def test_memory_limits_how_many_train_together(task):
    need = stacked.bytes_for_one(fl.methods.fedavg(), task, 32)
    assert need > 7 * 4 * (10_078 + 136)
    history = fl.run(fl.methods.fedavg(), task, 1, engine="stacked", memory_limit=2.5 * need)
    assert history.meta["engine"]["together"] == 2
    history = fl.run(fl.methods.fedavg(), task, 1, engine="stacked", memory_limit=1.5 * need)
    assert history.meta["engine"] == {
        "name": "sequential",
        "together": 1,
        "why": "memory for one client at a time",
    }


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
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    growth, need = map(float, said.split())
    assert need / 3 < growth < need


def test_one_client_a_round_needs_no_stack(task):
    history = fl.run(fl.methods.fedavg(), task, 1, engine="stacked", participation=0.25)
    assert history.meta["engine"] == {
        "name": "sequential",
        "together": 1,
        "why": "one client a round",
    }


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
    how = fl.Settings(batch_size=batch_size)
    one, two = (stacked.choose("auto", fl.methods.fedavg(), task, how, 3) for _ in range(2))
    assert one == two and one.name == name and why in one.why


# ---- arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sequential", "stacked"])
def test_bf16_trains_in_bf16_and_keeps_float32_weights(task, name):
    exact, rough = (
        fl.run(fl.methods.fedavg(), task, 1, engine=name, precision=p) for p in ("float32", "bf16")
    )
    differ = max(float((rough.state[n] - t).abs().max()) for n, t in exact.state.items())
    assert 1e-5 < differ < 0.3 and all(t.dtype == torch.float32 for t in rough.state.values())
    assert rough.meta["settings"]["precision"] == "bf16"


def test_a_run_leaves_no_tensor_behind():
    """An output that is kept by its own backward function is never freed: uneven clients, whose
    batch normalisation has one of ours, and the choice of the engine, which watches what is saved.
    """

    def alive():
        task = fl.tasks.classification("digits", 4, "dirichlet:0.5", train=160, test=20)
        fl.run(fl.methods.fedavg(0.1), task, 1, engine="auto", progress=False)
        del task
        gc.collect()
        return sum(type(o) in (torch.Tensor, torch.nn.Parameter) for o in gc.get_objects())

    alive()
    assert alive() == alive()
