"""A page a method, made of its file, its parts, its bytes and the stored runs."""

import re
import runpy
import shutil
import sys
from types import SimpleNamespace

import tiny

from fedlearn.methods import METHODS

EXTENSION = tiny.ROOT / "book" / "_ext" / "fl_methods.py"

TOC = """
root: index
chapters:
  - file: papers/rpn
  - file: methods/index
    sections:
      - glob: methods/*
"""


def pages(folder, toc):
    (folder / "_toc.yml").write_text(toc)
    runpy.run_path(str(EXTENSION))["write"](SimpleNamespace(srcdir=folder), None)
    return {p.stem: p.read_text(encoding="utf-8") for p in folder.glob("methods/*.md")}


def test_every_method_has_a_page_of_what_is_known_of_it(tmp_path):
    assert pages(tmp_path, "root: index\n") == {}
    (tmp_path / "papers").mkdir()
    shutil.copy(tiny.ROOT / "book/papers/rpn.ipynb", tmp_path / "papers")
    texts = pages(tmp_path, TOC)
    assert texts.keys() == {*METHODS, "index"}
    for name, method in METHODS.items():
        page, file = texts[name], sys.modules[method.__module__].__doc__
        equations = [
            line.strip() for line in file.splitlines() if line.startswith("    ")
        ]
        assert all(line in page for line in equations), name
        assert f"autofunction:: fedlearn.methods.{name}\n" in page
        assert f"]({name}.md)" in texts["index"]
        for part in re.findall(r"^\| (\w+) \| `", page, re.M):
            assert part in method().parts()
    assert "R_i^t   = M_i^t - M^{t-1}" in texts["rpn"]
    for words in (
        "6,781 bytes",
        "| uplink | `Uplink(Update(), Pool(",
        "fedlearn reproduce rpn",
    ):
        assert words in texts["rpn"]
    assert (
        "[RPN: a kernel that may say one number](../papers/rpn.ipynb)" in texts["rpn"]
    )
