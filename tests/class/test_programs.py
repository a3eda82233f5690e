"""A course is marked by nbgrader and by otter-grader, the real programs.

The points are those that a student earned, also where two copies of a notebook are handed in, where
the answer's cell is split, and where the answer uses a cell of the student's own. These tests need
the environment of `make test-class`.
"""

import copy
import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from fedlearn.book import classroom
from fedlearn.book.check import solutions

BOOK = Path(__file__).resolve().parents[2] / "book"
BIN = Path(sys.executable).parent
STEM = "fedavg_audit"
EXERCISES = ("fedavg-average", "fedavg-participants")
RIGHT = [solutions("fedavg", BOOK)[name].code for name in EXERCISES]
WRONG = "def weighted_average(states, samples):\n    return states[0]"
ALONE = "def participants(clients, C, generator):\n    return [0]"
STUBS = [
    "def weighted_average(states, samples):\n    return ...  # your code here",
    "def participants(clients, C, generator):\n    return ...  # your code here",
]


def call(folder, *words):
    """The output of a program of this environment."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # nbgrader calls alembic
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class Nbgrader:
    kind = "nbgrader"

    def __init__(self, folder, stem=STEM, exercises=EXERCISES, students=()):
        self.stem = stem
        self.exercises = exercises
        self.course = folder / "class"
        self.submitted = self.course / "submitted"
        book = folder / "book"  # one chapter
        (book / "solutions").mkdir(parents=True)
        shutil.copy(BOOK / "foundations" / f"{stem}.ipynb", book)
        shutil.copy(BOOK / "solutions" / "fedavg.py", book / "solutions")
        roster = ""
        if students:
            roster = folder / "roster.csv"
            roster.write_text("\n".join(["id", *students]))
        classroom.make(
            book,
            self.course,
            kind=self.kind,
            instructor=True,
            seed_from=roster,
        )

    def released(self):
        """The notebook that students get."""
        path = self.course / "release" / self.stem / f"{self.stem}.ipynb"
        if not path.exists():
            call(self.course, "nbgrader", "generate_assignment", self.stem)
        return path

    def place(self, student):
        return self.submitted / student / self.stem

    def answered(self, student, answers, stubs=STUBS):
        """The notebook with a student's answers."""
        notebook = nbformat.read(self.released(), 4)
        text = dict(zip(stubs, answers, strict=True))
        text[classroom.STUDENT] = f'student = "{student}"'
        sources = [cell.source.strip() for cell in notebook.cells]
        assert all(sources.count(stub) == 1 for stub in stubs)
        for cell in notebook.cells:
            cell.source = text.get(cell.source.strip(), cell.source)
        return notebook

    def submit(self, student, notebook, name=""):
        self.place(student).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, self.place(student) / (name or f"{self.stem}.ipynb"))

    def points(self):
        """student -> points of each exercise."""
        call(self.course, "nbgrader", "autograde", self.stem)
        points = {}
        with Gradebook(f"sqlite:///{self.course}/gradebook.db") as book:
            for submission in book.assignment_submissions(self.stem):
                assert len(submission.notebooks) == 1
                grades = submission.notebooks[0].grades
                scores = {
                    grade.name.removesuffix("-check"): grade.score for grade in grades
                }
                points[submission.student.id] = [
                    scores[name] for name in self.exercises
                ]
        return points


class Otter(Nbgrader):
    kind = "otter"

    def released(self):
        folder = self.course / "dist"
        if not folder.exists():  # the tests are also run on the reference answers
            output = call(
                self.course, "otter", "assign", f"otter/{self.stem}.ipynb", "dist"
            )
            assert "failed" not in output.lower()
        return folder / "student" / f"{self.stem}.ipynb"

    def place(self, student):
        return self.submitted / student

    def points(self):
        (tests,) = (self.course / "dist" / "autograder").glob("*.zip")
        points = {}
        for place in sorted(self.submitted.iterdir()):
            call(
                place, "otter", "run", "-a", str(tests), "-o", ".", f"{self.stem}.ipynb"
            )
            results = json.loads((place / "results.json").read_text())
            scores = {test["name"]: test.get("score") for test in results["tests"]}
            points[place.name] = [scores[name] for name in self.exercises]
        return points


