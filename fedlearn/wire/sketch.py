"""Count sketches (Charikar et al. 2002), as FetchSGD sends them (Rothchild et al. 2020)."""

from dataclasses import dataclass

import numpy as np

from .. import rng
from .base import FlatCoder, Sparse, check_whole
from .bits import Reader, write_numbers
from .sparse import check_ratio, how_many, largest


@dataclass(frozen=True)
class CountSketch(FlatCoder, Sparse):
    """Every entry is added, with a random sign, to one random cell in each of ``rows`` rows of a
    table whose cells are the share ``size`` of the entries. The median over the rows of what an
    entry's cells hold, with its signs, is an estimate of it; the share ``ratio`` of estimates that
    are largest (the heavy hitters) are kept and all else decodes to zero. An estimate is off by
    about ||x|| / sqrt(cells of a row): whoever keeps nearly as many entries as a row has cells
    keeps noise, and an error above 1 grows under ``Feedback``.

    Signs and cells are the same for everybody and all rounds. The section: the table as float32, 32
    ``size`` bits an entry.
    """

    size: float = 1 / 2
    rows: int = 5
    ratio: float = 1 / 64

    def __post_init__(self) -> None:
        check_ratio(self.size)
        check_ratio(self.ratio)
        check_whole("The number of rows", self.rows, 1, 64)

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
        return write_numbers(self.table(x.astype(np.float64)) if len(x) else x, "a sketch")

    def read(self, reader: Reader, n: int) -> np.ndarray:
        table, x = reader.floats(self.rows * self.cells(n)), np.zeros(n, np.float32)
        if n:
            place, sign = self._places(n)
            estimate = np.median(table[place] * sign, axis=0)
            index = largest(estimate, how_many(self.ratio, n))
            x[index] = estimate[index]
        return x
