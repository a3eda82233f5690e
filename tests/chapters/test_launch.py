"""The launch buttons, set by one value: a book of one empty chapter, with this book's settings."""

import re
from pathlib import Path

import nbformat
import tiny
import yaml
from IPython.core.inputtransformer2 import TransformerManager


def build(folder, url):
    """The page and the first cell of the notebook that the site publishes; or what was said."""
    pages = {"index.md": "# A book\n", "papers/rpn.ipynb": tiny.chapter("# RPN")}
    tiny.write(folder, pages, execute={"execute_notebooks": "off"}, repository={"url": url})
    status, said = tiny.build(folder)
    if status:
        return said, None
    site = folder / "_build" / "html"
    source = nbformat.read(site / "_sources/papers/rpn.ipynb", 4)
    return (site / "papers/rpn.html").read_text(encoding="utf-8"), source.cells[0]


def test_without_a_repository_there_is_no_button(tmp_path):
    page, first = build(tmp_path, "")
    for word in ("launch-buttons", "fa-rocket", "colab.research", "mybinder", "github.com/exec"):
        assert word not in page, word
    assert first.cell_type == "markdown"


def test_one_value_gives_binder_and_colab_and_a_cell_that_gets_the_package(tmp_path):
    page, first = build(tmp_path, "https://github.com/someone/the-fork")
    links = re.findall(r'href="(https://(?:mybinder|colab)[^"]+)"', page)
    assert links == [
        "https://mybinder.org/v2/gh/someone/the-fork/main?urlpath=lab/tree/book/papers/rpn.ipynb",
        "https://colab.research.google.com/github/someone/the-fork/blob/gh-pages/_sources/"
        "papers/rpn.ipynb",
    ]
    assert "git clone -q --depth 1 https://github.com/someone/the-fork " in first.source
    assert "hide-input" in first.metadata.tags and first.metadata.cellView == "form"
    # where the package is there, nothing is fetched and nothing changes
    code = TransformerManager().transform_cell(first.source)
    before = Path.cwd()
    exec(compile(code, "first cell", "exec"), {})
    assert Path.cwd() == before
    # what Binder builds installs the package
    environment = yaml.safe_load((tiny.ROOT / "environment.yml").read_text())
    assert any("-e ." in line for line in environment["dependencies"][-1]["pip"])
