"""Functions of formulas in this chapter's claims."""

from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np
import torch
from torch import nn

from fedlearn.lab.ledger import KERNELS, network, total


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


def base_params(net: nn.Module, base: int) -> int:
    """Numbers in Fed-KGF's incomplete network (section 3.2), ``base`` kernels a
    convolution."""

    def entries(shape: torch.Size) -> int:
        return prod(shape[1:]) * min(base, shape[0])

    return total(net, prod, [0, 1, 2]) + total(net, entries, KERNELS)


def spatial_layers(net: nn.Module, outputs: int) -> int:
    """The layers with so many outputs and k x k kernels, k > 1."""

    def fits(shape: torch.Size) -> bool:
        return shape[0] == outputs and shape[-1] > 1

    return total(net, fits, KERNELS)


def yolox_s() -> nn.Module:
    """YOLOX-S."""
    return network("yolox")


def yolox_l() -> nn.Module:
    """YOLOX-L, which is deeper and wider."""
    return network("yolox", 80, 3, 64)


def mib(numbers: float, bits: int = 32) -> float:
    """Numbers of so many bits in MiB (2**20 bytes)."""
    return numbers * bits / 8 / 2**20


def distances(rows: Sequence, model: Sequence) -> list:
    """Squared distances of each entry of each row to a model."""
    return np.square(np.subtract(rows, model)).tolist()
