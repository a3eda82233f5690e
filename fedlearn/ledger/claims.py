"""The ledger of the papers' checkable numbers (``data/claims.yaml``), and its checker.

An entry holds the number as printed, a formula for it and a verdict. The checker computes the
formula and derives the verdict anew:

* matches: the computed value is the printed one;
* rounding: it is, once rounded to the printed digits;
* inconsistent: it is not;
* not derivable: the paper prints nothing that would allow the comparison (measured results).
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml

from ..data.partition import Table
from ..data.sources import data_path
from ..models import NETWORKS, multiply_adds, state_of
from ..models.reparam import blocks, collapse, unit
from ..models.repopt import multipliers, target

if TYPE_CHECKING:
    import pandas as pd  # takes long to load: only where a table is made

LEDGER = data_path("claims.yaml")
VERDICTS = ("matches", "rounding", "inconsistent", "not derivable")
# of every entry; where needed, there are "read" and "data", too
KEYS = {"id", "paper", "where", "printed", "value", "formula", "verdict", "why"}


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
    """The entries. ``ValueError`` for a missing or unknown key or an id that is used twice."""
    claims = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    for claim in claims:
        wrong = (KEYS - claim.keys()) | (claim.keys() - KEYS - {"read", "data"})
        if wrong or claim["verdict"] not in VERDICTS:
            raise ValueError(
                f"Claim {claim.get('id')}: check its verdict and its keys {sorted(wrong)}."
            )
    if twice := [name for name, n in Counter(claim["id"] for claim in claims).items() if n > 1]:
        raise ValueError(f"Ids used twice: {twice}.")
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
    printed, half = _printed(value)
    low, middle, high = computed if isinstance(computed, tuple) else (computed,) * 3
    if abs(middle - printed) <= 1e-9 * abs(printed):
        return "matches"
    return "rounding" if low - half <= printed <= high + half else "inconsistent"


def _printed(text: str) -> tuple[float, float]:
    """A printed number and half a unit of its last digit."""
    return float(text), float(Decimal(1).scaleb(int(Decimal(text).as_tuple().exponent))) / 2


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


def report(results: Sequence[Result]) -> str:
    """What ``audit`` found, a line a claim, and below how often there was each verdict."""
    width, lines = max(len(r.claim["id"]) for r in results), []
    for r in results:
        text = f"printed {r.claim['printed']!s:.60}, computed {show(r.computed) or '-'}"
        text = f"LEDGER WRONG: {r.problem}" if r.problem else text
        lines.append(f"{r.claim['id']:<{width}}  {r.verdict:<14}  {text}")
    counts = Counter(r.verdict for r in results)
    return "\n".join([*lines, ", ".join(f"{n} {verdict}" for verdict, n in counts.items())])


def show(computed: Any) -> str:
    """A computed value as text: 1,183,242; 342.99; yes; 2.659 (2.64 to 2.679)."""
    if isinstance(computed, tuple):
        return f"{computed[1]:.4g} ({computed[0]:.4g} to {computed[2]:.4g})"
    if computed is None or isinstance(computed, bool):
        return {None: "", True: "yes", False: "no"}[computed]
    return f"{computed:,}" if isinstance(computed, int) else f"{computed:.5g}"


def quotient(a: str, b: str) -> tuple[float, ...]:
    """Of two printed numbers: (low, middle, high) for what they may round."""
    (x, half_x), (y, half_y) = _printed(a), _printed(b)
    return (x - half_x) / (y + half_y), x / y, (x + half_x) / (y - half_y)


def drop(before: str, after: str) -> tuple[float, ...]:
    """Relative decline in per cent between two printed numbers: (low, middle, high)."""
    return tuple(100 * (1 - q) for q in quotient(after, before)[::-1])


def rise(before: str, after: str) -> tuple[float, ...]:
    """Relative gain in per cent between two printed numbers: (low, middle, high)."""
    return tuple(100 * (q - 1) for q in quotient(after, before))


def chi2_per_dof(counts: Sequence[Sequence[int]]) -> float:
    """Pearson's chi-square over its degrees of freedom, of a table of counts.

    It is about 1 where the rows were drawn at random from one population.
    """
    seen = np.array(counts)
    expected = seen.sum(1, keepdims=True) * seen.sum(0) / seen.sum()
    return float(((seen - expected) ** 2 / expected).sum() / np.prod(np.array(seen.shape) - 1))


@cache
def network(name: str, *arguments: Any, **options: Any) -> torch.nn.Module:
    """A network on torch's meta device: shapes without memory."""
    from . import detection, segmentation

    makers = NETWORKS | {
        "yolov3": detection.YOLOv3,
        "fcn32s": segmentation.FCN32s,
        "yolox": detection.YOLOX,
    }
    makers["conv"] = partial(torch.nn.Conv2d, bias=False)
    with torch.device("meta"):
        return makers[name](*arguments, **options)


