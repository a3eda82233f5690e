"""Functions of formulas in this chapter's claims."""

from collections.abc import Sequence
from math import prod

import numpy as np
from torch import nn

from fedlearn.lab.ledger import KERNELS, total


def chi2_per_dof(counts: Sequence[Sequence[int]]) -> float:
    """Pearson's chi-square over its degrees of freedom: about 1 for one population."""
    observed = np.array(counts)
    expected = observed.sum(1, keepdims=True) * observed.sum(0) / observed.sum()
    chi2 = ((observed - expected) ** 2 / expected).sum()
    rows, columns = observed.shape
    return float(chi2 / ((rows - 1) * (columns - 1)))


def kernels(net: nn.Module) -> int:
    """The number of kernels."""
    return total(net, lambda shape: shape[0] * shape[1], KERNELS)


def pooled(net: nn.Module) -> int:
    """The numbers that RPN sends, by its section 3.6."""
    return total(net, prod, [0, 1, 2]) + kernels(net)


def spread(rows: Sequence) -> list:
    """A kernel after pooling and recovery: its mean in every place."""
    return np.full_like(rows, np.mean(rows)).tolist()