PROGRAMS = pytest.mark.parametrize("program", [Nbgrader, Otter])


@pytest.fixture(autouse=True)
def no_package(monkeypatch):
    """The package is not built."""
    monkeypatch.setattr(classroom, "wheel", lambda folder: [])


def cell_of(notebook, text):
    """The index of the answer's cell."""
    return [cell.source for cell in notebook.cells].index(text)


def split(notebook, text):
    """The answer's cell, cut in two as Jupyter does it: both halves have its metadata."""
    at = cell_of(notebook, text)
    first = notebook.cells[at]
    second = copy.deepcopy(first)
    second.id = "second-half"
    first.source = "def total(samples):\n    return sum(samples)"
    second.source = text
    notebook.cells.insert(at + 1, second)


def with_helper(notebook, text):
    """A cell of the student's own above the answer, which calls it."""
    at = cell_of(notebook, text)
    helper = nbformat.v4.new_code_cell(text.replace("weighted_average", "helper"))
    notebook.cells[
        at
    ].source = (
        "def weighted_average(states, samples):\n    return helper(states, samples)"
    )
    notebook.cells.insert(at, helper)


@PROGRAMS
def test_points_are_those_that_a_student_earned(program, tmp_path):
    course = program(tmp_path)
    earned = {
        "perfect": (RIGHT, [2, 2]),
        "wrong": ([WRONG, ALONE], [0, 0]),
        "half": ([WRONG, RIGHT[1]], [0, 2]),
        "untouched": (STUBS, [0, 0]),
        "split": (RIGHT, [2, 2]),
        "helper": (RIGHT, [2, 2]),
        "copies": ([WRONG, RIGHT[1]], [0, 2]),
    }
    for student, (answers, _) in earned.items():
        notebook = course.answered(student, answers)
        if student == "split":
            split(notebook, RIGHT[0])
        if student == "helper":
            with_helper(notebook, RIGHT[0])
        course.submit(student, notebook)
    perfect = course.answered("copies", RIGHT)
    course.submit("copies", perfect, f"{STEM}-Copy1.ipynb")
    text = course.released().read_text()
    assert "0) + m" not in text and "max(1, int(" not in text, "a solution"
    assert course.points() == {name: points for name, (_, points) in earned.items()}


@PROGRAMS
def test_each_student_is_marked_with_numbers_of_their_own(program, tmp_path):
    students = ("ann", "ben", "zoë")
    stub = ["total = ...  # your sum here"]
    course = program(tmp_path, "fedavg", ("fedavg-bytes",), students)
    with (course.course / "instructor" / "numbers.csv").open() as file:
        right = {row["student"]: row["answer"] for row in csv.DictReader(file)}
    for student, source in {"ann": "ann", "ben": "ann", "zoë": "zoë"}.items():
        answer = [f"total = {right[source]}"]
        course.submit(student, course.answered(student, answer, stub))
    assert course.points() == {"ann": [2], "ben": [0], "zoë": [2]}


def test_nbgrader_interrupts_a_cell_and_puts_a_check_back(tmp_path, monkeypatch):
    quick = classroom.NBGRADER.replace("timeout = 60", "timeout = 30")
    monkeypatch.setattr(classroom, "NBGRADER", quick)
    course = Nbgrader(tmp_path)
    notebook = course.answered("ann", ["while True:\n    pass", RIGHT[1]])
    ids = [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in notebook.cells]
    del notebook.cells[ids.index("fedavg-participants-check")]
    course.submit("ann", notebook)
    assert course.points() == {"ann": [0, 2]}


def test_nbgrader_shows_the_reason(tmp_path):
    course = Nbgrader(tmp_path)
    course.submit("ann", course.answered("ann", [WRONG, RIGHT[1]]))
    course.points()
    path = course.course / "autograded" / "ann" / STEM / f"{STEM}.ipynb"
    outputs = [
        o for cell in nbformat.read(path, 4).cells for o in cell.get("outputs", [])
    ]
    (error,) = (o for o in outputs if o.output_type == "error")
    assert "not yet, because" in error.evalue
