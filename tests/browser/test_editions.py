"""The PDF and the EPUB hold what the site holds: titles, captions, code, solutions, formulas."""

import re
import unicodedata
import zipfile
from functools import cache
from pathlib import PurePosixPath
from xml.etree import ElementTree

import pytest
import yaml
from bs4 import BeautifulSoup
from conftest import HTML, ROOT, chapters, toc_pages
from pypdf import PdfReader

EDITIONS = ROOT / "_build" / "editions"
PAGES = [name for name in toc_pages() if name != "appendix/api"]  # the reference is on the site
EVERY_PAGE = pytest.mark.parametrize("name", PAGES)
XHTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"
MATH = "{http://www.w3.org/1998/Math/MathML}math"
OPF = "{http://www.idpf.org/2007/opf}"


def squeezed(text):
    """Letters and signs without white space: lines break elsewhere in each edition."""
    return re.sub(r"[\s\u00ad\u200b]", "", unicodedata.normalize("NFKC", text))


@cache
def article(name):
    """A page's article as Sphinx wrote it."""
    text = (HTML / f"{name}.html").read_text(encoding="utf-8")
    its = BeautifulSoup(text, "html.parser").find("article")
    for link in its.select("a.headerlink, style, script"):
        link.decompose()
    return its


def edition(kind):
    (path,) = EDITIONS.glob(f"*.{kind}")  # `make editions` makes them
    return path


@pytest.fixture(scope="module")
def pdf():
    return PdfReader(edition("pdf"))


@pytest.fixture(scope="module")
def paper(pdf):
    """All that is printed, squeezed."""
    return squeezed("".join(page.extract_text() for page in pdf.pages))


@pytest.fixture(scope="module")
def epub():
    """Every XHTML file of the book, parsed."""
    with zipfile.ZipFile(edition("epub")) as book:
        return {
            name: ElementTree.fromstring(book.read(name))
            for name in book.namelist()
            if name.endswith(".xhtml")
        }


def slug(name):
    return name.replace("/", "-")


def captions(name):
    """What stands below figures and above tables; formulas in them are pictures on paper."""
    texts = [c.get_text() for c in article(name).select("figcaption")]
    return [squeezed(text) for text in texts if "\\(" not in text and "$" not in text]


def titles(outline):
    """The outermost entries of a PDF's outline."""
    return [entry for entry in outline if not isinstance(entry, list)]


def test_the_outline_names_every_page_where_it_is(pdf):
    """In the book's order; and the contents' numbers are those of the outline."""
    entries = [e for e in titles(pdf.outline) if e.title != "Contents"]
    wanted = [squeezed(article(name).find("h1").get_text()) for name in PAGES]
    assert [squeezed(e.title) for e in entries] == wanted
    numbers = [pdf.get_destination_page_number(e) + 1 for e in entries]
    assert numbers == sorted(set(numbers))
    contents = squeezed("".join(p.extract_text() for p in pdf.pages[1 : numbers[0] - 1]))
    for title, number in list(zip(wanted, numbers, strict=True))[1:]:
        assert f"{title}{number}" in contents, (title, number)


def test_the_pdf_is_for_paper(pdf, paper):
    sizes = {tuple(round(float(x)) for x in page.mediabox[2:]) for page in pdf.pages}
    assert sizes == {(595, 842)}, "A4"
    for words in ("Show the code", "Search this book", "Copy to clipboard"):
        assert squeezed(words) not in paper, words


@EVERY_PAGE
def test_captions_code_and_solutions_are_on_paper(paper, name):
    """Nothing is clipped or left folded."""
    its = article(name)
    assert squeezed(its.find("h1").get_text()) in paper
    for caption in captions(name):
        assert caption in paper, caption
    lost = [
        line
        for block in its.select(".cell_input pre, .fl-solution pre")
        for line in block.get_text().splitlines()
        if squeezed(line) not in paper
    ]
    # a line of a cell may be parted by a page's end, and by the page's number
    assert len(lost) <= 2, lost


