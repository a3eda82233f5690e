"""What the chapters lean on: plots, explorers, exercise checks, the class edition."""

import builtins
import io
import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import ipywidgets as W
import matplotlib
import matplotlib.pyplot as plt
import pytest

import fedlearn as fl
from fedlearn import cli
from fedlearn.book import classroom
from fedlearn.book.check import Verdict, number

matplotlib.use("agg")


@pytest.fixture(scope="module")
def histories():
    task = fl.tasks.classification("digits", 3, train=90, test=50)
    return [fl.run(m, task, 2) for m in (fl.methods.fedavg(), fl.methods.rpn())]


@pytest.mark.parametrize("against", ["rounds", "bytes", "seconds"])
def test_compare_draws_every_history(histories, against):
    ax = fl.plot.compare(histories, against)
    assert [line.get_label() for line in ax.get_lines()] == ["fedavg", "rpn"]
    markers, dashes = (
        {getattr(line, f"get_{what}")() for line in ax.get_lines()}
        for what in ("marker", "linestyle")
    )
    assert len(markers) == len(dashes) == 2, "lines must differ by more than colour"
    if against == "bytes":
        assert ax.get_lines()[1].get_xdata()[-1] == sum(
            histories[1].bytes_up + histories[1].bytes_down
        )
    plt.close(ax.figure)


def test_both_panels_with_seeds(histories):
    average, pooled = histories
    axs = fl.plot.panels({"FedAvg": [average, average], "RPN": pooled}, target=0.5)
    assert [len(ax.collections) for ax in axs] == [1, 1], "a band where there are several seeds"
    assert axs[0].get_xlabel() != axs[1].get_xlabel()
    plt.close("all")


def test_summary(histories):
    average, pooled = histories
    rows = fl.summary(
        {"FedAvg": [average, average], "RPN": pooled}, target=2.0, megabytes=pooled.megabytes[-1]
    )
    assert list(rows.index) == ["FedAvg", "RPN"] and rows.loc["FedAvg", "accuracy"].endswith(
        "± 0.000"
    )
    assert rows.loc["RPN", "rounds to 200%"] == "not reached"
    assert rows.loc["RPN"].iloc[2] == f"{pooled.final['accuracy']:.3f}"
    assert rows.loc["FedAvg"].iloc[2] == "not reached", (
        "one dense round costs more than two pooled ones"
    )
    assert float(rows.loc["RPN", "MB up"]) == round(pooled.bytes_up.sum() / 1e6, 2)
    assert average.megabytes_to(0.0) == average.megabytes[0] and average.megabytes_to(2) is None
    assert (
        average.accuracy_at(average.megabytes[0]) == average.accuracy[0]
        and average.accuracy_at(0) is None
    )


def test_compare_refuses_other_axes(histories):
    with pytest.raises(ValueError, match="rounds, bytes, seconds"):
        fl.plot.compare(histories, "miles")


def draw(clients, alpha):
    figure, ax = plt.subplots(figsize=(1, 1))
    ax.bar([0], [clients * alpha])
    return figure, f"a bar of height {clients * alpha}"


def pictures(widget):
    if isinstance(widget, W.HTML):
        return [widget.value]
    return [p for child in widget.children for p in pictures(child)]


def test_every_frame_has_its_own_picture_and_text():
    box = fl.widgets.explore(draw, clients=[2, 5], alpha=[0.1, 1, 10])
    found = pictures(box.children[-1])
    assert len(found) == len(set(found)) == 6
    assert 'alt="clients 5, alpha 10: a bar of height 50"' in found[-1]
    assert [s.description for s in box.children[:2]] == ["clients", "alpha"]


@pytest.mark.parametrize("clients", [2, 5])
@pytest.mark.parametrize("alpha", [0.1, 1, 10])
def test_live_callback_at_every_position(clients, alpha):
    box = fl.widgets.explore(draw, live=True, clients=[2, 5], alpha=[0.1, 1, 10])
    box.children[0].value, box.children[1].value = clients, alpha
    assert f"clients {clients}, alpha {alpha}: a bar" in box.children[2].value


def test_an_explorer_has_a_number_and_a_caption():
    box = fl.widgets.explore(draw, clients=[2, 5], alpha=[1], number="2.5", caption="What *it* is.")
    assert 'id="figure-2-5"' in box.children[-1].value
    assert "<b>Figure 2.5.</b> What <em>it</em> is." in box.children[-1].value
    assert len(pictures(box.children[-2])) == 2
    with pytest.raises(ValueError, match=r"Figure 2\.5 needs a caption"):
        fl.widgets.explore(draw, clients=[2, 5], alpha=[1], number="2.5")


def test_start_position():
    box = fl.widgets.explore(draw, start={"alpha": 10}, clients=[2, 5], alpha=[0.1, 1, 10])
    assert box.children[1].index == 2 and all(
        s.selected_index == 2 for s in box.children[2].children
    )


def test_check_says_why():
    assert repr(Verdict("a-b", None)) == "a-b: right."
    assert "not yet, because it is too long" in repr(Verdict("a-b", "it is too long"))
    test = number(100, tolerance=0.01)
    assert test(100.5) is None and "too large" in test(120) and "too small" in test(80)
    with pytest.raises(ValueError, match="chapter with exercises"):
        fl.check("nothing-here", 1)


