"""The class edition in nbgrader, the real program: points for right answers only.

Needs the environment of `make test-class`. What is handed out is a chapter's parameters, set-up and
exercises: no exercise uses what is trained between, which takes minutes for each submission.
"""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook

from fedlearn.book import classroom
from fedlearn.book.check import solutions

BOOK = Path(__file__).resolve().parents[2] / "book"
BIN = Path(sys.executable).parent
AVERAGE, DRAW = EXERCISES = "fedavg-average", "fedavg-participants"
RIGHT = {name: solutions("fedavg")[name].code for name in EXERCISES}
WRONG = {
    AVERAGE: "def weighted_average(states, samples):\n    return states[0]",
    DRAW: "def participants(clients, C, generator):\n    return [0]",
}


def grade_id(cell):
    return cell.metadata.get("nbgrader", {}).get("grade_id")


PATIENCE = """c = get_config()
c.Execute.timeout = c.Execute.iopub_timeout = c.Execute.startup_timeout = 1800
"""  # the machine may be busy


class Course:
    """A course whose one assignment is the class edition of the notes on chapter 1."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "nbgrader_config.py").write_text(PATIENCE)
        classroom.make(BOOK / "foundations", folder / "class")
        chapter = nbformat.read(folder / "class" / "fedavg_audit.ipynb", 4)
        begin = next(k for k, c in enumerate(chapter.cells) if "import fedlearn" in c.source) + 1
        chapter.cells[begin:] = [
            cell
            for cell in chapter.cells[begin:]
            if grade_id(cell) or "### Exercise" in cell.source
        ]
        cells = {grade_id(cell): cell.source for cell in chapter.cells}
        self.empty = {name: cells[name] for name in EXERCISES}
        (folder / "source" / "one").mkdir(parents=True)
        nbformat.write(chapter, folder / "source" / "one" / "fedavg_audit.ipynb")
        self.nbgrader("generate_assignment", "one")

    def nbgrader(self, *words):
        """What it says."""
        env = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}  # it calls alembic
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = [sys.executable, "-m", "nbgrader", *words]
        done = subprocess.run(command, cwd=self.folder, env=env, timeout=1800, **how)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def submit(self, student, answers, without=None):
        chapter = nbformat.read(self.folder / "release" / "one" / "fedavg_audit.ipynb", 4)
        chapter.cells = [c for c in chapter.cells if not (without and grade_id(c) == without)]
        for cell in chapter.cells:
            cell.source = answers.get(grade_id(cell), cell.source)
        place = self.folder / "submitted" / student / "one"
        place.mkdir(parents=True)
        nbformat.write(chapter, place / "fedavg_audit.ipynb")

    def points(self):
        """Of each student by exercise; "by hand" where nbgrader leaves it to the teacher."""
        with Gradebook(f"sqlite:///{self.folder}/gradebook.db") as book:
            return {
                submission.student.id: {
                    g.name.removesuffix("-check"): "by hand" if g.needs_manual_grade else g.score
                    for g in submission.notebooks[0].grades
                }
                for submission in book.assignment_submissions("one")
            }

    def said(self, student):
        """The error below each check, as a student gets it back."""
        path = self.folder / "autograded" / student / "one" / "fedavg_audit.ipynb"
        return {
            grade_id(cell).removesuffix("-check"): f"{output.ename}: {output.evalue}"
            for cell in nbformat.read(path, 4).cells
            if cell.cell_type == "code"
            for output in cell.outputs
            if output.output_type == "error"
        }


def test_points_are_given_for_right_answers_only_and_the_reason_is_given_back(tmp_path):
    course = Course(tmp_path)
    course.submit("perfect", RIGHT)
    course.submit("half", WRONG | {DRAW: RIGHT[DRAW]})
    course.submit("untouched", course.empty)
    course.submit("unanswered", RIGHT, without=DRAW)
    course.submit("unchecked", RIGHT, without=f"{DRAW}-check")
    course.nbgrader("autograde", "one")
    points = course.points()
    assert points["perfect"] == {AVERAGE: 1, DRAW: 1} and not course.said("perfect")
    assert points["half"] == {AVERAGE: 0, DRAW: 1}
    assert list(course.said("half")) == [AVERAGE]
    assert points["untouched"] == {AVERAGE: 0, DRAW: 0}
    assert all("no answer yet" in its for its in course.said("untouched").values())
    # an answer that was removed earns nothing
    assert points["unanswered"] == {AVERAGE: 1, DRAW: 0}
    assert course.said("unanswered") == {DRAW: "NameError: name 'participants' is not defined"}
    # a check that was removed is left to the teacher, or put back, as the page about set-up says
    assert points["unchecked"] == {AVERAGE: 1, DRAW: "by hand"}
    again = ("autograde", "one", "--student=unchecked", "--force")
    said = course.nbgrader(*again, "--OverwriteCells.add_missing_cells=True")
    assert f"Missing grade cell {DRAW}-check encountered, adding to notebook" in said
    assert course.points()["unchecked"] == {AVERAGE: 1, DRAW: 1}
