"""What all chapters call: figures, tables, charts, drawings, explorers, the set-up, the class
edition."""

import io
import json
import re
import runpy
from pathlib import Path

import altair
import ipywidgets as W
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import fedlearn as fl
from fedlearn import cli
from fedlearn.book import classroom
from fedlearn.book.check import solutions
from fedlearn.book.grids import chapter_file, experiments, grid
from fedlearn.book.show import inline

matplotlib.use("agg")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def histories():
    task = fl.tasks.classification("digits", 3, train=90, test=50)
    return {m: fl.run(getattr(fl.methods, m)(), task, 2) for m in ("fedavg", "rpn")}


def axes(size=(5.2, 3.2)):
    ax = fl.plot.axes(size=size)
    ax.plot([1, 2], [3, 4])
    ax.set_xlabel("round")
    return ax


# ---- figures and tables --------------------------------------------------------------------------


def test_words_that_stand_in_html():
    """Formulas as the pages have them, for MathJax; a star between numbers is no emphasis."""
    formula = r'<span class="math notranslate nohighlight">\(%s\)</span>'
    assert inline("*a `b` c* `d*e` & $W * x$") == (
        "<em>a <code>b</code> c</em> <code>d*e</code> &amp; " + formula % "W * x"
    )
    assert inline("3 * 64 and 64 * 64\n<x>") == "3 * 64 and 64 * 64 &lt;x&gt;"
    assert formula % "2p(1-p)/N" in solutions("shootout")["shootout-images"]._repr_html_()


def test_a_figure_has_number_caption_text_and_one_svg_a_panel():
    before = set(plt.get_fignums())  # of other tests
    shown = fl.book.figure("4.2", [axes(), axes()], caption="What *is*.", alt="two <lines>")
    page = shown._repr_html_()
    assert page.count("<svg") == 2 and "Figure 4.2.</b> What <em>is</em>." in page
    assert 'role="img"' in page and 'aria-label="two &lt;lines&gt;"' in page
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "two elements with one id"
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', page))
    assert used <= set(ids), "a picture refers to what is not there"
    assert set(plt.get_fignums()) <= before, "the inline backend would show it a second time"
    assert repr(shown) == "Figure 4.2. What *is*."
    _, axs = plt.subplots(1, 2, figsize=(4, 2))  # axes of one figure are one picture
    assert fl.book.figure("1.1", axs, caption="c", alt="a")._repr_html_().count("<svg") == 1


def figure(**change):
    return fl.book.figure(
        **{"number": "1.1", "picture": axes(), "caption": "c", "alt": "a"} | change
    )


def slider(**bind):
    params = [{"name": "x", "bind": {"input": "range", "min": 0, "step": 1, **bind}}]
    return fl.book.chart("1.1", {"params": params}, caption="c", alt="a")


@pytest.mark.parametrize(
    "call, noun",
    [
        (lambda: figure(number="2"), "has a number"),
        (lambda: figure(caption=" "), "caption"),
        (lambda: figure(alt=""), "alternative text"),
        (lambda: figure(picture=axes((8, 3))), r"at most 5\.6 inches wide"),
        (lambda: slider(max=3, name="x "), "fewer than 5"),
        (lambda: slider(max=9), "name"),
        (lambda: fl.book.explorer("4.1", "rpn", caption="c", alt="a", guess=97), "from 0 to 1"),
        (lambda: fl.book.rivals(28), "from 1 to 27"),
        (lambda: fl.book.chapter(clients=1), "at least 2 clients"),
        (lambda: fl.book.chapter(scale="huge"), "quick, full"),
        (lambda: fl.book.chapter(rounds=0), "rounds"),
        (lambda: fl.book.chapter(dataset="mnits"), "mnist"),
        (lambda: fl.book.chapter(device="cuda"), "GPU"),
        (lambda: fl.book.grid("rpm"), "no grid 'rpm'"),
        (lambda: fl.widgets.explore(draw, clients=[2], number="2.5"), r"Figure 2\.5 .* caption"),
    ],
)
def test_what_cannot_be_is_said(call, noun):
    with pytest.raises(ValueError, match=noun):
        call()
    plt.close("all")


def test_a_table_sets_numbers_right_and_names_units():
    rows = [
        {"method": "RPN", "size": 1234, "accuracy": "0.9 ± 0.1", "note": "6 of 7"},
        {"method": "STC", "size": 5, "accuracy": "not reached", "note": "see"},
    ]
    page = fl.book.table("1.1", rows, caption="c", units={"size": "bytes"})._repr_html_()
    assert '<th scope="col" class="fl-number">size<span class="fl-unit">bytes</span></th>' in page
    assert '<td class="fl-number">1,234</td>' in page and "<td>RPN</td>" in page
    assert '<td class="fl-number">0.9 ± 0.1</td>' in page and "<td>6 of 7</td>" in page
    frame = pd.DataFrame({"a": [1.5, np.nan]}, index=["x", "y"]).rename_axis("name")
    page = fl.book.table("1.1", frame, caption="c")._repr_html_()
    assert '<th scope="row">x</th><td class="fl-number">1.500</td>' in page
    assert '<th scope="row">y</th><td class="fl-number"></td>' in page


