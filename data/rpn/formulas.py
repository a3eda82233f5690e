"""Functions of formulas in this chapter's claims."""

from collections.abc import Sequence

import numpy as np


def chi2_per_dof(counts: Sequence[Sequence[int]]) -> float:
    """Pearson's chi-square over its degrees of freedom: about 1 for one population."""
    observed = np.array(counts)
    expected = observed.sum(1, keepdims=True) * observed.sum(0) / observed.sum()
    chi2 = ((observed - expected) ** 2 / expected).sum()
    rows, columns = observed.shape
    return float(chi2 / ((rows - 1) * (columns - 1)))
