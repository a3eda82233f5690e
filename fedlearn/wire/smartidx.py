"""SmartIdx: Wu et al., AAAI 2022. Selected entries cluster in kernels, so one index
serves several of them. Which kernels go into which package is our reading of the
paper."""

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import WireError, check_number
from .base import Shape, Sparse
from .bits import Reader, flat, pack_fields, pack_rice, pack_signs
from .sparse import TopK, encode_positions, how_many, largest, read_positions


@dataclass(frozen=True)
class SmartIdx(Sparse):
    """The share ``ratio`` of entries that is largest in magnitude, as signs times one
    mean magnitude for each package.

    ::

        kernel package      kernels with more than half of their entries selected:
                            every entry's sign under one index
        pattern package     kernels whose selected positions and signs another kernel of
                            the layer shares: each pattern once (the most frequent
                            first), the kernels' indices, and for each kernel a
                            Rice-coded pattern number
        individual package  the other selected entries, each with its own index

    Tensors without kernels of several entries travel as ``TopK(values="sign")``.
    """

    ratio: float = 1 / 32

    def __post_init__(self) -> None:
        check_number("ratio", self.ratio, above=0, maximum=1)

    def encode(self, tensor: torch.Tensor) -> bytes:
        kernels, entries = _layout(tensor.shape)
        if entries < 2:
            return TopK(self.ratio, "sign").encode(tensor)
        x = flat(tensor)
        selected = np.zeros(len(x), bool)
        selected[largest(x, how_many(self.ratio, len(x)))] = True
        x = x.reshape(kernels, entries)
        selected = selected.reshape(kernels, entries)
        counts = selected.sum(1)
        full = 2 * counts > entries
        whole = np.flatnonzero(full)
        partial = np.flatnonzero((counts > 0) & ~full)
        pattern, examples = _patterns(selected[partial], x[partial] < 0)
        shared = partial[pattern >= 0]
        parts = [
            encode_positions(whole, kernels),
            pack_signs(x[whole].reshape(-1)),
            struct.pack("<I", len(examples)),
        ]
        if len(shared):
            values = x[shared][selected[shared]]
            mean = np.abs(values).mean(dtype=np.float64)
            marked = selected[partial[examples]]
            negative = x[partial[examples]][marked] < 0
            b, numbers = pack_rice(pattern[pattern >= 0])
            parts += [
                mean.astype("<f4").tobytes(),
                pack_fields(marked.reshape(-1), 1),
                pack_fields(negative, 1),
                encode_positions(shared, kernels),
                bytes([b]),
                numbers,
            ]
        selected[whole] = False
        selected[shared] = False
        single = np.flatnonzero(selected)
        parts += [encode_positions(single, x.size), pack_signs(x.reshape(-1)[single])]
        return b"".join(parts)

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        kernels, entries = _layout(shape)
        if entries < 2:
            return TopK(self.ratio, "sign").decode(section, shape)
        reader = Reader(section)
        x = np.zeros((kernels, entries), np.float32)
        whole = read_positions(reader, kernels)
        signs = reader.signs(len(whole) * entries)
        x[whole] = signs.reshape(-1, entries)
        count = reader.number(4)
        if 2 * count > kernels:
            raise WireError(f"{count} shared patterns came for {kernels} kernels.")
        if count:
            table = _read_table(reader, count, entries)
            shared = read_positions(reader, kernels)
            b = reader.number(1)
            limit = len(shared) * (count - 1)
            pattern = reader.rice(len(shared), b, limit)
            if (pattern >= count).any():
                raise WireError(
                    f"A kernel has a pattern that is not among the {count} sent."
                )
            x[shared] = table[pattern]
        single = read_positions(reader, x.size)
        x.reshape(-1)[single] = reader.signs(len(single))
        reader.end()
        return torch.from_numpy(x).reshape(shape)


def _layout(shape: Shape) -> tuple[int, int]:
    """Kernels, and entries of a kernel: one entry for fewer than three dimensions."""
    return math.prod(shape[:2]), math.prod(shape[2:])


def _read_table(reader: Reader, count: int, entries: int) -> np.ndarray:
    """The patterns: float32 [count, entries]."""
    mean = reader.magnitudes(1)[0]
    bits = reader.fields(count * entries, 1).view(bool)
    marked = bits.reshape(count, entries)
    table = np.zeros((count, entries), np.float32)
    table[marked] = reader.plus_minus(np.count_nonzero(marked), mean)
    return table


def _patterns(
    selected: np.ndarray, negative: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of positions and signs -> each row's pattern number, and a row for each
    pattern.

    Pattern 0 is the most frequent. The number is -1 if no other row has the pattern.
    """
    bits = np.concatenate([selected, selected & negative], axis=1)
    packed = np.packbits(bits, axis=1)
    # rows are sorted as numbers of 32 bits: so the order of equally frequent patterns
    # is fixed
    padding = -packed.shape[1] % 4
    words = np.pad(packed, ((0, 0), (0, padding))).view(np.uint32)
    _, row, label, count = np.unique(
        words,
        axis=0,
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    by_frequency = np.argsort(-count, kind="stable")
    frequent = by_frequency[: np.count_nonzero(count > 1)]
    number = np.full(len(count), -1)
    number[frequent] = np.arange(len(frequent))
    return number[label.reshape(-1)], row[frequent]
