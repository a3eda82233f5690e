"""The exercises of a chapter, and the files for the lecturer: texts to teach with, and
of each exercise the reference answer and its check.
"""

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .check import CHAPTERS, Solution, Varied, module_of

Cell = dict[str, Any]
SOLUTION = re.compile(r"^(?:fl|fedlearn)\.solution\((.*)\)[ \t]*\n?", re.MULTILINE)
CHECK = re.compile(r"\b(?:fl|fedlearn)\.check\(\s*[\"']([\w-]+)")
PROMPT = re.compile(r"^(?:> ★+ \*\*[^\n]*Exercise|#{2,4} Exercise)", re.MULTILINE)


@dataclass(frozen=True)
class Exercise:
    """An exercise of a chapter; one that is answered on paper has no cells of its
    own."""

    name: str
    prompt: str
    answer: Cell | None = None
    check: Cell | None = None

    @property
    def points(self) -> int:
        """One for each star."""
        return len(re.search("★*", self.prompt[self.prompt.find("★") :])[0]) or 1  # type: ignore


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def exercises(cells: Iterable[Cell]) -> list[Exercise]:
    """The exercises of a chapter, in its order; ``ValueError`` for one that lost its
    check."""
    questions: list[Exercise] = []
    prompt = ""
    answers = {}
    checked = set()
    for cell in cells:
        text = source(cell)
        grade = cell.get("metadata", {}).get("nbgrader", {})
        name = grade.get("grade_id", "").removesuffix("-check")
        shown = SOLUTION.fullmatch(text.strip() + "\n")
        checked.update(CHECK.findall(text))
        if cell["cell_type"] == "markdown":
            starts = [match.start() for match in PROMPT.finditer(text)]
            prompt = text[starts[-1] :].strip() if starts else prompt
        elif grade.get("solution"):
            answers[name] = cell
        elif grade.get("grade"):
            questions.append(Exercise(name, prompt, answers.pop(name, None), cell))
        elif shown and (name := shown[1].strip("\"' ")) not in checked:
            questions.append(Exercise(name, prompt))
    for name in answers:
        if name.split("-")[0] in CHAPTERS:
            raise ValueError(
                f"the answer {name} has no check, which would be the cell {name}-check."
            )
    return questions


# ---- for the lecturer ----------------------------------------------------------------


def rubric(exercise: Exercise, answer: Solution | None) -> str:
    """How an exercise on paper is marked, with its answer."""
    if answer is None:
        return "How to mark this: fedlearn classroom --instructor"
    text = " ".join(answer.text.partition("A good answer")[2].split())
    parts = re.findall(r"\(\d\) (.*?)[.;,]?(?:\. .*?)?(?= (?:and )?\(\d\)|$)", text)
    parts = parts or re.findall(r"\([a-g]\)", exercise.prompt)
    rows = [f"* {part}" for part in parts or ("what happens, or is true", "why")]
    share = f"{exercise.points} points, in equal shares for:"
    return "\n".join([share, "", *rows, "", answer.text])


def mistakes(test: Any) -> str:
    """The wrong answers that a check of a number knows, or the code of a check."""
    if isinstance(test, Varied):
        test = test.build(**test.given())
    wrong = inspect.getclosurevars(test).nonlocals.get("wrong")
    if wrong:
        return "\n".join(f"* {reason}" for reason in wrong.values())
    return f"```python\n{inspect.getsource(test)}```"


def section(exercise: Exercise, page: Path, answer: Solution) -> str:
    """An exercise in the lecturer's list."""
    marker = "its check" if exercise.check else "hand"
    head = (
        f"## {exercise.name}\n\n*{page.stem}; {exercise.points} points, "
        f"marked by {marker}.*"
    )
    if not exercise.check:
        return f"{head}\n\n{rubric(exercise, answer)}\n"
    test = module_of(exercise.name).EXERCISES[exercise.name]
    code = f"```python\n{answer.code}\n```"
    return f"{head}\n\n{answer.text}\n\n{code}\n\nIts check:\n\n{mistakes(test)}\n"


def guide(
    book: Path, asked: dict[Path, list[Exercise]], answers: dict[str, Solution]
) -> dict[str, str]:
    """The files for the lecturer, by their names."""
    texts = {
        p.name: p.read_text(encoding="utf-8")
        for p in sorted((book / "teach").glob("*.md"))
    }
    texts.pop("students.md", None)
    if "lecturer.md" in texts:
        texts["README.md"] = texts.pop("lecturer.md")
    if (book / "_slides.py").exists():  # reads the built pages, one folder above it
        texts["slides.py"] = (book / "_slides.py").read_text(encoding="utf-8")
    rows = ["exercise,page,points,marked"]
    for chapter in CHAPTERS:
        sections = []
        for page, exercises in asked.items():
            for e in (
                e
                for e in exercises
                if e.name in answers and e.name.split("-")[0] == chapter
            ):
                sections.append(section(e, page, answers[e.name]))
                marker = "by its check" if e.check else "by hand"
                rows.append(f"{e.name},{page},{e.points},{marker}")
        if sections:
            texts[f"solutions/{chapter}.md"] = "\n".join([f"# {chapter}\n", *sections])
    return texts | {"exercises.csv": "\n".join([*rows, ""])}
