"""The ledger as a page shows it: how many claims hold, and a table that the reader sorts and
filters. Without scripts the whole table is there; ``fl-ledger.js`` of the book moves it."""

import html
import json
from typing import Any

from ..ledger import claims
from .show import Shown, inline, said, table

PAPERS = {
    "rpn": "RPN",
    "fed_kgf": "Fed-KGF",
    "fed_mmd_fusion": "FedMMD and FedFusion",
    "fed_gkt": "FedGKT",
    "fed_repopt": "FedRepOpt",
}
HEADS = ("paper", "where", "printed", "recomputed", "verdict", "why")


def ledger_counts(number: str, caption: str) -> Shown:
    """How many claims of each paper have each verdict. Readings are counted apart."""
    rows: list[dict[str, Any]] = []
    results = claims.audit()
    for paper, name in PAPERS.items():
        its = [r for r in results if r.claim["paper"] == paper]
        each = claims.counts(its)
        readings = sum("reading_of" in r.claim for r in its)
        rows.append({"paper": name, "claims": sum(each.values()), **each, "readings": readings})
    total = {k: sum(row[k] for row in rows) for k in rows[0] if k != "paper"}
    rows.append({"paper": "*all*", **total})
    units = {"readings": "not counted as claims"}
    return table(number, rows, caption, units)


def row(result: claims.Result) -> str:
    """A claim or a reading as a table's row, and its formula as the next one, which unfolds the
    printed figures that it uses."""
    c, reading = result.claim, "reading_of" in result.claim
    name = "reading" if reading else PAPERS[c["paper"]]
    printed = inline(str(c["printed"]))
    if c.get("read"):
        printed += f'<span class="fl-read">read: {inline(str(c["read"]))}</span>'
    computed = html.escape(claims.show(result.computed))
    cells = (name, inline(c["where"]), printed, computed, result.verdict, inline(c["why"]))
    kind = "fl-reading" if reading else "fl-claim"
    body = "".join(f"<td>{cell}</td>" for cell in cells)
    line = f'<tr id="{c["id"]}" class="{kind}" data-verdict="{result.verdict}">{body}</tr>'
    if not c["formula"]:
        return line
    formula = f"<code>{html.escape(c['formula'])}</code>"
    if "data" in c:
        figures = html.escape(json.dumps(c["data"], ensure_ascii=False))
        formula = f"<details><summary>{formula}</summary><code>data = {figures}</code></details>"
    return f'{line}<tr class="{kind} fl-formula"><td></td><td colspan="5">{formula}</td></tr>'


def ledger(number: str, caption: str) -> Shown:
    """All claims as one table, each with its other readings below it."""
    anchor, above = said("Table", number, caption)
    results = claims.audit()
    readings: dict[str, list[claims.Result]] = {}
    for r in results:
        if "reading_of" in r.claim:
            readings.setdefault(r.claim["reading_of"], []).append(r)
    its = [r for r in results if "reading_of" not in r.claim]
    bodies = []
    for r in its:
        lines = "".join(map(row, [r, *readings.get(r.claim["id"], [])]))
        bodies.append(f'<tbody data-paper="{r.claim["paper"]}">{lines}</tbody>')
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADS)
    return Shown(
        f'<figure class="fl fl-ledger" id="{anchor}">{above}{controls()}'
        f'<div class="fl-scroll" role="region" tabindex="0" aria-label="Table {number}">'
        f'<table class="fl-table"><thead><tr>{head}</tr></thead>{"".join(bodies)}</table></div>'
        "</figure>",
        f"Table {number}. {caption}\n{claims.report(results)}",
    )


def controls() -> str:
    """What the page's script filters by; hidden until the script is there."""

    def choose(name: str, options: dict[str, Any]) -> str:
        inside = "".join(
            f'<option value="{k}">{html.escape(v)}</option>' for k, v in options.items()
        )
        return f'<label>{name} <select name="{name}">{inside}</select></label>'

    verdicts = {v: v for v in claims.VERDICTS if v != "rejected"}
    return (
        '<form class="fl-controls" hidden>'
        f"{choose('paper', {'': 'all', **PAPERS})}{choose('verdict', {'': 'all', **verdicts})}"
        '<label>text or place <input type="search" name="text" placeholder="Table 1"></label>'
        '<label><input type="checkbox" name="readings"> show other readings</label>'
        '<output aria-live="polite"></output></form>'
    )
