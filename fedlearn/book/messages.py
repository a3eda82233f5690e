"""A message as hexadecimal numbers, part by part.

What its bytes mean is not typed here but told by the decoder, while it reads them.
"""

import html
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch

from ..wire import Schema, coders, take_apart
from ..wire.bits import Reader
from ..wire.message import _CRC, _HEADER
from .show import Shown, said

HEAD = ("magic", "version", "kind", "schema", "round", "client", "samples n_k")
WIDTHS = (4, 1, 1, 8, 4, 4, 4)
READS: dict[str, Callable[..., str]] = {  # what a reader is asked for -> how to say what came
    "number": lambda value, size: f"whole number, {value}",
    "floats": lambda value, count, dtype="<f4": f"{_times(count, 'float')}, {_few(value, '.4g')}",
    "fields": lambda value, count, width: f"{_times(count, f'{width}-bit number')}, {_few(value)}",
    "rice": lambda value, count, b, limit: f"{_times(count, 'Golomb-Rice gap')}, {_few(value)}",
    "take": lambda value, size: _times(size, "byte"),
}


class Span(NamedTuple):
    """Bytes from ``start`` to before ``end``, and what they are."""

    start: int
    end: int
    section: str
    field: str


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _few(values: Any, form: str = "") -> str:
    return ", ".join(format(v, form) for v in values[:6].tolist()) + ", ..." * (len(values) > 6)


def _address(data: Any) -> int:
    return np.frombuffer(data, np.uint8).__array_interface__["data"][0]


@contextmanager
def _listening(data: bytes, into: list[tuple[int, int, str]]) -> Iterator[None]:
    """Meanwhile, every reader of a part of ``data`` tells what it reads."""
    first, depth = _address(data), 0

    def tell(start: int, size: int, what: str) -> None:
        if size and 0 <= start - first < len(data):
            into.append((start - first, start - first + size, what))

    def telling(name: str, method: Callable) -> Callable:
        @wraps(method)
        def read(self: Reader, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            start, before, depth = _address(self.rest), len(self.rest), depth + 1
            try:
                value = method(self, *args, **kwargs)
            finally:
                depth -= 1
            if not depth:
                tell(start, before - len(self.rest), READS[name](value, *args, **kwargs))
            return value

        return read

    def read_floats(sections: Sequence[Any], *how: Any) -> tuple[torch.Tensor, ...]:
        tensors = dense(sections, *how)
        for section, t in zip(sections, tensors, strict=True):
            tell(_address(section), len(section), READS["floats"](t.flatten(), t.numel()))
        return tensors

    methods, dense = {name: getattr(Reader, name) for name in READS}, coders.read_floats
    try:
        for name, method in methods.items():
            setattr(Reader, name, telling(name, method))
        coders.read_floats = read_floats  # type: ignore[assignment]
        yield
    finally:
        for name, method in methods.items():
            setattr(Reader, name, method)
        coders.read_floats = dense


def spans_of(data: bytes, schema: Schema, decode: Callable[[bytes], Any]) -> list[Span]:
    """The parts of a message, in order and without gaps. ``decode`` is what reads it, such as a
    server's ``receive``; what it refuses is not taken apart. Bytes of which its coder does not tell
    what they are, because it reads them in a way of its own, are a part by themselves."""
    told: list[tuple[int, int, str]] = []
    with _listening(data, told):
        decode(data)
    ends = np.cumsum([0, *WIDTHS]).tolist()
    values = [f"{v!r}" for v in _HEADER.unpack_from(data)]
    parts = zip(ends, ends[1:], HEAD, values, strict=False)
    spans = [Span(a, b, "head", f"{name}, {value}") for a, b, name, value in parts]
    at, sections = ends[-1], take_apart(memoryview(data)[_HEADER.size : -_CRC.size], schema)
    bits = (len(schema.shapes) + 7) // 8
    spans.append(Span(at, at + bits, "present bits", f"{len(sections)} of {len(schema.shapes)}"))
    at += bits
    for name, section in sections.items():
        spans.append(Span(at, at + 4, "lengths", f"{name}, {_times(len(section), 'byte')}"))
        at += 4
    for name, section in sections.items():
        shape = tuple(schema.shapes[name])
        section_name = f"{name} {' x '.join(map(str, shape))}"
        end = at + len(section)
        for a, b, what in [*sorted(t for t in told if at <= t[0] < end), (end, end, "")]:
            if at < a:
                spans.append(Span(at, a, section_name, _times(a - at, "byte")))
            if at <= a < b:  # what is read twice is told once
                spans.append(Span(a, b, section_name, what))
                at = b
        at = end
    spans.append(Span(at, len(data), "checksum", data[at:].hex(" ")))
    return spans


def message(
    number: str, data: bytes, schema: Schema, decode: Callable[[bytes], Any], caption: str
) -> Shown:
    """The message as hexadecimal numbers: point at a part, or step to it with the tab key, and
    read what it is."""
    anchor, below = said("Figure", number, caption)
    shown, kind, before = [], 0, ""
    for span in spans_of(data, schema, decode):
        kind, before = kind + (span.section != before), span.section
        says = html.escape(
            f"{_times(span.end - span.start, 'byte')} from {span.start:,}: "
            f"{span.section}: {span.field}"
        )
        shown.append(
            f'<span class="fl-part fl-part-{kind % 2}" tabindex="0" role="note" '
            f'aria-label="{says}">{data[span.start : span.end].hex(" ")}'
            f'<span class="fl-says">{says}</span></span>'
        )
    return Shown(
        f'<figure class="fl fl-message" id="{anchor}"><div class="fl-bytes">{" ".join(shown)}'
        f"</div>{below}</figure>",
        f"A message of {len(data):,} bytes in {len(shown)} parts.",
    )
