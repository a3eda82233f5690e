"""The first page and the page of claims, as a reader gets them: from disk, with no network."""

from conftest import HTML

import fedlearn as fl
from fedlearn.book.grids import chapter_file


def open_from_disk(page, name, box):
    page.goto(f"{HTML.as_uri()}/{name}", wait_until="load")
    page.locator(box).wait_for()
    return page.locator(box)


def test_the_first_page_says_it_in_one_screen(page):
    page.set_viewport_size({"width": 1440, "height": 900})
    starts = open_from_disk(page, "index.html", ".fl-starts").bounding_box()
    figure = page.locator("#figure-0-1").bounding_box()
    assert (
        starts["y"] + starts["height"]
        < figure["y"]
        < figure["y"] + figure["height"]
        <= 900
    )
    assert page.locator(".fl-card").count() == len(chapter_file("index")["cards"])


def test_every_lesson_has_slides(page):
    open_from_disk(page, "slides/index.html", "li >> nth=0")
    decks = page.locator("li a:has-text('slides')").evaluate_all(
        "all => all.map(a => a.href)"
    )
    assert len(decks) == len(list(HTML.glob("*/*_audit.html")))
    page.goto(decks[0])
    page.wait_for_function("window.Reveal?.isReady()")
    assert page.evaluate("Reveal.getTotalSlides()") >= 10
    page.keyboard.press("ArrowRight")
    assert page.evaluate("Reveal.getIndices().h") == 1


def test_the_table_of_claims_is_searched_and_sorted(page):
    box = open_from_disk(page, "appendix/claims.html", ".fl-sortable .dt-container")

    def shown():
        cells = box.locator("tbody td:last-child > div")
        return cells.evaluate_all("all => all.map(x => x.id)")

    claims = [c for c in fl.claims.load() if "reading_of" not in c]
    differ = [c["id"] for c in claims if c["verdict"] == "inconsistent"]
    assert shown()[: len(differ)] == differ and len(shown()) == len(claims)
    search = box.locator("input[type=search]")
    search.fill("RPN table 3")
    some = shown()
    assert "rpn-table3-caption" in some and "rpn-table1-fl-params" not in some
    assert len(some) < len(claims)
    search.fill("")
    box.locator("th", has_text="verdict").locator("[tabindex]").press("Enter")
    box.locator("th[aria-sort=ascending]", has_text="verdict").wait_for()
    verdicts = box.locator("tbody td:nth-child(5)").all_inner_texts()
    assert len(verdicts) == len(claims) and verdicts == sorted(verdicts)
    box.locator("details summary:visible").first.click()
    assert box.locator("details[open] > code").first.inner_text().startswith("data = ")
    # a link to a reading finds it
    reading = open_from_disk(
        page, "appendix/claims.html#fed_gkt-params-54", "p#fed_gkt-params-54"
    )
    assert "rejected" in reading.inner_text()
