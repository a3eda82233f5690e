"""What lessons write from scratch is what the package does."""

import ast
import math
from functools import partial
from pathlib import Path

import nbformat
import numpy as np
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


def a_round(task, method, state, t, of, memories=None):
    """The package's round ``t`` if client k's training changes ``of[k]``."""
    server, client = method.server_side(task), method.client_side(task)
    arrivals = []
    for k in range(task.clients):
        ctx = client.download(t, k, server.send(t, k, state)[0], memories[k] if memories else {})
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


def test_wire(task):
    """Coders arrive as the package's do, and so does a round of top-k with a memory."""
    names = "uniform", "signs", "to_bytes", "from_bytes", "top_k", "rice", "ternary"
    rounds = "feedback", "one_round", "mean", "C"
    lesson = definitions("foundations/wire", *names, *rounds)
    lesson |= {"math": math, "np": np, "ratio": 0.1}
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    arrives = {
        fl.wire.Uniform(3): lesson["uniform"](x, 3),
        fl.wire.Signs(): lesson["signs"](x),
        fl.wire.TopK(0.1): lesson["C"](x),
        fl.wire.TopK(0.1, "sign"): lesson["ternary"](x, 0.1),
    }
    for coder, ours in arrives.items():
        torch.testing.assert_close(coder.decode(coder.encode(x), x.shape), ours)
    assert lesson["to_bytes"](x)[4:] == fl.wire.Signs().encode(x)[4:]
    torch.testing.assert_close(
        lesson["from_bytes"](lesson["to_bytes"](x), 2000), lesson["signs"](x)
    )
    index = lesson["top_k"](x, 0.1).numpy()
    gaps = np.diff(index, prepend=-1) - 1
    bits = [sum(len(lesson["rice"](int(v), b)) for v in gaps) for b in range(8)]
    assert 0 <= len(fl.wire.encode_positions(index, 2000)) - min(bits) / 8 < 7  # with k and b

    steps = fl.parts.Update(), fl.parts.Feedback(), fl.parts.Lossy(fl.wire.TopK(0.1))
    method = fl.methods.fedavg().but(uplink=fl.Uplink(*steps))
    state = method.server_side(task).start()
    of, w = changes(task, state.weights), dict(state.weights)
    big = [n for n, t in w.items() if t.dim() > 1]
    lesson |= {"clients": task.clients, "task": task, "big": big, "update": lambda w, i: {**of[i]}}
    e = [{n: torch.zeros_like(w[n]) for n in big} for _ in range(task.clients)]
    memories = [{} for _ in range(task.clients)]
    for t in (1, 2):
        w = lesson["one_round"](w, e, lesson["C"])
        state = a_round(task, method, state, t, of, memories)
        torch.testing.assert_close(w, dict(state.weights))


def test_heterogeneity(task):
    """Splits deal as the package's do, and a round is one of federated averaging."""
    names = "even", "dirichlet_counts", "deal", "dirichlet", "drift", "updates", "one_round"
    lesson = definitions("foundations/heterogeneity", *names)
    lesson["np"] = np
    y = task.train[1].cpu().numpy()
    splits = {"iid": lesson["even"], "dirichlet:0.3": partial(lesson["dirichlet"], alpha=0.3)}
    for name, split in splits.items():
        ours = split(y, 3, fl.rng.numpy_generator(0, "partition"))
        theirs = fl.tasks.classification("digits", 3, name, train=90, test=60).split.indices
        for k, images in enumerate(theirs):
            np.testing.assert_array_equal(np.flatnonzero(ours == k), images)
    owner = np.empty(len(y), int)
    for k, images in enumerate(task.owned):
        owner[images] = k
    method = fl.methods.fedavg()
    state = method.server_side(task).start()
    of, w, asked = changes(task, state.weights), dict(state.weights), []

    def update(w, mine):
        asked.append(int(mine.sum()))
        return of[(len(asked) - 1) % 3]

    lesson |= {"clients": 3, "update": update}
    for t in (1, 2):
        w, state = lesson["one_round"](w, owner), a_round(task, method, state, t, of)
        torch.testing.assert_close(w, dict(state.weights))
    assert asked == 2 * list(task.sizes)
    u = torch.stack([torch.cat([t.flatten() for t in its.values()]) for its in of])
    p = torch.tensor(task.sizes) / sum(task.sizes)
    survives = (p @ u).square().sum() / (p @ u.square().sum(1))  # Eq. (2.5)
    assert 1 / (1 + lesson["drift"](u, p) ** 2) == pytest.approx(float(survives), rel=1e-5)
