"""The launch buttons, set by one value: a book of one empty chapter, with this book's settings."""

import hashlib
import re
from pathlib import Path

import nbformat
import tiny
from IPython.core.inputtransformer2 import TransformerManager
from PIL import Image


def build(folder, url):
    """The page and the first cell of the notebook that the site publishes; or what was said."""
    pages = {"index.md": "# A book\n", "papers/rpn.ipynb": tiny.chapter("# RPN")}
    tiny.write(
        folder, pages, execute={"execute_notebooks": "off"}, repository={"url": url}
    )
    status, output = tiny.build(folder)
    if status:
        return output, None
    site = folder / "_build" / "html"
    source = nbformat.read(site / "_sources/papers/rpn.ipynb", 4)
    return (site / "papers/rpn.html").read_text(encoding="utf-8"), source.cells[0]


def test_without_a_repository_there_is_no_button(tmp_path):
    page, first = build(tmp_path, "")
    words = "launch-buttons fa-rocket colab.research mybinder github.com/exec og:image"
    for word in words.split():
        assert word not in page, word
    assert first.cell_type == "markdown"


def test_one_value_gives_binder_and_colab_and_a_cell_that_installs_the_package(
    tmp_path,
):
    page, first = build(tmp_path, "https://github.com/someone/the-fork")
    links = re.findall(r'href="(https://(?:mybinder|colab)[^"]+)"', page)
    assert links == [
        "https://mybinder.org/v2/gh/someone/the-fork/main?urlpath=lab/tree/book/papers/rpn.ipynb",
        "https://colab.research.google.com/github/someone/the-fork/blob/gh-pages/_sources/"
        "papers/rpn.ipynb",
    ]
    site = "https://someone.github.io/the-fork/"
    address = rf"fedlearn\[lesson\] @ {site}wheels/(fedlearn-.*whl)#sha256=(\w+)'"
    wheel = re.search(address, first.source)
    published = tmp_path / "_build/html/wheels" / wheel[1]
    assert hashlib.sha256(published.read_bytes()).hexdigest() == wheel[2]
    assert (
        f"curl -sSfo solutions/rpn.py {site}_sources/solutions/rpn.py" in first.source
    )
    assert (tmp_path / "_build/html/_sources/solutions/rpn.py").exists()
    for button in (
        "source-repository-button",
        "source-issues-button",
        "source-edit-button",
    ):
        assert button in page
    # what is shared is told by its first lines, and found
    assert f'<meta property="og:image" content="{site}_static/preview.png" />' in page
    with Image.open(tmp_path / "_build/html/_static/preview.png") as picture:
        assert picture.size == (1200, 630)
    assert (
        f"<loc>{site}papers/rpn.html</loc>"
        in (tmp_path / "_build/html/sitemap.xml").read_text()
    )
    assert f'<base href="{site}">' in (tmp_path / "_build/html/404.html").read_text()
    assert "hide-input" in first.metadata.tags and first.metadata.cellView == "form"
    # where the package is there, nothing is fetched and nothing changes
    code = TransformerManager().transform_cell(first.source)
    before = Path.cwd()
    exec(compile(code, "first cell", "exec"), {})
    assert Path.cwd() == before
    # what Binder builds installs the package
    assert "-e .[lesson]" in (tiny.ROOT / ".binder" / "requirements.txt").read_text()
