"""What a method is made of: parts that are misspelt or do not fit are refused when it is built."""

from dataclasses import dataclass

import pytest
import torch

import fedlearn as fl
from fedlearn.method import ClientSide, Exchange, ServerSide
from fedlearn.methods.fed_kgf import Representative
from fedlearn.methods.fed_repopt import Constants, Form, RepSGD
from fedlearn.methods.fedcams import AMSGrad
from fedlearn.methods.fedcom import Remember
from fedlearn.methods.fedfusion import FusionLoss, FusionNetwork
from fedlearn.methods.fedpm import BetaPosterior, MaskedNetwork
from fedlearn.methods.signsgd import Majority
from fedlearn.parts import Aggregator, Code, KeptSteps, Model, Objective, Optimizer, Replay, Update
from fedlearn.wire import Signs

FEDAVG, STC, PM = fl.methods.fedavg(), fl.methods.stc(), fl.methods.fedpm()
VOTES = fl.Uplink(Update(), Code(Signs(False)))


def part(base, name):
    return type("Mine", (base,), {name: lambda *args: None})()


INSIDE = FusionNetwork("multi", Representative(of=part(fl.TaskNetwork, "refesh")))


@pytest.mark.parametrize(
    "parts, member",
    [
        ({"model": part(Model, "biuld")}, "build"),
        ({"objective": part(Objective, "begn")}, "begin"),
        ({"optimizer": part(Optimizer, "stpe")}, "step"),
        ({"uplink": part(fl.Uplink, "encoed")}, "encode"),
        ({"downlink": part(fl.Downlink, "gruop")}, "group"),
        ({"server": part(Aggregator, "agregate")}, "aggregate"),
        ({"model": INSIDE}, "refresh"),  # a part inside a part
        ({"server": KeptSteps(STC.uplink, part(fl.Mean, "agregate"))}, "aggregate"),
        ({"server": part(fl.Mean, "zzz")}, None),
    ],
)
def test_a_misspelt_member_is_refused(parts, member):
    hint = f"did you mean '{member}'" if member else "begin with _"
    with pytest.raises(ValueError, match=f"Mine has .*{hint}"):
        FEDAVG.but(**parts)


def test_members_of_a_users_part_begin_with_an_underscore_or_are_fields(task):
    @dataclass(frozen=True)
    class Scaled(fl.Mean):
        factor: float = 1.0
        _own = 3

        def aggregate(self, state, arrivals, ctx):
            new = super().aggregate(state, arrivals, ctx)
            return {n: state[n] + self.factor * (w - state[n]) for n, w in new.items()}

    method = FEDAVG.but(server=Scaled(factor=0.0))
    start = method.server_side(task).initial
    assert all(torch.equal(t, start[n]) for n, t in fl.run(method, task, 1).state.items())


UNFIT = [
    (PM, {"server": fl.Mean()}, "server Mean.* needs Update, which no other part of fedpm gives"),
    (PM, {"server": AMSGrad()}, "needs Update"),
    (PM, {"server": Majority()}, "needs Votes"),
    (FEDAVG, {"server": BetaPosterior()}, "needs Masks"),
    (PM, {"uplink": fl.Uplink()}, "needs Masks"),
    (FEDAVG, {"uplink": VOTES}, "needs Update"),
    (PM, {"model": fl.TaskNetwork()}, "needs MaskedNetwork"),
    (STC, {"server": fl.Mean()}, "downlink Replay.* needs KeptSteps"),
    (STC, {"downlink": fl.methods.signsgd().downlink}, "needs KeptSteps.*Signs"),
    (STC, {"server": KeptSteps(STC.uplink, Majority())}, "KeptSteps.* needs Votes"),
    (STC, {"server": KeptSteps(STC.uplink, BetaPosterior())}, "KeptSteps.* needs Masks"),
    (FEDAVG, {"optimizer": RepSGD()}, "optimizer RepSGD.* needs Repopt"),
    (fl.methods.fed_repopt(), {"model": Form("csla", "digits_repvgg")}, "needs Repopt"),
    (FEDAVG, {"downlink": fl.Downlink(Constants())}, "downlink Downlink.* needs Repopt"),
    (FEDAVG, {"objective": FusionLoss()}, "FusionLoss.* needs FusionNetwork"),
    (fl.methods.fedcomgate(), {"uplink": fl.Uplink()}, "needs Remember"),
    (FEDAVG, {"uplink": fl.SGD()}, "uplink of Averaging .* Uplink"),
    (FEDAVG, {"uplink": fl.Downlink()}, "uplink of Averaging"),
    (FEDAVG, {"server": fl.Mean}, "server of Averaging"),
    (FEDAVG, {"objective": lambda net, batch: 0}, "objective of Averaging"),
    (FEDAVG, {"uplinc": fl.Uplink()}, "Did you mean 'uplink'"),
    (fl.methods.fed_gkt(), {"network": fl.TaskNetwork()}, "network of GroupTransfer"),
]


