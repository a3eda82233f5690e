"""What need not travel does not; and each client that was drawn counts."""

import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl

X = np.random.default_rng(0).normal(size=(231, 6))
Y = (X[:, 0] > 0) * 1 + (X[:, 1] > 0)


class Once(nn.Module):
    """One matrix, used twice by its only name."""

    def __init__(self, classes):
        super().__init__()
        self.a = nn.Linear(6, 6, bias=False)
        self.last = nn.Linear(6, classes)

    def again(self, x):
        return F.linear(x, self.a.weight)

    def forward(self, x):
        return self.last(torch.relu(self.again(torch.relu(self.a(x.flatten(1))))))


class Tied(Once):
    """The same matrix with a second name."""

    def __init__(self, classes):
        super().__init__(classes)
        self.b = nn.Linear(6, 6, bias=False)
        self.b.weight = self.a.weight

    def again(self, x):
        return self.b(x)


def builder(kind):
    return lambda shape, classes: kind(classes)


once = builder(Once)
tied = builder(Tied)


def frozen(shape, classes):
    body = nn.Linear(6, 500).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), body, nn.ReLU(), nn.Linear(500, classes))


class Beside(nn.Module):
    """A frozen layer with adapters of rank 4 beside it; hidden, it is no part of the state."""

    def __init__(self, classes, hidden):
        super().__init__()
        frozen = nn.Linear(6, 40).requires_grad_(False)
        self.frozen = [frozen] if hidden else nn.ModuleList([frozen])
        self.down = nn.Linear(6, 4, bias=False)
        self.up = nn.Linear(4, 40, bias=False)
        self.last = nn.Linear(40, classes)

    def forward(self, x):
        x = x.flatten(1)
        return self.last(torch.relu(self.frozen[0](x) + self.up(self.down(x))))


def adapted(hidden):
    def network(shape, classes):
        return Beside(classes, hidden)

    return network


def normalised(momentum=0.1):
    def network(shape, classes):
        norm = nn.BatchNorm1d(8, momentum=momentum)
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), norm, nn.Linear(8, classes))

    return network


def make(network, **how):
    how = {"clients": 4, "device": "cpu"} | how
    data = fl.data.arrays(X, Y)
    return fl.tasks.classification(data, network=network, **how)


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "stc", "scaffold"])
def test_a_tied_weight_is_one_weight(name):
    single = fl.run(name, make(once), 3)
    twofold = fl.run(name, make(tied), 3)
    assert single == twofold, "also its bytes"
    assert single.state.keys() == twofold.state.keys()


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("name", ["fedavg", "stc"])
def test_frozen_weights_never_travel(name, engine):
    trained = 501 * 3
    history = fl.run(name, make(frozen), 2, engine=engine)
    assert max(history.bytes_up.max(), history.bytes_down.max()) < 4 * (
        4 * trained + 100
    )
    assert not history.bytes_up_buffers.any()
    assert history.state.keys() == {"3.weight", "3.bias"}
    weights = history.network()[1].weight
    assert torch.equal(
        weights, fl.initial_network(fl.methods.fedavg(), make(frozen))[1].weight
    )


# those that train any network; SCAFFOLD sends a control variate beside the update
ANY = """
    fedavg rpn fedmmd qsgd signsgd dgc stc smartidx fedcom fedcomgate fedcams fedpm
    fedprox scaffold fednova fedadagrad fedyogi fedadam feddyn
"""


@pytest.mark.parametrize("name", ANY.split())
def test_adapters_of_rank_4_cost_their_own_bytes(name):
    entries = 4 * (6 + 40) + 41 * 3
    history = fl.run(name, make(adapted(hidden=False)), 2)
    assert history == fl.run(name, make(adapted(hidden=True)), 2), "also its bytes"
    sent = max(history.bytes_up.max(), history.bytes_down.max()) / 4
    assert sent < (2 if name == "scaffold" else 1) * 4 * entries + 100


def test_a_last_batch_of_one_joins_the_batch_before_it():
    owners = [range(0, 33), range(33, 91), range(91, 124), range(124, 185)]
    task = make(normalised(), clients=owners)
    assert 33 in task.sizes
    history = fl.run("fedavg", task, 2)
    assert all(row["refused"] == {} for row in history.rows)
    server = fl.methods.fedavg().server_side(task)
    ctx = server.context(1, -1, server.up, {})
    assert ctx.steps(task.sizes.index(33)) == 1
    with pytest.raises(ValueError, match="batch of one"):
        fl.run("fedavg", task, 1, engine="stacked")


