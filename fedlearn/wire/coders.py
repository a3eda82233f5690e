"""Coders: one tensor -> bytes -> one tensor. The bytes hold no shape; the receiver knows it."""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from ..errors import WireError


def write_floats(tensor, dtype="<f4"):
    """The numbers of a tensor as little-endian bytes: a view of its memory where that already is what is wanted."""
    values = tensor.detach().cpu().numpy().astype(dtype, order="C", copy=False)
    return values.reshape(-1).view(np.uint8).data


def read_floats(section, shape, dtype="<f4"):
    """The inverse: float32 of that shape. ``WireError`` if the size is wrong or a value is NaN or infinite."""
    if len(section) != prod(shape) * np.dtype(dtype).itemsize:
        raise WireError(f"{len(section)} bytes came for a tensor of shape {tuple(shape)}.")
    values = np.frombuffer(section, dtype).astype(np.float32)  # a copy: the message itself is read-only
    if not np.isfinite(values).all():
        raise WireError("The message holds NaN or infinite values.")
    return torch.from_numpy(values).reshape(shape)


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
        return write_floats(tensor, self.dtype)

    def decode(self, section, shape):
        return read_floats(section, shape, self.dtype)


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

    def encode(self, tensor):
        if tensor.dim() < 3:
            return super().encode(tensor)
        means = tensor.flatten(2).mean(2)  # [out, in, k, k] -> [out, in]
        if not self.threshold:
            return super().encode(means)
        keep = tensor.abs().flatten(1).sum(1) >= self.threshold
        return b"".join([np.packbits(keep.cpu().numpy()), super().encode(means[keep])])

    def decode(self, section, shape):
        if len(shape) < 3:
            return super().decode(section, shape)
        out, inputs = shape[:2]
        if not self.threshold:
            means = super().decode(section, (out, inputs))
        else:
            bits = (out + 7) // 8
            keep = np.unpackbits(np.frombuffer(section[:bits], np.uint8)).astype(bool)
            if len(keep) < out or keep[out:].any():
                raise WireError("A pooled section marks filters that the layer does not have.")
            keep = torch.from_numpy(keep[:out])
            means = torch.zeros(out, inputs)
            means[keep] = super().decode(section[bits:], (int(keep.sum()), inputs))
        return means.reshape(out, inputs, *[1] * (len(shape) - 2)).expand(shape)  # one mean for all k*k positions