@pytest.mark.parametrize("method, parts, noun", UNFIT, ids=[str(u[2]) for u in UNFIT])
def test_parts_that_do_not_fit_are_refused_with_one_sentence(method, parts, noun):
    with pytest.raises(ValueError, match=noun) as error:
        method.but(**parts)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


FIT = [
    (FEDAVG, {"uplink": fl.Uplink(Update(), Code(Signs()))}),  # the mean of scaled signs
    (FEDAVG, {"server": Majority()}),  # the signs of updates are votes
    (FEDAVG, {"downlink": Replay(STC.uplink), "server": KeptSteps(STC.uplink)}),
    (FEDAVG, {"model": MaskedNetwork()}),  # averaged scores
    (FEDAVG, {"uplink": fl.Uplink(Update(), Remember())}),
    (fl.methods.fedfusion(), {"model": FusionNetwork("single", Representative(4))}),
    (fl.methods.fed_repopt(), {"optimizer": fl.SGD(0.05)}),
]


@pytest.mark.parametrize("method, parts", FIT, ids=[str(f[1]) for f in FIT])
def test_parts_that_fit_are_taken_and_train(method, parts, task):
    changed = method.but(name="changed", **parts)
    assert list(changed.parts()) == list(method.parts()) and changed != method
    kept = [kind for kind in changed.kinds if kind not in parts]
    assert all(getattr(changed, kind) == getattr(method, kind) for kind in kept)
    history = fl.run(changed, task, 1)
    assert history.method == "changed" and not history.rows[0]["refused"]
    assert all(torch.isfinite(t).all() for t in history.state.values())


@dataclass(frozen=True)
class Ternary(Update):
    """Each entry of the update as its sign times the mean magnitude, or zero below that."""

    def encode(self, x, ctx):
        u = super().encode(x, ctx)
        return {n: t.sign() * (t.abs() >= t.abs().mean()) * t.abs().mean() for n, t in u.items()}


@dataclass(frozen=True)
class TernaryMean(fl.Mean):
    needs = frozenset({Ternary})


def test_a_users_kind_of_message_fits_what_needs_it_and_nothing_else(task):
    method = FEDAVG.but(uplink=fl.Uplink(Ternary()), server=TernaryMean())
    for engine in ("sequential", "stacked"):
        assert not fl.run(method, task, 1, engine=engine).rows[0]["refused"]
    assert FEDAVG.but(uplink=fl.Uplink(Ternary()))  # it is an update, too
    with pytest.raises(ValueError, match="TernaryMean.* needs Ternary"):
        FEDAVG.but(server=TernaryMean())


@pytest.mark.parametrize(
    "name", "dgc stc fedcams fedcomgate fedfusion fed_gkt scaffold feddyn local".split()
)
def test_nothing_of_a_round_that_diverged_stays_in_a_clients_memory(name, task):
    options = {"personal": True} if name == "fedfusion" else {}
    options |= {"asynchronous": True, "server_epochs": 1} if name == "fed_gkt" else {}
    method = fl.methods.get(name, **options)
    settings = fl.Settings(epochs=3)
    server, engine = method.server_side(task, settings), fl.clients(method, task, settings)
    state = server.start()
    for t in (1, 2, 3):
        engine.side.method = method.but(optimizer=fl.SGD(1e38)) if t == 2 else method
        row = {"refused": {}}
        state = server.round(t, state, Exchange(t, engine, row, {}))
        assert all(torch.isfinite(x).all() for m in engine.memories.values() for x in m.values())
        assert set(row["refused"]) == (set(range(4)) if t == 2 else set()), row["refused"]


@pytest.mark.parametrize(
    "base, member, arguments",
    [(Model, "build", 1), (Objective, "begin", 2), (Optimizer, "step", 3)]
    + [(Aggregator, "aggregate", 3), (ServerSide, "round", 3)]
    + [(ClientSide, "download", 4), (ClientSide, "upload", 2)],
)
def test_what_a_part_or_side_must_have_is_missed(base, member, arguments):
    with pytest.raises(NotImplementedError):
        getattr(base, member)(object.__new__(base), *[None] * arguments)
