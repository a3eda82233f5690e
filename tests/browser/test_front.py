"""The first page and the page of claims, as a reader gets them: from disk, with no network."""

import re

import numpy as np
import pytest
from conftest import HTML

import fedlearn as fl
from fedlearn.book import front, leaderboard, shootout
from fedlearn.book.grids import chapter_file

MINUTES = chapter_file("index")["minutes"]
UNITS = {"s": 1, "min": 60, "h": 3600, "days": 86400}


def open_from_disk(page, name):
    page.goto((HTML / f"{name}.html").as_uri(), wait_until="load")


def written(page, whose, of_any=False):
    """The words in the picture, such as "FedAvg: 3.4 min", as (number, unit)."""
    words = page.locator("#figure-0-1 svg.marks text").all_text_contents()
    name = re.escape(whose) + ("[^:]+" if of_any else "")
    found = [re.fullmatch(name + r": ([\d.]+) ?(\w+)", w) for w in words]
    return next((float(m[1]), m[2]) for m in found if m)


def seconds_to(target, histories, link):
    """When the mean of the seeds first reaches the target on a link."""
    mean = np.mean([h.accuracy for h in histories], 0).round(4)
    times = np.mean([fl.link.time(h, **link) for h in histories], 0)
    return times[np.argmax(mean >= target)]


def test_bytes_become_minutes_as_the_package_says(page):
    open_from_disk(page, "index")
    chart = page.locator("#figure-0-1[data-drawn]")
    chart.wait_for()
    names = [its["name"] for its in MINUTES["comparisons"]]
    assert chart.locator("select option").all_inner_texts() == names
    its = MINUTES["comparisons"][names.index(MINUTES["start"]["comparison"])]
    runs, target = front.runs_of(its)["FedAvg"], MINUTES["target"]
    for name, preset in fl.link.PRESETS.items():
        chart.locator("label").filter(has_text=re.compile(f"^{name}$")).click()
        page.wait_for_function(
            "name => document.querySelector('input[name=link]:checked').value == name", arg=name
        )
        expected = seconds_to(target, runs, preset)
        page.wait_for_timeout(200)  # Vega draws after the signal
        number, unit = written(page, "FedAvg")
        assert number * UNITS[unit] == pytest.approx(expected, rel=0.06), name
        first = written(page, f"first at {target}: ", of_any=True)
        assert first[0] * UNITS[first[1]] <= expected * 1.06
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
    said = slider.get_attribute("aria-valuetext")
    assert said == slider.locator("xpath=following-sibling::output").inner_text()
    assert fl.link.quantity(said.replace(" ", "").replace("/s", ""), "speed") > 0
    chart.get_by_text(front.BYTES).click()
    page.wait_for_timeout(200)
    assert written(page, "FedAvg")[1].endswith("B")
    for name in names:
        chart.locator("select").select_option(name)
        page.wait_for_timeout(200)
        its = MINUTES["comparisons"][names.index(name)]
        labels = chart.locator("svg.marks .role-legend-label text").all_text_contents()
        assert len(labels) == len(front.runs_of(its)) and labels[0] == "FedAvg", name


def test_the_first_page_says_it_in_one_screen(page):
    page.set_viewport_size({"width": 1440, "height": 900})
    open_from_disk(page, "index")
    page.locator("#figure-0-1[data-drawn]").wait_for()
    starts = page.locator(".fl-starts").bounding_box()
    assert starts["y"] + starts["height"] <= 900
    assert page.locator(".fl-card svg").count() >= 4
    assert page.locator(".fl-card").count() == len(chapter_file("index")["cards"])


def shown(page):
    """The ids of the claims in the table, in the order in which they stand."""
    cells = page.locator(".fl-ledger tbody td:last-child > span")
    return cells.evaluate_all("all => all.map(x => x.id)")


def ordered(head, order):
    """Wait until the table is sorted by this column."""
    is_so = "([head, order]) => head.getAttribute('aria-sort') == order"
    head.page.wait_for_function(is_so, arg=[head.element_handle(), order])


def test_the_table_of_claims_is_searched_and_sorted(page):
    open_from_disk(page, "appendix/claims")
    box = page.locator(".fl-ledger .dt-container")
    box.wait_for()
    claims = [c for c in fl.claims.load() if "reading_of" not in c]
    differ = [c["id"] for c in claims if c["verdict"] == "inconsistent"]
    assert shown(page)[: len(differ)] == differ and len(shown(page)) == len(claims)
    field, count = box.locator("input[type=search]"), box.locator(".dt-info")
    assert count.inner_text() == f"{len(claims)} claims"
    field.fill("RPN table 3")
    some = shown(page)
    assert "rpn-table3-caption" in some and "rpn-table1-fl-params" not in some
    assert count.inner_text() == f"{len(some)} claims of {len(claims)}"
    field.fill("")
    head, numbers = box.locator("th", has_text="recomputed"), []
    for order in ("ascending", "descending"):
        head.click()
        ordered(head, order)
        texts = box.locator("tbody td:nth-child(4)").all_inner_texts()
        values = [t.replace(",", "") for t in texts]
        numbers.append([float(v.split()[0]) for v in values if re.match(r"-?\d", v)])
    assert len(numbers[0]) > 100
    assert numbers[0] == sorted(numbers[0]) and numbers[1] == sorted(numbers[1], reverse=True)
    box.locator("details summary:visible").first.click()
    assert box.locator("details[open] > code").first.inner_text().startswith("data = ")


def test_a_link_to_a_reading_finds_it(page):
    page.goto((HTML / "appendix/claims.html").as_uri() + "#fed_gkt-params-54", wait_until="load")
    wanted = page.locator("p#fed_gkt-params-54")
    wanted.wait_for()
    assert "rejected" in wanted.inner_text()


def test_the_leaderboard_sorts_from_the_keyboard_and_is_searched(page):
    page.set_viewport_size({"width": 400, "height": 900})
    open_from_disk(page, "appendix/leaderboard")
    box = page.locator(".fl-leaderboard .dt-container")
    box.wait_for()
    made = leaderboard.rows(*fl.results.tables()) + leaderboard.rows(*shootout.tables())
    assert box.locator(".dt-info").inner_text() == f"{len(made)} rows"
    box.locator("input[type=search]").fill("main_class:0.8 cifar10")
    some = [r for r in made if r["split"] == "main_class:0.8" and "cifar10," in r["task"]]
    assert 5 < len(some) <= box.locator("tbody tr").count() < len(made)
    head = box.locator("th", has_text=re.compile("^MB up(?! to)"))
    column = list(leaderboard.HEADS).index("MB up") + 1
    cells = box.locator(f"tbody td:nth-child({column})")
    for reverse in (False, True):
        head.locator("[tabindex]").focus()
        page.keyboard.press("Enter")
        ordered(head, "descending" if reverse else "ascending")
        megabytes = [float(t.replace(",", "")) for t in cells.all_inner_texts()]
        assert megabytes == sorted(megabytes, reverse=reverse) and len({*megabytes}) > 3
    head = box.locator("th", has_text="MB up to it")
    head.click()
    ordered(head, "ascending")
    column = list(leaderboard.HEADS).index("MB up to it") + 1
    texts = box.locator(f"tbody td:nth-child({column})").all_inner_texts()
    missing = [text == "not reached" for text in texts]
    assert missing == sorted(missing) and any(missing)  # they come last
    box.locator("tbody summary").first.focus()
    page.keyboard.press("Enter")
    unfolded = box.locator("details[open] > code").nth(1).inner_text()
    assert unfolded in {f for row in made for f in row["files"]}
