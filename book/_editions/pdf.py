"""One printable PDF: all pages in one document, printed twice, because only the first print says on
which page of paper a heading stands."""

import html
import tempfile
from datetime import date
from pathlib import Path

from playwright.sync_api import Browser
from pypdf import PdfReader

from pages import HERE, ROOT, SECONDS, SITE, Page, config

# what is wider than the paper is made smaller, never cut off
FIT = """room => document.fonts.ready.then(() => {
  for (const e of document.querySelectorAll('article table, article figure > img'))
    if (e.offsetWidth > room) e.style.zoom = Math.floor(100 * room / e.offsetWidth) / 100;
})"""


def style() -> str:
    """The whole style sheet of an edition but for the page's size."""
    files = [
        ROOT / "fedlearn" / "lab" / "lab.css",
        SITE / "_static" / "pygments.css",
        HERE / "edition.css",
    ]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def contents(pages: list[Page], on: dict[str, int]) -> str:
    """The table of contents; ``on`` says on which page of paper an id stands."""

    def line(anchor: str, title: str, kind: str) -> str:
        return (
            f'<a href="#{anchor}" class="{kind}"><span>{html.escape(title)}</span>'
            f"<span>{on.get(anchor, 0) or ''}</span></a>"
        )

    rows, part = ['<nav class="contents"><h1>Contents</h1>'], ""
    for page in pages[1:]:
        if page.part != part:
            part = page.part
            rows.append(f'<p class="part">{html.escape(part)}</p>')
        numbered = page.title[:1].isdigit()
        inner = "".join(
            f"<li>{line(anchor, title, 'section')}</li>"
            for anchor, title in page.sections * numbered
        )
        inner = f"<ol>{inner}</ol>" if inner else ""
        rows.append(f"<ol><li>{line(page.slug, page.title, 'chapter')}{inner}</li></ol>")
    return "".join(rows) + "</nav>"


def document(pages: list[Page], on: dict[str, int]) -> str:
    """The book as one HTML page."""
    its = config()
    rules = dict.fromkeys(rule for page in pages for rule in page.styles)
    bodies = []
    for page in pages:
        text = page.print.replace("<article", f'<article id="{page.slug}"', 1)
        for other in pages:
            text = text.replace(f'href="page:{other.name}#', 'href="#')
            text = text.replace(f'href="page:{other.name}"', f'href="#{other.slug}"')
        bodies.append(text)
    title, author = html.escape(its["title"]), html.escape(its["author"])
    sheet = (HERE / "print.css").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html><html lang="en" class="edition"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>{style()}{''.join(rules)}{sheet}</style></head><body>"
        f'<div class="cover"><p class="title">{title}</p><p>{author}</p>'
        f"<p>Printed on {date.today():%d %B %Y} from the site: charts stand in their first "
        "position, folded parts are open. The package's reference is on the site only.</p></div>"
        f"{contents(pages, on)}{''.join(bodies)}</body></html>"
    )


def printed(browser: Browser, text: str, target: Path) -> dict[str, int]:
    """Print to ``target``; on which page each id stands."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "book.html"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(viewport={"width": 664, "height": 1000})
        context.set_default_timeout(1000 * SECONDS)
        tab = context.new_page()
        tab.emulate_media(media="print", color_scheme="light")
        tab.goto(path.as_uri(), wait_until="load")
        tab.evaluate(FIT, 664)
        tab.pdf(
            path=target, prefer_css_page_size=True, print_background=True, outline=True, tagged=True
        )
        context.close()
    reader = PdfReader(target)
    places = reader.named_destinations.items()
    return {
        name.lstrip("/"): (reader.get_destination_page_number(place) or 0) + 1
        for name, place in places
    }


def make(browser: Browser, pages: list[Page], target: Path) -> int:
    """Write the PDF; returns its number of pages."""
    on = printed(browser, document(pages, {}), target)
    again = printed(browser, document(pages, on), target)
    if on != again:
        raise RuntimeError("The contents' own length moved the pages: print once more.")
    return len(PdfReader(target).pages)
