"""Which client holds which training sample.

``dirichlet(0.5)(labels, clients=10, rng=rng)`` gives a `Split`. A partition has one
array with the owner of each sample, so neither gap nor overlap can arise; a client
without samples is refused."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import check_number, check_whole, pick, short
from .images import data_path

# of a hundred clients, 1,000 images and alpha 0.1, one draw in a thousand is accepted
TRIES = 10_000


def need(condition: object, sentence: str) -> None:
    """Refuse, unless the condition holds."""
    if not condition:
        raise ValueError(sentence)


@dataclass(frozen=True, eq=False)
class Split:
    """For each client its sample indices, int64 ascending, and its order of pixels, or
    None."""

    indices: list
    permutations: list | None = None


class Partition:
    """Base of all partitions; one of your own has ``owners``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> split = Shards(1)(np.array([0, 1, 0, 1]), clients=2, rng=rng)
    >>> sorted(indices.tolist() for indices in split.indices)
    [[0, 2], [1, 3]]
    """

    def __call__(
        self,
        labels: np.ndarray,
        clients: int,
        rng: np.random.Generator,
        coarse: np.ndarray | None = None,
        pixels: int | None = None,
    ) -> Split:
        """Deal out samples with these labels, int [n]. ``coarse``: the super-class of
        each class; ``pixels``: height * width, for ``permuted``. ``ValueError`` if not
        every client would get a sample."""
        labels = np.asarray(labels)
        n = len(labels)
        need(clients >= 1, f"A federation needs at least one client, not {clients}.")
        need(
            clients <= n,
            f"{clients} clients cannot share {n} samples: use fewer clients.",
        )
        owner = self.owners(labels, clients, rng, coarse)
        indices = [np.flatnonzero(owner == k) for k in range(clients)]
        for k, samples in enumerate(indices):
            if not len(samples):
                raise ValueError(
                    f"{self} leaves client {k} without samples: use fewer clients."
                )
        return Split(indices, self.permutations(clients, rng, pixels))

    def permutations(self, clients, rng, pixels) -> list | None:
        """For each client an order of its pixels, or None for all."""
        return None

    def owners(self, labels, clients, rng, coarse) -> np.ndarray:
        """The owner of each sample, int64 [n]; -1 if it has none."""
        raise NotImplementedError


def _deal(labels, counts, rng):
    """The owner of each sample when client k gets ``counts[k, c]`` random samples of
    class c."""
    owner = np.empty(len(labels), np.int64)
    clients = np.arange(len(counts))
    for c in range(counts.shape[1]):
        order = rng.permutation(np.flatnonzero(labels == c))
        owner[order] = np.repeat(clients, counts[:, c])
    return owner


def _cut(order, parts):
    """The part of each sample when this order of all samples is cut into equal
    parts."""
    part = np.empty(len(order), np.int64)
    part[order] = np.arange(len(order)) * parts // len(order)
    return part


@dataclass(frozen=True)
class Iid(Partition):
    """Shuffle and cut into equal parts (sizes differ by one at most)."""

    def owners(self, labels, clients, rng, coarse) -> np.ndarray:
        return rng.permutation(np.arange(len(labels)) % clients)


@dataclass(frozen=True)
class Permuted(Iid):
    """IID, but each client has another order of pixels: permuted MNIST of FedFusion."""

    def permutations(self, clients, rng, pixels) -> list | None:
        need(pixels, "The permuted partition needs the number of pixels of an image.")
        return [rng.permutation(pixels) for _ in range(clients)]


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Class by class, the clients' shares are drawn from Dirichlet(alpha): the smaller
    alpha, the more uneven the shares. They are drawn anew, by the same generator, until
    every client has ``min_samples``."""

    alpha: float
    min_samples: int = 1

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0)
        check_whole("min_samples", self.min_samples)

    def owners(self, labels, clients, rng, coarse) -> np.ndarray:
        sizes = np.bincount(labels)
        for _ in range(TRIES):
            shares = rng.dirichlet([self.alpha] * clients, len(sizes))
            cuts = np.floor(np.cumsum(shares, 1) * sizes[:, None])
            cuts[:, -1] = sizes  # the shares add up to 1 only nearly
            cuts = np.minimum(cuts, sizes[:, None])
            counts = np.diff(cuts, axis=1, prepend=0).astype(np.int64).T
            if counts.sum(1).min() >= self.min_samples:
                return _deal(labels, counts, rng)
        raise ValueError(
            f"{TRIES:,} draws of {self} never gave each of {clients} clients "
            f"{self.min_samples} of {len(labels)} samples: raise alpha, lower "
            "min_samples or use fewer clients."
        )


