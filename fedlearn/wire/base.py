"""The base classes of coders: one tensor -> bytes -> one tensor.

The bytes hold no shape: both sides know it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from .bits import Reader, flat

Shape = Sequence[int]


def brief(record: Any) -> str:
    """The ``repr`` of a dataclass, by which runs are known.

    A field with ``repr=False`` is shown only if it differs from its default.
    """
    texts = []
    for field in fields(record):
        value = getattr(record, field.name)
        if field.repr or value != field.default:
            texts.append(f"{field.name}={value!r}")
    return f"{type(record).__name__}({', '.join(texts)})"


class Votes:
    """The class of tensors whose entries are +1 and -1."""


class Masks:
    """The class of tensors whose entries are 0 and 1."""


class Coder:
    """Base of all coders.

    ``encode(tensor) -> bytes``, or ``Diverged`` if the tensor is not finite.
    ``decode(bytes, shape) -> tensor`` on the CPU, or ``WireError``.
    ``takes`` and ``makes`` are the classes of the tensors that go in and come out,
    such as ``Masks``; None stands for any tensor.
    """

    takes: type | None = None
    makes: type | None = None

    encode: Callable[..., Any]
    decode: Callable[..., torch.Tensor]


class Stochastic(Coder):
    """A coder that rounds at random: ``encode`` also takes the sender's generator."""


class SharedRandomness(Coder):
    """A coder whose two functions take generators in equal states, which cost no byte."""


class Sparse(Coder):
    """A coder that decodes most entries to zero."""


class FlatCoder(Coder):
    """A coder to which a tensor is n > 0 numbers in a row.

    ``write`` makes bytes of a float32 array; ``read`` makes the array of a ``Reader``
    and n. The section of a tensor without entries is ``empty``.
    """

    empty = b""
    write: Callable[..., bytes]
    read: Callable[..., Any]

    def encode(self, tensor: torch.Tensor, *generators: torch.Generator) -> bytes:
        x = flat(tensor)
        if not len(x):
            return self.empty
        return self.write(x, *generators)

    def decode(
        self,
        section: Any,
        shape: Shape,
        *generators: torch.Generator,
    ) -> torch.Tensor:
        reader = Reader(section)
        n = math.prod(shape)
        if n:
            x = self.read(reader, n, *generators)
        else:
            x = np.zeros(0, np.float32)
            reader.take(len(self.empty))
        reader.end()
        return torch.from_numpy(x).reshape(shape)
