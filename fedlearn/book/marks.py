"""Marks of a plain course: what was handed in is put into fresh copies of the book's exercises,
run, and counted."""

import os
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..files import check_writable, write_text
from .check import STUDENT
from .classroom import SEEDED, chapters, copy_of, read, roster
from .exercises import Cell, source

WAIT = 600  # seconds for a cell that sleeps; one that works is stopped after a minute
MALFORMED = (ValueError, TypeError, AttributeError, KeyError)  # of a notebook, in some place
COLUMNS = ("student", "notebook", "exercise", "points", "of", "note")


def grade(cell: Cell) -> dict[str, Any]:
    """What nbgrader knows about a cell."""
    return cell.get("metadata", {}).get("nbgrader") or {}


def run(copy: dict[str, Any], answers: dict[str, str], student: str) -> dict[str, str]:
    """Of each check of a copy why it failed, "" if it did not.

    It runs in an empty folder, which is also its home. An answer that ends the kernel is left out,
    and the others are run again. Only answers are taken from what was handed in: a check that was
    changed or removed there is as it was.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    ended: dict[str, str] = {}
    while True:
        cells = []
        for cell in copy["cells"]:
            name = grade(cell).get("grade_id", "")
            text = answers.get(name, "") if grade(cell).get("solution") else source(cell)
            cells.append(cell | {"source": "" if name in ended else text})
        notebook = nbformat.from_dict({**copy, "cells": cells})
        place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        resources = {"metadata": {"path": place.name}}
        client = NotebookClient(notebook, timeout=WAIT, allow_errors=True, resources=resources)
        client.interrupt_on_timeout, client.kernel_name = True, "python3"
        client.extra_arguments = ["--IPKernelApp.log_level=40"]  # a warning for each kernel
        last: dict[str, Any] = {}
        client.on_cell_start = lambda cell, cell_index, last=last: last.update(cell)
        try:
            with place:
                client.execute(env=os.environ | {"HOME": place.name, STUDENT: student})
            break
        except (DeadKernelError, CellTimeoutError) as error:
            name = grade(last).get("grade_id", "").removesuffix("-check")
            if name in ended or name not in answers:
                raise ValueError(f"the set-up of {name or 'the copy'} failed: {error}") from None
            ended[name] = "it ended the kernel, or did not let itself be stopped"
    notes, failed = {}, dict(ended)
    for cell in (c for c in notebook.cells if c.cell_type == "code"):
        name = grade(cell).get("grade_id", "").removesuffix("-check")
        for output in (o for o in cell.outputs if o.output_type == "error"):
            kind = "" if output.ename == "AssertionError" else f"{output.ename}: "
            failed.setdefault(name, " ".join((kind + output.evalue).split()))
        if grade(cell).get("grade"):
            notes[name] = failed.get(name, "")
    return notes


def marked(
    path: Path, copies: dict[str, dict[str, Any]], student: str
) -> Iterator[tuple[Any, ...]]:
    """Exercise, points, out of how many, and a note, of each exercise that a notebook answers."""
    cells = read(path)["cells"]
    if not student and any(SEEDED in source(c) for c in cells):
        raise ValueError("its numbers are one student's own: mark with --seed-from, the roster")
    answers = {grade(c).get("grade_id", ""): source(c) for c in cells if grade(c).get("solution")}
    matches = [
        c for c in copies.values() if {*answers} & {grade(x).get("grade_id") for x in c["cells"]}
    ]
    if not matches:
        raise ValueError("it has no answer to an exercise of this course")
    for copy in matches:
        notes = run(copy, answers, student)
        for cell in copy["cells"]:
            if not grade(cell).get("grade"):
                continue
            name, most = grade(cell)["grade_id"].removesuffix("-check"), grade(cell)["points"]
            if name in notes:
                yield name, 0 if notes[name] else most, most, notes[name]
            elif answers.get(name, source(cell)).split() == source(cell).split():
                yield name, 0, most, "no answer yet"
            else:
                yield name, None, most, "by hand"


def mark(
    book: str | Path,
    folder: str | Path,
    out: str | Path,
    force: bool = False,
    seed_from: str | Path = "",
) -> Any:
    """Mark what was handed in under ``folder``, a folder a student, and write a row an exercise
    into ``out``, as CSV; returns the students' points as a table.

    A notebook is known by its exercises, whatever its name. What cannot be marked is a row with a
    note, and nobody else's mark depends on it. With ``seed_from``, the roster, the numbers are
    those of the student whose id the folder has as its name.
    """
    import pandas as pd

    folder, out = Path(folder), check_writable(out)
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    students = [p for p in entries if p.is_dir() and not p.name.startswith(".")]
    if not students:
        raise ValueError(f"{folder} is no folder with a folder for each student.")
    if out.exists() and not force:
        raise ValueError(f"{out} is there already; with --force it is written anew.")
    ids = roster(seed_from) if seed_from else []
    drafts = {
        stem: copy_of(read(p), stem, "plain", {}, bool(ids))
        for stem, p in chapters(Path(book)).items()
    }
    copies, rows = {stem: copy for stem, copy in drafts.items() if copy}, []
    names = {unicodedata.normalize("NFC", p.name) for p in students}
    rows += [(i, "", "", 0, 0, "no notebook was handed in") for i in ids if i not in names]
    for student in students:
        known = unicodedata.normalize("NFC", student.name) if ids else ""
        if ids and known not in ids:
            note = f"not marked: {seed_from} has no id {known}, so its numbers are not known"
            rows.append((student.name, "", "", 0, 0, note))
            continue
        files = [p for p in sorted(student.rglob("*")) if p.is_file()]
        notebooks = [
            p for p in files if p.suffix == ".ipynb" and ".ipynb_checkpoints" not in p.parts
        ]
        if not notebooks:
            rows.append((student.name, "", "", 0, 0, "no notebook was handed in"))
        for path in notebooks:
            name = path.relative_to(student).as_posix()
            try:
                rows += [(student.name, name, *row) for row in marked(path, copies, known)]
            except (*MALFORMED, OSError, RuntimeError) as error:
                rows.append((student.name, name, "", 0, 0, f"not marked: {error}"))
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["points"] = table["points"].astype("Int64")
    write_text(out, table.to_csv(index=False))
    by_hand = table["note"] == "by hand"
    sums = table.groupby("student")[["points", "of"]].sum()
    return sums.assign(by_hand=table[by_hand].groupby("student").size()).fillna(0).astype(int)
