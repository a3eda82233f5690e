"""The baselines that everybody expects, each against its paper's formulas."""

from dataclasses import replace
from functools import cache
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl
from fedlearn.core.federation import one_round
from fedlearn.parts import Arrival, Context
from fedlearn.wire import Schema

Normalised = import_module("fedlearn.methods.fednova").Normalised
Adaptive = import_module("fedlearn.methods.fedopt").Adaptive
SETTINGS = fl.Settings(
    participation=0.67, epochs=2, batch_size=10
)  # two of three clients


def close(result, expected, tolerance=1e-6):
    torch.testing.assert_close(result, expected, atol=tolerance, rtol=1e-5)


@cache
def uneven():
    """Softmax regression for clients of 25, 10 and 5 digits: 6, 2 and 2 steps of ``SETTINGS``."""

    def network(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    task = fl.tasks.classification("digits", 3, network=network, train=40, test=20)
    order = torch.randperm(40, generator=fl.rng.generator(7)).numpy()
    owned = [order[:25], order[25:35], order[35:]]
    return replace(task, split=replace(task.split, indices=owned))


def local_steps(task, t, k, weights, direction, lr=0.1):
    """The client's local steps along ``direction(gradient, weights)``, from scratch -> weights, and
    how many there were."""
    w, b = (x.clone() for x in weights)
    shuffle, steps = fl.rng.generator(task.seed, "shuffle", t, k), 0
    for _ in range(SETTINGS.epochs):
        x, y = task.epoch(k, torch.randperm(task.sizes[k], generator=shuffle), None)
        for at in range(0, len(y), SETTINGS.batch_size):
            X, Y = (
                x[at : at + SETTINGS.batch_size].flatten(1),
                y[at : at + SETTINGS.batch_size],
            )
            G = (torch.softmax(X @ w.T + b, 1) - F.one_hot(Y, 10)) / len(Y)
            dw, db = direction((G.T @ X, G.sum(0)), (w, b))
            w, b, steps = w - lr * dw, b - lr * db, steps + 1
    return (w, b), steps


def arrived(updates, sizes, epochs=1, batch_size=10):
    """What the server part gets when these clients sent these updates of w, and buffers b."""
    ctx = Context(
        SimpleNamespace(sizes=sizes),
        1,
        schema=Schema({"w": (2,), "b": (1,)}, frozenset({"b"})),
        settings=fl.Settings(epochs=epochs, batch_size=batch_size),
        participants=tuple(updates),
    )
    result = [
        Arrival(k, sizes[k], {"w": torch.tensor(u), "b": torch.tensor([float(k)])})
        for k, u in updates.items()
    ]
    return result, ctx


STATE = {"w": torch.tensor([1.0, -2.0]), "b": torch.zeros(1)}


def test_fednova_is_normalised_averaging():
    """Section 4: sizes 25, 10 and 5 in batches of 10, two epochs: tau = 6, 2, 2."""
    u = {0: [0.6, -0.3], 1: [0.1, 0.5], 2: [-0.2, 0.2]}
    new = Normalised().aggregate(STATE, *arrived(u, [25, 10, 5], epochs=2))
    p, tau = [25 / 40, 10 / 40, 5 / 40], [6, 2, 2]
    tau_eff = sum(p[i] * tau[i] for i in range(3))
    assert tau_eff == 4.5
    d = [-torch.tensor(u[i]) / tau[i] for i in range(3)]  # (x - y_i) / tau_i
    close(new["w"], STATE["w"] - tau_eff * sum(p[i] * d[i] for i in range(3)))
    close(
        new["b"], torch.tensor([(0 * 25 + 10 + 2 * 5) / 40])
    )  # a buffer: the plain mean
    without = {
        k: u[k] for k in (0, 2)
    }  # client 1 was refused: p and tau_eff are the others'
    arrivals, ctx = arrived(without, [25, 10, 5], epochs=2)
    ctx.participants = (0, 1, 2)
    new = Normalised().aggregate(STATE, arrivals, ctx)
    tau_eff = (25 * 6 + 5 * 2) / 30
    close(new["w"], STATE["w"] - tau_eff * (25 * d[0] + 5 * d[2]) / 30)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_norm_of_a_is_how_far_local_sgd_goes_along_a_constant_gradient(momentum):
    sgd, p = fl.SGD(1.0, momentum), [torch.zeros(1)]
    state, part = (
        sgd.init(p, Context(None, 1)),
        fl.methods.fednova(momentum=momentum).server,
    )
    for steps in range(1, 8):
        sgd.step(p, [torch.ones(1)], state)
        assert part._norm(steps) == pytest.approx(-float(p[0]), rel=1e-5)


def test_who_trains_alone_sends_nothing_and_goes_on_with_its_own_model():
    task, settings = uneven(), {"epochs": 2, "batch_size": 10}
    history = fl.run(fl.methods.local(), task, 3, **settings)
    assert history.bytes_up.sum() == history.bytes_down.sum() == 0
    weights = [
        list(fl.methods.local().server_side(task).initial.values()) for _ in range(3)
    ]
    for t in (1, 2, 3):
        weights = [
            local_steps(task, t, k, weights[k], lambda g, w: g)[0] for k in range(3)
        ]
    net, results = fl.initial_network(fl.methods.local(), task), []
    for w, b in weights:
        net.load_state_dict({"1.weight": w, "1.bias": b})
        results.append(task.evaluate(net)["loss"])
    assert (
        history.loss[-1] == pytest.approx(sum(results) / 3, abs=1e-5)
        and len(set(results)) == 3
    )


def test_who_trains_alone_is_not_listened_to_and_keeps_its_last_good_model():
    method, often = fl.methods.local(), fl.Settings(epochs=2, batch_size=5)
    server, engine = (
        method.server_side(uneven(), often),
        fl.clients(method, uneven(), often),
    )
    with pytest.raises(
        fl.WireError, match="Client 1 trains alone: its messages are empty"
    ):
        engine.answer(1, 1, b"hello")
    state, _ = one_round(server, engine, 1, server.start(), {})
    kept = {n: w.clone() for n, w in engine.memories[0].items()}
    engine.side.method = method.but(optimizer=fl.SGD(1e38))
    _, row = one_round(server, engine, 2, state, {0: 1})
    assert row["refused"][0] == "The training of client 0 diverged."
    assert all(torch.equal(engine.memories[0][n], w) for n, w in kept.items())
    assert row["accuracy"] is not None
    engine.side.answer = lambda *args: b"hello"
    state, row = one_round(server, engine, 3, state, {0: 1})
    assert list(row["refused"]) == list(row["unevaluated"]) == [0, 1, 2]
    assert all(torch.equal(state.weights[n], w) for n, w in server.initial.items())
