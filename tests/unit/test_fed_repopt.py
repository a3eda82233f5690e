"""FedRepOpt: its forms, the equivalence with CSLA, the constants on the wire, the search."""

import dataclasses
import math
from importlib import import_module

import pytest
import torch

import fedlearn as fl
from fedlearn import models
from fedlearn.core import local
from fedlearn.models import reparam, state_of
from fedlearn.parts import Context

repopt = import_module("fedlearn.methods.fed_repopt")
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
    make = models.NETWORKS[family]
    x = noise(5, 1, 8, 8, seed=9)
    net = lived(make(form=form))
    folded = reparam.deploy(net).eval()
    torch.testing.assert_close(folded(x), net(x), atol=1e-12, rtol=1e-12)
    assert models.parameter_count(folded) == models.parameter_count(make(form="deploy"))
    if form == "csla":
        one = reparam.collapse(net)
        for mode in (True, False):
            result = one.train(mode)(x)
            expected = net.train(mode)(x)
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


AUTHORS = {"momentum": 0.9, "weight_decay": 0.01}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, AUTHORS])
def test_repopt_is_csla(family, options, task):
    """And so through rounds of averaging, which is linear."""
    methods = (
        fl.methods.fed_repopt(0.05, form, family, **options)
        for form in ("csla", "repopt")
    )
    (csla, moved), (rep, _) = (trained(method, task) for method in methods)
    assert (kernels(csla) - kernels(rep)).abs().max() <= 1e-10 < 1e-3 < moved


def test_constants_are_sent_until_the_client_has_answered(task):
    server = fl.methods.fed_repopt(scales=scales(task, 2.0)).server_side(task)
    side = fl.methods.fed_repopt().client_side(task)
    state = server.start()
    memory = {}
    first, later = (
        server.send(2, 0, state, last_seen)[0] for last_seen in ({}, {0: 1})
    )
    sent = models.repopt.constants(server.net)
    assert len(first) - len(later) == 4 * sum(t.numel() + 1 for t in sent.values())
    for data in (first, later):  # a client believes the wire, and keeps what came
        side.answer(2, 0, "train", data, memory)
        scale = models.repopt.constants(side.net)["extractor.0.s3"]
        assert scale.unique().tolist() == [2.0]
    with pytest.raises(
        fl.WireError, match="has not come"
    ):  # as if it had been heard before
        side.answer(2, 0, "train", later, {})


def scales(task, factor=1.0, **change):
    first = models.repopt.scales_of(repopt.Form("csla", "digits_repvgg").build(task))
    return models.repopt.Scales(
        {n: factor * t.clone() for n, t in first.items()} | change
    )


def test_bad_scales_and_tasks_are_refused(task):
    with pytest.raises(ValueError, match="finite"):
        infinite = torch.full((16,), math.nan)
        fl.methods.fed_repopt(scales=scales(task, **{"extractor.0.s3": infinite}))
    with pytest.raises(ValueError, match="another network"):
        fl.methods.fed_repopt(form="tr", scales=scales(task)).model.build(task)
    with pytest.raises(ValueError, match="one client"):
        fl.repopt_search(task, 1)
