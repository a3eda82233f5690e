"""Which client holds which training sample.

``dirichlet(0.5)(labels, clients=10, rng=rng)`` gives a `Split`. Every partition is a disjoint
cover of the training set with no empty client: each one answers "whose is sample i?" with one
array, so neither gap nor overlap can arise."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlearn.arguments import short
from fedlearn.data.sources import data_path
from fedlearn.errors import pick

from .given import Flwr, Given, given  # noqa: F401  fl.partition has them all
from .split import Partition, Split, need  # noqa: F401

TRIES = 10_000  # a hundred clients, 1,000 images, alpha 0.1: a draw in more than a thousand will do


def _deal(labels, counts, rng):
    """The owner of each sample when client k gets ``counts[k, c]`` random samples of class c."""
    owner = np.empty(len(labels), np.int64)
    for c in range(counts.shape[1]):
        owner[rng.permutation(np.flatnonzero(labels == c))] = np.repeat(
            np.arange(len(counts)), counts[:, c]
        )
    return owner


@dataclass(frozen=True)
class Iid(Partition):
    """Shuffle and cut into equal parts (sizes differ by one at most)."""

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        return rng.permutation(np.arange(len(labels)) % clients)


@dataclass(frozen=True)
class Objects(Partition):
    """Pictures with few objects here, with many there: in the order of their number, cut into equal
    parts. For detection and segmentation."""

    by = "counts"

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        owner, order = np.empty(len(labels), np.int64), rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        owner[order] = np.arange(len(labels)) * clients // len(labels)
        return owner


@dataclass(frozen=True)
class Permuted(Iid):
    """IID, but each client sees its pixels in an order of its own: permuted MNIST of FedFusion."""

    def permutations(
        self, clients: int, rng: np.random.Generator, pixels: int | None
    ) -> list | None:
        need(
            pixels,
            "The permuted partition needs the number of pixels of an image: pass "
            "pixels=height * width.",
        )
        return [rng.permutation(pixels) for _ in range(clients)]


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Class by class, the clients' shares are drawn from Dirichlet(alpha): the smaller alpha, the
    more uneven.

    Drawn anew, on from the same generator, until every client has ``min_samples``.
    """

    alpha: float
    min_samples: int = 1

    def __post_init__(self) -> None:
        need(
            0 < self.alpha < math.inf,
            f"Dirichlet's alpha must be a positive number, not {self.alpha}.",
        )
        need(self.min_samples >= 1, f"min_samples must be at least 1, not {self.min_samples}.")

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        sizes = np.bincount(labels)
        for _ in range(TRIES):
            cuts = np.floor(
                np.cumsum(rng.dirichlet([self.alpha] * clients, len(sizes)), 1) * sizes[:, None]
            )
            cuts[:, -1] = sizes  # the shares add up to 1 only nearly
            counts = np.diff(np.minimum(cuts, sizes[:, None]), axis=1, prepend=0).astype(np.int64).T
            if counts.sum(1).min() >= self.min_samples:
                return _deal(labels, counts, rng)
        raise ValueError(
            f"{TRIES:,} draws of {self} never gave each of {clients} clients {self.min_samples} "
            f"of {len(labels)} samples: raise alpha, lower min_samples or use fewer clients."
        )


@dataclass(frozen=True)
class Shards(Partition):
    """McMahan et al.: sort by label, cut into clients * per_client shards, deal each client
    per_client of them."""

    per_client: int = 2

    def __post_init__(self) -> None:
        need(
            self.per_client >= 1 and self.per_client == int(self.per_client),
            f"A client needs a whole number of shards, one or more, not {self.per_client}.",
        )

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        count = clients * self.per_client
        need(
            count <= len(labels),
            f"{len(labels)} samples cannot fill {count} shards: use fewer clients or shards.",
        )
        holder = rng.permutation(np.repeat(np.arange(clients), self.per_client))
        owner = np.empty(len(labels), np.int64)
        owner[np.argsort(labels, kind="stable")] = holder[
            np.arange(len(labels)) * count // len(labels)
        ]
        return owner


def _class_owner(labels, clients, coarse):
    """The owner of each class: neighbouring classes go together, whole super-classes where they
    are known."""
    order = np.arange(labels.max() + 1) if coarse is None else np.argsort(coarse, kind="stable")
    need(
        clients <= len(order),
        f"{clients} clients cannot each own one of {len(order)} classes: use fewer clients.",
    )
    owner = np.empty(len(order), np.int64)
    owner[order] = np.arange(len(order)) * clients // len(order)
    return owner


@dataclass(frozen=True)
class Classes(Partition):
    """No class is shared: two clients hold classes 0-4 and 5-9, the artificial non-IID of
    FedMMD."""

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        return _class_owner(labels, clients, None)[labels]


