"""Copies of the chapters with parameters that are not their own, for nbval to run:

    python tests/chapters/other.py FOLDER                       # every chapter
    python tests/chapters/other.py FOLDER together/flower       # one
    pytest FOLDER --nbval-lax

Papermill sets the parameters, in a cell behind the chapter's own. With its own parameters each
chapter is executed, by papermill too, when the book is built.
"""

import shutil
import sys
from pathlib import Path

import papermill

BOOK = Path(__file__).resolve().parents[2] / "book"
PARAMETERS = {"scale": "quick", "clients": 3, "seed": 1, "device": "cpu"}


def chapters():
    """The notebooks of the book."""
    return sorted(p for p in BOOK.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)


def parameters(path):
    """Those of ``PARAMETERS`` that the chapter has: papermill only logs an unknown one."""
    known = papermill.inspect_notebook(str(path))
    return {name: value for name, value in PARAMETERS.items() if name in known}


def copy(path, folder):
    """Write the chapter with other parameters below ``folder`` -> the file."""
    target = Path(folder) / path.relative_to(BOOK)
    target.parent.mkdir(parents=True, exist_ok=True)
    papermill.execute_notebook(str(path), str(target), parameters(path), prepare_only=True)
    return target


if __name__ == "__main__":
    _, folder, *names = sys.argv
    shutil.rmtree(folder, ignore_errors=True)
    for chapter in [BOOK / f"{name}.ipynb" for name in names] or chapters():
        copy(chapter, folder)
