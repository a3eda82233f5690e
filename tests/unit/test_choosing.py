"""The runs behind the contest of the chapter on choosing: each is stated rightly, is run once, and
the best value of the short ones is taken."""

import copy
import itertools
import json
from collections import Counter
from unittest.mock import MagicMock

import pytest
import torch

from fedlearn import wire
from fedlearn.book import choosing, grids

SPEC = copy.deepcopy(choosing.spec())
RUN = choosing.RUN


@pytest.mark.parametrize("task", SPEC["tasks"])
def test_every_stated_run_builds_a_method_and_each_has_the_same_budget(task):
    stated, first = SPEC["tasks"][task], choosing.short_runs(task)
    made = [dict(zip(RUN, run, strict=True)) | {"accuracy": [0.5]} for run in first]
    whole = choosing.whole_runs(task, made)
    assert len({*first, *whole}) == len(first) + len(whole)  # none twice
    built = set()
    for run in [*first, *whole]:
        e = choosing.experiment(*run)
        assert (e.dataset, e.clients, e.seed) == (stated["dataset"], run[2], run[5])
        assert e.rounds == (stated["short"] if run[6] else stated)["rounds"]
        assert stated["networks"].get(run[3], {}).items() <= e.options.items()
        # the seed and the split do not change the method: build each once
        if (key := (e.method, json.dumps(e.options, sort_keys=True))) not in built:
            built.add(key)
            e.make_method()
    cells = itertools.product(SPEC["splits"], SPEC["clients"], SPEC["methods"])
    assert Counter(r[1:4] for r in first if r[2] > 1) == dict.fromkeys(cells, 3)
    assert {r[5] for r in first} == {0} and stated["networks"].keys() <= SPEC["methods"].keys()
    seeds = [r[5] for r in whole]
    assert Counter(seeds) == dict.fromkeys(stated["seeds"], 163) and seeds == sorted(seeds)


SENDS = {"dense": wire.Dense(), "8 bits": wire.QSGD(127, 512)}
SENDS |= {"signs": wire.Signs(), "top-k": wire.TopK(1 / 32, "sign")}


def test_a_fleet_sends_what_the_coders_send_and_who_loses_least_stands_above():
    x = torch.randn(500, 500, generator=torch.Generator().manual_seed(0))
    up = {name: sends[0] for name, sends in choosing.FAMILIES.items()}
    for short, coder in SENDS.items():
        dice = [torch.Generator().manual_seed(0)] * isinstance(coder, wire.Stochastic)
        [stated] = [each for name, each in up.items() if name.startswith(short)]
        assert len(coder.encode(x, *dice)) / x.numel() == pytest.approx(stated, rel=0.03)
    methods = [name.rsplit(": ")[-1] for name in choosing.FAMILIES]
    rows = choosing.standing([name for name in methods if name != "FedAvg"])
    heads = "equal rounds", "equal bytes"
    won = {row["method"]: [row[head] for head in heads] for row in rows}
    order = {name: won[name] for name in methods if name in won}
    assert list(order.values()) == [[11, 18], [9, 18], [5, 13], [3, 18], [0, 5]]


