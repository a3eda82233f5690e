"""Dense coders: every entry, or the mean of a kernel's, as one float or whole number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Annotated, Any

import numpy as np
import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from ..arguments import NotNegative, Range
from ..errors import Diverged, WireError
from .base import Coder, Shape, brief
from .bits import finite

LARGE = 2**20  # entries: to copy them takes longer than to take each tensor as it lies in memory


def write_floats(tensors: Sequence[torch.Tensor], dtype: str = "<f4") -> list[memoryview]:
    """Tensors -> the little-endian bytes of each, cut from one buffer, or of large ones where they
    lie; ``Diverged`` if half precision cannot hold a value."""
    sizes = [t.numel() for t in tensors]
    if dtype == "<f4" and sum(sizes) > LARGE:
        pieces = [t.detach().to("cpu", torch.float32).reshape(-1) for t in tensors]
        return [t.numpy().view(np.uint8).data for t in pieces]
    flat = _flatten_dense_tensors(tensors) if tensors else torch.empty(0)
    with np.errstate(over="ignore"):
        values = flat.detach().to("cpu", torch.float32).numpy().astype(dtype, copy=False)
    if dtype != "<f4" and not np.isfinite(values).all():
        raise Diverged("A value is NaN, infinite or too large for half precision.")
    data, ends = values.view(np.uint8).data, [0]
    ends += accumulate(n * values.itemsize for n in sizes)
    return [data[start:end] for start, end in pairwise(ends)]


def read_floats(
    sections: Sequence[Any], shapes: Sequence[Shape], dtype: str = "<f4"
) -> tuple[torch.Tensor, ...]:
    """The inverse: float32 of those shapes; ``WireError`` for a wrong size, NaN or infinity."""
    forms, width = templates(tuple(map(tuple, shapes))), np.dtype(dtype).itemsize
    sizes = [form.numel() for form in forms]
    for section, form, n in zip(sections, forms, sizes, strict=True):
        if len(section) != n * width:
            raise WireError(f"{len(section)} bytes came for a tensor of shape {tuple(form.shape)}.")
    if len(sections) > 1 and sum(sizes) > LARGE:
        pairs = zip(sections, shapes, strict=True)
        return tuple(read_floats([section], [shape], dtype)[0] for section, shape in pairs)
    values = np.frombuffer(bytearray().join(sections), dtype).astype(np.float32, copy=False)
    return _unflatten_dense_tensors(torch.from_numpy(finite(values)), forms)


@lru_cache
def templates(shapes: tuple[Shape, ...]) -> list[torch.Tensor]:
    """Tensors of these shapes that hold nothing."""
    return [torch.empty(shape, device="meta") for shape in shapes]


FloatBits = Annotated[int, Range("16 or 32, the bits of a float", (16, 32).__contains__)]


@dataclass(frozen=True)
class Dense(Coder):
    """Every entry as one float of ``bits`` bits, 32 or 16."""

    bits: FloatBits = 32

    @property
    def dtype(self) -> str:
        """As numpy calls it."""
        return f"<f{self.bits // 8}"

    def encode(self, tensor: torch.Tensor) -> Any:
        return write_floats([tensor], self.dtype)[0]

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        return read_floats([section], [shape], self.dtype)[0]


@dataclass(frozen=True)
class Pooled(Dense):
    """Spatial mean pooling (RPN, section 3.2): each k x k kernel becomes its mean; tensors of fewer
    than three dimensions travel whole. ``threshold`` leaves out output filters whose absolute
    values (``plain``: whose values) sum to less; one bit a filter says which."""

    __repr__ = brief

    threshold: NotNegative = 0.0
    plain: bool = field(default=False, repr=False)

    def encode(self, tensor: torch.Tensor) -> Any:
        if tensor.dim() < 3:
            return super().encode(tensor)
        # a GPU adds in another order, and would write other bytes
        tensor, bits = tensor.detach().cpu().float(), b""
        if self.threshold:
            size = tensor.flatten(1).sum(1).abs() if self.plain else tensor.abs().flatten(1).sum(1)
            keep = size >= self.threshold
            tensor, bits = tensor[keep], np.packbits(keep.numpy()).tobytes()
        means = super().encode(tensor.flatten(2).mean(2))  # [out, in, k, k] -> [out, in]
        return bits + bytes(means) if bits else means

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        if len(shape) < 3:
            return super().decode(section, shape)
        out, inputs = shape[:2]
        if self.threshold:
            size = (out + 7) // 8
            bits = np.unpackbits(np.frombuffer(section[:size], np.uint8)).astype(bool)
            if len(bits) < out or bits[out:].any():
                raise WireError("A pooled section marks filters that the layer does not have.")
            means, keep = torch.zeros(out, inputs), torch.from_numpy(bits[:out])
            means[keep] = super().decode(section[size:], (int(keep.sum()), inputs))
        else:
            means = super().decode(section, shape[:2])
        return means[(..., *[None] * (len(shape) - 2))].expand(tuple(shape))  # one for all k*k


@dataclass(frozen=True)
class Whole(Coder):
    """Whole numbers from 0 to 2^(8 size) - 1, ``size`` bytes each: 1, 2 or 4; decode to int64."""

    size: Annotated[int, Range("1, 2 or 4, the bytes of a number", (1, 2, 4).__contains__)] = 4

    def encode(self, tensor: torch.Tensor) -> Any:
        values = tensor.detach().cpu().numpy().reshape(-1)
        with np.errstate(invalid="ignore"):
            coded = values.astype(f"<u{self.size}")
        if (coded != values).any():
            raise ValueError(f"In {self.size} bytes go whole numbers below 256^{self.size} only.")
        return coded.view(np.uint8).data

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        if len(section) != math.prod(shape) * self.size:
            raise WireError(f"{len(section)} bytes came for a tensor of shape {tuple(shape)}.")
        values = np.frombuffer(section, f"<u{self.size}").astype(np.int64)
        return torch.from_numpy(values).reshape(tuple(shape))
