"""What a paper claims beside what was measured here: the table that opens a chapter,
the paper's statements asked of the stored runs, and the ledger as a page shows it.

``data/<name>/chapter.yaml`` states the rows of the table under ``opening``: what the
paper prints is read from the ledger, what was measured here from the stored runs. A
cell without a run carries the command that fills it. Statements stand under ``holds``:
what the paper ``says``, the labels of two rows of its recipes, ``one`` and ``other``,
and what the first should be, ``ahead``, ``level`` or ``no lower``; ``splits`` and
``data``, if not all; ``runs``, if not those of the three scales.
"""

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import to_json
from ..history import MEASURES, History
from ..lab import ledger as claims
from ..lab import results
from ..lab.recipes import SCALES, results_folder
from ..lab.results import FEW, paired, spread
from .grids import chapter_file
from .show import Shown, inline, missing, sortable, table

if TYPE_CHECKING:
    import pandas

TESTED = "†"  # an option was chosen on test images
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
HEADS = ("paper", "where", "printed", "recomputed", "verdict", "why")
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
        return float(entry["data"][k[0]][k[1]])
    numbers = re.findall(r"[-−]?\d[\d,]*\.?\d*", str(entry["printed"]))
    if "." not in entry["printed"]:
        numbers = [n.rstrip(",") for n in numbers]
    return float(numbers[k].strip(",").replace(",", "").replace("−", "-"))


def measured(row: dict[str, Any], runs: "pandas.DataFrame") -> list[float]:
    """One number a seed: the row's measure of the runs with its line's label, and where
    it says of which task, data set or split (``where``: the beginnings of their names),
    of those alone."""
    if runs.empty:
        return []
    chosen = runs["label"].str.lower() == str(row["line"]).lower()
    for name, starts in row.get("where", {}).items():
        chosen &= runs[name].str.startswith(tuple(starts))
    return (
        runs.loc[chosen, row["measure"]].tolist() if chosen.any() else []
    )  # no such column


def stored(name: str) -> "pandas.DataFrame":
    """The runs of a name, a row each; ``up`` are bytes of one client in a round."""
    runs, rounds = results.tables(results.load(name))
    if len(runs):
        runs["up"] = (
            (rounds["bytes_up"] / rounds["clients"]).groupby(rounds["run"]).mean()
        )
    return runs


def by_label(name: str, **task: Any) -> dict[str, list[History]]:
    """Stored runs of tasks that are so, such as ``task="detection"``, by label, seed
    after seed."""
    runs: dict[str, list[History]] = {}
    for h in results.load(name):
        if task.items() <= h.meta["task"].items():
            runs.setdefault(h.meta["label"], []).append(h)
    return runs


def both(last: Sequence[float], late: Sequence[float], form: str = ".3f") -> str:
    """A cell with the two measures of some runs: the last quarter, and in brackets the
    last test, if the quarter has more tests than this.

    >>> both([0.8, 0.6], [0.7, 0.7]), both([0.5], [0.5])
    ('0.700 ± 0.000 (0.700 ± 0.141)', '0.500')
    """
    test = "" if list(last) == list(late) else f" ({spread(last, form)})"
    return spread(late, form) + test


def reached(histories: Sequence[History]) -> str:
    """What some runs reached by `both` measures."""
    last, late = ([h.reached[measure] for h in histories] for measure in MEASURES)
    return both(last, late)


def dagger(chosen: Iterable[str]) -> str:
    """The sign behind a number whose option was ``chosen`` on test images, with one
    seed at least; else nothing."""
    return f" {TESTED}" * ("test" in list(chosen))


def ends(
    name: str, form: str = ".3f", times: float = 1, **only: Any
) -> "pandas.DataFrame":
    """What the stored runs ``name`` reached by `both` measures, ``times`` so much, a
    row a label and a column a split; of those runs alone that have what ``only`` says,
    such as
    ``dataset="cifar10"``. Without a run a cell is empty; a † marks rates chosen on test
    images."""
    runs = stored(name)
    for column, value in only.items():
        runs = runs[runs[column] == value]
    last, late = MEASURES

    def cell(its: "pandas.DataFrame") -> str:
        text = both(list(times * its[last]), list(times * its[late]), form)
        return text + dagger(its["chosen on"])

    seeds = runs.set_index(["label", "partition"])[[last, late, "chosen on"]]
    table = seeds.groupby(level=[0, 1]).apply(cell).unstack()
    # in the order in which they are stored
    table = table.reindex(runs["label"].unique())[runs["partition"].unique()]
    return table.fillna("").rename_axis("method")


def difference(values: Iterable[float], paper: float | None, digits: int = 4) -> str:
    """How far the *mean* over the seeds is from the paper, with its sign: "+0.0012",
    "0" if they are equal, "" if there is no run or no number in the paper."""
    seeds = list(values)
    if not seeds or paper is None:
        return ""
    gap = float(np.mean(seeds)) - paper
    return "0" if gap == 0 else f"{gap:+,.{digits}f}"


