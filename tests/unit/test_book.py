"""What all chapters call: figures, tables, charts, drawings, explorers, the set-up, the class
edition."""

import re

import matplotlib
import matplotlib.pyplot as plt
import pytest

import fedlearn as fl
from fedlearn.book import explorers
from fedlearn.book.grids import chapter_file

matplotlib.use("agg")


@pytest.fixture(scope="module")
def histories():
    task = fl.tasks.classification("digits", 3, train=90, test=50)
    return {m: fl.run(getattr(fl.methods, m)(), task, 2) for m in ("fedavg", "rpn")}


def axes(size=(5.2, 3.2)):
    ax = fl.plot.axes(size=size)
    ax.plot([1, 2], [3, 4])
    ax.set_xlabel("round")
    return ax


def test_a_figure_has_number_caption_text_and_one_svg_a_panel():
    drawn = fl.book.figure(
        "4.2", [axes(), axes()], caption="What *is*.", alt="two <lines>"
    )
    page = drawn._repr_html_()
    assert page.count("<svg") == 2
    assert "Figure 4.2.</b> What <em>is</em>." in page
    assert 'aria-label="two &lt;lines&gt;"' in page
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "two elements with one id"
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', page))
    assert used <= set(ids), "a picture refers to what is not there"


def figure(number="1.1", size=(5.2, 3.2), caption="c", alt="a"):
    return fl.book.figure(number, axes(size), caption=caption, alt=alt)


@pytest.mark.parametrize(
    "call, noun",
    [
        (lambda: figure(number="2"), "number"),
        (lambda: figure(caption=" "), "caption"),
        (lambda: figure(alt=""), "alternative text"),
        (lambda: figure(size=(8, 3)), "inches"),
        (lambda: fl.book.chapter(clients=1), "clients"),
        (lambda: fl.book.chapter(scale="huge"), "quick, full"),
    ],
)
def test_what_cannot_be_is_said(call, noun):
    with pytest.raises(ValueError, match=noun):
        call()
    plt.close("all")


def test_a_panel_trains_what_is_chosen(monkeypatch):
    specs = {name: chapter_file(name) for name in ("rpn", "index")}
    specs["rpn"]["grid"]["shared"] |= {"rounds": 1}
    monkeypatch.setattr(explorers, "chapter_file", specs.get)
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    monkeypatch.setattr(
        "fedlearn.plot.plt.close", lambda figure: displayed.append(figure)
    )
    heading, *sliders, button, bar, _ = explorers.panel("4.5", "rpn").children
    stored = explorers.STORED
    assert [s.value for s in sliders] == [12, "all three", 12, 0, *3 * [stored]]
    sliders[0].value = 2
    button.click()
    assert bar.value == bar.max == 3
    assert bar.description.startswith("STC, round 1: 0.")
    *_, first = displayed
    assert "Figure 4.5b." in first.content
    assert "STC 0." in first.content
    sliders[-1].value = 10.0
    button.click()
    *_, rounds, _, _ = displayed
    greys = [line for line in rounds.axes[0].lines if line.get_color() == "0.8"]
    assert len(greys) == 3, "what was trained before stays"


def test_a_panel_trains_with_the_readers_own_values():
    stored = explorers.STORED
    values = {"seed": 3, "rounds": 5, "lr": 0.3, "dirichlet": 1.0}
    experiments = explorers.experiments(
        "rpn", clients=4, pooled="all three", one_of=4, **values
    )
    assert {(e.seed, e.rounds, e.lr, e.partition) for e in experiments.values()} == {
        (3, 5, 0.3, "dirichlet:1.0")
    }
    values |= {"rounds": stored, "lr": stored, "alpha": 0.5}
    del values["dirichlet"]
    experiments = explorers.experiments("heterogeneity", clients=4, one_of=8, **values)
    # there alpha is the chapter's, and one line keeps its even split
    assert {e.partition for e in experiments.values()} == {"iid", "dirichlet:0.5"}
    assert {e.rounds for e in experiments.values()} == {10}


def test_compare_draws_every_history(histories):
    pair = [histories["fedavg"], histories["rpn"]]
    lines = fl.plot.compare(pair, "bytes").get_lines()
    looks = [
        {getattr(line, f"get_{look}")() for line in lines}
        for look in ("marker", "linestyle")
    ]
    assert [*map(len, looks)] == [2, 2], "lines must differ by more than colour"
    assert lines[1].get_xdata()[-1] == sum(pair[1].bytes_up + pair[1].bytes_down)
    axs = fl.plot.panels({"FedAvg": [pair[0]] * 2, "RPN": pair[1]}, target=0.5)
    assert [len(ax.collections) for ax in axs] == [1, 1], (
        "a band where there are several seeds"
    )
    plt.close("all")


def test_summary(histories):
    average = histories["fedavg"]
    pooled = histories["rpn"]
    runs = {"FedAvg": [average, average], "RPN": pooled}
    rows = fl.summary(runs, target=2.0)
    assert rows.loc["FedAvg", "last test"].endswith("± 0.000")
    assert rows.loc["RPN", "rounds to 200%"] == "not reached"
    assert float(rows.loc["RPN", "MB up"]) == round(pooled.bytes_up.sum() / 1e6, 2)


def test_the_playground_carries_the_digits_and_the_links():
    widget = fl.book.playground("a-liar")
    assert widget.scene == "a-liar"
    assert len(widget.digits) == 1797 * 65
    assert widget.about["train"] == 1347
    assert [*widget.links] == [*fl.link.PRESETS]
    assert "render" in widget._esm
    assert ".fl-play" in widget._css
