"""What every chapter must look like before it is run."""

import ast
import io
import tokenize
import tomllib
from pathlib import Path

import nbformat
import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
CHAPTERS = sorted(p for p in BOOK.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
MAX_LINES = 35
EVERY = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.relative_to(BOOK).as_posix())


def code_cells(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def test_there_are_chapters():
    assert CHAPTERS


@EVERY
def test_is_committed_without_outputs(path):
    for cell in code_cells(path):
        assert not cell.outputs and cell.execution_count is None, f"outputs in:\n{cell.source}"
    assert "widgets" not in nbformat.read(path, 4).metadata, "saved widget state"


@EVERY
def test_cells_have_unique_ids_and_the_plain_kernel(path):
    notebook = nbformat.read(path, 4)
    ids = [cell.get("id") for cell in notebook.cells]
    assert all(ids) and len(set(ids)) == len(ids)
    assert notebook.metadata.kernelspec.name == "python3"


def statements(cell):
    """Lines of code and comments; what the formatter breaks over several lines counts as one."""
    lines = [line for line in cell.source.splitlines() if not line.lstrip().startswith(("%", "!"))]
    tokens = tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline)
    code = sum(token.type == tokenize.NEWLINE for token in tokens)
    return code + sum(line.lstrip().startswith("#") for line in lines)


@EVERY
def test_code_cells_are_short(path):
    for cell in code_cells(path):
        assert statements(cell) <= MAX_LINES, f"more than {MAX_LINES} lines:\n{cell.source}"


@EVERY
def test_names_no_folder_relative_to_the_notebook(path):
    for cell in code_cells(path):
        assert "../" not in cell.source, (
            "paths are resolved by the package, never relative to the notebook"
        )


@EVERY
def test_has_one_parameters_cell_with_a_scale(path):
    tagged = [
        cell
        for cell in nbformat.read(path, 4).cells
        if "parameters" in cell.metadata.get("tags", [])
    ]
    assert len(tagged) == 1
    names = [
        t.id
        for node in ast.parse(tagged[0].source).body
        if isinstance(node, ast.Assign)
        for t in node.targets
    ]
    assert "scale" in names and "seed" in names


def test_every_folder_of_the_package_is_in_the_wheel():
    root = BOOK.parent
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(root) for path in (root / "fedlearn").rglob("*.py")}
    assert sorted(listed) == sorted(
        [*(".".join(folder.parts) for folder in folders), "fedlearn.bookdata"]
    )
