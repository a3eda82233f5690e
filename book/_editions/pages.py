"""The built site, page by page, as it can be printed: ``snapshot.js`` in Chromium, and the list of
its pages from ``_toc.yml``."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
HERE = Path(__file__).parent
WIDTH = 664  # px of a line on A4 between margins of 17 mm
LEFT_OUT = {"appendix/api"}  # is searched, not read; a third of the book's pages
SECONDS = 600  # against hanging only
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
DRAWN = """() =>
  (!window.MathJax || !MathJax.startup || !MathJax.startup.promise
    || MathJax.startup.promise.then(() => true))
  && [...document.querySelectorAll('article .fl-vega')].every(d => d.dataset.drawn)
  && [...document.querySelectorAll("script[type='application/vnd.jupyter.widget-view+json']")]
    .every(view => view.parentElement.querySelector('.jupyter-widgets'))
  && [...document.images].every(image => image.complete)"""
NARROW = f"""document.addEventListener('DOMContentLoaded', () => {{
  const style = document.createElement('style');
  style.textContent = 'article.bd-article {{ width: {WIDTH}px !important; max-width: none'
    + ' !important; padding: 0 !important; }}';
  document.head.append(style); }})"""


@dataclass
class Page:
    """One page: XHTML for print (formulas drawn) and for reflow (formulas in MathML)."""

    name: str  # "papers/rpn"
    part: str  # caption of its part of the table of contents
    title: str = ""
    print: str = ""
    reflow: str = ""
    sections: list[tuple[str, str]] = field(default_factory=list)  # (id, heading)
    styles: list[str] = field(default_factory=list)

    @property
    def slug(self) -> str:
        return self.name.replace("/", "-")


def listed() -> list[Page]:
    """The pages of the table of contents, in order, empty."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    pages = [Page(toc["root"], "")]
    for part in toc["parts"]:
        pages += [Page(chapter["file"], part["caption"]) for chapter in part["chapters"]]
    return [page for page in pages if page.name not in LEFT_OUT]


def config() -> dict:
    """Title and author, as ``_config.yml`` has them."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


def snapshots(browser: Browser) -> list[Page]:
    """Every page of the built site as it stands when it has been drawn, in the light."""
    pages = listed()
    script = (HERE / "snapshot.js").read_text(encoding="utf-8")
    root = SITE.as_uri() + "/"
    names = [page.name for page in pages]
    for page in pages:
        if not (SITE / f"{page.name}.html").exists():
            sys.exit(f"The site has no page {page.name}: run `make book` first.")
        context = browser.new_context(
            viewport={"width": 1100, "height": 1400}, color_scheme="light"
        )
        context.set_default_timeout(1000 * SECONDS)
        tab = context.new_page()
        tab.add_init_script(NARROW)
        tab.goto(f"{root}{page.name}.html", wait_until="load")
        tab.wait_for_function(DRAWN)
        found = tab.evaluate(script, [root, names, page.name])
        page.title, page.styles = found["title"], found["styles"]
        page.print, page.reflow = found["print"], found["reflow"]
        page.sections = [tuple(pair) for pair in found["sections"]]
        context.close()
    return pages


def chromium() -> Iterator[Browser]:
    """A headless Chromium, the one that $CHROMIUM names."""
    executable = os.environ.get("CHROMIUM")
    if not executable:
        sys.exit("CHROMIUM is not set: run `make pdf` or `make epub`, which find one.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()