def test_a_resumed_run_with_counted_batches_is_the_uninterrupted_one(tmp_path):
    task = make(normalised(momentum=None))
    whole = fl.run("fedavg", task, 3)
    fl.run("fedavg", task, 2, checkpoint=tmp_path / "run")
    resumed = fl.run("fedavg", task, 3, checkpoint=tmp_path / "run")
    assert whole == resumed
    assert all(torch.equal(t, resumed.state[name]) for name, t in whole.state.items())


class Smoothed(nn.Module):
    """Keeps a mean of its inputs in a buffer, and counts its batches in another."""

    def __init__(self, classes, persistent=True, assigned=False, count=None):
        super().__init__()
        self.linear = nn.Linear(6, classes)
        self.register_buffer("mean", torch.zeros(6), persistent=persistent)
        self.register_buffer("count", count)
        self.assigned = assigned

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            mean = 0.5 * self.mean + 0.5 * x.mean(0).detach()
            if self.assigned:
                self.mean = mean
            else:
                self.mean.copy_(mean)
            if self.count is not None:
                self.count = self.count + 1
        return self.linear(x - self.mean)


def smoothed(**options):
    return make(lambda shape, classes: Smoothed(classes, **options))


def test_a_buffer_that_training_assigns_is_part_of_the_state(tmp_path):
    copied, assigned = (
        fl.run("fedavg", smoothed(assigned=assigned), 3) for assigned in (False, True)
    )
    assert copied == assigned
    assert assigned.network().mean.any()


@pytest.mark.parametrize(
    "options",
    [
        {"persistent": False},
        {"persistent": False, "assigned": True},
        {"count": torch.tensor(0)},
        {"count": torch.tensor(False)},
    ],
)
def test_a_buffer_that_no_state_holds_must_not_change(options):
    with pytest.raises(ValueError, match="(mean|count) changes"):
        fl.run("fedavg", smoothed(**options), 1)


def test_counts_of_batches_begin_anew_at_each_client():
    def network(shape, classes):
        norm = nn.BatchNorm1d(8, momentum=None)  # divides by the count
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), norm, nn.Linear(8, classes))

    task = make(network)
    method = fl.methods.fedavg()
    server = method.server_side(task)
    message, _ = server.send(1, 3, server.start())
    alone = fl.clients(method, task).answer(1, 3, message)
    together = fl.clients(method, task)
    for k in range(3):
        together.answer(1, k, server.send(1, k, server.start())[0])
    assert together.answer(1, 3, message) == alone


def test_what_a_builder_keeps_is_not_trained():
    weights = torch.randn(8, 6)

    def network(shape, classes):
        net = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Linear(8, classes))
        net[1].weight = nn.Parameter(weights)
        return net

    before = weights.clone()
    first, second = (fl.run("fedavg", make(network), 2) for _ in range(2))
    assert first == second
    assert torch.equal(weights, before)


def test_a_builder_draws_alike_from_every_generator():
    def network(shape, classes):
        net = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Linear(8, classes))
        net[1].weight.data = torch.tensor(np.random.randn(8, 6)).float()  # noqa: NPY002
        net[1].bias.data.fill_(random.random())
        return net[:2].requires_grad_(False) and net

    assert fl.run("fedavg", make(network), 2) == fl.run("fedavg", make(network), 2)


class Thawing(Once):
    """Frees a frozen matrix with its first batch."""

    def __init__(self, classes):
        super().__init__(classes)
        self.a.requires_grad_(False)

    def forward(self, x):
        if self.training:
            self.a.requires_grad_(True)
        return super().forward(x)


class Renamed(Once):
    """Calls its matrix otherwise in its state."""

    def state_dict(self, *args, **options):
        state = super().state_dict(*args, **options)
        return {f"my.{name}": t.detach() for name, t in state.items()}


