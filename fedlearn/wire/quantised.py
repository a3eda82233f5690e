"""Every entry in few bits: signs, even levels, and random levels with the right mean."""

import math
import struct
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import Diverged, WireError, check_number, check_whole
from .base import FlatCoder, Stochastic, Votes
from .bits import (
    LARGEST,
    Reader,
    clamped,
    pack_fields,
    pack_signs,
    range_decode,
    range_encode,
    write_scale,
)


@dataclass(frozen=True)
class Signs(FlatCoder):
    """One bit an entry: +1 or -1, and +1 for zero.

    ``scaled``: (||x||_1 / n) sign(x), for one float32 more.
    """

    scaled: bool = True

    @property
    def makes(self) -> type | None:  # type: ignore[override]
        return None if self.scaled else Votes

    def write(self, x: np.ndarray) -> bytes:
        if self.scaled:
            return pack_signs(x)
        return pack_fields(x < 0, 1)

    def read(self, reader: Reader, n: int) -> np.ndarray:
        if self.scaled:
            return reader.signs(n)
        return reader.plus_minus(n, np.float32(1))


@dataclass(frozen=True)
class Uniform(FlatCoder):
    """Each entry to the nearest of 2^bits even levels between the smallest and the
    largest entry (FedCOM, Haddadpour et al. 2021).

    The section: smallest entry and step as float32, the numbers of the levels.
    """

    bits: int = 8

    def __post_init__(self) -> None:
        check_whole("bits", self.bits, maximum=16)

    def write(self, x: np.ndarray) -> bytes:
        x = x.astype(np.float64)
        exact = np.ptp(x) / (2**self.bits - 1)
        with np.errstate(over="ignore"):
            step = np.float32(exact)
        if step < exact:  # rounded up, so that the last level reaches the largest entry
            step = np.nextafter(step, np.float32(np.inf))
        if step > LARGEST:
            raise Diverged("The entries lie too far apart for a step in float32.")
        low = x.min()
        level = np.rint((x - low) / (step or 1))
        head = struct.pack("<ff", low, step)
        return head + pack_fields(level.astype(np.uint16), self.bits)

    def read(self, reader: Reader, n: int) -> np.ndarray:
        low = reader.floats(1).astype(np.float64)
        step = reader.magnitudes(1).astype(np.float64)
        return clamped(low + reader.fields(n, self.bits) * step)


