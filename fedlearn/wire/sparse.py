"""Few entries: their positions as Golomb-Rice coded gaps, and their values (Strom 2015,
Aji & Heafield 2017, Lin et al. 2018; gaps and signs: Sattler et al. 2019, STC)."""

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import WireError, check_number, pick
from .base import FlatCoder, Sparse
from .bits import Reader, pack_rice, pack_signs
from .dense import write_floats

VALUES = {"float32": "<f4", "float16": "<f2", "sign": ""}  # form -> numpy's name


def encode_positions(index: np.ndarray, n: int) -> bytes:
    """Ascending positions below n -> bytes: count u32 | parameter u8 | gaps.

    If more than half of the n positions are meant, the other positions are listed, and
    the highest bit of the parameter is set.
    """
    complement = 2 * len(index) > n
    listed = _complement(index, n) if complement else index
    gaps = np.diff(listed, prepend=-1) - 1
    b, data = pack_rice(gaps)
    head = struct.pack("<IB", len(index), b | complement << 7)
    return head + data


def decode_positions(data: Any, n: int) -> tuple[np.ndarray, int]:
    """The inverse: the positions, and how many bytes of ``data`` they took."""
    reader = Reader(data)
    index = read_positions(reader, n)
    return index, len(data) - len(reader.remaining)


def read_positions(reader: Reader, n: int) -> np.ndarray:
    """The positions with which the reader's next bytes begin."""
    count = reader.number(4)
    head = reader.number(1)
    if count > n:
        raise WireError(f"{count} positions came for {n} entries.")
    complement = head >> 7
    b = head & 0x7F
    length = n - count if complement else count
    gaps = reader.rice(length, b, n - length)
    listed = np.cumsum(gaps + 1) - 1
    return _complement(listed, n) if complement else listed


def _complement(index: np.ndarray, n: int) -> np.ndarray:
    """The positions below n that are not in ``index``."""
    absent = np.ones(n, bool)
    absent[index] = False
    return np.flatnonzero(absent)


def how_many(ratio: float, n: int) -> int:
    """The share ``ratio`` of n entries, rounded up, but for float error."""
    return min(n, math.ceil(ratio * n * (1 - 1e-15)))


def largest(x: np.ndarray, count: int) -> np.ndarray:
    """Positions, ascending, of the ``count`` largest magnitudes; among equals the
    first."""
    if count == len(x):
        return np.arange(count)
    size = np.abs(x)
    place = len(x) - count
    edge = np.partition(size, place)[place]
    chosen = size > edge
    ties = np.flatnonzero(size == edge)
    missing = count - np.count_nonzero(chosen)
    chosen[ties[:missing]] = True
    return np.flatnonzero(chosen)


@dataclass(frozen=True)
class TopK(FlatCoder, Sparse):
    """The share ``ratio`` of entries that is largest in magnitude; the others decode to
    zero.

    ``values``: "float32", "float16", or "sign", one bit each and the mean magnitude
    (STC, equation 10).
    """

    ratio: float = 1 / 32
    values: str = "float32"
    empty = bytes(5)

    def __post_init__(self) -> None:
        check_number("ratio", self.ratio, above=0, maximum=1)
        pick(self.values, VALUES, "form of values")

    def write(self, x: np.ndarray) -> bytes:
        index = largest(x, how_many(self.ratio, len(x)))
        positions = encode_positions(index, len(x))
        values = x[index]
        if self.values == "sign":
            return positions + pack_signs(values)
        [data] = write_floats([torch.from_numpy(values)], VALUES[self.values])
        return positions + data

    def read(self, reader: Reader, n: int) -> np.ndarray:
        index = read_positions(reader, n)
        x = np.zeros(n, np.float32)
        if self.values == "sign":
            x[index] = reader.signs(len(index))
        else:
            x[index] = reader.floats(len(index), VALUES[self.values])
        return x