def sequence(layer=nn.ReLU, value=0.1, freezes=True):
    """A builder of networks that differ in a layer or in the weights of the first."""

    def network(shape, classes):
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(6, 8), layer(), nn.Linear(8, classes)
        )
        nn.init.constant_(net[1].weight, value)
        net[1].requires_grad_(not freezes)
        return net

    return network


@pytest.mark.parametrize(
    "changed", [{"layer": nn.Tanh}, {"value": 0.2}, {"freezes": False}]
)
def test_a_checkpoint_knows_layers_and_frozen_weights(changed, tmp_path):
    fl.run("fedavg", make(sequence()), 1, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="network differ"):
        fl.run("fedavg", make(sequence(**changed)), 2, checkpoint=tmp_path / "run")


@pytest.mark.parametrize("how", [{"batch_size": 1}, {"clients": [[0], [1, 2, 3]]}])
def test_a_single_sample_cannot_be_normalised(how):
    def network(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, classes))

    task = make(network, clients=how.pop("clients", 4))
    with pytest.raises(ValueError, match="batch of one"):
        fl.run("fedavg", task, 1, **how)


def test_a_remainder_of_one_that_no_layer_can_normalise_is_said():
    def network(shape, classes):
        norm = nn.BatchNorm2d(1)
        return nn.Sequential(
            nn.AdaptiveAvgPool2d(1), norm, nn.Flatten(), nn.Linear(1, 3)
        )

    with pytest.raises(ValueError, match="remainder of one"):
        fl.run("fedavg", make(network, clients=[range(33)]), 1, batch_size=32)


class Teacher(Once):
    """A frozen matrix follows the trained one."""

    def __init__(self, classes):
        super().__init__(classes)
        self.follower = nn.Linear(6, 6, bias=False).requires_grad_(False)

    def forward(self, x):
        self.follower.weight.data.lerp_(self.a.weight.data, 0.5)
        return super().forward(x)


class Late(Once):
    """A buffer that exists from the first training on."""

    def __init__(self, classes):
        super().__init__(classes)
        self.register_buffer("mean", None)

    def forward(self, x):
        if self.training and self.mean is None:
            self.mean = x.mean()
        return super().forward(x)


class Growing(Late):
    """A buffer of the state that grows with each batch."""

    def __init__(self, classes):
        super().__init__(classes)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.mean = torch.cat([self.mean, self.mean])
        return Once.forward(self, x)


@pytest.mark.parametrize(
    ("kind", "noun"),
    [
        (Thawing, "freezes"),
        (Renamed, "state_dict"),
        (Teacher, "follower"),
        (Late, "mean"),
        (Growing, "mean"),
    ],
)
def test_a_module_that_changes_its_state_is_refused(kind, noun):
    with pytest.raises(ValueError, match=noun):
        fl.run("fedavg", make(builder(kind)), 1)


def test_a_buffer_assigned_in_evaluation_does_not_part_from_the_state():
    class Cleaned(Smoothed):
        def forward(self, x):
            if not self.training:
                self.mean = self.mean.nan_to_num()
            return super().forward(x)

    task = make(lambda shape, classes: Cleaned(classes, assigned=True))
    history = fl.run("fedavg", task, 3)
    assert history == fl.run("fedavg", smoothed(), 3)
    assert torch.equal(history.network().mean, history.state["mean"])


def test_layers_without_a_state_may_be_shared():
    act = nn.ReLU()
    trunk = nn.Linear(6, 8).requires_grad_(False)

    def network(shape, classes):
        return nn.Sequential(nn.Flatten(), trunk, act, nn.Linear(8, classes))

    assert fl.run("fedavg", make(network), 2) == fl.run("fedavg", make(network), 2)


def test_networks_that_normalise_by_the_batch_or_have_computed_weights():
    def by_batch(shape, classes):
        norm = nn.BatchNorm1d(6, track_running_stats=False)
        return nn.Sequential(nn.Flatten(), norm, nn.Linear(6, classes))

    def computed(shape, classes):
        layer = nn.utils.weight_norm(nn.Linear(6, classes))
        return nn.Sequential(nn.Flatten(), layer)

    for network in (by_batch, computed):
        history = fl.run("fedavg", make(network), 1, engine="auto")
        assert math.isfinite(history.loss[0])


