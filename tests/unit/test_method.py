"""What a method is made of: parts that are misspelt or do not fit are refused when it is built."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch

import fedlearn as fl
from fedlearn.method import ClientSide, Exchange, ServerSide, Trainee
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


MISSPELT = [
    ("model", Model, "biuld", "build"),
    ("model", fl.TaskNetwork, "refesh", "refresh"),
    ("objective", Objective, "begn", "begin"),
    ("optimizer", Optimizer, "stpe", "step"),
    ("uplink", fl.Uplink, "encoed", "encode"),
    ("downlink", fl.Downlink, "gruop", "group"),
    ("server", Aggregator, "agregate", "aggregate"),
]


@pytest.mark.parametrize("name, base, wrong, right", MISSPELT)
def test_a_misspelt_member_of_a_part_is_refused(name, base, wrong, right):
    with pytest.raises(ValueError, match=f"Mine has '{wrong}', .*did you mean '{right}'"):
        FEDAVG.but(**{name: part(base, wrong)})


def test_a_misspelt_member_of_a_part_inside_another_is_refused():
    network, server = part(fl.TaskNetwork, "refesh"), part(fl.Mean, "agregate")
    for name, outer in (
        ("model", FusionNetwork("multi", Representative(of=network))),
        ("server", KeptSteps(STC.uplink, server)),
    ):
        with pytest.raises(ValueError, match="did you mean '(refresh|aggregate)'"):
            FEDAVG.but(**{name: outer})


def test_members_of_ones_own_begin_with_an_underscore_or_are_fields_of_a_dataclass(task):
    @dataclasses.dataclass(frozen=True)
    class Scaled(fl.Mean):
        factor: float = 1.0
        _own = 3

        def aggregate(self, state, arrivals, ctx):
            new = super().aggregate(state, arrivals, ctx)
            return {n: state[n] + self.factor * (w - state[n]) for n, w in new.items()}

    method = FEDAVG.but(server=Scaled(factor=0.0))
    start = method.server_side(task).initial
    assert all(torch.equal(t, start[n]) for n, t in fl.run(method, task, 1).state.items())
    with pytest.raises(ValueError, match="begin with _"):
        FEDAVG.but(server=part(fl.Mean, "zzz"))


UNFIT = [
    (PM, {"server": fl.Mean()}, "server Mean.* updates .*uplink .* gives masks"),
    (PM, {"server": AMSGrad()}, "needs updates"),
    (PM, {"server": Majority()}, "needs votes"),
    (FEDAVG, {"server": BetaPosterior()}, "needs masks .* gives updates"),
    (PM, {"uplink": fl.Uplink()}, "needs masks"),
    (FEDAVG, {"uplink": VOTES}, "needs updates .* gives votes"),
    (PM, {"model": fl.TaskNetwork()}, "needs .*MaskedNetwork.* model TaskNetwork"),
    (STC, {"server": fl.Mean()}, "downlink Replay.* needs .*KeptSteps.* server Mean"),
    (STC, {"downlink": fl.methods.signsgd().downlink}, "needs .*Signs.* KeptSteps.* gives .*TopK"),
    (STC, {"server": KeptSteps(STC.uplink, Majority())}, "KeptSteps.* needs votes"),
    (STC, {"server": KeptSteps(STC.uplink, BetaPosterior())}, "KeptSteps.* needs masks"),
    (FEDAVG, {"optimizer": RepSGD()}, r'needs .* "repopt" \(Form\); the model TaskNetwork'),
    (fl.methods.fed_repopt(), {"model": Form("csla", "digits_repvgg")}, 'form "repopt"'),
    (FEDAVG, {"downlink": fl.Downlink(Constants())}, 'downlink Downlink.* form "repopt"'),
    (FEDAVG, {"objective": FusionLoss()}, "FusionLoss.* needs .*FusionNetwork"),
    (fl.methods.fedfusion(), {"model": fl.TaskNetwork()}, "fusion operator"),
    (fl.methods.fedcomgate(), {"uplink": fl.Uplink()}, "needs .*Remember"),
    (FEDAVG, {"uplink": fl.SGD()}, "method's uplink: it is no Uplink"),
    (FEDAVG, {"uplink": fl.Downlink()}, "method's uplink"),
    (FEDAVG, {"server": fl.Mean}, "method's server"),
    (FEDAVG, {"objective": lambda net, batch: 0}, "method's objective"),
    (FEDAVG, {"uplinc": fl.Uplink()}, "Did you mean 'uplink'"),
    (fl.methods.fed_gkt(), {"network": fl.TaskNetwork()}, "method's network"),
]


@pytest.mark.parametrize("method, parts, sentence", UNFIT, ids=[str(u[2]) for u in UNFIT])
def test_parts_that_do_not_fit_are_refused_with_one_sentence(method, parts, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        method.but(**parts)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


FIT = [
    (FEDAVG, {"uplink": fl.Uplink(Update(), Code(Signs()))}),  # the mean of scaled signs
    (FEDAVG, {"server": Majority()}),  # the signs of updates are votes
    (FEDAVG, {"server": KeptSteps(STC.uplink)}),
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


def test_a_kind_of_message_of_ones_own_fits_what_needs_it_and_nothing_else(task):
    method = FEDAVG.but(uplink=fl.Uplink(Ternary()), server=TernaryMean())
    for engine in ("sequential", "stacked"):
        assert not fl.run(method, task, 1, engine=engine).rows[0]["refused"]
    assert FEDAVG.but(uplink=fl.Uplink(Ternary()))  # it is an update, too
    with pytest.raises(ValueError, match="TernaryMean.* needs Ternary; .* gives updates"):
        FEDAVG.but(server=TernaryMean())


KEEPING = "dgc stc fedcams fedcomgate fedfusion fed_gkt scaffold feddyn local".split()


@pytest.mark.parametrize("name", KEEPING)
def test_a_client_that_diverged_once_is_heard_again(name, task):
    """Nothing of a round in which training diverged stays in what a client keeps."""
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
    [
        (Model, "build", 1),
        (Objective, "begin", 2),
        (Optimizer, "step", 3),
        (Aggregator, "aggregate", 3),
        (ServerSide, "round", 3),
        (ClientSide, "answer", 5),
        (Trainee, "download", 4),
        (Trainee, "upload", 2),
    ],
)
def test_what_a_part_or_side_must_have_is_missed_and_not_taken_for_nothing(base, member, arguments):
    with pytest.raises(NotImplementedError):
        getattr(base, member)(object.__new__(base), *[None] * arguments)
