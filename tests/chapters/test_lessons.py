"""What lessons write from scratch is what the package does."""

import ast
import copy
import inspect
import math
from functools import partial
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

import fedlearn as fl
from fedlearn.book import train
from fedlearn.methods.fed_kgf import Modules
from fedlearn.methods.fedfusion import OPERATORS
from fedlearn.methods.fedmmd import WIDTHS, mmd2
from fedlearn.models.kernels import Generated
from fedlearn.models.reparam import blocks

BOOK = Path(__file__).resolve().parents[2] / "book"


def definitions(name, functions):
    """The functions and classes of these names that a lesson defines."""
    selected = functions.split()
    names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "fl": fl}
    names |= {"np": np, "math": math, "copy": copy}
    cells = nbformat.read(BOOK / f"{name}.ipynb", 4).cells
    for source in (c.source for c in cells if c.cell_type == "code"):
        for node in ast.parse(source).body:
            if getattr(node, "name", None) in selected:
                exec(compile(ast.Module([node], []), name, "exec"), names)
    assert names.keys() >= {*selected}, f"{functions} of {name}"
    return names


def digits(clients=3, partition=None, network="digits_cnn"):
    return fl.tasks.classification(
        "digits", clients, partition, train=90, test=60, network=network
    )


@pytest.fixture
def task():
    return digits()


def samples(task):
    """Inputs and labels of each client."""
    images, labels = task.train
    return [(task.inputs(images[owned]), labels[owned]) for owned in task.owned]


def vectors(moves):
    """What training changes, a row a client."""
    return torch.stack([torch.cat([t.flatten() for t in m.values()]) for m in moves])


def changes(task, start):
    """What training may change in each client, drawn at random."""
    dice = torch.Generator().manual_seed(0)

    def draw(name, w):
        change = torch.randn(w.shape, generator=dice)
        return (
            change.abs() if name.endswith("running_var") else change
        )  # none is below zero

    return [{n: draw(n, w) for n, w in start.items()} for _ in range(task.clients)]


def a_round(task, method, state, t, moves, memories=None):
    """The package's round ``t`` if client k's training changes ``of[k]``."""
    server = method.server_side(task)
    client = method.client_side(task)
    arrivals = []
    for k in range(task.clients):
        ctx = client.download(
            t, k, server.send(t, k, state)[0], memories[k] if memories else {}
        )
        trained = {n: w + moves[k][n] for n, w in ctx.start.items()}
        arrivals.append(server.receive(t, k, client.upload(trained, ctx), state))
    return server.aggregate(t, state, arrivals)


def begin(task, method):
    """Its first state, what training changes in each client, and the state's weights."""
    state = method.server_side(task).start()
    return state, changes(task, state.weights), dict(state.weights)


def follow(
    task, method, moves, one_round, memories=None, weights=lambda w: w, start=None
):
    """Two rounds of a lesson, from weights to weights, are two of the package."""
    state = method.server_side(task).start()
    w = dict(state.weights) if start is None else start
    for t in (1, 2):
        w = one_round(w)
        state = a_round(task, method, state, t, moves, memories)
        torch.testing.assert_close(weights(w), dict(state.weights))


def test_rpn(task):
    _, moves, M0 = begin(task, fl.methods.rpn())
    lesson = definitions("papers/rpn", "pool unpool recovered rpn_round")
    lesson |= {"M0": M0, "clients": task.clients, "residual": lambda M, i: moves[i]}
    S = {n: torch.zeros_like(lesson["pool"](w)) for n, w in M0.items()}
    follow(
        task, fl.methods.rpn(), moves, lesson["rpn_round"], None, lesson["recovered"], S
    )


