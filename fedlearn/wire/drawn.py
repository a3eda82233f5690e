"""Every entry, rounded at random to one of two neighbours so that the mean is right: to powers of
two, or to three values."""

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import Diverged, WireError
from .base import Coder, Shape
from .bits import Reader, flat, pack_fields


@dataclass(frozen=True)
class Natural(Coder):
    """Natural compression (Horváth et al. 2022): a size between 2^a and 2^(a+1) becomes 2^(a+1)
    with probability size / 2^a - 1, else 2^a: unbiased, with a relative error of at most 1/8.

    The section: 9 bits an entry, the exponent of its float32 (0: the entry is zero) and the sign.
    """

    stochastic = True

    def encode(self, tensor: torch.Tensor, generator: torch.Generator) -> bytes:
        """``generator``: a CPU generator of torch; it decides about up and down."""
        x = flat(tensor)
        exponent = np.maximum(np.frexp(x)[1] + 126, 0)  # of float32: 2^(exponent - 127) <= |x|
        small = exponent == 0  # below the smallest power with a fraction: towards 0 or 2^-126
        above = np.ldexp(np.abs(x.astype(np.float64)), np.where(small, 126, 127 - exponent))
        chance = np.where(small, above, above - 1)
        up = torch.rand(len(x), generator=generator).numpy() < chance
        exponent = np.where(x == 0, 0, exponent) + up
        if (exponent > 254).any():
            raise Diverged("An entry is too large for a power of two in float32.")
        return pack_fields(exponent | ((x < 0) & (exponent > 0)).astype(np.int64) << 8, 9)

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        reader = Reader(section)
        codes = reader.fields(math.prod(shape), 9)
        reader.end()
        exponent, negative = codes & 0xFF, codes >> 8
        if (exponent == 255).any() or (negative > exponent).any():
            raise WireError("A power of two has an exponent of 255, or a zero has a sign.")
        x = np.where(exponent, np.ldexp(np.float32(1), exponent - 127), np.float32(0))
        return torch.from_numpy(np.where(negative, -x, x)).reshape(shape)


@dataclass(frozen=True)
class TernGrad(Coder):
    """TernGrad (Wen et al. 2017): ``s sign(x) b``, s the largest size, b one with probability
    ``|x| / s`` and else zero: unbiased. Before, entries beyond ``clip`` standard deviations from
    zero are cut to that (section 3.3; None: nothing is), which biases these few and lowers s, and
    so the noise.

    The section: s as float32, then five entries a byte, as digits to the base 3 (0, 1, 2 for 0, s,
    -s): 1.6 bits an entry, where log2 3 = 1.585 is the least.
    """

    clip: float | None = 2.5

    stochastic = True

    def __post_init__(self) -> None:
        if self.clip is not None and not self.clip > 0:
            raise ValueError(
                f"Entries are cut at so many standard deviations, above 0, not {self.clip!r}."
            )

    def encode(self, tensor: torch.Tensor, generator: torch.Generator) -> bytes:
        """``generator``: a CPU generator of torch; it decides about zero and one."""
        x = flat(tensor)
        if not len(x):
            return b""
        size = np.abs(x)
        s = size.max()
        if self.clip is not None:
            limit = self.clip * math.sqrt(np.square(x, dtype=np.float64).mean())
            s = np.float32(min(float(s), limit))  # compared before it could overflow
        b = torch.rand(len(x), generator=generator).numpy() < size / (s or np.float32(1))
        digits = np.pad(np.where(x < 0, 2, 1) * b, (0, -len(x) % 5)).reshape(-1, 5)
        return struct.pack("<f", s) + (digits @ _POWERS).astype(np.uint8).tobytes()

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        reader, n = Reader(section), math.prod(shape)
        if not n:
            reader.end()
            return torch.zeros(shape)
        s = reader.magnitudes(1)[0]
        packed = reader.take(-(-n // 5))
        reader.end()
        digits = (packed[:, None] // _POWERS % 3).reshape(-1)
        if packed.max() >= 3**5 or digits[n:].any():
            raise WireError("Five entries of three values do not make such a byte.")
        return torch.from_numpy(np.array([0, s, -s], np.float32)[digits[:n]]).reshape(shape)


_POWERS = 3 ** np.arange(5)
