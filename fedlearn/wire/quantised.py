"""Every entry, in few bits: signs, uniform levels, and levels drawn at random so that the mean is
right; or without loss, in about the entropy: masks and floats."""

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch

from ..arguments import LARGEST, Range, counts
from ..errors import Diverged, WireError
from .base import Coder, FlatCoder, Masks, Shape, Stochastic, Votes
from .bits import (
    Reader,
    clamped,
    finite,
    pack_fields,
    pack_signs,
    range_decode,
    range_encode,
    write_numbers,
)

_POWERS = 3 ** np.arange(5)


@dataclass(frozen=True)
class Signs(FlatCoder):
    """One bit an entry: +-1, or ``scaled`` (||x||_1 / n) sign(x), sign(0) = 1, for one float32
    more."""

    scaled: bool = True

    @property
    def makes(self) -> type | None:  # type: ignore[override]
        return None if self.scaled else Votes

    def write(self, x: np.ndarray) -> bytes:
        return pack_signs(x) if self.scaled else pack_fields(x < 0, 1)

    def read(self, reader: Reader, n: int) -> np.ndarray:
        return reader.signs(n) if self.scaled else reader.either(n, np.float32(1))


@dataclass(frozen=True)
class Uniform(FlatCoder):
    """Each entry to the nearest of 2^bits even levels from the smallest entry to the largest
    (FedCOM, Haddadpour et al. 2021). The section: smallest entry and step as float32, the levels'
    numbers."""

    bits: Annotated[int, counts(16)] = 8

    def write(self, x: np.ndarray) -> bytes:
        x, highest = x.astype(np.float64), 2**self.bits - 1
        exact = np.ptp(x) / highest
        with np.errstate(over="ignore"):
            step = np.float32(exact)
        if step < exact:  # rounded up, so that the last level reaches the largest entry
            step = np.nextafter(step, np.float32(np.inf))
        if step > LARGEST:
            raise Diverged("The entries lie too far apart for a step in float32.")
        level = np.rint((x - x.min()) / (step or 1))
        return struct.pack("<ff", x.min(), step) + pack_fields(level.astype(np.uint16), self.bits)

    def read(self, reader: Reader, n: int) -> np.ndarray:
        low, step = reader.floats(1).astype(np.float64), reader.magnitudes(1)
        return clamped(low + reader.fields(n, self.bits) * step.astype(np.float64))


