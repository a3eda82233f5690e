"""The table that opens a paper's chapter: paper, here, difference.

``data/chapters/<name>.yaml`` states its rows under ``opening``: what the paper prints is read from
the ledger, what was measured here from the stored runs. A cell without a run carries the command
that fills it.
"""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import ledger as claims
from .. import results
from ..history import History
from ..report import spread
from .grids import chapter_file
from .show import Shown, missing, table


def printed(claim: str, k: int | list[int]) -> float:
    """The k-th number that an entry of the ledger prints, or that of a row and column of its
    data."""
    entry = {c["id"]: c for c in claims.load()}[claim]
    if isinstance(k, list):
        return float(entry["data"][k[0]][k[1]])
    numbers = re.findall(r"[-−]?\d[\d,]*\.?\d*", str(entry["printed"]))
    if "." not in entry["printed"]:
        numbers = [n.rstrip(",") for n in numbers]
    return float(numbers[k].strip(",").replace(",", "").replace("−", "-"))


def measured(row: dict[str, Any], histories: Iterable[History]) -> list[float]:
    """One number a seed: the row's measure of the runs with its line's label, and where it says of
    which task, data set or split (``where``: the beginnings of their names), of those alone."""
    runs, rounds = results.tables(histories)
    if runs.empty:
        return []
    its = runs["label"].str.lower() == str(row["line"]).lower()
    for name, starts in row.get("where", {}).items():
        its &= runs[name].str.startswith(tuple(starts))
    if row["measure"] == "up":  # bytes of one client in a round
        sent = (rounds["bytes_up"] / rounds["clients"]).groupby(rounds["run"]).mean()
        return sent[its].tolist()
    return runs[its][row["measure"]].tolist()


def origin(histories: Iterable[History]) -> str:
    """Where stored runs come from, a sentence: device, arithmetic, day, seed and commit of each."""
    each = [
        f"{h.meta.get('label') or h.method} on {h.meta['device']}, "
        f"{h.meta.get('settings', {}).get('precision', 'float32')}, "
        f"{h.meta.get('provenance', {}).get('date', 'no date')}, seed {h.meta['task']['seed']}, "
        f"commit {h.meta.get('provenance', {}).get('commit', 'unknown')}"
        for h in histories
    ]
    return ("; ".join(each) or "not yet run") + "."


def difference(values: Iterable[float], paper: float | None, digits: int = 4) -> str:
    """How far the *mean* over the seeds is from the paper, with its sign: "+0.0012", "0" if they
    are equal, "" if there is no run or no number in the paper."""
    its = list(values)
    if not its or paper is None:
        return ""
    gap = float(np.mean(its)) - paper
    return "0" if gap == 0 else f"{gap:+,.{digits}f}"


def opening(number: str, name: str) -> Shown:
    """``fl.book.opening("4.1", "rpn")``: what the paper reports beside what was measured here."""
    spec = chapter_file(name)["opening"]
    compared = spec.get("compares", list(spec["here"]))  # columns that the paper's number is for
    stored = {scale: results.load(its["results"]) for scale, its in spec["here"].items()}
    rows = []
    for row in spec["rows"]:
        paper = printed(*row["paper"])
        counted = [float(claims.evaluate(row["here"]))] if "here" in row else []
        # of measures four, of counts two, but of whole ones none
        whole = bool(counted) and all(value.is_integer() for value in (paper, *counted))
        digits = 0 if whole else 2 if counted else 4
        line: dict[str, Any] = {"": row["what"], "paper": f"{paper:,.{digits}f}"}
        last: list[float] = []
        for scale, its in spec["here"].items():
            if scale not in row.get("only", spec["here"]):
                line[f"here, {scale}"] = ""
                continue
            # counted from the network, or else measured
            values = counted or measured(row, stored[scale])
            if not values:
                line[f"here, {scale}"] = missing(its["command"].format(**row))
                continue
            last = values if scale in compared else last
            line[f"here, {scale}"] = spread(values, f",.{digits}f")
        line["difference"] = difference(last, paper, digits)
        rows.append(line)
    units = {f"here, {scale}": its.get("says", "") for scale, its in spec["here"].items()}
    units = {k: v for k, v in units.items() if v}
    return table(number, rows, " ".join(spec["caption"].split()), units)
