"""The class edition: the chapters with every solution taken out at the source, so that no copy of
it is published, and with checks that stop where an answer is not right."""

import ast
import os
import re
from pathlib import Path
from typing import Any

from ..files import check_writable, from_json, to_json, write_text
from .check import CHAPTERS

SHOWS = re.compile(r"^(?:fl|fedlearn)\.solution\(.*\)[ \t]*\n?", re.MULTILINE)
CHECKS = re.compile(r"\b(?:fl|fedlearn)\.check\(")


def is_check(node: Any) -> bool:
    """Is it a call of ``fl.check``?"""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("fl.check", "fedlearn.check")


def asserted(source: str) -> str:
    """A cell with an ``assert`` behind each check: nbgrader gives a cell that stops with an error
    no points, and any other all of them.

    What a cell shows it reads as a number of points, so the verdict is no longer shown.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"a cell with a check must be plain Python ({error.msg}).") from None
    lines, done = source.split("\n"), set()
    names: dict[ast.Expr | ast.Assign, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=call) if is_check(call):
                done.add(call)
            case ast.Expr(value=call) if is_check(call):
                names[node] = "verdict"
            case ast.Assign(targets=[ast.Name(id=name)], value=call) if is_check(call):
                names[node] = name
    match tree.body:
        case [*_, ast.Expr(value=ast.Name(id=name), col_offset=0) as last]:
            if name in names.values():
                del lines[last.lineno - 1]
    for own in sorted(names, key=lambda node: -node.lineno):  # from below: lines are added
        line, name = lines[own.lineno - 1], names[own]
        indent, code = line[: own.col_offset], line[own.col_offset :]
        if indent.strip():
            continue
        if isinstance(own, ast.Expr):
            lines[own.lineno - 1] = f"{indent}{name} = {code}"
        lines.insert(own.end_lineno or own.lineno, f"{indent}assert {name}, {name}")
        done.add(own.value)
    for part in ast.walk(tree):
        if is_check(part) and part not in done:
            text = ast.unparse(part)
            raise ValueError(f"{text} must be a line of its own, as it is or behind `name =`.")
    return "\n".join(lines)


def without_check(cells: list[dict[str, Any]]) -> list[str]:
    """The book's exercises with an answer that is marked by a check, but no check."""
    marks = [cell.get("metadata", {}).get("nbgrader", {}) for cell in cells]
    graded = {mark["grade_id"] for mark in marks if mark.get("grade")}
    answers = [mark["grade_id"] for mark in marks if mark.get("solution")]
    return [
        name
        for name in answers
        if name.split("-")[0] in CHAPTERS and not {name, f"{name}-check"} & graded
    ]


def strip(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook (as parsed JSON) without the cells that show a solution with ``fl.solution``, and
    with its checks asserted.

    The chapters hold no other solution: their answer cells are empty. ``ValueError`` for a check
    that cannot be asserted, and for an exercise that lost its check.
    """
    cells = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and SHOWS.search(source):
            source = SHOWS.sub("", source).rstrip("\n")
            if not source:
                continue
        if cell["cell_type"] == "code" and CHECKS.search(source):
            source = asserted(source)
        cells.append({**cell, "source": source.splitlines(keepends=True)})
    for name in without_check(cells):
        raise ValueError(f"the answer {name} has no check, which would be the cell {name}-check.")
    return {**notebook, "cells": cells}


def make(folder: str | Path, out: str | Path, force: bool = False) -> list[Path]:
    """Write the stripped chapters of ``folder`` under ``out``; returns their paths.

    Nothing is written over: ``out`` may not lie in ``folder`` or around it, and files that are
    there already are refused unless ``force``.
    """
    folder, out = Path(folder), Path(out)
    one, other = Path(os.path.realpath(folder)), check_writable(out / "a").parent
    if one == other or one in other.parents or other in one.parents:
        raise ValueError(f"The folders {folder} and {out} overlap; name one outside of the other.")
    chapters = sorted(p for p in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    if not chapters:
        raise ValueError(f"There are no notebooks in {folder}.")
    targets = [out / path.relative_to(folder) for path in chapters]
    for path in targets:
        if other not in (place := check_writable(path)).parents:  # a link, maybe to the source
            raise ValueError(f"{path} leads to {place}, which is not in {out}.")
    there = [str(path) for path in targets if path.exists()]
    if there and not force:
        raise ValueError(f"{there[0]} is there already; with --force it is written anew.")
    made = []
    for path in chapters:
        try:
            notebook = strip(from_json(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no notebook ({error!r}).") from None
        made.append(to_json(notebook, indent=1, ensure_ascii=False) + "\n")
    for text, target in zip(made, targets, strict=True):
        write_text(target, text)
    return targets
