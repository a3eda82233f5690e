"""The first page and the page of claims: what they show is what is stored, and the formula that the
page computes with is the package's."""

import json
import math
import re
from pathlib import Path

import altair
import numpy as np
import pytest
from test_link import history

import fedlearn as fl
from fedlearn.book import front
from fedlearn.book.grids import chapter_file

SPEC = chapter_file("index")


@pytest.fixture(scope="module")
def shown():
    return fl.book.minutes("0.1", caption="c", alt="a")


def test_the_picture_is_valid_vega_with_named_sliders(shown):
    spec = dict(shown.spec)
    # `on` is Vega's own: Vega-Lite hands it through, though its schema does not have it
    spec["params"] = [{k: v for k, v in p.items() if k != "on"} for p in spec["params"]]
    altair.LayerChart.from_dict(spec)
    params = {p["name"]: p for p in spec["params"]}
    assert params["runs"]["value"] in params["runs"]["bind"]["options"]
    assert params["link"]["bind"]["options"] == [*fl.link.PRESETS, "own"]
    meta = spec["usermeta"]
    assert set(meta["says"]) == {p for p in params if params[p].get("bind", {}).get("max")}
    assert set(meta["says"].values()) <= params.keys()


def test_every_comparison_has_fedavg_and_its_runs(shown):
    values = shown.spec["data"]["values"]
    for its in SPEC["minutes"]["comparisons"]:
        rows = [r for r in values if r["runs"] == its["name"]]
        lines = list(dict.fromkeys(r["line"] for r in rows))
        assert lines[0] == "FedAvg" and len(lines) > 1, its["name"]
        if its["results"] == "fed_kgf_digits":
            assert len(lines) == 12
    with pytest.raises(ValueError, match="no stored run of FedAvg"):
        front.runs_of({"name": "x", "results": "fed_kgf_digits", "partition": "Iid", "lines": None})


def as_python(expression, **names):
    """A Vega expression of sums, products and powers, computed."""
    text = re.sub(r"datum\.(\w+)", r"\1", expression).replace("pow(10,", "10**(")
    return eval(text, {"__builtins__": {}}, names)


def stretched(shown, clients, stragglers):
    """What the page's table has for the slowest of so many devices."""
    its = next(t["calculate"] for t in shown.spec["transform"] if t.get("as") == "stretch")
    table = json.loads(its[1 : its.index(")[")])
    return table[str(clients)][round(10 * stragglers)]


def test_the_page_knows_what_stragglers_cost(shown):
    for n in {row["clients"] for row in shown.spec["data"]["values"]}:
        for s in front.STRAGGLERS:
            assert stretched(shown, n, s) == pytest.approx(fl.link.stretch(n, s), rel=1e-4)


@pytest.mark.parametrize("preset", fl.link.PRESETS)
@pytest.mark.parametrize(("slower", "stragglers"), [(0, 1.0), (7, 0.0), (7, 1.3)])
def test_the_page_computes_with_the_formula_of_the_package(preset, slower, stragglers):
    up, down, latency = fl.link.check(**fl.link.PRESETS[preset].asdict())
    its = history(rounds=5, clients=3, up=12345, down=67890)
    sums = {k: np.cumsum(v) for k, v in fl.link.shares(its).items()}
    here = {"up": math.log10(up) - 6, "down": math.log10(down) - 6}
    # in the page, datum.up is a row's bytes and up is the slider's power of ten
    text = front.SECONDS.replace("pow(10, down", "pow(10, toDown").replace(
        "pow(10, up", "pow(10, toUp"
    )
    how = {"slower": slower, "stragglers": stragglers}
    for t, expected in enumerate(fl.link.time(its, up, down, latency, **how)):
        computed = as_python(
            text,
            round=t + 1,
            latency=1000 * latency,
            slower=slower,
            stretch=fl.link.stretch(3, stragglers),
            sec=sums["computing"][t],
            up=sums["up"][t],
            down=sums["down"][t],
            toUp=here["up"],
            toDown=here["down"],
        )
        assert computed == pytest.approx(expected)


