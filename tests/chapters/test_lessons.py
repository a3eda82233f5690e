"""What lessons write from scratch is what the package does."""

import ast
import copy
from pathlib import Path

import nbformat
import pytest
import torch

import fedlearn as fl
from fedlearn.methods.fedfusion import OPERATORS
from fedlearn.methods.fedmmd import WIDTHS, mmd2

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


def test_fed_mmd_fusion():
    names = "K mmd2 fedmmd night copied mean one_round layer plain weighted conv fedfusion"
    lesson = definitions("papers/fed_mmd_fusion", *names.split())
    lesson |= {"copy": copy, "nn": torch.nn, "WIDTHS": WIDTHS}
    lesson |= {"cross_entropy": torch.nn.functional.cross_entropy}
    dice, equal = torch.Generator().manual_seed(0), torch.testing.assert_close
    a, b = torch.randn(6, 3, generator=dice), 1 + torch.randn(5, 3, generator=dice)
    equal(lesson["mmd2"](a, b), mmd2(a, b), atol=1e-5, rtol=1e-4)
    lesson["mmd2"] = mmd2  # adds up in the same order: the last bit can decide a step
    maps, lam = torch.randn(2, 3, 4, 2, 2, generator=dice), torch.randn(4, generator=dice)
    multi = OPERATORS["multi"](4)
    multi.lam.data = lam.reshape(1, 4, 1, 1)
    equal(lesson["weighted"](*maps, lam), multi(*maps))

    task = fl.tasks.classification(
        "digits", clients=3, train=90, test=60, network=lesson["plain"], partition="shards:2"
    )
    images, labels = task.train
    data = [(task.inputs(images[mine]), labels[mine]) for mine in task.owned]
    night = lesson["night"]  # all images of a client in one batch, so that no order matters
    lesson["night"] = lambda net, loss, x, y: night(net, loss, x, y, batch=len(y))
    for method, loss in (
        (fl.methods.fedmmd(0.3), "fedmmd"),
        (fl.methods.fedfusion(0.3, "conv"), "fedfusion"),
    ):
        net = fl.initial_network(method, task)
        if loss == "fedfusion":  # the lesson has conv's matrix and bias beside the network
            mix = net.fusion.mix
            net.W = torch.nn.Parameter(mix.weight.detach()[..., 0, 0].clone())
            net.b = torch.nn.Parameter(mix.bias.detach().clone())
        for _ in range(2):
            lesson["one_round"](net, lesson[loss], data)
        settings = {"batch_size": 90, "epochs": 2, "progress": False}
        for name, theirs in fl.run(method, task, 2, **settings).state.items():
            own = {"fusion.mix.weight": "W", "fusion.mix.bias": "b"}.get(name, name)
            ours = net.state_dict()[own].reshape(theirs.shape)
            equal(ours, theirs, atol=1e-4, rtol=1e-3)
