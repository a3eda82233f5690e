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
from fedlearn import local, models, stacked
from fedlearn.models import reparam, state_of
from fedlearn.parts import SGD, Adam, Context, Residual
from fedlearn.round import Exchange
from fedlearn.wire import DOWN, Message, pack, unpack

repopt = import_module("fedlearn.methods.fed_repopt")
search = import_module("fedlearn.methods.fed_repopt_search")
FAMILIES = ["digits_repvgg", "digits_repghost"]


@pytest.fixture
def task():
    return fl.tasks.classification("digits", 3, "dirichlet:1", train=90, test=60)


def noise(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ---- forms


@pytest.mark.parametrize(
    "network, form, parameters, frozen",
    [
        ("repvgg_b1", "tr", 55_775_816, 0),
        ("repvgg_b1", "inf", 50_202_632, 0),
        ("repvgg_b1", "csla", 55_741_768, 24_704),
        ("repvgg_b1", "deploy", 50_190_280, 0),
        ("repghost_05", "tr", 1_289_168, 0),
        ("repghost_05", "inf", 1_284_208, 0),
        ("repghost_05", "csla", 1_286_688, 2_480),
    ],
)
def test_counts(network, form, parameters, frozen):
    with torch.device("meta"):
        net = models.NETWORKS[network](form=form)
    assert models.parameter_count(net) == parameters
    own = {n for n, _ in net.named_buffers()} - {
        n for n in net.state_dict()
    }  # constants are no part of the state
    assert sum(t.numel() for n, t in net.named_buffers() if n in own) == frozen


def test_search_form_has_all_scales_trained():
    with torch.device("meta"):
        assert models.parameter_count(models.repvgg_b1(classes=100, form="search")) == 55_561_572
        found = reparam.blocks(models.repvgg_b1())
    assert len(found) == 28 and sum(b.identity for b in found.values()) == 23
    assert [round(b.scale**2, 4) for b in list(found.values())[:6]] == [
        1,
        1,
        2,
        1,
        0.6667,
        1,
    ]  # the stem, a stage of four


def test_the_scales_of_repghost_begin_by_the_place_in_the_stage():
    """sqrt(2 / (m + 1)) with m = 1, 2, ..., which restarts only at a block of stride 2 or of
    other channels: not at another kernel, inner width or squeeze-excite."""
    with torch.device("meta"):
        found = reparam.blocks(models.repghost_05()).values()
    m = [*(1, 2), *(1, 2, 3, 4), *(1, 2, 3, 4), *range(1, 9), *(1, 2, 3, 4), *range(1, 11)]
    assert [b.scale for b in found] == [(2 / (i + 1)) ** 0.5 for i in m] and len(m) == 32


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


def test_folding_by_the_definition():
    block = reparam.Branches(2, 2, form="tr").double()
    for bn in (block.bn3, block.bn1, block.bn_id):
        bn.running_mean.copy_(noise(2)), bn.running_var.copy_(noise(2, seed=1).square() + 0.5)
        bn.weight.data.copy_(noise(2, seed=2)), bn.bias.data.copy_(noise(2, seed=3))
    net = nn.Sequential(block).eval()
    x = noise(1, 2, 5, 5, seed=4)
    W, b = reparam.deploy(net)[0].conv3.weight, reparam.deploy(net)[0].conv3.bias
    t = {
        n: getattr(block, n).weight / (getattr(block, n).running_var + 1e-5).sqrt()
        for n in ("bn3", "bn1", "bn_id")
    }
    for o in range(2):
        for i in range(2):
            expected = t["bn3"][o] * block.conv3.weight[o, i]
            expected[1, 1] += t["bn1"][o] * block.conv1.weight[o, i, 0, 0] + (
                t["bn_id"][o] if o == i else 0
            )
            torch.testing.assert_close(W[o, i], expected)
    torch.testing.assert_close(F.conv2d(x, W, b, padding=1), net(x))


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


@pytest.mark.parametrize("wrong, least", [("the paper's scalar", 0.2), ("without the one", 0.1)])
def test_other_multipliers_are_another_training(wrong, least, task, monkeypatch):
    def multipliers(net, power):
        M = []
        for name, p in net.named_parameters():
            block = reparam.blocks(net).get(name.removesuffix(".conv3.weight"))
            if block is None:
                M.append(1.0)
            elif wrong == "the paper's scalar":
                M.append(
                    (block.constant_s3**2 + block.constant_s1**2)[:, None, None, None]
                    * torch.ones_like(p)
                )
            else:
                m = (block.constant_s3**2)[:, None, None, None] * torch.ones_like(p)
                m[:, :, 1, 1] += (block.constant_s1**2)[:, None]
                M.append(m)
        return M

    csla, right = (
        federated(fl.methods.fed_repopt(0.05, form), task)[-1] for form in ("csla", "repopt")
    )
    monkeypatch.setattr(repopt, "multipliers", multipliers)
    other = federated(fl.methods.fed_repopt(0.05), task)[-1]
    learned = kernels(csla) - kernels(
        local.initial_network(fl.methods.fed_repopt(0.05), task).double()
    )
    gap = float((kernels(csla) - kernels(other)).norm() / learned.norm())
    print(wrong, gap)
    assert off(csla, right) < 1e-10 and gap > least


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


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_with_all_multipliers_one_it_is_the_optimiser_itself(optimizer, task):
    momentum = 0.9 if optimizer == "sgd" else 0.0
    how = {"optimizer": optimizer, "momentum": momentum, "weight_decay": 0.1}
    part = fl.methods.fed_repopt(**how).optimizer
    assert isinstance(part, (SGD, Adam))
    plain = fl.methods.fed_repopt(form="inf", **how).optimizer
    params = [[noise(2, 3)], [noise(2, 3)]]
    states = [
        part.__class__.__mro__[2].init(part, params[0], Context(task, 1))
        | {"M": ((0, torch.ones(2, 3, dtype=torch.float64)),)},
        plain.init(params[1], Context(task, 1)),
    ]
    for seed in range(4):
        part.step(params[0], [noise(2, 3, seed=seed)], states[0])
        plain.step(params[1], [noise(2, 3, seed=seed)], states[1])
    assert torch.equal(params[0][0], params[1][0])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["tr", "inf", "csla", "repopt"])
