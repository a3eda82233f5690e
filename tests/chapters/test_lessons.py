"""What lessons write from scratch is what the package does."""

import ast
import inspect
from pathlib import Path

import nbformat
import pytest
import torch

import fedlearn as fl
from fedlearn.book import train

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


def test_the_loop_of_chapter_1_is_that_of_the_package():
    cells = nbformat.read(BOOK / "foundations/fedavg.ipynb", 4).cells
    [cell] = [c.source for c in cells if c.source.startswith("# kept as fedlearn.book.train\n")]
    assert cell.split("\n", 1)[1] == inspect.getsource(train).rstrip("\n")


def test_fedavg():
    how = {"clients": 3, "train": 90, "test": 60, "network": "digits_cnn"}
    task = fl.tasks.classification("digits", partition="dirichlet:0.5", **how)
    method = fl.methods.fedavg()
    state = method.server_side(task).start()
    of, n = changes(task, state.weights), sum(task.sizes)
    assert len({*task.sizes}) > 1  # so that weights matter
    lesson = definitions("foundations/fedavg", "average", "fedavg_round")
    lesson |= {"clients": task.clients, "share": [m / n for m in task.sizes]}
    lesson["night"] = lambda w, k: {name: v + of[k][name] for name, v in w.items()}
    w = dict(state.weights)
    for t in (1, 2):
        w, state = lesson["fedavg_round"](w), a_round(task, method, state, t, of)
        torch.testing.assert_close(w, dict(state.weights))
