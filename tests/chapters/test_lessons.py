"""What lessons write from scratch is what the package does."""

import ast
import math
from pathlib import Path

import nbformat
import numpy as np
import pytest
import scipy.stats
import torch

import fedlearn as fl

BOOK = Path(__file__).resolve().parents[2] / "book"


def definitions(name, *wanted):
    """The functions of these names that a lesson defines."""
    names = {"torch": torch, "fl": fl}
    cells = nbformat.read(BOOK / f"{name}.ipynb", 4).cells
    for source in (c.source for c in cells if c.cell_type == "code"):
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name in wanted:
                exec(compile(ast.Module([node], []), name, "exec"), names)
    assert names.keys() >= {*wanted}, f"{wanted} of {name}"
    return names


@pytest.fixture
def task():
    return fl.tasks.classification("digits", clients=3, train=90, test=60, network="digits_cnn")


def changes(task, start):
    """What training may change in each client, drawn at random."""
    dice = torch.Generator().manual_seed(0)
    draw = lambda w: torch.randn(w.shape, generator=dice)  # noqa: E731
    return [{n: draw(w) for n, w in start.items()} for _ in range(task.clients)]


def a_round(task, method, state, t, of):
    """The package's round ``t`` if client k's training changes ``of[k]``."""
    server, client = method.server_side(task), method.client_side(task)
    arrivals = []
    for k in range(task.clients):
        ctx = client.download(t, k, server.send(t, k, state)[0], {})
        trained = {n: w + of[k][n] for n, w in ctx.start.items()}
        arrivals.append(server.receive(t, k, client.upload(trained, ctx), state))
    return server.aggregate(t, state, arrivals)


def test_rpn(task):
    method = fl.methods.rpn()
    state = method.server_side(task).start()
    of = changes(task, state.weights)
    lesson = definitions("papers/rpn", "pool", "unpool", "recovered", "rpn_round")
    lesson |= {"M0": dict(state.weights), "clients": task.clients, "residual": lambda M, i: of[i]}
    S = {n: torch.zeros_like(lesson["pool"](w)) for n, w in state.weights.items()}
    for t in (1, 2):
        S, state = lesson["rpn_round"](S), a_round(task, method, state, t, of)
        torch.testing.assert_close(lesson["recovered"](S), dict(state.weights))


def test_choosing():
    from fedlearn.book import choosing

    names = "hours", "seconds", "reached", "within", "interval", "front"
    lesson = definitions("together/choosing", *names)
    lesson |= {"np": np, "math": math}
    where = "digits", "one main class", 10
    lesson["field"] = field = choosing.fields()[where]
    on_3g = fl.link.check(**fl.link.PRESETS["3G"])
    time = lesson["within"](lambda run: lesson["seconds"](run, *on_3g))
    assert time == choosing.within(field, choosing.TIME)
    assert lesson["within"](lambda run: run.up + run.down) == choosing.within(field, choosing.BYTES)
    a, b = time["STC"], time["FedAvg"]
    assert lesson["interval"](a, b) == pytest.approx(choosing.interval(a, b))
    t = scipy.stats.t.ppf(0.975, np.array([*choosing.STUDENT]) - 1)
    assert np.allclose(t, [*choosing.STUDENT.values()], atol=0.01)
    grid = fl.book.mixtures().query("split == 'iid'")
    assert lesson["front"](grid).equals(fl.book.pareto(grid))
    for sent, heard, uplink, clients, rounds in ((4e7, 4e7, 1e6, 1000, 100), (1e5, 8e6, 1e5, 3, 7)):
        stated = choosing.HOURS.replace("max", "choose")
        known = {"sent": sent, "heard": heard, "uplink": uplink, "clients": clients}
        chart = eval(stated, known | {"rounds": rounds, "choose": max})
        assert lesson["hours"](sent, heard, uplink, clients, rounds) == pytest.approx(chart)
