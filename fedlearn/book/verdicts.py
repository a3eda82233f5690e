"""The ledger as a page shows it: how many claims hold, and a table that the reader sorts and
searches."""

import html
import json
from typing import Any

from .. import ledger as claims
from . import datatable
from .show import Shown, inline, table

PAPERS = {
    "rpn": "RPN",
    "fed_kgf": "Fed-KGF",
    "fed_mmd_fusion": "FedMMD and FedFusion",
    "fed_gkt": "FedGKT",
    "fed_repopt": "FedRepOpt",
}
HEADS = ("paper", "where", "printed", "recomputed", "verdict", "why")
RANKS = {"inconsistent": 0, "rounding": 1, "not derivable": 2, "matches": 3}


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


def printed(result: claims.Result) -> str:
    """What the paper prints, and how it is read."""
    c = result.claim
    read = f'<span class="fl-read">read: {inline(str(c["read"]))}</span>' if c.get("read") else ""
    return inline(str(c["printed"])) + read


def formula(result: claims.Result) -> str:
    """The formula, which unfolds the printed figures that it uses."""
    c = result.claim
    code = f"<code>{html.escape(c['formula'] or '')}</code>"
    if "data" not in c:
        return code * bool(c["formula"])
    figures = html.escape(json.dumps(c["data"], ensure_ascii=False))
    return f"<details><summary>{code}</summary><code>data = {figures}</code></details>"


def row(result: claims.Result, readings: list[claims.Result]) -> list[datatable.Cell]:
    """A claim as a table's cells; its other readings unfold in the last one."""
    c, computed = result.claim, html.escape(claims.show(result.computed))
    why = f'<span id="{c["id"]}">{inline(c["why"])}</span>{formula(result)}'
    if readings:
        why += f"<details><summary>{len(readings)} other readings</summary>"
        for r in readings:
            recomputed = html.escape(claims.show(r.computed))
            why += f'<p id="{r.claim["id"]}">{printed(r)} {recomputed}, <b>{r.verdict}</b>: '
            why += f"{inline(r.claim['why'])}{formula(r)}</p>"
        why += "</details>"
    cells = (PAPERS[c["paper"]], inline(c["where"]), printed(result), computed)
    return [*cells, (result.verdict, RANKS[result.verdict]), why]


def ledger(number: str, caption: str) -> Shown:
    """All claims as one table, each with its other readings, those that do not hold first."""
    results = claims.audit()
    readings: dict[str, list[claims.Result]] = {}
    for r in results:
        if "reading_of" in r.claim:
            readings.setdefault(r.claim["reading_of"], []).append(r)
    rows = [row(r, readings.get(r.claim["id"], [])) for r in results if "reading_of" not in r.claim]
    rows.sort(key=lambda cells: cells[4][1])
    units = {"recomputed": ""}
    return Shown(
        datatable.table(number, caption, "claims", HEADS, rows, units, "fl-ledger"),
        f"Table {number}. {caption}\n{claims.report(results)}",
    )