def opening(number: str, name: str) -> Shown:
    """``fl.book.opening("4.1", "rpn")``: what the paper reports beside what was
    measured here."""
    spec = chapter_file(name)["opening"]
    compared = spec.get(
        "compares", list(spec["here"])
    )  # columns that the paper's number is for
    runs = {scale: stored(entry["results"]) for scale, entry in spec["here"].items()}
    seeds: dict[str, set[int]] = {
        scale: set() for scale in runs
    }  # how many the rows have
    rows = []
    for row in spec["rows"]:
        paper = printed(*row["paper"])
        counted = [float(claims.evaluate(row["here"]))] if "here" in row else []
        # of measures four, of counts two, but of whole ones none
        whole = bool(counted) and all(value.is_integer() for value in (paper, *counted))
        digits = 0 if whole else 2 if counted else 4
        line: dict[str, Any] = {"": row["what"], "paper": f"{paper:,.{digits}f}"}
        last: list[float] = []
        for scale, entry in spec["here"].items():
            if scale not in row.get("only", spec["here"]):
                line[f"here, {scale}"] = ""
                continue
            # counted from the network, or else measured
            values = counted or measured(row, runs[scale])
            if not values:
                line[f"here, {scale}"] = missing(entry["command"].format(**row))
                continue
            last = values if scale in compared else last
            seeds[scale] |= set() if counted else {len(values)}
            line[f"here, {scale}"] = spread(values, f",.{digits}f")
        line["difference"] = difference(last, paper, digits)
        rows.append(line)
    units = {
        f"here, {scale}": " to ".join(map(str, sorted({min(n), max(n)}))) + " seeds"
        for scale, n in seeds.items()
        if n
    }
    return table(number, rows, " ".join(spec["caption"].split()), units)


# ---- statements ----------------------------------------------------------------------


def leads(
    runs: "pandas.DataFrame", one: str, other: str, measure: str = MEASURES[1]
) -> dict[tuple[str, str], list[float]]:
    """(data set, split) -> by how many points of accuracy, if nothing else is said by
    the last quarter, of ``stored`` runs those with the label ``one`` are ahead of those
    with the label
    ``other``, a number for each seed that both have."""
    if runs.empty:
        return {}
    keys = ["dataset", "partition", "seed"]
    ends = runs.assign(label=runs["label"].str.lower()).set_index(["label", *keys])[
        measure
    ]
    ends = ends[~ends.index.duplicated(keep="last")]
    first, second = (
        100
        * ends[ends.index.get_level_values("label") == label.lower()].droplevel("label")
        for label in (one, other)
    )
    lead = (first - second).dropna().sort_index()
    return {key: list(seeds) for key, seeds in lead.groupby(level=keys[:2])}


def verdict(lead: Sequence[float], wanted: str) -> str:
    """ "holds", "does not hold" or "cannot be told", by the 95 % interval of at least
    five seeds; of fewer, in how many it is so.

    >>> verdict([2.0, 3.0, 2.0, 3.0, 2.5], "ahead"), verdict([-0.2, 0.4], "level")
    ('holds', 'in 2 of 2 seeds')
    """
    point = POINT + 1e-9  # 20 of 2,000 images are a point, whatever floats make of it
    least, most = {
        "ahead": (0, np.inf),
        "level": (-point, point),
        "no lower": (-point, np.inf),
    }[wanted]
    if len(lead) < FEW:
        within = sum(least < points <= most for points in lead)
        return f"in {within} of {len(lead)} seeds"
    _, low, high, *_ = gap = paired(
        dict(enumerate(lead)), dict.fromkeys(range(len(lead)), 0.0)
    )
    if least < low and high <= most:
        return "holds"
    fails = high < 0 or (wanted == "level" and gap.sure)
    return "does not hold" if fails else "cannot be told"