@dataclass(frozen=True)
class Shards(Partition):
    """McMahan et al. (2017): sort by label, cut into clients * per_client shards, deal
    these out."""

    per_client: int = 2

    def __post_init__(self) -> None:
        check_whole("per_client", self.per_client)

    def owners(self, labels, clients, rng, coarse) -> np.ndarray:
        n = len(labels)
        count = clients * self.per_client
        need(
            count <= n,
            f"{n} samples cannot fill {count} shards: use fewer clients or shards.",
        )
        holder = rng.permutation(np.repeat(np.arange(clients), self.per_client))
        return holder[_cut(np.argsort(labels, kind="stable"), count)]


def _class_owner(order, clients):
    """The owner of each class, neighbours in this order together."""
    n = len(order)
    need(
        clients <= n,
        f"{clients} clients cannot each own one of {n} classes: use fewer clients.",
    )
    return _cut(order, clients)


@dataclass(frozen=True)
class Classes(Partition):
    """No class is shared: two clients hold 0-4 and 5-9, the artificial non-IID of
    FedMMD."""

    def owners(self, labels, clients, rng, coarse) -> np.ndarray:
        return _class_owner(np.arange(labels.max() + 1), clients)[labels]


@dataclass(frozen=True)
class MainClass(Partition):
    """Fed-KGF: ``share`` of each class (above 0, at most 1) goes to the client that
    owns it, the rest evenly to the others. If there are more clients than classes,
    several clients own one class and divide the share.

    Ten clients, CIFAR-10: 4,000 of the main class and 111 or 112 of each other class.
    CIFAR-100 with ``coarse``: 400 each of ten classes (two super-classes) and 11 or 12
    of each other class."""

    share: float = 0.8

    def __post_init__(self) -> None:
        check_number("share", self.share, above=0, maximum=1)

    def owners(self, labels, clients, rng, coarse) -> np.ndarray:
        total = np.bincount(labels)
        classes = np.arange(len(total))
        k = np.arange(clients)
        crowded = clients > len(classes)
        if crowded:
            main = k[:, None] % len(classes) == classes  # [clients, classes]: owned?
        else:
            order = classes if coarse is None else np.argsort(coarse, kind="stable")
            main = k[:, None] == _class_owner(order, clients)
        counts = np.zeros(main.shape, np.int64)
        moved = np.zeros(clients, np.int64)
        for c in classes:
            owners = np.flatnonzero(main[:, c])
            # The other clients, from a starting point that moves on with each class:
            # so the odd samples are spread evenly.
            remaining = (owners[0] + k) % clients
            remaining = remaining[~main[remaining, c]]
            remaining = np.roll(remaining, -moved[owners[0]])
            share = round(self.share * total[c]) if len(remaining) else total[c]
            remainder = total[c] - share
            counts[owners, c] = _even(share, len(owners))
            counts[remaining, c] = _even(remainder, len(remaining))
            moved += remainder % max(len(remaining), 1) if crowded else main[:, c]
        return _deal(labels, counts, rng)


def _even(total, parts):
    """``total`` as so many whole numbers that differ by one at most, the larger ones
    first."""
    return (total + np.arange(parts)[::-1]) // max(parts, 1)


