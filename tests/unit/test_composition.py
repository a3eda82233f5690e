"""Can parts be mixed? Every method with a part of FedAvg, and FedAvg with every part of a
method, is built or refused in one sentence; some train."""

import itertools
import random
import warnings

import pytest

import fedlearn as fl
from fedlearn.core.method import KINDS

ROUNDS = 6
SHARE = 0.7  # of FedAvg's accuracy after so many rounds, at least
METHODS = {name: make() for name, make in fl.methods.METHODS.items()}
METHODS = {
    name: method for name, method in METHODS.items() if type(method) is fl.Averaging
}
FEDAVG = METHODS["fedavg"]
TASK = fl.tasks.classification("digits", 4)


def swaps():
    """label -> the method, or the sentence that refuses it."""
    built = {}
    for (name, method), kind in itertools.product(METHODS.items(), KINDS):
        part = getattr(method, kind)
        default = getattr(FEDAVG, kind)
        if part == default:
            continue
        for label, one, other in (("into", FEDAVG, part), ("out of", method, default)):
            try:
                built[f"{kind} {label} {name}"] = one.but(**{kind: other})
            except ValueError as error:
                built[f"{kind} {label} {name}"] = str(error)
    return built


BUILT = swaps()
ALLOWED = {
    label: method for label, method in BUILT.items() if not isinstance(method, str)
}
# these need a network in the form "repopt", which only a run sees
REPOPT = [
    ALLOWED.pop(f"{swap} fed_repopt")
    for swap in ("optimizer into", "downlink into", "model out of")
]
FEW = random.Random(0).sample(sorted(ALLOWED), 12)


def accuracy(method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {
            "engine": "stacked",
            "threads": 1,
            "evaluate_every": ROUNDS,
            "progress": False,
        }
        return fl.run(method, TASK, ROUNDS, **options).final["accuracy"]


def share(method):
    return accuracy(method) / accuracy(FEDAVG.but(model=method.model))


def test_a_refusal_names_a_part():
    refusals = [text for text in BUILT.values() if isinstance(text, str)]
    assert refusals
    for text in refusals:
        assert " needs " in text


@pytest.mark.parametrize("method", REPOPT)
def test_a_network_without_constants_is_refused(method):
    with pytest.raises(ValueError, match="repopt"):
        accuracy(method)


@pytest.mark.parametrize(
    "label",
    [pytest.param(k, marks=[] if k in FEW else pytest.mark.slow) for k in ALLOWED],
)
def test_an_allowed_swap_trains(label):
    assert share(ALLOWED[label]) >= SHARE - 0.1  # processors differ
