"""Every chapter before it is run: plain Markdown, one idea a cell, figures and tables by calls,
parameters that papermill finds. Whole chapters are executed with other parameters by nbval
(``other.py``), and with their own when the book is built."""

import ast
import json
import re
import tomllib
from pathlib import Path

import nbformat
import other
import pytest
import yaml

from fedlearn.book.check import CHAPTERS as EXERCISES
from fedlearn.book.check import empty, module_of, solutions

BOOK = Path(__file__).resolve().parents[2] / "book"
CHAPTERS = {
    p.relative_to(BOOK).as_posix(): nbformat.read(p, 4) for p in other.chapters()
}
EVERY = pytest.mark.parametrize("name", CHAPTERS)
AUDITS = [name for name in CHAPTERS if name.endswith("_audit.ipynb")]
LESSONS = [name.replace("_audit", "") for name in AUDITS]
WORDS, CELLS, MOST_FIGURES, MOST_TABLES = 2500, 35, 6, 4  # of a lesson
START = [name for name in CHAPTERS if name.startswith("start/")]  # before the chapters
RAW = (  # a role, a directive, a label, an equation's label, a reference by name
    r"\{[a-z:]+\}`",
    r"^(`{3,}|:{3,})\s*\{",
    r"^\([\w-]+\)=\s*$",
    r"\$\$\s*\([\w-]+\)\s*$",
    r"\{(numref|eq|ref|doc|term|cite)",
)
TABLES = ("table", "runs", "opening", "holds")


HIDDEN = {"hide-input", "parameters", "exercise", "remove-input", "remove-cell"}


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def visible(notebook):
    return [c for c in code(notebook) if not HIDDEN & set(c.metadata.get("tags", []))]