@dataclass(frozen=True)
class QSGD(FlatCoder, Stochastic):
    """Levels drawn at random, unbiased (Alistarh et al. 2017)::

        ||x||_2 sign(x) xi / levels,   xi = levels |x| / ||x||_2 rounded up or down

    Each ``bucket`` of entries has a norm. The section: norms as float32, then each
    signed level plus ``levels``. With ``entropy`` a byte stands before the levels: 0,
    they follow; 1, a histogram and a range code of them, which is shorter.
    """

    levels: int = 127
    bucket: int = 512
    entropy: bool = False

    def __post_init__(self) -> None:
        check_whole("levels", self.levels, maximum=2**15 - 1)
        check_whole("bucket", self.bucket, maximum=2**31 - 1)

    def write(self, x: np.ndarray, generator: torch.Generator) -> bytes:
        rows = self._rows(x)
        squares = np.square(rows, dtype=np.float64)
        norms = np.sqrt(squares.sum(1))
        head = write_scale(norms, "a norm")
        norms = norms.astype("<f4")
        # Rounding keeps the order: no norm becomes smaller than an entry, so no level
        # is above the last.
        divisors = np.where(norms, norms, 1)
        exact = np.abs(rows) / divisors[:, None]
        exact *= np.float32(self.levels)
        xi = np.floor(exact)
        uniform = torch.rand(len(x), generator=generator).numpy()
        xi += self._rows(uniform) < exact - xi
        signed = np.copysign(xi, rows).astype(np.int32)
        symbols = signed.reshape(-1)[: len(x)] + self.levels
        return head + self._pack(symbols)

    def read(self, reader: Reader, n: int) -> np.ndarray:
        buckets = math.ceil(n / self.bucket)
        norms = reader.magnitudes(buckets)
        symbols = self._unpack(reader, n)
        if symbols.max() > 2 * self.levels:
            raise WireError(f"The message holds levels above {self.levels}.")
        levels = np.float32(self.levels)
        x = (symbols.astype(np.float32) - levels) / levels
        rows = self._rows(x) * norms[:, None]
        return rows.reshape(-1)[:n]

    @property
    def empty(self) -> bytes:  # type: ignore[override]
        return b"\0" if self.entropy else b""

    @property
    def _width(self) -> int:
        return 1 + int(self.levels).bit_length()

    def _rows(self, x: np.ndarray) -> np.ndarray:
        """[n] -> [buckets, entries], the last one padded with zeros."""
        padding = -len(x) % self.bucket
        return np.pad(x, (0, padding)).reshape(-1, self.bucket)

    def _pack(self, symbols: np.ndarray) -> bytes:
        plain = pack_fields(symbols, self._width)
        if not self.entropy:
            return plain
        low = symbols.min()
        counts = np.bincount(symbols - low)
        width = int(counts.max()).bit_length()
        coded = struct.pack("<HHB", low, len(counts), width) + pack_fields(
            counts, width
        )
        if len(counts) > 1:
            coded += range_encode(symbols - low, counts)
        if len(coded) < len(plain):
            return b"\1" + coded
        return b"\0" + plain

    def _unpack(self, reader: Reader, n: int) -> np.ndarray:
        form = reader.number(1) if self.entropy else 0
        if form == 0:
            return reader.fields(n, self._width)
        low = reader.number(2)
        span = reader.number(2)
        width = reader.number(1)
        if form > 1 or width > 31:
            raise WireError(
                "The message announces a code of levels that does not exist."
            )
        counts = reader.fields(span, width).astype(np.int64)
        if counts.sum() != n:
            raise WireError(
                f"A histogram of {counts.sum()} levels came for {n} entries."
            )
        if span == 1:
            return np.full(n, low)
        code = reader.take(len(reader.remaining))
        return low + range_decode(code, counts)


POWERS = 3 ** np.arange(5)


@dataclass(frozen=True)
class TernGrad(FlatCoder, Stochastic):
    """``s sign(x) b``: s the largest size, b one with probability ``|x| / s`` (Wen et
    al. 2017).

    Unbiased, but for entries that are cut before at ``clip`` standard deviations
    (section 3.3). The section: s as float32, then five entries a byte, as digits to the
    base 3.
    """

    clip: float | None = 2.5

    def __post_init__(self) -> None:
        if self.clip is not None:
            check_number("clip", self.clip, above=0)

    def write(self, x: np.ndarray, generator: torch.Generator) -> bytes:
        size = np.abs(x)
        s = size.max()
        if self.clip is not None:
            variance = np.square(x, dtype=np.float64).mean()
            limit = self.clip * math.sqrt(variance)
            s = np.float32(min(float(s), limit))  # compared before it could overflow
        uniform = torch.rand(len(x), generator=generator).numpy()
        b = uniform < size / (s or np.float32(1))
        digits = np.where(x < 0, 2, 1) * b
        padding = -len(x) % 5
        rows = np.pad(digits, (0, padding)).reshape(-1, 5)
        packed = (rows @ POWERS).astype(np.uint8)
        return struct.pack("<f", s) + packed.tobytes()

    def read(self, reader: Reader, n: int) -> np.ndarray:
        s = reader.magnitudes(1)[0]
        packed = reader.take(math.ceil(n / 5))
        rows = packed[:, None] // POWERS % 3
        digits = rows.reshape(-1)
        if packed.max() >= 3**5 or digits[n:].any():
            raise WireError("Five entries of three values do not make such a byte.")
        values = np.array([0, s, -s], np.float32)
        return values[digits[:n]]