def test_a_function_that_returns_one_module_twice_is_refused():
    module = Once(3)
    with pytest.raises(ValueError, match="new one each time"):
        fl.run("fedavg", make(lambda shape, classes: module), 1)


@pytest.mark.parametrize("true", [True, np.True_, torch.tensor(True)])
def test_a_callback_ends_the_run_with_a_true_of_any_kind(true):
    assert len(fl.run("fedavg", make(once), 3, on_round=lambda row, state: true)) == 1


def test_an_error_in_a_clients_code_ends_the_run_and_names_the_client():
    class Broken(fl.TaskLoss):
        def begin(self, net, ctx):
            raise ZeroDivisionError if ctx.client == 2 else KeyError

    method = fl.methods.fedavg().but(objective=Broken())
    with pytest.raises(KeyError) as error:
        fl.run(method, make(once), 1)
    assert "client 0" in error.value.__notes__[0]


def test_a_model_that_is_not_finite_is_not_taken_and_said_at_once():
    class Endless(fl.Mean):
        def aggregate(self, state, arrivals, ctx):
            new = super().aggregate(state, arrivals, ctx)
            return {n: w / 0 if ctx.round == 2 else w for n, w in new.items()}

    method = fl.methods.fedavg().but(server=Endless())
    with pytest.warns(UserWarning, match="Round 2 of fedavg was not taken"):
        history = fl.run(method, make(once), 3)
    assert [bool(row["untaken"]) for row in history.rows] == [False, True, False]
    assert history.loss[0] == history.loss[1] != history.loss[2]


def frozen_extractor(name):
    def network(shape, classes):
        net = fl.models.NETWORKS[name](shape, classes)
        net.extractor.requires_grad_(False)
        return net

    return network


def twin_kernels(shape, classes):
    first = nn.Conv2d(1, 8, 3, padding=1)
    second = nn.Conv2d(8, 8, 3, padding=1)
    third = nn.Conv2d(8, 8, 3, padding=1)
    third.weight = second.weight
    head = [nn.Flatten(), nn.Linear(8 * 64, classes)]
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third, *head)


def frozen_scale(shape, classes):
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, classes),
    )
    net[1].weight.requires_grad_(False)
    return net


def digits(network=None, partition="iid"):
    return fl.tasks.classification(
        "digits", 3, partition, train=90, test=60, network=network, device="cpu"
    )


def test_methods_that_draw_their_network_refuse_frozen_blocks_and_keep_ties():
    with pytest.raises(ValueError, match="frozen"):
        fl.run(
            fl.methods.fed_repopt(network=None),
            digits(frozen_extractor("digits_repvgg")),
            1,
        )
    with pytest.raises(ValueError, match="share a weight"):
        fl.run(fl.methods.fed_kgf(base_kernels=4), digits(twin_kernels), 1)
    state = fl.initial_network(fl.methods.fedpm(), digits(twin_kernels)).state_dict()
    assert torch.equal(state["2.weight_score"], state["4.weight_score"])


def test_split_learning_trains_behind_a_frozen_extractor():
    history = fl.run(
        fl.methods.split_learning(edge=frozen_extractor("digits_edge")), digits(), 1
    )
    assert history.loss[0] > 0


def test_stacked_clients_train_a_bias_whose_scale_is_frozen():
    task = digits(frozen_scale, "dirichlet:0.5")
    biases = []
    for engine in ("sequential", "stacked"):
        history = fl.run("fedavg", task, 1, batch_size=20, engine=engine)
        biases.append(history.state["1.bias"])
    assert torch.allclose(*biases, atol=1e-6)


def test_clients_that_a_server_part_ignores_train_all_the_same():
    class First(fl.Mean):
        def aggregate(self, state, arrivals, ctx):
            update = next(iter(arrivals)).update
            return {name: w + update[name] for name, w in state.items()}

    alone = fl.run(fl.methods.fedavg().but(server=First()), digits(), 1)
    assert alone.bytes_up[0] == fl.run("fedavg", digits(), 1).bytes_up[0]


def test_refit_refuses_a_state_of_other_shapes():
    task = digits()
    method = fl.methods.fedavg()
    state = fl.models.state_of(fl.initial_network(method, task))
    with pytest.raises(ValueError, match="state"):
        fl.refit(method, task, {name: t[:1] for name, t in state.items()})
