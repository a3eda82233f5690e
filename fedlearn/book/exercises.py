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
SOLUTION = re.compile(r"^(?:fl|fedlearn)\.solution\([\"'](.*)[\"']\)[ \t]*\n?", re.M)
# `fl.check("exercise", answer)`, or `x = fl.check("exercise", answer)` above `x`
CHECKED = re.compile(
    r"(?:(?P<name>\w+) = )?"
    r"(?P<call>(?:fl|fedlearn)\.check\(\s*[\"'](?P<exercise>[\w-]+)[\"'],"
    r"\s*(?P<answer>.*?),?\s*\))(?:\n(?P=name))?",
    re.DOTALL,
)
PROMPT = re.compile("^(?:> ★|#{2,4} Exercise)", re.MULTILINE)


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
        stars = re.search("★+", self.prompt)
        return len(stars[0]) if stars else 1


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def exercises(cells: Iterable[Cell]) -> list[Exercise]:
    """The exercises of a chapter, in its order; ``ValueError`` for one that lost its
    check, or has no text of its own."""
    questions: list[Exercise] = []
    prompt = ""
    answers = {}
    checked = set()
    for cell in cells:
        text = source(cell).strip()
        grade = cell.get("metadata", {}).get("nbgrader", {})
        name = grade.get("grade_id", "").removesuffix("-check")
        if cell["cell_type"] == "markdown":
            starts = [match.start() for match in PROMPT.finditer(text)]
            prompt = text[starts[-1] :] if starts else prompt
        elif grade.get("solution"):
            answers[name] = cell
        elif grade.get("grade"):
            questions.append(Exercise(name, prompt, answers.pop(name, None), cell))
        elif call := CHECKED.fullmatch(text):
            checked.add(call["exercise"])
        elif (solution := SOLUTION.fullmatch(text)) and solution[1] not in checked:
            if solution[1] not in [question.name for question in questions]:
                questions.append(Exercise(solution[1], prompt))
    for name in answers:
        if name.split("-")[0] in CHAPTERS:
            raise ValueError(
                f"the answer {name} has no check, which would be the cell {name}-check."
            )
    texts = [question.prompt for question in questions]
    for k, question in enumerate(questions):
        if not question.prompt or question.prompt in texts[:k]:
            raise ValueError(f"the exercise {question.name} has no text of its own.")
    return questions


# ---- for the lecturer ----------------------------------------------------------------


def rubric(exercise: Exercise, answer: Solution | None) -> str:
    """How an exercise on paper is marked, with its answer."""
    if answer is None:
        return "How to mark this: fedlearn classroom --instructor"
    text = " ".join(answer.text.partition("A good answer")[2].split())
    parts = re.findall(
        r"\(\d\) (.*?)[.;,]?(?:\. [A-Z].*?)?(?= (?:and )?\(\d\)|$)", text
    )
    parts = parts or re.findall(r"\([a-g]\)", exercise.prompt)
    rows = [f"* {part}" for part in parts or ("what happens, or is true", "why")]
    share = f"{exercise.points} points, in equal shares for:"
    return "\n".join([share, "", *rows, "", answer.text])


def mistakes(test: Any) -> str:
    """The wrong answers that a check of a number knows, or the code of a check."""
    if isinstance(test, Varied):
        test = test.build(**test.draw())
    wrong = inspect.getclosurevars(test).nonlocals.get("wrong")
    if wrong:
        return "\n".join(f"* {reason}" for reason in wrong.values())
    return f"```python\n{inspect.getsource(test)}```"


def section(exercise: Exercise, page: Path, answer: Solution) -> str:
    """An exercise in the lecturer's list."""
    marker = "its check" if exercise.check else "hand"
    head = f"*{page.stem}; {exercise.points} points, marked by {marker}.*"
    parts = [f"## {exercise.name}", head]
    if exercise.check:
        test = module_of(exercise.name).EXERCISES[exercise.name]
        code = f"```python\n{answer.code}\n```"
        parts += [answer.text, code, "Its check:", mistakes(test)]
    else:
        parts.append(rubric(exercise, answer))
    return "\n\n".join(parts) + "\n"


def guide(
    book: Path, exercises: dict[Path, list[Exercise]], answers: dict[str, Solution]
) -> dict[str, str]:
    """The files for the lecturer, by their names. ``exercises`` are those of each
    page."""
    names = {"lecturer.md": "README.md", "_slides.py": "slides.py"}
    paths = [*(book / "teach").glob("[a-z]*.*"), *book.glob("_slides.py")]
    texts = {names.get(p.name, p.name): p.read_text(encoding="utf-8") for p in paths}
    texts.pop("students.md", None)
    for plans in book.glob("teach.md"):  # a folder below its pages and the slides
        text = plans.read_text(encoding="utf-8").replace("](", "](../")
        texts[plans.name] = text.replace('href="', 'href="../_build/html/')
    rows = ["exercise,page,points,marked"]
    for page, questions in exercises.items():
        for e in questions:
            if e.name in answers:
                marker = "by its check" if e.check else "by hand"
                rows.append(f"{e.name},{page},{e.points},{marker}")
                chapter = e.name.split("-")[0]
                name = f"solutions/{chapter}.md"
                before = texts.get(name, f"# {chapter}\n")
                texts[name] = f"{before}\n{section(e, page, answers[e.name])}"
    return texts | {"exercises.csv": "\n".join([*rows, ""])}