def test_fed_repopt():
    """A round of real training, a client's images in one batch: their order has no say."""
    task = digits(3, "dirichlet:0.5", None)
    data = [(x.double(), y) for x, y in samples(task)]
    sizes = [(1, 16, 2, 1), (16, 16, 1, 1), (16, 16, 1, 2**0.5), (16, 32, 2, 1)]
    lesson = definitions(
        "papers/fed_repopt",
        "Branches pad fold multiplier network plain one_kernel night a_round",
    )
    lesson |= {"SIZES": [*sizes, (32, 32, 1, 2**0.5)], "data": data}
    lesson |= {
        "shares": [len(y) / 90 for _, y in data],
        "train": partial(train, batch=90),
    }
    csla = fl.initial_network(fl.methods.fed_repopt(form="csla"), task).double()
    three = lesson["network"](lesson["Branches"]).double()
    for mine, theirs in zip(three[0:15:3], blocks(csla).values(), strict=True):
        mine.conv3.load_state_dict(theirs.conv3.state_dict())
        mine.conv1.load_state_dict(theirs.conv1.state_dict())
    three[-1].load_state_dict(csla.classifier[-1].state_dict())
    net = lesson["one_kernel"](three)
    shared = {name: w.clone() for name, w in net.state_dict().items()}
    net.load_state_dict(lesson["a_round"](net, shared))
    theirs = fl.run(
        fl.methods.fed_repopt(), task, 1, batch_size=90, engine="sequential"
    )
    mine = [w for w in net.state_dict().values() if w.dim()]
    for a, b in zip(mine, theirs.state.values(), strict=True):
        torch.testing.assert_close(a.float(), b, atol=1e-5, rtol=1e-4)


def test_fed_kgf():
    task = digits(10, network="digits_resnet")
    method = fl.methods.fed_kgf(base_kernels=4)
    server = method.server_side(task)
    client = method.client_side(task)
    state, moves, c = begin(task, method)
    lesson = definitions("papers/fed_kgf", "KGF complete modules_of assemble")
    modules = lesson["modules"] = lesson["modules_of"](c)
    for t in (1, 2):
        starts = [
            client.download(t, k, server.send(t, k, state)[0], {}) for k in range(10)
        ]
        order = [modules.index(Modules().names(list(c), ctx)) for ctx in starts]
        state = a_round(task, method, state, t, moves)
        owner = [order.index(g) for g in range(10)]  # of each module
        c = lesson["assemble"](
            [{n: w + moves[k][n] for n, w in c.items()} for k in range(10)], owner
        )
        torch.testing.assert_close(c, dict(state.weights))
    layers = [
        x
        for x in fl.initial_network(method, task).modules()
        if isinstance(x, Generated)
    ]
    for layer in layers:
        whole = lesson["complete"](layer.base, layer.alpha, layer.beta)
        torch.testing.assert_close(whole, layer.weight)
    assert len(layers) == 10


def test_choosing():
    lesson = definitions("together/choosing", "seconds interval")
    on_3g = fl.link.check(**fl.link.PRESETS["3G"])
    field = fl.book.entries().query("split == 'one main class' and clients == 10")
    for run in field.drop_duplicates("method").itertuples():
        row = {
            "round": 1,
            "accuracy": 0.5,
            "clients": [0],
            "bytes_up": run.up,
            "bytes_down": run.down,
            "seconds": run.least,
        }
        time = fl.link.time(fl.History("fedavg", {}, [row]), *on_3g, slower=2)[0]
        assert lesson["seconds"](run, *on_3g, slower=2) == pytest.approx(time)
    a = [3.0, 4.0, 3.0, 4.0, 3.5]
    b = [1.0, 2.0, 1.5, 0.5, 1.0]
    _, *ends, _, _ = fl.results.paired(dict(enumerate(a)), dict(enumerate(b)))
    assert lesson["interval"](a, b) == pytest.approx(ends, rel=1e-3)


def test_wire(task):
    """Coders arrive as the package's do, and so do rounds of top-k with a memory and of STC."""
    names = (
        "uniform signs top_k ternary feedback mean heard one_round C squeeze stc_round"
    )
    lesson = definitions("foundations/wire", names)
    lesson["ratio"] = 0.1
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    arrives = {
        fl.wire.Uniform(3): lesson["uniform"](x, 3),
        fl.wire.Signs(): lesson["signs"](x),
        fl.wire.TopK(0.1): lesson["C"](x),
        fl.wire.TopK(0.1, "sign"): lesson["ternary"](x, 0.1),
    }
    for coder, ours in arrives.items():
        torch.testing.assert_close(coder.decode(coder.encode(x), x.shape), ours)

    steps = fl.parts.Update(), fl.parts.Feedback(), fl.parts.Lossy(fl.wire.TopK(0.1))
    method = fl.methods.fedavg().but(uplink=fl.Uplink(*steps))
    _, moves, w = begin(task, method)
    big = [n for n, t in w.items() if t.dim() > 1]
    lesson |= {
        "clients": task.clients,
        "task": task,
        "big": big,
        "update": lambda w, i: {**moves[i]},
    }

    def nothing():
        return {n: torch.zeros_like(w[n]) for n in big}

    e = [nothing() for _ in moves]
    memories = [{} for _ in moves]
    follow(
        task, method, moves, lambda w: lesson["one_round"](w, e, lesson["C"]), memories
    )

    method = fl.methods.stc(ratio=0.1)
    ours = lesson["stc_round"](w, [nothing() for _ in moves], nothing())
    state = method.server_side(task).start()
    theirs = dict(a_round(task, method, state, 1, moves, [{} for _ in moves]).weights)
    # a mean of signs has equal sizes: the last bit decides among them
    for n, start in w.items():
        a, b = (after[n] - start for after in (ours, theirs))
        assert ((a - b).abs() > 1e-5).float().mean() < 0.03
        torch.testing.assert_close(*(v.abs().flatten().sort().values for v in (a, b)))