@dataclass(frozen=True)
class MainClass(Partition):
    """Fed-KGF: ``share`` of each class goes to the client that owns it, the rest evenly to the
    others. Where there are more clients than classes, some own the same class and divide the share.

    Ten clients, CIFAR-10: 4,000 of the own class and 111 or 112 of every other. CIFAR-100 with
    ``coarse``: 400 each of ten classes (two super-classes) and 11 or 12 of every other. 5,000
    samples a client in both."""

    share: float = 0.8

    def __post_init__(self) -> None:
        need(
            0 < self.share <= 1,
            f"The main class's share must be above 0 and at most 1, not {self.share}.",
        )

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        classes, k = labels.max() + 1, np.arange(clients)
        # [clients, classes]: whose class it is; in a crowd client k has class k mod classes
        if clients > classes:
            own = k[:, None] % classes == np.arange(classes)
        else:
            own = k[:, None] == _class_owner(labels, clients, coarse)
        total = np.bincount(labels, minlength=classes)
        counts, moved = np.zeros((clients, classes), np.int64), np.zeros(clients, np.int64)
        for c in range(classes):
            mine, first = np.flatnonzero(own[:, c]), own[:, c].argmax()
            # The others, from a starting point that moves on with each class, so that the odd
            # samples spread too.
            others = (first + k) % clients
            others = np.roll(others[~own[others, c]], -moved[first])
            main = round(self.share * total[c]) if len(others) else total[c]
            for who, n in ((mine, main), (others, total[c] - main)):
                counts[who, c] = n // max(len(who), 1)
                counts[who[: n % max(len(who), 1)], c] += 1
            moved += (total[c] - main) % max(len(others), 1) if clients > classes else own[:, c]
        return _deal(labels, counts, rng)


@dataclass(frozen=True)
class Table(Partition):
    """A paper's own split, read from ``data/partitions/<source>.csv`` (or a path): rows clients,
    columns classes.

    Exact when the columns add up to the data set's class counts. Otherwise each class is shared
    out in the table's proportions by largest remainder, so that every sample is used."""

    source: str

    def __post_init__(self) -> None:
        self.counts()

    def counts(self) -> np.ndarray:
        """The table as printed, repairs included: int64 [clients, classes]."""
        known = {p.stem: p for p in sorted(data_path("partitions").glob("*.csv"))}
        path = Path(self.source)
        if path.suffix != ".csv" or not path.is_file():
            path = pick(self.source, known, "partition table")
        try:
            rows = [
                line.split(",")
                for line in path.read_text(encoding="utf-8").splitlines()
                if line.strip() and not line.startswith("#")
            ]
            counts = np.array([[int(cell) for cell in row[1:]] for row in rows[1:]], np.int64)
            need(
                counts.ndim == 2 and counts.min() >= 0 and counts.sum(0).all(),
                "a negative count or an empty class",
            )
            need(counts.max() < 2**31, "a count is larger than 2,147,483,647")
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"{path} is not a table of counts, clients by classes ({short(str(error))})."
            ) from error
        return counts

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        counts = self.counts()
        total = np.bincount(labels, minlength=counts.shape[1])  # a part of a set may lack the last
        need(
            counts.shape == (clients, len(total)),
            f"The table {self.source} is for {counts.shape[0]} clients "
            f"and {counts.shape[1]} classes, not for {clients} and {len(total)}.",
        )
        share, left = np.divmod(counts * total, counts.sum(0))  # in integers: no rounding
        rank = np.argsort(np.argsort(-left, axis=0, kind="stable"), axis=0)
        return _deal(labels, share + (rank < total - share.sum(0)), rng)


iid, permuted, dirichlet, shards = Iid, Permuted, Dirichlet, Shards
classes, main_class, table, flwr = Classes, MainClass, Table, Flwr
objects = Objects

# name: (constructor, how its argument is read, an example); None where there is no argument.
PARTS = {
    "iid": (Iid, None, "iid"),
    "dirichlet": (Dirichlet, float, "dirichlet:0.5"),
    "shards": (Shards, int, "shards:2"),
    "classes": (Classes, None, "classes"),
    "main_class": (MainClass, float, "main_class:0.8"),
    "permuted": (Permuted, None, "permuted"),
    "table": (Table, str, "table:rpn_table4"),
    "objects": (Objects, None, "objects"),
}


def parse(text: str) -> Partition:
    """``"dirichlet:0.5"`` -> ``dirichlet(0.5)``: a name of `PARTS`, with an argument where it
    takes one."""
    name, colon, argument = text.partition(":")
    make, read, example = pick(name, PARTS, "partition")
    try:
        value = [read(argument)] if colon else []
    except (TypeError, ValueError):
        raise ValueError(f"{text!r} is not a partition: write it like {example!r}.") from None
    need(
        value or name not in ("dirichlet", "table"),
        f"{text!r} lacks its argument: write it like {example!r}.",
    )
    return make(*value)
