"""The ledger of the papers' checkable numbers (``data/<chapter>/claims.yaml``), and its checker.
An entry holds a number as printed, a formula and a verdict, which is derived anew:
"matches", "rounding" (it does once rounded or cut), "inconsistent", or "not derivable"
(measured results). Entries that are only another ``reading_of`` one are no claims of
their own; one that does not hold is "rejected"."""

import ast
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

from ..data.partition import Table
from ..data.sources import data_path
from ..errors import extra
from ..files import read_yaml
from ..models import NETWORKS, multiply_adds, state_of
from ..models.reparam import blocks, collapse, deploy, unit
from ..models.repopt import multipliers, target

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
    claims = load() if claims is None else claims
    results = [_recompute(claim) for claim in claims if paper in (None, claim["paper"])]
    if strict and (
        problems := [f"{r.claim['id']}: {r.problem}" for r in results if r.problem]
    ):
        raise ValueError(
            "The ledger disagrees with its recomputation.\n" + "\n".join(problems)
        )
    return results


def _recompute(claim: dict[str, Any]) -> Result:
    value, formula, problem = claim["value"], claim["formula"], ""
    try:
        computed = None if formula is None else evaluate(formula, claim.get("data"))
        verdict = verdict_of(value, computed)
    except Exception as error:  # one bad entry must not hide the others
        return Result(
            claim, None, "not derivable", f"no value from {formula!r}: {error!r}"
        )
    if verdict == "inconsistent" and "reading_of" in claim:
        verdict = "rejected"
    if verdict != claim["verdict"]:
        problem = f"says {claim['verdict']}, recomputed: {verdict} ({computed})"
    text = f"{claim['printed']} {claim.get('read', '')}".replace(",", "")
    if isinstance(value, str) and format(Decimal(value), "f") not in text:
        problem = f"value {value} is not in {text!r}"
    return Result(claim, computed, verdict, problem)


def evaluate(formula: str, data: object = None) -> Any:
    """A formula's value; it sees ``data``, the entry's own figures, and ``NAMES``."""
    tree = ast.parse(formula, mode="eval")
    if any(isinstance(node, ast.Attribute) for node in ast.walk(tree)):
        raise ValueError("a formula has no attributes")
    return eval(
        compile(tree, formula, "eval"), {"__builtins__": {}, **NAMES, "data": data}
    )


def verdict_of(value: str | bool | None, computed: Any) -> str:
    """The verdict on printed digits ("7E+1": about 70), a statement's truth, or
    None."""
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
    """A row a claim of a paper, columns as the book shows them."""
    with extra("plot"):
        import pandas as pd

    rows = [{"read": "", **r.claim, "computed": show(r.computed)} for r in audit(paper)]
    frame = pd.DataFrame(rows).set_index("id").fillna("")
    frame["printed"] += frame["read"].map(lambda text: text and f" (read: {text})")
    return frame[["where", "printed", "formula", "computed", "verdict", "why"]]


def counts(results: Iterable[Result]) -> dict[str, int]:
    """How many claims have each verdict, readings left out; those that are absent count
    0."""
    each = Counter(r.verdict for r in results if "reading_of" not in r.claim)
    return {verdict: each[verdict] for verdict in VERDICTS if verdict != "rejected"}


def report(results: Sequence[Result]) -> str:
    """What ``audit`` found, a line an entry, and below how many claims have each
    verdict."""
    width, lines = max(len(r.claim["id"]) for r in results), []
    for r in results:
        text = f"printed {r.claim['printed']!s:.60}, computed {show(r.computed) or '-'}"
        text = f"LEDGER WRONG: {r.problem}" if r.problem else text
        lines.append(f"{r.claim['id']:<{width}}  {r.verdict:<14}  {text}")
    each = counts(results)
    total, readings = sum(each.values()), sum("reading_of" in r.claim for r in results)
    summed = ", ".join(f"{n} {verdict}" for verdict, n in each.items())
    return "\n".join(
        [*lines, f"{total} claims: {summed}; and {readings} other readings of them"]
    )


