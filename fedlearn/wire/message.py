"""The envelope of every message: fixed header, one bit and one length for each tensor of the schema, body, checksum.

    "FLRN" | version | kind | schema | round | client | samples | present bits | lengths | sections | CRC-32

Nothing in a message names a tensor, a shape or a type: the receiver holds the schema and accepts nothing else. Decoding
executes nothing that it reads, allocates nothing that the schema does not allow, and knows one error, ``WireError``.
"""

import struct
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np

from ..errors import WireError

MAGIC, VERSION = b"FLRN", 1
DOWN, UP = 0, 1
_HEADER = struct.Struct("<4sBBQIII")  # magic, version, kind, schema, round, client, samples: 26 bytes
_CRC = struct.Struct("<I")


@dataclass(frozen=True)
class Schema:
    """What both ends know beforehand: the shape of every tensor by name, in order, which of them are buffers, and the
    coder in use (its ``repr``)."""

    shapes: dict
    buffers: frozenset = frozenset()
    coder: str = ""

    @cached_property
    def digest(self):
        text = repr(([(n, tuple(s)) for n, s in self.shapes.items()], sorted(self.buffers), self.coder))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Message:
    """One message taken apart. ``sections`` maps tensor names to coded bytes; ``samples`` is the sender's n_k."""

    kind: int
    round: int
    client: int
    samples: int = 0
    sections: dict = field(default_factory=dict)


def pack(message, schema):
    """``Message`` -> bytes. Tensors without a section simply do not travel."""
    present = np.array([name in message.sections for name in schema.shapes], dtype=bool)
    sections = [message.sections[name] for name in schema.shapes if name in message.sections]
    if len(sections) != len(message.sections):
        raise ValueError(f"Not in the schema: {', '.join(set(message.sections) - set(schema.shapes))}.")
    head = _HEADER.pack(MAGIC, VERSION, message.kind, schema.digest, message.round, message.client, message.samples)
    lengths = np.array([len(s) for s in sections], dtype="<u4").tobytes()
    parts, crc = [head, np.packbits(present).tobytes(), lengths, *sections], 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return b"".join([*parts, _CRC.pack(crc)])  # the one copy that is made


def unpack(data, schema, *, kind, round, client):
    """bytes -> ``Message`` whose sections are views of ``data``; ``WireError`` for anything but the message expected."""
    bits = (len(schema.shapes) + 7) // 8
    if len(data) < _HEADER.size + bits + _CRC.size:
        raise WireError(f"A message of {len(data)} bytes is shorter than its envelope.")
    magic, version, its_kind, digest, its_round, its_client, samples = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise WireError("This is not a fedlearn message.")
    if version != VERSION:
        raise WireError(f"The message has version {version}, this side reads version {VERSION}.")
    if zlib.crc32(memoryview(data)[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        raise WireError("The checksum does not fit: the message was altered or cut.")
    if digest != schema.digest:
        raise WireError("The message was made for another model, method or coder.")
    if (its_kind, its_round, its_client) != (kind, round, client):
        raise WireError(
            f"Expected kind {kind} of round {round}, client {client}; got kind {its_kind} of round {its_round}, client {its_client}."
        )
    present = np.unpackbits(np.frombuffer(data, np.uint8, bits, _HEADER.size)).astype(bool)
    if present[len(schema.shapes) :].any():
        raise WireError("The message marks tensors that the schema does not have.")
    names = [name for name, there in zip(schema.shapes, present, strict=False) if there]
    at = _HEADER.size + bits
    end = len(data) - _CRC.size
    if at + 4 * len(names) > end:
        raise WireError("The message ends inside its table of lengths.")
    lengths = np.frombuffer(data, "<u4", len(names), at).astype(np.int64)
    at += 4 * len(names)
    if at + int(lengths.sum()) != end:
        raise WireError("The lengths in the message do not add up to its size.")
    view, sections = memoryview(data), {}
    for name, length in zip(names, lengths.tolist(), strict=True):
        sections[name] = view[at : at + length]
        at += length
    return Message(kind, round, client, samples, sections)
