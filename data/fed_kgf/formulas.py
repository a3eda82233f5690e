"""Functions of formulas in this chapter's claims."""

from functools import cache
from math import prod

import numpy as np
import torch
from torch import nn

from fedlearn.lab.ledger import KERNELS, total


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