def test_class_edition_holds_no_solution(tmp_path):
    sources = (
        ("markdown", "Why 7?"),
        ("code", "def f(x):\n    return ...  # your code here"),
        ("code", 'fl.check("a-b", f)'),
        ("code", 'fl.solution("a-b")'),
        ("code", 'x = 1\nfl.solution("a-c")'),
    )
    cells = [{"cell_type": kind, "source": [text], "metadata": {}} for kind, text in sources]
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "a.ipynb").write_text(json.dumps({"cells": cells}))
    (path,) = classroom.make(tmp_path / "book", tmp_path / "out")
    kept = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    verdict = 'verdict = fl.check("a-b", f)\nassert verdict, verdict'
    assert kept == [text for _, text in sources[:2]] + [verdict, "x = 1"]


class Anything(dict):
    """Names for a cell that is executed without its chapter."""

    def __missing__(self, name):
        if hasattr(builtins, name):
            raise KeyError(name)
        return lambda *args, **its: None


def marked(cell, *wrong):
    """What a cell with checks ends with where the exercises named are wrong: what nbgrader sees."""

    def check(exercise, answer):
        return Verdict(exercise, "it is wrong" if exercise in wrong else None)

    exec(cell, {}, Anything(fl=SimpleNamespace(check=check)))


def test_every_check_of_the_class_edition_stops_at_a_wrong_answer(tmp_path):
    points = 0
    for path in classroom.make(Path(__file__).parents[2] / "book", tmp_path):
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"])
            exercise = re.search(r'fl\.check\("([\w-]+)"', source)
            points += cell["metadata"].get("nbgrader", {}).get("points", 0)
            if exercise:
                assert cell["metadata"]["nbgrader"]["points"] == 1
                marked(source)
                with pytest.raises(AssertionError, match=f"{exercise[1]}: not yet, because it is"):
                    marked(source, exercise[1])
                points -= 1
    assert points == 0, "points without a check"


FORMS = """
fl.check("a-b", f)  # of é
||verdict = fl.check("a-b", f)  # of é
assert verdict, verdict
----
right = fedlearn.check("a-b", f)
right
||right = fedlearn.check("a-b", f)
assert right, right
----
f = 1
fl.check(
    "a-b",
    f,
)
if f:
    mine = fl.check("a-c", f)
    print(mine)
||f = 1
verdict = fl.check(
    "a-b",
    f,
)
assert verdict, verdict
if f:
    mine = fl.check("a-c", f)
    assert mine, mine
    print(mine)
----
assert fl.check("a-b", f)
"fl.check()"
||assert fl.check("a-b", f)
"fl.check()"
"""


@pytest.mark.parametrize("form", FORMS.strip().split("\n----\n"))
def test_checks_are_asserted_in_every_form(form):
    cell, _, expected = form.partition("\n||")
    made = classroom.asserted(cell)
    assert made == expected
    named = re.findall(r'check\(\s*"(a-\w)"', cell)
    fedlearn = "fedlearn = fl\n"
    marked(fedlearn + made)
    for exercise in named:
        with pytest.raises(AssertionError):
            marked(fedlearn + made, exercise)


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ('print(fl.check("a-b", f))', "line of its own"),
        ('f = 1; fl.check("a-b", f)', "line of its own"),
        ('all([fl.check("a-b", f), fl.check("a-c", g)])', "line of its own"),
        ('%time fl.check("a-b", f)', "plain Python"),
    ],
)
def test_a_check_that_cannot_be_asserted_is_refused(tmp_path, cell, sentence):
    book = {"a": "x = 1", "b": cell}
    (tmp_path / "book").mkdir()
    for name, source in book.items():
        cells = [{"cell_type": "code", "source": [source], "metadata": {}}]
        (tmp_path / "book" / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))
    with pytest.raises(ValueError, match=rf"b\.ipynb: .*{sentence}"):
        classroom.make(tmp_path / "book", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_exercise_without_its_check_is_refused(tmp_path, capsys):
    chapter = json.loads((Path(__file__).parents[2] / "book/foundations/fedavg.ipynb").read_text())
    gone = "fedavg-bytes-check"
    chapter["cells"] = [
        cell
        for cell in chapter["cells"]
        if cell["metadata"].get("nbgrader", {}).get("grade_id") != gone
    ]
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "fedavg.ipynb").write_text(json.dumps(chapter))
    assert cli.main(["classroom", str(tmp_path / "book"), str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "the answer fedavg-bytes has no check" in err


def test_class_edition_of_the_book(tmp_path):
    """No trace of a solution in the real chapters, and every stub is valid Python."""
    for path in classroom.make(Path(__file__).parents[2] / "book", tmp_path):
        text = path.read_text()
        assert "fl.solution" not in text
        assert "fl.check" in text or "appendix" in path.parts
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "code":
                compile("".join(cell["source"]), str(path), "exec")


def test_class_edition_of_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no notebooks"):
        classroom.make(tmp_path / "empty", tmp_path / "out")


def test_a_system_package_is_installed_only_if_somebody_says_so(monkeypatch, capsys):
    path = Path(__file__).parents[1] / "browser" / "chromium.py"
    allowed = runpy.run_path(str(path))["allowed"]
    monkeypatch.setenv("CI", "true")
    assert allowed("it")
    monkeypatch.delenv("CI")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert not allowed("it") and "CI=1" in capsys.readouterr().err
    for answer, may in (("y", True), ("", False), ("no", False)):
        typed = io.StringIO(answer + "\n")
        typed.isatty = lambda: True
        monkeypatch.setattr("sys.stdin", typed)
        assert allowed("it") == may
