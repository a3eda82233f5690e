"""Can parts be mixed? Every single-part swap, and every uplink x downlink x server of the methods,
is built. It is refused with one sentence, or it trains, or it stands in ``data/composition.yaml``
with the reason why it trains badly. Some train in ``make test``, all in ``make test-all``."""

import itertools
import random
import warnings
from fnmatch import fnmatchcase
from functools import cache

import pytest
import yaml

import fedlearn as fl
from fedlearn.book import choosing
from fedlearn.core.method import KINDS as KINDS_OF_PARTS
from fedlearn.data.sources import data_path

ROUNDS, SHARE = 6, 0.7  # after so many rounds at least this share of FedAvg's accuracy
BADLY = yaml.safe_load(data_path("composition.yaml").read_text(encoding="utf-8"))
METHODS, KINDS = choosing.methods(), list(KINDS_OF_PARTS)
FEDAVG = METHODS["fedavg"]
TASK = fl.tasks.classification("digits", 4)


def built():
    """label -> the method, or the sentence that refuses it."""
    mixes = {}
    for (name, method), kind in itertools.product(METHODS.items(), KINDS):
        other, default = getattr(method, kind), getattr(FEDAVG, kind)
        if other != default:
            mixes[f"fedavg with the {kind} of {name}"] = FEDAVG, {kind: other}
            mixes[f"{name} with the {kind} of fedavg"] = method, {kind: default}
    three = "uplink", "downlink", "server"
    for mix in itertools.product(*map(choosing.distinct, three)):
        names, parts = zip(*mix, strict=True)
        mixes[" > ".join(names)] = FEDAVG, dict(zip(three, parts, strict=True))
    for label, (method, parts) in mixes.items():
        try:
            yield label, method.but(**parts)
        except ValueError as error:
            yield label, str(error)


BUILT = dict(built())
ALLOWED = {label: method for label, method in BUILT.items() if not isinstance(method, str)}


@cache
def accuracy(method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = {"engine": "stacked", "threads": 1, "evaluate_every": ROUNDS, "progress": False}
        return fl.run(method, TASK, ROUNDS, **how).final["accuracy"]


FEW = random.Random(0).sample(sorted(ALLOWED), 40)
CASES = [pytest.param(k, marks=[] if k in FEW else pytest.mark.slow) for k in ALLOWED]


@pytest.mark.parametrize("label", CASES)
def test_a_mix_that_is_not_refused_trains(label):
    method = ALLOWED[label]
    share = accuracy(method) / accuracy(FEDAVG.but(model=method.model))
    text = f"{label} reaches {share:.2f} of FedAvg"
    # a margin both ways: last bits, which differ by processor, move a pooled run by up to 0.1
    if any(fnmatchcase(label, pattern) for pattern in BADLY):
        assert share < SHARE + 0.1, f"{text}: mend the table"
    else:
        assert share >= SHARE - 0.1, f"{text}: refuse it, or say why"


def test_the_table_names_mixes_that_exist_and_reasons():
    assert all(any(fnmatchcase(label, pattern) for label in ALLOWED) for pattern in BADLY)
    assert len(BADLY) <= 10 and all(len(reason.split()) > 5 for reason in BADLY.values())