def test_a_drawing_is_as_wide_as_its_bytes(histories):
    page = fl.book.drawing("4.2", "rpn", histories["rpn"], histories["fedavg"])._repr_html_()
    assert page.count("<svg") == 2, "a wide form and a narrow one"
    sent, dense = (histories[m].rows[1]["bytes_up"] / 3 for m in ("rpn", "fedavg"))
    assert f'stroke-width="{22 * sent / dense:.1f}"' in page and 'stroke-width="22.0"' in page
    assert page.count('type="radio"') == 5 and page.count(" checked>") == 1
    assert "uplink: pooled residual" in page
    whole = fl.book.drawing("1.1", "fedavg", histories["fedavg"], histories["fedavg"])
    assert "All six parts are FedAvg" in whole._repr_html_()


def test_a_chapter_runs_each_seed():
    chapter = fl.book.chapter(rounds=1, dataset="digits", clients=3, train=60, test=20)
    runs = chapter.runs({"FedAvg": fl.methods.fedavg()})
    assert [h.meta["task"]["seed"] for h in runs["FedAvg"]] == [0, 1, 2]
    assert "<style>" in chapter._repr_html_() and "seeds 0, 1, 2" in repr(chapter)


# ---- stored grids and their explorer -------------------------------------------------------------


@pytest.mark.parametrize("name, controls", [("rpn", ["pooled", "one_of"]), ("fed_kgf", [])])
def test_the_grid_is_what_its_page_states(name, controls):
    table, spec = grid(name), chapter_file(name)["grid"]
    runs = {run for run, _ in experiments(name)}
    columns = [c for c in table if c not in ("round", "accuracy", "low", "high", "up", "down")]
    assert table.groupby(columns, dropna=False).ngroups * len(spec["seeds"]) == len(runs)
    assert {*controls} <= {*columns}
    assert (table["low"] <= table["accuracy"] + 1e-4).all()
    assert (table["accuracy"] <= table["high"] + 1e-4).all()
    last = table[table["round"] == spec["shared"]["rounds"]].groupby("line")["up"].max()
    assert last["FedAvg"] > last.drop("FedAvg").min()


@pytest.mark.parametrize("guess", [None, 0.4])
def test_the_explorer_keeps_the_guess(guess):
    spec = fl.book.explorer("4.1", "rpn", caption="c", alt="a", guess=guess).spec
    altair.LayerChart.from_dict(dict(spec))  # the schema of Vega-Lite 5
    params = {p["name"]: p["value"] for p in spec["params"]}
    assert params["reveal"] is (guess is not None)
    assert params["guess"] == (0.85 if guess is None else guess)
    assert spec["description"] == "a" and spec["usermeta"]["keep"] == ["guess"]
    assert {row["line"] for row in spec["data"]["values"]} == {"FedAvg", "RPN", "STC"}


# ---- explorers of ipywidgets, curves -------------------------------------------------------------


def draw(clients, alpha=1):
    figure, ax = plt.subplots(figsize=(1, 1))
    ax.bar([0], [clients * alpha])
    return figure, f"a bar of height {clients * alpha}"


def pictures(widget):
    if isinstance(widget, W.HTML):
        return [widget.value]
    return [p for child in widget.children for p in pictures(child)]


def test_every_frame_has_its_own_picture_and_text():
    its = {"clients": [2, 5], "alpha": [0.1, 1, 10]}
    box = fl.widgets.explore(
        draw, start={"alpha": 10}, number="2.5", caption="What *it* is.", **its
    )
    *sliders, stack, below = box.children
    found = pictures(stack)
    assert len(found) == len(set(found)) == 6
    assert 'alt="clients 5, alpha 10: a bar of height 50"' in found[-1]
    assert [s.description for s in sliders] == ["clients", "alpha"]
    assert sliders[1].index == 2 and all(s.selected_index == 2 for s in stack.children)
    assert 'id="figure-2-5"' in below.value and "<b>Figure 2.5.</b> What <em>it</em>" in below.value
    box = fl.widgets.explore(draw, live=True, **its)
    for clients in (5, 2):
        box.children[0].value, box.children[1].value = clients, 10
        assert f"clients {clients}, alpha 10: a bar" in box.children[2].value


@pytest.mark.parametrize("against", ["rounds", "bytes", "seconds"])
def test_compare_draws_every_history(histories, against):
    both = [histories["fedavg"], histories["rpn"]]
    lines = fl.plot.compare(both, against).get_lines()
    assert [line.get_label() for line in lines] == ["fedavg", "rpn"]
    looks = [{getattr(line, f"get_{of}")() for line in lines} for of in ("marker", "linestyle")]
    assert [*map(len, looks)] == [2, 2], "lines must differ by more than colour"
    if against == "bytes":
        assert lines[1].get_xdata()[-1] == sum(both[1].bytes_up + both[1].bytes_down)
    axs = fl.plot.panels({"FedAvg": [both[0]] * 2, "RPN": both[1]}, target=0.5)
    assert [len(ax.collections) for ax in axs] == [1, 1], "a band where there are several seeds"
    plt.close("all")