@dataclass(frozen=True)
class Table(Partition):
    """A paper's split, rows clients and columns classes: a name in
    ``data/partitions``.

    Exact when the columns add up to the data set's class counts. Otherwise each class
    is shared out in the table's proportions by largest remainder, so that every sample
    is used."""

    source: str

    def __post_init__(self) -> None:
        self.counts()

    def counts(self) -> np.ndarray:
        """The table as printed, repairs included: int64 [clients, classes]."""
        tables = {p.stem: p for p in sorted(data_path("partitions").glob("*.csv"))}
        path = pick(self.source, tables, "partition table")
        cells = np.loadtxt(path, np.int64, comments=["#", "client"], delimiter=",")
        return cells[:, 1:]

    def owners(self, labels, clients, rng, coarse) -> np.ndarray:
        counts = self.counts()
        # a part of a set may lack the last classes
        total = np.bincount(labels, minlength=counts.shape[1])
        need(
            counts.shape == (clients, len(total)),
            f"The table {self.source} is for {len(counts)} clients and "
            f"{counts.shape[1]} classes, not for {clients} and {len(total)}.",
        )
        # in integers, so that nothing is rounded
        share, remainder = np.divmod(counts * total, counts.sum(0))
        rank = np.argsort(np.argsort(-remainder, axis=0, kind="stable"), axis=0)
        return _deal(labels, share + (rank < total - share.sum(0)), rng)


@dataclass(frozen=True, eq=False, repr=False)
class Assigned(Partition):
    """``owner`` int [n] is each training sample's client, -1 if it has none."""

    owner: np.ndarray

    def __repr__(self) -> str:
        return f"Assigned({self.clients} clients, {(self.owner >= 0).sum()} samples)"

    @property
    def clients(self) -> int:
        """Their number, one more than the largest in ``owner``."""
        return int(self.owner.max(initial=-1)) + 1

    def owners(self, labels, clients, rng, coarse) -> np.ndarray:
        return self.owner


def positions(lists: Any, count: int) -> Assigned:
    """The owners of ``count`` samples, from a list of positions for each client. A
    sample that is in no list has no owner.

    Examples
    --------
    >>> positions([[0, 2], [1]], 4).owner.tolist()
    [0, 1, 0, -1]
    """
    need(len(lists), "At least one client needs a list of positions.")
    owner = np.full(count, -1, np.int64)
    for k, numbers in enumerate(lists):
        try:
            i = np.asarray(numbers)
        except ValueError:  # arrays of several shapes, such as (x, y)
            i = np.empty(0)
        fits = i.ndim == 1 and i.size and i.dtype.kind in "iu"
        fits = fits and 0 <= i.min() and i.max() < count
        need(
            fits and len(np.unique(i)) == len(i) and (owner[i] < 0).all(),
            f"Client {k} has {short(numbers)}, not positions, 0 to {count - 1}, at "
            "least one a client, and never a sample twice: users= of fl.data.arrays "
            "takes the user of each sample, and fl.data.clients the data of each "
            "client.",
        )
        owner[i] = k
    return Assigned(owner)


iid, permuted, dirichlet, shards = Iid, Permuted, Dirichlet, Shards
classes, main_class, table = Classes, MainClass, Table

# name: (constructor, reader of its argument or None, an example)
PARTS = {
    "iid": (Iid, None, "iid"),
    "dirichlet": (Dirichlet, float, "dirichlet:0.5"),
    "shards": (Shards, int, "shards:2"),
    "classes": (Classes, None, "classes"),
    "main_class": (MainClass, float, "main_class:0.8"),
    "permuted": (Permuted, None, "permuted"),
    "table": (Table, str, "table:rpn_table4"),
}


def parse(text: str) -> Partition:
    """A partition from its text, a name of `PARTS` with an argument where it takes one.

    Examples
    --------
    >>> parse("dirichlet:0.5")
    Dirichlet(alpha=0.5, min_samples=1)
    """
    name, colon, argument = text.partition(":")
    make, read, example = pick(name, PARTS, "partition")
    if not colon and name not in ("dirichlet", "table"):
        return make()
    try:
        value = read(argument)
    except (TypeError, ValueError):  # no argument is taken, or it is no number
        raise ValueError(
            f"{text!r} is not a partition: write it like {example!r}."
        ) from None
    return make(value)
