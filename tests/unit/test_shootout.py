"""The runs behind the chapter on which method wins: each is stated rightly, is run once, and the
best value of the short ones is taken."""

import copy
import inspect
import itertools
import json
from collections import Counter

import numpy as np
import pytest

from fedlearn.book import grids, shootout
from fedlearn.methods import METHODS

SPEC = copy.deepcopy(shootout.spec())
RUN = shootout.RUN


def rows_of(runs, accuracy=0.5):
    """Rows as if these runs had been made."""
    return [dict(zip(RUN, r, strict=True)) | {"accuracy": [accuracy]} for r in runs]


@pytest.mark.parametrize("task", SPEC["tasks"])
def test_every_stated_run_builds_an_experiment_and_a_method(task):
    first = shootout.short_runs(task)
    values = {(*r[:4], r[4]) for r in first}
    assert len(values) == len(first)  # no value twice
    every = [*first, *shootout.whole_runs(task, rows_of(first))]
    assert len({*every}) == len(every)
    made = set()
    for where in every:
        e = shootout.experiment(*where)
        its = SPEC["tasks"][task]
        assert (e.dataset, e.clients, e.seed) == (its["dataset"], where[2], where[5])
        assert e.rounds == (its["short"] if where[6] else its)["rounds"]
        # the seed and the split do not change the method: build each once
        if (key := (e.method, json.dumps(e.options, sort_keys=True))) not in made:
            made.add(key)
            e.make_method()


def test_each_method_has_the_same_budget_on_the_same_ground():
    for task, its in SPEC["tasks"].items():
        runs = shootout.short_runs(task)
        budgets = Counter(r[1:4] for r in runs if r[2] > 1)
        where = itertools.product(SPEC["splits"], SPEC["clients"], SPEC["methods"])
        assert budgets == {w: 3 for w in where}
        assert {r[5] for r in runs} == {0}
        whole = shootout.whole_runs(task, rows_of(runs))
        assert Counter(r[5] for r in whole) == {s: 163 for s in its["seeds"]}
        order = [r[5] for r in whole]
        assert order == sorted(order)  # the first seed of all before the second of any


def test_the_tuned_option_is_one_of_the_methods():
    for name, its in SPEC["methods"].items():
        option, values = shootout.tuning(name)
        known = inspect.signature(METHODS[its["method"]]).parameters
        assert option in known and values == sorted({*values}) and len(values) == 3
        assert option not in its.get("options", {})  # which would be stated in vain


