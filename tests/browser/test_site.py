"""The built book as a reader gets it: no kernel, and no network but this machine."""

import re

import pytest
from conftest import HTML, PAGES, WEIGHT, toc_pages

TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|^\w*(?:Error|Exception): ", re.MULTILINE
)
# of the machine that built the book, with whatever else ran there, and not of the reader's
BUILD_TIME = re.compile(r"\b(took|ran in) [\d.]+ minutes\b")
SLIDER = ".noUi-handle"
# every widget of the page is drawn
DRAWN = """() => [...document.querySelectorAll(
    "article script[type='application/vnd.jupyter.widget-view+json']")]
  .every(view => view.parentElement.querySelector('.jupyter-widgets, .fl-play'))"""
FONTS = """document.fonts.ready.then(() => [...document.fonts]
  .filter(f => f.family.includes('Math')).map(f => f.status))"""


def open_page(page, site, name):
    page.goto(f"{site}/{name}.html", wait_until="load")
    page.wait_for_function(DRAWN)
    page.wait_for_timeout(200)  # for errors that come late; nothing else waits for it


def check_clean(page):
    """Nothing went wrong while executing or drawing; the page fixture looks for console errors and
    requests to other machines."""
    text = page.locator("article").inner_text()
    assert text.strip()
    assert not TRACEBACK.search(text) and not BUILD_TIME.search(text)
    # widget state is inside scripts: errors raised in callbacks show up there only
    assert "Traceback (most recent call last)" not in page.content()
    for wrong in (
        ".cell_output .traceback",
        ".output.stderr",
        ".problematic",
        ".system-message",
    ):
        assert page.locator(f"article {wrong}").count() == 0, wrong
    no_alt = "images => images.filter(i => !i.alt.trim()).map(i => i.outerHTML.slice(0, 150))"
    assert page.locator("article img").evaluate_all(no_alt) == [], (
        "images without alt text"
    )
    formulas = page.locator("article .math").count()
    assert page.locator("article .math:has(math)").count() == formulas
    written = page.locator("article math").all_text_contents()
    assert not [text for text in written if "\\" in text], "TeX that is not MathML"
    if formulas:
        assert page.evaluate(FONTS) == ["loaded"]


def charts(page):
    """The charts that fl.book.chart put into the page, drawn."""
    page.wait_for_function(
        "[...document.querySelectorAll('article .fl-vega')].every(d => d.dataset.drawn)"
    )
    return page.locator("article .fl-vega").all()


def check_chart(page, box, label):
    """Every slider says its name and its value, and moves the picture; so do checkboxes, and in a
    chart without sliders the buttons of a choice."""
    picture = box.locator("svg.marks")
    box.scroll_into_view_if_needed()
    assert (
        picture.count() == 1
        and box.locator("[aria-roledescription], [aria-label]").count()
    )

    def moves(do):
        before = picture.evaluate("e => e.innerHTML")
        do()
        page.wait_for_function(
            "([e, before]) => e.innerHTML != before",
            arg=[picture.element_handle(), before],
        )

    for tick in box.locator("input[type=checkbox]").all():
        moves(lambda tick=tick: tick.set_checked(not tick.is_checked()))
        tick.check()  # what it hides is shown: every slider matters now
    sliders = box.locator("input[type=range]").all()
    if not sliders:
        moves(box.locator("input[type=radio]:not(:checked)").first.check)
    for k, handle in enumerate(sliders):
        where_k = f"{label}: slider {k}"
        assert handle.get_attribute("aria-label"), f"{where_k} has no name"
        value = handle.input_value()
        end = "Home" if float(value) >= float(handle.get_attribute("max")) else "End"
        handle.focus()
        moves(lambda handle=handle, end=end: handle.press(end))
        assert handle.input_value() != value, f"{where_k} does not move"
        text = handle.get_attribute("aria-valuetext")
        words = handle.evaluate(
            "e => e.parentElement.querySelector('output')?.textContent"
        )
        if words is None:
            assert text.split()[0] == handle.input_value(), f"{where_k} says {text!r}"
        else:  # in words, such as "1.6 Mbit/s"
            assert text == words and re.match(r"\d", text), f"{where_k} says {text!r}"


