"""FedRepOpt: the forms and their counts, the equivalence with CSLA, the constants on the wire, the
search."""

import copy
import dataclasses
import math
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedlearn as fl
from fedlearn import local, models
from fedlearn.models import reparam, state_of
from fedlearn.parts import Adam, Context
from fedlearn.round import Exchange

repopt = import_module("fedlearn.methods.fed_repopt")
search = import_module("fedlearn.methods.fed_repopt_search")
FAMILIES = ["digits_repvgg", "digits_repghost"]


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 3, "dirichlet:1", train=90, test=60)


def noise(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ---- forms


def lived(net):
    """The same network after some batches, so that its statistics are no longer 0 and 1."""
    net = net.double().train()
    with torch.no_grad():
        for seed in range(3):
            net(noise(8, 1, 8, 8, seed=seed) * (1 + seed))
            for module in net.modules():
                if isinstance(module, (nn.BatchNorm2d, reparam.Scale)):
                    for p in module.parameters():
                        p.add_(0.1 * noise(*p.shape, seed=seed))
    return net.eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", reparam.FORMS)
def test_every_form_folds_into_deploy(family, form):
    net, x = lived(models.NETWORKS[family](form=form)), noise(5, 1, 8, 8, seed=9)
    folded = reparam.deploy(net).eval()
    torch.testing.assert_close(folded(x), net(x), atol=1e-12, rtol=1e-12)
    assert not any(isinstance(b.bn, nn.BatchNorm2d) for b in reparam.blocks(folded).values())
    assert models.parameter_count(folded) == models.parameter_count(
        models.NETWORKS[family](form="deploy")
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", [True, False])
def test_collapse_keeps_the_output_in_both_modes(family, mode):
    net, x = lived(models.NETWORKS[family](form="csla")), noise(5, 1, 8, 8, seed=9)
    one = reparam.collapse(net)
    torch.testing.assert_close(one.train(mode)(x), net.train(mode)(x), atol=1e-12, rtol=1e-12)
    assert all(b.form == "inf" for b in reparam.blocks(one).values())
    with pytest.raises(ValueError, match="collapse into one kernel"):
        reparam.collapse(models.digits_repvgg(form="tr"))


# ---- equivalence, in double precision


def federated(method, task, rounds=3, settings=None):
    """Federated averaging in double precision; the global network after each round."""
    settings = settings or fl.Settings(batch_size=8, epochs=2)
    csla = local.new_network(dataclasses.replace(method.model, form="csla"), task).double()
    net = (
        models.repopt.target(csla) if method.model.form == "repopt" else csla
    )  # collapsed in double precision, too
    state, seen = {n: t.clone() for n, t in state_of(net).items()}, []
    for t in range(1, rounds + 1):
        total = {n: torch.zeros_like(w) for n, w in state.items()}
        for k in range(task.clients):
            local.load(state_of(net), state)
            local.train(
                net,
                method,
                Context(task, t, k, start=state, memory={}, net=net, settings=settings),
                settings,
            )
            for n, w in state_of(net).items():
                total[n] += w * task.sizes[k] / sum(task.sizes)
        state = total
        local.load(state_of(net), state)
        seen.append(copy.deepcopy(net))
    return seen


def kernels(net):
    net = (
        reparam.collapse(net)
        if any(b.form == "csla" for b in reparam.blocks(net).values())
        else net
    )
    return torch.cat([b.conv3.weight.detach().flatten() for b in reparam.blocks(net).values()])


def off(one, other):
    return float((kernels(one) - kernels(other)).abs().max() / kernels(one).abs().max())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("how", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_repopt_is_csla_through_rounds_of_averaging(family, how, task):
    csla, rep = (
        federated(fl.methods.fed_repopt(0.05, form, family, **how), task)
        for form in ("csla", "repopt")
    )
    x = noise(7, 1, 8, 8)
    for one, other in zip(csla, rep, strict=True):
        assert off(one, other) <= 1e-10
        torch.testing.assert_close(one.eval()(x), other.eval()(x), atol=1e-10, rtol=1e-10)
    assert off(csla[0], csla[2]) > 1e-3  # something was learned


def test_repopt_is_csla_with_adamw_too(task):
    own = models.repopt.scales_of(repopt.Form("csla", "digits_repvgg").build(task))
    searched = models.repopt.Scales(
        {n: t * (-2.0 if i % 3 == 0 else 0.7) for i, (n, t) in enumerate(own.items())}
    )
    how = {"scales": searched, "weight_decay": 0.01, "optimizer": "adamw"}
    tiny = {form: fl.methods.fed_repopt(0.002, form, **how) for form in ("csla", "repopt")}
    tiny = {
        form: m.but(optimizer=dataclasses.replace(m.optimizer, eps=1e-30))
        for form, m in tiny.items()
    }
    csla, rep = (federated(m, task, 2)[-1] for m in tiny.values())
    start = local.initial_network(tiny["repopt"], task).double()
    learned, gap = (kernels(csla) - kernels(start)).norm(), (kernels(csla) - kernels(rep)).norm()
    plain = federated(
        tiny["repopt"].but(optimizer=Adam(0.002, eps=1e-30, weight_decay=0.01, decoupled=True)),
        task,
        2,
    )[-1]
    print(gap / learned, (kernels(csla) - kernels(plain)).norm() / learned)
    assert gap < 1e-6 * learned and (kernels(csla) - kernels(plain)).norm() > 0.3 * learned


@pytest.mark.parametrize("family", FAMILIES)
def test_multiplier_by_its_definition(family, task):
    method = fl.methods.fed_repopt(network=family)
    net = local.initial_network(method, task)
    M = dict(
        zip((n for n, _ in net.named_parameters()), models.repopt.multipliers(net), strict=True)
    )
    found = reparam.blocks(net)
    assert {n for n, m in M.items() if torch.is_tensor(m)} == {f"{n}.conv3.weight" for n in found}
    for name, block in found.items():
        m, s3, s1 = M[f"{name}.conv3.weight"], block.constant_s3, block.constant_s1
        for o, i, u, v in [
            (0, 0, 0, 0),
            (1, 0, 1, 1),
            (1, min(1, m.shape[1] - 1), 1, 1),
            (3, 0, 2, 1),
        ]:
            middle = (u, v) == (1, 1)
            straight = o == i if m.shape[1] > 1 else True
            expected = (
                s3[o] ** 2
                + (s1[o] ** 2 if middle and s1 is not None else 0)
                + (middle and straight and block.identity)
            )
            assert float(m[o, i, u, v]) == pytest.approx(float(expected))
    for block in found.values():
        block.constant_s3.fill_(-2.0)
    for power, expected in ((1, 2.0), (2, 4.0)):
        first = next(m for m in models.repopt.multipliers(net, power) if torch.is_tensor(m))
        assert float(first[0, 0, 0, 0]) == expected


# ---- the constants on the wire


def test_constants_are_sent_once_to_each_client(task):
    method = fl.methods.fed_repopt()
    history = fl.run(method, task, 3, participation=0.67)
    server = method.server_side(task)
    numbers = sum(t.numel() for t in models.repopt.constants(server.net).values())
    assert numbers == 2 * (16 + 16 + 16 + 32 + 32)
    extra, told = 4 * numbers + 4 * len(models.repopt.constants(server.net)), set()
    dense = min(history.bytes_down) / 2
    for row in history.rows:
        new = set(row["clients"]) - told
        told |= new
        assert row["bytes_down"] == dense * len(row["clients"]) + extra * len(new)


def test_constants_are_sent_until_the_client_has_answered(task):
    """Rounds of which the first upload of client 0 is lost, and the second is refused."""
    method = fl.methods.fed_repopt()
    server, clients = method.server_side(task), fl.clients(method, task)
    state, heard, lengths = server.start(), {}, []

    class Unlucky:
        def exchange(self, t, what, who, write):
            for k in who:
                data = write(k)
                answer = clients.answer(t, k, data)
                if k == 0:
                    lengths.append(len(data))
                    answer = {1: fl.WireError("lost"), 2: answer[:-1]}.get(t, answer)
                yield k, answer

    for t in range(1, 5):
        row = {"refused": {}}
        state = server.round(t, state, Exchange(t, Unlucky(), row, heard))
        assert list(row["refused"]) == ([0] if t < 3 else [])
    assert lengths[0] == lengths[1] == lengths[2] > lengths[3]
    assert heard == dict.fromkeys(range(3), 4)


# ---- scales and search


def scales(task, factor=1.0, **change):
    net = repopt.Form("csla", "digits_repvgg").build(task)
    return models.repopt.Scales(
        {n: factor * t.clone() for n, t in models.repopt.scales_of(net).items()} | change
    )


def test_searched_scales_are_those_of_the_trained_network():
    own = fl.tasks.classification("digits", 1, train=100, test=50)
    found = fl.repopt_search(own, 2)
    assert found.of.keys() == scales(own).of.keys()
    assert all(not torch.equal(t, scales(own).of[n]) for n, t in found.of.items())
    method = fl.methods.fed_repopt(scales=found)
    net = local.initial_network(method, own)
    assert torch.equal(models.repopt.constants(net)["extractor.2.s3"], found.of["extractor.2.s3"])
    csla = local.initial_network(fl.methods.fed_repopt(form="csla", scales=found), own)
    torch.testing.assert_close(
        net.eval()(torch.ones(1, 1, 8, 8)), csla.eval()(torch.ones(1, 1, 8, 8))
    )
    assert repr(found) == repr(fl.repopt_search(own, 2)) != repr(scales(own))


def test_a_searchs_rate_rises_and_falls_and_its_gradients_are_clipped():
    """The authors' program: warm-up from 0, half a cosine to 0, gradients of norm 5 at most."""
    torch.manual_seed(0)
    w, part = torch.randn(4, 3), search.Planned(0.1, 0.9, 0.01, rounds=10, warmup=2, clip=0.5)
    ours, theirs = [w.clone(), torch.ones(3)], [w.clone().requires_grad_(), torch.ones(3)]
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
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))
    for wrong in ({"warmup": 11}, {"warmup": -1}, {"clip": -1.0}):
        with pytest.raises(ValueError, match="warmup|clip"):
            search.Planned(**{"rounds": 10} | wrong)


def test_csla_is_repopt_with_the_authors_weight_decay_and_smoothing(task):
    """Vectors spared, but s_id shrinks with the kernels that it is part of."""
    how = {"momentum": 0.9, "weight_decay": 0.01, "spare": True, "smoothing": 0.1}
    one, two = (
        federated(fl.methods.fed_repopt(0.05, form, **how), task) for form in ("csla", "repopt")
    )
    assert all(off(a, b) <= 1e-10 for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    "network, form, parameters, frozen",
    [
        ("repvgg_b1", "tr", 55_775_816, 0),
        ("repvgg_b1", "csla", 55_741_768, 24_704),
        ("repvgg_b1", "deploy", 50_190_280, 0),
        ("repghost_05", "tr", 1_289_168, 0),
        ("repghost_05", "csla", 1_286_688, 2_480),
    ],
)
def test_counts(network, form, parameters, frozen):
    with torch.device("meta"):
        net = models.NETWORKS[network](form=form)
    assert models.parameter_count(net) == parameters
    constants = dict(net.named_buffers()).keys() - net.state_dict().keys()  # no part of the state
    assert sum(t.numel() for n, t in net.named_buffers() if n in constants) == frozen


@pytest.mark.parametrize("wrong, least", [("the paper's scalar", 0.2), ("without the one", 0.1)])
def test_other_multipliers_are_another_training(wrong, least, task, monkeypatch):
    def multipliers(net, power):
        M = []
        for name, p in net.named_parameters():
            block = reparam.blocks(net).get(name.removesuffix(".conv3.weight"))
            if block is None:
                M.append(1.0)
                continue
            m = (block.constant_s3**2)[:, None, None, None] * torch.ones_like(p)
            at = (slice(None),) * 4 if wrong == "the paper's scalar" else (..., 1, 1)
            m[at] += (block.constant_s1**2).view(-1, *[1] * (m[at].dim() - 1))
            M.append(m)
        return M

    csla = federated(fl.methods.fed_repopt(0.05, "csla"), task, 2)[-1]
    monkeypatch.setattr(repopt, "multipliers", multipliers)
    other = federated(fl.methods.fed_repopt(0.05), task, 2)[-1]
    start = local.initial_network(fl.methods.fed_repopt(0.05), task).double()
    learned, gap = kernels(csla) - kernels(start), kernels(csla) - kernels(other)
    assert gap.norm() > least * learned.norm()


def test_bad_scales_and_tasks_are_refused(task):
    bad = {"does not fit": torch.ones(5), "finite number": torch.full((16,), math.nan)}
    for noun, values in bad.items():
        with pytest.raises(ValueError, match=noun):
            given = scales(task, **{"extractor.0.s3": values})
            fl.run(fl.methods.fed_repopt(scales=given), task, 1)
    with pytest.raises(ValueError, match='for the forms "csla", "search" and "repopt"'):
        fl.methods.fed_repopt(form="tr", scales=scales(task))
    with pytest.raises(ValueError, match="one client"):
        fl.repopt_search(task, 1)


def test_a_new_client_does_not_train_without_the_constants(task):
    method = fl.methods.fed_repopt()
    server, clients = method.server_side(task), fl.clients(method, task)
    with pytest.raises(fl.WireError, match="has not come"):  # as if it had been heard before
        clients.answer(2, 0, server.send(2, 0, server.start(), {0: 1})[0])
    assert not clients.memories[0]