def test_the_epub_has_nothing_that_its_readers_need_not_know():
    """What EPUBCheck has found before, for machines that do not have it."""
    with zipfile.ZipFile(edition("epub")) as book:
        names = book.namelist()
        assert ":has(" not in book.read("book/style.css").decode()
        for name in (name for name in names if name.endswith(".xhtml")):
            for path in ElementTree.fromstring(book.read(name)).iter(f"{SVG}path"):
                assert "d" in path.attrib, name
    kinds = {PurePosixPath(name).suffix for name in names if "/images/" in name}
    assert kinds <= {".png", ".jpg", ".gif", ".svg"}


@EVERY_PAGE
def test_captions_formulas_and_charts_are_in_the_epub(epub, name):
    body = epub[f"book/{slug(name)}.xhtml"]
    text = squeezed("".join(body.itertext()))
    its = article(name)
    assert squeezed(its.find("h1").get_text()) in text
    for caption in captions(name):
        assert caption in text, caption
    assert len(list(body.iter(MATH))) >= len(its.select(".math"))
    assert "mjx" not in text and not [e for e in body.iter() if "mjx" in e.tag]
    drawn = [e for e in body.iter() if e.get("class") == "marks"]
    assert len(drawn) == len(its.select(".fl-vega")), "charts"
    assert not [e for e in body.iter(f"{XHTML}details")], "a folded part"


def test_the_epub_is_whole(epub):
    """Every link leads to an id and every picture to a file; what is there is listed."""
    with zipfile.ZipFile(edition("epub")) as book:
        names = book.namelist()
        first = book.infolist()[0]
        assert first.filename == "mimetype" and first.compress_type == zipfile.ZIP_STORED
        assert book.read("mimetype") == b"application/epub+zip"
        package = ElementTree.fromstring(book.read("book/content.opf"))
    items = {i.get("id"): i.get("href") for i in package.iter(f"{OPF}item")}
    kept = {name.removeprefix("book/") for name in names if name.startswith("book/")}
    assert set(items.values()) == kept - {"content.opf"}
    spine = [items[i.get("idref")] for i in package.iter(f"{OPF}itemref")]
    assert spine == ["nav.xhtml", *(f"{slug(name)}.xhtml" for name in PAGES)]
    ids = {n: [e.get("id") for e in its.iter() if e.get("id")] for n, its in epub.items()}
    for name, its in epub.items():
        assert len(ids[name]) == len(set(ids[name])), name
        for e in its.iter():
            link, source = e.get("href"), e.get("src")
            if source:
                assert f"book/{source}" in names, (name, source)
            if link and not re.match(r"https?:", link):
                file, _, anchor = link.partition("#")
                goal = f"book/{file}" if file else name
                assert goal in names, (name, link)
                assert not anchor or anchor in ids[goal], (name, link)
        alts = [e.get("alt", "").strip() for e in its.iter(f"{XHTML}img")]
        assert all(alts), f"{name}: a picture without text"


def test_there_is_mathematics_and_there_are_charts(epub):
    """The tests above must have something to go over."""
    assert sum(len(list(its.iter(MATH))) for its in epub.values()) > 100
    assert sum(len(captions(name)) for name in chapters()) > 50
    assert sum(len(article(name).select(".fl-vega")) for name in chapters()) >= 3


@pytest.mark.parametrize("name", ["index", "papers/rpn"])
def test_the_site_offers_both(name):
    title = yaml.safe_load((ROOT / "_config.yml").read_text())["title"]
    text = (HTML / f"{name}.html").read_text(encoding="utf-8")
    menu = BeautifulSoup(text, "html.parser").select_one(".dropdown-download-buttons")
    links = [a["href"] for a in menu.select("a")]
    for kind in ("pdf", "epub"):
        (link,) = [x for x in links if x.endswith(f".{kind}")]
        path = (HTML / PurePosixPath(name).parent / link).resolve()
        assert path.read_bytes() == edition(kind).read_bytes()
        assert "-".join(re.findall(r"\w+", title.lower())) == path.stem