def _sum(
    net: torch.nn.Module, count: Callable[[torch.Size], int], dims: Iterable[int] = range(9)
) -> int:
    return sum(count(p.shape) for p in net.parameters() if p.dim() in dims)


def base_params(net: torch.nn.Module, base: int) -> int:
    """Numbers in Fed-KGF's incomplete network (section 3.2).

    Of each convolution, also of one with 1 x 1 kernels, it has ``base`` kernels.
    """
    rest = _sum(net, prod, [0, 1, 2])  # biases, batch normalisation and dense layers stay whole
    return rest + _sum(net, lambda shape: prod(shape[1:]) * min(base, shape[0]), KERNELS)


@cache
def repopt(net: torch.nn.Module) -> torch.nn.Module:
    """What FedRepOpt trains in place of a network in form "csla"; constants count as buffers."""
    with next(net.parameters()).device:
        return target(net)


@cache
def repopt_gap(name: str, rule: str) -> float:
    """RepOpt with a rule for its multipliers against the network with branches: the distance of
    their kernels in the end over the distance learned.

    Both are trained by FedAvg of two clients for three rounds of two steps, on noise, in double
    precision. ``rule`` is "position", the package's; "branches", the same without the 1 of the
    identity branch; or "scalar", Eq. (1)'s s_3^2 + s_1^2 for every entry of a kernel.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        csla = NETWORKS[name](form="csla").double()  # type: ignore[call-arg]
        batches = torch.randn(3, 2, 2, 8, 1, 8, 8).double()
        one = target(csla)
        M, start = multipliers(one), _kernels(one)
        for i, block in zip(
            (i for i, m in enumerate(M) if torch.is_tensor(m)), blocks(one).values(), strict=True
        ):
            squares = [
                s[:, None, None, None] ** 2
                for s in (block.constant_s3, block.constant_s1)
                if s is not None
            ]
            M[i] = {
                "position": M[i],
                "branches": M[i] - unit(M[i]) * block.identity,
                "scalar": sum(squares),
            }[rule]
        branches, kernels = (
            _kernels(_fedavg(net, m, batches)) for net, m in ((csla, [1.0] * 999), (one, M))
        )
    return float((kernels - branches).norm() / (branches - start).norm())


def _fedavg(
    net: torch.nn.Module, M: Sequence[float | torch.Tensor], batches: torch.Tensor
) -> torch.nn.Module:
    """The network after federated SGD.

    ``batches`` is [rounds, clients, steps, images, ...]; the labels of a batch are 0, 1, 2, ...
    """
    for clients in batches:
        ends = [copy.deepcopy(net) for _ in clients]
        for own, steps in zip(ends, clients, strict=True):
            for x in steps:
                params = list(own.parameters())
                grads = torch.autograd.grad(
                    torch.nn.functional.cross_entropy(own(x), torch.arange(len(x))), params
                )
                for p, g, m in zip(params, grads, M, strict=False):
                    p.data -= 0.05 * m * g
        for t, *parts in zip(
            state_of(net).values(), *(state_of(own).values() for own in ends), strict=True
        ):
            t.copy_(sum(parts) / len(parts))
    return net


def _kernels(net: torch.nn.Module) -> torch.Tensor:
    """The kernels of all blocks as one vector; branches count as the one that they add up to."""
    net = net if any(block.form == "inf" for block in blocks(net).values()) else collapse(net)
    return torch.cat([block.conv3.weight.detach().flatten() for block in blocks(net).values()])


KERNELS = range(3, 9)  # a weight of three dimensions or more: [outputs, inputs, size, ...]
NAMES: dict[str, Callable[..., Any]] = {
    # networks
    "rpn_cnn": lambda: network("rpn_cnn"),
    "yolov3": lambda classes: network("yolov3", classes),
    "fcn32s": lambda classes: network("fcn32s", classes),
    "resnet18": lambda: network("resnet18"),
    "resnet": lambda layers, classes=10: network(f"resnet{layers}", classes=classes),
    "extractor": lambda net: net.extractor,
    "mcmahan_cnn": lambda: network("mcmahan_cnn"),
    "cifar_cnn": lambda: network("cifar_cnn"),
    "repvgg": lambda form, classes=200: network("repvgg_b1", classes=classes, form=form),
    "repghost": lambda form, classes=200: network("repghost_05", classes=classes, form=form),
    "yolox_s": lambda: network("yolox"),
    "yolox_l": lambda: network("yolox", 80, 3, 64),
    "conv": lambda inputs, outputs, size: network("conv", inputs, outputs, size),
    # counts: all parameters; kernel entries; kernels; matrix entries of dense layers; what RPN
    # sends, by its section 3.6
    "params": lambda net: _sum(net, prod),
    "conv_weights": lambda net: _sum(net, prod, KERNELS),
    "kernels": lambda net: _sum(net, lambda shape: shape[0] * shape[1], KERNELS),
    "dense_weights": lambda net: _sum(net, prod, [2]),
    "pooled": lambda net: _sum(net, prod, [0, 1, 2]) + NAMES["kernels"](net),
    # k x k kernels with k > 1: their entries, and the layers with so many outputs; batch statistics
    "spatial_weights": lambda net: _sum(net, lambda shape: prod(shape) * (shape[-1] > 1), KERNELS),
    "spatial_layers": lambda net, outputs: _sum(
        net, lambda shape: shape[0] == outputs and shape[-1] > 1, KERNELS
    ),
    "buffers": lambda net: sum(b.numel() for b in net.buffers() if b.is_floating_point()),
    "modules": lambda net, *kinds: sum(type(m).__name__ in kinds for m in net.modules()),
    "darknet_layers": lambda net: sum(net.layers().values()),
    # arithmetic on printed numbers
    # mib: numbers of so many bits in MiB (2**20 bytes)
    # distances: squared, of each entry of each row to a model
    # spread: a kernel after pooling and recovery, its mean in every place
    # partition: a table of data/partitions, rows clients, columns classes
    "mib": lambda numbers, bits=32: numbers * bits / 8 / 2**20,
    "distances": lambda rows, model: np.square(np.subtract(rows, model)).tolist(),
    "mean": lambda rows: float(np.mean(rows)),
    "spread": lambda rows: np.full_like(rows, np.mean(rows)).tolist(),
    "columns": lambda rows: np.sum(rows, 0).tolist(),
    "partition": lambda name: Table(name).counts().tolist(),
    **{
        f.__name__: f
        for f in (
            base_params,
            multiply_adds,
            repopt,
            repopt_gap,
            quotient,
            drop,
            rise,
            chi2_per_dof,
        )
    },
    **{f.__name__: f for f in (sum, abs, len, enumerate, max, min, sorted, zip)},
}