def test_what_the_lesson_says_of_the_stored_contest():
    every = {row["method"]: row for row in choosing.standing()}
    assert not any(lead.sure for lead in choosing.leads(choosing.BYTES).values())  # three seeds
    by_rounds = sorted((row["equal rounds"] for row in every.values()), reverse=True)
    assert by_rounds[:4] == [14, 14, 14, 13] and len(by_rounds) == 26
    both = [m for m, row in every.items() if row["equal bytes"] == row["on 3G"] == 18]
    assert {*both} == {"QSGD", "FedGKT"} and every["STC"]["on 3G"] == 16
    assert {m for m, row in every.items() if row["equal bytes"] == 18} == {*both, "STC"}
    above = Counter()
    for (task, *_), field in choosing.fields().items():
        scores = choosing.within(field, choosing.BYTES) if task != "digits" else {"FedAvg": [0]}
        above.update(name for name, its in scores.items() if its[0] > scores["FedAvg"][0])
    assert {name for name, count in above.items() if count == 12} == {"QSGD", "FedCOM"}
    assert (above["STC"], above["FedGKT"]) == (10, 6)
    time = choosing.within(choosing.fields()["digits", "one main class", 10], choosing.TIME)
    assert sum(sum(its) > sum(time["FedAvg"]) for its in time.values()) + 1 == 16


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The same contest with few images and few rounds, and a folder of its own for the file."""
    small = copy.deepcopy(SPEC)
    digits, few = small["tasks"]["digits"], {"train": 60, "test": 20, "evaluate_every": 1}
    digits |= {"rounds": 2} | few
    digits["short"] |= {"rounds": 1} | few
    small |= {"splits": {"IID": "iid"}, "clients": [2]}
    monkeypatch.setattr(choosing, "spec", lambda: small)
    monkeypatch.setattr(grids, "data_path", lambda *parts: tmp_path.joinpath(*parts))
    (tmp_path / "grids").mkdir()
    return small


def test_what_diverges_or_does_not_fit_has_no_accuracy(tiny):
    tiny["tasks"]["digits"]["networks"]["FedGKT"] = {"edge": "no_such_network"}
    run = ("digits", "IID", 2, "FedGKT", 0.01, 0, False)
    assert choosing.rows_of(run) == [(*run, [], None, None, None)]
    with pytest.raises(ValueError, match="no_such_network"):
        choosing.ran(run)


def test_best_takes_the_best_short_run():
    def row(method, value, accuracy, short=True, clients=10):
        run = ("digits", "IID", clients, method, value, 0, short)
        return dict(zip(RUN, run, strict=True)) | {"accuracy": accuracy}

    rows = [
        row("a", 0.1, [0.3]),
        row("a", 0.2, [0.9, 0.5]),  # what it ended with counts
        row("a", 0.1, [0.99], short=False),  # no short run
        *(row("b", 0.1, []), row("b", 0.2, [0.1])),  # diverged
        *(row("c", 0.1, [0.7]), row("c", 0.2, [0.7])),  # of equal ones the larger value
        row("d", 0.1, []),
        row("a", 0.8, [0.6], clients=100),
    ]
    cells = {("digits", "IID", 10, method): 0.2 for method in "abc"}
    assert choosing.best(rows) == cells | {("digits", "IID", 100, "a"): 0.8}


def test_a_stopped_contest_goes_on_where_it_was_and_repeats_nothing(tiny, monkeypatch):
    tiny["methods"] = {name: tiny["methods"][name] for name in ("FedAvg", "STC")}
    tiny["tasks"] = {"digits": tiny["tasks"]["digits"] | {"seeds": [0, 1]}}
    pool, calls = MagicMock(), []
    pool.Pool().__enter__().imap = map  # that works in this process
    monkeypatch.setattr(grids.multiprocessing, "get_context", lambda kind: pool)

    def trained(run):
        calls.append(run)
        return [(*run, [run[4] / 10, run[4]], 5.0, 6.0, 0.1)]

    def filled(*words):
        stages = [
            lambda _: choosing.short_runs("digits"),
            lambda rows: choosing.whole_runs("digits", rows),
        ]
        args = grids.command_line(None).parse_args(words)
        grids.fill("choosing", "command", len(RUN), choosing.COLUMNS, trained, stages, args)
        return grids.stored("choosing")[0]

    for k in (1, 2, 3):
        assert len(filled("--hours", "0")) == k == len(calls)
    rows = filled()
    # three values for FedAvg alone, FedAvg and STC; then each with the best on two seeds
    assert len(rows) == 3 * 3 + 2 * 3 == len(calls) == len({*calls})
    assert {r["value"] for r in rows if not r["short"]} == {0.8}
    assert filled() == rows and len(calls) == 15
