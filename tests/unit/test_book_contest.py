"""What the chapter on which method wins reads of the stored runs: rows, histories, ranks with ties,
and the list that a link sorts."""

import json
import math
import re

import altair
import numpy as np
import pytest

import fedlearn as fl
from fedlearn.book import shootout

SPEC = shootout.spec()


def row(method="FedAvg", seed=0, accuracy=None, task="digits", clients=10, short=False, **more):
    last = 1 if short else SPEC["tasks"][task]["rounds"]
    every = SPEC["tasks"][task].get("evaluate_every", 1)
    curve = [round(0.5 + 0.02 * t, 4) for t in range(last // every or 1)]
    its = {"task": task, "split": "IID", "clients": clients, "method": method, "value": 0.2}
    its |= {"seed": seed, "short": short, "accuracy": curve if accuracy is None else accuracy}
    return its | {"up": 1000.0, "down": 3000.0, "seconds": 0.5} | more


def frame(rows, short=False):
    return shootout.entries(short, rows)


@pytest.fixture
def stored(monkeypatch):
    """Puts rows in the place of the stored ones."""

    def put(rows):
        monkeypatch.setattr(shootout, "stored", lambda name: (rows, 1.0))
        shootout._runs.cache_clear()

    yield put
    shootout._runs.cache_clear()


def test_rows_know_their_rounds():
    its = frame([row(), row(task="CIFAR-10")])
    assert its["rounds"].tolist() == [[*range(1, 21)], [*range(2, 21, 2)]]
    assert frame([row(short=True)], short=True)["rounds"].tolist() == [[10]]
    assert [*map(len, its["accuracy"])] == [20, 10]


def test_computing_is_the_least_disturbed_of_the_same_work():
    rows = [row(seconds=0.5), row(seed=1, seconds=0.2), row(split="Dirichlet 0.1", seconds=0.3)]
    rows += [row("STC", seconds=0.9), row(clients=100, seconds=0.1)]
    assert frame(rows)["least"].tolist() == [0.2, 0.2, 0.2, 0.9, 0.1]


def test_short_runs_tell_the_computing_too_in_proportion_to_their_images():
    rows = [row(seconds=0.5), row(seconds=0.3, short=True)]  # as many digits in both
    assert frame(rows)["least"].tolist() == frame(rows, short=True)["least"].tolist() == [0.3]
    rows = [row(task="MNIST", seconds=0.5), row(task="MNIST", seconds=0.2, short=True)]
    assert frame(rows)["least"].tolist() == [pytest.approx(0.2 * 2000 / 1000)]


def test_short_failed_and_whole_runs_are_apart(stored):
    stored([row(), row(seed=1, accuracy=[]), row(short=True)])
    assert len(fl.book.entries()) == len(fl.book.entries(short=True)) == 1
    assert [r["seed"] for r in shootout.failed()] == [1]
    there = shootout.progress()["digits"]
    assert there == (1, 489, 2, 489)
    assert shootout.progress()["CIFAR-10"] == (0, 489, 0, 163)


def test_a_split_that_cannot_be_is_no_run_that_is_missing(stored):
    nowhere = {"split": "one main class", "clients": 100, "short": True, "accuracy": []}
    tried = [row(m, value=v, **nowhere) for m in SPEC["methods"] for v in (0.05, 0.2, 0.8)]
    unlucky = [row("STC", value=v, short=True, accuracy=[]) for v in (0.05, 0.2)]
    stored(tried + unlucky)
    assert len(shootout.dead()) == 27  # STC has a value left that may train
    assert shootout.progress()["digits"] == (83, 489, 0, 489 - 3 * 27)
    (line,) = (v for v in fl.book.rivals()["data"]["values"] if v["method"] == "no such split")
    assert (line["task"], line["split"], line["clients"]) == ("digits", "one main class", 100)


def test_ranks_are_drawn_with_the_best_on_top(stored):
    found = {"IID 10": {"a": 2, "b": 1}, "IID 100": {"a": 3, "b": 1, "c": 2}}
    ax = shootout.standings(found, "equal rounds")
    assert [t.get_text() for t in ax.get_yticklabels()] == ["b", "c", "a"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["IID 10", "IID 100"]
    written = {t.get_position(): t.get_text() for t in ax.texts}
    assert written == {(0, 0): "1", (1, 0): "1", (1, 1): "2", (0, 2): "2", (1, 2): "3"}
    (words,) = shootout.standings({}, "equal rounds").texts
    assert shootout.COMMAND in words.get_text()


def test_nothing_stored_is_no_error(stored):
    stored([])
    assert fl.book.entries().empty and shootout.central(fl.book.entries()) == {}
    values = fl.book.rivals()["data"]["values"]
    assert len(values) == 18 and {v["method"] for v in values} == {"not yet run"}
    assert {v["words"] for v in values} == {shootout.COMMAND}


def test_a_row_as_a_history_is_measured_by_the_package():
    (run,) = frame([row(accuracy=[0.1, 0.3, 0.2, 0.5] + 16 * [0.6], clients=4)]).itertuples()
    its = shootout.history(run)
    assert its.rounds_to(0.3) == 2 and its.rounds_to(0.9) is None
    assert its.accuracy_at(3 * 4 * 4000 / 1e6) == 0.2  # three rounds of four clients
    assert its.megabytes_to(0.5) == pytest.approx(4 * 4 * 4000 / 1e6)
    a_round = 0.1 + 2 * 0.5 + 8 * 1000 / 1e4 + 8 * 3000 / 2e4
    there = fl.link.time(its, up=1e4, down=2e4, latency=0.1, slower=2)
    assert there == pytest.approx(a_round * np.arange(1, 21))


def test_a_run_that_was_looked_at_every_other_round():
    (run,) = frame([row(task="CIFAR-10", accuracy=[k / 10 for k in range(10)])]).itertuples()
    its = shootout.history(run)
    assert its.rounds_to(0.3) == 8
    assert its.accuracy_at(5 * 10 * 4000 / 1e6) == 0.1  # after five rounds one knows the fourth


# ---- ranks ----


def test_equal_methods_share_the_first_rank():
    same = {name: [0.9, 0.91, 0.92] for name in "abc"}
    assert shootout.ranks(same) == {"a": 1, "b": 1, "c": 1}
    assert shootout.ranks({"a": [0.5, 0.5], "b": [0.5, 0.5]}) == {"a": 1, "b": 1}


def test_ranks_count_who_is_ahead():
    scores = {"far": [0.95, 0.951, 0.952], "near": [0.949, 0.95, 0.951], "low": [0.2, 0.21, 0.22]}
    assert shootout.ranks(scores) == {"far": 1, "near": 1, "low": 3}
    assert shootout.ranks({"a": [0.9, 0.9], "b": [0.8, 0.8]}) == {
        "a": 1,
        "b": 2,
    }  # no spread at all


def test_ties_are_not_passed_on():
    spread = np.array([-0.01, 0.0, 0.01])
    scores = {"a": 0.96 + spread, "b": 0.94 + spread, "c": 0.92 + spread}
    assert shootout.ranks(scores) == {"a": 1, "b": 1, "c": 2}  # b ties with both, a beats c


def test_one_standard_error_is_less_than_three():
    a, b = [0.90, 0.92, 0.94], [0.87, 0.89, 0.91]
    error = math.sqrt(2 * 0.02**2 / 3)
    assert (0.03 > error) and shootout.ahead(a, b, 1) and not shootout.ahead(b, a, 1)
    assert (0.03 < 3 * error) and not shootout.ahead(a, b)
    assert shootout.ahead(a, b, 0.03 / error - 1e-6) and not shootout.ahead(
        a, b, 0.03 / error + 1e-6
    )


@pytest.mark.parametrize("few", [[0.9], []])
def test_one_seed_gives_no_rank(few):
    with pytest.raises(ValueError, match="no rank without a second seed"):
        shootout.ranks({"a": few, "b": [0.8, 0.9]})


# ---- the explorer ----


def test_lines_are_means_with_the_extremes():
    ends = [[0.1, 0.2] + 18 * [0.9], [0.3, 0.4] + 18 * [0.8]]
    rows = [row(seed=k, accuracy=a, seconds=0.2 + k) for k, a in enumerate(ends)]
    alone = row(clients=1, accuracy=20 * [0.95])
    (line,) = shootout.lines(frame([*rows, alone]))
    assert line["mean"][:2] == [0.2, 0.3] and line["mean"][-1] == 0.85
    assert (line["low"][0], line["high"][0], line["seeds"]) == (0.1, 0.3, 2)
    assert (line["sec"], line["up"], line["down"]) == (0.2, 1000, 3000)
    assert (line["last"], line["every"], line["tuned"]) == (20, 1, "lr 0.2")
    assert line["target"] == round(0.9 * 0.95, 3)
    assert shootout.lines(frame(rows))[0]["target"] is None


def as_python(expression, **names):
    """A Vega expression of sums, products and powers, computed."""
    text = re.sub(r"its\.(\w+)", r"its_\1", expression).replace("pow(10,", "10**(")
    return eval(text, {"__builtins__": {}}, names)


@pytest.mark.parametrize("preset", fl.link.PRESETS)
@pytest.mark.parametrize("slower", [0, 7])
def test_the_page_computes_with_the_formula_of_the_package(preset, slower):
    up, down, latency = fl.link.check(**fl.link.PRESETS[preset].asdict())
    (run,) = frame([row(up=12345.0, down=67890.0, clients=3)]).itertuples()
    cost = as_python(
        shootout.SECONDS.format(its="its"),
        its_sec=0.5, its_up=12345, its_down=67890, up=math.log10(up) - 6,
        down=math.log10(down) - 6, latency=1000 * latency, slower=slower,
    )  # fmt: skip
    there = fl.link.time(shootout.history(run), up, down, latency, slower)
    assert there == pytest.approx(cost * np.arange(1, 21))


def test_the_picture_is_valid_vega_and_small():
    spec = fl.book.rivals(5)
    altair.LayerChart.from_dict(spec)
    assert len(json.dumps(spec, separators=(",", ":"))) < 500_000
    params = {p["name"]: p for p in spec["params"]}
    assert params["guess"]["value"] == 5 and params["guess"]["bind"]["max"] == len(SPEC["methods"])
    for name in ("task", "split", "clients"):
        assert params[name]["value"] in params[name]["bind"]["options"]
    its = {(v["task"], v["split"], v["clients"]) for v in spec["data"]["values"]}
    assert len(its) == 18  # every choice shows something
    for v in spec["data"]["values"]:
        assert len(v["mean"]) == len(v["low"]) == len(v["high"]) == v["last"] // v["every"]


@pytest.mark.parametrize("guess", [None, 5])
def test_the_answer_is_not_there_before_the_guess(guess):
    spec = fl.book.rivals(guess)
    (its,) = (p for p in spec["params"] if p["name"] == "reveal")
    assert its["value"] is (guess is not None)
    assert spec["transform"][1] == {"filter": "reveal || !(datum.method == 'FedAvg')"}


@pytest.mark.parametrize("guess", [0, 28])
def test_a_place_that_is_none(guess):
    with pytest.raises(ValueError, match="from 1 to 27"):
        fl.book.rivals(guess)


# ---- the stored runs ----


def test_what_is_stored_is_what_is_stated():
    rows = shootout._runs()
    keys = [tuple(r[k] for k in shootout.RUN) for r in rows]
    assert len({*keys}) == len(keys)  # none twice
    best = shootout.best(rows)
    for r in rows:
        which = r["task"], r["split"], r["clients"], r["method"]
        assert which in {*shootout.contests(r["task"])}
        assert r["value"] in shootout.tuning(r["method"])[1]
        if not r["short"]:
            assert r["value"] == best[which]
        assert len(r["accuracy"]) in (0, len(shootout.evaluated(r)))
