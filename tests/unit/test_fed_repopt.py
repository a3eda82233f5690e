"""FedRepOpt: its forms, the equivalence with CSLA, the constants on the wire, the search."""

import dataclasses
import math
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

import fedlearn as fl
from fedlearn import models
from fedlearn.core import local
from fedlearn.models import reparam, state_of
from fedlearn.parts import Adam, Context

repopt = import_module("fedlearn.methods.fed_repopt")
search = import_module("fedlearn.methods.fed_repopt_search")
FAMILIES = ["digits_repvgg", "digits_repghost"]


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 3, "dirichlet:1", train=90, test=60)


def noise(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def lived(net):
    """The same network with other numbers everywhere, also in its statistics."""
    for seed, t in enumerate(state_of(net.double()).values()):
        t.data += 0.1 * noise(*t.shape, seed=seed).abs()
    return net.eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", reparam.FORMS)
def test_every_form_folds_into_one_kernel_a_block(family, form):
    make, x = models.NETWORKS[family], noise(5, 1, 8, 8, seed=9)
    net = lived(make(form=form))
    folded = reparam.deploy(net).eval()
    torch.testing.assert_close(folded(x), net(x), atol=1e-12, rtol=1e-12)
    assert models.parameter_count(folded) == models.parameter_count(make(form="deploy"))
    if form == "csla":
        one = reparam.collapse(net)
        for mode in (True, False):
            result, expected = one.train(mode)(x), net.train(mode)(x)
            torch.testing.assert_close(result, expected, atol=1e-12, rtol=1e-12)


def trained(method, task):
    """The network after local training in double precision, and how far from its start."""
    settings = fl.Settings(batch_size=8, epochs=2)
    net = local.new_network(
        dataclasses.replace(method.model, form="csla"), task
    ).double()
    net = models.repopt.target(net) if method.model.form == "repopt" else net
    start = kernels(net)
    ctx = Context(
        task, 1, 0, start=state_of(net), memory={}, net=net, settings=settings
    )
    local.train(net, method, ctx, settings)
    return net, float((kernels(net) - start).abs().max())


def kernels(net):
    result = reparam.blocks(net).values()
    if any(b.form == "csla" for b in result):
        result = reparam.blocks(reparam.collapse(net)).values()
    return torch.cat([b.conv3.weight.detach().flatten() for b in result])


AUTHORS = {"momentum": 0.9, "weight_decay": 0.01, "spare": True, "smoothing": 0.1}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("how", [{}, {"momentum": 0.9, "weight_decay": 0.01}, AUTHORS])
def test_repopt_is_csla(family, how, task):
    """And so through rounds of averaging, which is linear."""
    methods = (
        fl.methods.fed_repopt(0.05, form, family, **how) for form in ("csla", "repopt")
    )
    (csla, moved), (rep, _) = (trained(method, task) for method in methods)
    assert (kernels(csla) - kernels(rep)).abs().max() <= 1e-10 < 1e-3 < moved
    if not how:
        x = noise(7, 1, 8, 8)
        torch.testing.assert_close(
            csla.eval()(x), rep.eval()(x), atol=1e-10, rtol=1e-10
        )


def test_repopt_is_csla_with_adamw_too(task):
    odd = {
        n: t * (-2.0 if i % 3 == 0 else 0.7)
        for i, (n, t) in enumerate(scales(task).of.items())
    }
    how = {
        "scales": models.repopt.Scales(odd),
        "weight_decay": 0.01,
        "optimizer": "adamw",
    }
    methods = [fl.methods.fed_repopt(0.002, form, **how) for form in ("csla", "repopt")]
    methods = [
        m.but(optimizer=dataclasses.replace(m.optimizer, eps=1e-30)) for m in methods
    ]
    plain = Adam(0.002, eps=1e-30, weight_decay=0.01, decoupled=True)
    methods.append(methods[1].but(optimizer=plain))
    csla, rep, other = (kernels(trained(m, task)[0]) for m in methods)
    learned = (csla - kernels(local.initial_network(methods[1], task).double())).norm()
    assert (csla - rep).norm() < 1e-6 * learned and (
        csla - other
    ).norm() > 0.3 * learned


def test_constants_are_sent_until_the_client_has_answered(task):
    server = fl.methods.fed_repopt(scales=scales(task, 2.0)).server_side(task)
    side, state, memory = fl.methods.fed_repopt().client_side(task), server.start(), {}
    first, later = (
        server.send(2, 0, state, last_seen)[0] for last_seen in ({}, {0: 1})
    )
    sent = models.repopt.constants(server.net)
    assert len(first) - len(later) == 4 * sum(t.numel() + 1 for t in sent.values())
    for data in (first, later):  # a client believes the wire, and keeps what came
        side.answer(2, 0, "train", data, memory)
        kept = models.repopt.constants(side.net)["extractor.0.s3"]
        assert kept.unique().tolist() == [2.0]
    with pytest.raises(
        fl.WireError, match="has not come"
    ):  # as if it had been heard before
        side.answer(2, 0, "train", later, {})


def scales(task, factor=1.0, **change):
    first = models.repopt.scales_of(repopt.Form("csla", "digits_repvgg").build(task))
    return models.repopt.Scales(
        {n: factor * t.clone() for n, t in first.items()} | change
    )


def test_searched_scales_are_those_of_the_trained_network():
    task = fl.tasks.classification("digits", 1, train=100, test=50)
    searched = fl.repopt_search(task, 2)
    assert all(not torch.equal(t, scales(task).of[n]) for n, t in searched.of.items())
    methods = [
        fl.methods.fed_repopt(form=f, scales=searched) for f in ("repopt", "csla")
    ]
    net, csla = (local.initial_network(m, task).eval() for m in methods)
    constants = models.repopt.constants(net)
    assert torch.equal(constants["extractor.2.s3"], searched.of["extractor.2.s3"])
    torch.testing.assert_close(
        net(torch.ones(1, 1, 8, 8)), csla(torch.ones(1, 1, 8, 8))
    )
    assert searched == fl.repopt_search(task, 2)
    assert searched != fl.repopt_search(
        task, 2, smoothing=0.1, spare=True, weight_decay=0.01
    )


def test_bad_scales_and_tasks_are_refused(task):
    bad = {"does not fit": torch.ones(5), "finite number": torch.full((16,), math.nan)}
    for noun, values in bad.items():
        with pytest.raises(ValueError, match=noun):
            method = fl.methods.fed_repopt(
                scales=scales(task, **{"extractor.0.s3": values})
            )
            fl.run(method, task, 1)
    with pytest.raises(ValueError, match='"tr"'):
        fl.methods.fed_repopt(form="tr", scales=scales(task))
    with pytest.raises(ValueError, match="one client"):
        fl.repopt_search(task, 1)


def test_a_searchs_rate_rises_and_falls_and_its_gradients_are_clipped():
    """The authors' program: warm-up from 0, half a cosine to 0, gradients of norm 5 at most."""
    torch.manual_seed(0)
    w, part = (
        torch.randn(4, 3),
        search.Planned(0.1, 0.9, 0.01, rounds=10, warmup=2, clip=0.5),
    )
    ours, theirs = (
        [w.clone(), torch.ones(3)],
        [w.clone().requires_grad_(), torch.ones(3)],
    )
    theirs[1].requires_grad_()
    rates = [part.init(ours, SimpleNamespace(round=t))["lr"] for t in (1, 2, 3, 10)]
    cosine = [0.05 * (1 + math.cos(math.pi * t / 10)) for t in (2.5, 9.5)]
    assert rates == pytest.approx([0.025, 0.075, *cosine])
    state = part.init(ours, SimpleNamespace(round=3))
    sgd = torch.optim.SGD(theirs, rates[2], 0.9, weight_decay=0.01)
    for size in (0.01, 10.0):
        for p in theirs:
            p.grad = size * torch.randn_like(p)
        grads = [p.grad.clone() for p in theirs]
        torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        sgd.step()
        part.step(ours, grads, state)
    assert all(
        torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True)
    )
    with pytest.raises(ValueError, match="warmup is 0 to 3"):
        search.Planned(rounds=3, warmup=4)
