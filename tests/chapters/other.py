"""Copies of the chapters with parameters that are not their own, for nbval to run:

    python tests/chapters/other.py FOLDER                       # every chapter
    python tests/chapters/other.py FOLDER together/flower       # one
    pytest FOLDER --nbval-lax

Papermill sets the parameters, in a cell behind the chapter's own. With its own parameters each
chapter is executed, by papermill too, when the book is built.

What the most quotable sentences of a page say of its numbers is held by the chapter's
``data/<chapter>/sentences.yaml``: words of the page and an expression of its names, behind the
definitions under "". One more cell evaluates them. It is the last cell of a copy; and in
``make test`` the book is built with it, for what holds with a chapter's own parameters only.
"""

import shutil
import sys
from pathlib import Path

import nbformat
import papermill
import yaml

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
PROSE = {
    page: sentences
    for path in sorted(ROOT.glob("data/*/sentences.yaml"))
    for page, sentences in yaml.safe_load(path.read_text(encoding="utf-8")).items()
}
HOLDS = """
import functools
import json
import numpy as np
import fedlearn as fl
from fedlearn.book.claims import leads, stored as table_of
from fedlearn.book.grids import grid as grid_of
from fedlearn.data import data_path
from fedlearn.lab.results import paired

stored_runs = functools.cache(fl.results.load)
table_of = functools.cache(table_of)

def lead(name, one, other, data, split, seeds=3, **measure):  # points of the first seeds
    runs = table_of(name)
    return leads(runs[runs["seed"] < seeds], one, other, **measure)[data, split]

def lead_gap(*which, seeds=10, **measure):  # their mean and its interval
    its = lead(*which, seeds, **measure)
    assert len(its) == seeds
    return paired(dict(enumerate(its)), dict.fromkeys(range(seeds), 0.0))

def rounded(gap):  # mean, low, high
    return [round(n, 1) for n in gap[:3]]

def ends_of(name, data, split, seed=0):  # per cent, last quarter
    return {{h.meta["label"]: 100 * h.late_accuracy() for h in stored_runs(name) if
            (h.meta["task"]["dataset"], h.meta["task"]["seed"]) == (data, seed)
            and h.meta["task"]["partition"].startswith(split)}}

prose = {!r}
exec(prose.pop("", ""))
wrong = [words for words, holds in prose.items() if not eval(holds)]
assert not wrong, wrong
"""
PARAMETERS = {"scale": "quick", "clients": 3, "rounds": 2, "seed": 1, "device": "cpu"}


def chapters():
    """The notebooks of the book."""
    return sorted(
        p for p in BOOK.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts
    )


def parameters(path):
    """Those of ``PARAMETERS`` that the chapter has: papermill only logs an unknown one."""
    names = papermill.inspect_notebook(str(path))
    return {name: value for name, value in PARAMETERS.items() if name in names}


def hold(book, page):
    """Add the cell that holds the sentences of a page to its notebook, if there are any."""
    if page in PROSE:
        book.cells.append(nbformat.v4.new_code_cell(HOLDS.format(PROSE[page])))


def copy(path, folder):
    """Write the chapter with other parameters below ``folder`` -> the file."""
    target = Path(folder) / path.relative_to(BOOK)
    target.parent.mkdir(parents=True, exist_ok=True)
    book = nbformat.read(path, 4)
    hold(book, path.relative_to(BOOK).with_suffix("").as_posix())
    papermill.execute_notebook(book, str(target), parameters(path), prepare_only=True)
    return target


if __name__ == "__main__":
    _, folder, *names = sys.argv
    shutil.rmtree(folder, ignore_errors=True)
    for chapter in [BOOK / f"{name}.ipynb" for name in names] or chapters():
        copy(chapter, folder)
