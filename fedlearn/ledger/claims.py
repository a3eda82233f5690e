"""The ledger of the papers' checkable numbers (``data/claims.yaml``), and its checker.

An entry holds the number as printed, a formula for it and a verdict. The checker computes the
formula and derives the verdict anew:

* matches: the computed value is the printed one;
* rounding: it is, once rounded to the printed digits, or cut off behind them;
* inconsistent: it is not;
* not derivable: the paper prints nothing that would allow the comparison (measured results).

Where words or numbers can be read in several ways, one entry is the claim and the others say of
which entry they are a ``reading_of``. Readings are no claims and are not counted as such; one that
does not hold is "rejected".
"""

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..data.sources import data_path
from .formulas import NAMES, printed_digits

if TYPE_CHECKING:
    import pandas as pd  # takes long to load: only where a table is made

LEDGER = data_path("claims.yaml")
VERDICTS = ("matches", "rounding", "inconsistent", "not derivable", "rejected")
# of every entry; where needed, there are those of MORE, too
KEYS = {"id", "paper", "where", "printed", "value", "formula", "verdict", "why"}
MORE = {"read", "reading_of", "data"}


@dataclass(frozen=True)
class Result:
    """One entry recomputed.

    ``computed`` is a number, a bool, a range (low, middle, high) or None; ``problem`` is "" if all
    is well.
    """

    claim: dict[str, Any]
    computed: Any
    verdict: str
    problem: str


def load(path: str | Path = LEDGER) -> list[dict[str, Any]]:
    """The entries. ``ValueError`` for a missing or unknown key, an id that is used twice, or a
    reading of what is no claim of the same paper."""
    claims = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    for claim in claims:
        wrong = (KEYS - claim.keys()) | (claim.keys() - KEYS - MORE)
        if wrong or claim["verdict"] not in VERDICTS:
            raise ValueError(
                f"Claim {claim.get('id')}: check its verdict and its keys {sorted(wrong)}."
            )
    if twice := [name for name, n in Counter(claim["id"] for claim in claims).items() if n > 1]:
        raise ValueError(f"Ids used twice: {twice}.")
    its = {claim["id"]: claim["paper"] for claim in claims if "reading_of" not in claim}
    for claim in claims:
        if "reading_of" in claim and its.get(claim["reading_of"]) != claim["paper"]:
            raise ValueError(f"Claim {claim['id']}: {claim['reading_of']} is no claim to read.")
    return claims


def audit(
    paper: str | None = None, claims: Iterable[dict[str, Any]] | None = None, strict: bool = True
) -> list[Result]:
    """Recompute every entry of a paper (default: of all papers, from the ledger).

    With ``strict``, a ``ValueError`` lists the entries that disagree with their recomputation.
    """
    claims = load() if claims is None else claims
    results = [_recompute(claim) for claim in claims if paper in (None, claim["paper"])]
    if strict and (problems := [f"{r.claim['id']}: {r.problem}" for r in results if r.problem]):
        raise ValueError("The ledger disagrees with its recomputation.\n" + "\n".join(problems))
    return results


def _recompute(claim: dict[str, Any]) -> Result:
    try:
        computed = (
            None if claim["formula"] is None else evaluate(claim["formula"], claim.get("data"))
        )
        verdict = verdict_of(claim["value"], computed)
        if verdict == "inconsistent" and "reading_of" in claim:
            verdict = "rejected"
    except Exception as error:  # one bad entry must not hide the others
        return Result(
            claim, None, "not derivable", f"no value from {claim['formula']!r}: {error!r}"
        )
    problem = (
        ""
        if verdict == claim["verdict"]
        else f"says {claim['verdict']}, recomputed: {verdict} ({computed})"
    )
    text = f"{claim['printed']} {claim.get('read', '')}".replace(",", "")
    if isinstance(claim["value"], str) and format(Decimal(claim["value"]), "f") not in text:
        problem = f"value {claim['value']} is not in {text!r}"
    return Result(claim, computed, verdict, problem)