@dataclass(frozen=True)
class QSGD(FlatCoder, Stochastic):
    """Levels drawn at random: ``||x||_2 sign(x) xi / levels``, ``xi = levels |x| / ||x||_2``
    rounded up or down, unbiased (Alistarh et al. 2017); a norm for every ``bucket`` entries, or for
    all (``None``). The section: norms as float32, then each signed level plus ``levels``; with
    ``entropy`` behind a byte: 0, they follow, 1, a histogram and a range code of them does, if
    shorter."""

    levels: Annotated[int, counts(2**15 - 1)] = 127
    bucket: Annotated[int | None, counts(2**31 - 1)] = 512
    entropy: bool = False

    def write(self, x: np.ndarray, generator: torch.Generator) -> bytes:
        rows = self._rows(x)
        norms = np.sqrt(np.square(rows, dtype=np.float64).sum(1))
        head, norms = write_numbers(norms, "a norm"), norms.astype("<f4")
        # rounding keeps order: no norm comes out smaller than an entry, no level above the last
        exact = np.abs(rows) / np.where(norms, norms, 1)[:, None] * np.float32(self.levels)
        xi = np.floor(exact)
        xi += self._rows(torch.rand(len(x), generator=generator).numpy()) < exact - xi
        signed = np.copysign(xi, rows).reshape(-1)[: len(x)]
        return head + self._pack(signed.astype(np.int32) + self.levels)

    def read(self, reader: Reader, n: int) -> np.ndarray:
        norms = reader.magnitudes(-(-n // (self.bucket or n)))
        symbols = self._unpack(reader, n)
        if symbols.max() > 2 * self.levels:
            raise WireError(f"The message holds levels above {self.levels}.")
        x = (symbols.astype(np.float32) - np.float32(self.levels)) / np.float32(self.levels)
        return (self._rows(x) * norms[:, None]).reshape(-1)[:n]

    @property
    def empty(self) -> bytes:  # type: ignore[override]
        return b"\0" if self.entropy else b""

    def _rows(self, x: np.ndarray) -> np.ndarray:
        """[n] -> [buckets, entries], the last one filled up with zeros."""
        size = self.bucket or len(x)
        return np.pad(x, (0, -len(x) % size)).reshape(-1, size)

    @property
    def _width(self) -> int:
        return 1 + self.levels.bit_length()

    def _pack(self, symbols: np.ndarray) -> bytes:
        plain = pack_fields(symbols, self._width)
        if not self.entropy:
            return plain
        low = symbols.min()
        counts = np.bincount(symbols - low)
        width = int(counts.max()).bit_length()
        coded = struct.pack("<HHB", low, len(counts), width) + pack_fields(counts, width)
        if len(counts) > 1:
            coded += range_encode(symbols - low, counts)
        return b"\1" + coded if len(coded) < len(plain) else b"\0" + plain

    def _unpack(self, reader: Reader, n: int) -> np.ndarray:
        coded = self.entropy and reader.number(1)
        if not coded:
            return reader.fields(n, self._width)
        low, span, width = reader.number(2), reader.number(2), reader.number(1)
        if coded > 1 or width > 31:
            raise WireError("The message announces a code of levels that does not exist.")
        counts = reader.fields(span, width).astype(np.int64)
        if counts.sum() != n:
            raise WireError(f"A histogram of {counts.sum()} levels came for {n} entries.")
        if span == 1:
            return np.full(n, low)
        return low + range_decode(reader.take(len(reader.rest)), counts)


@dataclass(frozen=True)
class Natural(FlatCoder, Stochastic):
    """Natural compression (Horváth et al. 2022): a size between 2^a and 2^(a+1) becomes 2^(a+1)
    with probability size / 2^a - 1, else 2^a: unbiased. The section: exponent and sign, 9 bits an
    entry."""

    def write(self, x: np.ndarray, generator: torch.Generator) -> bytes:
        exponent = np.maximum(np.frexp(x)[1] + 126, 0)  # of float32: 2^(exponent - 127) <= |x|
        small = exponent == 0  # below the smallest power with a fraction: towards 0 or 2^-126
        above = np.ldexp(np.abs(x.astype(np.float64)), np.where(small, 126, 127 - exponent))
        chance = np.where(small, above, above - 1)
        up = torch.rand(len(x), generator=generator).numpy() < chance
        exponent = np.where(x == 0, 0, exponent) + up
        if (exponent > 254).any():
            raise Diverged("An entry is too large for a power of two in float32.")
        return pack_fields(exponent | ((x < 0) & (exponent > 0)).astype(np.int64) << 8, 9)

    def read(self, reader: Reader, n: int) -> np.ndarray:
        codes = reader.fields(n, 9)
        exponent, negative = codes & 0xFF, codes >> 8
        if (exponent == 255).any() or (negative > exponent).any():
            raise WireError("A power of two has an exponent of 255, or a zero has a sign.")
        x = np.where(exponent, np.ldexp(np.float32(1), exponent - 127), np.float32(0))
        return np.where(negative, -x, x)


@dataclass(frozen=True)
class TernGrad(FlatCoder, Stochastic):
    """TernGrad (Wen et al. 2017): ``s sign(x) b``, s the largest size, b one with probability ``|x|
    / s``: unbiased, but for entries that are cut before at ``clip`` standard deviations (section
    3.3). The section: s as float32, then five entries a byte, as digits to the base 3."""

    clip: Annotated[float | None, Range("above 0", lambda x: x is None or x > 0)] = 2.5

    def write(self, x: np.ndarray, generator: torch.Generator) -> bytes:
        size = np.abs(x)
        s = size.max()
        if self.clip is not None:
            limit = self.clip * math.sqrt(np.square(x, dtype=np.float64).mean())
            s = np.float32(min(float(s), limit))  # compared before it could overflow
        b = torch.rand(len(x), generator=generator).numpy() < size / (s or np.float32(1))
        digits = np.pad(np.where(x < 0, 2, 1) * b, (0, -len(x) % 5)).reshape(-1, 5)
        return struct.pack("<f", s) + (digits @ _POWERS).astype(np.uint8).tobytes()

    def read(self, reader: Reader, n: int) -> np.ndarray:
        s, packed = reader.magnitudes(1)[0], reader.take(-(-n // 5))
        digits = (packed[:, None] // _POWERS % 3).reshape(-1)
        if packed.max() >= 3**5 or digits[n:].any():
            raise WireError("Five entries of three values do not make such a byte.")
        return np.array([0, s, -s], np.float32)[digits[:n]]


_ZEROS, _ONES, _PLAIN, _CODED = range(4)


@dataclass(frozen=True)
class Mask(Coder):
    """Zeros and ones in about the entropy of their share (FedPM, Isik et al. 2023): one byte that
    says all zeros, all ones, plain or coded; then nothing, one bit an entry, or the number of ones
    as u32 and a range code."""

    takes = makes = Masks

    def encode(self, tensor: torch.Tensor) -> bytes:
        tensor = tensor.detach().cpu()
        bits = (tensor == 1).reshape(-1).numpy()
        if not ((tensor == 0) | (tensor == 1)).all():
            raise ValueError("A mask holds only zeros and ones.")
        ones = np.count_nonzero(bits)
        if ones in (0, len(bits)):
            return bytes([_ONES if ones else _ZEROS])
        plain = pack_fields(bits, 1)
        coded = struct.pack("<I", ones) + range_encode(bits, np.array([len(bits) - ones, ones]))
        return bytes([_CODED]) + coded if len(coded) < len(plain) else bytes([_PLAIN]) + plain

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        reader, n = Reader(section), math.prod(shape)
        form = reader.number(1)
        if form in (_ZEROS, _ONES):
            bits = np.full(n, form == _ONES)
        elif form == _PLAIN:
            bits = reader.fields(n, 1)
        elif form == _CODED:
            ones = reader.number(4)
            if not 0 < ones < n:
                raise WireError(f"A coded mask of {n} entries cannot have {ones} ones.")
            bits = range_decode(reader.take(len(reader.rest)), np.array([n - ones, ones]))
        else:
            raise WireError(f"There is no form {form} of a mask.")
        reader.end()
        return torch.from_numpy(bits.astype(np.float32)).reshape(shape)


@dataclass(frozen=True)
class Zipped(FlatCoder):
    """Every float32 as it is: sign and fraction, which look random, as three planes of a byte an
    entry, and a Huffman code of the exponents. At least 24 + H(exponent) bits an entry."""

    def write(self, x: np.ndarray) -> bytes:
        bits = x.astype("<f4", copy=False).view("<u4")
        rest = (bits & 0x7FFFFF | bits >> 31 << 23).astype("<u4").view(np.uint8).reshape(-1, 4)
        code = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
        exponents = code.compress((bits >> 23 & 0xFF).astype(np.uint8).data) + code.flush()
        return rest[:, :3].T.tobytes() + exponents

    def read(self, reader: Reader, n: int) -> np.ndarray:
        planes = reader.take(3 * n).reshape(3, n).astype("<u4")
        rest = planes[0] | planes[1] << 8 | planes[2] << 16
        code = zlib.decompressobj()
        try:
            exponents = code.decompress(reader.take(len(reader.rest)).tobytes(), n)  # n bytes, no
            more = code.decompress(code.unconsumed_tail, 1)  # more; end mark and checksum
        except zlib.error:
            raise WireError("The exponents of a zipped tensor are damaged.") from None
        if len(exponents) != n or more or not code.eof or code.unused_data:
            raise WireError(f"A zipped tensor does not hold just {n} exponents.")
        high = np.frombuffer(exponents, np.uint8).astype("<u4")
        x = (rest & 0x7FFFFF | high << 23 | rest >> 23 << 31).astype("<u4").view("<f4")
        return finite(x.astype(np.float32, copy=False))
