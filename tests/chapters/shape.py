"""How a chapter's code is counted, for the tests of its shape.

A *visible* cell is a code cell that is neither folded (tag ``hide-input``) nor the parameters nor
part of an exercise (tag ``exercise``). A *line* is one that is not blank. Lines of the *method* are
all visible lines but those of these statements at the top of a cell: imports, assertions, and bare
calls that show something (``fl.book``, ``fl.plot``, ``print``, ``display``, ``plt``).

    python tests/chapters/shape.py book/papers/rpn.ipynb       prints the numbers
"""

import ast
import re
import statistics
import sys
from dataclasses import dataclass

import nbformat

SHOWS = re.compile(r"(fl\.book\.|fl\.plot\.|print$|display$|plt\.|chapter$)")
HIDDEN = {"hide-input", "parameters", "exercise", "remove-input", "remove-cell"}


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def visible(notebook):
    return [c for c in code(notebook) if not HIDDEN & set(c.metadata.get("tags", []))]


def lines(source) -> int:
    return sum(bool(line.strip()) for line in source.splitlines())


def shows(statement) -> bool:
    """Is the statement an import, an assertion or a bare call that shows something?"""
    if isinstance(statement, ast.Expr):
        value = statement.value
        return bool(SHOWS.match(ast.unparse(value.func if isinstance(value, ast.Call) else value)))
    return isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert)


def other_lines(source) -> int:
    """Lines that show, check or import."""
    found = [ast.get_source_segment(source, s) for s in ast.parse(source).body if shows(s)]
    return sum(map(lines, found))


@dataclass(frozen=True)
class Shape:
    cells: int  # visible code cells
    median: float  # lines of a visible one
    longest: int
    widest: int  # columns, of all code
    share: float  # of the visible lines: the method
    words: int  # of prose


def shape(notebook) -> Shape:
    counts = [lines(c.source) for c in visible(notebook)]
    total = sum(counts)
    other = sum(other_lines(c.source) for c in visible(notebook))
    prose = " ".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    return Shape(
        len(counts),
        statistics.median(counts),
        max(counts),
        max(len(line) for c in code(notebook) for line in c.source.splitlines()),
        (total - other) / total,
        len(prose.split()),
    )


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(path, shape(nbformat.read(path, 4)))
