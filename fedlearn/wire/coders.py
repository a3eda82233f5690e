"""Dense coders: every entry, or the mean of a kernel's, as one float."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch._utils import _unflatten_dense_tensors

from ..arguments import short
from ..errors import Diverged, WireError
from .base import Coder, Shape, brief


def write_rows(tensors: Sequence[torch.Tensor], dtype: str = "<f4") -> list[list[memoryview]]:
    """Tensors [clients, ...] -> for each client the little-endian bytes of its part of each
    tensor, all cut from one buffer; ``Diverged`` if half precision cannot hold a value. Float32
    holds any: what is NaN, infinite or too large for it is refused by who reads it."""
    rows = _one_buffer(tensors)
    if rows is None:
        flat = [t.detach().flatten(1) if t.dim() > 1 else t.detach()[:, None] for t in tensors]
        rows = torch.cat(flat, 1)
    with np.errstate(over="ignore"):
        rows = rows.to("cpu", torch.float32).numpy().astype(dtype, copy=False)
    if dtype != "<f4" and not np.isfinite(rows).all():
        raise Diverged(
            "A value that is NaN, infinite or too large for half precision cannot be coded."
        )
    ends = list(accumulate(t[0].numel() * rows.itemsize for t in tensors))
    slices = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    return [[data[part] for part in slices] for data in (row.view(np.uint8).data for row in rows)]


def _one_buffer(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The matrix [clients, numbers] of which the tensors are all the columns, in this order, if
    there is one."""
    base, end = tensors[0]._base, 0
    if base is None:
        return None
    for t in tensors:
        if t._base is not base or t.storage_offset() != end or not t[0].is_contiguous():
            return None
        end += t[0].numel()
    whole = base.dim() == 2 and base.shape == (len(tensors[0]), end) and base.is_contiguous()
    return base if whole else None


def read_floats(
    sections: Sequence[Any], shapes: Sequence[Shape], dtype: str = "<f4"
) -> tuple[torch.Tensor, ...]:
    """The inverse: float32 of those shapes. ``WireError`` if a size is wrong or a value is NaN or
    infinite."""
    forms, width = _forms(tuple(map(tuple, shapes))), np.dtype(dtype).itemsize
    for section, form in zip(sections, forms, strict=True):
        if len(section) != form.numel() * width:
            raise WireError(f"{len(section)} bytes came for a tensor of shape {tuple(form.shape)}.")
    values = np.frombuffer(bytearray().join(sections), dtype).astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise WireError("The message holds NaN or infinite values.")
    return _unflatten_dense_tensors(torch.from_numpy(values), forms)


@lru_cache(64)
def _forms(shapes: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
    """Tensors of these shapes without memory."""
    return [torch.empty(shape, device="meta") for shape in shapes]


@dataclass(frozen=True)
class Dense(Coder):
    """Every entry as one float of ``bits`` bits: 32 loses nothing, 16 rounds to half precision.
    With 32 bits NaN and infinite entries are coded too, and refused when they are decoded."""

    bits: int = 32

    def __post_init__(self) -> None:
        if self.bits not in (16, 32):
            raise ValueError(f"A float has 16 or 32 bits on the wire, not {short(self.bits)}.")

    @property
    def dtype(self) -> str:
        """As numpy calls it."""
        return f"<f{self.bits // 8}"

    def encode(self, tensor: torch.Tensor, *generator: torch.Generator) -> Any:
        return self._rows([tensor[None]])[0][0]

    def decode(self, section: Any, shape: Shape, *generator: torch.Generator) -> torch.Tensor:
        return next(iter(self._all([section], [shape])))

    def encode_rows(
        self, tensors: Sequence[torch.Tensor], generators: list, shared: list | None = None
    ) -> list[list[Any]]:
        return self._rows(tensors)

    def decode_all(
        self, sections: Sequence[Any], shapes: Sequence[Shape], shared: list | None = None
    ) -> Iterable[torch.Tensor]:
        return self._all(sections, shapes)

    # none of the four calls another: a subclass may replace any of them and call its parent's

    def _rows(self, tensors: Sequence[torch.Tensor]) -> list[list[Any]]:
        return write_rows(tensors, self.dtype)

    def _all(self, sections: Sequence[Any], shapes: Sequence[Shape]) -> Iterable[torch.Tensor]:
        return read_floats(sections, shapes, self.dtype)


@dataclass(frozen=True)
class Pooled(Dense):
    """RPN's spatial mean pooling (paper, section 3.2): each k x k kernel becomes its mean, k*k
    times less to send.

    Tensors of fewer than three dimensions (biases, linear layers, batch normalisation) travel
    whole. ``threshold`` leaves out output filters that hardly changed, those whose absolute
    values sum to less; one bit a filter says which. ``plain``: the absolute value of the sum, in
    which entries of both signs cancel, in place of the sum of absolute values.
    """

    __repr__ = brief

    threshold: float = 0.0
    plain: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold < float("inf"):
            raise ValueError(
                "The threshold is a sum of absolute values: at least 0 and finite, not "
                f"{self.threshold!r}."
            )

    def _rows(self, tensors: Sequence[torch.Tensor]) -> list[list[Any]]:
        if self.threshold:
            return [[self._encode_some(t) for t in row] for row in zip(*tensors, strict=True)]
        # [.., out, in, k, k] -> [.., out, in]
        return super()._rows([t.float().flatten(3).mean(3) if t.dim() > 3 else t for t in tensors])

    def _all(self, sections: Sequence[Any], shapes: Sequence[Shape]) -> Iterable[torch.Tensor]:
        if self.threshold:
            means = list(map(self._decode_some, sections, shapes))
        else:
            pooled = [shape[:2] if len(shape) > 2 else shape for shape in shapes]
            means = list(super()._all(sections, pooled))
        # one mean for all k*k positions
        return [
            m[(..., *[None] * (len(s) - 2))].expand(s) if len(s) > 2 else m
            for m, s in zip(means, shapes, strict=True)
        ]

    def _encode_some(self, tensor: torch.Tensor) -> Any:
        if tensor.dim() < 3:
            return write_rows([tensor[None]], self.dtype)[0][0]
        tensor = tensor.float()
        size = tensor.flatten(1).sum(1) if self.plain else tensor.abs().flatten(1).sum(1)
        keep = size.abs() >= self.threshold
        means = tensor[keep].flatten(2).mean(2)
        bits = np.packbits(keep.cpu().numpy())
        return b"".join([bits, *write_rows([means[None]], self.dtype)[0]])

    def _decode_some(self, section: Any, shape: Shape) -> torch.Tensor:
        if len(shape) < 3:
            return read_floats([section], [shape], self.dtype)[0]
        out, inputs = shape[:2]
        bits = (out + 7) // 8
        keep = np.unpackbits(np.frombuffer(section[:bits], np.uint8)).astype(bool)
        if len(keep) < out or keep[out:].any():
            raise WireError("A pooled section marks filters that the layer does not have.")
        keep = torch.from_numpy(keep[:out])
        means = torch.zeros(out, inputs)
        means[keep] = read_floats([section[bits:]], [(int(keep.sum()), inputs)], self.dtype)[0]
        return means
