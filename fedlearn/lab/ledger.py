"""The ledger of the papers' checkable numbers (``data/<chapter>/claims.yaml``), and its
checker.

An entry holds a number as printed, a formula and a verdict. The verdict is derived anew:
"matches"; "rounding" (it matches once rounded or cut); "inconsistent"; or "not derivable"
(measured results). Entries that are only another ``reading_of`` an entry do not count as
claims; such a reading is "rejected" if it does not match.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data import data_path
from ..data.partition import Table
from ..errors import extra
from ..files import read_yaml
from ..models import NETWORKS, multiply_adds, state_of
from ..models.reparam import blocks, collapse, deploy, unit
from ..models.repopt import multipliers, target
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
    strict: bool = True,
) -> list[Result]:
    """Recompute every entry of a paper, by default of all, or of these claims; if
    ``strict``, ``ValueError`` lists the entries that disagree.

    >>> [claim] = [c for c in load() if c["id"] == "rpn-upload-factor"]
    >>> [(r.computed, r.verdict) for r in audit(claims=[claim])]
    [(9.0, 'matches')]
    """
    entries = list(load() if claims is None else claims)
    if paper is not None:
        entries = [entry for entry in entries if entry["paper"] == paper]
    results = [recompute(entry) for entry in entries]
    problems = [f"{r.claim['id']}: {r.problem}" for r in results if r.problem]
    if strict and problems:
        lines = "\n".join(problems)
        raise ValueError(f"The ledger disagrees with its recomputation.\n{lines}")
    return results


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
    """A formula's value; it sees ``data``, the entry's own figures, and ``NAMES``."""
    return eval(formula, NAMES | {"data": data})


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
        row = {"read": "", **result.claim}
        row["computed"] = show(result.computed)
        rows.append(row)
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
    width = max(len(r.claim["id"]) for r in results)
    lines = []
    for r in results:
        text = f"printed {r.claim['printed']!s:.60}, computed {show(r.computed) or '-'}"
        if r.problem:
            text = f"LEDGER WRONG: {r.problem}"
        lines.append(f"{r.claim['id']:<{width}}  {r.verdict:<14}  {text}")
    each = counts(results)
    claims = sum(each.values())
    total = ", ".join(f"{n} {verdict}" for verdict, n in each.items())
    readings = len(results) - claims
    lines.append(f"{claims} claims: {total}; and {readings} other readings of them")
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


def chi2_per_dof(counts: Sequence[Sequence[int]]) -> float:
    """Pearson's chi-square over its degrees of freedom: about 1 for one population."""
    observed = np.array(counts)
    expected = observed.sum(1, keepdims=True) * observed.sum(0) / observed.sum()
    chi2 = ((observed - expected) ** 2 / expected).sum()
    rows, columns = observed.shape
    return float(chi2 / ((rows - 1) * (columns - 1)))


@cache
def generated(bound: float, steps: int = 400) -> tuple[float, float]:
    """Two means over Fed-KGF's Eq. (2), all drawn uniformly, ``|w|`` up to ``bound``.

    ``E |w|**β / E |w'|``, and ``E β |w|**(β - 1)``, the part of the gradient that reaches
    the base kernel.
    """
    middle = (np.arange(steps) + 0.5) / steps  # integrals are sums over midpoints
    w = bound * middle[:, None]
    beta = 2 + 8 * middle
    power = float((w**beta).mean())
    slope = float((beta * w ** (beta - 1)).mean())
    alpha = (0.00001 + 0.1) / 2
    return power / (power + alpha), slope


@cache
def network(name: str, *arguments: Any, **options: Any) -> nn.Module:
    """A network on torch's meta device: shapes without memory."""
    with torch.device("meta"):
        return MAKERS[name](*arguments, **options)


def _sum(
    net: nn.Module, count: Callable[..., int], dims: Iterable[int] = range(9)
) -> int:
    return sum(count(p.shape) for p in net.parameters() if p.dim() in dims)


def base_params(net: nn.Module, base: int) -> int:
    """Numbers in Fed-KGF's incomplete network (section 3.2), ``base`` kernels a
    convolution."""

    def entries(shape: torch.Size) -> int:
        return prod(shape[1:]) * min(base, shape[0])

    return _sum(net, prod, [0, 1, 2]) + _sum(net, entries, KERNELS)


@cache
def repopt(net: nn.Module) -> nn.Module:
    """What FedRepOpt trains in place of a network in form "csla"; constants count as
    buffers."""
    with next(net.parameters()).device:
        return target(net)


