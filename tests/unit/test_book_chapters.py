"""What single chapters show: charts compute what the package computes, stored runs are those that
are stated, tables say what holds."""

import itertools
import math
import re
from unittest.mock import patch

import altair
import numpy as np
import pytest
import torch
from test_link import history as history_of

import fedlearn as fl
from fedlearn.book import choosing, claims, fedavg, index, seeing
from fedlearn.book.grids import chapter_file


def test_the_answer_is_not_there_before_the_guess():
    for guess in (None, 7):
        spec = fl.book.rivals(guess)
        shown = dict(fl.book.chart("1.1", spec, caption="c", alt="a").spec)
        altair.LayerChart.from_dict(shown)
        params = {p["name"]: p.get("value") for p in spec["params"]}
        assert params.get("guess") == 7 or guess is None
        assert params["reveal"] is (guess is not None)
        assert any("reveal" in str(step.get("filter")) for step in spec["transform"])


def computed(expression, **names):
    """A Vega expression, as Python computes it."""
    text = re.sub(r"(datum|its)\.(\w+)", r"of_\2", expression)
    known = {
        "log": math.log,
        "pow": math.pow,
        "floor": math.floor,
        "sqrt": math.sqrt,
        "max": max,
    }
    return eval(text, known | {"LN2": math.log(2)} | names)


@pytest.mark.parametrize(("steps", "apart"), [(1, 1.0), (4, 0.5), (20, 1.0), (7, 0.0)])
def test_two_bowls_are_walked_by_gradient_descent(steps, apart):
    its = {"steps": steps, "apart": apart}
    for p in fl.book.two_bowls("1.1").spec["params"]:
        if "expr" in p:
            its[p["name"]] = computed(p["expr"], **its)
    a, c = np.array(fedavg.BOWLS), apart * np.array(fedavg.OPTIMA)
    start = w = np.array(fedavg.START)
    for t in range(1, 4):
        clients = np.stack([w, w])
        for _ in range(steps):
            clients = clients - fedavg.RATE * a * (clients - c)
        w = clients.mean(0)
        left, end, best = (
            np.array([its[f"{n}{i}"] for i in (0, 1)]) for n in ("left", "end", "best")
        )
        np.testing.assert_allclose(w, end + left**t * (start - end))
    np.testing.assert_allclose((a * (best - c)).sum(0), 0, atol=1e-12)
    assert np.allclose(end, best) == (steps == 1 or apart == 0)


@pytest.mark.parametrize("slower", [0, 7])
def test_pages_compute_with_the_formula_of_the_package(slower):
    up, down, latency = fl.link.check(**next(iter(fl.link.PRESETS.values())))
    history = history_of(rounds=5, clients=3, up=12345, down=67890)
    sums = {k: np.cumsum(v) for k, v in fl.link.shares(history).items()}
    sliders = {"up": math.log10(up) - 6, "down": math.log10(down) - 6, "slower": slower}
    sliders |= {"latency": 1000 * latency}
    times = fl.link.time(history, up, down, latency, slower=slower)
    for t in range(5):
        row = {
            "of_up": sums["up"][t],
            "of_down": sums["down"][t],
            "of_sec": sums["computing"][t],
        }
        row["of_round"] = t + 1
        assert computed(index.SECONDS, **row, **sliders) == pytest.approx(
            times[t], rel=1e-6
        )
    row = {
        "of_up": sums["up"][0],
        "of_down": sums["down"][0],
        "of_sec": sums["computing"][0],
    }
    cost = computed(choosing.SECONDS.format(row="its"), **row, **sliders)
    assert cost == pytest.approx(times[0], rel=1e-6)


def test_a_difference_is_that_of_the_mean_over_the_seeds():
    assert claims.difference([0.70, 0.80, 0.81], 0.75, 3) == "+0.020"
    assert (
        claims.difference([0.5], 0.75) == "-0.2500"
        and claims.difference([2.0], 2.0) == "0"
    )
    assert claims.printed("fed_kgf-table2-values", [1, 0]) == 0.363


def run(label, accuracy, seed=0, **task):
    task = {
        "dataset": "digits",
        "partition": "Iid()",
        "seed": seed,
        "clients": 1,
    } | task
    row = {"accuracy": accuracy, "loss": 1.0, "round": 1, "clients": [0], "refused": {}}
    row |= {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0}
    return fl.History("fedavg", {"task": task, "label": label}, [row])


VERDICTS = [
    (5 * [1.0] + [2.0], "ahead", "holds"),
    (
        5 * [0.1] + [5.0],
        "ahead",
        "cannot be told",
    ),  # in front with each seed, but wildly
    (3 * [0.5, -0.5], "level", "holds"),
    (3 * [2.0, -2.0], "level", "cannot be told"),
    (5 * [1.0] + [2.0], "level", "does not hold"),
    (5 * [-2.0] + [-2.5], "no lower", "does not hold"),
    (5 * [-0.2] + [-0.5], "no lower", "holds"),
    ([50.0, 1.0, -1.0, 9.0], "ahead", "in 3 of 4 seeds"),
    (
        [100 * 0.0045 - 100 * 0.0145, 0.5],
        "level",
        "in 2 of 2 seeds",
    ),  # 20 of 2,000 are a point
]


@pytest.mark.parametrize("lead, wanted, verdict", VERDICTS)
def test_verdicts(lead, wanted, verdict):
    assert claims.verdict(lead, wanted) == verdict


