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
from functools import partial
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import pick
from ..files import check_writable, read_yaml, to_json, write_atomically
from .check import CHAPTERS, CLASS, Solution, Varied, module_of, solutions
from .exercises import SOLUTION, Cell, Exercise, exercises, guide, rubric, source

ROOT = Path(__file__).parents[2]  # of a checkout, if the package is installed from one
IMPORT = re.compile(r"^import fedlearn as fl$", re.MULTILINE)
# a link of Markdown (a bracket behind a word is code) or of HTML
LINK = re.compile(
    r'(?<![\w!\])])\[([^\[\]]*)\]\(([^()\s]+)\)|<a href="([^"]+)">(.*?)</a>'
)
BEGIN = "import fedlearn as fl\n\nfl.book.course()"
STUDENT = 'student = ""  # your id, as your lecturer has it'
SEEDED = "import fedlearn as fl\n\nfl.book.course(student)"
COLUMNS = ("id", "student", "student_id")  # of a roster: one of them
ABOUT = (
    "Write each answer into its cell, and run all of them: a check "
    "says what is not yet right."
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


def is_check(node: Any) -> bool:
    """Is it a call of ``fl.check``?"""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "fl.check",
        "fedlearn.check",
    )


def asserted(source: str) -> str:
    """A check's cell with an ``assert`` in it: a marking program gives a cell that
    stops with an error no points, and any other all of them.

    What a cell shows nbgrader reads as a number of points, so the verdict is no longer
    shown.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(
            f"a cell with a check must be plain Python ({error.msg})."
        ) from None
    match body:
        case [ast.Expr(value=call)] if is_check(call):
            name = "verdict"
        case [ast.Assign([ast.Name(id=name)], call), ast.Expr(ast.Name(id=shown))] if (
            is_check(call) and shown == name
        ):
            pass
        case _:
            form = "`fl.check(..)`, or `x = fl.check(..)` above `x`"
            raise ValueError(f"a cell with a check must be {form}, not {source!r}.")
    return f"{name} = {ast.get_source_segment(source, call)}\nassert {name}, {name}"


# ---- pages ---------------------------------------------------------------------------


def linked(text: str, page: Path, pages: set[Path]) -> str:
    """A page's text; a link to what is not among the pages becomes its words."""

    def link(match: re.Match[str]) -> str:
        label = match[1] or match[4]
        target = match[2] or match[3]
        place = target.partition("#")[0]
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
        about: Cell = {"grade": False, "solution": False, "locked": True, "task": False}
        about |= grade | {"schema_version": 3, "grade_id": grade_id}
        cell["metadata"] = {"nbgrader": about | ({"points": points} if points else {})}
    return cell


def by_hand(exercise: Exercise, more: str = "") -> Cell:
    """The cell for what is answered on paper."""
    n = exercise.points
    text = (
        f"**Your answer** ({n} point{'s' * (n > 1)}, marked by "
        f"hand):\n\n*Write here.*{more}"
    )
    return new_cell(
        "markdown", text, exercise.name, n, grade=True, solution=True, locked=False
    )


def strip(notebook: dict[str, Any], page: Path, pages: set[Path]) -> dict[str, Any]:
    """A chapter (as parsed JSON) for students: a place for the answer where
    ``fl.solution`` showed what has no check, and nothing where it showed the rest."""
    cells = []
    paper = {e.name: e for e in exercises(notebook["cells"]) if e.check is None}
    for cell in notebook["cells"]:
        text = source(cell)
        if cell["cell_type"] == "markdown":
            text = linked(text, page, pages)
        elif cell["cell_type"] == "code" and (shown := SOLUTION.search(text)):
            text = SOLUTION.sub("", text).rstrip("\n")
            if not text:
                if exercise := paper.get(shown[1].strip("\"' ")):
                    cells.append(
                        by_hand(exercise) | {k: cell[k] for k in ("id",) if k in cell}
                    )
                continue
        if cell["cell_type"] == "code":
            text = IMPORT.sub("import fedlearn as fl\n\nfl.book.course()", text)
        cells.append({**cell, "source": text})
    return {**notebook, "cells": cells}


# ---- notebooks that are marked -------------------------------------------------------


