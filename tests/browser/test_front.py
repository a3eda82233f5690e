"""The first page and the page of claims, as a reader gets them: from disk, with no network."""

import pytest
from conftest import HTML

import fedlearn as fl
from fedlearn.book.grids import chapter_file


def open_from_disk(page, name, box):
    page.goto(f"{HTML.as_uri()}/{name}", wait_until="load")
    page.locator(box).wait_for()
    return page.locator(box)


@pytest.mark.parametrize("width, height", [(1440, 900), (400, 850)])
def test_the_first_page_says_it_in_one_screen(page, width, height):
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(reduced_motion="no-preference")
    ring = open_from_disk(page, "index.html", ".fl-ring svg >> nth=0")
    for box in (ring, page.locator(".fl-lead"), *page.locator(".fl-go a").all()):
        place = box.bounding_box()
        assert place["y"] + place["height"] <= height, box
    assert page.locator(".fl-go a").all_inner_texts() == ["▶ Play", "Read", "Teach"]
    assert page.locator(".fl-card").count() == len(chapter_file("index")["cards"])

    def seen():
        frames = page.locator(".fl-frame").evaluate_all(
            "all => all.filter(f => getComputedStyle(f).visibility == 'visible')"
            ".map(f => f.textContent)"
        )
        assert len(frames) == 1
        return frames[0]

    first = seen()
    page.wait_for_timeout(2500)
    assert seen() != first, "the ring stands still"
    page.locator(".fl-ring input").check()
    paused = seen()
    page.wait_for_timeout(1500)
    assert seen() == paused, "it plays although it is paused"
    page.emulate_media(reduced_motion="reduce")
    assert "round 40" in seen(), "without motion the end is shown"


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


def test_the_table_of_claims_is_searched(page):
    box = open_from_disk(page, "appendix/claims.html", ".fl-sortable .dt-container")

    def identifiers():
        cells = box.locator("tbody td:last-child > div")
        return cells.evaluate_all("all => all.map(x => x.id)")

    claims = [c for c in fl.claims.load() if "reading_of" not in c]
    differ = [c["id"] for c in claims if c["verdict"] == "inconsistent"]
    assert identifiers()[: len(differ)] == differ and len(identifiers()) == len(claims)
    search = box.locator("input[type=search]")
    search.fill("RPN table 3")
    matches = identifiers()
    assert "rpn-table3-caption" in matches and "rpn-table1-fl-params" not in matches
    search.fill("")
    box.locator("details summary:visible").first.click()
    assert box.locator("details[open] > code").first.inner_text().startswith("data = ")
    # a link to a reading finds it
    reading = open_from_disk(
        page, "appendix/claims.html#fed_gkt-params-54", "p#fed_gkt-params-54"
    )
    assert "rejected" in reading.inner_text()
