"""What lessons write from scratch is what the package does."""

import ast
from pathlib import Path

import nbformat
import pytest
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


def test_fed_gkt(monkeypatch):
    """Nothing is shuffled here: the lesson and the package draw their orders in their own ways."""
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n))
    its = {"clients": 3, "train": 90, "test": 60, "network": "digits_resnet"}
    task, method = fl.tasks.classification("digits", **its), fl.methods.fed_gkt(server_epochs=1)
    how = {"batch_size": 16, "engine": "sequential", "progress": False}
    start, end = method.server_side(task).start(), fl.run(method, task, 2, **how)
    functions = "distil", "loss", "adam", "learn", "client_night", "server_day", "gkt_round"
    lesson = definitions("papers/fed_gkt", *functions, "joint")
    f_s = fl.models.digits_server()
    f_s.load_state_dict(start.weights, strict=False)
    nets = [fl.initial_network(method, task) for _ in task.sizes]
    images, labels = task.train
    data = [(task.inputs(images[mine]), labels[mine]) for mine in task.owned]
    lesson |= {"F": torch.nn.functional, "nn": torch.nn, "clients": task.clients, "task": task}
    lesson |= {"nets": nets, "f_s": f_s, "data": data}
    optimizer, z_s = lesson["adam"](f_s), [None] * task.clients
    for row in end.rows:
        _, z_s = lesson["gkt_round"](z_s, optimizer)
        assert lesson["joint"]() == pytest.approx(row["accuracy"], abs=0.04)
    torch.testing.assert_close(
        {n: f_s.state_dict()[n] for n in end.state}, end.state, atol=1e-4, rtol=1e-3
    )
