"""The first page and the page of claims, as a reader gets them: from disk, with no network."""

import re

import numpy as np
import pytest
from conftest import HTML

import fedlearn as fl
from fedlearn.book import index
from fedlearn.book.grids import chapter_file

MINUTES = chapter_file("index")["minutes"]
UNITS = {"s": 1, "min": 60, "h": 3600, "days": 86400}


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


def test_bytes_become_minutes_as_the_package_says(page):
    chart = open_from_disk(page, "together/choosing.html", "#figure-11-2[data-drawn]")
    names = [its["name"] for its in MINUTES["comparisons"]]
    assert chart.locator("select option").all_inner_texts() == names
    its = MINUTES["comparisons"][names.index(MINUTES["start"]["comparison"])]
    runs = index.runs_of(its)["FedAvg"]
    reached = np.argmax(
        np.mean([h.accuracy for h in runs], 0).round(4) >= MINUTES["target"]
    )
    picture = chart.locator("svg.marks")
    for name, link in fl.link.PRESETS.items():
        chart.locator("label").filter(has_text=re.compile(f"^{name}$")).click()
        page.wait_for_timeout(200)  # Vega draws after the signal
        texts = " ".join(picture.locator("text").all_text_contents())
        number, unit = re.search(
            r"FedAvg: ([\d.]+) ?(\w+)", texts
        ).groups()  # such as 3.4 min
        expected = np.mean([fl.link.time(h, **link) for h in runs], 0)[reached]
        assert float(number) * UNITS[unit] == pytest.approx(expected, rel=0.06), name
        # every spot is inside the picture: the axis follows the link
        frame = picture.bounding_box()
        spots = picture.locator(".mark-symbol.layer_2_marks path").all()
        assert len(spots) == 2
        for spot in spots:
            assert 0 < spot.bounding_box()["x"] - frame["x"] < frame["width"], name


def test_the_table_of_claims_is_searched_and_sorted(page):
    box = open_from_disk(page, "appendix/claims.html", ".fl-ledger .dt-container")

    def shown():
        cells = box.locator("tbody td:last-child > span")
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
