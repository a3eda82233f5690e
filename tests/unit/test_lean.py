"""What `pip install fedlearn` brings is enough; `make test-install` tries the wheel."""

import os
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import numpy as np
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sklearn.datasets import load_digits

import fedlearn as fl
from fedlearn.data.images import DIGITS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def distributions(requirements):
    """The installed distributions that requirements stand for, and all that these need in turn."""
    todo, names, seen = [(text, "") for text in requirements], set(), set()
    while todo:
        text, extra = todo.pop()
        need = Requirement(text)
        if (
            (text, extra) in seen
            or need.marker
            and not need.marker.evaluate({"extra": extra})
        ):
            continue
        seen.add((text, extra))
        names.add(canonicalize_name(need.name))
        todo += [
            (t, e)
            for t in metadata.requires(need.name) or []
            for e in ("", *need.extras)
        ]
    return names


def test_without_the_extras_runs_work(tmp_path):
    """In a process that sees no other package."""
    lean = distributions(PROJECT["project"]["dependencies"]) | {"fedlearn"}
    homes = metadata.packages_distributions().items()
    hidden = {
        name
        for name, packages in homes
        if not {*map(canonicalize_name, packages)} & lean
    }
    assert {
        "pandas",
        "matplotlib",
        "scipy",
        "sklearn",
        "torchvision",
        "IPython",
    } <= hidden
    assert {"constriction", "joblib", "psutil"} <= hidden
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "install" / "lean.py", *hidden],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "FEDLEARN_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stdout[-1000:] + done.stderr


def test_the_wheel_has_the_results_that_are_shown():
    globs = PROJECT["tool"]["setuptools"]["package-data"]["fedlearn.bookdata"]
    names = {
        p.relative_to(ROOT / "data").as_posix() for p in (ROOT / "data").rglob("*.*")
    }
    inside = {name for name in names if any(fnmatch(name, glob) for glob in globs)}
    stored = {name for name in names if name.endswith(fl.results.PACKED)}
    texts = [p for kind in ("*.ipynb", "*.md") for p in (ROOT / "book").rglob(kind)]
    pages = "\n".join(p.read_text("utf-8") for p in texts)
    for name in inside - stored:  # what nobody shows stays outside
        assert "results/" not in name or Path(name).stem in pages, name
    assert stored <= inside
    assert {
        "rpn/claims.yaml",
        "recipes.yaml",
        "rpn/grid.json",
        "rpn/chapter.yaml",
    } <= inside


def test_the_digits_are_those_of_scikit_learn():
    x, y = load_digits(return_X_y=True)
    with np.load(DIGITS) as file:
        assert np.array_equal(file["images"].reshape(-1, 64), x)
        assert np.array_equal(file["labels"], y)
