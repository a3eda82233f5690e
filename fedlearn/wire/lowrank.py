"""Matrices of low rank, as PowerSGD sends them (Vogels et al. 2019)."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch

from ..arguments import counts
from .base import Shape, Stochastic
from .bits import Reader, clamped, flat, write_numbers


def power_step(M: torch.Tensor, Q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of subspace iteration (PowerSGD, Algorithm 1), float64: P = orthogonal columns of M
    Q, Q = M^T P; M [n, m], Q [m, r] -> P [n, r], Q [m, r]; P Q^T is M projected on P."""
    P, _ = torch.linalg.qr(M @ Q)
    return P, M.T @ P


@dataclass(frozen=True)
class LowRank(Stochastic):
    """A tensor as the matrix M [first axis, all others], which becomes P Q^T of rank ``rank``, a
    step of subspace iteration from a random start: biased, wants ``Feedback``. The section: P and Q
    as float32; what is not shorter that way travels dense."""

    rank: Annotated[int, counts(2**15)] = 2

    def factors(self, shape: Shape) -> tuple[int, int] | None:
        """Rows and columns of the matrix of a tensor of this shape; None if it travels dense."""
        n, m = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
        return (n, m) if self.rank * (n + m) < n * m else None

    def encode(self, tensor: torch.Tensor, generator: torch.Generator) -> bytes:
        x, sizes = flat(tensor), self.factors(tensor.shape)
        if sizes is None:
            return write_numbers(x, "themselves")
        M = torch.from_numpy(x.astype(np.float64)).reshape(sizes)
        start = torch.randn(sizes[1], self.rank, generator=generator, dtype=torch.float64)
        return write_numbers(torch.cat(power_step(M, start)).numpy(), "factors")

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        reader, sizes = Reader(section), self.factors(shape)
        if sizes is None:
            x = reader.floats(math.prod(shape)).copy()
        else:
            both = torch.from_numpy(reader.floats(sum(sizes) * self.rank).astype(np.float64))
            P, Q = both.reshape(-1, self.rank).split(sizes)
            x = clamped((P @ Q.T).numpy())
        reader.end()
        return torch.from_numpy(x).reshape(shape)