def test_summary(histories):
    average, pooled = histories["fedavg"], histories["rpn"]
    runs = {"FedAvg": [average, average], "RPN": pooled}
    rows = fl.summary(runs, target=2.0, megabytes=pooled.megabytes[-1])
    assert rows.loc["FedAvg", "accuracy"].endswith("± 0.000")
    assert rows.loc["RPN", "rounds to 200%"] == "not reached"
    assert rows.loc["RPN"].iloc[2] == f"{pooled.final['accuracy']:.3f}"
    assert rows.loc["FedAvg"].iloc[2] == "not reached", "one dense round costs more than two pooled"
    assert float(rows.loc["RPN", "MB up"]) == round(pooled.bytes_up.sum() / 1e6, 2)


# ---- the class edition ---------------------------------------------------------------------------


def book(folder, **chapters):
    """A book of chapters of cells of code."""
    folder.mkdir()
    for name, sources in chapters.items():
        cells = [{"cell_type": "code", "source": [s], "metadata": {}} for s in sources]
        (folder / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))
    return folder


def sources(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def test_class_edition_holds_no_solution_and_writes_over_nothing(tmp_path):
    stub = "def f(x):\n    return ...  # your code here"
    cells = [stub, 'fl.check("a-b", f)', 'fl.solution("a-b")', 'x = 1\nfl.solution("a-c")']
    source = book(tmp_path / "book", a=cells)
    (path,) = classroom.make(source, tmp_path / "out")
    verdict = 'verdict = fl.check("a-b", f)\nassert verdict, verdict'
    assert sources(path) == [stub, verdict, "x = 1"]
    with pytest.raises(ValueError, match="--force"):
        classroom.make(source, tmp_path / "out")
    assert classroom.make(source, tmp_path / "out", force=True) == [path]
    for out in ("book", "book/class", "."):
        with pytest.raises(ValueError, match="overlap"):
            classroom.make(source, tmp_path / out, force=True)
    assert sources(source / "a.ipynb") == cells
    with pytest.raises(ValueError, match="no notebooks"):
        classroom.make(book(tmp_path / "empty"), tmp_path / "other")


def test_every_check_of_the_class_edition_gives_points(tmp_path):
    """And there is no trace of a solution in the real chapters; every cell is valid Python."""
    for path in classroom.make(ROOT / "book", tmp_path):
        assert "fl.solution" not in path.read_text()
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code":
                compile(source, str(path), "exec")
                points = cell["metadata"].get("nbgrader", {}).get("points", 0)
                assert points == source.count("fl.check(") and points <= source.count("assert ")


FORMS = {
    'fl.check("a-b", f)  # of é': 'verdict = fl.check("a-b", f)  # of é\nassert verdict, verdict',
    'right = fl.check("a-b", f)\nright': 'right = fl.check("a-b", f)\nassert right, right',
    'f = 1\nfl.check(\n    "a-b",\n    f,\n)\nif f:\n    mine = fl.check("a-c", f)\n    print(f)': (
        'f = 1\nverdict = fl.check(\n    "a-b",\n    f,\n)\nassert verdict, verdict\n'
        'if f:\n    mine = fl.check("a-c", f)\n    assert mine, mine\n    print(f)'
    ),
    'assert fl.check("a-b", f)\n"fl.check()"': 'assert fl.check("a-b", f)\n"fl.check()"',
}


@pytest.mark.parametrize("cell", FORMS)
def test_checks_are_asserted_in_every_form(cell):
    assert classroom.asserted(cell) == FORMS[cell]


@pytest.mark.parametrize(
    ("cell", "noun"),
    [
        ('print(fl.check("a-b", f))', "line of its own"),
        ('f = 1; fl.check("a-b", f)', "line of its own"),
        ('%time fl.check("a-b", f)', "plain Python"),
    ],
)
def test_a_check_that_cannot_be_asserted_is_refused(tmp_path, cell, noun):
    with pytest.raises(ValueError, match=rf"b\.ipynb: .*{noun}"):
        classroom.make(book(tmp_path / "book", a=["x = 1"], b=[cell]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_exercise_without_its_check_is_refused(tmp_path, capsys):
    chapter = json.loads((ROOT / "book/foundations/fedavg.ipynb").read_text())
    grade = [cell["metadata"].get("nbgrader", {}).get("grade_id") for cell in chapter["cells"]]
    del chapter["cells"][grade.index("fedavg-bytes-check")]
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "fedavg.ipynb").write_text(json.dumps(chapter))
    assert cli.main(["classroom", str(tmp_path / "book"), str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "the answer fedavg-bytes has no check" in err


def test_a_system_package_is_installed_only_if_somebody_says_so(monkeypatch):
    allowed = runpy.run_path(str(ROOT / "tests/browser/chromium.py"))["allowed"]
    monkeypatch.setenv("CI", "true")
    assert allowed("it")
    monkeypatch.delenv("CI")
    for answer, terminal, may in (("y", True, True), ("", True, False), ("y", False, False)):
        typed = io.StringIO(answer + "\n")
        typed.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr("sys.stdin", typed)
        assert allowed("it") == may