def test_leads_pair_the_seeds_of_one_data_set_and_split():
    runs = [
        run("A", 0.9, 1),
        run("A", 0.8),
        run("b", 0.7),
        run("B", 0.75, 1),
        run("B", 0.1, 2),
    ]
    runs += [
        run("A", 0.5, partition="Dirichlet(alpha=0.5, min_samples=1)"),
        run("C", 0.2),
    ]
    runs += [run("A", 0.4, dataset="mnist"), run("B", 0.3, dataset="mnist")]
    runs, _ = fl.results.tables(runs)
    leads = claims.leads(runs, "A", "B")
    assert leads.keys() == {("digits", "iid"), ("mnist", "iid")}
    assert leads["digits", "iid"] == pytest.approx(
        [10, 15]
    )  # in the order of the seeds
    assert claims.leads(runs, "A", "nobody") == {}


@pytest.mark.parametrize("name", ["rpn_full", "seeing_small"])
def test_an_opening_table_has_the_last_tests_that_are_stored(name):
    text = repr(fl.book.opening("1.1", name.split("_")[0]))
    ends = {}
    for h in fl.results.load(name):
        ends.setdefault((h.measure, h.meta["label"]), []).append(h.final["accuracy"])
    assert any(f"{np.mean(seeds):.4f}" in text for seeds in ends.values())


def test_the_stored_runs_are_those_that_the_chapter_states():
    spec, stored = chapter_file("seeing"), fl.book.seen()
    runs = {tuple(row[:2]) for row in stored["rounds"]}
    assert runs == {*itertools.product(spec["grid"]["clients"], spec["grid"]["pooled"])}
    stated, kept = (
        sorted((r["task"], r["label"], r["rate"]) for r in rows)
        for rows in (spec["pictures"]["runs"], stored["pictures"])
    )
    assert stated == kept
    assert [run["label"] for run in stored["real"]] == spec["real"]["labels"]


def test_a_steered_box_is_that_of_the_package():
    """Eq. (10.1), and the overlap that is said beside it."""
    from torchvision.ops import box_iou

    [words] = [x for x in fl.book.steer_box()["layer"] if "IoU" in str(x)]
    its = {
        "column": 3,
        "row": 5,
        "ox": -1.0,
        "oy": 0.5,
        "ow": 0.7,
        "oh": 0.9,
        "exp": math.exp,
    }
    steps = {t["as"]: t["calculate"] for t in words["transform"] if t["as"] != "t"}
    for name, expression in steps.items():
        its[f"of_{name}"] = computed(expression, min=min, **its)
    head, m = fl.seeing.heads.Centre(), torch.zeros(1, 15, 8, 8)
    m[0, :4, 5, 3] = torch.tensor([its[n] for n in ("ox", "oy", "ow", "oh")])
    box = head.decode(m, (64, 64))[0][:, 8 * 5 + 3]
    torch.testing.assert_close(
        box, torch.tensor([[its[f"of_{n}"] for n in ("x1", "y1", "x2", "y2")]])
    )
    true = fl.seeing.detection("digits", 2, train=2).test[1][seeing.STEERED, :1, :4]
    assert its["of_both"] / its["of_union"] == pytest.approx(
        float(box_iou(box, true)), abs=1e-6
    )


def entry(method="FedAvg", seed=0, accuracy=None, clients=10, **more):
    curve = [
        round(0.5 + 0.02 * t, 4) for t in range(choosing.spec()["shared"]["rounds"])
    ]
    row = {
        "split": "IID",
        "clients": clients,
        "method": method,
        "value": 0.2,
        "seed": seed,
    }
    row |= {"short": False, "accuracy": curve if accuracy is None else accuracy}
    return row | {"up": 1000.0, "down": 3000.0, "seconds": 0.5} | more


def entries(rows):
    with patch.object(choosing, "runs", lambda: rows):
        return choosing.entries()


def test_entries_know_their_rounds_and_the_least_disturbed_computing():
    rows = [
        entry(seconds=0.5),
        entry(seed=1, seconds=0.2),
        entry(split="other", seconds=0.3),
    ]
    rows += [entry("STC", seconds=0.9), entry(clients=100, seconds=0.1)]
    frame = entries([*rows, entry(seconds=0.1, short=True), entry(accuracy=[])])
    assert frame["rounds"].tolist() == 5 * [[*range(1, 21)]]
    assert frame["least"].tolist() == [0.2, 0.2, 0.2, 0.9, 0.1]


def test_lines_are_means_with_the_extremes():
    ends = [[0.1, 0.2] + 18 * [0.9], [0.3, 0.4] + 18 * [0.8]]
    rows = [entry(seed=k, accuracy=a, seconds=0.2 + k) for k, a in enumerate(ends)]
    (line,) = choosing.lines(entries(rows))
    assert line["mean"][:2] == [0.2, 0.3] and line["mean"][-1] == 0.85
    assert (line["min"][0], line["max"][0], line["seeds"]) == (0.1, 0.3, 2)
    assert (line["sec"], line["up"], line["down"]) == (0.2, 1000, 3000)


def test_what_is_stored_is_what_is_stated():
    rows = choosing.runs()
    assert len({tuple(r[k] for k in choosing.RUN) for r in rows}) == len(
        rows
    )  # none twice
    best = choosing.best(rows)
    for r in rows:
        case = tuple(r[k] for k in choosing.CELL)
        assert case in {*choosing.contests()}
        assert r["value"] in choosing.tuning(r["method"])[1]
        assert r["short"] or r["value"] == best[case]
        assert len(r["accuracy"]) in (0, 10 if r["short"] else 20)
