"""The ledger of the papers' checkable numbers (``data/<chapter>/claims.yaml``), and its
checker.

An entry holds a number as printed, a formula and a verdict. The verdict is derived anew:
"matches"; "rounding" (it matches once rounded or cut); "inconsistent"; or "not derivable"
(measured results). Entries that are only another ``reading_of`` an entry do not count as
claims; such a reading is "rejected" if it does not match.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..data import data_path
from ..errors import extra
from ..extensions import load_file
from ..files import read_yaml
from ..models import NETWORKS, multiply_adds
from ..seeing import fcn, yolo

if TYPE_CHECKING:
    import pandas as pd  # takes long to load: only where a table is made

VERDICTS = ("matches", "rounding", "inconsistent", "not derivable", "rejected")


@dataclass(frozen=True)
class Result:
    """One entry recomputed: a number, a bool, (low, middle, high) or None."""

    claim: dict[str, Any]
    computed: Any
    verdict: str
    problem: str


def load() -> list[dict[str, Any]]:
    """The entries of the ledger, a dictionary each.

    >>> [c["value"] for c in load() if c["id"] == "rpn-upload-factor"]
    ['9']
    """
    files = sorted(data_path().glob("*/claims.yaml"))
    return [claim for path in files for claim in read_yaml(path)]


def audit(
    paper: str | None = None,
    claims: Iterable[dict[str, Any]] | None = None,
) -> list[Result]:
    """Recompute every entry of a paper, by default of all, or of these claims.

    >>> [claim] = [c for c in load() if c["id"] == "rpn-upload-factor"]
    >>> [(r.computed, r.verdict) for r in audit(claims=[claim])]
    [(9.0, 'matches')]
    """
    entries = load() if claims is None else claims
    return [recompute(e) for e in entries if paper in (None, e["paper"])]


def recompute(claim: dict[str, Any]) -> Result:
    """One entry, its formula evaluated and its verdict derived."""
    formula = claim["formula"]
    computed = None
    try:
        if formula is not None:
            computed = evaluate(formula, claim.get("data"))
        verdict = verdict_of(claim["value"], computed)
    except Exception as error:  # one bad entry must not hide the others
        problem = f"no value from {formula!r}: {error!r}"
        return Result(claim, None, "not derivable", problem)
    if verdict == "inconsistent" and "reading_of" in claim:
        verdict = "rejected"
    problem = ""
    if verdict != claim["verdict"]:
        problem = f"says {claim['verdict']}, recomputed: {verdict} ({computed})"
    return Result(claim, computed, verdict, problem)


def evaluate(formula: str, data: object = None) -> Any:
    """A formula's value; it sees ``data``, the entry's own figures, and ``names()``."""
    return eval(formula, names() | {"data": data})


@cache
def names() -> dict[str, Any]:
    """The functions of formulas: ``NAMES``, and those of each chapter's own file."""
    functions: dict[str, Any] = dict(NAMES)
    for path in data_path().glob("*/formulas.py"):
        functions |= vars(load_file(path))
    return functions


def verdict_of(value: str | bool | None, computed: Any) -> str:
    """The verdict on printed digits ("7E+1": about 70), a statement's truth, or
    None."""
    if value is None or computed is None:
        return "not derivable"
    if isinstance(value, bool):
        return "matches" if computed is value else "inconsistent"
    printed, half = printed_digits(value)
    if not isinstance(computed, tuple):
        computed = (computed, computed, computed)
    low, middle, high = computed
    if abs(middle - printed) <= 1e-9 * abs(printed):
        return "matches"
    rounded = low - half <= printed <= high + half
    if printed < 0:  # digits are cut off towards zero
        printed = -printed
        low, high = -high, -low
    cut = printed <= high and low < printed + 2 * half
    return "rounding" if rounded or cut else "inconsistent"


def table(paper: str) -> "pd.DataFrame":
    """A row a claim of a paper, columns as the book shows them."""
    with extra("plot"):
        import pandas as pd

    rows = []
    for result in audit(paper):
        rows.append({"read": "", **result.claim, "computed": show(result.computed)})
    frame = pd.DataFrame(rows).set_index("id").fillna("")
    frame["printed"] += frame["read"].map(lambda text: text and f" (read: {text})")
    return frame[["where", "printed", "formula", "computed", "verdict", "why"]]


