"""What the chapter on composing reads of the grid of mixes: best rates, fronts, refusals, chart."""

import csv
import io
import itertools
import json
import random

import altair
import pandas
import pytest

import fedlearn as fl
from fedlearn.book import composing, mixes

FEDAVG = ("fedavg",) * 6
STC = ("fedavg", "fedavg", "fedavg", "stc", "stc", "stc")


def row(mix, accuracy, rate=1.0, seed=0, split="iid", up=100, down=200):
    values = (*mix, split, rate, seed, accuracy, up, down)
    return dict(zip(mixes.COLUMNS, values, strict=True))


def test_the_best_rate_of_a_mix_is_that_of_the_first_seed():
    rows = [
        row(FEDAVG, 0.7, 0.3),
        row(FEDAVG, 0.9, 1.0, up=110),
        row(FEDAVG, 0.8, 3.0),
        row(FEDAVG, 0.6, 1.0, seed=1),
        row(FEDAVG, 0.8, 1.0, seed=2),
        row(FEDAVG, 0.99, 3.0, seed=1),  # not the rate that was chosen
        row(FEDAVG, 0.5, 3.0, split="dirichlet:0.1"),
    ]
    for order in (rows, rows[::-1]):  # the file may have grown in any order
        table = fl.book.mixtures(order).set_index("split")
        its = table.loc["iid"]
        assert (its["accuracy"], its["rate"], its["rates"], its["bytes"]) == (0.9, 1.0, 3, 310)
        assert its["again"] == pytest.approx(0.7) and its["seeds"] == 2
        assert its["spread"] == pytest.approx(0.02**0.5)
        other = table.loc["dirichlet:0.1"]
        assert (other["accuracy"], other["rates"], other["seeds"]) == (0.5, 1, 0)
        assert pandas.isna(other["again"]) and pandas.isna(other["spread"])
        assert its["method"] == "fedavg"


def test_what_did_not_train_has_no_row():
    rows = [row(FEDAVG, 0.9), row(STC, None), row(STC, None, 3.0, seed=1), row(FEDAVG, None, 3.0)]
    table = fl.book.mixtures(rows)
    assert list(table["method"]) == ["fedavg"] and list(table["rates"]) == [1]
    with pytest.raises(ValueError, match="no grid 'mixes'"):
        fl.book.mixtures([])


def test_the_front_has_what_nobody_beats_for_as_little():
    dice = random.Random(0)
    for _ in range(20):
        points = [(dice.randint(1, 9), dice.randint(1, 9) / 10) for _ in range(12)]
        table = pandas.DataFrame(points, columns=["bytes", "accuracy"])
        front = fl.book.pareto(table)
        kept = list(zip(front["bytes"], front["accuracy"], strict=True))
        beaten = {
            (b, a)
            for b, a in points
            if any(x <= b and y >= a and (x, y) != (b, a) for x, y in points)
        }
        assert kept == sorted(set(points) - beaten)
    dear = pandas.DataFrame({"up": [1, 2], "bytes": [9, 3], "accuracy": [0.5, 0.6]})
    assert len(fl.book.pareto(dear)) == 1 and len(fl.book.pareto(dear, "up")) == 2


def test_a_refusal_is_foretold():
    dice, refused = random.Random(3), 0
    for _ in range(150):
        mix = tuple(dice.choice(list(mixes.choices(kind))) for kind in mixes.KINDS)
        text = composing.refusal(mix)
        if text is None:
            mixes.build(mix)
            continue
        refused += 1
        with pytest.raises(ValueError, match="needs"):
            mixes.build(mix)
        kind = text.split()[1]
        assert (
            text
            == f"The {kind} of {mix[mixes.KINDS.index(kind)]} needs{text.partition('needs')[2]}"
        )
    assert 100 < refused < 150


def test_mixes_in_words():
    assert composing.said(STC) == "stc" and composing.said(FEDAVG) == "fedavg"
    mix = ("fed_kgf", *STC[1:])
    assert composing.said(mix) == (
        "model of fed_kgf; uplink of stc; downlink of stc; server of stc"
    )
    for name, own in mixes.origins().items():
        assert mixes.build(own).parts() == mixes.methods()[name].parts()


