"""Every entry, without loss, in fewer bits than a float: the floor of dense bytes."""

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import WireError
from .base import Coder, Shape
from .bits import Reader, flat


@dataclass(frozen=True)
class Zipped(Coder):
    """Every float32 as it is. Of its 32 bits, sign and fraction look random and travel as they
    are, three bytes an entry (lowest byte first, the sign on top, a plane of each); only the
    exponents have something to gain: a Huffman code of them follows, made by zlib.

    At least 24 + H(exponent) bits an entry. A general-purpose compressor that gets the floats in
    their usual order, such as zstd or zlib, finds less, because the exponent lies across two bytes.
    """

    def encode(self, tensor: torch.Tensor) -> bytes:
        bits = flat(tensor).astype("<f4", copy=False).view("<u4")
        rest = (bits & 0x7FFFFF | bits >> 31 << 23).astype("<u4").view(np.uint8).reshape(-1, 4)
        code = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
        exponents = code.compress((bits >> 23 & 0xFF).astype(np.uint8).data) + code.flush()
        return rest[:, :3].T.tobytes() + exponents if len(bits) else b""

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        reader, n = Reader(section), math.prod(shape)
        if not n:
            reader.end()
            return torch.zeros(shape)
        planes = reader.take(3 * n).reshape(3, n).astype("<u4")
        rest = planes[0] | planes[1] << 8 | planes[2] << 16
        code = zlib.decompressobj()
        try:
            exponents = code.decompress(reader.rest.tobytes(), n)  # never more than n bytes
            left = code.decompress(code.unconsumed_tail, 1)  # the end mark and the checksum
        except zlib.error:
            raise WireError("The exponents of a zipped tensor are damaged.") from None
        if len(exponents) != n or left or not code.eof or code.unused_data:
            raise WireError(f"A zipped tensor does not hold just {n} exponents.")
        high = np.frombuffer(exponents, np.uint8).astype("<u4")
        x = (rest & 0x7FFFFF | high << 23 | rest >> 23 << 31).astype("<u4").view("<f4")
        if not np.isfinite(x).all():
            raise WireError("The message holds NaN or infinite values.")
        return torch.from_numpy(x.astype(np.float32, copy=False)).reshape(shape)