def test_a_round_plays_by_its_button_and_once_by_itself(page, site):
    open_page(page, site, "foundations/fedavg")
    box = charts(page)[0]
    slider = box.locator("input[name=round]")
    button = box.locator(".fl-play-rounds")
    box.scroll_into_view_if_needed()
    page.wait_for_timeout(600)
    assert slider.input_value() == "1", "it moves although motion is not wanted"
    end = slider.get_attribute("max")
    button.press("Enter")
    page.wait_for_function(
        "([e, end]) => e.value == end", arg=[slider.element_handle(), end]
    )
    assert button.get_attribute("aria-label") == "Play the rounds"
    page.emulate_media(reduced_motion="no-preference")
    page.reload()
    box = charts(page)[0]
    box.scroll_into_view_if_needed()
    handle = box.locator("input[name=round]").element_handle()
    for value in (end, "1"):  # there, and home again
        page.wait_for_function("([e, value]) => e.value == value", arg=[handle, value])


@pytest.mark.parametrize("name", PAGES)
def test_page_opens_clean_what_moves_moves_and_solutions_fold_open(page, site, name):
    open_page(page, site, name)
    check_clean(page)
    # sliders that nothing answers to are not seen in a page without a kernel
    assert not page.locator(f"article {SLIDER} >> visible=true").count()
    for k, box in enumerate(charts(page)):
        check_chart(page, box, f"{name}, chart {k}")
    for solution in page.locator("article details.fl-solution").all():
        solution.scroll_into_view_if_needed()
        body = solution.locator("p, pre").first
        assert not body.is_visible(), "a solution is open from the start"
        solution.locator("summary").click()
        body.wait_for(state="visible")
        assert body.inner_text().strip()


def test_a_chapter_works_from_disk_and_keeps_the_guess(page):
    """Opened as a file, without any server: formulas and a chart."""
    open_page(page, HTML.as_uri(), "together/seeing")
    assert page.locator("article math").count()
    charts(page)
    guess = page.locator("article .fl-vega input[name=guess]")
    guess.press("End")
    kept = guess.input_value()
    page.reload(wait_until="load")
    charts(page)
    assert guess.input_value() == kept


@pytest.mark.parametrize(
    "name", ["index", "foundations/fedavg"]
)  # without widgets, with
@pytest.mark.parametrize("misses", [1, 2])
def test_a_chart_is_asked_for_twice_and_then_its_still_stays(page, site, name, misses):
    asked = []

    def answer(route):
        asked.append(route.request.url)
        route.abort() if len(asked) <= misses else route.continue_()

    page.route("**/vega-embed.min.js*", answer)
    page.goto(f"{site}/{name}.html", wait_until="load")
    still = page.locator("article .cell_output > img:has(+ .text_html .fl-vega)").first
    if misses == 1:
        assert charts(page)
        assert not still.is_visible()
    else:
        while not any("without a script" in error for error in page.errors):
            page.wait_for_timeout(100)
        assert still.is_visible() and not page.locator("article svg.marks").count()
    assert len(asked) == 2
    page.errors.clear()  # the browser names what did not load


def every_page():
    """The pages of the table of contents, and those of methods."""
    return {
        *toc_pages(),
        *(f"methods/{path.stem}" for path in HTML.glob("methods/*.html")),
    }


def test_internal_links_lead_somewhere():
    """Every relative link of every page points to a file of the site, and its fragment to an id
    there."""
    broken = []
    for name in {
        *every_page(),
        *(f"slides/{path.stem}" for path in HTML.glob("slides/*.html")),
    }:
        path = HTML / f"{name}.html"
        for link in set(
            re.findall(r'<a [^>]*?href="([^"]+)"', path.read_text(encoding="utf-8"))
        ):
            target, _, fragment = link.partition("#")
            if re.match(r"[a-z]+:|//", link):
                continue
            goal = (
                (path.parent / target.partition("?")[0]).resolve() if target else path
            )
            page = fragment and goal.suffix == ".html" and goal.exists()
            if not goal.exists() or (
                page and f'id="{fragment}"' not in goal.read_text("utf-8")
            ):
                broken.append((name, link))
    assert not broken


def test_no_page_is_too_heavy_for_a_telephone():
    sizes = {name: (HTML / f"{name}.html").stat().st_size for name in every_page()}
    assert {name: size for name, size in sizes.items() if size > WEIGHT} == {}


@pytest.mark.parametrize("name", ["Fed-KGF", "signsgd"])
def test_the_search_finds_methods_by_their_names(page, site, name):
    page.goto(f"{site}/search.html?q={name}")
    first = page.locator("#search-results ul.search li a").first.get_attribute("href")
    assert first.startswith("methods/")
