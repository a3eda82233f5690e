"""``make pdf``: every page of the built site, printed by Chromium into one PDF, which
the site then offers behind its download button."""

import html
import os
import re
from io import BytesIO
from pathlib import Path

import yaml
from playwright.sync_api import sync_playwright
from pypdf import PdfReader, PdfWriter

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
LEFT_OUT = {"appendix/api"}  # is searched, not read; a third of the book's pages
LIMIT = 600_000  # ms; against hanging only
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
MENU = re.compile(
    r'(dropdown-download-buttons">.*?<ul class="dropdown-menu">)', re.DOTALL
)
DRAWN = """async () => {
  const views = "script[type='application/vnd.jupyter.widget-view+json']";
  const all = selector => [...document.querySelectorAll(selector)];
  return all('article .fl-vega').every(chart => chart.dataset.drawn)
    && all(views).every(v => v.parentElement.querySelector('.jupyter-widgets'))
    && all('img').every(image => image.complete);
}"""
# The article alone: folded parts open, ids that are this page's own, no link to a file
# of this machine, and what is wider than the paper made smaller.
ARTICLE = """async mine => {
  const article = document.querySelector('article');
  const all = selector => [...article.querySelectorAll(selector)];
  all('details').forEach(e => { e.open = true; });
  all('.toggle-hidden').forEach(e => e.classList.remove('toggle-hidden'));
  all('button, .headerlink, .copybtn, .toggle-button').forEach(e => e.remove());
  document.body.replaceChildren(article);
  const ids = new Map();
  for (const a of all('a[href]')) {
    const hash = decodeURIComponent(a.hash ?? '').slice(1);
    const own = a.getAttribute('href').startsWith('#');
    const goal = own && document.getElementById(hash);
    if (goal && !ids.has(goal)) ids.set(goal, goal.id = mine + hash);
    if (goal) a.setAttribute('href', '#' + ids.get(goal));
    else if (!/^https?:/.test(a.href)) a.removeAttribute('href');
  }
  await document.fonts.ready;
  const room = article.clientWidth;
  for (const e of all('table, figure > img, math'))
    if (e.scrollWidth > room) e.style.zoom = 0.99 * room / e.scrollWidth;
  return article.querySelector('h1').textContent;
}"""
STYLE = """@page { size: A4; margin: 18mm 17mm 20mm;
  @bottom-center { content: counter(page); font: 9pt sans-serif; } }
html { counter-reset: page %d; }
body { background: #fff; }
* { animation: none !important; transition: none !important; }
article { width: 664px; padding: 0 !important; margin: 0 !important; }
article { font-size: 10.5pt; }
article pre { white-space: pre-wrap !important; overflow-wrap: anywhere; }
article pre { font-size: 8.1pt; }
article .fl-scroll, article .output, article div.math { overflow: visible !important; }
tr, figcaption, div.highlight, figure:not(:has(table)), .fl-card { break-inside: avoid; }
.contents { font: 8pt/1.2 sans-serif; } /* one page, which the numbers count on */
.contents h3 { margin: 0.8em 0 0; }
.contents p { display: flex; justify-content: space-between; margin: 0.2em 0; }"""


def listed() -> list[tuple[str, str]]:
    """(caption of its part, page) of the table of contents."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    pages = []
    for part in toc["parts"]:
        for page in part["chapters"]:
            below = [p["file"] for p in page.get("sections", ()) if "file" in p]
            pages += [(part["caption"], file) for file in (page["file"], *below)]
    return [("", toc["root"]), *(page for page in pages if page[1] not in LEFT_OUT)]


def printed(tab, before: int) -> PdfReader:
    """What the tab shows, with numbers that go on after so many pages."""
    tab.add_style_tag(content=STYLE % before)
    return PdfReader(
        BytesIO(tab.pdf(prefer_css_page_size=True, print_background=True, outline=True))
    )


def contents(title: str, author: str, rows: list[tuple[str, str, int]]) -> str:
    """The page in front: the title, and on which page each chapter begins."""
    text, last = f"<h1>{html.escape(title)}</h1><p>{html.escape(author)}</p>", ""
    for part, head, number in rows:
        text += f"<h3>{html.escape(part)}</h3>" if part != last else ""
        text += f"<p><span>{html.escape(head)}</span><span>{number}</span></p>"
        last = part
    return f'<article class="contents">{text}</article>'


def make(target: Path, title: str, author: str) -> int:
    """Print the built site; returns the number of pages of paper."""
    book, rows, parts = PdfWriter(), [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ["CHROMIUM"], args=ARGUMENTS
        )
        tab = browser.new_page(
            viewport={"width": 1100, "height": 1400}, color_scheme="light"
        )
        tab.set_default_timeout(LIMIT)
        count = 1  # the contents
        for part, name in listed():
            tab.goto((SITE / f"{name}.html").as_uri(), wait_until="load")
            tab.wait_for_function(DRAWN)
            head = tab.evaluate(ARTICLE, name.replace("/", "-") + "--")
            rows.append((part, head.strip(), count + 1))
            parts.append(printed(tab, count))
            count += len(parts[-1].pages)
        tab.set_content(contents(title, author, rows))
        book.append(printed(tab, 0), "Contents", import_outline=False)
        browser.close()
    for (_, head, _), pages in zip(rows, parts, strict=True):
        book.append(pages, head)
    book.add_metadata({"/Title": title, "/Author": author})
    book.write(target)
    return count


def offer(name: str) -> None:
    """Link the PDF in the menu behind each page's download button."""
    for page in SITE.rglob("*.html"):
        up = "../" * len(page.relative_to(SITE).parent.parts)
        item = (
            f'<li><a href="{up}{name}" class="dropdown-item">whole book, PDF</a></li>'
        )
        text = page.read_text(encoding="utf-8")
        if f'{name}"' not in text:  # made before, of the same build
            text = MENU.sub(rf"\1{item}", text, count=1)
            page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    its = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    name = re.sub(r"[^a-z0-9]+", "-", its["title"].lower()).strip("-") + ".pdf"
    count = make(SITE / name, its["title"], its["author"])
    offer(name)
    print(f"{SITE / name}: {count} pages of paper")