def test_stacked_training_is_sequential_training(family, form, task):
    method = fl.methods.fed_repopt(form=form, network=family)
    one, other = (
        fl.run(method, task, 1, engine=e, batch_size=8) for e in ("sequential", "stacked")
    )
    for name, t in one.state.items():
        torch.testing.assert_close(other.state[name], t, atol=2e-5, rtol=2e-4)
    assert stacked.obstacle(method, task, fl.Settings()) is None


def test_package_runs_agree_in_single_precision(task):
    one, other = (fl.run(fl.methods.fed_repopt(form=form), task, 2) for form in ("csla", "repopt"))
    assert one.accuracy == pytest.approx(other.accuracy, abs=0.05)
    assert one.bytes_up[0] > other.bytes_up[0]


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


def test_client_believes_the_wire(task):
    server = fl.methods.fed_repopt(scales=scales(task, 2.0)).server_side(task)
    clients, state = fl.clients(fl.methods.fed_repopt(), task), server.start()

    def its_own():
        return models.repopt.constants(clients.side.net)["extractor.0.s3"].unique().tolist()

    assert its_own() == [1.0]
    server.receive(1, 0, clients.answer(1, 0, server.send(1, 0, state)[0]), state)
    assert its_own() == [2.0]
    without = server.send(2, 0, state, last_seen={0: 1})[0]
    assert len(without) < len(server.send(2, 1, state, last_seen={0: 1})[0])
    clients.answer(2, 0, without)  # it has kept them
    assert its_own() == [2.0]


def test_a_message_without_constants_is_refused_by_a_new_client(task):
    method = fl.methods.fed_repopt()
    server, clients = method.server_side(task), fl.clients(method, task)
    state, heard = server.start(), {0: 1}  # client 0 was heard in round 1, in another process
    with pytest.raises(fl.WireError, match="have not come"):
        clients.answer(2, 0, server.send(2, 0, state, heard)[0])
    data = unpack(server.send(2, 1, state, heard)[0], server.down, kind=DOWN, round=2, client=1)
    short = {n: s for n, s in data.sections.items() if n != "classifier.2.bias"}
    with pytest.raises(fl.WireError, match="whole model"):
        clients.answer(2, 1, pack(Message(DOWN, 2, 1, 0, short), server.down))


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


BAD = {
    "wrong length": ({"extractor.0.s3": torch.ones(5)}, "extractor.0.s3 does not fit"),
    "another network's": ({"extractor.9.s3": torch.ones(16)}, "extractor.9.s3 does not fit"),
    "NaN": ({"extractor.0.s3": torch.full((16,), math.nan)}, "finite number"),
    "infinite": ({"extractor.0.s1": torch.full((16,), math.inf)}, "finite number"),
    "a number": ({"extractor.0.s1": 1.0}, "finite number"),
}


@pytest.mark.parametrize("change, sentence", BAD.values(), ids=BAD)
@pytest.mark.parametrize("form", ["repopt", "csla"])
def test_bad_scales_are_one_clear_sentence(change, sentence, form, task, monkeypatch):
    monkeypatch.setattr(local, "train", lambda *a: pytest.fail("training began"))
    with pytest.raises(ValueError, match=sentence):
        fl.run(fl.methods.fed_repopt(form=form, scales=scales(task, **change)), task, 1)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"network": "digits_cnn"}, "has no multi-branch blocks"),
        ({"network": None}, "has no multi-branch blocks"),
        ({"form": "rep"}, "There is no form 'rep'"),
        ({"form": "deploy"}, "There is no form 'deploy'.*Allowed: repopt, tr, inf, csla"),
        ({"form": "search"}, "There is no form 'search'"),
        ({"scales": {"foo": 0}}, "scales are Scales"),
        ({"optimizer": "adamw", "momentum": 0.9}, 'momentum belongs to optimizer "sgd"'),
        ({"optimizer": "adam"}, "Did you mean 'adamw'"),
        ({"lr": 0}, "lr > 0"),
    ],
)
def test_bad_options_are_one_clear_sentence(options, sentence, task, monkeypatch):
    monkeypatch.setattr(local, "train", lambda *a: pytest.fail("training began"))
    with pytest.raises(ValueError, match=sentence):
        fl.run(fl.methods.fed_repopt(**options), task, 1)


