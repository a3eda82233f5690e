"""What coders share: fields of few bits, Golomb-Rice codes, signs, range coding.

Bits fill each byte from the lowest on. Longer numbers are little-endian.
"""

import math
from typing import Any

import numpy as np
import torch

from ..errors import Diverged, WireError, extra

LARGEST = float(np.finfo(np.float32).max)


def numbers(tensor: torch.Tensor) -> np.ndarray:
    """Any tensor -> float32 array [n], finite or not."""
    on_cpu = tensor.detach().to("cpu", torch.float32)
    return on_cpu.reshape(-1).numpy()


def flat(tensor: torch.Tensor) -> np.ndarray:
    """Any tensor -> float32 array [n]; ``Diverged`` if an entry is not finite."""
    x = numbers(tensor)
    if not np.isfinite(x).all():
        raise Diverged("A tensor with NaN or infinite values cannot be coded.")
    return x


def clamped(x: np.ndarray) -> np.ndarray:
    """As float32; entries beyond the largest float32 become the largest."""
    return x.clip(-LARGEST, LARGEST).astype(np.float32)


def finite(x: np.ndarray) -> np.ndarray:
    """These floats; ``WireError`` if one of them is NaN or infinite."""
    if math.isfinite(np.vdot(x, x)):  # faster, but the sum of squares can overflow
        return x
    if np.isfinite(x).all():
        return x
    raise WireError("The message holds NaN or infinite values.")


def write_scale(value: Any, noun: str) -> bytes:
    """A number, or several, as float32; ``Diverged`` if one is too large."""
    values = np.asarray(value)
    if np.abs(values).max() > LARGEST:
        raise Diverged(f"The entries are too large for {noun} in float32.")
    return values.astype("<f4").tobytes()


def pack_fields(values: np.ndarray, width: int) -> bytes:
    """Whole numbers 0..2^width-1 -> ceil(n width / 8) bytes.

    Each full byte of the width is a plane, the lowest first. The bits left over follow
    without gaps.
    """
    if width > 8:
        return pack_fields(values, 8) + pack_fields(values >> 8, width - 8)
    if width == 8:
        return values.astype(np.uint8).tobytes()
    if width == 1:
        bits = values.astype(bool, copy=False)
    else:
        column = values.astype(np.uint8)[:, None]
        bits = np.unpackbits(column, axis=1, count=width, bitorder="little")
    return np.packbits(bits, bitorder="little").tobytes()


def pack_rice(values: np.ndarray) -> tuple[int, bytes]:
    """Golomb-Rice code of whole numbers >= 0 -> (parameter b, bytes).

    All unary parts come first, v >> b zeros and a one, then all the b low bits: so a reader
    needs no loop (Sattler et al. 2019). b is the parameter with the fewest
    bytes.
    """
    count = len(values)
    if not count:
        return 0, b""
    candidates = range(int(values.mean()).bit_length() + 2)
    unary_bits = [int((values >> b).sum()) + count for b in candidates]

    def size(b: int) -> int:
        unary_bytes = (unary_bits[b] + 7) // 8
        low_bytes = (count * b + 7) // 8
        return unary_bytes + low_bytes

    best = min(candidates, key=size)
    unary = np.zeros(unary_bits[best], bool)
    ends = np.cumsum((values >> best) + 1) - 1
    unary[ends] = True
    low_bits = values & ((1 << best) - 1)
    return best, pack_fields(unary, 1) + pack_fields(low_bits, best)


def pack_signs(x: np.ndarray) -> bytes:
    """The mean magnitude as float32 and one bit an entry, 1 where negative."""
    if not len(x):
        return b""
    mean = np.abs(x).mean(dtype=np.float64)
    scale = mean.astype("<f4").tobytes()
    return scale + pack_fields(x < 0, 1)


def _range_code(counts: np.ndarray) -> tuple[Any, Any]:
    """The module of range coding, and the fixed-point model, equal on both sides."""
    with extra("coding"):
        from constriction import stream

    shares = counts / counts.sum()
    model = stream.model.Categorical(shares, perfect=False)
    return stream.queue, model


def range_encode(symbols: np.ndarray, counts: np.ndarray) -> bytes:
    """Symbols 0..len(counts)-1 -> bytes, near the entropy of the histogram."""
    queue, model = _range_code(counts)
    encoder = queue.RangeEncoder()
    encoder.encode(symbols.astype(np.int32, copy=False), model)
    words = encoder.get_compressed()
    return words.astype("<u4", copy=False).tobytes()


