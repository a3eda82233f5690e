"""Named randomness: each random choice has a generator of its own, derived from (seed, purpose,
round, client, ...).

Nothing in the package depends on a global generator, so the order in which clients train, a stop
and resume, or a plot drawn in between cannot change a result."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, *names: object) -> int:
    """A 63-bit integer that depends on every name, and on their order."""
    digest = hashlib.blake2b(repr((int(seed), *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *names: object) -> torch.Generator:
    """A fresh ``torch.Generator`` on the CPU: the same numbers on every device."""
    return torch.Generator().manual_seed(derive(seed, *names))


def numpy_generator(seed: int, *names: object) -> np.random.Generator:
    """A fresh ``numpy.random.Generator``."""
    return np.random.default_rng(derive(seed, *names))


@contextmanager
def scope(seed: int, *names: object, device: str | torch.device = "cpu") -> Iterator[None]:
    """Seed torch's global generator inside the block and put it back afterwards.

    Only for code that accepts no generator: weight initialisation and dropout.
    """
    generators = [torch.default_generator]
    if torch.device(device).type == "cuda":
        index = torch.device(device).index
        generators.append(
            torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
        )
    before = [g.get_state() for g in generators]
    try:
        for g in generators:
            g.manual_seed(derive(seed, *names))
        yield
    finally:
        for g, state in zip(generators, before, strict=True):
            g.set_state(state)