def show(computed: Any) -> str:
    """A computed value as text: 1,183,242; 342.99; yes; 2.659 (2.64 to 2.679)."""
    if computed is None or isinstance(computed, bool):
        return {None: "", True: "yes", False: "no"}[computed]
    if isinstance(computed, tuple):
        return f"{computed[1]:.4g} ({computed[0]:.4g} to {computed[2]:.4g})"
    return f"{computed:,}" if isinstance(computed, int) else f"{computed:.5g}"


def printed_digits(text: str) -> tuple[float, float]:
    """A printed number and half a unit of its last digit."""
    return float(text), float(
        Decimal(1).scaleb(int(Decimal(text).as_tuple().exponent))
    ) / 2


def quotient(a: str, b: str) -> tuple[float, ...]:
    """Of two printed numbers: (low, middle, high) for what they may round."""
    (x, half_x), (y, half_y) = printed_digits(a), printed_digits(b)
    return (x - half_x) / (y + half_y), x / y, (x + half_x) / (y - half_y)


def chi2_per_dof(counts: Sequence[Sequence[int]]) -> float:
    """Pearson's chi-square over its degrees of freedom: about 1 for one population."""
    observed = np.array(counts)
    expected = observed.sum(1, keepdims=True) * observed.sum(0) / observed.sum()
    freedom = np.prod(np.array(observed.shape) - 1)
    return float(((observed - expected) ** 2 / expected).sum() / freedom)


@cache
def generated(bound: float, steps: int = 400) -> tuple[float, float]:
    """Two means over Fed-KGF's Eq. (2), all drawn uniformly, ``|w|`` up to ``bound``.

    ``E |w|**β / E |w'|``, and ``E β |w|**(β - 1)``, the part of the gradient that reaches
    the base kernel.
    """
    middle = (np.arange(steps) + 0.5) / steps  # integrals are sums over midpoints
    w, beta = bound * middle[:, None], 2 + 8 * middle
    power = float((w**beta).mean())
    return power / (power + (0.00001 + 0.1) / 2), float((beta * w ** (beta - 1)).mean())


@cache
def network(name: str, *arguments: Any, **options: Any) -> torch.nn.Module:
    """A network on torch's meta device: shapes without memory."""
    from ..seeing import fcn, yolo

    makers = NETWORKS | {
        "yolov3": yolo.yolov3,
        "fcn32s": partial(fcn.fcn32s, (3, 320, 320)),
        "yolox": yolo.yolox,
    }
    makers["conv"] = partial(torch.nn.Conv2d, bias=False)
    with torch.device("meta"):
        return makers[name](*arguments, **options)


def _sum(
    net: torch.nn.Module, count: Callable[..., int], dims: Iterable[int] = range(9)
) -> int:
    return sum(count(p.shape) for p in net.parameters() if p.dim() in dims)


def base_params(net: torch.nn.Module, base: int) -> int:
    """Numbers in Fed-KGF's incomplete network (section 3.2), ``base`` kernels a
    convolution."""
    rest = _sum(net, prod, [0, 1, 2])
    return rest + _sum(
        net, lambda shape: prod(shape[1:]) * min(base, shape[0]), KERNELS
    )


@cache
def repopt(net: torch.nn.Module) -> torch.nn.Module:
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
        M, start = multipliers(one), _kernels(one)
        scaled = [i for i, m in enumerate(M) if torch.is_tensor(m)]
        for i, block in zip(scaled, blocks(one).values(), strict=True):
            scales = [
                s for s in (block.constant_s3, block.constant_s1) if s is not None
            ]
            M[i] = {
                "position": M[i],
                "branches": M[i] - unit(M[i]) * block.identity,
                "scalar": sum(s[:, None, None, None] ** 2 for s in scales),
            }[rule]
        branches = _kernels(_fedavg(csla, [1.0] * 999, batches))
        kernels = _kernels(_fedavg(one, M, batches))
    return float((kernels - branches).norm() / (branches - start).norm())


