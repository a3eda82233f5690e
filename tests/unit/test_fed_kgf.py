"""Fed-KGF: kernel generation, the way there and back, modules and their assembly, the paper's
exact numbers."""

from importlib import import_module
from types import SimpleNamespace

import pytest

import fedlearn as fl
from fedlearn.models import parameter_count, state_of
from fedlearn.parts import Context

kgf = import_module("fedlearn.methods.fed_kgf")  # fl.methods.fed_kgf is the function


@pytest.fixture(scope="module")
def resnet():
    return fl.models.resnet18()


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 4, train=80, test=40)


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
    state = state_of(small)
    learned = {name for name, _ in small.named_parameters()}
    modules = kgf.modules(fl.wire.Schema({n: tuple(t.shape) for n, t in state.items()}))
    assert [sum(state[n].numel() for n in m if n in learned) for m in modules] == paper
    assert parameter_count(small) == sum(paper) == 510_778


@pytest.mark.parametrize("count, groups", [(10, 10), (24, 18)])
def test_groups_cover_every_tensor_once_and_change_with_the_round(
    resnet, count, groups
):
    """As many as participants or modules, contiguous, and none is sent much more often."""
    names = {n: tuple(t.shape) for n, t in state_of(resnet).items()}
    rounds = []
    schema = fl.wire.Schema(names)
    task = SimpleNamespace(seed=0)
    participants = range(count)
    module_of = {n: i for i, module in enumerate(kgf.modules(schema)) for n in module}
    for t in (1, 2):
        contexts = [
            Context(task, t, k, schema=schema, participants=participants)
            for k in participants
        ]
        rounds.append(
            [tuple(kgf.Modules().names(list(names), ctx)) for ctx in contexts]
        )
    one, two = rounds
    sent = set(one)
    assert one != two
    assert len(sent) == groups
    if groups == count:  # one module each may be asked for
        kgf.Modules(groups).validate(contexts[0])
    assert sorted(n for group in sent for n in group) == sorted(names)
    covered = sorted(sorted({module_of[n] for n in group}) for group in sent)
    assert [i for group in covered for i in group] == list(range(18))
    assert max(map(one.count, sent)) - min(map(one.count, sent)) <= 1


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_redraw_gives_both_sides_new_kernels_each_round(task, engine):
    method = fl.methods.fed_kgf(base_kernels=8, redraw=True)
    history = fl.run(method, task, 2, engine=engine)
    losses = []
    net = fl.initial_network(method, task)
    for t in (1, 2):
        method.model.refresh(net, task, t)
        net.load_state_dict(history.state, strict=False)
        losses.append(task.evaluate(net)["loss"])
    assert losses[1] == pytest.approx(history.rows[-1]["loss"]) != losses[0]


def test_a_kernel_of_two_by_two_begins_a_module():
    shapes = {
        "a": (4, 3, 3, 3),
        "b": (4,),
        "c": (4, 4, 1, 1),
        "d": (2, 4, 1, 2),
        "e": (9, 2),
    }
    assert kgf.modules(fl.wire.Schema(shapes)) == [["a", "b", "c"], ["d"], ["e"]]
