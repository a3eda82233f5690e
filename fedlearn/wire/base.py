"""What a coder is: one tensor -> bytes -> one tensor. The bytes hold no shape: it is known."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import torch

from ..arguments import Checked, is_whole, short

Shape = Sequence[int]


def brief(record: Any) -> str:
    """A dataclass as text, by which runs are known again. Its options (fields with ``repr=False``)
    are named only where they are not off, so that a new one leaves the names of old runs alone."""
    shown = [f.name for f in fields(record) if f.repr or getattr(record, f.name) != f.default]
    return f"{type(record).__name__}({', '.join(f'{n}={getattr(record, n)!r}' for n in shown)})"


def check_whole(what: str, value: object, lowest: int, highest: int) -> None:
    """``ValueError`` for what is no whole number between two."""
    if not is_whole(value) or not lowest <= value <= highest:
        raise ValueError(
            f"{what} is a whole number from {lowest} to {highest}, not {short(value)}."
        )


class Coder(Checked):
    """Base of all coders. A coder has ``encode`` and ``decode``; it may also have ``encode_rows``
    and ``decode_all``, which do the same for many tensors in less time. A subclass that replaces
    only the first two is obeyed.

    ``takes`` and ``gives`` say what may go in and what comes out, if it is not the same: "mask",
    "votes", "sketch" (see ``fedlearn.parts``).
    """

    stochastic = False  # ``encode`` draws from a generator of the sender
    shared = False  # both sides draw the same numbers, which cost no byte: a generator for each
    # tensor is passed to ``encode`` and to ``decode``
    sparse = False  # most entries decode to zero
    takes: str | None = None
    gives: str | None = None

    def __init_subclass__(cls) -> None:
        for one, many in (("encode", "encode_rows"), ("decode", "decode_all")):
            if one in vars(cls) and many not in vars(cls):
                setattr(cls, many, getattr(Coder, many))

    def encode(self, tensor: torch.Tensor, *generator: torch.Generator) -> Any:
        """A tensor of floats, coded as float32 -> bytes. ``Diverged`` if an entry, or what it would
        be coded as, is not finite. ``Dense`` with 32 bits looks at no entry, to be fast: it carries
        them, and ``decode`` refuses them."""
        raise NotImplementedError

    def decode(self, section: Any, shape: Shape, *generator: torch.Generator) -> torch.Tensor:
        """The inverse, on the CPU; ``WireError`` for bytes that ``encode`` could not have made."""
        raise NotImplementedError

    def encode_rows(
        self, tensors: Sequence[torch.Tensor], generators: list, shared: list | None = None
    ) -> list[list[Any]]:
        """Tensors [clients, ...] -> for each client a list of sections. ``generators``: one for
        each client; ``shared``: one for each tensor."""
        coded = []
        for g, row in zip(generators, zip(*tensors, strict=True), strict=True):
            own = (g,) if self.stochastic else ()
            draws = [own] * len(row) if shared is None else [(s,) for s in shared]
            coded.append([self.encode(t, *d) for t, d in zip(row, draws, strict=True)])
        return coded

    def decode_all(
        self, sections: Sequence[Any], shapes: Sequence[Shape], shared: list | None = None
    ) -> Iterable[torch.Tensor]:
        """Lists of sections and shapes -> tensors."""
        draws = [()] * len(shapes) if shared is None else [(s,) for s in shared]
        return [
            self.decode(*three[:2], *three[2])
            for three in zip(sections, shapes, draws, strict=True)
        ]
