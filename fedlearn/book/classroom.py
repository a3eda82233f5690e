"""The class edition: a course for students, which is the book without its solutions.

Each chapter with exercises also has an assignment, a notebook that nbgrader or
otter-grader marks.
"""

import ast
import csv
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unicodedata
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import pick
from ..files import read_yaml, to_json, write_atomically
from .check import CHAPTERS, CLASS, Solution, Varied, module_of, solutions
from .exercises import (
    CHECKED,
    SOLUTION,
    Cell,
    Exercise,
    exercises,
    guide,
    rubric,
    source,
)

ROOT = Path(__file__).parents[2]  # of a checkout, if the package is installed from one
IMPORT = re.compile(r"^import fedlearn as fl$", re.MULTILINE)
# a link of Markdown (a bracket behind a word is code) or of HTML
LINK = re.compile(
    r'(?<![\w!\])])\[([^\[\]]*)\]\(([^()\s]+)\)|<a href="([^"]+)">(.*?)</a>'
)
# the way to the lecturer's page, which students do not need
LECTURERS = re.compile(
    r"^```{button-ref} teach\n.*?```\n|^ +- file: teach\n", re.M | re.S
)
BEGIN = "import fedlearn as fl\n\nfl.book.course()"
STUDENT = 'student = ""  # your id, as your lecturer has it'
SEEDED = "import fedlearn as fl\n\nfl.book.course(student)"
ABOUT = (
    "Write each answer into its cell, and run all of them: a check "
    "says what is not yet right."
)
# words of an exercise that speak of its page, which an assignment does not hold
OF_THE_PAGE = re.compile(r"\b(?:cells?|line|loop|Figure|Table)\b")
ON_THE_PAGE = (
    "*The cells and figures that this exercise speaks of are on the page "
    "`{page}`. Change and run them there, and answer here.*"
)
NBGRADER = """from nbgrader import preprocessors


class DeduplicateIds(preprocessors.DeduplicateIds):
    # nbgrader leaves empty metadata in the second half of a split cell, and stops there

    def preprocess_cell(self, cell, resources, index):
        cell, resources = super().preprocess_cell(cell, resources, index)
        if cell.metadata.get("nbgrader") == {}:
            del cell.metadata["nbgrader"]
        return cell, resources


c = get_config()
c.Autograde.sanitize_preprocessors = [
    preprocessors.ClearOutput,
    DeduplicateIds,
    preprocessors.OverwriteKernelspec,
    preprocessors.OverwriteCells,
    preprocessors.CheckCellMetadata,
]
c.ClearSolutions.code_stub = {"python": ""}  # the lines above the answer stay
c.ClearSolutions.text_stub = ""
c.OverwriteCells.add_missing_cells = True  # a check that a student removed is restored
c.Execute.timeout = 60  # seconds for a cell, which is then interrupted
c.Execute.interrupt_on_timeout = True
c.Execute.iopub_timeout = 60  # seconds that output may come late
"""
# files and folders of the book that a course does not need
LEFT_OUT = {
    "solutions",
    "teach",
    "teach.md",
    "_pdf.py",
    "_slides.py",
    "ruff.toml",
    "fl_fresh.py",
    "fl_launch.py",
    "__pycache__",
    "_build",
    "progress.csv",
}
# the folder of the assignments, and the lines around a reference answer
KINDS = {
    "nbgrader": ("source", "### BEGIN SOLUTION", "### END SOLUTION"),
    "otter": ("otter", "# BEGIN SOLUTION NO PROMPT", "# END SOLUTION"),
}


def asserted(source: str) -> str:
    """A check's cell with an ``assert`` in it: a marking program gives a cell that
    stops with an error no points, and any other all of them.

    What a cell shows nbgrader reads as a number of points, so the verdict is no longer
    shown.
    """
    check = CHECKED.fullmatch(source.strip())
    if check is None:
        form = '`fl.check("..", ..)`, or `x = fl.check("..", ..)` above `x`'
        raise ValueError(f"a cell with a check must be {form}, not {source!r}.")
    name = check["name"] or "verdict"
    return f"{name} = {check['call']}\nassert {name}, {name}"


# ---- pages ---------------------------------------------------------------------------


