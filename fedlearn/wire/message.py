"""The envelope of every message::

    "FLRN" | version | kind | schema | round | client | samples
           | present bits | lengths | sections | CRC-32 (of the body first, then of the header)

Nothing in it names a tensor, a shape or a type: the receiver holds the schema and accepts nothing
else. Decoding executes nothing, allocates nothing beyond the schema, and knows one error,
``WireError``."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import torch

from ..errors import WireError
from .base import Coder
from .coders import Dense

MAGIC, VERSION = b"FLRN", 2
DOWN, UP = 0, 1
# magic, version, kind, schema, round, client, samples: 26 bytes
_HEADER = struct.Struct("<4sBBQIII")
_CRC = struct.Struct("<I")
DENSE = Dense()


@dataclass(frozen=True)
class Schema:
    """What both ends know: each tensor's shape by name, buffers, the coder's ``repr``."""

    shapes: Mapping[str, Sequence[int]]
    buffers: frozenset[str] = frozenset()
    coder: str = ""

    @cached_property
    def digest(self) -> int:
        """By which a message says to which schema it belongs, 64 bits."""
        shapes = [(name, tuple(shape)) for name, shape in self.shapes.items()]
        text = repr((shapes, sorted(self.buffers), self.coder))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")

    @cached_property
    def limit(self) -> int:
        """Bytes that no message exceeds. A coder takes at most eight an entry and 64 a tensor."""
        entries = sum(prod(shape) for shape in self.shapes.values())
        return _HEADER.size + _CRC.size + 69 * len(self.shapes) + 8 * entries


@dataclass(frozen=True)
class Message:
    """One message taken apart: coded bytes by name, n_k."""

    kind: int
    round: int
    client: int
    samples: int = 0
    sections: dict[str, Any] = field(default_factory=dict)


def pack(message: Message, schema: Schema, body: tuple[list, int] | None = None) -> bytes:
    """``Message`` -> bytes; ``body`` spares assembling the same sections again."""
    parts, crc = assemble(message.sections, schema) if body is None else body
    head = _HEADER.pack(
        MAGIC, VERSION, message.kind, schema.digest, message.round, message.client, message.samples
    )
    return b"".join([head, *parts, _CRC.pack(zlib.crc32(head, crc))])  # the one copy that is made


def assemble(sections: Mapping[str, Any], schema: Schema) -> tuple[list, int]:
    """What stands between header and checksum, as pieces: present bits, lengths and sections in the
    order of the schema; and its CRC."""
    present = np.array([name in sections for name in schema.shapes], dtype=bool)
    ordered = [sections[name] for name in schema.shapes if name in sections]
    if len(ordered) != len(sections):
        raise ValueError(f"Not in the schema: {', '.join(set(sections) - set(schema.shapes))}.")
    lengths = np.array([len(section) for section in ordered], dtype="<u4")
    parts, crc = [np.packbits(present).data, lengths.data, *ordered], 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return parts, crc


def same_body(one: bytes, other: bytes) -> bool:
    """Whether two messages differ in header and checksum at most."""
    body = memoryview(other)[_HEADER.size : -_CRC.size]
    return len(one) == len(other) and one.startswith(body, _HEADER.size)


def unpack(data: bytes, schema: Schema, *, kind: int, round: int, client: int) -> Message:
    """bytes -> ``Message`` with views of ``data``; ``WireError`` for any other message."""
    if len(data) > schema.limit:
        raise WireError(f"A message of {len(data)} bytes is longer than {schema.limit}.")
    if len(data) < _HEADER.size + _CRC.size:
        raise WireError(f"A message of {len(data)} bytes is shorter than its envelope.")
    magic, version, *got, samples = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise WireError("This is not a fedlearn message.")
    if version != VERSION:
        raise WireError(f"The message has version {version}, this side reads version {VERSION}.")
    body = memoryview(data)[_HEADER.size : -_CRC.size]
    whole = zlib.crc32(data[: _HEADER.size], zlib.crc32(body))
    if whole != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        raise WireError("The checksum does not fit: the message was altered or cut.")
    if got[1] != schema.digest:
        raise WireError("The message was made for another model, method or coder.")
    if got != [kind, schema.digest, round, client]:
        raise WireError(
            f"Expected kind {kind} of round {round}, client {client}; got kind {got[0]} of round "
            f"{got[2]}, client {got[3]}."
        )
    return Message(kind, round, client, samples, take_apart(body, schema))


def take_apart(body: memoryview, schema: Schema) -> dict[str, memoryview]:
    """The inverse of ``assemble``: sections by name, as views of ``body``."""
    bits = (len(schema.shapes) + 7) // 8
    if len(body) < bits:
        raise WireError("The message ends inside its present bits.")
    present = np.unpackbits(np.frombuffer(body, np.uint8, bits)).tolist()
    if any(present[len(schema.shapes) :]):
        raise WireError("The message marks tensors that the schema does not have.")
    names = [name for name, bit in zip(schema.shapes, present, strict=False) if bit]
    start = bits + 4 * len(names)
    if start > len(body):
        raise WireError("The message ends inside its table of lengths.")
    lengths = np.frombuffer(body, "<u4", len(names), bits).tolist()
    if start + sum(lengths) != len(body):
        raise WireError("The lengths in the message do not add up to its size.")
    ends = accumulate(lengths, initial=start)
    return {name: body[a:b] for name, (a, b) in zip(names, pairwise(ends), strict=True)}


@dataclass(frozen=True)
class FixedMessage:
    """A message of every tensor of its schema, or, unless ``whole``, of none."""

    schema: Schema
    coders: Mapping[str, Coder] = field(default_factory=dict)
    whole: bool = False
    device: Any = "cpu"

    def write(
        self, kind: int, round: int, client: int, tensors: Mapping[str, Any], samples: int = 0
    ) -> bytes:
        """Tensors by name, each of its shape in the schema, or none -> bytes."""
        sections = {name: self.coders.get(name, DENSE).encode(t) for name, t in tensors.items()}
        return pack(Message(kind, round, client, samples, sections), self.schema)

    def read(
        self, kind: int, round: int, client: int, data: bytes, samples: int | None = None
    ) -> dict[str, torch.Tensor]:
        """bytes -> the tensors, {} for none; ``WireError`` for anything else."""
        message = unpack(data, self.schema, kind=kind, round=round, client=client)
        sections, shapes = message.sections, self.schema.shapes
        if (sections or self.whole) and sections.keys() != shapes.keys():
            missing = ", ".join(name for name in shapes if name not in sections)
            raise WireError(f"The message of client {client} is not whole: {missing} is missing.")
        if samples is not None and message.samples != samples:
            raise WireError(f"Client {client} has {samples} images, and sent {message.samples}.")
        tensors = {}
        for name, section in sections.items():
            tensor = self.coders.get(name, DENSE).decode(section, shapes[name])
            dtype = torch.get_default_dtype() if tensor.is_floating_point() else tensor.dtype
            tensors[name] = tensor.to(self.device, dtype)
        return tensors
