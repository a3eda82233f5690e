"""What all chapters call: figures, tables, charts, drawings, explorers, the set-up, the class
edition."""

import json
import re
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

import fedlearn as fl
from fedlearn.book import classroom, explorers
from fedlearn.book.grids import chapter_file, experiments, grid

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


def test_a_figure_has_number_caption_text_and_one_svg_a_panel():
    shown = fl.book.figure("4.2", [axes(), axes()], caption="What *is*.", alt="two <lines>")
    page = shown._repr_html_()
    assert page.count("<svg") == 2 and "Figure 4.2.</b> What <em>is</em>." in page
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
        (lambda: figure(number="2"), "has a number"),
        (lambda: figure(caption=" "), "caption"),
        (lambda: figure(alt=""), "alternative text"),
        (lambda: figure(size=(8, 3)), r"at most 5\.6 inches wide"),
        (lambda: fl.book.explorer("4.1", "rpn", caption="c", alt="a", guess=97), "from 0 to 1"),
        (lambda: fl.book.chapter(clients=1), "at least 2 clients"),
        (lambda: fl.book.chapter(scale="huge"), "quick, full"),
        (lambda: fl.book.grid("rpm"), "no grid 'rpm'"),
    ],
)
def test_what_cannot_be_is_said(call, noun):
    with pytest.raises(ValueError, match=noun):
        call()
    plt.close("all")


def test_a_chapter_runs_each_seed():
    chapter = fl.book.chapter(rounds=1, dataset="digits", clients=3, train=60, test=20)
    runs = chapter.runs({"FedAvg": fl.methods.fedavg()})
    assert [h.meta["task"]["seed"] for h in runs["FedAvg"]] == [0, 1, 2]


def test_the_grid_is_what_its_page_states():
    table, seeds = grid("rpn"), chapter_file("rpn")["grid"]["seeds"]
    columns = [c for c in table if c not in ("round", "accuracy", "low", "high", "up", "down")]
    runs = {run for run, _ in experiments("rpn")}
    assert table.groupby(columns, dropna=False).ngroups * len(seeds) == len(runs)


def draw(clients, alpha=1):
    figure, _ = plt.subplots(figsize=(1, 1))
    return figure, f"a bar of height {clients * alpha}"


def test_a_panel_trains_what_is_chosen(monkeypatch):
    spec = chapter_file("rpn")
    spec["grid"]["shared"] |= {"rounds": 1}
    monkeypatch.setattr(explorers, "chapter_file", lambda name: spec)
    *sliders, button, picture = explorers.panel("rpn").children
    assert [s.value for s in sliders] == [12, "all three", 12]
    sliders[0].value = 2
    button.click()
    assert "<svg" in picture.value and "STC 0." in picture.value and not button.disabled
    monkeypatch.setattr(explorers, "train_chosen", lambda *_: 1 / 0)
    button.click()
    assert "ZeroDivisionError" in picture.value


def test_every_frame_has_its_own_picture_and_text():
    its = {"clients": [2, 5], "alpha": [0.1, 1, 10]}
    *sliders, stack = fl.widgets.explore(draw, start={"alpha": 10}, **its).children
    assert sliders[1].index == 2 and all(s.selected_index == 2 for s in stack.children)
    last = stack.children[-1].children[-1].value
    assert 'alt="clients 5, alpha 10: a bar of height 50"' in last


def test_compare_draws_every_history(histories):
    both = [histories["fedavg"], histories["rpn"]]
    lines = fl.plot.compare(both, "bytes").get_lines()
    looks = [{getattr(line, f"get_{of}")() for line in lines} for of in ("marker", "linestyle")]
    assert [*map(len, looks)] == [2, 2], "lines must differ by more than colour"
    assert lines[1].get_xdata()[-1] == sum(both[1].bytes_up + both[1].bytes_down)
    axs = fl.plot.panels({"FedAvg": [both[0]] * 2, "RPN": both[1]}, target=0.5)
    assert [len(ax.collections) for ax in axs] == [1, 1], "a band where there are several seeds"
    plt.close("all")