def linked(text: str, page: Path, pages: set[Path]) -> str:
    """A page's text; a link to what is not among the pages becomes its words."""

    def link(match: re.Match[str]) -> str:
        label = match[1] or match[4]
        target = match[2] or match[3]
        place, _, _ = target.partition("#")
        path = Path(os.path.normpath(page.parent / place)) if place else page
        return match[0] if re.match(r"[a-z]+:", target) or path in pages else label

    return LINK.sub(link, text)


def new_cell(
    kind: str, text: str, grade_id: str = "", points: int = 0, **grade: bool
) -> Cell:
    """A cell; with ``grade_id`` one that nbgrader knows, by default to be left as it
    is."""
    cell: Cell = {"cell_type": kind, "metadata": {}, "source": text}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    if grade_id:
        marks: Cell = {"grade": False, "solution": False, "locked": True, "task": False}
        marks |= grade | {"schema_version": 3, "grade_id": grade_id}
        cell["metadata"] = {"nbgrader": marks | ({"points": points} if points else {})}
    return cell


def by_hand(exercise: Exercise, below: str = "") -> Cell:
    """The cell for what is answered on paper."""
    n = exercise.points
    points = f"{n} point{'s' * (n > 1)}, marked by hand"
    text = f"**Your answer** ({points}):\n\n*Write here.*{below}"
    grade = {"grade": True, "solution": True, "locked": False}
    return new_cell("markdown", text, exercise.name, n, **grade)


def page_of(notebook: dict[str, Any], page: Path, pages: set[Path]) -> dict[str, Any]:
    """A chapter (as parsed JSON) for students: a place for the answer where
    ``fl.solution`` showed what has no check, and nothing where it showed the rest."""
    cells = []
    paper = {e.name: e for e in exercises(notebook["cells"]) if e.check is None}
    for cell in notebook["cells"]:
        text = source(cell)
        if cell["cell_type"] == "markdown":
            cells.append(cell | {"source": linked(text, page, pages)})
            continue
        solution = SOLUTION.search(text)
        code = IMPORT.sub(BEGIN, SOLUTION.sub("", text).rstrip("\n"))
        if code or not solution:
            cells.append(cell | {"source": code})
        elif solution[1] in paper:
            cells.append(
                by_hand(paper[solution[1]]) | {"id": cell.get("id", solution[1])}
            )
    return {**notebook, "cells": cells}


# ---- notebooks that are marked -------------------------------------------------------