def test_a_stored_line_takes_as_long_as_its_runs(shown):
    """The page's rows, means of three seeds, against the package on each of the runs."""
    its = SPEC["minutes"]["comparisons"][0]
    runs = front.runs_of(its)
    for line in ("FedAvg", "RPN", "STC"):
        last = [
            r for r in shown.spec["data"]["values"] if (r["runs"], r["line"]) == (its["name"], line)
        ][-1]
        how = {"latency": "100ms", "slower": 2, "stragglers": 1.3}
        seconds = [fl.link.time(h, "1Mbit", "1Mbit", **how)[-1] for h in runs[line]]
        stretch = stretched(shown, last["clients"], 1.3)
        computed = last["round"] * 0.1 + 2 * stretch * last["sec"]
        computed += 8 * (last["up"] + last["down"]) / 1e6
        assert computed == pytest.approx(np.mean(seconds), rel=1e-3)
        assert last["accuracy"] == pytest.approx(
            np.mean([h.final["accuracy"] for h in runs[line]]), abs=1e-4
        )


@pytest.fixture(scope="module")
def drawings():
    """The drawing of each card, by its chapter."""
    made = re.findall('<div role="img".*?</svg></div>', fl.book.cards().content)
    return dict(zip(SPEC["cards"], made, strict=True))


def test_a_card_shows_what_a_paper_replaces(drawings):
    cards = fl.book.cards().content
    for name, its in SPEC["cards"].items():
        assert f'href="{its["page"]}.html"' in cards and its["says"] in cards
        replaced = chapter_file(name)["drawing"]["replaces"]
        drawing = drawings[name]
        assert drawing.count(front.PLATE) == len(replaced)
        alt = re.search('aria-label="([^"]+)"', drawing)[1]
        assert all(part in alt for part in replaced) and "dense message" in alt


def test_the_arrows_of_all_cards_have_one_scale(drawings):
    arrows = []
    for drawing in drawings.values():
        alt = re.search('aria-label="([^"]+)"', drawing)[1]
        down, up, dense = (float(n) for n in re.findall(r"([\d.]+) kB", alt))
        widths = re.findall(r'stroke-width="([\d.]+)"/><polygon', drawing)  # pale and full
        arrows += zip((dense, down, dense, up), map(float, widths), strict=True)
    most, widest = max(arrows)
    for size, wide in arrows:
        assert wide == pytest.approx(max(1.2, widest * size / most), abs=0.06)


def test_the_table_of_claims_has_every_claim_once_with_its_readings():
    content = fl.book.ledger("B.2", "c").content
    entries = fl.claims.load()
    rows = content.split("<tbody>")[1].split("</tr>")[:-1]
    claims = {c["id"]: c for c in entries if "reading_of" not in c}
    assert len(rows) == len(claims)
    for row in rows:
        name, *readings = re.findall('<(?:span|p) id="([^"]+)"', row)
        mine = [c["id"] for c in entries if c.get("reading_of") == name]
        assert readings == mine and f"{claims.pop(name)['verdict']}</td>" in row
    assert "<code>mean(data)</code></summary><code>data = [[0.3, 0.1, 0.3]" in content


def test_the_counts_are_of_claims():
    rows = fl.book.ledger_counts("B.1", "c").text
    entries = fl.claims.load()
    assert f"'claims': {sum('reading_of' not in c for c in entries)}" in rows
    assert f"'readings': {sum('reading_of' in c for c in entries)}" in rows


ROOT = Path(__file__).resolve().parents[2]
# api is made of docstrings
PAGES = [p for p in [*ROOT.glob("book/*.md"), *ROOT.glob("book/appendix/*.md")] if p.stem != "api"]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_text_pages_are_plain_markdown(path):
    text = path.read_text(encoding="utf-8")
    raw = re.findall(
        r"\{[a-z:-]+\}`|^\([\w-]+\)=\s*$|^(?:`{3,}|:{3,})\{(?!code-cell\})", text, re.M
    )
    assert raw == []


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda p: p.stem)
def test_counts_of_claims_are_computed_not_typed(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\b\d[\d,]* (?:\w+ )?(?:claims|entries|readings)\b", text)