def test_summary(histories):
    average, pooled = histories["fedavg"], histories["rpn"]
    runs = {"FedAvg": [average, average], "RPN": pooled}
    rows = fl.summary(runs, target=2.0, megabytes=pooled.megabytes[-1])
    assert rows.loc["FedAvg", "last test"].endswith("± 0.000")
    assert rows.loc["RPN", "rounds to 200%"] == "not reached"
    assert rows.loc["RPN"].iloc[3] == f"{pooled.final['accuracy']:.3f}"
    assert rows.loc["FedAvg"].iloc[3] == "not reached", "one dense round costs more than two pooled"
    assert float(rows.loc["RPN", "MB up"]) == round(pooled.bytes_up.sum() / 1e6, 2)


def book(folder, *sources):
    """A book of one chapter, of cells of code."""
    folder.mkdir()
    cells = [{"cell_type": "code", "source": [s], "metadata": {}} for s in sources]
    (folder / "a.ipynb").write_text(json.dumps({"cells": cells}))
    return folder


def sources(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def test_class_edition_holds_no_solution_and_writes_over_nothing(tmp_path):
    stub = "def f(x):\n    return ...  # your code here"
    cells = [stub, 'fl.check("a-b", f)', 'fl.solution("a-b")', 'x = 1\nfl.solution("a-c")']
    source = book(tmp_path / "book", *cells)
    (path,) = classroom.make(source, tmp_path / "out")
    verdict = 'verdict = fl.check("a-b", f)\nassert verdict, verdict'
    assert sources(path) == [stub, verdict, "x = 1"]
    with pytest.raises(ValueError, match="--force"):
        classroom.make(source, tmp_path / "out")
    for out in ("book/class", "."):
        with pytest.raises(ValueError, match="overlap"):
            classroom.make(source, tmp_path / out, force=True)
    assert sources(source / "a.ipynb") == cells


@pytest.mark.parametrize("place", ["", "part"])
def test_class_edition_is_not_written_through_links(tmp_path, place):
    source = book(tmp_path / "book", "x = 1")
    (source / "part").mkdir()
    (source / "part" / "b.ipynb").write_text((source / "a.ipynb").read_text())
    out = tmp_path / "out"
    out.mkdir()
    if place:
        (out / place).symlink_to(source / place)
    else:
        (out / "a.ipynb").symlink_to(source / "a.ipynb")
    before = {path: path.read_bytes() for path in source.rglob("*.ipynb")}
    with pytest.raises(ValueError, match="leads to"):
        classroom.make(source, out, force=True)
    assert before == {path: path.read_bytes() for path in source.rglob("*.ipynb")}
    assert len([*out.iterdir()]) == 1
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises(OSError, match="ring"):
        classroom.make(source, tmp_path / "ring")
    with pytest.raises(ValueError, match="no notebooks"):
        classroom.make(tmp_path / "ring", tmp_path / "new")


@pytest.mark.parametrize("text", ['{"cells": [{"cell_type": "code"}]}', "{}", "[]", '["\\ud800"]'])
def test_what_is_no_notebook_is_named(tmp_path, text):
    source = book(tmp_path / "book", "x = 1")
    (source / "b.ipynb").write_text(text)
    with pytest.raises(ValueError, match="b.ipynb"):
        classroom.make(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_checks_are_asserted_where_they_stand():
    cell = 'f = 1\nfl.check(\n    "a",\n    f,\n)\nif f:\n    mine = fl.check("b", f)\n    print(f)'
    assert classroom.asserted(cell) == (
        'f = 1\nverdict = fl.check(\n    "a",\n    f,\n)\nassert verdict, verdict\n'
        'if f:\n    mine = fl.check("b", f)\n    assert mine, mine\n    print(f)'
    )


UNLIKE = [
    ('print(fl.check("a-b", f))', "line of its own"),
    ('%time fl.check("a-b", f)', "plain Python"),
]


@pytest.mark.parametrize("cell, noun", UNLIKE)
def test_a_check_that_cannot_be_asserted_is_refused(tmp_path, cell, noun):
    with pytest.raises(ValueError, match=rf"a\.ipynb: .*{noun}"):
        classroom.make(book(tmp_path / "book", cell), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_exercise_without_its_check_is_refused(tmp_path):
    chapter = json.loads((ROOT / "book/foundations/fedavg.ipynb").read_text())
    grade = [cell["metadata"].get("nbgrader", {}).get("grade_id") for cell in chapter["cells"]]
    del chapter["cells"][grade.index("fedavg-bytes-check")]
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "fedavg.ipynb").write_text(json.dumps(chapter))
    with pytest.raises(ValueError, match="the answer fedavg-bytes has no check"):
        classroom.make(tmp_path / "book", tmp_path / "out")