def range_decode(data: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The inverse; ``WireError`` for bytes that ``range_encode`` would not make."""
    try:
        queue, model = _range_code(counts)
        words = np.frombuffer(data, "<u4").astype(np.uint32)
        decoder = queue.RangeDecoder(words)
        symbols = decoder.decode(model, int(counts.sum()))
    except (AssertionError, ValueError):  # an impossible code, or not whole words
        raise WireError("A range-coded section holds no valid code.") from None
    # The decoder reads zeros past the end and ignores surplus bytes: coding the symbols
    # again is the only complete check.
    histogram = np.bincount(symbols, minlength=len(counts))
    equal = np.array_equal(histogram, counts)
    if not equal or range_encode(symbols, counts) != data.tobytes():
        raise WireError(
            "A range-coded section disagrees with its counts or its length."
        )
    return symbols


class Reader:
    """Reads a section from front to back; ``WireError`` for a wrong length or content."""

    def __init__(self, section: Any) -> None:
        self.remaining = np.frombuffer(section, np.uint8)

    def take(self, size: int) -> np.ndarray:
        """The next ``size`` bytes."""
        if size > len(self.remaining):
            missing = size - len(self.remaining)
            raise WireError(f"A coded section ends {missing} bytes too early.")
        part = self.remaining[:size]
        self.remaining = self.remaining[size:]
        return part

    def end(self) -> None:
        """``WireError`` if bytes are left."""
        if len(self.remaining):
            raise WireError(
                f"{len(self.remaining)} bytes too many came for a coded tensor."
            )

    def number(self, size: int) -> int:
        """A whole number of ``size`` bytes."""
        return int.from_bytes(self.take(size).tobytes(), "little")

    def floats(self, count: int, dtype: str = "<f4") -> np.ndarray:
        """``count`` finite floats, as float32."""
        width = np.dtype(dtype).itemsize
        values = self.take(count * width).view(dtype)
        return finite(values.astype(np.float32, copy=False))

    def magnitudes(self, count: int) -> np.ndarray:
        """``count`` floats of at least 0."""
        values = self.floats(count)
        if (values < 0).any():
            raise WireError("The message holds a negative magnitude.")
        return values

    def fields(self, count: int, width: int) -> np.ndarray:
        """The inverse of ``pack_fields``: uint8, or int32 for a width of 9 to 31."""
        if width > 8:
            low = self.take(count)
            high = self.fields(count, width - 8).astype(np.int32)
            return low | high << 8
        if width == 8:
            return self.take(count)
        data = self.take((count * width + 7) // 8)
        bits = np.unpackbits(data, bitorder="little")
        if bits[count * width :].any():
            raise WireError("The padding bits of a byte are not zero.")
        if width == 1:
            return bits[:count]
        rows = np.zeros((count, 8), np.uint8)
        used = bits[: count * width]
        rows[:, :width] = used.reshape(count, width)
        return np.packbits(rows, bitorder="little")

    def rice(self, count: int, b: int, limit: int) -> np.ndarray:
        """The inverse of ``pack_rice``: int64 numbers with a sum of at most ``limit``."""
        if b > 31:
            raise WireError(f"{b} is no parameter of a Rice code, at most 31 is.")
        if not count:
            return np.zeros(0, np.int64)
        longest = (count + (limit >> b) + 7) // 8
        unary = np.unpackbits(self.remaining[:longest], bitorder="little")
        ends = np.flatnonzero(unary)[:count]
        if len(ends) < count:
            raise WireError(
                "A list of positions ends too early or runs past the tensor."
            )
        last = ends[-1]
        size = last // 8 + 1
        self.take(size)
        if unary[last + 1 : 8 * size].any():
            raise WireError("The padding bits of a byte are not zero.")
        high = np.diff(ends, prepend=-1) - 1
        values = (high << b) | self.fields(count, b)
        if values.sum() > limit:
            raise WireError("A list of positions runs past the tensor.")
        return values

    def signs(self, count: int) -> np.ndarray:
        """The inverse of ``pack_signs``: float32."""
        if not count:
            return np.zeros(0, np.float32)
        size = self.magnitudes(1)[0]
        return self.plus_minus(count, size)

    def plus_minus(self, count: int, size: np.float32) -> np.ndarray:
        """One bit an entry -> float32: ``size``, or -``size`` where the bit is set."""
        negative = self.fields(count, 1).view(bool)
        return np.where(negative, -size, size)
