"""What the coders share: few bits, Golomb-Rice codes, signs, range coding, a reader that trusts
nothing. Bits fill each byte from the lowest on; longer numbers are little-endian."""

import math
from typing import Any

import numpy as np
import torch

from ..arguments import LARGEST
from ..errors import Diverged, WireError, extra


def flat(tensor: torch.Tensor) -> np.ndarray:
    """Any tensor -> float32 array [n]; ``Diverged`` if an entry is not finite."""
    x = tensor.detach().to("cpu", torch.float32).reshape(-1).numpy()
    if not np.isfinite(x).all():
        raise Diverged("A tensor with NaN or infinite values cannot be coded.")
    return x


def clamped(x: np.ndarray) -> np.ndarray:
    """As float32, at most the largest of them."""
    return x.clip(-LARGEST, LARGEST).astype(np.float32)


def finite(x: np.ndarray) -> np.ndarray:
    """The same floats; ``WireError`` if one is NaN or infinite."""
    if not (math.isfinite(np.vdot(x, x)) or np.isfinite(x).all()):  # the square is faster
        raise WireError("The message holds NaN or infinite values.")
    return x


def write_numbers(x: np.ndarray, noun: str) -> bytes:
    """As float32; ``Diverged`` if it cannot hold them."""
    if x.size and np.abs(x).max() > LARGEST:
        raise Diverged(f"The entries are too large for {noun} in float32.")
    return x.astype("<f4").tobytes()


def pack_fields(values: np.ndarray, width: int) -> bytes:
    """Whole numbers 0..2^width-1 -> ceil(n width / 8) bytes: first a plane for each full byte of
    the width, the lowest first, then the bits left over without gaps."""
    if width >= 8:
        low = values.astype(np.uint8).tobytes()
        return low + pack_fields(values >> 8, width - 8) if width > 8 else low
    if width == 1:
        return np.packbits(values.astype(bool, copy=False), bitorder="little").tobytes()
    bits = np.unpackbits(values.astype(np.uint8)[:, None], 1, width, "little")
    return np.packbits(bits, bitorder="little").tobytes()