def test_the_optimiser_alone_is_refused_with_a_reason(task):
    needs = r"The optimizer RepSGD.* needs a network in the form .repopt. \(Form\)"
    for method in (fl.methods.fedavg(), *(fl.methods.fed_repopt(form=f) for f in ("tr", "inf"))):
        with pytest.raises(ValueError, match=needs):
            method.but(optimizer=repopt.RepSGD(0.1))
        with pytest.raises(ValueError, match=r"The downlink Downlink\(Constants\(\)\) needs"):
            method.but(downlink=fl.Downlink(repopt.Constants()))
    with pytest.raises(ValueError, match="multi-branch blocks"):
        models.repopt.constants(local.initial_network(fl.methods.fedavg(), task))
    for form in ("tr", "inf"):
        with pytest.raises(ValueError, match="needs the constants"):
            models.repopt.constants(local.initial_network(fl.methods.fed_repopt(form=form), task))
    net = local.initial_network(fl.methods.fed_repopt(), task)
    with pytest.raises(ValueError, match="do not fit the parameters"):
        repopt.RepSGD(0.1).init(list(net.parameters())[1:], Context(task, 1, net=net))


def test_scales_can_be_compared_and_are_only_for_forms_that_have_them(task):
    assert scales(task) == scales(task) != scales(task, 2.0)
    assert hash(fl.methods.fed_repopt(scales=scales(task))) == hash(
        fl.methods.fed_repopt(scales=scales(task))
    )
    for form in ("tr", "inf"):
        with pytest.raises(ValueError, match='for the forms "csla", "search" and "repopt"'):
            fl.methods.fed_repopt(form=form, scales=scales(task))


def test_the_whole_model_or_the_residual_with_constants(task):
    whole, residual = (
        fl.run(fl.methods.fed_repopt().but(downlink=fl.Downlink(*steps)), task, 2)
        for steps in ([repopt.Constants()], [Residual(), repopt.Constants()])
    )
    for name, t in whole.state.items():
        torch.testing.assert_close(residual.state[name], t, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("missing", ["a constant", "a weight"])
def test_of_a_refused_message_nothing_is_kept(missing, task):
    method = fl.methods.fed_repopt()
    server, client = method.server_side(task), method.client_side(task)
    message = unpack(
        server.send(1, 0, server.start())[0], server.down, kind=DOWN, round=1, client=0
    )
    constants = list(models.repopt.constants(server.net))
    weights = [name for name in message.sections if name not in constants]
    name = (constants if missing == "a constant" else weights)[-1]
    some = {n: section for n, section in message.sections.items() if n != name}
    memory = {}
    with pytest.raises(fl.WireError, match="have not come|does not hold the whole model"):
        client.answer(1, 0, "train", pack(Message(DOWN, 1, 0, 0, some), server.down), memory)
    assert not memory
    client.answer(1, 0, "train", server.send(1, 0, server.start())[0], memory)
    assert set(constants) <= memory.keys()


def test_the_search_is_the_servers_own(task):
    with pytest.raises(ValueError, match="one client, not 3"):
        fl.repopt_search(task, 1)


def test_smoothing_and_spare_change_what_a_search_finds():
    own = fl.tasks.classification("digits", 1, train=100, test=50)
    found = fl.repopt_search(own, 2, lr=0.05, smoothing=0.1, spare=True)
    plain = fl.repopt_search(own, 2, lr=0.05)
    assert any(not torch.equal(plain.of[n], t) for n, t in found.of.items())


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
        with pytest.raises(ValueError, match="0 <= warmup <= rounds"):
            search.Planned(**{"rounds": 10} | wrong)


def test_csla_is_repopt_with_the_authors_weight_decay_and_smoothing(task):
    """Vectors spared, but s_id shrinks with the kernels that it is part of."""
    how = {"momentum": 0.9, "weight_decay": 0.01, "spare": True, "smoothing": 0.1}
    one, two = (
        federated(fl.methods.fed_repopt(0.05, form, **how), task) for form in ("csla", "repopt")
    )
    assert all(off(a, b) <= 1e-10 for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("form, trained", [("search", True), ("csla", False)])
def test_only_the_form_search_trains_its_scales(task, form, trained):
    net = repopt.Form(form, "digits_repvgg").build(task)
    scales = [t for name, t in models.repopt.scales_of(net).items() if "s_id" not in name]
    parameters = {p.data_ptr() for p in net.parameters()}
    assert scales and all((t.data_ptr() in parameters) == trained for t in scales)