def _fedavg(
    net: torch.nn.Module, M: Sequence[float | torch.Tensor], batches: torch.Tensor
) -> torch.nn.Module:
    """The network after federated SGD on ``batches`` [rounds, clients, steps, images,
    ...]."""
    for clients in batches:
        ends = [copy.deepcopy(net) for _ in clients]
        for local, steps in zip(ends, clients, strict=True):
            for x in steps:
                params = list(local.parameters())
                loss = torch.nn.functional.cross_entropy(local(x), torch.arange(len(x)))
                for p, g, m in zip(
                    params, torch.autograd.grad(loss, params), M, strict=False
                ):
                    p.data -= 0.05 * m * g
        states = [state_of(local).values() for local in ends]
        for t, *parts in zip(state_of(net).values(), *states, strict=True):
            t.copy_(sum(parts) / len(parts))
    return net


def _kernels(net: torch.nn.Module) -> torch.Tensor:
    """The kernels of all blocks as one vector; branches count as the one that they add
    up to."""
    net = (
        net
        if any(block.form == "inf" for block in blocks(net).values())
        else collapse(net)
    )
    return torch.cat(
        [block.conv3.weight.detach().flatten() for block in blocks(net).values()]
    )


@cache
def folding_gap(name: str, training: bool = False) -> float:
    """A network with branches against the same folded into one kernel a block, both
    random: the distance of their outputs over their size. ``training``: branches
    normalise by the batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = NETWORKS[name](form="tr").double().eval()  # type: ignore[call-arg]
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                for t in (module.weight.data, module.bias.data, module.running_mean):
                    t.normal_()  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
        x = torch.randn(8, 1, 8, 8).double()
        with torch.no_grad():
            one = deploy(net)(x)
            several = net.train(training)(x)
    return float((several - one).norm() / one.norm())


KERNELS = range(
    3, 9
)  # a weight of three dimensions or more: [outputs, inputs, size, ...]
NAMED = ("rpn_cnn", "yolov3", "fcn32s", "resnet18", "mcmahan_cnn", "cifar_cnn", "conv")
NAMES: dict[str, Callable[..., Any]] = {
    # networks
    **{name: partial(network, name) for name in NAMED},
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
    # counts: all parameters; kernel entries; kernels; matrix entries of dense layers;
    # what RPN sends, by its section 3.6
    "params": lambda net: _sum(net, prod),
    "conv_weights": lambda net: _sum(net, prod, KERNELS),
    "kernels": lambda net: _sum(net, lambda shape: shape[0] * shape[1], KERNELS),
    "dense_weights": lambda net: _sum(net, prod, [2]),
    "pooled": lambda net: _sum(net, prod, [0, 1, 2]) + NAMES["kernels"](net),
    # k x k kernels with k > 1: their entries, and the layers with so many outputs; batch
    # statistics
    "spatial_weights": lambda net: _sum(
        net, lambda shape: prod(shape) * (shape[-1] > 1), KERNELS
    ),
    "spatial_layers": lambda net, outputs: _sum(
        net, lambda shape: shape[0] == outputs and shape[-1] > 1, KERNELS
    ),
    "buffers": lambda net: sum(
        b.numel() for b in net.buffers() if b.is_floating_point()
    ),
    "modules": lambda net, *kinds: sum(
        type(m).__name__ in kinds for m in net.modules()
    ),
    # relative decline and gain in per cent between two printed numbers: (low, middle,
    # high)
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
}
FUNCTIONS: list[Callable[..., Any]] = [
    base_params,
    multiply_adds,
    repopt,
    repopt_gap,
    folding_gap,
    generated,
    quotient,
    chi2_per_dof,
    sum,
    abs,
    len,
    enumerate,
    max,
    min,
    sorted,
    zip,
]
NAMES |= {function.__name__: function for function in FUNCTIONS}
