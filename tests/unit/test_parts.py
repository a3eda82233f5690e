"""Parts: what is refused when a method is built, what both sides draw alike, what steps keep."""

import dataclasses

import pytest
import torch

import fedlearn as fl
from fedlearn.method import ClientSide, ServerSide, Trainee
from fedlearn.methods.fed_kgf import Representative
from fedlearn.methods.fed_repopt import Constants, Form, RepAdam, RepSGD
from fedlearn.methods.fedcams import AMSGrad
from fedlearn.methods.fedcom import Remember
from fedlearn.methods.fedfusion import FusionLoss, FusionNetwork
from fedlearn.methods.fedpm import BetaPosterior, MaskedNetwork
from fedlearn.methods.signsgd import Majority
from fedlearn.parts import (
    Aggregator,
    Batch,
    Code,
    Context,
    Edge,
    Feedback,
    KeptSteps,
    Lossy,
    Model,
    Named,
    Objective,
    Optimizer,
    Replay,
    Smoothed,
    Update,
)
from fedlearn.round import Exchange
from fedlearn.wire import Dense, Signs

FEDAVG = fl.methods.fedavg()


def sentence(error):
    """The one sentence with which something was refused."""
    text = str(error.value)
    assert "\n" not in text and text.endswith("."), text
    return text


# ---- misspelt members ----------------------------------------------------------------------------


def part(base, **members):
    return type("Mine", (base,), members)()


def nothing(*args):
    pass


MISSPELT = [
    (FEDAVG, "model", Model, "biuld", "build"),
    (FEDAVG, "model", fl.TaskNetwork, "refesh", "refresh"),
    (FEDAVG, "objective", Objective, "begn", "begin"),
    (FEDAVG, "objective", fl.TaskLoss, "need", "needs"),
    (FEDAVG, "optimizer", Optimizer, "stpe", "step"),
    (FEDAVG, "optimizer", fl.SGD, "inti", "init"),
    (FEDAVG, "uplink", fl.Uplink, "encoed", "encode"),
    (FEDAVG, "downlink", fl.Downlink, "gruop", "group"),
    (FEDAVG, "server", Aggregator, "agregate", "aggregate"),
    (FEDAVG, "server", fl.Mean, "valdiate", "validate"),
    (fl.methods.fed_gkt(), "network", lambda: Named("digits_server"), "biuld", "build"),
    (fl.methods.fed_gkt(), "server_optimizer", fl.Adam, "setp", "step"),
    (fl.methods.split_learning(), "model", lambda: Edge("digits_edge"), "biuld", "build"),
]


@pytest.mark.parametrize(
    "method, name, base, wrong, right", MISSPELT, ids=[f"{m[1]}-{m[3]}" for m in MISSPELT]
)
def test_a_misspelt_member_of_a_part_is_refused_when_the_method_is_built(
    method, name, base, wrong, right
):
    if isinstance(base, type):
        mine = part(base, **{wrong: nothing})
    else:
        mine = base()
        mine = type("Mine", (type(mine),), {wrong: nothing})(mine.network)
    with pytest.raises(ValueError, match=f"Mine has '{wrong}', which no .* has: ") as error:
        method.but(**{name: mine})
    assert str(error.value).endswith(f"did you mean '{right}'?")


def test_members_of_ones_own_begin_with_an_underscore_or_are_fields_of_a_dataclass(task):
    @dataclasses.dataclass(frozen=True)
    class Scaled(fl.Mean):
        factor: float = 1.0
        _own = 3

        def aggregate(self, state, arrivals, ctx):
            return self._scaled(super().aggregate(state, arrivals, ctx), state)

        def _scaled(self, new, state):
            return {n: state[n] + self.factor * (w - state[n]) for n, w in new.items()}

    method = FEDAVG.but(server=Scaled(factor=0.0))
    start = method.server_side(task).initial
    assert all(torch.equal(t, start[n]) for n, t in fl.run(method, task, 1).state.items())
    with pytest.raises(ValueError, match="its own names begin with _"):
        FEDAVG.but(server=part(fl.Mean, zzz=nothing))


def test_a_misspelt_member_of_a_part_inside_another_is_refused():
    network, server = part(fl.TaskNetwork, refesh=nothing), part(fl.Mean, agregate=nothing)
    for name, outer in (
        ("model", Representative(of=network)),
        ("model", FusionNetwork("multi", Representative(of=network))),
        ("server", KeptSteps(STC.uplink, server)),
    ):
        with pytest.raises(ValueError, match="did you mean '(refresh|aggregate)'"):
            FEDAVG.but(**{name: outer})


