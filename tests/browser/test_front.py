"""The first page and the pages of claims and of the leaderboard, as a reader gets them: from disk,
with no network."""

import re

import numpy as np
import pytest
from conftest import HTML

import fedlearn as fl
from fedlearn.book import front, leaderboard, shootout
from fedlearn.book.grids import chapter_file

MINUTES = chapter_file("index")["minutes"]
UNITS = {"s": 1, "min": 60, "h": 3600, "days": 86400}


def open_from_disk(page, name, box):
    page.goto(f"{HTML.as_uri()}/{name}", wait_until="load")
    page.locator(box).wait_for()
    return page.locator(box)


def written(page, whose):
    """The words in the picture, such as "FedAvg: 3.4 min", as (number, unit)."""
    words = page.locator("#figure-0-1 svg.marks text").all_text_contents()
    found = [re.fullmatch(rf"{whose}: ([\d.]+) ?(\w+)", w) for w in words]
    return next((float(m[1]), m[2]) for m in found if m)


def test_bytes_become_minutes_as_the_package_says(page):
    page.set_viewport_size({"width": 1440, "height": 900})
    chart = open_from_disk(page, "index.html", "#figure-0-1[data-drawn]")
    starts = page.locator(".fl-starts").bounding_box()
    assert starts["y"] + starts["height"] <= 900, "the first page says it in one screen"
    assert page.locator(".fl-card").count() == len(chapter_file("index")["cards"])
    names = [its["name"] for its in MINUTES["comparisons"]]
    assert chart.locator("select option").all_inner_texts() == names
    its = MINUTES["comparisons"][names.index(MINUTES["start"]["comparison"])]
    runs = front.runs_of(its)["FedAvg"]
    reached = np.argmax(np.mean([h.accuracy for h in runs], 0).round(4) >= MINUTES["target"])
    for name, link in fl.link.PRESETS.items():
        chart.locator("label").filter(has_text=re.compile(f"^{name}$")).click()
        page.wait_for_timeout(200)  # Vega draws after the signal
        number, unit = written(page, "FedAvg")
        expected = np.mean([fl.link.time(h, **link) for h in runs], 0)[reached]
        assert number * UNITS[unit] == pytest.approx(expected, rel=0.06), name
        # every spot is inside the picture: the axis follows the link
        frame = page.locator("#figure-0-1 svg.marks").bounding_box()
        spots = page.locator("#figure-0-1 svg.marks .mark-symbol.layer_2_marks path").all()
        assert len(spots) == 2
        for spot in (spot.bounding_box() for spot in spots):
            assert frame["x"] < spot["x"] < frame["x"] + frame["width"], name
    slider = chart.locator("input[name=up]")
    slider.focus()
    slider.press("ArrowRight")
    assert page.locator("input[name=link]:checked").input_value() == front.OWN
    chart.get_by_text(front.BYTES).click()
    page.wait_for_timeout(200)
    assert written(page, "FedAvg")[1].endswith("B")
    for its in MINUTES["comparisons"]:
        chart.locator("select").select_option(its["name"])
        page.wait_for_timeout(200)
        labels = chart.locator("svg.marks .role-legend-label text").all_text_contents()
        assert len(labels) == len(front.runs_of(its)) and labels[0] == "FedAvg", its["name"]


def column(box, head, k):
    """Sort by a column from the keyboard, upwards and then downwards -> its texts each time."""
    is_so = "([head, order]) => head.getAttribute('aria-sort') == order"
    texts = []
    for order in ("ascending", "descending"):
        head.locator("[tabindex]").focus()
        box.page.keyboard.press("Enter")
        box.page.wait_for_function(is_so, arg=[head.element_handle(), order])
        texts.append(box.locator(f"tbody td:nth-child({k})").all_inner_texts())
    return texts


def test_the_table_of_claims_is_searched_and_sorted(page):
    box = open_from_disk(page, "appendix/claims.html", ".fl-ledger .dt-container")

    def shown():
        cells = box.locator("tbody td:last-child > span")
        return cells.evaluate_all("all => all.map(x => x.id)")

    claims = [c for c in fl.claims.load() if "reading_of" not in c]
    differ = [c["id"] for c in claims if c["verdict"] == "inconsistent"]
    assert shown()[: len(differ)] == differ and len(shown()) == len(claims)
    box.locator("input[type=search]").fill("RPN table 3")
    some = shown()
    assert "rpn-table3-caption" in some and "rpn-table1-fl-params" not in some
    said = box.locator(".dt-info").inner_text()
    assert said == f"{len(some)} claims of {len(claims)}"
    box.locator("input[type=search]").fill("")
    numbers = [
        [float(t.replace(",", "").split()[0]) for t in texts if re.match(r"-?\d", t)]
        for texts in column(box, box.locator("th", has_text="recomputed"), 4)
    ]
    assert len(numbers[0]) > 100
    assert numbers == [sorted(numbers[0]), sorted(numbers[0], reverse=True)]
    box.locator("details summary:visible").first.click()
    assert box.locator("details[open] > code").first.inner_text().startswith("data = ")
    # a link to a reading finds it
    reading = open_from_disk(page, "appendix/claims.html#fed_gkt-params-54", "p#fed_gkt-params-54")
    assert "rejected" in reading.inner_text()


def test_the_leaderboard_sorts_and_is_searched(page):
    page.set_viewport_size({"width": 400, "height": 900})
    box = open_from_disk(page, "appendix/leaderboard.html", ".fl-leaderboard .dt-container")
    made = leaderboard.rows(*fl.results.tables()) + leaderboard.rows(*shootout.tables())
    assert box.locator(".dt-info").inner_text() == f"{len(made)} rows"
    box.locator("input[type=search]").fill("main_class:0.8 cifar10")
    some = [r for r in made if r["split"] == "main_class:0.8" and "cifar10," in r["task"]]
    assert 5 < len(some) <= box.locator("tbody tr").count() < len(made)
    k = list(leaderboard.HEADS).index("MB up to it") + 1
    texts, _ = column(box, box.locator("th", has_text="MB up to it"), k)
    missing = [text == "not reached" for text in texts]
    assert missing == sorted(missing) and any(missing)  # they come last
    box.locator("tbody summary").first.focus()
    page.keyboard.press("Enter")
    unfolded = box.locator("details[open] > code").nth(1).inner_text()
    assert unfolded in {f for row in made for f in row["files"]}
