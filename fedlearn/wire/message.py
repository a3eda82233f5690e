"""The envelope of every message::

    "FLRN" | version | kind | schema | round | client | samples
           | present bits | lengths | sections | CRC-32 of body, then header

It names no tensor, shape or type: the receiver holds the schema and accepts nothing
else. Decoding executes nothing, allocates nothing beyond the schema, and knows one
error, ``WireError``.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, compress, pairwise
from math import prod
from typing import Any

import numpy as np
import torch

from ..errors import WireError
from .base import Coder
from .dense import Dense

MAGIC = b"FLRN"
VERSION = 2
DOWN, UP = 0, 1
# magic, version, kind, schema, round, client, samples: 26 bytes
_HEADER = struct.Struct("<4sBBQIII")
_CRC = struct.Struct("<I")
DENSE = Dense()


@dataclass(frozen=True)
class Schema:
    """Known on both sides: the shape of each tensor by name, buffers, the coder's ``repr``."""

    shapes: Mapping[str, Sequence[int]]
    buffers: frozenset[str] = frozenset()
    coder: str = ""

    @cached_property
    def digest(self) -> int:
        """The 64 bits by which a message names its schema."""
        shapes = [(name, tuple(self.shapes[name])) for name in self.shapes]
        text = repr((shapes, sorted(self.buffers), self.coder))
        digest = blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    @cached_property
    def limit(self) -> int:
        """Bytes that no message exceeds.

        A coder takes at most eight an entry and 64 a tensor, the envelope takes five
        a tensor.
        """
        entries = sum(prod(shape) for shape in self.shapes.values())
        envelope = _HEADER.size + _CRC.size
        return envelope + 69 * len(self.shapes) + 8 * entries


@dataclass(frozen=True)
class Message:
    """One message taken apart: coded bytes by name, n_k."""

    kind: int
    round: int
    client: int
    samples: int = 0
    sections: dict[str, Any] = field(default_factory=dict)


def pack(
    message: Message, schema: Schema, body: tuple[list, int] | None = None
) -> bytes:
    """``Message`` -> bytes; ``body`` is the result of an earlier ``assemble``."""
    parts, crc = assemble(message.sections, schema) if body is None else body
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        message.kind,
        schema.digest,
        message.round,
        message.client,
        message.samples,
    )
    checksum = _CRC.pack(zlib.crc32(head, crc))
    return b"".join([head, *parts, checksum])  # the only copy


def assemble(sections: Mapping[str, Any], schema: Schema) -> tuple[list, int]:
    """The body of a message, in pieces, and its CRC.

    The pieces are present bits, lengths, and the sections in the order of the schema.
    """
    bits = [name in sections for name in schema.shapes]
    present = np.packbits(np.array(bits, dtype=bool))
    ordered = [sections[name] for name in schema.shapes if name in sections]
    if len(ordered) != len(sections):
        unknown = set(sections) - set(schema.shapes)
        raise ValueError(f"Not in the schema: {', '.join(unknown)}.")
    lengths = np.array([len(section) for section in ordered], dtype="<u4")
    parts = [present.data, lengths.data, *ordered]
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return parts, crc


def same_body(one: bytes, other: bytes) -> bool:
    """Whether two messages differ in header and checksum at most."""
    body = memoryview(other)[_HEADER.size : -_CRC.size]
    return len(one) == len(other) and one.startswith(body, _HEADER.size)


def unpack(
    data: bytes, schema: Schema, *, kind: int, round: int, client: int
) -> Message:
    """bytes -> ``Message`` with views of ``data``; ``WireError`` for another message."""
    if len(data) > schema.limit:
        raise WireError(
            f"A message of {len(data)} bytes is longer than {schema.limit}."
        )
    if len(data) < _HEADER.size + _CRC.size:
        raise WireError(f"A message of {len(data)} bytes is shorter than its envelope.")
    magic, version, *head, samples = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise WireError("This is not a fedlearn message.")
    if version != VERSION:
        raise WireError(f"The message has version {version}, not {VERSION}.")
    body = memoryview(data)[_HEADER.size : -_CRC.size]
    checksum = zlib.crc32(data[: _HEADER.size], zlib.crc32(body))
    if data[-_CRC.size :] != _CRC.pack(checksum):
        raise WireError("The checksum does not fit: the message was altered or cut.")
    if head[1] != schema.digest:
        raise WireError("The message was made for another model, method or coder.")
    if head != [kind, schema.digest, round, client]:
        raise WireError(
            f"Expected kind {kind} of round {round}, client {client}; "
            f"the message is kind {head[0]} of round {head[2]}, client {head[3]}."
        )
    return Message(kind, round, client, samples, take_apart(body, schema))


def take_apart(body: memoryview, schema: Schema) -> dict[str, memoryview]:
    """The inverse of ``assemble``: sections by name, as views of ``body``."""
    tensors = len(schema.shapes)
    size = (tensors + 7) // 8
    if len(body) < size:
        raise WireError("The message ends inside its present bits.")
    bits = np.unpackbits(np.frombuffer(body, np.uint8, size))
    if bits[tensors:].any():
        raise WireError("The message marks tensors that the schema does not have.")
    names = list(compress(schema.shapes, bits))
    start = size + 4 * len(names)
    if start > len(body):
        raise WireError("The message ends inside its table of lengths.")
    lengths = np.frombuffer(body, "<u4", len(names), size).tolist()
    if start + sum(lengths) != len(body):
        raise WireError("The lengths in the message do not add up to its size.")
    ends = accumulate(lengths, initial=start)
    sections = {}
    for name, (begin, end) in zip(names, pairwise(ends), strict=True):
        sections[name] = body[begin:end]
    return sections


@dataclass(frozen=True)
class FixedMessage:
    """A message of every tensor of its schema or, unless ``whole``, of none."""

    schema: Schema
    coders: Mapping[str, Coder] = field(default_factory=dict)
    whole: bool = False
    device: Any = "cpu"

    def write(
        self,
        kind: int,
        round: int,
        client: int,
        tensors: Mapping[str, Any],
        samples: int = 0,
    ) -> bytes:
        """Tensors by name, each of its shape in the schema, or none -> bytes."""
        sections = {}
        for name, tensor in tensors.items():
            sections[name] = self.coders.get(name, DENSE).encode(tensor)
        return pack(Message(kind, round, client, samples, sections), self.schema)

    def read(
        self,
        kind: int,
        round: int,
        client: int,
        data: bytes,
        samples: int = 0,
    ) -> dict[str, torch.Tensor]:
        """bytes -> the tensors, {} for none; ``WireError`` for anything else."""
        message = unpack(data, self.schema, kind=kind, round=round, client=client)
        sections = message.sections
        missing = [name for name in self.schema.shapes if name not in sections]
        if missing and (sections or self.whole):
            raise WireError(
                f"The message of client {client} is not whole: "
                f"{', '.join(missing)} is missing."
            )
        if message.samples != samples:
            raise WireError(
                f"Client {client} has {samples} images, and sent {message.samples}."
            )
        tensors = {}
        for name, section in sections.items():
            coder = self.coders.get(name, DENSE)
            tensor = coder.decode(section, self.schema.shapes[name])
            if tensor.is_floating_point():
                tensor = tensor.to(torch.get_default_dtype())
            tensors[name] = tensor.to(self.device)
        return tensors
