"""Can parts be mixed? Every single-part swap, and every uplink x downlink x server of the methods,
is built. It is refused with one sentence, or it trains, or it stands in ``data/composition.yaml``
with the reason why it trains badly. Some of them train in ``make test``, the others only in
``make test-all``."""

import itertools
import random
import warnings
from fnmatch import fnmatchcase
from functools import cache

import pytest
import torch
import yaml

import fedlearn as fl
from fedlearn.book import compose
from fedlearn.data.sources import data_path

ROUNDS, SHARE = 6, 0.7  # after so many rounds at least this share of FedAvg's accuracy
BADLY = yaml.safe_load(data_path("composition.yaml").read_text(encoding="utf-8"))


METHODS = compose.methods()
FEDAVG = METHODS["fedavg"]


def swaps():
    """(label, method to change, parts) of every single-part swap."""
    for name, method in METHODS.items():
        for part in fl.Averaging.kinds:
            own, default = getattr(method, part), getattr(FEDAVG, part)
            if own != default:
                yield f"fedavg with the {part} of {name}", FEDAVG, {part: own}
                yield f"{name} with the {part} of fedavg", method, {part: default}


def wires():
    """The same for every uplink x downlink x server; on a network that has what the wire needs."""
    kinds = ("uplink", "downlink", "server")
    for three in itertools.product(*map(compose.distinct, kinds)):
        names, parts = zip(*three, strict=True)
        method = FEDAVG
        if "scores" in parts[0].needs:
            method = METHODS["fedpm"]
        if "constants" in parts[1].needs:
            method = METHODS["fed_repopt"]
        yield " > ".join(names), method, dict(zip(kinds, parts, strict=True))


MIXES = {label: (method, parts) for label, method, parts in (*swaps(), *wires())}


def reasons(label):
    """Why a mix trains badly, if the table says so."""
    return [why for pattern, why in BADLY.items() if fnmatchcase(label, pattern)]


TASK = fl.tasks.classification("digits", 4)


def accuracy(method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = {"engine": "stacked", "threads": 1, "evaluate_every": ROUNDS, "progress": False}
        return fl.run(method, TASK, ROUNDS, **how).final["accuracy"]


@cache
def fedavg_with(model):
    return accuracy(FEDAVG.but(model=model))


def allowed():
    """The mixes that are not refused."""
    for label, (method, parts) in MIXES.items():
        try:
            yield label, method.but(**parts)
        except ValueError:
            pass


def covering(mixes, count=40):
    """Labels of so many of them, among which every part that is not FedAvg's, and every two kinds
    of parts that are mixed, come at least once."""
    order, seen, kept = random.Random(0).sample(mixes, len(mixes)), set(), []
    for label, method in order:
        own = {kind: getattr(method, kind) for kind in fl.Averaging.kinds}
        own = {kind: part for kind, part in own.items() if part != getattr(FEDAVG, kind)}
        new = {*own.items(), *itertools.combinations(own, 2)} - seen
        kept += [label] if new else []
        seen |= new
    rest = [label for label, _ in order if label not in kept]
    return kept + rest[: max(0, count - len(kept))]


ALLOWED = list(allowed())
FEW = covering(ALLOWED)


def case(label, method):
    return pytest.param(label, method, id=label, marks=[] if label in FEW else pytest.mark.slow)


@pytest.mark.parametrize(("label", "method"), [case(*mix) for mix in ALLOWED])
def test_a_mix_that_is_not_refused_trains(label, method):
    share = accuracy(method) / fedavg_with(method.model)
    if reasons(label):  # the last bits, and so the share, are not the same on every processor
        assert share < SHARE + 0.1, f"{label} reaches {share:.2f} of FedAvg: mend the table"
    else:
        assert share >= SHARE, f"{label} reaches {share:.2f} of FedAvg: refuse it, or say why"


def test_every_refusal_is_one_sentence_that_names_a_part():
    refused = 0
    for method, parts in MIXES.values():
        try:
            method.but(**parts)
        except ValueError as error:
            refused += 1
            text = str(error)
            assert text.startswith("The ") and text.endswith(".") and " needs " in text, text
            assert any(f"The {part} " in text for part in fl.Averaging.kinds), text
    assert refused > 100


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        ("fedavg", {"downlink": "stc"}),
        ("fedavg", {"uplink": "fedpm"}),
        ("stc", {"server": "fedavg"}),
        *[(name, {"server": "fedpm"}) for name in ("fedavg", "rpn", "qsgd", "signsgd", "dgc")],
    ],
)
def test_what_once_trained_to_chance_is_refused(method, parts):
    parts = {part: getattr(METHODS[name], part) for part, name in parts.items()}
    with pytest.raises(ValueError, match="needs"):
        METHODS[method].but(**parts)


@pytest.mark.parametrize("name", ["signsgd", "fedpm"])
def test_modules_go_into_every_server(name):
    """Who sends only its modules votes, or masks, for these only."""
    method, link = METHODS[name], METHODS["fed_kgf"].uplink
    uplink = fl.Uplink(link.steps[0], *method.uplink.steps)
    history = fl.run(method.but(uplink=uplink), TASK, 2, progress=False)
    assert all(torch.isfinite(t).all() for t in history.state.values())
    assert history.bytes_up[0] < fl.run(method, TASK, 1, progress=False).bytes_up[0]


def test_the_table_names_mixes_that_exist_and_reasons():
    trained = [label for label, _ in ALLOWED]
    assert all(any(fnmatchcase(label, pattern) for label in trained) for pattern in BADLY)
    assert len(BADLY) <= 10 and all(len(reason.split()) > 5 for reason in BADLY.values())
