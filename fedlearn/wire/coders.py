"""Coders: one tensor -> bytes -> one tensor. The bytes hold no shape; the receiver knows it.

A coder has ``encode(tensor)`` and ``decode(section, shape)``. If it also has ``encode_all`` and ``decode_all``, for lists,
those are used: many small tensors take much less time together.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from ..errors import WireError


def write_floats(tensors, dtype="<f4"):
    """The numbers of each tensor as little-endian bytes, all cut from one buffer."""
    flat = _flatten_dense_tensors(tensors).detach().cpu().numpy().astype(dtype, copy=False)
    data, ends = flat.view(np.uint8).data, list(accumulate(t.numel() * flat.itemsize for t in tensors))
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def read_floats(sections, shapes, dtype="<f4"):
    """The inverse: float32 of those shapes. ``WireError`` if a size is wrong or a value is NaN or infinite."""
    forms, width = _forms(tuple(map(tuple, shapes))), np.dtype(dtype).itemsize
    for section, form in zip(sections, forms, strict=True):
        if len(section) != form.numel() * width:
            raise WireError(f"{len(section)} bytes came for a tensor of shape {tuple(form.shape)}.")
    values = np.frombuffer(bytearray().join(sections), dtype).astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise WireError("The message holds NaN or infinite values.")
    return _unflatten_dense_tensors(torch.from_numpy(values), forms)


@lru_cache(64)
def _forms(shapes):
    """Tensors of these shapes without memory."""
    return [torch.empty(shape, device="meta") for shape in shapes]


@dataclass(frozen=True)
class Dense:
    """Every entry as one float of ``bits`` bits: 32 loses nothing, 16 rounds to half precision."""

    bits: int = 32

    def __post_init__(self):
        if self.bits not in (16, 32):
            raise ValueError(f"A float has 16 or 32 bits on the wire, not {self.bits!r}.")

    @property
    def dtype(self):
        return f"<f{self.bits // 8}"

    def encode(self, tensor):
        return self.encode_all([tensor])[0]

    def decode(self, section, shape):
        return self.decode_all([section], [shape])[0]

    def encode_all(self, tensors):
        return write_floats(tensors, self.dtype)

    def decode_all(self, sections, shapes):
        return read_floats(sections, shapes, self.dtype)


@dataclass(frozen=True)
class Pooled(Dense):
    """RPN's spatial mean pooling (paper, section 3.2): each k x k kernel becomes its mean, k*k times less to send.

    Tensors of fewer than three dimensions (biases, linear layers, batch normalisation) travel whole. ``threshold``
    leaves out output filters that hardly changed, those whose absolute values sum to less; one bit a filter says which.
    """

    threshold: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.threshold < float("inf"):
            raise ValueError(f"The threshold is a sum of absolute values: at least 0 and finite, not {self.threshold!r}.")

    def encode_all(self, tensors):
        if self.threshold:
            return [self._encode_some(t) if t.dim() > 2 else write_floats([t], self.dtype)[0] for t in tensors]
        return super().encode_all([t.flatten(2).mean(2) if t.dim() > 2 else t for t in tensors])  # [out, in, k, k] -> [out, in]

    def decode_all(self, sections, shapes):
        if self.threshold:
            means = [self._decode_some(x, s) if len(s) > 2 else read_floats([x], [s], self.dtype)[0] for x, s in zip(sections, shapes, strict=True)]
        else:
            means = super().decode_all(sections, [shape[:2] if len(shape) > 2 else shape for shape in shapes])
        # one mean for all k*k positions
        return [m[(..., *[None] * (len(s) - 2))].expand(s) if len(s) > 2 else m for m, s in zip(means, shapes, strict=True)]

    def _encode_some(self, tensor):
        keep = tensor.abs().flatten(1).sum(1) >= self.threshold
        means = tensor[keep].flatten(2).mean(2)
        return b"".join([np.packbits(keep.cpu().numpy()), *write_floats([means], self.dtype)])

    def _decode_some(self, section, shape):
        out, inputs = shape[:2]
        bits = (out + 7) // 8
        keep = np.unpackbits(np.frombuffer(section[:bits], np.uint8)).astype(bool)
        if len(keep) < out or keep[out:].any():
            raise WireError("A pooled section marks filters that the layer does not have.")
        keep = torch.from_numpy(keep[:out])
        means = torch.zeros(out, inputs)
        means[keep] = read_floats([section[bits:]], [(int(keep.sum()), inputs)], self.dtype)[0]
        return means