def test_every_method_of_the_package_is_built_of_parts_without_a_misspelt_member():
    for name in fl.methods.METHODS:
        method = fl.methods.get(name)
        assert method.but() == method
        for kind, base in method.kinds.items():
            assert isinstance(getattr(method, kind), base)


# ---- parts that do not fit -----------------------------------------------------------------------

STC, PM = fl.methods.stc(), fl.methods.fedpm()
UNFIT = {
    "masks into a mean": (
        lambda: PM.but(server=fl.Mean()),
        "server Mean.* needs updates of the weights; the uplink .* gives masks of zeros and ones",
    ),
    "masks into AMSGrad": (lambda: PM.but(server=AMSGrad()), "needs updates of the weights"),
    "masks into a vote": (lambda: PM.but(server=Majority()), "needs votes, one sign an entry"),
    "updates into a posterior": (
        lambda: FEDAVG.but(server=BetaPosterior()),
        "server BetaPosterior.* needs masks of zeros and ones; the uplink Uplink.* gives updates",
    ),
    "a posterior, dense": (
        lambda: PM.but(uplink=fl.Uplink()),
        "needs masks of zeros and ones; the uplink Uplink",
    ),
    "votes into a mean": (
        lambda: FEDAVG.but(uplink=fl.Uplink(Update(), Code(Signs(False)))),
        "needs updates of the weights; the uplink .* gives votes",
    ),
    "masks without scores": (
        lambda: PM.but(model=fl.TaskNetwork()),
        r"needs a network that trains scores of masks \(MaskedNetwork\); the model TaskNetwork",
    ),
    "a replay of steps that nobody keeps": (
        lambda: STC.but(server=fl.Mean()),
        r"downlink Replay.* needs a server that keeps its steps \(KeptSteps\), coded by Uplink.*; "
        r"the server Mean",
    ),
    "a replay of other steps than those that are kept": (
        lambda: STC.but(downlink=fl.methods.signsgd().downlink),
        r"needs a server that keeps .*Signs.*; the server KeptSteps.* gives .*TopK",
    ),
    "a vote of updates that are mostly zero": (
        lambda: STC.but(server=KeptSteps(STC.uplink, Majority())),
        "server KeptSteps.* needs votes, one sign an entry; the uplink .*TopK",
    ),
    "kept steps of a posterior under updates": (
        lambda: STC.but(server=KeptSteps(STC.uplink, BetaPosterior())),
        "server KeptSteps.* needs masks of zeros and ones",
    ),
    "kept steps of no server part": (
        lambda: KeptSteps(STC.uplink, fl.SGD()),
        r"SGD.* is no server part \(Aggregator\)",
    ),
    "multipliers without constants": (
        lambda: FEDAVG.but(optimizer=RepSGD()),
        r'optimizer RepSGD.* needs a network in the form "repopt" \(Form\); the model TaskNetwork',
    ),
    "multipliers of another form": (
        lambda: fl.methods.fed_repopt().but(model=Form("csla", "digits_repvgg")),
        'needs a network in the form "repopt"',
    ),
    "AdamW with multipliers without constants": (
        lambda: FEDAVG.but(optimizer=RepAdam()),
        'needs a network in the form "repopt"',
    ),
    "constants that there are not": (
        lambda: FEDAVG.but(downlink=fl.Downlink(Constants())),
        'downlink Downlink.* needs a network in the form "repopt"',
    ),
    "a fusion loss without a fusion": (
        lambda: FEDAVG.but(objective=FusionLoss()),
        r"objective FusionLoss.* needs a network with a fusion operator \(FusionNetwork\)",
    ),
    "FedFusion without its network": (
        lambda: fl.methods.fedfusion().but(model=fl.TaskNetwork()),
        "needs a network with a fusion operator",
    ),
    "tracking of what nobody remembers": (
        lambda: fl.methods.fedcomgate().but(uplink=fl.Uplink()),
        r"needs an uplink that remembers what it sent \(Remember\)",
    ),
    "an optimizer as the uplink": (
        lambda: FEDAVG.but(uplink=fl.SGD()),
        "SGD.* cannot be a method's uplink: it is not an Uplink",
    ),
    "a downlink as the uplink": (
        lambda: FEDAVG.but(uplink=fl.Downlink()),
        "cannot be a method's uplink: it is not an Uplink",
    ),
    "a class in place of a part": (
        lambda: FEDAVG.but(server=fl.Mean),
        "cannot be a method's server: it is not an Aggregator",
    ),
    "a function in place of a part": (
        lambda: FEDAVG.but(objective=lambda net, batch: 0),
        "cannot be a method's objective: it is not an Objective",
    ),
    "another network where an edge is needed": (
        lambda: fl.methods.fed_gkt().but(network=fl.TaskNetwork()),
        "cannot be a method's network: it is not a Named",
    ),
}