def pack_rice(values: np.ndarray) -> tuple[int, bytes]:
    """Golomb-Rice code of whole numbers >= 0 -> the parameter b with the fewest bytes, and the
    bytes: all the unary parts, v >> b zeros and a one, then all the b low bits, so that no loop
    reads them (Sattler et al. 2019)."""
    if not len(values):
        return 0, b""
    highest = int(values.mean()).bit_length() + 1
    unary = [int((values >> b).sum()) + len(values) for b in range(highest + 1)]
    b = min(range(highest + 1), key=lambda b: (unary[b] + 7) // 8 + (len(values) * b + 7) // 8)
    ends = np.cumsum((values >> b) + 1) - 1
    bits = np.zeros(unary[b], bool)
    bits[ends] = True
    return b, pack_fields(bits, 1) + pack_fields(values & ((1 << b) - 1), b)


def pack_signs(x: np.ndarray) -> bytes:
    """The mean magnitude as float32 and one bit an entry, 1 where negative; of none nothing."""
    if not len(x):
        return b""
    return np.abs(x).mean(dtype=np.float64).astype("<f4").tobytes() + pack_fields(x < 0, 1)


def _range_code(counts: np.ndarray) -> tuple[Any, Any]:
    """Functions of range coding, and the fixed-point model that both sides have alike."""
    with extra("coding"):
        from constriction import stream

    model = stream.model.Categorical(counts / counts.sum(), perfect=False)
    return stream.queue, model


def range_encode(symbols: np.ndarray, counts: np.ndarray) -> bytes:
    """Symbols 0..len(counts)-1 -> bytes, near the entropy of the histogram ``counts``."""
    queue, model = _range_code(counts)
    encoder = queue.RangeEncoder()
    encoder.encode(symbols.astype(np.int32, copy=False), model)
    return encoder.get_compressed().astype("<u4", copy=False).tobytes()


def range_decode(data: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The inverse; ``WireError`` for bytes that ``range_encode`` would not make of them."""
    try:
        queue, model = _range_code(counts)
        code = np.frombuffer(data, "<u4").astype(np.uint32)
        symbols = queue.RangeDecoder(code).decode(model, int(counts.sum()))
    except (AssertionError, ValueError):  # an impossible code; not whole words
        raise WireError("A range-coded section holds no valid code.") from None
    # the decoder reads zeros past the end and overlooks what follows: only coding again shows that
    # nothing is amiss
    other = (np.bincount(symbols, minlength=len(counts)) != counts).any()
    if other or range_encode(symbols, counts) != data.tobytes():
        raise WireError("A range-coded section does not agree with its counts or its length.")
    return symbols


class Reader:
    """Takes a section apart from front to back; ``WireError`` where it is not as announced."""

    def __init__(self, section: Any) -> None:
        self.rest = np.frombuffer(section, np.uint8)

    def take(self, size: int) -> np.ndarray:
        """The next so many bytes."""
        if size > len(self.rest):
            raise WireError(f"A coded section ends {size - len(self.rest)} bytes too early.")
        part, self.rest = self.rest[:size], self.rest[size:]
        return part

    def end(self) -> None:
        """Nothing may be left."""
        if len(self.rest):
            raise WireError(f"{len(self.rest)} bytes too many came for a coded tensor.")

    def number(self, size: int) -> int:
        """A whole number of so many bytes."""
        return int.from_bytes(self.take(size).tobytes(), "little")

    def floats(self, count: int, dtype: str = "<f4") -> np.ndarray:
        """So many finite floats, as float32."""
        data = self.take(count * np.dtype(dtype).itemsize)
        return finite(data.view(dtype).astype(np.float32, copy=False))

    def magnitudes(self, count: int) -> np.ndarray:
        """So many floats of at least 0."""
        values = self.floats(count)
        if (values < 0).any():
            raise WireError("The message holds a negative magnitude.")
        return values

    def fields(self, count: int, width: int) -> np.ndarray:
        """The inverse of ``pack_fields``: uint8, or int32 for a width of 9 to 31."""
        if width == 8:
            return self.take(count)
        if width > 8:
            return self.take(count) | self.fields(count, width - 8).astype(np.int32) << 8
        bits = np.unpackbits(self.take((count * width + 7) // 8), bitorder="little")
        if bits[count * width :].any():
            raise WireError("The bits that fill up a byte are not zero.")
        if width == 1:
            return bits[:count]
        eights = np.zeros((count, 8), np.uint8)
        eights[:, :width] = bits[: count * width].reshape(count, width)
        return np.packbits(eights, bitorder="little")

    def rice(self, count: int, b: int, limit: int) -> np.ndarray:
        """The inverse of ``pack_rice``: int64, whose sum is at most ``limit``."""
        if b > 31:
            raise WireError(f"{b} is no parameter of a Rice code, at most 31 is.")
        if not count:
            return np.zeros(0, np.int64)
        unary = np.unpackbits(self.rest[: (count + (limit >> b) + 7) // 8], bitorder="little")
        ends = np.flatnonzero(unary.view(bool))[:count]
        if len(ends) < count:
            raise WireError("A list of positions ends too early or runs past the tensor.")
        if unary[ends[-1] + 1 : 8 * len(self.take(ends[-1] // 8 + 1))].any():
            raise WireError("The bits that fill up a byte are not zero.")
        values = (np.diff(ends, prepend=-1) - 1 << b) | self.fields(count, b)
        if values.sum() > limit:
            raise WireError("A list of positions runs past the tensor.")
        return values

    def signs(self, count: int) -> np.ndarray:
        """The inverse of ``pack_signs``: float32."""
        return np.zeros(0, np.float32) if not count else self.either(count, self.magnitudes(1)[0])

    def either(self, count: int, size: np.float32) -> np.ndarray:
        """One bit an entry -> float32: ``size``, or minus that where the bit is set."""
        return np.where(self.fields(count, 1).view(bool), -size, size)
