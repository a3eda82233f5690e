"""What keeps readers from reading: text that leaves its column, clipped code, tables that are cut
off, and what axe-core finds (contrast, names, landmarks). Each page is loaded once for all."""

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from conftest import PAGES, ROOT
from test_site import charts, open_page

WIDTHS = (1440, 900, 400)

# Beyond the column (or the window), visible, and not in something that scrolls within the column.
WIDE = """() => {
  const article = document.querySelector('article'), its = getComputedStyle(article);
  const edge = article.getBoundingClientRect().right - parseFloat(its.paddingRight) + 1.5;
  const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
    && e.getBoundingClientRect().right <= edge;
  const found = [...article.querySelectorAll('*')].filter(e => {
    const box = e.getBoundingClientRect();
    if (box.right <= edge || box.width < 1 || box.height < 1) return false;
    if (e.ownerSVGElement || !e.checkVisibility()) return false;
    for (let up = e.parentElement; up && up != article; up = up.parentElement)
      if (scrolls(up)) return false;
    return true; }).map(e => e.outerHTML.slice(0, 120));
  if (document.documentElement.scrollWidth > innerWidth + 1) found.push('the page itself');
  return found; }"""
CUT = """() => [...document.querySelectorAll('article .fl-scroll')]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.getAttribute('aria-label'))"""
CLIPPED = """() => [...document.querySelectorAll('article .cell_input pre')]
  .filter(pre => pre.scrollWidth > pre.clientWidth + 1)
  .map(pre => pre.textContent.split('\\n').sort((a, b) => b.length - a.length)[0])"""
# Pictures without text for axe, of thousands of elements: it walks over each, for minutes. Code is
# coloured alike everywhere, so that the first cells stand for all; so are the reference of the API
# and the rows of a long table.
LIGHTER = """() => {
  document.querySelectorAll('.fl-panel svg, math').forEach(e => e.replaceChildren());
  [...document.querySelectorAll('article pre')].slice(10)
    .forEach(e => { e.textContent = e.textContent; });
  [...document.querySelectorAll('article dl.py')].slice(40).forEach(e => e.remove());
  document.querySelectorAll('article tbody').forEach(
    body => [...body.rows].slice(40).forEach(row => row.remove())); }"""
# moderate and minor findings are the theme's (its logo stands outside of the landmarks)
AXE = """options => axe.run({...options, preload: false, resultTypes: ['violations']}).then(
  result => result.violations.filter(v => ['serious', 'critical'].includes(v.impact))
    .map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 200), v.nodes[0].failureSummary]))"""


def turn(page, scheme):
    """Light or dark, as the reader's system says."""
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(
        "scheme => document.documentElement.dataset.theme == scheme", arg=scheme
    )
    page.wait_for_timeout(300)  # colours change gradually


def see(page, name):
    """What is wrong with an open page, by place."""
    wrong = {}
    page.evaluate(
        "document.querySelectorAll('details').forEach(d => { d.open = true; })"
    )
    for scheme in ("light", "dark"):
        turn(page, scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(150)  # charts follow the window
            wrong[f"too wide at {width} px, {scheme}"] = page.evaluate(WIDE)
            if (
                width == 1440
                and scheme == "light"
                and (ROOT / f"book/{name}.ipynb").exists()
            ):
                wrong["clipped code"] = page.evaluate(CLIPPED)
                wrong["tables that are cut off"] = page.evaluate(CUT)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.evaluate(LIGHTER)
    page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
    wrong["axe, dark"] = page.evaluate(AXE, {"runOnly": ["color-contrast"]})
    turn(page, "light")
    wrong["axe, light"] = page.evaluate(AXE, {})
    return {place: problems for place, problems in wrong.items() if problems}


@pytest.mark.parametrize("name", PAGES)
def test_nothing_overflows_and_axe_finds_nothing_serious(page, site, name):
    open_page(page, site, name)
    charts(page)
    assert see(page, name) == {}
