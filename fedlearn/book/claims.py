"""What a paper claims beside what was measured here: the table that opens a chapter,
the paper's statements asked of the stored runs, and the ledger as a page shows it.

``data/<name>/chapter.yaml`` states the rows of the table under ``opening``: what the
paper prints is read from the ledger, what was measured here from the stored runs. A
cell without a run carries the command that fills it. Statements stand under ``holds``:
what the paper ``says``, the labels of two rows of its recipes, ``one`` and ``other``,
and what the first should be, ``ahead``, ``level`` or ``no lower``; ``splits`` and
``data``, if not all. ``runs`` maps the scales to their stored runs.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import to_json
from ..history import MEASURES, History
from ..lab import ledger as claims
from ..lab import results
from ..lab.results import FEW, paired, spread
from .grids import chapter_file
from .show import Shown, in_words, inline, missing, sortable, table

if TYPE_CHECKING:
    import pandas

OTHERWISE = "‡"  # by the last test the verdict is another
POINT = 1.0  # a difference that is level, in points of accuracy
DATA = {
    "digits": "digits",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny_imagenet": "Tiny ImageNet",
    "cinic10": "CINIC-10",
}
PAPERS = {
    "rpn": "RPN",
    "fed_kgf": "Fed-KGF",
    "fed_mmd_fusion": "FedMMD and FedFusion",
    "fed_gkt": "FedGKT",
    "fed_repopt": "FedRepOpt",
}
VERDICTS = ["inconsistent", "rounding", "not derivable", "matches"]

# ---- the table that opens a chapter --------------------------------------------------


@cache
def _ledger() -> dict[str, dict[str, Any]]:
    """The entries of the ledger by their ids."""
    return {entry["id"]: entry for entry in claims.load()}


def printed(claim: str, k: int | list[int]) -> float:
    """The k-th number that an entry of the ledger prints, or that of a row and column
    of its data."""
    entry = _ledger()[claim]
    if isinstance(k, list):
        row, column = k
        return float(entry["data"][row][column])
    text = str(entry["printed"]).replace("−", "-")
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return float(numbers[k].replace(",", ""))


def measured(row: dict[str, Any], runs: "pandas.DataFrame") -> list[float]:
    """One number a seed: the row's measure of the runs with its line's label. Its
    ``where`` maps columns, such as the data set, to the beginnings of the names that
    count."""
    if row.get("measure") not in runs:
        return []
    chosen = runs["label"].str.lower() == row["line"].lower()
    for column, starts in row.get("where", {}).items():
        chosen &= runs[column].str.startswith(tuple(starts))
    return runs.loc[chosen, row["measure"]].tolist()


def stored(name: str) -> "pandas.DataFrame":
    """The runs of a name, a row each; ``up`` are bytes of one client in a round."""
    runs, rounds = results.tables(results.load(name))
    if len(runs):
        sizes = rounds["bytes_up"] / rounds["clients"]
        runs["up"] = sizes.groupby(rounds["run"]).mean()
    return runs


def by_label(name: str, **task: Any) -> dict[str, list[History]]:
    """Stored runs of tasks that are so, such as ``task="detection"``, by label, seed
    after seed."""
    runs: dict[str, list[History]] = {}
    for h in results.load(name):
        if task.items() <= h.meta["task"].items():
            runs.setdefault(h.meta["label"], []).append(h)
    return runs


def two_measures(
    last: Sequence[float], late: Sequence[float], form: str = ".3f"
) -> str:
    """A cell with the two measures of some runs: the last quarter, and in brackets the
    last test, if the quarter has more tests than this.

    >>> two_measures([0.8, 0.6], [0.7, 0.7]), two_measures([0.5], [0.5])
    ('0.700 ± 0.000 (0.700 ± 0.141)', '0.500')
    """
    test = "" if list(last) == list(late) else f" ({spread(last, form)})"
    return spread(late, form) + test


def reached(histories: Sequence[History]) -> str:
    """What some runs reached by both measures."""
    last, late = ([h.reached[measure] for h in histories] for measure in MEASURES)
    return two_measures(last, late)


def ends(
    name: str, form: str = ".3f", times: float = 1, brief: bool = False, **only: Any
) -> "pandas.DataFrame":
    """What the stored runs ``name`` reached by both measures, ``times`` so much, a
    row a label and a column a split; of those runs alone that have the values ``only``,
    such as ``dataset="cifar10"``. Without a run a cell is empty. ``brief`` is the last
    quarter alone."""
    runs = stored(name)
    for column, value in only.items():
        runs = runs[runs[column] == value]

    def cell(seeds: "pandas.DataFrame") -> str:
        last, late = (list(times * seeds[measure]) for measure in MEASURES)
        if brief:
            return spread(late, form)
        return two_measures(last, late, form)

    cells = runs.groupby(["label", "partition"])[list(MEASURES)].apply(cell).unstack()
    # in the order in which they are stored
    table = cells.loc[runs["label"].unique(), runs["partition"].unique()]
    return table.fillna("").rename_axis("method")


def difference(values: Sequence[float], paper: float, digits: int) -> str:
    """How far the *mean* over the seeds is from the paper, with its sign: "+0.0012",
    "0" if they are equal, "" if there is no run."""
    if not values:
        return ""
    gap = float(np.mean(values)) - paper
    return "0" if gap == 0 else f"{gap:+,.{digits}f}"


def opening(number: str, name: str) -> Shown:
    """``fl.book.opening("4.1", "rpn")``: what the paper reports beside what was
    measured here."""
    spec = chapter_file(name)["opening"]
    scales = spec["here"]
    runs = {scale: stored(entry["results"]) for scale, entry in scales.items()}
    seeds: dict[str, list[int]] = {f"here, {scale}": [] for scale in scales}
    rows = []
    for row in spec["rows"]:
        paper = printed(*row["paper"])
        # counted from the network, or else measured
        counted = [float(claims.evaluate(row["here"]))] if "here" in row else []
        whole = counted and paper % 1 == counted[0] % 1 == 0
        digits = 0 if whole else 2 if counted else 4
        cells = {"": row["what"], "paper": f"{paper:,.{digits}f}"}
        last: list[float] = []
        for scale, entry in scales.items():
            column = f"here, {scale}"
            values = counted or measured(row, runs[scale])
            if scale not in row.get("only", scales):
                cells[column] = ""
            elif not values:
                cells[column] = missing(entry["command"].format(**row))
            else:
                cells[column] = spread(values, f",.{digits}f")
                last = values if scale in spec.get("compares", scales) else last
                seeds[column] += [] if counted else [len(values)]
        cells["difference"] = difference(last, paper, digits)
        rows.append(cells)
    units = {}
    for column, counts in seeds.items():
        if counts:
            ends = sorted({min(counts), max(counts)})
            units[column] = f"{' to '.join(map(str, ends))} seeds"
    return table(number, rows, spec["caption"], units)


# ---- statements ----------------------------------------------------------------------


def leads(
    runs: "pandas.DataFrame", one: str, other: str, measure: str = MEASURES[1]
) -> dict[tuple[str, str], list[float]]:
    """(data set, split) -> by how many points of accuracy, by the last quarter if there
    is no other ``measure``, runs with the label ``one`` are ahead of those with the
    label ``other``, a number for each seed of both."""
    keys = ["dataset", "partition", "seed"]
    labels = runs["label"].str.lower()
    first, second = (
        100
        * runs[labels == label.lower()].drop_duplicates(keys).set_index(keys)[measure]
        for label in (one, other)
    )
    lead = (first - second).dropna().sort_index()
    return {key: list(seeds) for key, seeds in lead.groupby(level=keys[:2])}


def verdict(lead: Sequence[float], claim: str) -> str:
    """ "holds", "does not hold" or "cannot be told", by the 95 % interval of at least
    five seeds; of fewer, in how many it is so.

    >>> verdict([2.0, 3.0, 2.0, 3.0, 2.5], "ahead"), verdict([-0.2, 0.4], "level")
    ('holds', 'in 2 of 2 seeds')
    """
    point = POINT + 1e-9  # 20 of 2,000 images are a point, whatever floats make of it
    limits = {
        "ahead": (0, np.inf),
        "level": (-point, point),
        "no lower": (-point, np.inf),
    }
    low, high = limits[claim]
    if len(lead) < FEW:
        within = sum(low < points <= high for points in lead)
        return f"in {within} of {len(lead)} seeds"
    gap = paired(dict(enumerate(lead)), dict.fromkeys(range(len(lead)), 0.0))
    if low < gap.low and gap.high <= high:
        return "holds"
    fails = gap.high < 0 or (claim == "level" and gap.sure)
    return "does not hold" if fails else "cannot be told"


def outcomes(
    runs: "pandas.DataFrame", statement: dict[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    """Of a statement: each data set and split, the verdict, and the points behind it."""
    names = statement["one"], statement["other"]
    last, late = (leads(runs, *names, measure=measure) for measure in MEASURES)
    for (data, split), lead in late.items():
        outcome = verdict(lead, statement["wanted"])
        by_last_test = verdict(last[data, split], statement["wanted"])
        seeds = f"; {len(lead)} seeds" if len(lead) >= FEW else ""
        text = f"({spread(lead, '+.1f')}{seeds})".replace(" ", "\N{NO-BREAK SPACE}")
        text += f" {OTHERWISE}" * (outcome != by_last_test)
        if data == statement.get("data", data) and split in statement.get(
            "splits", split
        ):
            yield data, split, outcome, text


def holds(number: str, name: str) -> Shown:
    """``fl.book.holds("5.11", "fed_kgf")``: the statements and what became of each
    here."""
    spec = chapter_file(name)["holds"]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    columns: dict[str, str] = {}  # the command for its runs, if there are none
    counts: Counter[str] = Counter()
    for scale, entry in spec["runs"].items():
        runs = stored(entry["results"])
        if runs.empty:
            columns[scale] = missing(entry["command"])
            continue
        for statement in spec["statements"]:
            for data, split, outcome, text in outcomes(runs, statement):
                column = f"{DATA.get(data, data)}, {scale}"
                columns[column] = ""
                row = rows.setdefault((statement["says"], split), {})
                row[column] = f"{outcome} {text}"
                counts[outcome] += 1
    lines = [
        {"the paper says": says, "split": in_words(split)} | columns | row
        for (says, split), row in rows.items()
    ]
    for above, line in reversed([*pairwise(lines)]):  # each claim once
        if above["the paper says"] == line["the paper says"]:
            line["the paper says"] = ""
    for line in lines[1:]:
        line |= {column: "" for column, command in columns.items() if command}
    tally = ", ".join(
        f"{counts[v]} {v}" for v in ("holds", "does not hold", "cannot be told")
    )
    caption = f"""What the paper says, asked of stored runs: by how many points the
        first that is named is in front of the second over the last quarter of the
        rounds, mean ± standard deviation of the seeds. From {FEW} seeds on a 95 %
        interval decides: *ahead* lies above zero, *level* within {POINT:g} of it, *no
        lower* above -{POINT:g}; they fail if it lies below zero, and *level* if it lies
        above, too (so far: {tally}). {OTHERWISE}: the last test says
        something else."""
    units = dict.fromkeys(columns, "points of accuracy")
    return table(number, lines, caption, units)


# ---- the ledger ----------------------------------------------------------------------


def ledger_counts(number: str, caption: str) -> Shown:
    """How many claims of each paper have each verdict. Readings are counted apart."""
    import pandas

    rows = {}
    audited = claims.audit()
    for paper, name in PAPERS.items():
        entries = [r for r in audited if r.claim["paper"] == paper]
        counts = claims.counts(entries)
        readings = sum("reading_of" in r.claim for r in entries)
        total = sum(counts.values())
        rows[name] = {"claims": total, **counts, "readings": readings}
    frame = pandas.DataFrame(rows).T.rename_axis("paper")
    frame.loc["*all*"] = frame.sum()
    return table(number, frame, caption, {"readings": "not counted as claims"})


def as_printed(claim: dict[str, Any]) -> str:
    """What the paper prints, and how it is read."""
    text = inline(str(claim["printed"]))
    if claim.get("read"):
        text += f'<span class="fl-read">read: {inline(str(claim["read"]))}</span>'
    return text


def reason(claim: dict[str, Any]) -> str:
    """Why a claim has its verdict, and the formula, which unfolds the printed figures
    that it uses."""
    text = inline(claim["why"])
    formula = claim["formula"]
    code = f"<code>{html.escape(formula)}</code>" if formula else ""
    if "data" in claim:
        figures = html.escape(to_json(claim["data"], ensure_ascii=False))
        head = f"<summary>{code or 'printed numbers'}</summary>"
        return f"{text}<details>{head}<code>data = {figures}</code></details>"
    return text + code


def ledger_row(result: claims.Result, readings: list[claims.Result]) -> dict[str, str]:
    """The cells of a claim as HTML. The last one folds the other readings of the
    claim."""
    claim = result.claim
    why = f'<div id="{claim["id"]}">{reason(claim)}</div>'
    if readings:
        why += f"<details><summary>{len(readings)} other readings</summary>"
        for r in readings:
            recomputed = html.escape(claims.show(r.computed))
            why += (
                f'<p id="{r.claim["id"]}">{as_printed(r.claim)} {recomputed}, '
                f"<b>{r.verdict}</b>: {reason(r.claim)}</p>"
            )
        why += "</details>"
    return {
        "paper": PAPERS[claim["paper"]],
        "where": inline(claim["where"]),
        "printed": as_printed(claim),
        "recomputed": html.escape(claims.show(result.computed)),
        "verdict": result.verdict,
        "why": why,
    }


def ledger(number: str, caption: str) -> Shown:
    """All claims as one table, each with its other readings. Inconsistent claims
    come first."""
    import pandas

    audited = claims.audit()
    readings: dict[str, list[claims.Result]] = {}
    for r in audited:
        readings.setdefault(r.claim.get("reading_of", ""), []).append(r)
    first = sorted(readings.pop(""), key=lambda r: VERDICTS.index(r.verdict))
    rows = [ledger_row(r, readings.get(r.claim["id"], [])) for r in first]
    text = f"Table {number}. {caption}\n{claims.report(audited)}"
    return sortable(number, pandas.DataFrame(rows), caption, text)
