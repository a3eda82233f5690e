"""What a coder is: one tensor -> bytes -> one tensor. The bytes hold no shape: it is known."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from ..arguments import Checked
from .bits import Reader, flat

Shape = Sequence[int]


def brief(record: Any) -> str:
    """A dataclass as text, by which runs are known; options (``repr=False``) only if not off."""
    shown = [f.name for f in fields(record) if f.repr or getattr(record, f.name) != f.default]
    return f"{type(record).__name__}({', '.join(f'{n}={getattr(record, n)!r}' for n in shown)})"


class Votes:
    """What comes out of a coder of signs: entries of +1 and -1."""


class Masks:
    """What goes into a coder of masks, and comes out: entries of 0 and 1."""


class Coder(Checked):
    """Base of all coders: ``encode(tensor) -> bytes``, or ``Diverged`` if it is not finite, and
    ``decode(bytes, shape) -> tensor`` on the CPU, or ``WireError``. ``takes`` and ``makes`` are the
    classes of what goes in and comes out, if it is not any tensor."""

    takes: type | None = None
    makes: type | None = None

    encode: Callable[..., Any]
    decode: Callable[..., torch.Tensor]


class Stochastic(Coder):
    """A coder that rounds at random: ``encode`` takes the sender's generator, too."""


class SharedRandomness(Coder):
    """A coder whose functions take a generator in the same state at both ends, at no byte."""


class Sparse(Coder):
    """A coder that decodes most entries to zero."""


class FlatCoder(Coder):
    """A coder to which a tensor is n > 0 numbers: ``write`` makes bytes of a float32 array,
    ``read`` is the inverse, of a ``Reader`` and n. Without entries the section is ``empty``."""

    empty = b""
    write: Callable[..., bytes]
    read: Callable[..., Any]

    def encode(self, tensor: torch.Tensor, *generators: torch.Generator) -> bytes:
        x = flat(tensor)
        return self.write(x, *generators) if len(x) else self.empty

    def decode(self, section: Any, shape: Shape, *generators: torch.Generator) -> torch.Tensor:
        reader, n = Reader(section), math.prod(shape)
        x = self.read(reader, n, *generators) if n else np.zeros(0, np.float32)
        reader.take(0 if n else len(self.empty))
        reader.end()
        return torch.from_numpy(x).reshape(shape)