def test_the_chart_is_valid_vega_small_and_has_every_part_in_its_menus():
    shown = fl.book.chart("11.1", fl.book.mixing(20), caption="c", alt="a", keep=["guess"])
    altair.LayerChart.from_dict(shown.spec)  # the schema of Vega-Lite 5
    assert len(json.dumps(shown.spec)) < 400_000
    params = {p["name"]: p for p in shown.spec["params"]}
    for kind, start in zip(mixes.KINDS, composing.START, strict=True):
        assert params[kind]["bind"]["options"] == list(mixes.choices(kind))
        assert params[kind]["value"] == start
    assert params["guess"]["value"] == 20 and params["dealt"]["bind"]["options"] == list(
        mixes.SPLITS
    )
    rows = list(csv.DictReader(io.StringIO(shown.spec["data"]["values"])))
    assert len(rows) == len(fl.book.mixtures())
    assert {r["split"] for r in rows if r["method"] == "fedavg"} == set(mixes.SPLITS)
    assert any(tuple(r[kind] for kind in mixes.KINDS) == composing.START for r in rows)


@pytest.mark.parametrize("guess", [None, 20])
def test_the_answer_is_not_there_before_the_guess(guess):
    spec = fl.book.mixing(guess)
    (its,) = (p for p in spec["params"] if p["name"] == "reveal")
    assert its["value"] is (guess is not None)
    assert spec["transform"][0] == {"filter": "reveal || datum.method == 'fedavg'"}


def test_the_stored_grid_has_each_method_at_each_rate():
    table = fl.book.mixtures()
    for split, name in itertools.product(mixes.SPLITS, mixes.methods()):
        its = table[(table["split"] == split) & (table["method"] == name)]
        assert list(its["rates"]) == [len(mixes.RATES)], (split, name)
    assert table["accuracy"].between(0, 1).all() and (table["bytes"] > 0).all()
    assert (table["bytes"] == table["up"] + table["down"]).all()


def test_the_best_the_front_and_the_methods_are_run_again(monkeypatch):
    monkeypatch.setattr(mixes, "BEST", 1)
    good, cheap, poor = (("fed_kgf", *STC[1:5], server) for server in ("rpn", "stc", "fedcams"))
    rows = [
        row(FEDAVG, 0.9, 0.3),
        row(FEDAVG, 0.8, 1.0),
        row(good, 0.95, 3.0, down=300),
        row(cheap, 0.5, 1.0, up=10),
        row(poor, 0.4, 1.0, down=400),
    ]
    wanted = {(*mix, "iid", rate) for mix, rate in ((FEDAVG, 0.3), (good, 3.0), (cheap, 1.0))}
    assert {run[:-1] for run in mixes.again(rows)} == wanted
    assert sorted(run[-1] for run in mixes.again(rows)) == sorted([1, 2, 3, 4] * 3)


def test_what_trained_badly_is_tried_with_a_smaller_rate():
    split = mixes.SPLITS[-1]
    poor, masks = ("fed_kgf", *STC[1:]), ("fedpm", *STC[1:])
    rows = [row(FEDAVG, 0.9, 0.3, split=split), row(STC, 0.75, split=split)]
    rows += [row(poor, 0.4, split=split), row(masks, 0.1, split=split), row(poor, 0.3)]
    adam = tuple("fedpm" if kind == "optimizer" else "fedavg" for kind in mixes.KINDS)
    tried = list(mixes.slower(rows))
    assert tried == [(*mix, split, mixes.SLOWER, 0) for mix in (FEDAVG, adam, poor)]
    rows += [row(poor, 0.8, mixes.SLOWER, split=split)]
    its = (
        fl.book.mixtures(rows).set_index(["split", "model", "server"]).loc[split, "fed_kgf", "stc"]
    )
    assert (its["accuracy"], its["slower"], its["rates"]) == (0.4, 0.8, 1)
