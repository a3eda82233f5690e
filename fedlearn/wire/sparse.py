"""Few numbers: positions of entries as Golomb-Rice coded gaps, and their values (Strom 2015, Aji &
Heafield 2017, Lin et al. 2018; gaps and signs: Sattler et al. 2019, STC); or matrices of low rank
(PowerSGD, Vogels et al. 2019)."""

import math
import struct
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch

from .. import rng
from ..arguments import Ratio, counts
from ..errors import WireError, pick
from .base import FlatCoder, Shape, SharedRandomness, Sparse, Stochastic
from .bits import Reader, clamped, flat, pack_rice, pack_signs, write_numbers
from .coders import write_floats

_FLOATS = {"float32": "<f4", "float16": "<f2"}


def encode_positions(index: np.ndarray, n: int) -> bytes:
    """Ascending positions below n -> bytes: count u32 | parameter u8 | gaps. The parameter's
    highest bit: the others' positions are listed, as more than half are meant."""
    complement = 2 * len(index) > n
    listed = _others(index, n) if complement else index
    b, data = pack_rice(np.diff(listed, prepend=-1) - 1)
    return struct.pack("<IB", len(index), b | complement << 7) + data


def decode_positions(data: Any, n: int) -> tuple[np.ndarray, int]:
    """The inverse: the positions and how many bytes of ``data`` they took."""
    reader = Reader(data)
    index = read_positions(reader, n)
    return index, len(data) - len(reader.rest)


def read_positions(reader: Reader, n: int) -> np.ndarray:
    """The positions that the reader has before it."""
    count, head = reader.number(4), reader.number(1)
    if count > n:
        raise WireError(f"{count} positions came for {n} entries.")
    complement, b = head >> 7, head & 0x7F
    listed = n - count if complement else count
    index = np.cumsum(reader.rice(listed, b, n - listed) + 1) - 1
    return _others(index, n) if complement else index


def _others(index: np.ndarray, n: int) -> np.ndarray:
    keep = np.ones(n, bool)
    keep[index] = False
    return np.flatnonzero(keep)


def how_many(ratio: float, n: int, rows: int = 1) -> int:
    """How many of n entries are kept, rounded up, but for what floats add to a number."""
    return min(n, math.ceil(ratio * n / rows * (1 - 1e-15)))


def largest(x: np.ndarray, count: int) -> np.ndarray:
    """Positions, ascending, of the ``count`` largest entries; among equal ones the first."""
    if count == len(x):
        return np.arange(count)
    size = np.abs(x)
    edge = np.partition(size, len(x) - count)[len(x) - count]
    keep = size > edge
    keep[np.flatnonzero(size == edge)[: count - np.count_nonzero(keep)]] = True
    return np.flatnonzero(keep)


@dataclass(frozen=True)
class TopK(FlatCoder, Sparse):
    """The share ``ratio`` of entries that is largest in magnitude; the others decode to zero.
    ``values``: "float32", "float16", or "sign", one bit each and the mean magnitude (STC, equation
    10)."""

    ratio: Ratio = 1 / 32
    values: str = "float32"
    empty = bytes(5)

    def __post_init__(self) -> None:
        pick(self.values, dict.fromkeys([*_FLOATS, "sign"]), "form of values")

    def write(self, x: np.ndarray) -> bytes:
        index = largest(x, how_many(self.ratio, len(x)))
        positions, kept = encode_positions(index, len(x)), x[index]
        if self.values == "sign":
            return positions + pack_signs(kept)
        return positions + write_floats([torch.from_numpy(kept)], _FLOATS[self.values])[0]

    def read(self, reader: Reader, n: int) -> np.ndarray:
        x, index = np.zeros(n, np.float32), read_positions(reader, n)
        if self.values == "sign":
            x[index] = reader.signs(len(index))
        else:
            x[index] = reader.floats(len(index), _FLOATS[self.values])
        return x


@dataclass(frozen=True)
class RandomK(FlatCoder, SharedRandomness, Sparse):
    """The share ``ratio`` of entries, as float32, at positions from shared randomness. ``unbiased``
    decodes them times n/k; otherwise as they are, for ``Feedback`` (Stich et al. 2018)."""

    ratio: Ratio = 1 / 32
    unbiased: bool = True

    def _index(self, n: int, generator: torch.Generator) -> np.ndarray:
        return torch.randperm(n, generator=generator)[: how_many(self.ratio, n)].numpy()

    def write(self, x: np.ndarray, generator: torch.Generator) -> bytes:
        return x[self._index(len(x), generator)].astype("<f4").tobytes()

    def read(self, reader: Reader, n: int, generator: torch.Generator) -> np.ndarray:
        x, index = np.zeros(n), self._index(n, generator)
        x[index] = reader.floats(len(index))
        return clamped(x * (n / len(index) if self.unbiased else 1))


@dataclass(frozen=True)
class CountSketch(FlatCoder, Sparse):
    """Count sketch (FetchSGD, Rothchild et al. 2020): every entry is added, with a random sign, to
    a random cell in each of ``rows`` rows of a table of the share ``size`` of the entries. The
    median over the rows estimates it; the share ``ratio`` of largest estimates is kept. The
    section: the table as float32; signs and cells are the same for all."""

    size: Ratio = 1 / 2
    rows: Annotated[int, counts(64)] = 5
    ratio: Ratio = 1 / 64

    def cells(self, n: int) -> int:
        """How many cells a row has, for a tensor of n entries."""
        return how_many(self.size, n, self.rows)

    def _places(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """For each row and entry its cell, counted over the whole table, and its sign."""
        generator, shape = rng.numpy_generator(0, "count sketch", n), (self.rows, n)
        cells = generator.integers(self.cells(n), size=shape)
        signs = 1 - 2 * generator.integers(2, size=shape, dtype=np.int8)
        return cells + self.cells(n) * np.arange(self.rows)[:, None], signs

    def table(self, x: np.ndarray) -> np.ndarray:
        """[n] -> [rows, cells], float64: a linear map."""
        place, sign = self._places(len(x))
        size = self.rows * self.cells(len(x))
        return np.bincount(place.ravel(), (sign * x).ravel(), size).reshape(self.rows, -1)

    def write(self, x: np.ndarray) -> bytes:
        return write_numbers(self.table(x.astype(np.float64)), "a sketch")

    def read(self, reader: Reader, n: int) -> np.ndarray:
        table, x = reader.floats(self.rows * self.cells(n)), np.zeros(n, np.float32)
        place, sign = self._places(n)
        estimate = np.median(table[place] * sign, axis=0)
        index = largest(estimate, how_many(self.ratio, n))
        x[index] = estimate[index]
        return x


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
