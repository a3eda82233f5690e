"""Named randomness: each random choice has a generator of its own, derived from (seed, purpose,
round, client, ...), so that neither the order of clients nor a stop and resume can change a
result."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, *names: object) -> int:
    """A seed for one purpose, 63 bits that depend on the task's seed, on every name (purpose,
    round, client and the like), and on their order. NumPy's scalars count as Python's.

    >>> derive(0, "shuffle", 1, 2) == derive(0, "shuffle", 2, 1)
    False
    >>> derive(0, "shuffle", np.int64(1)) == derive(0, "shuffle", 1)
    True
    """
    plain = [n.item() if isinstance(n, np.generic) else n for n in names]
    digest = hashlib.blake2b(repr((int(seed), *plain)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *names: object) -> torch.Generator:
    """A fresh ``torch.Generator`` on the CPU: the same numbers on every device.

    >>> torch.randperm(4, generator=generator(0, "shuffle", 1, 2)).tolist()
    [1, 3, 2, 0]
    """
    return torch.Generator().manual_seed(derive(seed, *names))


def numpy_generator(seed: int, *names: object) -> np.random.Generator:
    """A fresh ``numpy.random.Generator``."""
    return np.random.default_rng(derive(seed, *names))


@contextmanager
def scope(
    seed: int, *names: object, device: str | torch.device = "cpu"
) -> Iterator[None]:
    """Seed torch's global generators of the CPU and the device inside the block and put them back
    afterwards; only for code that accepts no generator: weight initialisation and dropout.

    >>> with scope(0, "initial weights"):
    ...     layer = torch.nn.Linear(2, 1)
    """
    generators = [torch.default_generator]
    device = torch.device(device)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    elif device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    before = [g.get_state() for g in generators]
    try:
        for g in generators:
            g.manual_seed(derive(seed, *names))
        yield
    finally:
        for g, state in zip(generators, before, strict=True):
            g.set_state(state)


@contextmanager
def wide_scope(seed: int, *names: object) -> Iterator[None]:
    """``scope``, and the global generators of numpy and Python, too: for a user's code that builds
    a network. It takes five times as long, so training has ``scope``."""
    of_python = random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002 a builder may draw from it
    number = derive(seed, *names)
    try:
        np.random.seed(number % 2**32)  # noqa: NPY002
        random.seed(number)
        with scope(seed, *names):
            yield
    finally:
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
