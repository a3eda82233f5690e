"""A course in the hands of the programs that mark it, the real ones: nbgrader, otter-grader, and
``marks`` for a plain course. What is handed in is right, wrong, or means harm.

Needs the environment of `make test-class`.
"""

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from fedlearn.book import classroom, marks
from fedlearn.book.check import solutions

BOOK = Path(__file__).resolve().parents[2] / "book"
BIN = Path(sys.executable).parent
STEM, EXERCISES = "fedavg_audit", ("fedavg-average", "fedavg-participants")
RIGHT = [solutions("fedavg", BOOK)[name].code for name in EXERCISES]
WRONG = "def weighted_average(states, samples):\n    return states[0]"
ALONE = "def participants(clients, C, generator):\n    return [0]"
DELETES = "import os, shutil\n\nshutil.rmtree(os.getcwd(), ignore_errors=True)\n\n"
STUBS = [
    f"def {f}:\n    return ...  # your code here"
    for f in ("weighted_average(states, samples)", "participants(clients, C, generator)")
]
# both answers of a student, and the points for them
SUBMISSIONS = {
    "perfect": (RIGHT, [2, 2]),
    "wrong": ([WRONG, ALONE], [0, 0]),
    "half": ([WRONG, RIGHT[1]], [0, 2]),
    "untouched": (STUBS, [0, 0]),
    "endless": (["while True:\n    pass", RIGHT[1]], [0, 2]),
    "gigabyte": (["for _ in range(1000):\n    print(10**6 * 'x')", RIGHT[1]], [0, 2]),
    "deletes": ([DELETES + RIGHT[0], RIGHT[1]], [2, 2]),
}


def called(folder, *words):
    """What a program of this environment says."""
    env = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}  # nbgrader calls alembic
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, env=env, **how)
    assert done.returncode == 0, done.stdout
    return done.stdout


class Plain:
    kind = "plain"

    def __init__(self, folder, stem=STEM, exercises=EXERCISES, students=()):
        self.stem, self.exercises, self.students = stem, exercises, students
        self.course, self.handed = folder / "class", folder / "class" / "submitted"
        self.book = folder / "book"  # of one chapter: no package is built
        (self.book / "solutions").mkdir(parents=True)
        shutil.copy(BOOK / "foundations" / f"{stem}.ipynb", self.book)
        shutil.copy(BOOK / "solutions" / "fedavg.py", self.book / "solutions")
        roster = folder / "roster.csv" if students else ""
        if students:
            roster.write_text("\n".join(["id", *students]))
        how = {"kind": self.kind, "instructor": True, "seed_from": roster}
        classroom.make(self.book, self.course, **how)
        self.roster = roster

    def given(self, student=""):
        """The file that students get."""
        return self.course / "exercises" / (student if self.students else "") / f"{self.stem}.ipynb"

    def place(self, student):
        return self.handed / student

    def submit(self, student, answers, stubs=STUBS):
        notebook = nbformat.read(self.given(student), 4)
        filled = dict(zip(stubs, answers, strict=True))
        seen = [c.source.strip() for c in notebook.cells]
        assert all(seen.count(stub) == 1 for stub in stubs), "the stubs are kept"
        filled[classroom.STUDENT] = f'student = "{student}"'
        for cell in notebook.cells:
            cell.source = filled.get(cell.source.strip(), cell.source)
        self.place(student).mkdir(parents=True)
        nbformat.write(notebook, self.place(student) / f"{self.stem}.ipynb")

    def points(self):
        marks.mark(self.book, self.handed, self.course / "marks.csv", seed_from=self.roster)
        found = {student.name: [] for student in self.handed.iterdir()}
        with (self.course / "marks.csv").open() as file:
            for row in csv.DictReader(file):
                if row["exercise"] in self.exercises:
                    found[row["student"]].append(int(row["points"]))
        return found


class Nbgrader(Plain):
    kind = "nbgrader"

    def given(self, student=""):
        path = self.course / "release" / self.stem / f"{self.stem}.ipynb"
        if not path.exists():
            called(self.course, "nbgrader", "generate_assignment", self.stem)
        return path

    def place(self, student):
        return self.handed / student / self.stem

    def points(self):
        called(self.course, "nbgrader", "autograde", self.stem)
        return self.stored()

    def stored(self):
        with Gradebook(f"sqlite:///{self.course}/gradebook.db") as book:
            found = {}
            for submission in book.assignment_submissions(self.stem):
                grades = {g.name.removesuffix("-check"): g for g in submission.notebooks[0].grades}
                found[submission.student.id] = [grades[n].score for n in self.exercises]
                papers = [g for name, g in grades.items() if name not in self.exercises]
                assert papers and not any(g.auto_score for g in papers)
        return found


