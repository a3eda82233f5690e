"""Masks of zeros and ones, without loss."""

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import WireError
from .base import Coder, Masks, Shape
from .bits import Reader, pack_fields, range_decode, range_encode

ZEROS, ONES, PLAIN, CODED = range(4)  # the forms of a section


@dataclass(frozen=True)
class Mask(Coder):
    """Zeros and ones in about the entropy of their share (FedPM, Isik et al. 2023).

    One byte says all zeros, all ones, plain or coded. Then come nothing, one bit an
    entry, or the number of ones as u32 and a range code.
    """

    takes = makes = Masks

    def encode(self, tensor: torch.Tensor) -> bytes:
        x = tensor.detach().cpu().reshape(-1)
        bits = (x == 1).numpy()
        if not ((x == 0) | (x == 1)).all():
            raise ValueError("A mask holds only zeros and ones.")
        ones = np.count_nonzero(bits)
        zeros = len(bits) - ones
        if ones == 0 or zeros == 0:
            return bytes([ONES if ones else ZEROS])
        plain = pack_fields(bits, 1)
        coded = struct.pack("<I", ones)
        coded += range_encode(bits, np.array([zeros, ones]))
        if len(coded) < len(plain):
            return bytes([CODED]) + coded
        return bytes([PLAIN]) + plain

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        reader = Reader(section)
        bits = self._bits(reader, math.prod(shape))
        reader.end()
        return torch.from_numpy(bits.astype(np.float32)).reshape(shape)

    def _bits(self, reader: Reader, n: int) -> np.ndarray:
        form = reader.number(1)
        if form in (ZEROS, ONES):
            return np.full(n, form)
        if form == PLAIN:
            return reader.fields(n, 1)
        if form != CODED:
            raise WireError(f"There is no form {form} of a mask.")
        ones = reader.number(4)
        if not 0 < ones < n:
            raise WireError(f"A coded mask of {n} entries cannot have {ones} ones.")
        code = reader.take(len(reader.remaining))
        return range_decode(code, np.array([n - ones, ones]))