def _points(lead: Sequence[float]) -> str:
    many = f"; {len(lead)} seeds" if len(lead) >= FEW else ""
    text = f"({spread(lead, '+.1f')}{many})"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def holds(number: str, name: str) -> Shown:
    """``fl.book.holds("5.11", "fed_kgf")``: the statements and what became of each
    here."""
    spec = chapter_file(name)["holds"]
    cells: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    columns: dict[
        str, str
    ] = {}  # its first cell, if it has no runs: the command for them
    for scale, entry in spec.get("runs", _scales(name)).items():
        runs, _ = results.tables(results.load(entry["results"]))
        if runs.empty:
            columns[scale] = missing(entry["command"])
            continue
        for statement in spec["statements"]:
            pair = statement["one"], statement["other"]
            last, of_both = (leads(runs, *pair, measure=m) for m in MEASURES)
            those = runs[
                runs["label"].str.lower().isin([label.lower() for label in pair])
            ]
            chosen = those.groupby(["dataset", "partition"])["chosen on"].agg(list)
            for (data, split), lead in of_both.items():
                asked = data == statement.get("data", data)
                if asked and split in statement.get("splits", [split]):
                    column = f"{DATA.get(data, data)}, {scale}"
                    columns[column] = ""
                    row = cells.setdefault((statement["says"], split), {})
                    told, late = (
                        verdict(x, statement["wanted"])
                        for x in (lead, last[data, split])
                    )
                    signs = f" {OTHERWISE}" * (told != late) + dagger(
                        chosen[data, split]
                    )
                    row[column] = told, _points(lead) + signs
    rows = [
        {"the paper says": says, "split": split}
        | {
            c: " ".join(row.get(c, ())) or ("" if k else first)
            for c, first in columns.items()
        }
        for k, ((says, split), row) in enumerate((cells or {("", ""): {}}).items())
    ]
    counts = Counter(outcome for row in cells.values() for outcome, _ in row.values())
    tally = ", ".join(
        f"{counts[v]} {v}" for v in ("holds", "does not hold", "cannot be told")
    )
    caption = f"""What the paper says, asked of stored runs: by how many points of
        accuracy (mean over the last quarter of the rounds, because curves jump) the
        first that is named is in front of the second, mean ± standard deviation over
        the seeds. With {FEW} seeds and more a 95 % interval of their mean decides:
        *ahead* holds if all of it is above zero, *level* if it is within {POINT:g}
        point of zero, *no lower* if it is above minus {POINT:g}; they do not hold if it
        lies below zero, and *level* neither if it lies above (so far: {tally}). With
        fewer seeds the table counts those in which it is so. {OTHERWISE}: the last test
        says something else. {TESTED}: rates were chosen on test images."""
    return table(
        number,
        rows,
        " ".join(caption.split()),
        dict.fromkeys(columns, "points of accuracy"),
    )


def _scales(name: str) -> dict[str, dict[str, str]]:
    """The stored runs of the three scales of a paper's recipes, and the commands for
    them."""
    command = f"fedlearn reproduce {name} --scale"
    return {
        scale: {"results": results_folder(name, scale), "command": f"{command} {scale}"}
        for scale in SCALES
    }


# ---- the ledger ----------------------------------------------------------------------


def ledger_counts(number: str, caption: str) -> Shown:
    """How many claims of each paper have each verdict. Readings are counted apart."""
    rows: list[dict[str, Any]] = []
    audited = claims.audit()
    for paper, name in PAPERS.items():
        of_paper = [r for r in audited if r.claim["paper"] == paper]
        each = claims.counts(of_paper)
        readings = sum("reading_of" in r.claim for r in of_paper)
        rows.append(
            {"paper": name, "claims": sum(each.values()), **each, "readings": readings}
        )
    total = {k: sum(row[k] for row in rows) for k in rows[0] if k != "paper"}
    rows.append({"paper": "*all*", **total})
    units = {"readings": "not counted as claims"}
    return table(number, rows, caption, units)


def as_printed(result: claims.Result) -> str:
    """What the paper prints, and how it is read."""
    c = result.claim
    read = (
        f'<span class="fl-read">read: {inline(str(c["read"]))}</span>'
        if c.get("read")
        else ""
    )
    return inline(str(c["printed"])) + read


def formula(result: claims.Result) -> str:
    """The formula, which unfolds the printed figures that it uses."""
    c = result.claim
    if not c["formula"]:
        return ""
    code = f"<code>{html.escape(c['formula'])}</code>"
    if "data" not in c:
        return code
    figures = html.escape(to_json(c["data"], ensure_ascii=False))
    return f"<details><summary>{code}</summary><code>data = {figures}</code></details>"


def ledger_row(result: claims.Result, readings: list[claims.Result]) -> list[str]:
    """The cells of a claim as HTML. The last one folds the other readings of the
    claim."""
    claim = result.claim
    reason = f'<span id="{claim["id"]}">{inline(claim["why"])}</span>{formula(result)}'
    if readings:
        reason += f"<details><summary>{len(readings)} other readings</summary>"
        for r in readings:
            recomputed = html.escape(claims.show(r.computed))
            reason += (
                f'<p id="{r.claim["id"]}">{as_printed(r)} {recomputed}, '
                f"<b>{r.verdict}</b>: "
            )
            reason += f"{inline(r.claim['why'])}{formula(r)}</p>"
        reason += "</details>"
    return [
        PAPERS[claim["paper"]],
        inline(claim["where"]),
        as_printed(result),
        html.escape(claims.show(result.computed)),
        result.verdict,
        reason,
    ]


def ledger(number: str, caption: str) -> Shown:
    """All claims as one table, each with its other readings. Inconsistent claims
    come first."""
    import pandas

    audited = claims.audit()
    readings: dict[str, list[claims.Result]] = {}
    for r in audited:
        if "reading_of" in r.claim:
            readings.setdefault(r.claim["reading_of"], []).append(r)
    first = [r for r in audited if "reading_of" not in r.claim]
    first.sort(key=lambda r: VERDICTS.index(r.verdict))
    rows = [ledger_row(r, readings.get(r.claim["id"], [])) for r in first]
    frame = pandas.DataFrame(rows, columns=HEADS)
    text = f"Table {number}. {caption}\n{claims.report(audited)}"
    return sortable(number, frame, caption, "fl-ledger", text)