@cache
def repopt_gap(name: str, rule: str) -> float:
    """RepOpt with a ``rule`` for its multipliers against the network with branches: the
    distance of their kernels over the distance learned. "position" is the package's,
    "branches" lacks the 1 of the identity branch, "scalar" is Eq. (1)'s s_3^2 +
    s_1^2."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        csla = NETWORKS[name](form="csla").double()  # type: ignore[call-arg]
        batches = torch.randn(3, 2, 2, 8, 1, 8, 8).double()
        one = target(csla)
        start = _kernels(one)
        M = multipliers(one)
        scaled = [i for i, m in enumerate(M) if torch.is_tensor(m)]
        for i, block in zip(scaled, blocks(one).values(), strict=True):
            constants = [block.constant_s3, block.constant_s1]
            constants = [s[:, None, None, None] for s in constants if s is not None]
            M[i] = {
                "position": M[i],
                "branches": M[i] - unit(M[i]) * block.identity,
                "scalar": sum(s**2 for s in constants),
            }[rule]
        branches = _kernels(_fedavg(csla, [1.0] * 999, batches))
        kernels = _kernels(_fedavg(one, M, batches))
    return float((kernels - branches).norm() / (branches - start).norm())


def _fedavg(net: nn.Module, M: Sequence[float | Tensor], batches: Tensor) -> nn.Module:
    """The network after federated SGD on ``batches`` [rounds, clients, steps, images,
    ...]."""
    for clients in batches:
        states = []
        for steps in clients:
            local = copy.deepcopy(net)
            params = list(local.parameters())
            for x in steps:
                loss = nn.functional.cross_entropy(local(x), torch.arange(len(x)))
                grads = torch.autograd.grad(loss, params)
                for p, g, m in zip(params, grads, M, strict=False):
                    p.data -= 0.05 * m * g
            states.append(state_of(local))
        for name, t in state_of(net).items():
            t.copy_(sum(state[name] for state in states) / len(states))
    return net


def _kernels(net: nn.Module) -> Tensor:
    """The kernels of all blocks as one vector; branches count as the one that they add
    up to."""
    if not any(block.form == "inf" for block in blocks(net).values()):
        net = collapse(net)
    kernels = [block.conv3.weight for block in blocks(net).values()]
    return torch.cat([kernel.detach().flatten() for kernel in kernels])


@cache
def folding_gap(name: str, training: bool = False) -> float:
    """A network with branches against the same folded into one kernel a block, both
    random: the distance of their outputs over their size. ``training``: branches
    normalise by the batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = NETWORKS[name](form="tr").double().eval()  # type: ignore[call-arg]
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                for t in (module.weight.data, module.bias.data, module.running_mean):
                    t.normal_()  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
        x = torch.randn(8, 1, 8, 8).double()
        with torch.no_grad():
            one = deploy(net)(x)
            several = net.train(training)(x)
    return float((several - one).norm() / one.norm())


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
    "resnet": lambda layers, classes=10: network(f"resnet{layers}", classes=classes),
    "extractor": lambda net: net.extractor,
    "repvgg": lambda form, classes=200: network(
        "repvgg_b1", classes=classes, form=form
    ),
    "repghost": lambda form, classes=200: network(
        "repghost_05", classes=classes, form=form
    ),
    "yolox_s": partial(network, "yolox"),
    "yolox_l": partial(network, "yolox", 80, 3, 64),
    # counts: all parameters; kernel entries; kernels; matrix entries of dense layers
    "params": lambda net: _sum(net, prod),
    "conv_weights": lambda net: _sum(net, prod, KERNELS),
    "kernels": lambda net: _sum(net, lambda shape: shape[0] * shape[1], KERNELS),
    "dense_weights": lambda net: _sum(net, prod, [2]),
    # what RPN sends, by its section 3.6
    "pooled": lambda net: _sum(net, prod, [0, 1, 2]) + NAMES["kernels"](net),
    # k x k kernels with k > 1: their entries, and the layers with so many outputs
    "spatial_weights": lambda net: _sum(
        net, lambda shape: prod(shape) * (shape[-1] > 1), KERNELS
    ),
    "spatial_layers": lambda net, outputs: _sum(
        net, lambda shape: shape[0] == outputs and shape[-1] > 1, KERNELS
    ),
    # batch statistics
    "buffers": lambda net: sum(
        b.numel() for b in net.buffers() if b.is_floating_point()
    ),
    "modules": lambda net, *kinds: sum(
        type(m).__name__ in kinds for m in net.modules()
    ),
    # relative decline and gain in per cent between two printed numbers, with bounds
    "drop": lambda before, after: tuple(
        100 * (1 - q) for q in quotient(after, before)[::-1]
    ),
    "rise": lambda before, after: tuple(100 * (q - 1) for q in quotient(after, before)),
    # numbers of so many bits in MiB (2**20 bytes)
    "mib": lambda numbers, bits=32: numbers * bits / 8 / 2**20,
    # squared distances of each entry of each row to a model
    "distances": lambda rows, model: np.square(np.subtract(rows, model)).tolist(),
    "mean": lambda rows: float(np.mean(rows)),
    # a kernel after pooling and recovery: its mean in every place
    "spread": lambda rows: np.full_like(rows, np.mean(rows)).tolist(),
    # a table of data/partitions, rows clients, columns classes
    "partition": lambda name: Table(name).counts().tolist(),
    "columns": lambda rows: np.sum(rows, 0).tolist(),
    "base_params": base_params,
    "multiply_adds": multiply_adds,
    "repopt": repopt,
    "repopt_gap": repopt_gap,
    "folding_gap": folding_gap,
    "generated": generated,
    "quotient": quotient,
    "chi2_per_dof": chi2_per_dof,
}