def test_networks_are_stated_for_methods_that_are_there():
    for its in SPEC["tasks"].values():
        assert its["networks"].keys() <= SPEC["methods"].keys()


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The same contest with few images and few rounds, and a folder of its own for the file."""
    small = copy.deepcopy(SPEC)
    for name, its in small["tasks"].items():
        shape = {"digits": (8, 8), "MNIST": (28, 28), "CIFAR-10": (32, 32, 3)}[name]
        draw = np.random.default_rng(0).integers(0, 255, (80, *shape), dtype=np.uint8)
        y = np.arange(80) % 10
        np.savez(tmp_path / f"{name}.npz", x=draw[:60], y=y[:60], test_x=draw[60:], test_y=y[60:])
        few = {"train": 60, "test": 20}
        its |= {"rounds": 2, "dataset": str(tmp_path / f"{name}.npz"), "evaluate_every": 1} | few
        its["short"] |= {"rounds": 1, "evaluate_every": 1} | few
    small["tasks"]["digits"]["dataset"] = "digits"
    small["splits"] = {"IID": "iid"}
    small["clients"] = [2]
    monkeypatch.setattr(shootout, "spec", lambda: small)
    monkeypatch.setattr(grids, "data_path", lambda *parts: tmp_path.joinpath(*parts))
    (tmp_path / "grids").mkdir()
    return small


def check_row(row, rounds):
    accuracy, up, down, seconds = row[len(RUN) :]
    assert len(accuracy) == rounds and all(0 <= a <= 1 for a in accuracy)
    assert up >= 0 and down >= 0 and seconds > 0
    assert (up == down == 0) == (row[3] == "local")


@pytest.mark.parametrize("method", SPEC["methods"])
def test_every_method_trains_on_the_digits(tiny, method):
    value = shootout.tuning(method)[1][1]
    check_row(shootout.trained(("digits", "IID", 2, method, value, 1, False)), 2)


OWN = ("FedGKT", "split learning", "FedRepOpt")  # networks of their own
NETWORK = ("FedAvg", "RPN, half of the layers", "Fed-KGF", "FedFusion+Conv", "FedPM", "STC")


@pytest.mark.parametrize("task", ["MNIST", "CIFAR-10"])
@pytest.mark.parametrize("method", [*OWN, *NETWORK])
def test_what_depends_on_the_network_fits_the_larger_pictures(tiny, task, method):
    value = shootout.tuning(method)[1][1]
    check_row(shootout.trained((task, "IID", 2, method, value, 0, True)), 1)


def test_own_networks_reach_the_method():
    for task, its in SPEC["tasks"].items():
        for name, own in its["networks"].items():
            e = shootout.experiment(task, "IID", 10, name, shootout.tuning(name)[1][0], 0, False)
            assert own.items() <= e.options.items()


def test_what_diverges_or_does_not_fit_has_no_accuracy(tiny):
    tiny["tasks"]["digits"]["networks"]["FedGKT"] = {"edge": "no_such_network"}
    row = shootout.trained(("digits", "IID", 2, "FedGKT", 0.01, 0, False))
    assert row[len(RUN) :] == ([], None, None, None)
    with pytest.raises(ValueError, match="no_such_network"):
        shootout.ran(("digits", "IID", 2, "FedGKT", 0.01, 0, False))


def test_a_method_of_ones_own_enters(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import fedlearn as fl\n"
        "def method(lr=0.1, ratio=0.1):\n"
        "    return fl.methods.stc(lr=lr, ratio=ratio)\n"
    )
    rows = shootout.enter("mine.py:method", "digits", "IID", 2, ratio=0.25)
    assert [r["short"] for r in rows] == [True] * 3 + [False] * 3
    assert [r["seed"] for r in rows[3:]] == SPEC["tasks"]["digits"]["seeds"]
    assert {r["value"] for r in rows[3:]} == {*shootout.best(rows).values()}
    # the same as the method that it is
    stc = shootout.ran(("digits", "IID", 2, "STC", rows[3]["value"], 0, False),
                       {"method": "stc", "options": {"ratio": 0.25}})  # fmt: skip
    assert rows[3]["accuracy"] == stc[len(RUN)] and rows[3]["up"] == stc[len(RUN) + 1]
    assert grids.stored("shootout") == ([], 0.0)  # the file is not touched

    tuned = shootout.enter("mine.py:method", "digits", "IID", 2, tune={"ratio": [0.1, 0.5]})
    assert [r["value"] for r in tuned[:2]] == [0.1, 0.5] and len(tuned) == 5
    for words, reason in (
        (("mine.py:method", "seeing"), "task of the contest"),
        (("mine.py:method", "digits", "by lot"), "split of the contest"),
        (("FedAvg", "digits", "IID"), "already"),
    ):
        with pytest.raises(ValueError, match=reason):
            shootout.enter(*words)


def test_best_takes_the_best_short_run():
    def row(method, value, accuracy, short=True, clients=10):
        its = ("digits", "IID", clients, method, value, 0, short)
        return dict(zip(RUN, its, strict=True)) | {"accuracy": accuracy}

    rows = [
        row("a", 0.1, [0.3]),
        row("a", 0.2, [0.9, 0.5]),  # what it ended with counts
        row("a", 0.8, [0.4]),
        row("a", 0.1, [0.99], short=False),  # no short run
        row("b", 0.1, []),  # diverged
        row("b", 0.2, [0.1]),
        row("c", 0.1, [0.7]),
        row("c", 0.2, [0.7]),  # of equal ones the larger value
        row("d", 0.1, []),
        row("a", 0.8, [0.6], clients=100),
    ]
    assert shootout.best(rows) == {
        ("digits", "IID", 10, "a"): 0.2,
        ("digits", "IID", 10, "b"): 0.2,
        ("digits", "IID", 10, "c"): 0.2,
        ("digits", "IID", 100, "a"): 0.8,
    }


class Here:
    """A pool that works in this process."""

    def Pool(self, jobs):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    imap = staticmethod(map)


def test_a_stopped_contest_goes_on_where_it_was_and_repeats_nothing(tiny, monkeypatch):
    tiny["methods"] = {name: tiny["methods"][name] for name in ("FedAvg", "STC")}
    tiny["tasks"] = {"digits": tiny["tasks"]["digits"] | {"seeds": [0, 1]}}
    monkeypatch.setattr(grids.multiprocessing, "get_context", lambda kind: Here())
    calls = []

    def trained(where):
        calls.append(where)
        return [(*where, [where[4] / 10, where[4]], 5.0, 6.0, 0.1)]

    def go(*words):
        monkeypatch.setattr("sys.argv", ["shootout", *words])
        stages = [lambda _: shootout.short_runs("digits"), lambda r: shootout.whole_runs("digits", r)]
        args = grids.command_line(None).parse_args()
        grids.fill("shootout", "command", len(RUN), shootout.COLUMNS, trained, stages, args)
        return grids.stored("shootout")[0]

    for k in (1, 2, 3):
        assert len(go("--hours", "0")) == k == len(calls)
    rows = go()
    # three values for FedAvg alone, FedAvg and STC; then each with the best on two seeds
    assert len(rows) == 3 * 3 + 2 * 3 == len(calls) == len({*calls})
    assert {r["value"] for r in rows if not r["short"]} == {0.8}
    assert go() == rows and len(calls) == 15


def test_what_a_long_contest_did_until_it_was_killed_is_kept(tiny, monkeypatch):
    monkeypatch.setattr(grids.multiprocessing, "get_context", lambda kind: Here())
    clock = itertools.count(0, 200)  # seconds between two looks
    monkeypatch.setattr(grids.time, "monotonic", lambda: next(clock))
    calls = []

    def trained(where):
        calls.append(where)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return [(*where, [0.5, 0.6], 5.0, 6.0, 0.1)]

    args = grids.command_line(None).parse_args([])
    with pytest.raises(KeyboardInterrupt):
        stages = [lambda _: shootout.short_runs("digits")]
        grids.fill("shootout", "command", len(RUN), shootout.COLUMNS, trained, stages, args)
    assert 2 <= len(grids.stored("shootout")[0]) <= 4
