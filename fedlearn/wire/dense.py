"""Dense coders: every entry, or the mean of a kernel's entries, as one number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch._utils import _flatten_dense_tensors

from ..errors import Diverged, WireError, check_number, pick
from .base import Coder, Shape, brief
from .bits import finite, numbers

FLOATS = {32: "<f4", 16: "<f2"}  # bits -> numpy's name
WHOLE = {1: "<u1", 2: "<u2", 4: "<u4"}  # bytes -> numpy's name


def write_floats(
    tensors: Sequence[torch.Tensor], dtype: str = "<f4"
) -> list[memoryview]:
    """Tensors -> the bytes of each, cut from one buffer.

    ``Diverged`` if half precision cannot hold a value.
    """
    if not tensors:
        return []
    x = numbers(_flatten_dense_tensors(tensors))
    with np.errstate(over="ignore"):
        values = x.astype(dtype, copy=False)
    if dtype != "<f4" and not np.isfinite(values).all():
        raise Diverged("A value is NaN, infinite or too large for half precision.")
    data = values.view(np.uint8).data
    sizes = [t.numel() * values.itemsize for t in tensors]
    ends = accumulate(sizes, initial=0)
    return [data[begin:end] for begin, end in pairwise(ends)]


def read_floats(
    sections: Sequence[Any], shapes: Sequence[Shape], dtype: str = "<f4"
) -> list[torch.Tensor]:
    """The inverse: float32; ``WireError`` for a wrong size, NaN or infinity."""
    width = np.dtype(dtype).itemsize
    for section, shape in zip(sections, shapes, strict=True):
        check_size(section, shape, width)
    copy = bytearray().join(sections)  # tensors are written to, messages are not
    values = np.frombuffer(copy, dtype).astype(np.float32, copy=False)
    sizes = [len(section) // width for section in sections]
    parts = torch.from_numpy(finite(values)).split(sizes)
    return [
        part if len(shape) == 1 else part.view(shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]


def check_size(section: Any, shape: Shape, width: int) -> None:
    """``WireError`` unless the section has ``width`` bytes for each entry."""
    if len(section) != math.prod(shape) * width:
        raise WireError(
            f"{len(section)} bytes came for a tensor of shape {tuple(shape)}."
        )


@dataclass(frozen=True)
class Dense(Coder):
    """Every entry as one float of ``bits`` bits, 32 or 16."""

    bits: int = 32

    def __post_init__(self) -> None:
        pick(self.bits, FLOATS, "number of bits of a float")

    @property
    def dtype(self) -> str:
        """The name that numpy has for these floats."""
        return FLOATS[self.bits]

    def encode(self, tensor: torch.Tensor) -> Any:
        return write_floats([tensor], self.dtype)[0]

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        return read_floats([section], [shape], self.dtype)[0]


@dataclass(frozen=True)
class Pooled(Dense):
    """Spatial mean pooling (RPN, section 3.2): each k x k kernel becomes its mean.

    Tensors of fewer than three dimensions travel whole. Output filters whose absolute
    values (``plain``: values) sum to less than ``threshold`` are left out; one bit a
    filter says whether it is sent.
    """

    __repr__ = brief

    threshold: float = 0.0
    plain: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("threshold", self.threshold, minimum=0)

    def encode(self, tensor: torch.Tensor) -> Any:
        if tensor.dim() < 3:
            return super().encode(tensor)
        w = tensor.detach().cpu().float()  # a GPU adds in another order
        if not self.threshold:
            return super().encode(w.flatten(2).mean(2))
        if self.plain:
            size = w.flatten(1).sum(1).abs()
        else:
            size = w.abs().flatten(1).sum(1)
        large = size >= self.threshold
        bits = np.packbits(large.numpy())
        means = super().encode(w[large].flatten(2).mean(2))
        return bits.tobytes() + bytes(means)

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        if len(shape) < 3:
            return super().decode(section, shape)
        if self.threshold:
            means = self._filters(section, shape)
        else:
            means = super().decode(section, shape[:2])
        while means.dim() < len(shape):
            means = means.unsqueeze(-1)
        return means.expand(tuple(shape))

    def _filters(self, section: Any, shape: Shape) -> torch.Tensor:
        """The means of all kernels, zero in the filters that were left out."""
        out, inputs = shape[:2]
        size = (out + 7) // 8
        packed = np.frombuffer(section[:size], np.uint8)
        bits = np.unpackbits(packed).astype(bool)
        if len(bits) < out or bits[out:].any():
            raise WireError(
                "A pooled section marks filters that the layer does not have."
            )
        large = torch.from_numpy(bits[:out])
        count = int(large.sum())
        means = torch.zeros(out, inputs)
        means[large] = super().decode(section[size:], (count, inputs))
        return means


@dataclass(frozen=True)
class Whole(Coder):
    """Whole numbers from 0 to 2^(8 size) - 1 in ``size`` bytes, decoded to int64."""

    size: int = 4

    def __post_init__(self) -> None:
        pick(self.size, WHOLE, "number of bytes of a whole number")

    def encode(self, tensor: torch.Tensor) -> Any:
        values = tensor.detach().cpu().numpy().reshape(-1)
        with np.errstate(invalid="ignore"):
            coded = values.astype(WHOLE[self.size])
        if (coded != values).any():
            raise ValueError(
                f"{self.size} bytes hold whole numbers from 0 to below 256^{self.size}."
            )
        return coded.view(np.uint8).data

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        check_size(section, shape, self.size)
        values = np.frombuffer(section, WHOLE[self.size])
        return torch.from_numpy(values.astype(np.int64)).reshape(shape)