class Otter(Plain):
    kind = "otter"

    def given(self, student=""):
        made = self.course / "dist"
        if not made.exists():  # this tries the tests on the reference answers
            said = called(self.course, "otter", "assign", f"otter/{self.stem}.ipynb", "dist")
            assert "failed" not in said.lower()
        return made / "student" / f"{self.stem}.ipynb"

    def points(self):
        (tests,) = (self.course / "dist" / "autograder").glob("*.zip")
        return {p.name: self.run(p, tests) for p in sorted(self.handed.iterdir())}

    def run(self, place, tests):
        called(place, "otter", "run", "-a", str(tests), "-o", ".", f"{self.stem}.ipynb")
        results = json.loads((place / "results.json").read_text())
        (place / "results.json").unlink()
        scores = {test["name"]: test.get("score") for test in results["tests"]}
        return [scores[name] for name in self.exercises]


def state(folder):
    """What must not change: the course and what was handed in."""
    files = [p for p in folder.rglob("*") if p.is_file() and "autograded" not in p.parts]
    skipped = ("marks.csv", "gradebook.db")
    files = [p for p in files if p.name not in skipped and p.suffix not in (".log", ".json")]
    return {p: hashlib.sha256(p.read_bytes()).digest() for p in files}


@pytest.fixture
def impatient(monkeypatch):
    """A cell that is marked may take two seconds of the processor: an endless one takes them. The
    package is not built."""
    monkeypatch.setattr(classroom, "wheel", lambda folder: [])
    monkeypatch.setattr(classroom, "BEGIN", classroom.BEGIN.replace("60", "2"))


@pytest.mark.parametrize("program", [Plain, Nbgrader, Otter])
def test_points_are_those_of_the_answers_and_nothing_is_hurt(program, tmp_path, impatient):
    course = program(tmp_path)
    for student, (answers, _) in SUBMISSIONS.items():
        course.submit(student, answers)
    given = course.given().read_text()
    assert "0) + m" not in given and "max(1, int(" not in given, "a solution"
    before = state(tmp_path)
    assert course.points() == {s: points for s, (_, points) in SUBMISSIONS.items()}
    assert state(tmp_path) == before
    assert max(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) < 2_000_000


@pytest.mark.parametrize("program", [Plain, Nbgrader, Otter])
def test_each_student_is_marked_with_numbers_of_their_own(program, tmp_path, impatient):
    students, asked = ("ann", "ben", "cem", "zoë"), ["total = ...  # your sum here"]
    course = program(tmp_path, "fedavg", ("fedavg-bytes",), students)
    with (course.course / "instructor" / "numbers.csv").open() as file:
        right = {row["student"]: row["answer"] for row in csv.DictReader(file)}
    for student, source in {"ann": "ann", "ben": "ann", "zoë": "zoë"}.items():
        course.submit(student, [f"total = {right[source]}"], asked)
    if program is not Otter:  # takes the id that the notebook states
        shutil.copy(course.place("ann") / "fedavg.ipynb", course.place("ben"))
    with pytest.MonkeyPatch.context() as patch:  # the id is not written, the answer is the book's
        patch.setattr(classroom, "STUDENT", "")
        course.submit("cem", ["total = 40_957_000"], asked)
    assert course.points() == {"ann": [2], "ben": [0], "cem": [0], "zoë": [2]}


def test_nbgrader_gives_the_reason_back_and_a_removed_check_too(tmp_path, impatient):
    course = Nbgrader(tmp_path)
    course.submit("half", [WRONG, RIGHT[1]])
    path = course.place("half") / f"{STEM}.ipynb"
    notebook = nbformat.read(path, 4)
    ids = [c.metadata.get("nbgrader", {}).get("grade_id") for c in notebook.cells]
    del notebook.cells[ids.index("fedavg-participants-check")]
    nbformat.write(notebook, path)
    assert course.points() == {"half": [0, 2]}
    marked = nbformat.read(course.course / "autograded" / "half" / STEM / f"{STEM}.ipynb", 4)
    outputs = [o for c in marked.cells for o in c.get("outputs", [])]
    (error,) = (o for o in outputs if o.output_type == "error")
    assert "not yet, because" in error.evalue


def test_what_cannot_be_marked_costs_nobody_else(tmp_path, impatient):
    course = Plain(tmp_path)
    for student in ("renamed", "exits"):
        course.submit(student, RIGHT)
    home = course.place("renamed")
    (home / f"{STEM}.ipynb").rename(home / "my homework (2).ipynb")
    (home / "notes.ipynb").write_text("no notebook")
    ends = course.place("exits") / f"{STEM}.ipynb"
    notebook = nbformat.read(ends, 4)
    for cell in notebook.cells:
        if cell.source == RIGHT[0]:
            cell.source = "import os\n\nos._exit(0)"
    nbformat.write(notebook, ends)
    course.place("absent").mkdir()
    assert course.points() == {"renamed": [2, 2], "exits": [0, 2], "absent": []}
    rows = (course.course / "marks.csv").read_text()
    assert "notes.ipynb is no notebook" in rows and "ended the kernel" in rows
    assert "absent,,,0,0,no notebook was handed in" in rows
