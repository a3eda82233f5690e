"""A course is marked by nbgrader and by otter-grader, the real programs.

The points are those that a student earned, also where two copies of a notebook are
handed in, where the answer's cell is split, and where the answer uses a cell of the
student's own. These tests need the environment of `make test-class`.

Most of the time goes into kernels that import torch. So each program has one course,
and a student has several cases in one notebook.
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
STEM = "fedavg"
EXERCISES = ("fedavg-average", "fedavg-participants", "fedavg-bytes")
AVERAGE, PARTICIPANTS = (solutions("fedavg", BOOK)[e].code for e in EXERCISES[:2])
WRONG = "def weighted_average(states, samples):\n    return states[0]"
STUBS = (
    "def weighted_average(states, samples):\n    return ...  # your code here",
    "def participants(clients, C, generator):\n    return ...  # your code here",
    "total = ...  # your sum here",
)
LOOP = "while True:\n    pass"
STUDENTS = ("ann", "ben", "eve", "zoë")
# only the loop meets a limit, on a machine of any speed
PATIENT = f"""
c.Execute.timeout_func = lambda cell: 5 if cell.source == {LOOP!r} else 3600
c.Execute.startup_timeout = 3600
c.Execute.iopub_timeout = 3600
"""


def call(folder, *words):
    """Run a program of this environment."""
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


def exercise_cells(path):
    """The cells of a page that are about the exercises."""
    cells = []
    prompt = None
    for cell in nbformat.read(path, 4).cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if cell.cell_type == "markdown":
            prompt = cell
        elif name in EXERCISES:
            cells += [prompt, cell]
        elif name.removesuffix("-check") in EXERCISES:
            cells.append(cell)
    return cells


def write_book(folder):
    """A book of one short chapter, with exercises of a lesson and of its notes."""
    pages = BOOK / "foundations"
    chapter = nbformat.read(pages / f"{STEM}.ipynb", 4)
    chapter.cells = [
        nbformat.v4.new_markdown_cell("# Federated averaging"),
        nbformat.v4.new_code_cell("import fedlearn as fl"),
        *exercise_cells(pages / f"{STEM}_audit.ipynb"),
        *exercise_cells(pages / f"{STEM}.ipynb"),
    ]
    (folder / "solutions").mkdir(parents=True)
    shutil.copy(BOOK / "solutions" / f"{STEM}.py", folder / "solutions")
    nbformat.write(chapter, folder / f"{STEM}.ipynb")


class Nbgrader:
    kind = "nbgrader"

    def __init__(self, folder):
        self.course = folder / "class"
        self.submitted = self.course / "submitted"
        write_book(folder / "book")
        roster = folder / "roster.csv"
        roster.write_text("\n".join(["id", *STUDENTS]))
        classroom.make(
            folder / "book",
            self.course,
            kind=self.kind,
            instructor=True,
            seed_from=roster,
        )
        with (self.course / "instructor" / "numbers.csv").open() as file:
            rows = [*csv.DictReader(file)]
        self.totals = {row["student"]: f"total = {row['answer']}" for row in rows}
        self.release()
        self.released = nbformat.read(self.release_path(), 4)

    def release(self):
        with (self.course / "nbgrader_config.py").open("a") as file:
            file.write(PATIENT)
        call(self.course, "nbgrader", "generate_assignment", STEM)

    def release_path(self):
        return self.course / "release" / STEM / f"{STEM}.ipynb"

    def place(self, student):
        return self.submitted / student / STEM

    def answered(self, student, *answers):
        """The notebook with a student's answers."""
        notebook = copy.deepcopy(self.released)
        replace(notebook, classroom.STUDENT, f'student = "{student}"')
        for stub, answer in zip(STUBS, answers, strict=True):
            replace(notebook, stub, answer)
        return notebook

    def submit(self, student, notebook, name=f"{STEM}.ipynb"):
        self.place(student).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, self.place(student) / name)

    def mark(self):
        """student -> points of each exercise."""
        call(self.course, "nbgrader", "autograde", STEM)
        points = {}
        with Gradebook(f"sqlite:///{self.course}/gradebook.db") as book:
            for submission in book.assignment_submissions(STEM):
                (notebook,) = submission.notebooks
                scores = {grade.name: grade.score for grade in notebook.grades}
                student = submission.student.id
                points[student] = [scores[f"{name}-check"] for name in EXERCISES]
        return points


