"""Every entry, in few bits: signs, uniform levels, and the random levels of QSGD."""

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import Diverged, WireError
from .base import Coder, Shape, Votes, check_whole
from .bits import Reader, flat, pack_fields, pack_signs, range_decode, range_encode

_LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True)
class Signs(Coder):
    """One bit an entry. ``scaled``: C(x) = (||x||_1 / n) sign(x) with sign(0) = 1 (FedCAMS, Wang
    et al. 2022), for which one float32 travels; otherwise decodes to +-1."""

    scaled: bool = True

    @property
    def makes(self) -> type | None:  # type: ignore[override]
        return None if self.scaled else Votes

    def encode(self, tensor: torch.Tensor) -> bytes:
        x = flat(tensor)
        return pack_signs(x) if self.scaled else pack_fields(x < 0, 1)

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        reader, n = Reader(section), math.prod(shape)
        x = reader.signs(n) if self.scaled else reader.either(n, np.float32(1))
        reader.end()
        return torch.from_numpy(x).reshape(shape)


@dataclass(frozen=True)
class Uniform(Coder):
    """Per tensor 2^bits evenly spaced levels from the smallest entry to the largest, each entry
    to the nearest (FedCOM, Haddadpour et al. 2021). The section: smallest entry and step as
    float32, then the numbers of the levels."""

    bits: int = 8

    def __post_init__(self) -> None:
        check_whole("The number of bits of a level", self.bits, 1, 16)

    def encode(self, tensor: torch.Tensor) -> bytes:
        x, highest = flat(tensor).astype(np.float64), 2**self.bits - 1
        if not len(x):
            return b""
        exact = np.ptp(x) / highest
        with np.errstate(over="ignore"):
            step = np.float32(exact)
        if step < exact:  # rounded up, so that the last level reaches the largest entry
            step = np.nextafter(step, np.float32(np.inf))
        if step > _LARGEST:
            raise Diverged("The entries lie too far apart for a step in float32.")
        level = np.rint((x - x.min()) / (step or 1))
        return struct.pack("<ff", x.min(), step) + pack_fields(level.astype(np.uint16), self.bits)

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        reader, n = Reader(section), math.prod(shape)
        if not n:
            reader.end()
            return torch.zeros(shape)
        low, step = reader.floats(1).astype(np.float64), reader.magnitudes(1)
        x = low + reader.fields(n, self.bits) * step.astype(np.float64)
        reader.end()
        return torch.from_numpy(x.clip(-_LARGEST, _LARGEST).astype(np.float32)).reshape(shape)


@dataclass(frozen=True)
class QSGD(Coder):
    """Levels drawn at random: ``||x||_2 sign(x) xi / levels`` with ``xi = levels |x| / ||x||_2``
    rounded up or down, so that the mean is x (Alistarh et al. 2017); a norm for every ``bucket``
    consecutive entries, or one for all (``None``).

    The section: norms as float32, then each signed level plus ``levels`` in 1 + ceil(log2(levels
    + 1)) bits. ``entropy`` puts a byte before them: 0, they follow; 1, a histogram and a range
    code of them does, if shorter.
    """

    levels: int = 127
    bucket: int | None = 512
    entropy: bool = False

    stochastic = True

    def __post_init__(self) -> None:
        check_whole("The number of levels", self.levels, 1, 2**15 - 1)
        if self.bucket is not None:
            check_whole("The size of a bucket", self.bucket, 1, 2**31 - 1)

    def encode(self, tensor: torch.Tensor, generator: torch.Generator) -> bytes:
        """``generator``: a CPU generator of torch; it decides about up and down."""
        x = flat(tensor)
        rows = self._rows(x)
        with np.errstate(over="ignore"):
            norms = np.sqrt(np.square(rows, dtype=np.float64).sum(1)).astype("<f4")
        if not np.isfinite(norms).all():
            raise Diverged("The entries are too large for a norm in float32.")
        # rounding keeps order: no norm comes out smaller than an entry, no level above the last
        exact = np.abs(rows) / np.where(norms, norms, 1)[:, None] * np.float32(self.levels)
        xi = np.floor(exact)
        xi += self._rows(torch.rand(len(x), generator=generator).numpy()) < exact - xi
        signed = np.copysign(xi, rows).reshape(-1)[: len(x)]
        return norms.tobytes() + self._pack(signed.astype(np.int32) + self.levels)

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        reader, n = Reader(section), math.prod(shape)
        norms = reader.magnitudes(-(-n // self._size(n)))
        symbols = self._read(reader, n)
        reader.end()
        if n and symbols.max() > 2 * self.levels:
            raise WireError(f"The message holds levels above {self.levels}.")
        x = (symbols.astype(np.float32) - np.float32(self.levels)) / np.float32(self.levels)
        return torch.from_numpy((self._rows(x) * norms[:, None]).reshape(-1)[:n]).reshape(shape)

    def _size(self, n: int) -> int:
        return self.bucket or max(n, 1)

    def _rows(self, x: np.ndarray) -> np.ndarray:
        """[n] -> [buckets, entries], the last one filled up with zeros."""
        size = self._size(len(x))
        return np.pad(x, (0, -len(x) % size)).reshape(-1, size)

    @property
    def _width(self) -> int:
        return 1 + self.levels.bit_length()

    def _pack(self, symbols: np.ndarray) -> bytes:
        plain = pack_fields(symbols, self._width)
        if not self.entropy:
            return plain
        if not len(symbols):
            return b"\0"
        low = symbols.min()
        counts = np.bincount(symbols - low)
        width = int(counts.max()).bit_length()
        coded = struct.pack("<HHB", low, len(counts), width) + pack_fields(counts, width)
        if len(counts) > 1:
            coded += range_encode(symbols - low, counts)
        return b"\1" + coded if len(coded) < len(plain) else b"\0" + plain

    def _read(self, reader: Reader, n: int) -> np.ndarray:
        coded = self.entropy and reader.number(1)
        if not coded:
            return reader.fields(n, self._width)
        low, span, width = reader.number(2), reader.number(2), reader.number(1)
        if coded > 1 or width > 31:
            raise WireError("The message announces a code of levels that does not exist.")
        counts = reader.fields(span, width).astype(np.int64)
        if counts.sum() != n or not n:
            raise WireError(f"A histogram of {counts.sum()} levels came for {n} entries.")
        if span == 1:
            return np.full(n, low)
        return low + range_decode(reader.take(len(reader.rest)), counts)
