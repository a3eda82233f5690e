"""Messages whose tensors have known shapes and go through one coder each: features, labels,
gradients, weights; all that is not a link of ``fedlearn.parts``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..arguments import short
from ..errors import WireError
from .base import Coder, Shape
from .coders import Dense
from .message import Message, Schema, pack, unpack


@dataclass(frozen=True)
class Whole(Coder):
    """Whole numbers from 0 to 2^(8 size) - 1, ``size`` bytes each: 1, 2 or 4; they decode to int64.
    ``ValueError`` for an entry that is none of these numbers."""

    size: int = 4

    def __post_init__(self) -> None:
        if self.size not in (1, 2, 4):
            raise ValueError(f"A whole number has 1, 2 or 4 bytes, not {short(self.size)}.")

    def encode(self, tensor: torch.Tensor) -> Any:
        values, most = tensor.detach().cpu().numpy(), 2 ** (8 * self.size) - 1
        if values.size and not (values.min() >= 0 and values.max() <= most):
            raise ValueError(f"In {self.size} bytes go whole numbers from 0 to {most}, no others.")
        if values.dtype.kind == "f" and (values != np.floor(values)).any():
            raise ValueError(f"In {self.size} bytes go whole numbers, no fractions.")
        return values.astype(f"<u{self.size}").reshape(-1).view(np.uint8).data

    def decode(self, section: Any, shape: Shape) -> torch.Tensor:
        if len(section) != math.prod(shape) * self.size:
            raise WireError(f"{len(section)} bytes came for a tensor of shape {tuple(shape)}.")
        values = np.frombuffer(section, f"<u{self.size}").astype(np.int64)
        return torch.from_numpy(values).reshape(tuple(shape))


@dataclass(frozen=True)
class FixedMessage:
    """A message that holds every tensor of its schema, or, unless it must be ``whole``, nothing at
    all. ``coders`` by name; dense float32 where there is none. What is read lies on ``device``."""

    schema: Schema
    coders: Mapping[str, Coder] = field(default_factory=dict)
    whole: bool = False
    device: Any = "cpu"

    def coder(self, name: str) -> Coder:
        """Which coder this tensor goes through."""
        return self.coders.get(name, Dense())

    def write(
        self, kind: int, round: int, client: int, tensors: Mapping[str, Any], samples: int = 0
    ) -> bytes:
        """Tensors by name, each of its shape in the schema, or none -> bytes."""
        sections = {name: self.coder(name).encode(t) for name, t in tensors.items()}
        return pack(Message(kind, round, client, samples, sections), self.schema)

    def read(
        self, kind: int, round: int, client: int, data: bytes, samples: int | None = None
    ) -> dict[str, torch.Tensor]:
        """bytes -> the tensors; {} for a message that holds nothing. ``WireError`` for anything
        else, also if its head does not claim ``samples``, where they are known."""
        message = unpack(data, self.schema, kind=kind, round=round, client=client)
        sections, shapes = message.sections, self.schema.shapes
        if (sections or self.whole) and sections.keys() != shapes.keys():
            missing = ", ".join(name for name in shapes if name not in sections)
            raise WireError(f"The message of client {client} is not whole: {missing} is missing.")
        if samples is not None and message.samples != samples:
            raise WireError(f"Client {client} has {samples} images, and sent {message.samples}.")
        return {
            name: self.coder(name).decode(section, shapes[name]).to(self.device)
            for name, section in sections.items()
        }
