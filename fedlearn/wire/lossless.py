"""Without loss, in about the entropy: masks of zeros and ones, and floats of any value."""

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import WireError
from .base import Coder, FlatCoder, Masks, Shape
from .bits import Reader, finite, pack_fields, range_decode, range_encode

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
