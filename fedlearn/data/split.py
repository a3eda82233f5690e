"""Who holds what: a split, and what a partition is that makes one."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..arguments import Checked


def need(condition: object, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


@dataclass(frozen=True, eq=False)
class Split:
    """For each client its sample indices, int64 ascending; and its pixel permutation [height *
    width], or None."""

    indices: list
    permutations: list | None = None


class Partition(Checked):
    """Base of all partitions: checks, the call, and the grouping of samples by owner."""

    by: ClassVar[str] = "labels"  # what of a ``Source`` it takes for ``labels``

    def __call__(
        self,
        labels: np.ndarray,
        clients: int,
        rng: np.random.Generator,
        coarse: np.ndarray | None = None,
        pixels: int | None = None,
    ) -> Split:
        """labels int [n]; coarse: the super-class of each class, or None; pixels: height * width,
        for permuted."""
        labels = np.asarray(labels)
        need(clients >= 1, f"A federation needs at least one client, not {clients}.")
        need(
            clients <= len(labels),
            f"{clients} clients cannot share {len(labels)} samples: use fewer clients.",
        )
        owner = self.owners(labels, clients, rng, coarse)
        sizes = np.bincount(owner, minlength=clients)
        need(
            sizes.all(),
            f"{self} leaves client {sizes.argmin()} of {clients} without samples: "
            "use fewer clients.",
        )
        indices = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
        return Split(indices, self.permutations(clients, rng, pixels))

    def permutations(
        self, clients: int, rng: np.random.Generator, pixels: int | None
    ) -> list | None:
        """For each client an order of its pixels, or None for all."""
        return None

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        """The owner of each sample, int64 [n]."""
        raise NotImplementedError