def evaluate(formula: str, data: object = None) -> Any:
    """A formula's value.

    A formula sees ``data`` (the entry's own figures) and the functions of ``NAMES``; it may not use
    attributes.
    """
    return _value(formula, repr(data))


@cache  # a formula depends on nothing else, and takes up to seconds
def _value(formula: str, data: str) -> Any:
    tree = ast.parse(formula, mode="eval")
    if any(isinstance(node, ast.Attribute) for node in ast.walk(tree)):
        raise ValueError("a formula has no attributes")
    names = {"__builtins__": {}, **NAMES, "data": ast.literal_eval(data)}
    return eval(compile(tree, formula, "eval"), names)


def verdict_of(value: str | bool | None, computed: Any) -> str:
    """The verdict on ``value``: the printed digits as text ("7E+1": about 70), a statement's truth,
    or None where there is nothing to compare."""
    if value is None or computed is None:
        return "not derivable"
    if isinstance(value, bool):
        return "matches" if computed is value else "inconsistent"
    printed, half = printed_digits(value)
    low, middle, high = computed if isinstance(computed, tuple) else (computed,) * 3
    if abs(middle - printed) <= 1e-9 * abs(printed):
        return "matches"
    rounded = low - half <= printed <= high + half
    if printed < 0:  # digits are cut off towards zero
        printed, low, high = -printed, -high, -low
    cut = printed <= high and low < printed + 2 * half
    return "rounding" if rounded or cut else "inconsistent"


def table(paper: str) -> "pd.DataFrame":
    """A row a claim, columns as the book shows them. ``ValueError`` where the ledger is wrong."""
    import pandas as pd

    rows = [{"read": "", **r.claim, "computed": show(r.computed)} for r in audit(paper)]
    frame = pd.DataFrame(rows).set_index("id").fillna("")
    frame["printed"] += frame["read"].map(lambda text: text and f" (read: {text})")
    return frame[["where", "printed", "formula", "computed", "verdict", "why"]]


def markdown(paper: str) -> str:
    """The table in Markdown, formulas as code."""
    plain = table(paper)
    frame = plain.replace({r"([|*_<])": r"\\\1"}, regex=True)
    frame["formula"] = plain["formula"].map(lambda text: text and f"`{text}`")
    rows = [list(frame), ["---"] * len(frame.columns), *frame.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def counts(results: Iterable[Result]) -> dict[str, int]:
    """How many claims have each verdict, readings left out; those that are absent count 0."""
    found = Counter(r.verdict for r in results if "reading_of" not in r.claim)
    return {verdict: found[verdict] for verdict in VERDICTS if verdict != "rejected"}


def report(results: Sequence[Result]) -> str:
    """What ``audit`` found, a line an entry, and below how many claims have each verdict."""
    width, lines = max(len(r.claim["id"]) for r in results), []
    for r in results:
        text = f"printed {r.claim['printed']!s:.60}, computed {show(r.computed) or '-'}"
        text = f"LEDGER WRONG: {r.problem}" if r.problem else text
        lines.append(f"{r.claim['id']:<{width}}  {r.verdict:<14}  {text}")
    each = counts(results)
    total, readings = sum(each.values()), sum("reading_of" in r.claim for r in results)
    words = ", ".join(f"{n} {verdict}" for verdict, n in each.items())
    return "\n".join([*lines, f"{total} claims: {words}; and {readings} other readings of them"])


def show(computed: Any) -> str:
    """A computed value as text: 1,183,242; 342.99; yes; 2.659 (2.64 to 2.679)."""
    if isinstance(computed, tuple):
        return f"{computed[1]:.4g} ({computed[0]:.4g} to {computed[2]:.4g})"
    if computed is None or isinstance(computed, bool):
        return {None: "", True: "yes", False: "no"}[computed]
    return f"{computed:,}" if isinstance(computed, int) else f"{computed:.5g}"
