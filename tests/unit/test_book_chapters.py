"""What single chapters show: charts compute what the package computes, stored runs are those that
are stated, tables say what holds."""

import itertools
import re
from types import SimpleNamespace

import altair
import nbformat
import numpy as np
import pytest
from test_link import history as history_of

import fedlearn as fl
from fedlearn.book import choosing, claims
from fedlearn.book.grids import chapter_file
from fedlearn.data import data_path


def test_the_answer_is_not_there_before_the_guess():
    for guess in (None, 7):
        spec = fl.book.rivals(guess)
        shown = dict(fl.book.chart("1.1", spec, caption="c", alt="a").spec)
        altair.LayerChart.from_dict(shown)
        params = {p["name"]: p.get("value") for p in spec["params"]}
        assert params.get("guess") == 7 or guess is None
        assert params["reveal"] is (guess is not None)
        assert any("reveal" in str(step.get("filter")) for step in spec["transform"])


PICTURES = [
    f"{path.parent.name}/{path.stem}"
    for path in data_path().glob("*/*.yaml")
    if "\nlayer:" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", PICTURES)
def test_a_moving_picture_is_vega_lite(name):
    altair.LayerChart.from_dict(fl.book.drawing(name))


def test_what_the_first_page_says_of_its_two_lines():
    last = fl.book.grid("index").groupby("line").last()
    assert (last["low"] > 0.97).all()
    sent = last["up"] + last["down"]
    assert sent["everything"] / sent["a tenth of it"] == pytest.approx(20, rel=0.05)


def test_the_ring_plays_the_run_of_the_playground():
    page = nbformat.read(data_path().parent / "book/start/playground.ipynb", 4)
    there = {}
    for cell in page.cells:
        if cell.cell_type == "code" and "playground(" not in cell.source:
            exec(cell.source, there)
    history = there["history"]
    shown = fl.book.ring().content
    frames = re.findall(r'fl-score"[^>]*>(\d+)<.*?(\d+): ([\d.]+) MB', shown)
    assert len(frames) == len(history) + 8  # the last one stays
    for frame, row in zip(frames, history.rows, strict=False):
        read, t, _ = map(float, frame)
        assert t == row["round"]
        assert read == pytest.approx(100 * row["accuracy"], abs=1)  # rounding, and sums
    assert float(frames[-1][2]) == pytest.approx(history.megabytes[-1], abs=0.05)


def test_a_picture_has_no_other_parameters():
    with pytest.raises(ValueError, match="night"):
        fl.book.drawing("rpn/kernel", night=3)


def calculated(picture, name):
    """The expression of a field of a moving picture."""
    steps = fl.book.drawing(picture)["transform"]
    return next(step["calculate"] for step in steps if step.get("as") == name)


@pytest.mark.parametrize("slower", [0, 7])
def test_pages_compute_with_the_formula_of_the_package(slower):
    up, down, latency = fl.link.check(**next(iter(fl.link.PRESETS.values())))
    history = history_of(rounds=5, clients=3, up=12345, down=67890)
    sums = {k: np.cumsum(v) for k, v in fl.link.shares(history).items()}
    times = fl.link.time(history, up, down, latency, slower=slower)
    speed = SimpleNamespace(up=up, down=down, latency=latency)
    names = {"speed": speed, "slower": slower}
    total = calculated("index/minutes", "time")
    _, _, single = calculated("choosing/rivals", "cost").rpartition(" : ")
    for t in range(5):
        row = SimpleNamespace(round=t + 1, **{k: v[t] for k, v in sums.items()})
        assert eval(total, names | {"datum": row}) == pytest.approx(times[t])
        if t == 0:
            cost = eval(single.removesuffix(")"), names | {"datum": row})
            assert cost == pytest.approx(times[0])


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


def test_an_opening_table_has_the_last_tests_that_are_stored():
    text = repr(fl.book.opening("1.1", "seeing"))
    ends = {}
    for h in fl.results.load("seeing_small"):
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


def test_what_is_stored_is_what_is_stated():
    rows = choosing.runs()
    assert len({tuple(r[k] for k in choosing.RUN) for r in rows}) == len(
        rows
    )  # none twice
    best = choosing.best(rows)
    for r in rows:
        case = tuple(r[k] for k in choosing.CELL)
        assert case in {*choosing.contests()}
        assert r["value"] in choosing.SPEC["lines"][r["method"]]["positions"]
        assert r["short"] or r["value"] == best[case]
        assert len(r["accuracy"]) in (0, 10 if r["short"] else 20)