def definitions(cells: list[Cell], words: set[str], answered: set[str]) -> list[str]:
    """The functions and classes of a chapter that an exercise names, and those that
    they need, imported names among them."""
    home: dict[str, str] = {}
    for cell in cells:
        lines = source(cell).split("\n")
        with suppress(SyntaxError):  # a command of IPython
            for node in ast.parse(source(cell)).body:
                if isinstance(node, ast.ImportFrom):
                    text = ast.unparse(node)
                    home |= {alias.asname or alias.name: text for alias in node.names}
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    first = min(part.lineno for part in (node, *node.decorator_list))
                    home[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    needed: set[str] = set()
    new = words & home.keys() - answered
    while new:
        needed |= new
        words = set(re.findall(r"\w+", " ".join(home[name] for name in new)))
        new = words & home.keys() - answered - needed
    # an import of several names comes once
    return [*dict.fromkeys(text for name, text in home.items() if name in needed)]


def reference(check: Cell, answer: Solution | None) -> str:
    """The code of a reference answer, under the name that the check takes."""
    if answer is None:
        return "# the reference answer: fedlearn classroom --instructor"
    call = CHECKED.fullmatch(source(check).strip())
    if call is None or call["answer"].endswith("()"):
        return answer.code
    return f"{answer.code}\n{call['answer']} = answer"


def question(
    exercise: Exercise, prompt: str, kind: str, answer: Solution | None
) -> list[Cell]:
    """The cells of an exercise: what is asked, the place for the answer, and the
    check."""
    _, begin, end = KINDS[kind]
    name = exercise.name
    points = exercise.points

    def block(head: str, *cells: Cell) -> list[Cell]:
        if kind != "otter":
            return [*cells]
        first, _, _ = head.partition("\n")
        raw = [
            new_cell("raw", f"# {word}") for word in (f"BEGIN {head}", f"END {first}")
        ]
        return [raw[0], *cells, raw[1]]

    if exercise.check:
        stub = [source(exercise.answer)] if exercise.answer else []
        code = reference(exercise.check, answer)
        text = "\n".join([*stub, begin, code, end])
        cell = new_cell("code", text, name, solution=True, locked=False)
        check = asserted(source(exercise.check))
        test = new_cell("code", check, f"{name}-check", points, grade=True)
        cells = [*block("SOLUTION", cell), *block("TESTS", test)]
    elif kind == "otter":
        notes = new_cell("markdown", rubric(exercise, answer))
        cells = [*block("PROMPT", by_hand(exercise)), *block("SOLUTION", notes)]
    else:
        region = ["", "", begin, rubric(exercise, answer), end]
        cells = [by_hand(exercise, "\n".join(region))]
    manual = str(not exercise.check).lower()
    head = f"QUESTION\nname: {name}\npoints: {points}\nmanual: {manual}"
    return block(head, new_cell("markdown", prompt), *cells)


def varied(name: str) -> Varied | None:
    """The test of an exercise, if its numbers may be a student's own."""
    if name.split("-")[0] not in CHAPTERS:
        return None
    test = module_of(name).EXERCISES.get(name)
    return test if isinstance(test, Varied) else None


def prompt_of(exercise: Exercise, page: Path) -> str:
    """What an assignment asks: the text of an exercise, and where its cells are."""
    text = linked(exercise.prompt, Path(), set())
    if OF_THE_PAGE.search(text):
        text += f"\n\n{ON_THE_PAGE.format(page=page.as_posix())}"
    return text


def assignment(
    notebook: dict[str, Any],
    page: Path,
    kind: str,
    answers: dict[str, Solution],
    seeded: bool,
) -> dict[str, Any]:
    """The assignment of a chapter with exercises: its set-up, and the exercises with
    the reference answers."""
    questions = exercises(notebook["cells"])
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    first = next((k for k, c in enumerate(code, 1) if IMPORT.search(source(c))), 0)
    written = " ".join(e.prompt for e in questions if e.check)
    quoted = " ".join(re.findall("`(.*?)`", written))
    stubs = "\n".join(source(e.answer) for e in questions if e.answer)
    answered = {*re.findall(r"^(?:def |class )?(\w+)", stubs, re.MULTILINE)}
    helpers = definitions(code[first:], {*re.findall(r"\w+", quoted)}, answered)
    heading = re.search("^# (.*)", source(notebook["cells"][0]), re.MULTILINE)
    stem = page.stem
    title = heading[1] if heading else stem
    cells = [new_cell("markdown", f"# {title}: exercises\n\n{ABOUT}")]
    if kind == "otter":
        # reference answers belong to the book's numbers
        tested = str(bool(answers) and not seeded).lower()
        text = f"# ASSIGNMENT CONFIG\nname: {stem}\nrun_tests: {tested}\n"
        text += "generate: true\nexport_cell:\n  pdf: false"
        cells.insert(0, new_cell("raw", text))
    if seeded:
        cells.append(new_cell("code", STUDENT))
    begin = SEEDED if seeded else BEGIN
    for k, text in enumerate([*map(source, code[:first]), *helpers]):
        cells.append(new_cell("code", IMPORT.sub(begin, text), f"{stem}-setup-{k}"))
    for e in questions:
        if seeded and varied(e.name):
            text = "# your own numbers, in place of those in the text below\n"
            text += f'fl.book.given("{e.name}")'
            cells.append(new_cell("code", text, f"{e.name}-given"))
        cells += question(e, prompt_of(e, page), kind, answers.get(e.name))
    for k, cell in enumerate(cells):
        cell["id"] = f"{stem}-{k:03}"
        if kind == "otter":  # which has marks of its own
            cell["metadata"] = {}
    return {**notebook, "cells": cells}


# ---- students with numbers of their own ----------------------------------------------


def roster(path: str | Path) -> list[str]:
    """The students' ids in a CSV. Each is the name of a folder: of a student's copies,
    and of what was handed in."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not in UTF-8: save it as CSV in UTF-8.") from None
    separator = max(",;\t", key=text.partition("\n")[0].count)
    rows = csv.DictReader(io.StringIO(text), delimiter=separator)
    if "id" not in (rows.fieldnames or ()):
        raise ValueError(f"{path} has no column with the ids, named id.")
    names = (unicodedata.normalize("NFC", row["id"] or "") for row in rows)
    students = [name.strip() for name in names]
    if not students:
        raise ValueError(f"{path} has no students.")
    before = set()
    for name in students:
        if not name:
            raise ValueError(f"{path} has a row without an id.")
        dots = "." in (name[0], name[-1])
        long = len(name.encode()) > 200
        if dots or long or not name.isprintable() or set(name) & set('/\\:*?"<>|'):
            raise ValueError(f"{path}: {name!r} cannot be the name of a folder.")
        if name.casefold() in before:
            raise ValueError(f"{path} has the id {name} twice.")
        before.add(name.casefold())
    return students


def numbers(students: list[str], names: list[str]) -> str:
    """For the lecturer: the numbers of each student and the right answers, as CSV."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["student", "exercise", "given", "answer"])
    tests = {name: test for name in names if (test := varied(name))}
    before = CLASS.student
    for student in students:
        CLASS.student = student
        for name, test in tests.items():
            drawn = test.draw()
            right = inspect.getclosurevars(test.build(**drawn)).nonlocals["expected"]
            values = ", ".join(f"{key} {value}" for key, value in drawn.items())
            rows.writerow([student, name, values, right])
    CLASS.student = before
    return text.getvalue()


# ---- the course ----------------------------------------------------------------------


def wheel(folder: Path) -> list[str]:
    """Build this package, if it is a checkout's, into ``folder``; the lines of a
    requirements.txt with it and with the versions that the book was made with."""
    if not (ROOT / "pyproject.toml").exists():
        return [f"fedlearn=={__version__}"]
    with tempfile.TemporaryDirectory() as place:  # building leaves files behind
        unwanted = shutil.ignore_patterns("__pycache__", "cache")
        for name in ("fedlearn", "data"):
            shutil.copytree(ROOT / name, Path(place, name), ignore=unwanted)
        for path in ROOT.glob("[!.]*"):
            if path.is_file():
                shutil.copy(path, place)
        flags = "--no-deps --no-build-isolation --no-index --quiet --wheel-dir".split()
        command = [sys.executable, "-m", "pip", "wheel", *flags, str(folder), place]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise ValueError(f"The package cannot be built for the course: {last}")
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    pins = [
        f"{package['name']}=={package['version']}\n"
        for package in lock["package"]
        if "registry" in package["source"]
    ]
    (folder / "constraints.txt").write_text("".join(pins), encoding="utf-8")
    built = next(folder.glob("*.whl")).name
    return ["-c constraints.txt", f"./{built}[book]"]


def read(path: Path) -> dict[str, Any]:
    """A notebook; ``ValueError`` if it is none."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        return notebook | {"cells": list(notebook["cells"])}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no notebook ({error!r}).") from None


def chapters(files: dict[Path, Path]) -> dict[str, Path]:
    """The notebooks among the files of a book, by their names."""
    pages: dict[str, Path] = {}
    for page in files:
        if page.suffix == ".ipynb":
            if page.stem in pages:
                raise ValueError(f"Two notebooks have the name {page.name}.")
            pages[page.stem] = page
    if not pages:
        raise ValueError("There are no notebooks in the folder of the book.")
    return pages


def is_public(path: Path) -> bool:
    """Is a file of the book, with its path below the book's folder, one for
    students?"""
    return not any(part in LEFT_OUT or part.startswith(".") for part in path.parts)


def front(folder: Path, texts: dict[Path, str]) -> dict[Path, str]:
    """The course's README, its page on the set-up, since a course has no ``make``, and
    its first page and contents, without the lecturer's page."""
    setup, index, toc = Path("setup.md"), Path("index.md"), Path("_toc.yml")
    readme = (folder / "teach" / "students.md").read_text(encoding="utf-8")
    begin = readme[readme.index("## ") :]
    ways = re.compile(r"^## Three ways.*?(?=^## )", re.MULTILINE | re.DOTALL)
    contents = (folder / toc).read_text(encoding="utf-8")
    return {
        Path("README.md"): readme,
        setup: ways.sub(lambda _: f"{begin}\n", texts[setup], count=1),
        index: LECTURERS.sub("", texts[index]),
        toc: LECTURERS.sub("", contents),
    }


def make(
    folder: str | Path,
    out: str | Path,
    force: bool = False,
    kind: str = "nbgrader",
    instructor: bool = False,
    seed_from: str | Path = "",
) -> list[Path]:
    """Write a course into a folder and return the paths of its files.

    Parameters
    ----------
    folder : path
        The book. Its pages become the students' pages, which build by themselves.
    out : path
        The course, outside of ``folder``.
    force : bool
        Write over existing files. Without it they are refused.
    kind : str
        The program that marks the assignments: "nbgrader" or "otter".
    instructor : bool
        Also write the reference answers, into a folder of that name and into the
        assignments.
    seed_from : path
        A roster. With it the numbers of exercises differ by student.
    """
    folder = Path(folder)
    out = Path(out)
    copies, *_ = pick(kind, KINDS, "kind of course")
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}.")
    students = roster(seed_from) if seed_from else []
    book = folder.resolve()
    course = out.resolve()
    if book.is_relative_to(course) or course.is_relative_to(book):
        raise ValueError(
            f"The folders {folder} and {out} overlap; name one outside of the other."
        )
    private = [Path(seed_from).resolve()] if seed_from else []
    files = {
        path.relative_to(folder): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.resolve() not in private
    }
    files = {name: path for name, path in files.items() if is_public(name)}
    answers: dict[str, Solution] = {}
    for chapter in CHAPTERS if instructor else ():
        answers |= solutions(chapter, folder)
    texts = {}
    questions = {}
    for stem, page in chapters(files).items():
        notebook = read(files[page])
        try:
            texts[page] = as_text(page_of(notebook, page, {*files}))
            questions[page] = exercises(notebook["cells"])
            if questions[page]:
                graded = assignment(notebook, page, kind, answers, bool(students))
                name = f"{stem}/{stem}.ipynb" if kind == "nbgrader" else f"{stem}.ipynb"
                texts[Path(copies, name)] = as_text(graded)
        except ValueError as error:
            raise ValueError(f"{files[page]}: {error}") from None
    for page, path in files.items():
        if page.suffix == ".md":
            texts[page] = linked(path.read_text(encoding="utf-8"), page, {*files})
    if kind == "nbgrader":
        texts[Path("nbgrader_config.py")] = NBGRADER
    if (folder / "teach").exists():
        texts |= front(folder, texts)
    if (folder / "_toc.yml").exists():
        configs = [place / "_config.yml" for place in (folder.parent, ROOT)]
        texts[Path("_config.yml")] = configuration(next(filter(Path.exists, configs)))
    if instructor:
        guides = guide(folder, questions, answers)
        if students:
            names = [e.name for page in questions.values() for e in page]
            guides["numbers.csv"] = numbers(students, names)
        texts |= {Path("instructor", name): text for name, text in guides.items()}
    contents = {name: path.read_bytes() for name, path in files.items()}
    with tempfile.TemporaryDirectory() as built:
        extras = ["otter-grader>=7,<8"] if kind == "otter" else []
        texts[Path("requirements.txt")] = "\n".join([*wheel(Path(built)), *extras, ""])
        contents |= {Path(p.name): p.read_bytes() for p in Path(built).iterdir()}
    contents |= {name: text.encode() for name, text in texts.items()}
    for page in contents:
        path = out / page
        if not path.resolve().is_relative_to(course):  # a link, maybe to the book
            raise ValueError(
                f"{path} leads to {path.resolve()}, which is not in {out}."
            )
        if path.exists() and not force:
            raise ValueError(
                f"{path} is there already; with --force it is written anew."
            )
    for page, content in contents.items():
        write_atomically(out / page, partial(Path.write_bytes, data=content))
    return [out / page for page in contents]


def as_text(notebook: dict[str, Any]) -> str:
    """A notebook as Jupyter writes it, a line of a cell in a line of the file."""
    cells = [
        cell | {"source": source(cell).splitlines(keepends=True)}
        for cell in notebook["cells"]
    ]
    return to_json({**notebook, "cells": cells}, indent=1, ensure_ascii=False) + "\n"


def configuration(path: Path) -> str:
    """The book's configuration for Jupyter Book, without what needs the checkout
    around it."""
    import yaml

    config = read_yaml(path)
    config.pop("repository", None)
    config.pop("launch_buttons", None)
    extensions = config["sphinx"]["local_extensions"]
    names = [name for name in extensions if is_public(Path(f"{name}.py"))]
    config["sphinx"]["local_extensions"] = dict.fromkeys(names, "_ext")
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