def definitions(cells: list[Cell], words: set[str], answered: set[str]) -> list[str]:
    """The functions and classes of a chapter that an exercise names, and those that
    they need."""
    home: dict[str, str] = {}
    for cell in cells:
        lines = source(cell).split("\n")
        try:
            body = ast.parse("\n".join(lines)).body
        except SyntaxError:  # a command of IPython
            continue
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                first = min(part.lineno for part in (node, *node.decorator_list))
                home[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    needed: set[str] = set()
    while new := {w for w in words - answered if w in home} - needed:
        needed |= new
        words = {w for name in new for w in re.findall(r"\w+", home[name])}
    return [text for name, text in home.items() if name in needed]


def reference(exercise: Exercise, answer: Solution | None) -> str:
    """The code of a reference answer, under the name that the check takes."""
    if answer is None:
        return "# the reference answer: fedlearn classroom --instructor"
    taken = next(
        filter(is_check, ast.walk(ast.parse(source(exercise.check or {}))))
    ).args[1]  # type: ignore
    return answer.code + (
        "" if isinstance(taken, ast.Call) else f"\n{ast.unparse(taken)} = answer"
    )


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
        first = f"# BEGIN {head}"
        last = f"# END {head.split()[0]}"
        return [new_cell("raw", first), *cells, new_cell("raw", last)]

    if exercise.check:
        stub = [source(exercise.answer)] if exercise.answer else []
        text = "\n".join([*stub, begin, reference(exercise, answer), end])
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
    head = (
        f"QUESTION\nname: {name}\npoints: {points}\nmanual: "
        f"{str(not exercise.check).lower()}"
    )
    return block(head, new_cell("markdown", prompt), *cells)


def varied(name: str) -> Varied | None:
    """The test of an exercise, if its numbers may be a student's own."""
    test = (
        module_of(name).EXERCISES.get(name) if name.split("-")[0] in CHAPTERS else None
    )
    return test if isinstance(test, Varied) else None


def copy_of(
    notebook: dict[str, Any],
    stem: str,
    kind: str,
    answers: dict[str, Solution],
    seeded: bool = False,
) -> Any:
    """The assignment of a chapter, with its set-up and the reference answers; ``None``
    for a chapter without exercises."""
    asked = exercises(notebook["cells"])
    if not asked:
        return None
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    first = next((k for k, c in enumerate(code) if IMPORT.search(source(c))), -1) + 1
    prompts = [linked(e.prompt, Path(), set()) for e in asked]
    words = {*re.findall(r"\w+", " ".join(re.findall("`(.*?)`", " ".join(prompts))))}
    stubs = "\n".join(source(e.answer) for e in asked if e.answer)
    named = {*re.findall(r"^(?:def |class )?(\w+)", stubs, re.MULTILINE)}
    heading = re.search("^# (.*)", source(notebook["cells"][0]), re.MULTILINE)
    cells = [
        new_cell(
            "markdown", f"# {heading[1] if heading else stem}: exercises\n\n{ABOUT}"
        )
    ]
    if kind == "otter":
        tried = (
            bool(answers) and not seeded
        )  # reference answers belong to the book's numbers
        run = (
            f"run_tests: {str(tried).lower()}\ngenerate: "
            f"true\nexport_cell:\n  pdf: false"
        )
        cells.insert(0, new_cell("raw", f"# ASSIGNMENT CONFIG\nname: {stem}\n{run}"))
    setup = [*map(source, code[:first]), *definitions(code[first:], words, named)]
    cells += [new_cell("code", STUDENT)] * seeded
    begin = SEEDED if seeded else BEGIN
    for k, text in enumerate(setup):
        cells.append(new_cell("code", IMPORT.sub(begin, text), f"{stem}-setup-{k}"))
    for exercise, prompt in zip(asked, prompts, strict=True):
        if seeded and varied(exercise.name):
            text = "# your own numbers, in place of those in the text below\n"
            text += f'fl.book.given("{exercise.name}")'
            cells.append(new_cell("code", text, f"{exercise.name}-given"))
        cells += question(exercise, prompt, kind, answers.get(exercise.name))
    cells = [{"id": f"{stem}-{k:03}", **cell} for k, cell in enumerate(cells)]
    if kind == "otter":  # which has marks of its own
        cells = [cell | {"metadata": {}} for cell in cells]
    return {**notebook, "cells": cells}


# ---- students with numbers of their own ----------------------------------------------


def roster(path: str | Path) -> list[str]:
    """The students' ids in a CSV. Each is the name of a folder: of a student's copies,
    and of what was handed in."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)
        head, *rows = [*csv.reader(io.StringIO(text), delimiter=separator)] or [[]]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not in UTF-8: save it as CSV in UTF-8.") from None
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV ({error}).") from None
    names = [name.strip().lower().replace(" ", "_") for name in head]
    column = next((names.index(name) for name in COLUMNS if name in names), None)
    if column is None:
        raise ValueError(
            f"{path} has no column with the ids, named {' or '.join(COLUMNS)}."
        )
    ids: dict[str, str] = {}
    for line, row in enumerate(rows, 2):
        if not "".join(row).strip():
            continue
        name = unicodedata.normalize("NFC", "".join(row[column : column + 1])).strip()
        if not name:
            raise ValueError(f"{path} has no id in line {line}.")
        dots = "." in (name[0], name[-1])
        long = len(name.encode()) > 200
        if dots or long or not name.isprintable() or set(name) & set('/\\:*?"<>|'):
            raise ValueError(
                f"{path}: {name!r} in line {line} cannot be the name of a folder."
            )
        if name.casefold() in ids:
            raise ValueError(f"{path} has the id {name} twice, in line {line} again.")
        ids[name.casefold()] = name
    if not ids:
        raise ValueError(f"{path} has no students.")
    return [*ids.values()]


def numbers(students: list[str], names: list[str]) -> str:
    """For the lecturer: the numbers of each student and the right answers, as CSV."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["student", "exercise", "given", "answer"])
    before = CLASS.student
    for student in students:
        CLASS.student = student
        for name in names:
            if test := varied(name):
                parameters = test.given()
                right = inspect.getclosurevars(test.build(**parameters)).nonlocals[
                    "expected"
                ]
                values = ", ".join(f"{k} {v}" for k, v in parameters.items())
                rows.writerow([student, name, values, right])
    CLASS.student = before
    return text.getvalue()


# ---- the course ----------------------------------------------------------------------


def wheel(folder: Path) -> list[str]:
    """Build this package, if it is a checkout's, into ``folder``; the lines of a
    requirements.txt with it and with the versions that the book was made with."""
    if not (ROOT / "pyproject.toml").exists():
        return [f"fedlearn=={__version__}"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    with (
        tempfile.TemporaryDirectory() as place
    ):  # building leaves files beside the package
        for name in ("fedlearn", "data"):
            unwanted = shutil.ignore_patterns("__pycache__", "cache")
            shutil.copytree(ROOT / name, Path(place, name), ignore=unwanted)
        for name in ("pyproject.toml", project["readme"], *project["license-files"]):
            shutil.copy(ROOT / name, place)
        flags = (
            "wheel --no-deps --no-build-isolation --no-index --quiet --wheel-dir"
        ).split()
        command = [sys.executable, "-m", "pip", *flags, str(folder), place]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ValueError(f"The package cannot be built for the course: {last}")
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    pins = [
        f"{p['name']}=={p['version']}\n" for p in locked if "registry" in p["source"]
    ]
    (folder / "constraints.txt").write_text("".join(pins), encoding="utf-8")
    built = next(folder.glob("*.whl")).name
    return ["-c constraints.txt", f"./{built}[book]"]


def read(path: Path) -> dict[str, Any]:
    """A notebook; ``ValueError`` if it is none."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            source(cell), cell["cell_type"], cell.get("metadata", {}).get("nbgrader")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is no notebook ({error!r}).") from None
    return notebook


def chapters(folder: Path) -> dict[str, Path]:
    """The notebooks of a folder, by their names."""
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}.")
    paths = [p for p in sorted(folder.rglob("*.ipynb")) if kept(p.relative_to(folder))]
    if not paths:
        raise ValueError(f"There are no notebooks in {folder}.")
    named = {p.stem: p for p in paths}
    for path in paths:
        if named[path.stem] != path:
            raise ValueError(
                f"Two notebooks have the name {path.name}: give each its own."
            )
    return named


def kept(path: Path) -> bool:
    """Is a file of the book, with its path below the book's folder, one for
    students?"""
    return not any(part in LEFT_OUT or part.startswith(".") for part in path.parts)


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
    students = roster(seed_from) if seed_from else []
    one = Path(os.path.realpath(folder))
    other = check_writable(out / "a").parent
    if one == other or one in other.parents or other in one.parents:
        raise ValueError(
            f"The folders {folder} and {out} overlap; name one outside of the other."
        )
    notebooks = chapters(folder)
    texts = {}
    asked = {}
    files = {p.relative_to(folder): p for p in sorted(folder.rglob("*")) if p.is_file()}
    files = {name: path for name, path in files.items() if kept(name)}
    if students:  # are nobody else's business
        files = {
            name: path for name, path in files.items() if not path.samefile(seed_from)
        }
    answers = {
        n: s for c in CHAPTERS if instructor for n, s in solutions(c, folder).items()
    }
    for stem, path in notebooks.items():
        page = path.relative_to(folder)
        notebook = read(path)
        try:
            texts[page] = as_text(strip(notebook, page, {*files}))
            asked[page] = exercises(notebook["cells"])
            copied = copy_of(notebook, stem, kind, answers, bool(students))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if copied:
            name = f"{stem}/{stem}.ipynb" if kind == "nbgrader" else f"{stem}.ipynb"
            texts[Path(copies, name)] = as_text(copied)
    for page in (name for name in files if name.suffix == ".md"):
        texts[page] = linked(files[page].read_text(encoding="utf-8"), page, {*files})
    guides = folder / "teach"
    if kind == "nbgrader":
        texts[Path("nbgrader_config.py")] = NBGRADER
    if (guides / "students.md").exists():
        text = texts[Path("README.md")] = (guides / "students.md").read_text(
            encoding="utf-8"
        )
        if (page := Path("setup.md")) in texts:  # a course has no `make`
            begin = text[text.index("## ") :] + "\n"
            ways = r"^## Three ways.*?(?=^## )"
            texts[page] = re.sub(
                ways, lambda _: begin, texts[page], count=1, flags=re.M | re.S
            )
    for place in (folder.parent, ROOT):
        if (folder / "_toc.yml").exists() and (place / "_config.yml").exists():
            texts.setdefault(Path("_config.yml"), configuration(place / "_config.yml"))
    if instructor:
        texts |= {
            Path("instructor", n): t for n, t in guide(folder, asked, answers).items()
        }
        if students:
            names = [e.name for page in asked.values() for e in page]
            texts[Path("instructor", "numbers.csv")] = numbers(students, names)
    with tempfile.TemporaryDirectory() as built:
        extras = ["otter-grader>=7,<8"] if kind == "otter" else []
        texts[Path("requirements.txt")] = "\n".join([*wheel(Path(built)), *extras, ""])
        files |= {Path(p.name): p for p in Path(built).iterdir()}
        targets = {
            out / name: texts.get(name, files.get(name)) for name in {**files, **texts}
        }
        for path in targets:
            if (
                other not in (leads := check_writable(path)).parents
            ):  # a link, maybe to the source
                raise ValueError(f"{path} leads to {leads}, which is not in {out}.")
        existing = [str(path) for path in targets if path.exists()]
        if existing and not force:
            raise ValueError(
                f"{existing[0]} is there already; with --force it is written anew."
            )
        for path, content in targets.items():
            write_atomically(path, partial(fill, content))
    return [*targets]


def as_text(notebook: dict[str, Any]) -> str:
    """A notebook as Jupyter writes it, a line of a cell in a line of the file."""
    cells = [
        c | {"source": source(c).splitlines(keepends=True)} for c in notebook["cells"]
    ]
    return to_json({**notebook, "cells": cells}, indent=1, ensure_ascii=False) + "\n"


def fill(content: str | Path | None, target: Path) -> None:
    """Write a text, or copy a file."""
    if isinstance(content, Path):
        shutil.copyfile(content, target)
    else:
        target.write_text(content or "", encoding="utf-8")


def configuration(path: Path) -> str:
    """The book's configuration for Jupyter Book, without what needs the checkout
    around it."""
    import yaml

    config = read_yaml(path)
    for name in ("repository", "launch_buttons"):
        config.pop(name, None)
    extensions = config.get("sphinx", {}).get("local_extensions", {})
    for name in [*extensions]:
        extensions.pop(name)
        if kept(Path(f"{name}.py")):
            extensions[name] = "_ext"
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
