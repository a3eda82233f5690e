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


class Run:
    """A method's rounds, one by one, beside which the formulas are computed by hand."""

    def __init__(self, method):
        self.task, self.last_seen = uneven(), {}
        self.server = method.server_side(self.task, SETTINGS)
        self.engine = fl.clients(method, self.task, SETTINGS)
        self.state, self.n, self.t = self.server.start(), self.task.sizes, 0
        self.names = list(self.state.weights)
        self.weights = [x.clone() for x in self.state.weights.values()]

    def __iter__(self):
        """Who takes part in each of four rounds; the round itself is played afterwards."""
        for self.t in range(1, 5):
            yield self.server.participants(self.t)
            self.state, row = one_round(
                self.server, self.engine, self.t, self.state, self.last_seen
            )
            assert not row["refused"] and not row["untaken"]
            for name, w in zip(self.names, self.weights, strict=True):
                close(self.state.weights[name], w, 1e-5)

    def train(self, k, direction):
        return local_steps(self.task, self.t, k, self.weights, direction)

    def mean(self, updates):
        """sum_k (n_k / n) u_k over those who are there, for each of the two tensors."""
        n = sum(self.n[k] for k in updates)
        return [sum(self.n[k] / n * u[i] for k, u in updates.items()) for i in (0, 1)]


def test_fedprox_is_the_gradient_of_its_term():
    run = Run(fl.methods.fedprox(mu=0.3))
    for who in run:

        def direction(g, y, x=run.weights):
            return [g[i] + 0.3 * (y[i] - x[i]) for i in (0, 1)]

        run.weights = run.mean({k: run.train(k, direction)[0] for k in who})


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_scaffold_is_algorithm_1_with_option_2(server_lr):
    run, lr = Run(fl.methods.scaffold(server_lr=server_lr)), 0.1
    N, zero = sum(run.n), [torch.zeros_like(w) for w in run.weights]
    c, c_i = zero, dict.fromkeys(range(3), zero)
    for who in run:
        x, dy, dc = run.weights, {}, {}
        for k in who:

            def direction(g, y, k=k):
                return [g - c_k + c for g, c_k, c in zip(g, c_i[k], c, strict=True)]

            y, K = run.train(k, direction)
            plus = [c_i[k][i] - c[i] + (x[i] - y[i]) / (K * lr) for i in (0, 1)]
            dy[k] = [y[i] - x[i] for i in (0, 1)]
            dc[k] = [plus[i] - c_i[k][i] for i in (0, 1)]
            c_i[k] = plus
        run.weights = [w + server_lr * d for w, d in zip(x, run.mean(dy), strict=True)]
        share = sum(run.n[k] for k in who) / N
        c = [old + share * d for old, d in zip(c, run.mean(dc), strict=True)]
    assert all(c[i].abs().max() > 1e-2 for i in (0, 1))


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


NEXT = {
    "adagrad": lambda v, D: v + D**2,
    "yogi": lambda v, D: v - 0.01 * D**2 * torch.sign(v - D**2),
    "adam": lambda v, D: 0.99 * v + 0.01 * D**2,
}


@pytest.mark.parametrize("kind", NEXT)
def test_adaptive_servers_are_algorithm_2(kind):
    part, state, x = (
        Adaptive(kind, lr=0.5, beta1=0.8, tau=0.01),
        dict(STATE),
        STATE["w"],
    )
    m, v, memory = torch.zeros(2), torch.full((2,), 0.01**2), {}
    for t in range(4):
        u = {0: [0.3 / (t + 1), -0.1], 1: [0.001, 0.5 * t]}
        arrivals, ctx = arrived(u, [30, 10])
        ctx.memory = memory
        state = part.aggregate(state, arrivals, ctx)
        D = (30 * torch.tensor(u[0]) + 10 * torch.tensor(u[1])) / 40
        m, v = 0.8 * m + 0.2 * D, NEXT[kind](v, D)
        x = x + 0.5 * m / (v.sqrt() + 0.01)
        close(state["w"], x)
        close(state["b"], torch.tensor([(t + 1) * 0.25]))  # a buffer: the plain mean


def test_feddyn_is_algorithm_1():
    alpha = 0.3
    run = Run(fl.methods.feddyn(alpha=alpha))
    N, zero = sum(run.n), [torch.zeros_like(w) for w in run.weights]
    h, g = zero, dict.fromkeys(range(3), zero)
    for who in run:
        start, theta, moved = run.weights, {}, {}
        for k in who:

            def direction(grad, w, k=k, start=start):
                return [grad[i] - g[k][i] + alpha * (w[i] - start[i]) for i in (0, 1)]

            theta[k] = run.train(k, direction)[0]
            moved[k] = [theta[k][i] - start[i] for i in (0, 1)]
            g[k] = [g[k][i] - alpha * moved[k][i] for i in (0, 1)]
        share = sum(run.n[k] for k in who) / N
        h = [old - alpha * share * u for old, u in zip(h, run.mean(moved), strict=True)]
        run.weights = [
            m - part / alpha for m, part in zip(run.mean(theta), h, strict=True)
        ]
    assert all(h[i].abs().max() > 1e-3 for i in (0, 1))


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
