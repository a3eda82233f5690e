"""The built book as a reader gets it: no kernel, and no network but this machine."""

import re

import pytest
from conftest import HTML, chapters, closely, toc_pages
from playwright.sync_api import TimeoutError as NotInTime

TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|^\w*(?:Error|Exception): ", re.MULTILINE
)
# of the machine that built the book, with whatever else ran there, and not of the reader's
BUILD_TIME = re.compile(r"\b(took|ran in) [\d.]+ minutes\b")
SLIDER = ".noUi-handle"
VIEWS = "article script[type='application/vnd.jupyter.widget-view+json']"
EVERY_PAGE = pytest.mark.parametrize("name", toc_pages())
CLOSELY = pytest.mark.parametrize("name", closely(toc_pages()))

# What a reader sees of an explorer: text alternative and content of each visible image.
VISIBLE = """box => [...box.querySelectorAll('img')]
  .filter(i => i.checkVisibility({visibilityProperty: true}) && i.offsetWidth > 0)
  .map(i => ({alt: i.alt.trim(), src: i.src, width: i.naturalWidth, complete: i.complete}))"""


def open_page(page, site, name):
    page.goto(f"{site}/{name}.html", wait_until="load")
    wait_for_widgets(page)
    page.wait_for_function(
        "!window.MathJax || !MathJax.startup || !MathJax.startup.promise || "
        "MathJax.startup.promise.then(() => true)"
    )
    page.wait_for_timeout(200)  # for errors that come late; nothing else waits for it


def wait_for_widgets(page):
    """Wait until every widget of the page is drawn."""
    page.wait_for_function(
        "views => [...document.querySelectorAll(views)].every("
        "view => view.parentElement.querySelector('.jupyter-widgets'))",
        arg=VIEWS,
    )


def shown(page, box, before=None):
    """The visible images of an explorer, as soon as there is one, it is loaded and it is not
    ``before``. If that never happens the caller sees what there is instead."""
    condition = f"""([box, before]) => {{
      const images = ({VISIBLE})(box);
      return images.length == 1 && images[0].complete && images[0].src != before; }}"""
    try:
        page.wait_for_function(condition, arg=[box.element_handle(), before])
    except NotInTime:
        pass
    return box.evaluate(VISIBLE)


@EVERY_PAGE
def test_page_opens_clean(page, site, name):
    """Nothing went wrong while executing or drawing; the page fixture looks for console errors and
    requests to other machines."""
    open_page(page, site, name)
    text = page.locator("article").inner_text()
    assert text.strip()
    assert not TRACEBACK.search(text) and not BUILD_TIME.search(text)
    # widget state is inside scripts: errors raised in callbacks show up there only
    assert "Traceback (most recent call last)" not in page.content()
    assert (
        page.locator("article .cell_output .output.traceback, article .output.stderr").count() == 0
    )
    assert page.locator("article .problematic, article .system-message").count() == 0

    no_alt = "images => images.filter(i => !i.alt.trim()).map(i => i.outerHTML.slice(0, 150))"
    assert page.locator("article img").evaluate_all(no_alt) == [], "images without alt text"

    formulas = page.locator("article .math").count()
    assert page.locator("article mjx-container").count() >= formulas
    assert page.locator("mjx-merror").count() == 0, "a formula that MathJax cannot read"
    if formulas:
        fonts = page.evaluate(
            "document.fonts.ready.then(() => [...document.fonts].map(f => [f.family, f.status]))"
        )
        assert not [family for family, status in fonts if status == "error"]
        assert [family for family, status in fonts if "MJX" in family and status == "loaded"]


def check_explorer(page, box, where):
    """Every slider through all its positions with the keyboard: one image with alt text each time,
    never the same one."""
    box.scroll_into_view_if_needed()
    sliders = box.locator(SLIDER)
    assert sliders.count() > 0, f"{where}: no slider"
    moved = 0
    for k in range(sliders.count()):
        handle = sliders.nth(k)
        last, first = (
            int(float(handle.get_attribute(f"aria-value{end}"))) for end in ("max", "min")
        )
        steps = last - first
        handle.focus()
        images = shown(page, box)
        if int(float(handle.get_attribute("aria-valuenow"))) != first:
            handle.press("Home")
            images = shown(page, box, images[0]["src"])
        seen = []
        for position in range(steps + 1):
            if position:
                before = handle.get_attribute("aria-valuenow")
                handle.press("ArrowRight")
                assert handle.get_attribute("aria-valuenow") != before, (
                    f"{where}: slider {k} stops at {position}"
                )
                images = shown(page, box, seen[-1][0])
            spot = f"{where}: slider {k} at position {position} of {steps}"
            assert len(images) == 1, f"{spot}: {len(images)} visible images"
            assert images[0]["alt"], f"{spot}: no alt text"
            assert images[0]["width"] > 50, f"{spot}: broken image"
            seen.append((images[0]["src"], images[0]["alt"]))
        assert len({src for src, _ in seen}) == len(seen), (
            f"{where}: slider {k} shows one image in two positions"
        )
        assert len({alt for _, alt in seen}) == len(seen), (
            f"{where}: slider {k}: two images with the same alt text"
        )
        assert steps > 0, f"{where}: slider {k} has one position"
        label = box.locator(".widget-label").nth(k)
        assert label.inner_text().strip(), f"{where}: slider {k} has no label"
        moved += steps
        handle.press("Home")
        shown(page, box, seen[-1][0])
    return moved


