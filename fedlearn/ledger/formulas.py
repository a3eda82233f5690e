"""What the formulas of the ledger may call: networks, counts, arithmetic on
printed numbers, and the few checks that compute with weights.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
import torch

from ..data.partition import Table
from ..models import NETWORKS, multiply_adds, state_of
from ..models.reparam import blocks, collapse, deploy, unit
from ..models.repopt import multipliers, target


def printed_digits(text: str) -> tuple[float, float]:
    """A printed number and half a unit of its last digit."""
    return float(text), float(Decimal(1).scaleb(int(Decimal(text).as_tuple().exponent))) / 2


def quotient(a: str, b: str) -> tuple[float, ...]:
    """Of two printed numbers: (low, middle, high) for what they may round."""
    (x, half_x), (y, half_y) = printed_digits(a), printed_digits(b)
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
    from ..models import fcn, yolo

    makers = NETWORKS | {"yolov3": yolo.YOLOv3, "fcn32s": fcn.FCN32s, "yolox": yolo.YOLOX}
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


@cache
def folding_gap(name: str, training: bool = False) -> float:
    """A network with branches (form "tr") against the same folded into one kernel and a bias a
    block: the distance of their outputs over the outputs' size.

    Weights, scales and statistics are drawn at random; double precision. ``training``: the network
    with branches normalises by its batch, as it does while it trains.
    """
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


@cache
def generated(bound: float, steps: int = 400) -> tuple[float, float]:
    """Of kernels that Fed-KGF's Eq. (2) generates: the share of ``|w|**β``, that is
    ``E |w|**β / E |w'|``, and the part of their gradient that reaches the base kernel,
    ``E β |w|**(β - 1)``.

    The weights are uniform within ``bound``, α and β within the paper's ranges; integrals are sums
    over ``steps`` midpoints.
    """
    middle = (np.arange(steps) + 0.5) / steps
    w, beta = bound * middle[:, None], 2 + 8 * middle
    power = float((w**beta).mean())
    return power / (power + (0.00001 + 0.1) / 2), float((beta * w ** (beta - 1)).mean())


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
            folding_gap,
            generated,
            quotient,
            drop,
            rise,
            chi2_per_dof,
        )
    },
    **{f.__name__: f for f in (sum, abs, len, enumerate, max, min, sorted, zip)},
}
