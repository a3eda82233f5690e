"""Clients that are given: lists of positions, a column of users, a partitioner of
flwr-datasets."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..arguments import short
from .split import Partition, Split, need


@dataclass(frozen=True, eq=False, repr=False)
class Given(Partition):
    """Who holds what is given: ``owner`` int [n] is each training sample's client, -1 if nobody
    holds it. ``given`` makes one."""

    owner: np.ndarray

    def __repr__(self) -> str:
        return f"Given({self.clients} clients, {(self.owner >= 0).sum()} samples)"

    @property
    def clients(self) -> int:
        """Their number, one more than the largest in ``owner``."""
        return int(self.owner.max(initial=-1)) + 1

    def __call__(
        self,
        labels: np.ndarray,
        clients: int,
        rng: np.random.Generator,
        coarse: np.ndarray | None = None,
        pixels: int | None = None,
    ) -> Split:
        need(
            (len(labels), clients) == (len(self.owner), self.clients),
            f"{self} tells of {len(self.owner)} training samples, and is not for {clients} clients "
            f"with {len(labels)}.",
        )
        order = np.argsort(self.owner, kind="stable")
        sizes = np.bincount(self.owner + 1, minlength=clients + 1)
        need(
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
        need(
            len(clients) == count and not any(lists),
            f"clients are lists of positions, or a column with the user of each of {count} "
            f"samples, not {len(clients)} of {short(clients[0] if clients else None)}.",
        )
        column = np.array(clients)
        need(
            column.ndim == 1 and (column.dtype.kind in "iuSU"),
            f"A column of users holds whole numbers or texts, not {short(clients[0])}.",
        )
        return Given(np.unique(column, return_inverse=True)[1].astype(np.int64))
    owner = np.full(count, -1, np.int64)
    for k, positions in enumerate(clients):
        own = np.asarray(positions)
        need(own.size, f"Client {k} is given no sample: leave it out, or give it some.")
        need(
            own.ndim == 1 and own.dtype.kind in "iu",
            f"Client {k} is given a list of positions, whole numbers, not {short(positions)}.",
        )
        wrong = own[(own < 0) | (own >= count)]
        need(
            not len(wrong),
            f"Client {k} is given sample {wrong[:1].sum()}, but samples are 0 to {count - 1}.",
        )
        twice = owner[own] >= 0
        twice[np.setdiff1d(np.arange(len(own)), np.unique(own, return_index=True)[1])] = True
        need(
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
        need(
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
        need(
            one.num_partitions == clients,
            f"{self} makes {one.num_partitions} partitions, not {clients}.",
        )
        own = [np.array(one.load_partition(k)["index"], np.int64) for k in range(clients)]
        return given(own, len(labels))(labels, clients, rng)


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) or (
        isinstance(value, list | tuple) and len(value) < 50 and all(map(_plain, value))
    )
