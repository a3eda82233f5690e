"""Which client holds which training sample.

``dirichlet(0.5)(labels, clients=10, rng=rng)`` gives a `Split`. Every partition is a disjoint
cover of the training set with no empty client: each one answers "whose is sample i?" with one
array, so neither gap nor overlap can arise."""

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedlearn.arguments import Checked, short
from fedlearn.data.sources import data_path
from fedlearn.errors import pick


def _need(condition, sentence):
    if not condition:
        raise ValueError(sentence)


@dataclass(frozen=True, eq=False)
class Split:
    """For each client its sample indices, int64 ascending; and its pixel permutation [height *
    width], or None."""

    indices: list
    permutations: list | None = None


def _deal(labels, counts, rng):
    """The owner of each sample when client k gets ``counts[k, c]`` random samples of class c."""
    owner = np.empty(len(labels), np.int64)
    for c in range(counts.shape[1]):
        owner[rng.permutation(np.flatnonzero(labels == c))] = np.repeat(
            np.arange(len(counts)), counts[:, c]
        )
    return owner


class Partition(Checked):
    """Base of all partitions: checks, the call, and the grouping of samples by owner."""

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
        _need(clients >= 1, f"A federation needs at least one client, not {clients}.")
        _need(
            clients <= len(labels),
            f"{clients} clients cannot share {len(labels)} samples: use fewer clients.",
        )
        owner = self.owners(labels, clients, rng, coarse)
        sizes = np.bincount(owner, minlength=clients)
        _need(
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


@dataclass(frozen=True)
class Iid(Partition):
    """Shuffle and cut into equal parts (sizes differ by one at most)."""

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        return rng.permutation(np.arange(len(labels)) % clients)


@dataclass(frozen=True)
class Permuted(Iid):
    """IID, but each client sees its pixels in an order of its own: permuted MNIST of FedFusion."""

    def permutations(
        self, clients: int, rng: np.random.Generator, pixels: int | None
    ) -> list | None:
        _need(
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
        _need(
            0 < self.alpha < math.inf,
            f"Dirichlet's alpha must be a positive number, not {self.alpha}.",
        )
        _need(self.min_samples >= 1, f"min_samples must be at least 1, not {self.min_samples}.")

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        sizes = np.bincount(labels)
        for _ in range(100):
            cuts = np.floor(
                np.cumsum(rng.dirichlet([self.alpha] * clients, len(sizes)), 1) * sizes[:, None]
            )
            cuts[:, -1] = sizes  # the shares add up to 1 only nearly
            counts = np.diff(np.minimum(cuts, sizes[:, None]), axis=1, prepend=0).astype(np.int64).T
            if counts.sum(1).min() >= self.min_samples:
                return _deal(labels, counts, rng)
        raise ValueError(
            f"100 draws of {self} never gave each of {clients} clients {self.min_samples} "
            f"of {len(labels)} samples: raise alpha, lower min_samples or use fewer clients."
        )


@dataclass(frozen=True)
class Shards(Partition):
    """McMahan et al.: sort by label, cut into clients * per_client shards, deal each client
    per_client of them."""

    per_client: int = 2

    def __post_init__(self) -> None:
        _need(
            self.per_client >= 1 and self.per_client == int(self.per_client),
            f"A client needs a whole number of shards, one or more, not {self.per_client}.",
        )

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        count = clients * self.per_client
        _need(
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
    _need(
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
    others.

    Ten clients, CIFAR-10: 4,000 of the own class and 111 or 112 of every other. CIFAR-100 with
    ``coarse``: 400 each of ten classes (two super-classes) and 11 or 12 of every other. 5,000
    samples a client in both."""

    share: float = 0.8

    def __post_init__(self) -> None:
        _need(
            0 < self.share <= 1,
            f"The main class's share must be above 0 and at most 1, not {self.share}.",
        )

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        owner = _class_owner(labels, clients, coarse)
        total = np.bincount(labels, minlength=len(owner))
        counts = np.zeros((clients, len(owner)), np.int64)
        for c, mine in enumerate(owner):
            counts[mine, c] = round(self.share * total[c]) if clients > 1 else total[c]
            each, extra = divmod(total[c] - counts[mine, c], max(clients - 1, 1))
            # The others, from a starting point that moves on with each class, so that the odd
            # samples spread too.
            others = (
                mine
                + 1
                + (np.arange(clients - 1) + np.sum(owner[:c] == mine)) % max(clients - 1, 1)
            ) % clients
            counts[others, c] = each + (np.arange(clients - 1) < extra)
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
            _need(
                counts.ndim == 2 and counts.min() >= 0 and counts.sum(0).all(),
                "a negative count or an empty class",
            )
            _need(counts.max() < 2**31, "a count is larger than 2,147,483,647")
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"{path} is not a table of counts, clients by classes ({short(str(error))})."
            ) from error
        return counts

    def owners(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, coarse: np.ndarray | None
    ) -> np.ndarray:
        counts, total = self.counts(), np.bincount(labels)
        _need(
            counts.shape == (clients, len(total)),
            f"The table {self.source} is for {counts.shape[0]} clients "
            f"and {counts.shape[1]} classes, not for {clients} and {len(total)}.",
        )
        share, left = np.divmod(counts * total, counts.sum(0))  # in integers: no rounding
        rank = np.argsort(np.argsort(-left, axis=0, kind="stable"), axis=0)
        return _deal(labels, share + (rank < total - share.sum(0)), rng)


@dataclass(frozen=True, eq=False, repr=False)
class Given(Partition):
    """Who holds what is given: ``owner`` int [n] is each training sample's client, -1 if nobody
    holds it. ``given`` makes one."""

    owner: np.ndarray

    def __repr__(self) -> str:
        return f"Given({self.clients} clients, {(self.owner >= 0).sum()} samples)"

    @property
    def clients(self) -> int:
        """Their number: one more than the largest in ``owner``."""
        return int(self.owner.max(initial=-1)) + 1

    def __call__(
        self,
        labels: np.ndarray,
        clients: int,
        rng: np.random.Generator,
        coarse: np.ndarray | None = None,
        pixels: int | None = None,
    ) -> Split:
        _need(
            (len(labels), clients) == (len(self.owner), self.clients),
            f"{self} tells of {len(self.owner)} training samples, and is not for {clients} clients "
            f"with {len(labels)}.",
        )
        order = np.argsort(self.owner, kind="stable")
        sizes = np.bincount(self.owner + 1, minlength=clients + 1)
        _need(
            clients and sizes[1:].all(),
            f"Client {sizes[1:].argmin() if clients else 0} is given no training sample: leave it "
            "out, or give it some.",
        )
        return Split(np.split(order, np.cumsum(sizes)[:-1])[1:])


def given(clients: Any, count: int) -> Given:
    """Who holds which of ``count`` samples: a list of their positions for each client, or a column
    that names each sample's user, who then is a client (the natural partition; clients are numbered
    in the order of the sorted names). A sample that is in no list is nobody's."""
    if isinstance(clients, torch.Tensor):
        clients = clients.cpu().numpy()
    clients = list(clients)
    lists = [hasattr(c, "__len__") and not isinstance(c, str | bytes) for c in clients]
    if not all(lists) or not clients:
        _need(
            len(clients) == count and not any(lists),
            f"clients are lists of positions, or a column with the user of each of {count} "
            f"samples, not {len(clients)} of {short(clients[0] if clients else None)}.",
        )
        column = np.array(clients)
        _need(
            column.ndim == 1 and (column.dtype.kind in "iuSU"),
            f"A column of users holds whole numbers or texts, not {short(clients[0])}.",
        )
        return Given(np.unique(column, return_inverse=True)[1].astype(np.int64))
    owner = np.full(count, -1, np.int64)
    for k, positions in enumerate(clients):
        own = np.asarray(positions)
        _need(own.size, f"Client {k} is given no sample: leave it out, or give it some.")
        _need(
            own.ndim == 1 and own.dtype.kind in "iu",
            f"Client {k} is given a list of positions, whole numbers, not {short(positions)}.",
        )
        wrong = own[(own < 0) | (own >= count)]
        _need(
            not len(wrong),
            f"Client {k} is given sample {wrong[:1].sum()}, but samples are 0 to {count - 1}.",
        )
        twice = owner[own] >= 0
        twice[np.setdiff1d(np.arange(len(own)), np.unique(own, return_index=True)[1])] = True
        _need(
            not twice.any(),
            f"Sample {own[twice][:1].sum()} is given twice, the second time to client {k}.",
        )
        owner[own] = k
    return Given(owner)


@dataclass(frozen=True, eq=False, repr=False)
class Flwr(Partition):
    """A partitioner of the package flwr-datasets, such as
    ``flwr(PathologicalPartitioner(10, "label", 2))``. It is handed a data set with the columns
    "label" and "index"; a copy of it, so that it can be used again. It draws from a seed of its
    own, not the task's."""

    partitioner: Any

    def __repr__(self) -> str:
        values = {n.strip("_"): v for n, v in vars(self.partitioner).items()}
        plain = (
            (n, v.tolist() if isinstance(v, np.ndarray) else v)
            for n, v in sorted(values.items(), key=lambda i: i[0])
        )
        own = ", ".join(f"{n}={v!r}" for n, v in plain if _plain(v))
        return f"Flwr({type(self.partitioner).__name__}({own}))"

    def __post_init__(self) -> None:
        _need(
            hasattr(self.partitioner, "load_partition"),
            f"A partitioner of flwr-datasets has load_partition, unlike {short(self.partitioner)}.",
        )

    def __call__(
        self,
        labels: np.ndarray,
        clients: int,
        rng: np.random.Generator,
        coarse: np.ndarray | None = None,
        pixels: int | None = None,
    ) -> Split:
        from datasets import Dataset

        one = copy.deepcopy(self.partitioner)
        one.dataset = Dataset.from_dict({"label": labels, "index": np.arange(len(labels))})
        _need(
            one.num_partitions == clients,
            f"{self} makes {one.num_partitions} partitions, not {clients}.",
        )
        own = [np.array(one.load_partition(k)["index"], np.int64) for k in range(clients)]
        return given(own, len(labels))(labels, clients, rng)


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) or (
        isinstance(value, list | tuple) and len(value) < 50 and all(map(_plain, value))
    )


iid, permuted, dirichlet, shards = Iid, Permuted, Dirichlet, Shards
classes, main_class, table, flwr = Classes, MainClass, Table, Flwr

# name: (constructor, how its argument is read, an example); None where there is no argument.
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
    """``"dirichlet:0.5"`` -> ``dirichlet(0.5)``: a name of `PARTS`, with an argument where it
    takes one."""
    name, colon, argument = text.partition(":")
    make, read, example = pick(name, PARTS, "partition")
    try:
        value = [read(argument)] if colon else []
    except (TypeError, ValueError):
        raise ValueError(f"{text!r} is not a partition: write it like {example!r}.") from None
    _need(
        value or name not in ("dirichlet", "table"),
        f"{text!r} lacks its argument: write it like {example!r}.",
    )
    return make(*value)
