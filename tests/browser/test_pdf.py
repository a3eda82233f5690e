"""The PDF holds what the site holds: titles, captions, code, solutions."""

import re
import unicodedata
from functools import cache

import pytest
from bs4 import BeautifulSoup
from conftest import HTML, toc_pages
from pypdf import PdfReader

PAGES = [
    name for name in toc_pages() if name != "appendix/api"
]  # the reference is on the site
pytestmark = pytest.mark.slow  # `make test-all` prints it


def squeezed(text):
    """Letters and signs without white space: lines break elsewhere on paper."""
    return re.sub(r"[\s\u00ad\u200b]", "", unicodedata.normalize("NFKC", text))


@cache
def article(name):
    """A page's article as Sphinx wrote it."""
    text = (HTML / f"{name}.html").read_text(encoding="utf-8")
    body = BeautifulSoup(text, "html.parser").find("article")
    for link in body.select("a.headerlink, style, script"):
        link.decompose()
    return body


@pytest.fixture(scope="module")
def pdf():
    (path,) = HTML.glob("*.pdf")  # `make pdf` makes it
    return PdfReader(path)


@pytest.fixture(scope="module")
def paper(pdf):
    """All that is printed, squeezed."""
    return squeezed("".join(page.extract_text() for page in pdf.pages))


def test_the_outline_names_every_page_where_it_is(pdf):
    """In the book's order; and the contents' numbers are those of the outline."""
    entries = [
        e for e in pdf.outline if not isinstance(e, list) and e.title != "Contents"
    ]
    titles = [squeezed(article(name).find("h1").get_text()) for name in PAGES]
    assert [squeezed(e.title) for e in entries] == titles
    numbers = [pdf.get_destination_page_number(e) + 1 for e in entries]
    assert numbers == sorted(set(numbers))
    contents = squeezed("".join(p.extract_text() for p in pdf.pages[: numbers[0] - 1]))
    for title, number in list(zip(titles, numbers, strict=True))[1:]:
        assert f"{title}{number}" in contents, (title, number)


def test_the_pdf_is_for_paper(pdf, paper):
    sizes = {tuple(round(float(x)) for x in page.mediabox[2:]) for page in pdf.pages}
    assert sizes == {(595, 842)}, "A4"
    for words in ("Search this book", "Copy to clipboard"):
        assert squeezed(words) not in paper, words
    links = [
        link.get_object() for page in pdf.pages for link in page.get("/Annots") or []
    ]
    assert not [
        link
        for link in links
        if str(link.get("/A", {}).get("/URI")).startswith("file:")
    ]


@pytest.mark.parametrize("name", PAGES)
def test_captions_code_and_solutions_are_on_paper(paper, name):
    """Nothing is clipped or left folded."""
    body = article(name)
    for caption in (c.get_text() for c in body.select("figcaption")):
        formula = "\\(" in caption or "$" in caption  # a picture, on paper
        assert formula or squeezed(caption) in paper, caption
    lost = [
        line
        for block in body.select(".cell_input pre, .fl-solution pre")
        for line in block.get_text().splitlines()
        if squeezed(line) not in paper
    ]
    # a line of a cell may be parted by a page's end, and by the page's number
    assert len(lost) <= 2, lost