class Otter(Nbgrader):
    kind = "otter"

    def release(self):
        call(self.course, "otter", "assign", f"otter/{STEM}.ipynb", "dist")

    def release_path(self):
        return self.course / "dist" / "student" / f"{STEM}.ipynb"

    def place(self, student):
        return self.submitted / student

    def mark(self):
        (tests,) = (self.course / "dist" / "autograder").glob("*.zip")
        points = {}
        for place in sorted(self.submitted.iterdir()):
            run = ["otter", "run", "-a", str(tests), "-o", ".", f"{STEM}.ipynb"]
            call(place, *run)
            results = json.loads((place / "results.json").read_text())
            scores = {test["name"]: test.get("score") for test in results["tests"]}
            points[place.name] = [scores[name] for name in EXERCISES]
        return points


def cell_index(notebook, text):
    """The index of the one cell with this text."""
    (index,) = (k for k, c in enumerate(notebook.cells) if c.source.strip() == text)
    return index


def replace(notebook, text, new):
    notebook.cells[cell_index(notebook, text)].source = new


def split(notebook, text):
    """Cut an answer's cell in two, as Jupyter does: both halves have its metadata."""
    index = cell_index(notebook, text)
    first = notebook.cells[index]
    second = copy.deepcopy(first)
    second.id = "second-half"
    first.source = "def total_of(samples):\n    return sum(samples)"
    second.source = text.replace("sum(samples)", "total_of(samples)")
    assert second.source != text
    notebook.cells.insert(index + 1, second)


def with_helper(notebook, text):
    """Put a cell of the student's own above the answer, which calls it."""
    index = cell_index(notebook, text)
    helper = nbformat.v4.new_code_cell(text.replace("participants", "helper"))
    answer = "def participants(*given):\n    return helper(*given)"
    notebook.cells[index].source = answer
    notebook.cells.insert(index, helper)


def without_check(notebook, name):
    """Remove the check of an exercise, for nbgrader."""
    grading = [cell.metadata.get("nbgrader", {}) for cell in notebook.cells]
    del notebook.cells[[a.get("grade_id") for a in grading].index(f"{name}-check")]


@pytest.fixture(scope="class")
def course(request, tmp_path_factory):
    """A course with what students handed in, marked."""
    program = request.cls.program
    folder = tmp_path_factory.mktemp(program.kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classroom, "wheel", lambda folder: [])  # takes seconds
        course = program(folder)
    totals = course.totals
    ann = course.answered("ann", AVERAGE, PARTICIPANTS, totals["ann"])
    split(ann, AVERAGE)
    with_helper(ann, PARTICIPANTS)
    course.submit("ann", ann)
    course.submit("ben", course.answered("ben", WRONG, STUBS[1], totals["ann"]))
    zoë = course.answered("zoë", WRONG, PARTICIPANTS, totals["zoë"])
    course.submit("zoë", zoë)
    replace(zoë, WRONG, AVERAGE)
    course.submit("zoë", zoë, f"{STEM}-Copy1.ipynb")
    if program is Nbgrader:
        eve = course.answered("eve", LOOP, PARTICIPANTS, totals["eve"])
        without_check(eve, "fedavg-participants")
        course.submit("eve", eve)
    course.points = course.mark()
    return course


class Cases:
    def test_a_split_cell_and_a_helper_earn_their_points(self, course):
        assert course.points["ann"] == [2, 2, 2]

    def test_wrong_answers_a_stub_and_numbers_of_another_student_earn_none(
        self, course
    ):
        assert course.totals["ann"] != course.totals["ben"]
        assert course.points["ben"] == [0, 0, 0]

    def test_a_second_copy_of_a_notebook_does_not_count(self, course):
        assert course.points["zoë"] == [0, 2, 2]

    def test_students_get_no_solution(self, course):
        text = course.release_path().read_text()
        assert STUBS[0].partition("\n")[0] in text
        assert "0) + m" not in text and "max(1, int(" not in text


class TestOtter(Cases):
    program = Otter


class TestNbgrader(Cases):
    program = Nbgrader

    def test_a_loop_without_end_is_interrupted_and_a_check_put_back(self, course):
        assert course.points["eve"] == [0, 2, 2]

    def test_the_reason_is_shown(self, course):
        path = course.course / "autograded" / "ben" / STEM / f"{STEM}.ipynb"
        cells = nbformat.read(path, 4).cells
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        errors = [output.evalue for output in outputs if output.output_type == "error"]
        assert len(errors) == 3 and "not yet, because" in errors[0]
