"""The class edition: whole, without solutions, and written over nothing. What marks it is tried in
tests/class."""

import json
import re
import shutil
import zipfile
from pathlib import Path
from runpy import run_path

import pytest
import yaml

import fedlearn as fl
from fedlearn.book import check, classroom
from fedlearn.book.check import CHAPTERS, solutions
from fedlearn.lab.cli import main

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"


def cell(source, kind="code", **grade):
    return {
        "cell_type": kind,
        "source": [source],
        "metadata": {"nbgrader": grade} if grade else {},
    }


ASKED = "> ★★ **Predict, then check.** Double it."


def exercise(name, stub, test, prompt=ASKED):
    """The cells of an exercise: what it asks, the answer and the check."""
    check = {"grade": True, "solution": False, "grade_id": f"{name}-check"}
    asked = [cell(prompt, "markdown")] if prompt else []
    return [*asked, cell(stub, solution=True, grade_id=name), cell(test, **check)]


def book(folder, *cells):
    """A book of one chapter."""
    folder.mkdir()
    cells = [cell(c) if isinstance(c, str) else c for c in cells]
    (folder / "a.ipynb").write_text(json.dumps({"cells": cells}))
    return folder


def sources(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


STUB, CHECK = "def f(x):\n    return ...  # your code here", 'fl.check("a-b", f)'
ASSERTED = 'verdict = fl.check("a-b", f)\nassert verdict, verdict'


def test_a_course_holds_no_solution_and_writes_over_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(classroom, "wheel", lambda folder: [])
    cells = [
        *exercise("a-b", STUB, CHECK),
        'fl.solution("a-b")',
        'x = 1\nfl.solution("a-c")',
        cell("> ★ **Why?**", "markdown"),
    ]
    source = book(tmp_path / "book", *cells, 'fl.solution("a-d")')
    out = tmp_path / "out"
    before = sources(source / "a.ipynb")
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    paths = {p.relative_to(out).as_posix() for p in classroom.make(source, out)}
    assert paths == {
        "a.ipynb",
        "source/a/a.ipynb",
        "requirements.txt",
        "nbgrader_config.py",
    }
    *lesson, paper = sources(out / "a.ipynb")
    assert lesson == [ASKED, STUB, CHECK, "x = 1", "> ★ **Why?**"]
    assert "marked by hand" in paper
    *_, asked, stub, asserted, text, hand = sources(out / "source/a/a.ipynb")
    assert asked == ASKED, "a box that only says its stars is a prompt, too"
    assert stub.startswith(STUB)
    assert asserted == ASSERTED
    assert "marked by hand" in hand
    assert "--instructor" in stub
    assert "--instructor" in hand
    with pytest.raises(ValueError, match="--force"):
        classroom.make(source, out)
    for inside in ("book/class", "."):
        with pytest.raises(ValueError, match="overlap"):
            classroom.make(source, tmp_path / inside, force=True)
    classroom.make(source, out, force=True)
    assert sources(source / "a.ipynb") == before
    assert (out / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("place", ["", "part"])
def test_a_course_is_not_written_through_links(tmp_path, place):
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


REFUSED = {  # cells of a page, and the noun of its refusal
    "a printed check": (exercise("a-b", STUB, 'print(fl.check("a-b", f))'), "must be"),
    "a timed check": (exercise("a-b", STUB, '%time fl.check("a-b", f)'), "must be"),
    "no check": (
        exercise("fedavg-bytes", STUB, CHECK)[:2],
        "fedavg-bytes has no check",
    ),
    "no text": (exercise("a-b", STUB, CHECK, prompt=""), "a-b has no text"),
    "the text of another": (
        [*exercise("a-b", STUB, CHECK), *exercise("a-c", STUB, CHECK)[1:]],
        "a-c has no text",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_exercise_that_cannot_be_marked_is_refused(tmp_path, name):
    cells, noun = REFUSED[name]
    source = book(tmp_path / "book", *cells)
    with pytest.raises(ValueError, match=rf"a\.ipynb.*{noun}"):
        classroom.make(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_notebook_is_named(tmp_path):
    source = book(tmp_path / "book", "x = 1")
    (source / "b.ipynb").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="b.ipynb is no notebook"):
        classroom.make(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_an_exercise_names_is_in_its_copy(tmp_path):
    prompt = cell(
        "### Exercise 1: Twice\n\n★★★ Use `half`, see [there](#there).", "markdown"
    )
    lesson = [
        "import fedlearn as fl",
        "def third(x):\n    return x / 3",
        "from math import e",
    ]
    lesson += [
        "def half(x):\n    return third(x) * e\n\n\nhalf(2)",
        "def other():\n    pass",
    ]
    lesson += ["def f(x):\n    return half(x)"]  # an answer may not be the lesson's
    cells = [*map(cell, lesson), prompt, *exercise("a-b", STUB, CHECK, "")]
    classroom.make(book(tmp_path / "book", *cells), tmp_path / "out")
    copy = tmp_path / "out" / "source" / "a" / "a.ipynb"
    _, setup, *copied = sources(copy)
    assert setup == classroom.BEGIN
    assert copied[:3] == [*lesson[1:3], lesson[3].removesuffix("\n\n\nhalf(2)")]
    assert copied[3] == prompt["source"][0].replace("[there](#there)", "there")
    assert copied[4].startswith(STUB)
    assert copied[5] == ASSERTED
    assert (
        json.loads(copy.read_text())["cells"][-1]["metadata"]["nbgrader"]["points"] == 3
    )


def test_an_exercise_on_the_cells_of_its_page_names_the_page(tmp_path):
    source = book(tmp_path / "book")
    paper = cell(
        "> ★ **Exercise 1.** In `half`, change the line. Run its cell.", "markdown"
    )
    alone = cell("> ★ **Exercise 2.** Why?", "markdown")
    lesson = ["import fedlearn as fl", "def half(x):\n    return x / 2", paper]
    lesson += ['fl.solution("a-c")', alone, 'fl.solution("a-d")']
    cells = [cell(c) if isinstance(c, str) else c for c in lesson]
    (source / "part").mkdir()
    (source / "part" / "b.ipynb").write_text(json.dumps({"cells": cells}))
    classroom.make(source, tmp_path / "out")
    _, setup, first, _, second, _ = sources(
        tmp_path / "out" / "source" / "b" / "b.ipynb"
    )
    assert setup == classroom.BEGIN, (
        "the function stays on the page, where it is changed"
    )
    assert first.endswith(classroom.ON_THE_PAGE.format(page="part/b.ipynb"))
    assert second == alone["source"][0]


# ---- the course of the whole book ----------------------------------------------------------------


@pytest.fixture(scope="module", params=classroom.KINDS)
def course(request, tmp_path_factory):
    """A course of the whole book in each kind; the package is built once."""
    out = tmp_path_factory.mktemp(request.param) / "class"
    if request.param != "nbgrader":
        patch = pytest.MonkeyPatch()
        patch.setattr(classroom, "wheel", lambda folder: [])
        request.addfinalizer(patch.undo)
    classroom.make(BOOK, out, kind=request.param)
    return out


def test_every_link_and_every_page_is_there(course):
    toc = (course / "_toc.yml").read_text()
    files = re.findall(r"\b(?:file|root): (\S+)", toc)
    # the build makes the pages of methods
    for file in (file for file in files if not file.startswith("methods/")):
        assert list((course / file).parent.glob(f"{Path(file).name}.*")), file
    count = 0
    for path in [*course.rglob("*.ipynb"), *course.rglob("*.md")]:
        text = path.read_text()
        if path.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            texts = ["".join(c["source"]) for c in cells if c["cell_type"] != "code"]
            text = "\n".join(texts)
        for target in re.findall(
            r'(?<![\w\])!])\[[^\[\]]*\]\(([^()\s]+)\)|href="([^"]+)"', text
        ):
            place = "".join(target).partition("#")[0]
            if place and not re.match(r"[a-z]+:", place):
                count += 1
                assert course in (path.parent / place).resolve().parents
                assert (path.parent / place).exists(), (path, target)
    assert count > 300
    config = yaml.safe_load((course / "_config.yml").read_text())
    for name, place in config["sphinx"]["local_extensions"].items():
        assert (course / place / f"{name}.py").exists()
    setup = (course / "setup.md").read_text()
    assert "pip install -r requirements.txt" in setup
    assert "make live" not in setup
    assert (course / "README.md").exists()
    assert (course / "references.bib").exists()


def everything(course):
    """The text of all that students get, and of the package in it, without line breaks."""
    for path in (p for p in course.rglob("*") if p.is_file()):
        if path.suffix == ".ipynb":
            cells = json.loads(path.read_text())["cells"]
            yield path, "\n".join("".join(cell["source"]) for cell in cells)
        elif path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                for name in wheel.namelist():
                    yield name, wheel.read(name).decode(errors="ignore")
        else:
            yield path, path.read_text(errors="ignore")


def test_no_solution_is_in_what_students_get(course):
    written = [s for chapter in CHAPTERS for s in solutions(chapter).values()]
    answers = [" ".join(s.code.split()) for s in written if s.code]
    sentences = [
        " ".join(t.split()) for s in written for t in re.split(r"(?<=[.:;?])\s", s.text)
    ]
    searched = [text for text in (*answers, *sentences) if len(text) > 35]
    assert len(searched) > 200
    names = []
    for name, text in everything(course):
        names.append(str(name))
        plain = " ".join(text.split())
        assert not [s for s in searched if s in plain], name
        assert "fl.solution(" not in text or str(name).endswith((".py", "METADATA"))
    assert not [n for n in names if "solutions" in n]
    wheels = [*course.glob("*.whl")]
    assert len(wheels) == course.parent.name.startswith("nbgrader")
    for wheel in wheels:
        assert wheel.name in (course / "requirements.txt").read_text()
        assert re.search(
            r"^torch==\d", (course / "constraints.txt").read_text(), re.MULTILINE
        )


def test_the_lecturer_gets_answers_and_what_checks_tell_apart(
    tmp_path, monkeypatch, capsys
):
    out = tmp_path / "class"
    words = ["classroom", str(BOOK), str(out), "--for", "nbgrader", "--instructor"]
    assert main(words) is None
    assert "instructor" in capsys.readouterr().out
    run_path(out / "instructor" / "gift.py", run_name="__main__")
    guide = {
        p.name: p.read_text() for p in (out / "instructor").rglob("*") if p.is_file()
    }
    for name in ("README", "sessions", "questions", "examination"):
        assert f"{name}.md" in guide
    questions = guide["questions.gift"]
    answers = r"(?:(?:=[^#\n]+|~.*[^\\]#.+)\n){4}"
    asked = rf"^::\d+::\[markdown\].+[^\\] \{{\n{answers}\}}\n"
    assert len(re.findall(asked, questions, re.MULTILINE)) == 24
    assert questions.count("\n=") == 24
    assert "that is one direction only" in guide["fedavg.md"]
    assert "return sorted(torch.randperm" in guide["fedavg.md"]
    rows = guide["exercises.csv"].splitlines()
    assert len(rows) == 1 + sum(len(solutions(chapter)) for chapter in CHAPTERS)
    source = sources(out / "source" / "fedavg_audit" / "fedavg_audit.ipynb")
    assert sum("### BEGIN SOLUTION" in text for text in source) == 3
    assert "(its Eq. 7, and the first line of Algorithm 2)" in guide["rpn.md"]


# ---- students and progress -----------------------------------------------------------------------


ROSTERS = {
    "name,mail\nAnn,a@b.org\n": "no column with the ids",
    "id\n": "no students",
    "id,name\nann,Ann\n,Ben\n": "a row without an id",
    "id\nann\n\nAnn\n": "the id Ann twice",
    "id\n../../ann\n": "name of a folder",
    "id\nZoë".encode("utf-16"): "UTF-8",
}


@pytest.mark.parametrize("text", ROSTERS)
def test_a_roster_is_refused_in_a_sentence(tmp_path, text):
    path = tmp_path / "roster.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=ROSTERS[text]):
        classroom.make(
            book(tmp_path / "book", "x = 1"), tmp_path / "out", seed_from=path
        )
    assert not (tmp_path / "out").exists()


def test_a_roster_is_read_as_it_comes(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_bytes(
        "id;Name\r\n 007 ;Bond, J.\r\nzoe\u0308;Zoë\r\n".encode("utf-8-sig")
    )
    assert classroom.roster(path) == ["007", "zoë"]


def test_assignments_have_numbers_of_a_students_own(tmp_path):
    source = tmp_path / "book"
    out = tmp_path / "class"
    shutil.copytree(BOOK, source)
    roster = source / "roster.csv"  # private
    roster.write_text("id\nann\nzoë\n")
    words = [
        "classroom",
        str(source),
        str(out),
        "--seed-from",
        str(roster),
        "--instructor",
    ]
    assert main(words) is None
    text = "\n".join(sources(out / "source" / "rpn" / "rpn.ipynb"))
    assert classroom.STUDENT in text
    assert "fl.book.course(student)" in text
    assert 'fl.book.given("rpn-numbers")' in text
    assert 'given("rpn-pool")' not in text
    rows = (out / "instructor" / "numbers.csv").read_text().splitlines()
    assert {row.partition(",")[0] for row in rows} == {"student", "ann", "zoë"}
    assert fl.book.seed() == 0
    public = {p.name for p in out.rglob("*") if "instructor" not in p.parts}
    assert not public & {"numbers.csv", "roster.csv"}


def test_progress_is_kept_beside_the_notebooks(tmp_path, monkeypatch):
    (tmp_path / "part").mkdir()
    (tmp_path / "_toc.yml").touch()
    monkeypatch.chdir(tmp_path / "part")
    assert len(fl.progress()) == 0
    assert not fl.check("rpn-numbers", 7)
    assert not (tmp_path / check.PROGRESS).exists(), "only notebooks keep it"
    monkeypatch.setattr(check, "kernel", lambda: True)
    for answer in (7, ..., 1_199_882 - 8 * (32 + 32 * 64), 8):
        fl.check("rpn-numbers", answer)
    row = fl.progress().loc["rpn-numbers"]
    assert row["right"]
    assert row["checks"] == 3, "what was right stays right"
    (tmp_path / check.PROGRESS).write_text("mine")
    assert not fl.check("rpn-numbers", 7)
    assert (tmp_path / check.PROGRESS).read_text() == "mine"
    with pytest.raises(ValueError, match="columns"):
        fl.progress()


# ---- the lecturer's pages ------------------------------------------------------------------------


MARKS = """assignment,duedate,timestamp,student_id,last_name,first_name,email,raw_score,\
late_submission_penalty,score,max_score
fedavg,,2026-11-20 10:00:00,007,Bond,J.,,5.0,0.0,5.0,7.0
fedavg,,,zoë,,,,0.0,0.0,0.0,7.0
rpn,,2026-11-27 10:00:00,007,Bond,J.,,4.0,1.0,3.0,4.0
rpn,,2026-11-27 10:00:00,zoë,,,,4.0,0.0,4.0,4.0
"""


def test_marks_become_what_moodle_and_canvas_import(tmp_path, monkeypatch):
    text = (BOOK / "teach" / "lecturer.md").read_text()
    shape, moodle, canvas, otter = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("marks.csv").write_text(MARKS)
    exec(shape + moodle + canvas, {})
    assert Path("moodle.csv").read_text() == (
        "student,fedavg,rpn\n007,5.0,3.0\nzoë,0.0,4.0\n"
    )
    assert Path("canvas.csv").read_text() == (
        "Student,ID,SIS User ID,SIS Login ID,Section,fedavg,rpn\n"
        "Points Possible,,,,,7.0,4.0\n"
        ",,,007,,5.0,3.0\n,,,zoë,,0.0,4.0\n"
    )
    tests = [{"name": "Public Tests"}] + 2 * [{"score": 2, "max_score": 3}]
    Path("results", "ann").mkdir(parents=True)
    Path("results", "ann", "results.json").write_text(json.dumps({"tests": tests}))
    exec(otter + moodle + canvas, {})
    assert Path("moodle.csv").read_text() == "student,fedavg\nann,4.0\n"
    assert "Points Possible,,,,,6.0\n,,,ann,,4.0" in Path("canvas.csv").read_text()