@CLOSELY
def test_every_explorer_answers_the_keyboard(page, site, name):
    open_page(page, site, name)
    boxes = page.locator("article .fl-explorer")
    for k in range(boxes.count()):
        assert check_explorer(page, boxes.nth(k), f"{name}, explorer {k}") > 0
    # sliders that nothing answers to have no place in a page without a kernel
    assert page.locator(f"article {SLIDER}").count() == boxes.locator(SLIDER).count(), (
        "a slider outside .fl-explorer"
    )


def charts(page):
    """The charts that fl.book.chart put into the page, drawn."""
    page.wait_for_function(
        "[...document.querySelectorAll('article .fl-vega')].every(d => d.dataset.drawn)"
    )
    return page.locator("article .fl-vega").all()


def check_chart(page, box, where):
    """Every slider says its name and its value, and moves the picture; so do checkboxes, and in a
    chart without sliders the buttons of a choice."""
    picture = box.locator("svg.marks")
    look = "e => e.innerHTML"
    box.scroll_into_view_if_needed()
    assert picture.count() == 1 and box.locator("[aria-roledescription], [aria-label]").count()
    for tick in box.locator("input[type=checkbox]").all():
        before = picture.evaluate(look)
        tick.set_checked(not tick.is_checked())
        page.wait_for_function(
            "([e, before]) => e.innerHTML != before", arg=[picture.element_handle(), before]
        )
        tick.check()  # what it hides is shown: every slider matters now
    sliders = box.locator("input[type=range]")
    if not sliders.count():
        before = picture.evaluate(look)
        choices = box.locator("input[type=radio]:not(:checked)")
        assert choices.count(), f"{where}: neither slider nor choice"
        choices.first.check()
        page.wait_for_function(
            "([e, before]) => e.innerHTML != before", arg=[picture.element_handle(), before]
        )
    for k in range(sliders.count()):
        handle = sliders.nth(k)
        assert handle.get_attribute("aria-label"), f"{where}: slider {k} has no name"
        before, value = picture.evaluate(look), handle.input_value()
        handle.focus()
        handle.press("Home" if float(value) >= float(handle.get_attribute("max")) else "End")
        assert handle.input_value() != value, f"{where}: slider {k} does not move"
        said = handle.get_attribute("aria-valuetext")
        shown = handle.evaluate("e => e.parentElement.querySelector('output')?.textContent")
        if shown is None:
            assert said.split()[0] == handle.input_value(), f"{where}: slider {k} says {said!r}"
        else:  # in words, such as "1.6 Mbit/s"
            assert said == shown and re.match(r"\d", said), f"{where}: slider {k} says {said!r}"
        page.wait_for_function(
            "([e, before]) => e.innerHTML != before", arg=[picture.element_handle(), before]
        )


@CLOSELY
def test_every_chart_moves(page, site, name):
    open_page(page, site, name)
    for k, box in enumerate(charts(page)):
        check_chart(page, box, f"{name}, chart {k}")


def test_a_chart_moves_from_disk_and_keeps_the_guess(page):
    page.goto((HTML / "papers/rpn.html").as_uri(), wait_until="load")
    box = charts(page)[0]
    check_chart(page, box, "from disk")
    kept = box.locator("input[type=range]").first.input_value()
    page.reload(wait_until="load")
    assert charts(page)[0].locator("input[type=range]").first.input_value() == kept


@CLOSELY
def test_solutions_fold_open(page, site, name):
    open_page(page, site, name)
    for solution in page.locator("article details.fl-solution").all():
        solution.scroll_into_view_if_needed()
        body = solution.locator("p, pre").first
        assert not body.is_visible(), "a solution is open from the start"
        solution.locator("summary").click()
        body.wait_for(state="visible")
        assert body.inner_text().strip()


@pytest.mark.parametrize("name", ["index", *chapters()[:2]])
def test_page_works_from_disk(page, name):
    """The same page opened as a file, without any server."""
    page.goto((HTML / f"{name}.html").as_uri(), wait_until="load")
    if page.locator("article .math").count():
        page.wait_for_selector("article mjx-container")
    if page.locator(VIEWS).count():
        wait_for_widgets(page)
        page.wait_for_selector(f".fl-explorer {SLIDER}")
        for k, box in enumerate(page.locator("article .fl-explorer").all()):
            check_explorer(page, box, f"{name} from disk, explorer {k}")


def test_internal_links_lead_somewhere():
    """Every relative link of every page points to a file of the site, and its fragment to an id
    there."""
    ids, broken = {}, []

    def text(path):
        if path not in ids:
            ids[path] = path.read_text(encoding="utf-8")
        return ids[path]

    for name in toc_pages():
        path = HTML / f"{name}.html"
        for link in set(re.findall(r'<a [^>]*?href="([^"]+)"', text(path))):
            target, _, fragment = link.partition("#")
            if re.match(r"[a-z]+:", link) or link.startswith("//"):
                continue
            goal = (path.parent / target.partition("?")[0]).resolve() if target else path
            if not goal.exists():
                broken.append((name, link))
            elif fragment and goal.suffix == ".html" and f'id="{fragment}"' not in text(goal):
                broken.append((name, link))
    assert not broken
