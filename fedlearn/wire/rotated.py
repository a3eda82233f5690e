"""A random rotation before few bits: the rotated entries are nearly normal, so that one
table of levels fits every tensor. DRIVE and EDEN (Vargaftik et al. 2021, 2022)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from ..errors import check_whole
from .base import FlatCoder, SharedRandomness
from .bits import Reader, clamped, pack_fields, write_scale

FACTOR = 64  # the Hadamard transform goes by matrices of this size


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """[n], n a power of two -> H x / sqrt(n), which is its own inverse."""
    n = len(x)
    left = n
    while left > 1:
        size = min(left, FACTOR)
        product = x.reshape(-1, size) @ _matrix(size)
        x = product.T.reshape(-1)
        left //= size
    return x / math.sqrt(n)


@lru_cache(16)
def _matrix(size: int) -> torch.Tensor:
    H = torch.ones(1, 1)
    while len(H) < size:
        upper = torch.cat([H, H], 1)
        lower = torch.cat([H, -H], 1)
        H = torch.cat([upper, lower])
    return H


def _turns(n: int, generator: torch.Generator) -> Iterator[tuple[slice, torch.Tensor]]:
    """The first, the last and again the first piece of length 2^k <= n, each with
    random signs."""
    piece = 1 << n.bit_length() - 1
    first = slice(piece)
    last = slice(n - piece, n)
    for part in (first, last, first):
        size = math.ceil(piece / 8)
        drawn = torch.randint(256, (size,), dtype=torch.uint8, generator=generator)
        bits = np.unpackbits(drawn.numpy())[:piece]
        yield part, torch.from_numpy(1 - 2 * bits.astype(np.float32))


def rotate(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """[n] -> R x: R shuffles the entries, then each piece gets random signs and H /
    sqrt(2^k)."""
    y = x[torch.randperm(len(x), generator=generator)]
    for part, signs in _turns(len(x), generator):
        y[part] = hadamard(signs * y[part])
    return y


def rotate_back(y: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The inverse, with the generator in the same state."""
    order = torch.randperm(len(y), generator=generator)
    y = y.clone()
    turns = list(_turns(len(y), generator))
    for part, signs in reversed(turns):
        y[part] = signs * hadamard(y[part])
    return torch.empty_like(y).index_copy_(0, order, y)


@lru_cache(16)
def centroids(bits: int) -> np.ndarray:
    """The 2^bits best levels for a standard normal entry (Lloyd 1982, Max 1960)."""
    half = 1 << bits - 1
    middle = torch.arange(half, dtype=torch.float64) + 0.5
    quantile = middle / (2 * half) + 0.5
    # the density of the levels that is best when they are many
    levels = torch.special.ndtri(quantile) * math.sqrt(3)
    zero = levels.new_zeros(1)
    for _ in range(3000):
        between = (levels[1:] + levels[:-1]) / 2
        edges = torch.cat([zero, between])
        right = torch.cat(
            [torch.special.ndtr(-edges), zero]
        )  # the mass right of each edge
        density = (-edges.square() / 2).exp()
        height = torch.cat([density, zero])
        mass = right[:-1] - right[1:]
        levels = (height[:-1] - height[1:]) / mass / math.sqrt(2 * math.pi)
    symmetric = torch.cat([-levels.flip(0), levels])
    return symmetric.to(torch.float32).numpy()


@dataclass(frozen=True)
class EDEN(FlatCoder, SharedRandomness):
    """The entries of R x, each to the nearest of 2^bits levels q for normal entries; R
    is a random rotation, and one bit is DRIVE.

    Decoded to S R^-1 q with S = ||x||^2 / <R x, q>, nearly unbiased (EDEN, section 3)
    but for tensors of fewer than 16 entries. The section: S as float32, ``bits`` bits
    an entry.
    """

    bits: int = 1

    def __post_init__(self) -> None:
        check_whole("bits", self.bits, maximum=8)

    def write(self, x: np.ndarray, generator: torch.Generator) -> bytes:
        largest = float(np.abs(x).max()) or 1.0
        unit = (x.astype(np.float64) / largest).astype(np.float32)  # its square fits
        squares = np.square(unit, dtype=np.float64)
        energy = float(squares.sum())
        y = rotate(torch.from_numpy(unit), generator).numpy()
        q = centroids(self.bits)
        edges = (q[1:] + q[:-1]) / 2
        factor = math.sqrt(len(x) / (energy or 1))
        normal = y * np.float32(factor)
        level = np.searchsorted(edges, normal, "right")
        product = np.dot(y.astype(np.float64), q[level])
        S = largest * energy / float(product) if energy else 0.0
        return write_scale([S], "a scale") + pack_fields(level, self.bits)

    def read(self, reader: Reader, n: int, generator: torch.Generator) -> np.ndarray:
        S = float(reader.magnitudes(1)[0])
        level = reader.fields(n, self.bits)
        q = torch.from_numpy(centroids(self.bits)[level])
        x = rotate_back(q, generator).numpy()
        return clamped(x.astype(np.float64) * S)
