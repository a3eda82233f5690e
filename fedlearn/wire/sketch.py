"""Count sketches (Charikar et al. 2002), as FetchSGD sends them (Rothchild et al. 2020)."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .. import rng
from ..errors import Diverged
from .base import Coder, Shape, Sketches, brief, check_whole
from .bits import Reader, flat
from .sparse import check_ratio, how_many, largest

_LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True)
class CountSketch(Coder):
    """Every entry is added, with a random sign, to one random cell in each of ``rows`` rows of a
    table whose cells are the share ``size`` of the entries. The median over the rows of what an
    entry's cells hold, with its signs, is an estimate of it; the share ``ratio`` of estimates that
    are largest (the heavy hitters) are kept and all else decodes to zero. An estimate is off by
    about ||x|| / sqrt(cells of a row): whoever keeps nearly as many entries as a row has cells
    keeps noise, and an error above 1 grows under ``Feedback``.

    Signs and cells are the same for everybody and all rounds, so the sum of tables is the table of
    the sum: ``merged`` decodes to the table [rows, cells], for a server that adds tables
    (``fedlearn.parts.HeavyHitters``). The section: the table as float32.
    """

    sparse = True
    __repr__ = brief

    size: float = 1 / 2
    rows: int = 5
    ratio: float = 1 / 64
    merged: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        check_ratio(self.size)
        check_ratio(self.ratio)
        check_whole("The number of rows", self.rows, 1, 64)

    @property
    def makes(self) -> type | None:  # type: ignore[override]
        return Sketches if self.merged else None

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

    def recover(self, table: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """[rows, cells] -> positions of the heavy hitters and their estimates."""
        place, sign = self._places(n)
        estimate = np.median(table.reshape(-1)[place] * sign, axis=0)
        index = largest(estimate, how_many(self.ratio, n))
        return index, estimate[index]

    def encode(self, tensor: torch.Tensor) -> bytes:
        x = flat(tensor)
        table = self.table(x.astype(np.float64)) if len(x) else np.zeros(0)
        if (np.abs(table) > _LARGEST).any():
            raise Diverged("The entries are too large for a sketch in float32.")
        return table.astype("<f4").tobytes()

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        reader, n = Reader(section), math.prod(shape)
        table = reader.floats(self.rows * self.cells(n)).reshape(self.rows, -1)
        reader.end()
        if self.merged:
            return torch.from_numpy(table.copy())
        x = np.zeros(n, np.float32)
        if n:
            index, values = self.recover(table, n)
            x[index] = values
        return torch.from_numpy(x).reshape(shape)
