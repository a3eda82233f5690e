"""SmartIdx: Wu et al., AAAI 2022: selected entries cluster in kernels, so that one index serves
several. Which kernels go into which package is our reading of the paper."""

import math
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..arguments import Ratio, Share
from ..errors import WireError
from .base import Shape, Sparse, brief
from .bits import Reader, flat, pack_fields, pack_rice, pack_signs
from .sparse import TopK, encode_positions, how_many, largest, read_positions


@dataclass(frozen=True)
class SmartIdx(Sparse):
    """The share ``ratio`` of entries that is largest in magnitude, as signs times one mean
    magnitude for each package.

    ::

        kernel package      kernels with more than the share ``full`` of their entries selected:
                            every entry's sign under one index
        pattern package     kernels whose selected positions and signs another kernel of the layer
                            shares: each pattern once (the most frequent first), the kernels'
                            indices, and for each kernel a Rice-coded pattern number
        individual package  the other selected entries, each with its own index

    Tensors without kernels of several entries travel as ``TopK(values="sign")``.
    """

    __repr__ = brief

    ratio: Ratio = 1 / 32
    full: Share = field(default=0.5, repr=False)

    def encode(self, tensor: torch.Tensor) -> bytes:
        kernels, entries = _layout(tensor.shape)
        if entries < 2:
            return TopK(self.ratio, "sign").encode(tensor)
        x = flat(tensor).reshape(kernels, entries)
        chosen = np.zeros(x.shape, bool)
        chosen.reshape(-1)[largest(x.reshape(-1), how_many(self.ratio, x.size))] = True
        counts = chosen.sum(1)
        most = counts > self.full * entries
        whole, rest = np.flatnonzero(most), np.flatnonzero((counts > 0) & ~most)
        pattern, examples = _shared(chosen[rest], x[rest] < 0)
        same, pattern = rest[pattern >= 0], pattern[pattern >= 0]

        parts = [
            encode_positions(whole, kernels),
            pack_signs(x[whole].reshape(-1)),
            struct.pack("<I", len(examples)),
        ]
        if len(same):
            shown = chosen[rest[examples]]
            mean = np.abs(x[same][chosen[same]]).mean(dtype=np.float64).astype("<f4")
            parts += [
                mean.tobytes(),
                pack_fields(shown.reshape(-1), 1),
                pack_fields(x[rest[examples]][shown] < 0, 1),
            ]
            b, numbers = pack_rice(pattern)
            parts += [encode_positions(same, kernels), bytes([b]), numbers]
        chosen[whole] = chosen[same] = False
        single = np.flatnonzero(chosen)
        return b"".join(
            [*parts, encode_positions(single, x.size), pack_signs(x.reshape(-1)[single])]
        )

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        kernels, entries = _layout(shape)
        if entries < 2:
            return TopK(self.ratio, "sign").decode(section, shape)
        reader, x = Reader(section), np.zeros((kernels, entries), np.float32)
        whole = read_positions(reader, kernels)
        x[whole] = reader.signs(len(whole) * entries).reshape(-1, entries)
        patterns = reader.number(4)
        if 2 * patterns > kernels:
            raise WireError(f"{patterns} shared patterns came for {kernels} kernels.")
        if patterns:
            mean = reader.magnitudes(1)[0]
            shown = reader.fields(patterns * entries, 1).view(bool).reshape(patterns, entries)
            table = np.zeros((patterns, entries), np.float32)
            table[shown] = reader.either(np.count_nonzero(shown), mean)
            same, b = read_positions(reader, kernels), reader.number(1)
            pattern = reader.rice(len(same), b, len(same) * (patterns - 1))
            if (pattern >= patterns).any():
                raise WireError(f"A kernel has a pattern that is not among the {patterns} sent.")
            x[same] = table[pattern]
        single = read_positions(reader, x.size)
        x.reshape(-1)[single] = reader.signs(len(single))
        reader.end()
        return torch.from_numpy(x).reshape(shape)


def _layout(shape: Shape) -> tuple[int, int]:
    """Kernels and entries of a kernel; of fewer than three dimensions kernels of one entry."""
    return math.prod(shape[:2]), math.prod(shape[2:])


def _shared(chosen: np.ndarray, negative: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of positions and signs -> each row's pattern, by falling frequency, or -1 if no other
    row has it; and for each pattern a row that shows it."""
    bits = np.packbits(np.concatenate([chosen, chosen & negative], 1), 1)
    # rows sort by these numbers, not by bytes: so patterns that are equally frequent are in order
    columns = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 4))).view(np.uint32)
    _, row, label, count = np.unique(
        columns, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    frequent = np.argsort(-count, kind="stable")[: np.count_nonzero(count > 1)]
    number = np.full(len(count), -1)
    number[frequent] = np.arange(len(frequent))
    return number[label.reshape(-1)], row[frequent]
