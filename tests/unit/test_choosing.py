"""The runs behind the contest of the chapter on choosing: each is stated rightly, is run once, and
the best value of the short ones is taken."""

import copy
import itertools
import json
from collections import Counter

import pandas
import pytest
import torch

from fedlearn import wire
from fedlearn.book import choosing, grids

SPEC = copy.deepcopy(choosing.spec())
RUN = choosing.RUN


def test_every_stated_run_builds_a_method_and_each_has_the_same_budget():
    first = choosing.short_runs()
    made = [dict(zip(RUN, run, strict=True)) | {"accuracy": [0.5]} for run in first]
    whole = choosing.whole_runs(made)
    assert len({*first, *whole}) == len(first) + len(whole)  # none twice
    built = set()
    for run in [*first, *whole]:
        e = choosing.experiment(*run)
        assert (e.dataset, e.clients, e.seed) == ("digits", run[1], run[4])
        assert (e.rounds, e.validation) == ((10, True) if run[5] else (20, False))
        assert SPEC["networks"].get(run[2], {}).items() <= e.options.items()
        # the seed and the split do not change the method: build each once
        if (key := (e.method, json.dumps(e.options, sort_keys=True))) not in built:
            built.add(key)
            e.make_method()
    cells = itertools.product(SPEC["splits"], SPEC["clients"], SPEC["methods"])
    assert Counter(r[:3] for r in first if r[1] > 1) == dict.fromkeys(cells, 3)
    assert {r[4] for r in first} == {1000} and SPEC["networks"].keys() <= SPEC[
        "methods"
    ].keys()
    seeds = [r[4] for r in whole]
    assert Counter(seeds) == dict.fromkeys(SPEC["seeds"], 163) and seeds == sorted(
        seeds
    )


SENDS = {"dense": wire.Dense(), "8 bits": wire.QSGD(127, 512)}
SENDS |= {"signs": wire.Signs(), "top-k": wire.TopK(1 / 32, "sign")}


def test_a_fleet_sends_what_the_coders_send_and_who_loses_least_stands_above():
    x = torch.randn(500, 500, generator=torch.Generator().manual_seed(0))
    up = {name: sends[0] for name, sends in choosing.FAMILIES.items()}
    for short, coder in SENDS.items():
        dice = [torch.Generator().manual_seed(0)] * isinstance(coder, wire.Stochastic)
        [stated] = [each for name, each in up.items() if name.startswith(short)]
        assert len(coder.encode(x, *dice)) / x.numel() == pytest.approx(
            stated, rel=0.03
        )
    methods = [name.rsplit(": ")[-1] for name in choosing.FAMILIES]
    every = choosing.standing().set_index("method")["equal rounds"]
    behind = (
        every[[name for name in methods if name != "FedAvg"]].str.split(" : ").str[1]
    )
    assert behind.tolist() == ["0", "2", "2", "3", "6"]


def test_what_the_lesson_says_of_the_stored_contest():
    every = choosing.standing().set_index("method")
    counts = {
        head: its.str.split(" : ", expand=True).astype(int)
        for head, its in every.items()
    }
    rounds, sent = counts["equal rounds"], counts["equal bytes"]
    assert (
        rounds.sum().tolist() == [9, 59] and rounds[0].max() == 2 and len(every) == 26
    )
    firm = sent[(sent[0] >= 4) & (sent[1] == 0)][0]
    assert {*firm.index[firm == 5]} == {"FedGKT", "QSGD", "FedCOM", "FedCOMGATE"}
    assert {*firm.index[firm == 4]} == {"signSGD", "STC", "SmartIdx"}
    assert (
        every["equal bytes"]["RPN"] == "1 : 4"
        and every["equal rounds"]["QSGD"] == "0 : 0"
    )
    time = choosing.scores(choosing.TIME).loc["one main class", 10].mean()
    assert (time > time["FedAvg"]).sum() + 1 == 11


def test_a_budget_buys_what_fits_into_it():
    frame = pandas.DataFrame(
        {"method": ["FedAvg", "dear", "free"], "least": [0.1, 2.0, 0.0]}
    )
    frame = frame.assign(
        up=[1000, 6000, 0], down=[1000, 6000, 0], rounds=3 * [[*range(1, 21)]]
    )
    frame = frame.assign(split="IID", clients=10)
    looks = {
        e: choosing.affordable(frame, e) for e in (choosing.ROUNDS, choosing.BYTES)
    }
    assert looks == {choosing.ROUNDS: [20, 20, 20], choosing.BYTES: [5, 0, 20]}
    by_time = [
        choosing.affordable(frame, choosing.TIME, "3G", slower) for slower in (0, 1)
    ]
    assert by_time[0] == [5, 4, 5] and by_time[1][1] == 0


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The same contest with few images and few rounds, and a folder of its own for the file."""
    small = copy.deepcopy(SPEC)
    small["shared"] |= {"rounds": 2, "train": 60, "test": 20}
    small["short"] |= {"rounds": 1}
    small |= {"splits": {"IID": "iid"}, "clients": [2]}
    monkeypatch.setattr(choosing, "spec", lambda: small)
    monkeypatch.setattr(grids, "data_path", lambda *parts: tmp_path.joinpath(*parts))
    (tmp_path / "grids").mkdir()
    return small


def test_what_diverges_or_does_not_fit_has_no_accuracy(tiny):
    tiny["networks"]["FedGKT"] = {"edge": "no_such_network"}
    run = ("IID", 2, "FedGKT", 0.01, 0, False)
    assert choosing.played(run) == [(*run, [], None, None, None)]


def test_best_takes_the_best_short_run():
    def row(method, value, accuracy, short=True, clients=10):
        run = ("IID", clients, method, value, 0, short)
        return dict(zip(RUN, run, strict=True)) | {"accuracy": accuracy}

    rows = [
        row("a", 0.1, [0.3]),
        row("a", 0.2, [0.9, 0.9, 0.9, 0.5]),  # the last quarter counts
        row("a", 0.1, [0.99], short=False),  # no short run
        *(row("b", 0.1, []), row("b", 0.2, [0.1])),  # diverged
        *(row("c", 0.1, [0.7]), row("c", 0.2, [0.7])),  # of equal ones the larger value
        row("d", 0.1, []),
        row("a", 0.8, [0.6], clients=100),
    ]
    cells = {("IID", 10, method): 0.2 for method in "abc"}
    assert choosing.best(rows) == cells | {("IID", 100, "a"): 0.8}


def test_a_stopped_contest_goes_on_where_it_was_and_repeats_nothing(tiny):
    tiny["methods"] = {name: tiny["methods"][name] for name in ("FedAvg", "STC")}
    tiny["seeds"] = [0, 1]
    calls = []

    def played(run):
        calls.append(run)
        return [(*run, [run[3] / 10, run[3]], 5.0, 6.0, 0.1)]

    def filled(*words):
        stages = [lambda _: choosing.short_runs(), choosing.whole_runs]
        args = grids.command_line(None).parse_args(words)
        grids.fill(
            "choosing", "command", len(RUN), choosing.COLUMNS, played, stages, args
        )
        return grids.stored("choosing")[0]

    for k in (1, 2, 3):
        assert len(filled("--hours", "0")) == k == len(calls)
    rows = filled()
    # three values for FedAvg alone, FedAvg and STC; then each with the best on two seeds
    assert len(rows) == 3 * 3 + 2 * 3 == len(calls) == len({*calls})
    assert {r["value"] for r in rows if not r["short"]} == {0.8}
    assert filled() == rows and len(calls) == 15
