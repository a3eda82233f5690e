"""A random rotation, drawn from shared randomness, before few bits: all entries are nearly normal
then, so that one table of levels fits all. DRIVE and EDEN (Vargaftik et al. 2021, 2022)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch

from ..arguments import counts
from .base import FlatCoder, SharedRandomness
from .bits import Reader, clamped, pack_fields, write_numbers

_FACTOR = 64  # the Hadamard transform goes by matrices of this size


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """[n], n a power of two -> H x / sqrt(n), its own inverse, factor by factor."""
    n = left = len(x)
    while left > 1:
        size = min(left, _FACTOR)
        x, left = (x.reshape(-1, size) @ _matrix(size)).T.reshape(-1), left // size
    return x / math.sqrt(n)


@lru_cache(16)
def _matrix(size: int) -> torch.Tensor:
    H = torch.ones(1, 1)
    while len(H) < size:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    return H


def _turns(n: int, generator: torch.Generator) -> Iterator[tuple[slice, torch.Tensor]]:
    """The first, the last and the first piece of length 2^k <= n again, random signs for each."""
    piece = 1 << n.bit_length() - 1
    for part in (slice(0, piece), slice(n - piece, n), slice(0, piece)):
        dice = torch.randint(256, (-(-piece // 8),), dtype=torch.uint8, generator=generator)
        signs = np.unpackbits(dice.numpy())[:piece].astype(np.float32)
        yield part, torch.from_numpy(1 - 2 * signs)


def rotate(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """[n] -> R x: R shuffles the entries, then each piece gets random signs and H / sqrt(2^k)."""
    y = x[torch.randperm(len(x), generator=generator)]
    for part, signs in _turns(len(x), generator):
        y[part] = hadamard(signs * y[part])
    return y


def rotate_back(y: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The inverse, with the generator in the same state."""
    order, y = torch.randperm(len(y), generator=generator), y.clone()
    for part, signs in reversed(list(_turns(len(y), generator))):
        y[part] = signs * hadamard(y[part])
    return torch.empty_like(y).index_copy_(0, order, y)


@lru_cache(16)
def centroids(bits: int) -> np.ndarray:
    """The 2^bits best levels for a standard normal entry (Lloyd 1982, Max 1960)."""
    half = 1 << bits - 1
    start = torch.special.ndtri((torch.arange(half, dtype=torch.float64) + 0.5) / (2 * half) + 0.5)
    levels = start * math.sqrt(3)  # the density of levels that is best when they are many
    for _ in range(3000):
        edges = torch.cat([levels.new_zeros(1), (levels[1:] + levels[:-1]) / 2])
        tail = torch.cat([torch.special.ndtr(-edges), edges.new_zeros(1)])  # to the right of each
        height = torch.cat([(-edges.square() / 2).exp(), edges.new_zeros(1)])
        levels = (height[:-1] - height[1:]) / (tail[:-1] - tail[1:]) / math.sqrt(2 * math.pi)
    return torch.cat([-levels.flip(0), levels]).to(torch.float32).numpy()


@dataclass(frozen=True)
class EDEN(FlatCoder, SharedRandomness):
    """The entries of R x, R a random rotation, each to the nearest of 2^bits levels q for normal
    entries; one bit is DRIVE. Decoded to S R^-1 q with S = ||x||^2 / <R x, q>, nearly unbiased
    (EDEN, section 3) but for tensors of fewer than 16 entries. The section: S as float32, ``bits``
    bits an entry."""

    bits: Annotated[int, counts(8)] = 1

    def write(self, x: np.ndarray, generator: torch.Generator) -> bytes:
        largest = float(np.abs(x).max()) or 1.0
        unit = (x.astype(np.float64) / largest).astype(np.float32)  # its square fits into float32
        energy = float(np.square(unit, dtype=np.float64).sum())
        y = rotate(torch.from_numpy(unit), generator).numpy()
        q = centroids(self.bits)
        normal = y * np.float32(math.sqrt(len(x) / (energy or 1)))
        level = np.searchsorted((q[1:] + q[:-1]) / 2, normal, "right")
        along = float(np.dot(y.astype(np.float64), q[level]))
        scale = largest * energy / along if energy else 0.0
        return write_numbers(np.array([scale]), "a scale") + pack_fields(level, self.bits)

    def read(self, reader: Reader, n: int, generator: torch.Generator) -> np.ndarray:
        scale = float(reader.magnitudes(1)[0])
        q = torch.from_numpy(centroids(self.bits)[reader.fields(n, self.bits)])
        return clamped(rotate_back(q, generator).numpy().astype(np.float64) * scale)