@pytest.mark.parametrize("make, says", UNFIT.values(), ids=UNFIT)
def test_parts_that_do_not_fit_are_refused_with_one_sentence(make, says):
    with pytest.raises(ValueError, match=says) as error:
        make()
    sentence(error)


FIT = {
    "the mean of scaled signs": lambda: FEDAVG.but(uplink=fl.Uplink(Update(), Code(Signs()))),
    "a vote of updates": lambda: FEDAVG.but(server=Majority()),
    "a vote of kept steps": lambda: FEDAVG.but(server=KeptSteps(STC.uplink, Majority())),
    "kept steps that nobody replays": lambda: FEDAVG.but(server=KeptSteps(STC.uplink)),
    "averaged scores": lambda: FEDAVG.but(model=MaskedNetwork()),
    "a fusion of representative kernels": lambda: fl.methods.fedfusion().but(
        model=FusionNetwork("single", Representative(4))
    ),
    "an update that is remembered for nobody": lambda: FEDAVG.but(
        uplink=fl.Uplink(Update(), Remember())
    ),
    "a fusion that the mean averages": lambda: fl.methods.fedfusion().but(server=fl.Mean()),
    "few entries of the server's steps": lambda: FEDAVG.but(
        downlink=Replay(STC.uplink), server=KeptSteps(STC.uplink)
    ),
    "half the bits of the model, with feedback": lambda: FEDAVG.but(
        downlink=fl.Downlink(Feedback(), Lossy(Dense(16)))
    ),
    "the model in a few bits": lambda: FEDAVG.but(downlink=fl.Downlink(Lossy(fl.wire.QSGD()))),
    "constants for plain SGD": lambda: fl.methods.fed_repopt().but(optimizer=fl.SGD(0.05)),
}


@pytest.mark.parametrize("make", FIT.values(), ids=FIT)
def test_parts_that_fit_are_taken_and_train(make, task):
    history = fl.run(make(), task, 2)
    assert not any(row["refused"] for row in history.rows)
    assert all(torch.isfinite(t).all() for t in history.state.values())


KEEPING = ["dgc", "stc", "fedcams", "fedcomgate", "fedfusion", "fed_gkt", "scaffold", "feddyn"]


@pytest.mark.parametrize("name", [*KEEPING, "local"])
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
        (fl.parts.Model, "build", 1),
        (fl.parts.Objective, "begin", 2),
        (fl.parts.Optimizer, "step", 3),
        (fl.parts.Aggregator, "aggregate", 3),
        (ServerSide, "round", 3),
        (ClientSide, "answer", 5),
        (Trainee, "download", 4),
        (Trainee, "upload", 2),
    ],
)
def test_what_a_part_or_side_must_have_is_missed_and_not_taken_for_nothing(base, member, arguments):
    with pytest.raises(NotImplementedError):
        getattr(base, member)(object.__new__(base), *[None] * arguments)


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7)])
def test_label_smoothing_is_torchs(shape, task):
    z = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    y = torch.randint(7, shape[:-1], generator=torch.Generator().manual_seed(1))
    ctx, net = Context(task, 1), torch.nn.Identity()
    loss = Smoothed(0.1).begin(net, ctx)(net, Batch(z, y, y))
    rows = zip(z, y, strict=True) if len(shape) > 2 else [(z, y)]
    cross_entropy = torch.nn.functional.cross_entropy
    torchs = [cross_entropy(one, its, label_smoothing=0.1) for one, its in rows]
    torch.testing.assert_close(loss.reshape(-1), torch.stack(torchs))
    with pytest.raises(ValueError, match="smoothing"):
        Smoothed(1.0)
