"""The ledger as a page shows it: how many claims hold, and a table that the reader sorts and
filters (``sortable.py``)."""

import html
import json
from typing import Any

from .. import ledger as claims
from . import sortable
from .show import Shown, inline, table

PAPERS = {
    "rpn": "RPN",
    "fed_kgf": "Fed-KGF",
    "fed_mmd_fusion": "FedMMD and FedFusion",
    "fed_gkt": "FedGKT",
    "fed_repopt": "FedRepOpt",
}
HEADS = {"paper": "place", "where": "text", "printed": "", "recomputed": "",
         "verdict": "inconsistent|rounding|not derivable|matches", "why": "text"}  # fmt: skip


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
    results = claims.audit()
    readings: dict[str, list[claims.Result]] = {}
    for r in results:
        if "reading_of" in r.claim:
            readings.setdefault(r.claim["reading_of"], []).append(r)
    its = [r for r in results if "reading_of" not in r.claim]
    bodies = []
    for r in its:
        lines = "".join(map(row, [r, *readings.get(r.claim["id"], [])]))
        bodies.append(
            f'<tbody data-paper="{r.claim["paper"]}" data-verdict="{r.verdict}">{lines}</tbody>'
        )
    verdicts = {v: v for v in claims.VERDICTS if v != "rejected"}
    form = (
        sortable.choose("paper", PAPERS),
        sortable.choose("verdict", verdicts, start="inconsistent"),
        sortable.find("text or place", "Table 1"),
        '<label><input type="checkbox" name="readings" data-lines="fl-reading"> show other '
        "readings</label>",
    )
    return Shown(
        sortable.table(number, caption, "claims", HEADS, bodies, form, "fl-ledger"),
        f"Table {number}. {caption}\n{claims.report(results)}",
    )