def test_heterogeneity(task):
    """Splits deal as the package's do, and a round is one of federated averaging."""
    names = "even dirichlet drift updates one_round"
    lesson = definitions("foundations/heterogeneity", names)
    y = task.train[1].cpu().numpy()
    splits = {
        "iid": lesson["even"],
        "dirichlet:0.3": partial(lesson["dirichlet"], alpha=0.3),
    }
    for name, split in splits.items():
        ours = split(y, 3, fl.rng.numpy_generator(0, "partition"))
        for k, images in enumerate(digits(3, name).split.indices):
            np.testing.assert_array_equal(np.flatnonzero(ours == k), images)
    owner = np.empty(len(y), int)
    for k, images in enumerate(task.owned):
        owner[images] = k
    _, moves, _ = begin(task, fl.methods.fedavg())
    sizes = []

    def update(w, mine, epochs):
        sizes.append(int(mine.sum()))
        return moves[(len(sizes) - 1) % 3]

    lesson |= {"clients": 3, "update": update}
    follow(task, fl.methods.fedavg(), moves, lambda w: lesson["one_round"](w, owner))
    assert sizes == 2 * list(task.sizes)
    u = vectors(moves)
    p = torch.tensor(task.sizes) / sum(task.sizes)
    survives = (p @ u).square().sum() / (p @ u.square().sum(1))  # Eq. (2.5)
    assert 1 / (1 + lesson["drift"](u, p) ** 2) == pytest.approx(
        float(survives), rel=1e-5
    )


def test_robust_servers():
    """The rules that the notes on heterogeneity write are those of the package."""
    rules = definitions(
        "foundations/heterogeneity_audit", "clipped trimmed median krum"
    )
    task = digits(5, network="mlp")
    method = fl.methods.fedavg()
    state, moves, _ = begin(task, method)
    u = vectors(moves)
    for part, step in {
        fl.parts.Clipped(1.0): rules["clipped"](u),
        fl.parts.TrimmedMean(0.2): rules["trimmed"](u, 1),
        fl.parts.Median(): rules["median"](u),
        fl.parts.Krum(1): rules["krum"](u, 1),
        fl.parts.Krum(1, keep=2): rules["krum"](u, 1, 2),
    }.items():
        new = a_round(task, method.but(server=part), state, 1, moves).weights
        moved = torch.cat([(new[n] - w).flatten() for n, w in state.weights.items()])
        torch.testing.assert_close(moved, step, atol=1e-5, rtol=1e-4)


def test_fed_gkt(monkeypatch):
    """Nothing is shuffled here: the lesson and the package draw their orders in their own ways."""
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n))
    task = digits(network="digits_resnet")
    method = fl.methods.fed_gkt(server_epochs=1)
    settings = {"batch_size": 16, "engine": "sequential", "progress": False}
    start = method.server_side(task).start()
    end = fl.run(method, task, 1, **settings)
    names = "distil loss adam learn client_night server_day gkt_round joint"
    lesson = definitions("papers/fed_gkt", names)
    f_s = fl.models.digits_server()
    f_s.load_state_dict(start.weights, strict=False)
    nets = [fl.initial_network(method, task) for _ in task.sizes]
    lesson |= {"clients": task.clients, "task": task, "data": samples(task)}
    lesson |= {"nets": nets, "f_s": f_s}
    lesson["gkt_round"]([None] * task.clients, lesson["adam"](f_s))
    assert lesson["joint"]() == pytest.approx(end.final["accuracy"], abs=0.04)
    gaps = [(f_s.state_dict()[n] - w).abs().flatten() for n, w in end.state.items()]
    # Adam takes a whole step also where a gradient is nothing but rounding
    assert (torch.cat(gaps) > 1e-4).float().mean() < 0.01


