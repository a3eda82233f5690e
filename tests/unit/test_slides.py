"""The slides of a lesson: what is on one, and what is not made into one."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

BOOK = Path(__file__).resolve().parents[2] / "book"
sys.path.insert(0, str(BOOK))  # as for a script that lies there
SPEC = importlib.util.spec_from_file_location("slides", BOOK / "_slides.py")
SLIDES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SLIDES)
PAGE = """<article><section><h1>1. A lesson#</h1><p>How many? <strong>Guess.</strong></p>
<section><h2>1.1. Talk#</h2><p>It worked. <strong>Did it?</strong></p>
<div class="cell"><div class="cell_input"><div><pre>def f(a):  # Eq. (1.1)</pre></div></div>
</div></section>
<section><h2>1.2. A sum#</h2><p>Why.</p>
<div class="math"><math alttext="a"><mi>a</mi></math><span>(1.1)</span></div>
<blockquote><p>Predict, change, run <code>f</code>.</p></blockquote></section>
<section><h2>1.3. Look#</h2><figure><div class="fl-vega" id="figure-1-1"></div></figure>
<blockquote><p>Predict, then move.</p></blockquote>
<details><summary>Hint</summary><p>Count.</p></details>
<details><summary>Answer</summary><p>Seven.</p></details></section>
<section><h2>1.4. The verdict#</h2><blockquote>
<p><strong>Use it when</strong> it rains. Always.</p>
<p><strong>Not when</strong> it snows. Never.</p>
<p><strong>How sure?</strong> Seen once. Twice.</p></blockquote></section>
</section></article>"""


VERDICT = ("it rains. Always.", "it snows. Never.", "Seen once. Twice.")


def sections():
    return BeautifulSoup(PAGE, "html.parser").article.find_all("section")


def test_a_slide_has_a_picture_an_equation_code_or_a_question():
    page, talk, total, look, verdict = sections()
    assert SLIDES.slides(page, "A line.") == []
    (asked,) = SLIDES.slides(talk, "")
    equation, exercise = SLIDES.slides(total, "A line.")
    assert "A line." in equation
    for slide in (asked, equation, exercise):
        assert "(1.1)" in slide
    (turned,) = SLIDES.slides(look, "It is seven.")
    question, _, answer = turned.partition('<blockquote class="fragment"')
    assert "Predict" in question
    assert "seven" not in question.lower()
    assert "Seven." in answer.partition("It is seven.")[2]
    assert "figure-1-1" in answer
    assert "Count." not in turned
    (use,) = SLIDES.slides(verdict, "")
    assert "When would you use it?" in use
    for part in VERDICT:
        assert part in use


def test_a_question_is_seen_before_the_line_that_answers_it():
    text = """<section><h2>1.5. Drift#</h2><p>A first. Two walk on.
    <strong>Who drifts?</strong></p>
    <div class="math">\\[b\\]</div></section>"""
    section = BeautifulSoup(text, "html.parser").section
    (slide,) = SLIDES.slides(section, "All do.")
    question, _, answer = slide.partition('<div class="fragment"')
    assert "Two walk on. <b>Who drifts?</b>" in question
    assert "A first." not in question
    assert "All do." not in question
    assert "All do." in answer.partition("math")[0]


def test_a_sheet_has_a_figure_equations_bytes_a_verdict_and_a_trap():
    facts = {"up": "4 bytes", "down": "none", "trap": "it rains"}
    text = SLIDES.sheet(sections(), facts | {"figure": "1.1", "equations": ["1.1"]})
    for part in ("figure-1-1", "(1.1)", *facts.values(), *VERDICT):
        assert part in text


def test_lessons_come_in_the_order_of_the_book(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: True)
    names = SLIDES.lessons()
    assert len(names) == 11
    assert names[::5] == [
        "foundations/fedavg",
        "papers/fed_mmd_fusion",
        "together/choosing",
    ]


AUDITS = sorted(map(str, BOOK.glob("*/*_audit.ipynb")))


@pytest.mark.parametrize("audit", AUDITS)
def test_a_lessons_lines_are_short_and_its_sheet_is_whole(audit):
    notebook = json.loads(Path(audit.replace("_audit", "")).read_text())
    lines = SLIDES.picked(notebook)
    assert len(lines) >= 5
    assert max(len(line.split()) for line in lines.values()) <= 12
    sheet = notebook["metadata"]["sheet"]
    text = "".join("".join(cell["source"]) for cell in notebook["cells"])
    assert f'"{sheet["figure"]}"' in text
    assert len(sheet["equations"]) <= 3
    assert set(sheet["equations"]) <= set(re.findall(r"\\tag\{([\d.]+)\}", text))


def test_a_line_keeps_its_formulas():
    text = """<p>So a share <span class="math"><math alttext="1 &lt; d^2"><mi>d</mi>
    </math></span> survives.</p>"""
    words = SLIDES.words(BeautifulSoup(text, "html.parser").p)
    assert words == r"So a share \(1 < d^2\) survives."
    made = BeautifulSoup(SLIDES.marked(words), "html.parser")
    assert made.math["alttext"] == "1 < d^2"
    assert made.math.msup.get_text() == "d2"