def counts(results: Iterable[Result]) -> dict[str, int]:
    """How many claims have each verdict, readings left out; those that are absent count
    0."""
    claims = [r for r in results if "reading_of" not in r.claim]
    number = Counter(r.verdict for r in claims)
    return {verdict: number[verdict] for verdict in VERDICTS[:-1]}


def report(results: Sequence[Result]) -> str:
    """What ``audit`` found, a line an entry, and below how many claims have each
    verdict."""
    lines = []
    for r in results:
        text = f"printed {r.claim['printed']!s:.60}, computed {show(r.computed) or '-'}"
        if r.problem:
            text = f"LEDGER WRONG: {r.problem}"
        lines.append(f"{r.verdict:<14}  {r.claim['id']}: {text}")
    each = counts(results)
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in each.items())
    lines.append(f"{sum(each.values())} claims: {verdicts}")
    return "\n".join(lines)


def show(computed: Any) -> str:
    """A computed value as text: 1,183,242; 342.99; yes; 2.659 (2.64 to 2.679)."""
    if computed is None:
        return ""
    if isinstance(computed, bool):
        return "yes" if computed else "no"
    if isinstance(computed, tuple):
        low, middle, high = computed
        return f"{middle:.4g} ({low:.4g} to {high:.4g})"
    return f"{computed:,}" if isinstance(computed, int) else f"{computed:.5g}"


def printed_digits(text: str) -> tuple[float, float]:
    """A printed number and half a unit of its last digit."""
    exponent = int(Decimal(text).as_tuple().exponent)
    return float(text), float(Decimal(1).scaleb(exponent)) / 2


def quotient(a: str, b: str) -> tuple[float, ...]:
    """Of two printed numbers: (low, middle, high) for what they may round."""
    x, half_x = printed_digits(a)
    y, half_y = printed_digits(b)
    low = (x - half_x) / (y + half_y)
    high = (x + half_x) / (y - half_y)
    return low, x / y, high


@cache
def network(name: str, *arguments: Any, **options: Any) -> nn.Module:
    """A network on torch's meta device: shapes without memory."""
    with torch.device("meta"):
        return MAKERS[name](*arguments, **options)


def total(
    net: nn.Module, count: Callable[..., int], dims: Iterable[int] = range(9)
) -> int:
    """The sum of ``count(shape)`` over the parameters of so many dimensions."""
    return sum(count(p.shape) for p in net.parameters() if p.dim() in dims)


# a weight of three dimensions or more: [outputs, inputs, size, ...]
KERNELS = range(3, 9)
MAKERS: dict[str, Callable[..., Any]] = {
    **NETWORKS,
    "yolov3": yolo.yolov3,
    "fcn32s": partial(fcn.fcn32s, (3, 320, 320)),
    "yolox": yolo.yolox,
    "conv": partial(nn.Conv2d, bias=False),
}
NAMES: dict[str, Callable[..., Any]] = {
    # networks
    **{name: partial(network, name) for name in MAKERS},
    # counts: all parameters; kernel entries; matrix entries of dense layers
    "params": lambda net: total(net, prod),
    "conv_weights": lambda net: total(net, prod, KERNELS),
    "dense_weights": lambda net: total(net, prod, [2]),
    # the entries of k x k kernels with k > 1
    "spatial_weights": lambda net: total(
        net, lambda shape: prod(shape) * (shape[-1] > 1), KERNELS
    ),
    # batch statistics
    "buffers": lambda net: sum(
        b.numel() for b in net.buffers() if b.is_floating_point()
    ),
    "modules": lambda net, *kinds: sum(
        type(m).__name__ in kinds for m in net.modules()
    ),
    # relative decline in per cent between two printed numbers, with bounds
    "drop": lambda before, after: tuple(
        100 * (1 - q) for q in quotient(after, before)[::-1]
    ),
    "mean": lambda rows: float(np.mean(rows)),
    "columns": lambda rows: np.sum(rows, 0).tolist(),
    "multiply_adds": multiply_adds,
    "quotient": quotient,
}