def prose(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


def family(name):
    """A lesson and its audit have their exercises in common."""
    return Path(name).stem.removesuffix("_audit")


def lab_calls(notebook):
    """The calls of ``fl.book`` and ``fl.explore`` in the order of the chapter, and their names."""
    for cell in code(notebook):
        calls = [
            node
            for node in ast.walk(ast.parse(cell.source))
            if isinstance(node, ast.Call)
        ]
        for node in sorted(calls, key=lambda n: (n.lineno, n.col_offset)):
            if re.fullmatch(r"fl\.(book\.\w+|explore)", ast.unparse(node.func)):
                yield node.func.attr, node


def number(call):
    keywords = [k.value for k in call.keywords if k.arg == "number"]
    first = (keywords or call.args or [None])[0]
    return str(first.value) if isinstance(first, ast.Constant) else ""


@EVERY
def test_is_committed_without_outputs_and_with_the_plain_kernel(name):
    notebook = CHAPTERS[name]
    assert notebook.metadata["fedlearn"] == {"edition": 2}
    assert "widgets" not in notebook.metadata
    assert notebook.metadata.kernelspec.name == "python3"
    assert "seed" in other.parameters(BOOK / name), "nbval sets it"
    ids = [cell.get("id") for cell in notebook.cells]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    for cell in code(notebook):
        assert not cell.outputs
        assert cell.execution_count is None, f"outputs in:\n{cell.source}"
        assert "../" not in cell.source, cell.source
        folded = {"hide-input", "remove-input"} & {*cell.metadata.get("tags", [])}
        assert bool(folded) == bool(
            cell.metadata.get("jupyter", {}).get("source_hidden")
        ), cell.source
    for cell in visible(notebook) if name not in START else ():
        assert "plt." not in cell.source
        assert "pd." not in cell.source, cell.source


@EVERY
def test_is_plain_markdown_whose_links_lead_to_files(name):
    for text in prose(CHAPTERS[name]):
        plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for pattern in RAW:
            searched = plain if pattern == RAW[0] else text
            assert not re.search(pattern, searched, flags=re.MULTILINE), (
                f"{pattern} in\n{text[:200]}"
            )
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            if not re.match(r"[a-z]+:", link):
                assert ((BOOK / name).parent / link).exists(), link


@pytest.mark.parametrize("name", other.PROSE)
def test_the_words_that_are_held_stand_in_the_chapter(name):
    """``other.py`` evaluates what they say; here no entry outlives its sentence."""
    text = " ".join(" ".join(prose(CHAPTERS[f"{name}.ipynb"])).split())
    sentences = [words for words in other.PROSE[name] if words]
    assert not [words for words in sentences if words not in text]
    assert len(sentences) <= 15


@EVERY
def test_figures_and_tables_are_numbered_in_order(name):
    """Figure 4.1, 4.2, ... in the fourth numbered chapter, A.1, ... in the appendix; and no number
    in the prose is stale."""
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text())
    order = [
        c["file"] for p in toc["parts"] if p.get("numbered") for c in p["chapters"]
    ]
    chapter = name.removesuffix(".ipynb")
    k = order.index(chapter) + 1 if chapter in order else "A"  # the appendix
    if name in AUDITS:
        k = f"{order.index(chapter.removesuffix('_audit')) + 1}A"
    numbered = {"Figure": [], "Table": []}
    for call, node in lab_calls(CHAPTERS[name]):
        kind = "Table" if call in TABLES else "Figure"
        if re.fullmatch(r"[\dA-Z]+\.\d+", number(node)):
            numbered[kind].append(number(node))
    for kind, numbers in numbered.items():
        assert numbers == [f"{k}.{i + 1}" for i in range(len(numbers))], (kind, numbers)
    text = "\n".join(prose(CHAPTERS[name]))
    for kind, n in re.findall(rf"(Figure|Table) ({k}\.\d+)", text):
        assert n in numbered[kind], f"{kind} {n} is named and is not there"
    tags = re.findall(r"\\tag\{([\dA-Z.]+)\}", text)
    assert tags == [f"{k}.{i + 1}" for i in range(len(tags))]
    for n in re.findall(rf"(?:Eq\. )?\(({k}\.\d+)\)", text):
        assert n in tags, f"equation ({n}) is named and is not there"


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_45_minutes(name):
    """Words, cells, figures and tables within their bounds, and what belongs to a lesson."""
    notebook = CHAPTERS[name]
    calls = [call for call, _ in lab_calls(CHAPTERS[name])]
    text = re.sub(
        r"```.*?```|\$\$.*?\$\$", "", "\n".join(prose(notebook)), flags=re.DOTALL
    )
    assert len(text.split()) <= WORDS
    assert len(code(notebook)) - 3 <= CELLS
    tables = sum(call in TABLES for call in calls)
    numbered_calls = [
        n for _, n in lab_calls(notebook) if re.match(r"\d+\.", number(n))
    ]
    assert tables <= MOST_TABLES
    assert len(numbered_calls) - tables <= MOST_FIGURES
    [verdict] = re.findall(r"^## The verdict\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    lines = re.findall(r"^> (\*\*.+)$", verdict, re.M)
    words = re.sub(r"\]\(.*?\)", "]", " ".join(lines))
    assert len(lines) == 3
    assert len(words.split()) <= 90
    assert len(re.findall("★", text)) >= 3
    assert len(re.findall(r"[Pp]redict, (then move|change, run)", text)) >= 2


@EVERY
def test_exercises_have_an_empty_answer_a_check_and_a_solution(name):
    cells = CHAPTERS[name].cells
    chapter = family(name)
    siblings = [n for n in CHAPTERS if family(n) == family(name)]
    text = "\n".join(c.source for n in siblings for c in CHAPTERS[n].cells)
    solved = re.findall(r'fl\.solution\("([\w-]+)"\)', text)
    checked = re.findall(r'fl\.check\("([\w-]+)"', text)
    assert set(solved) == set(solutions(chapter)), "solutions shown and written"
    exercises = module_of(f"{chapter}-x").EXERCISES if chapter in EXERCISES else {}
    assert set(checked) == set(exercises) <= set(solved)
    for k, cell in enumerate(cells):
        grade = cell.metadata.get("nbgrader", {})
        if grade.get("solution"):
            assert "your" in cell.source
            assert "..." in cell.source
            assert (
                cells[k + 1].metadata["nbgrader"]["grade_id"]
                == grade["grade_id"] + "-check"
            )
            namespace = {"__name__": "__main__"}
            exec(
                compile(f"import fedlearn as fl\n{cell.source}", name, "exec"),
                namespace,
            )
            answers = {
                n: v for n, v in namespace.items() if n != "fl" and n[:2] != "__"
            }
            blank = [
                n
                for n, v in answers.items()
                if empty(v() if isinstance(v, type) else v)
            ]
            assert blank, f"{list(answers)} is answered already"


def test_every_folder_of_the_package_is_in_the_wheel():
    root = BOOK.parent
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]
    folders = {
        path.parent.relative_to(root) for path in (root / "fedlearn").rglob("*.py")
    }
    folders = {".".join(folder.parts) for folder in folders}
    assert {*listed} == {*folders, "fedlearn.bookdata"}


def test_the_last_bits_are_those_of_the_files():
    page = (BOOK / "appendix" / "how_we_measure.md").read_text(encoding="utf-8")
    files = (
        BOOK.parent / "data" / "results" / f"{name}_cpu.json"
        for name in ("bits", "repeats")
    )
    bits, repeats = (
        json.loads(file.read_text(encoding="utf-8"))["rows"] for file in files
    )
    small = sum(row["gap"] < 1e-6 for row in bits)
    assert f"In {small} of the {len(bits)} comparisons" in page
    for method in ("fedavg", "stc", "dgc"):
        assert (
            f"{max(row['gap'] for row in bits if row['method'] == method):.3f}" in page
        )
    away = [100 * abs(row["here"] - row["stored"]) for row in repeats]
    assert f"We repeated {len(away)} stored runs" in page
    assert f"{sum(gap <= 0.5 for gap in away)} end within half a point" in page
    assert f"{max(away):.1f} points" in page
    assert f"by up to {100 * max(row['single'] for row in repeats):.0f}." in page