def test_fed_mmd_fusion():
    names = (
        "K mmd2 fedmmd night copied mean one_round layer plain weighted conv fedfusion"
    )
    lesson = definitions("papers/fed_mmd_fusion", names)
    lesson |= {"WIDTHS": WIDTHS, "cross_entropy": torch.nn.functional.cross_entropy}
    dice = torch.Generator().manual_seed(0)
    equal = torch.testing.assert_close
    a = torch.randn(6, 3, generator=dice)
    b = 1 + torch.randn(5, 3, generator=dice)
    equal(lesson["mmd2"](a, b), mmd2(a, b), atol=1e-5, rtol=1e-4)
    lesson["mmd2"] = mmd2  # adds up in the same order: the last bit can decide a step
    maps = torch.randn(2, 3, 4, 2, 2, generator=dice)
    lam = torch.randn(4, generator=dice)
    multi = OPERATORS["multi"](4)
    multi.lam.data = lam.reshape(1, 4, 1, 1)
    equal(lesson["weighted"](*maps, lam), multi(*maps))

    task = digits(3, "shards:2", lesson["plain"])
    data = samples(task)
    # all images of a client in one batch, so that no order matters
    night = lesson["night"]
    lesson["night"] = lambda net, loss, x, y: night(net, loss, x, y, batch=len(y))
    for method, loss in (
        (fl.methods.fedmmd(0.3), "fedmmd"),
        (fl.methods.fedfusion(0.3, "conv"), "fedfusion"),
    ):
        net = fl.initial_network(method, task)
        if loss == "fedfusion":
            # the lesson has conv's matrix and bias beside the network
            mix = net.fusion.mix
            net.W = torch.nn.Parameter(mix.weight.detach()[..., 0, 0].clone())
            net.b = torch.nn.Parameter(mix.bias.detach().clone())
        lesson["one_round"](net, lesson[loss], data)
        settings = {"batch_size": 90, "epochs": 2, "progress": False}
        for name, theirs in fl.run(method, task, 1, **settings).state.items():
            key = {"fusion.mix.weight": "W", "fusion.mix.bias": "b"}.get(name, name)
            ours = net.state_dict()[key].reshape(theirs.shape)
            equal(ours, theirs, atol=1e-5, rtol=1e-4)


def test_the_loop_of_chapter_1_is_that_of_the_package():
    cells = nbformat.read(BOOK / "foundations/fedavg.ipynb", 4).cells
    [cell] = [
        c.source
        for c in cells
        if c.source.startswith("# kept as fedlearn.book.train\n")
    ]
    assert cell.split("\n", 1)[1] == inspect.getsource(train).rstrip("\n")


def test_fedavg():
    task = digits(3, "dirichlet:0.5")
    _, moves, _ = begin(task, fl.methods.fedavg())
    n = sum(task.sizes)
    assert len({*task.sizes}) > 1  # so that weights matter
    lesson = definitions("foundations/fedavg", "average fedavg_round")
    lesson |= {"clients": task.clients, "share": [m / n for m in task.sizes]}
    lesson["night"] = lambda w, k: {name: v + moves[k][name] for name, v in w.items()}
    follow(task, fl.methods.fedavg(), moves, lesson["fedavg_round"])


def test_seeing():
    """Losses are the package's, and so are rounds of whole and of flat changes."""
    from torchvision.ops import generalized_box_iou_loss

    task = fl.seeing.detection("digits", 3, train=9, test=4, network="scene_detector")
    functions = "read to_boxes cell_of object_loss image_loss loss one_round whole flat"
    lesson = definitions("together/seeing", functions)
    cell = torch.arange(64)
    lesson |= {
        "corner": torch.stack([cell % 8, cell // 8], -1),
        "clients": task.clients,
    }
    lesson["generalized_box_iou_loss"] = generalized_box_iou_loss
    net = fl.initial_network(fl.methods.fedavg(), task).eval()
    x, y = task.test
    with torch.no_grad():
        out = net(task.inputs(x))
        torch.testing.assert_close(lesson["loss"](out, y), task.loss(out, y))
    for method, squeeze in ((fl.methods.fedavg(), "whole"), (fl.methods.rpn(), "flat")):
        _, moves, _ = begin(task, method)
        lesson["change"] = lambda M, k, moves=moves: moves[k]
        follow(
            task, method, moves, partial(lesson["one_round"], squeeze=lesson[squeeze])
        )
