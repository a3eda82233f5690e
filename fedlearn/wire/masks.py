"""Tensors of zeros and ones, as FedPM sends them (Isik et al. 2023)."""

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import WireError
from .base import Coder, Masks, Shape
from .bits import Reader, pack_fields, range_decode, range_encode

_ZEROS, _ONES, _PLAIN, _CODED = range(4)


@dataclass(frozen=True)
class Mask(Coder):
    """Zeros and ones in about the entropy of their share. The section: one byte that says all
    zeros, all ones, plain or coded; then nothing, one bit an entry, or the number of ones as u32
    and a range code, whichever is shorter."""

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
        bits = self._read(reader, reader.number(1), n)
        reader.end()
        return torch.from_numpy(bits.astype(np.float32)).reshape(shape)

    def _read(self, reader: Reader, form: int, n: int) -> np.ndarray:
        if form in (_ZEROS, _ONES):
            return np.full(n, form == _ONES)
        if form == _PLAIN:
            return reader.fields(n, 1)
        if form != _CODED:
            raise WireError(f"There is no form {form} of a mask.")
        ones = reader.number(4)
        if not 0 < ones < n:
            raise WireError(f"A coded mask of {n} entries cannot have {ones} ones.")
        return range_decode(reader.take(len(reader.rest)), np.array([n - ones, ones]))
