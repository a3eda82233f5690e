"""What all tasks share: a data set, how it is split over clients, a network, and the passes over a
client's samples that training makes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Self

import numpy as np
import torch

from .. import models, rng, settings
from ..arguments import is_whole, short
from ..data import partition as partitions
from ..data.sources import Source
from ..errors import pick
from ..extensions import find
from .metrics import ByClient, Metric, Seen, find_metrics, measured, refuse_without_owners


@dataclass(frozen=True, eq=False)
class Task:
    """Made by functions such as ``classification``. Images stay on ``device`` as they are, mostly
    uint8, and are normalised when they are used.

    ``train`` and ``test`` are x [n, channels, height, width] and y [n, ...]: labels, or whatever
    the task's ``loss`` and ``evaluate`` take. ``owners`` is the client of each test sample, int64
    [n], -1 where it is nobody's; None if the data do not say whose they are."""

    dataset: str
    clients: int
    partition: Any
    seed: int
    network_name: Any
    augment: tuple
    device: torch.device
    source: Any = field(repr=False)
    split: Any = field(repr=False)
    train: tuple = field(repr=False)
    test: tuple = field(repr=False)
    owners: torch.Tensor | None = field(default=None, repr=False)
    metrics: dict[str, Metric] = field(default_factory=dict, repr=False)  # by their columns' names

    networks: ClassVar[Mapping[str, Callable]] = models.NETWORKS  # that a name may mean
    augmentations: ClassVar[Mapping[str, Callable]] = {}
    ignored: ClassVar[int] = -100  # in place of all of a sample's y if it is to count for nothing
    about: ClassVar[dict[str, str]] = {}  # what a history says besides, such as its main metric

    def loss(self, outputs: Any, y: torch.Tensor) -> torch.Tensor:
        """Mean over the batch of the samples' losses, separately for each leading client: outputs
        of a network for x [..., batch, ...], y [..., batch, ...] -> [...]."""
        raise NotImplementedError

    def evaluate(
        self,
        net: torch.nn.Module,
        batch: int = 512,
        client: int | None = None,
        predictions: ByClient | None = None,
    ) -> dict[str, Any]:
        """{"accuracy": the task's main metric, "loss", ...} on the test set, and the task's
        metrics; or, if there is a dict ``predictions``, what ``measure`` makes them of is put
        there, for this client or, under None, for all."""
        raise NotImplementedError

    def measure(self, predictions: ByClient) -> dict[str, Any]:
        """The task's metrics, from predictions for each client or, under None, for all."""
        if not self.metrics:
            return {}
        seen = Seen(predictions, self.test[1].cpu(), self.owners, self.held)
        return measured(self.metrics, seen)

    def augmented(
        self, name: str, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and their y, each image changed at random in this way."""
        return self.augmentations[name](x, y, generator)

    @property
    def held(self) -> torch.Tensor:
        """How much of each class a client holds, [clients, classes]."""
        raise NotImplementedError

    @classmethod
    def find_source(cls, dataset: Any, users: Any = None) -> Source:
        """The ``Source`` that a data set's name, or whatever is given for it, means. ``users``, of
        arrays only: whose each sample is."""
        raise NotImplementedError

    @classmethod
    def default_network(cls, source: Source) -> str:
        """The name of a small network for these images."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """(channels, height, width) of one image."""
        return tuple(self.train[0].shape[1:])

    @cached_property
    def sizes(self) -> list[int]:
        """Number of training images of each client."""
        return [len(i) for i in self.split.indices]

    @cached_property
    def statistics(self) -> torch.Tensor:
        """Mean and standard deviation of the training images, each [channels, 1, 1]; of vectors
        [1, 1, features]."""
        both = torch.tensor([self.source.mean, self.source.std], device=self.device)
        return both.view(2, self.shape[0], 1, -1)

    @cached_property
    def owned(self) -> list[torch.Tensor]:
        """The positions of each client's training images, int64."""
        return [torch.as_tensor(indices) for indices in self.split.indices]

    def network(
        self, network: str | Callable | None = None, shape: tuple[int, ...] | None = None
    ) -> torch.nn.Module:
        """The task's network; or another one, by name or as a function, and for inputs of another
        shape."""
        network = self.network_name if network is None else network
        build = find_network(network, self.networks)
        try:
            net = build(shape or self.shape, self.source.classes)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"The network {network!r} cannot be built for inputs of shape "
                f"{list(shape or self.shape)} ({short(str(error))})."
            ) from error
        if not isinstance(net, torch.nn.Module):
            raise ValueError(
                f"The network {network!r} is a {type(net).__name__}, not a torch.nn.Module."
            )
        return net

    def permute(self, x: torch.Tensor, client: int | None) -> torch.Tensor:
        """The client's own order of pixels, if the partition permutes them."""
        if client is None or self.split.permutations is None:
            return x
        order = torch.as_tensor(self.split.permutations[client], device=x.device)
        return x.flatten(-2)[..., order].reshape(x.shape)

    def inputs(self, x: torch.Tensor, client: int | None = None) -> torch.Tensor:
        """Images as they are stored -> normalised float32, with the client's own order of pixels if
        the partition permutes them."""
        mean, std = self.statistics
        return (self.permute(x, client) - mean) / std

    def gather(
        self, clients: list[int], orders: list[torch.Tensor], generators: list[torch.Generator]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass over the images of each client, client after client: images as they are
        stored, augmented and permuted, and their y.

        For each client, its order (a permutation of its n_k positions) and the generator that
        draws the augmentation."""
        picked = torch.cat(
            [self.owned[k][order] for k, order in zip(clients, orders, strict=True)]
        ).to(self.device)
        x, y = self.train[0][picked], self.train[1][picked]
        if self.augment or self.split.permutations is not None:
            sizes = [len(order) for order in orders]
            parts = list(zip(x.split(sizes), y.split(sizes), strict=True))
            for i, (client, generator) in enumerate(zip(clients, generators, strict=True)):
                for name in self.augment:
                    parts[i] = self.augmented(name, *parts[i], generator)
                parts[i] = self.permute(parts[i][0], client), parts[i][1]
            x, y = map(torch.cat, zip(*parts, strict=True))
        return x, y

    def epoch(
        self, client: int, order: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass over a client's images, normalised: ``order`` [n] is a permutation,
        ``generator`` draws the augmentation."""
        x, y = self.gather([client], [order], [generator])
        return self.inputs(x), y

    @cached_property
    def digests(self) -> dict[str, str]:
        """Short hashes of the images with their y, and of who holds which. Two tasks that are
        described alike may still be different, such as the two CIFAR-100s of ``data.sources``."""
        arrays: dict[str, Iterable[torch.Tensor]]
        arrays = {"images": (*self.train, *self.test), "clients": self.owned}
        if self.split.permutations is not None:
            arrays["permutations"] = map(torch.as_tensor, self.split.permutations)
        if self.owners is not None:
            arrays["owners"] = (self.owners,)
        return {name: _digest(tensors) for name, tensors in arrays.items()}

    def describe(self) -> dict[str, Any]:
        """What a history says about its task."""
        name = (
            self.network_name if isinstance(self.network_name, str) else self.network_name.__name__
        )
        return {
            "dataset": self.dataset,
            "clients": self.clients,
            "partition": repr(self.partition),
            "seed": self.seed,
            "network": name,
            "augment": list(self.augment),
            "train": len(self.train[1]),
            "test": len(self.test[1]),
            **({"metrics": list(self.metrics)} if self.metrics else {}),
            **({"note": self.source.note} if self.source.note else {}),
            **self.about,
        }

    @classmethod
    def make(
        cls,
        dataset: Any,
        clients: Any,
        partition: Any,
        seed: int,
        network: str | Callable | None,
        augment: Any,
        train: int | None,
        test: int | None,
        device: str | torch.device,
        metrics: Any,
    ) -> Self:
        """A task of this kind; the arguments are explained at ``classification``."""
        counted = is_whole(clients)
        clients = int(clients) if counted else clients
        if isinstance(clients, bool | float | None | dict) or (counted and clients < 1):
            raise ValueError(f"clients must be a whole number of at least 1, not {clients!r}.")
        if isinstance(clients, str) and clients != "users":
            raise ValueError(f'clients is a number, lists, a column or "users", not {clients!r}.')
        if not counted and (partition is not None or train is not None):
            raise ValueError(
                "Clients that are given leave no choice: neither partition nor train goes with "
                "them."
            )
        if isinstance(partition, str):
            partition = partitions.parse(partition)
        partition = partition or partitions.iid()
        if not isinstance(partition, partitions.Partition):
            raise ValueError(f"{short(partition)} is no partition (fedlearn.partition).")
        augment = (augment,) if isinstance(augment, str) else tuple(augment)
        for name in augment:
            pick(name, cls.augmentations, "augmentation")
        if network is not None:
            find_network(network, cls.networks)
        metrics, device = find_metrics(metrics), find_device(device)
        whole = isinstance(dataset, tuple) and not isinstance(dataset[0], tuple)  # split here
        users = None
        if whole and not counted and not isinstance(clients, str):
            users = partitions.given(clients, len(dataset[0])).owner
        source = cls.find_source(dataset, users)
        owners = None
        if not counted:
            named = users is not None or isinstance(clients, str)
            column = source.users if named else clients
            if column is None:
                raise ValueError(
                    f'{source.name} names no users, so clients="users" is not possible.'
                )
            given = partitions.Given(column) if users is not None else None
            partition = given or partitions.given(column, len(source.train_y))
            clients = partition.clients
            if named and source.test_users is not None:
                client_of = dict(zip(column.tolist(), partition.owner.tolist(), strict=True))
                owners = torch.tensor([client_of.get(u, -1) for u in source.test_users.tolist()])
        if owners is None:
            refuse_without_owners(metrics, source.name)
        shape = source.train_x.shape[1:]
        network = network or cls.default_network(source)
        if augment and min(shape[1:]) == 1:
            raise ValueError("crop and flip are for images, and these are vectors.")
        if source.labels is not None and isinstance(partition, partitions.Permuted):
            raise ValueError("The partition permuted would tear boxes and masks: choose another.")

        def keep(count, total, purpose):
            settings.kept(source.name, total, purpose, count)
            if count is None:
                return slice(None)
            return torch.randperm(total, generator=rng.generator(seed, purpose))[:count]

        chosen = keep(train, len(source.train_y), "train")
        kept = source.train_x[chosen].to(device), source.train_y[chosen].to(device)
        split = partition(
            source.column(partition.by)[chosen].numpy(),
            clients,
            rng.numpy_generator(seed, "partition"),
            coarse=source.coarse,
            pixels=int(np.prod(shape[1:])) if min(shape[1:]) > 1 else None,
        )
        chosen = keep(test, len(source.test_y), "test")
        kept_test = source.test_x[chosen].to(device), source.test_y[chosen].to(device)
        owners = None if owners is None else owners[chosen]
        return cls(
            *(source.name, clients, partition, seed, network, augment, device),
            *(source, split, kept, kept_test, owners, metrics),
        )


def find_network(network: str | Callable, known: Mapping[str, Callable]) -> Callable:
    """The function (shape, classes) -> module that a name means; with "@FILE" behind it the network
    starts from the weights in that file."""
    if callable(network):
        return network
    if not isinstance(network, str) or "@" not in network:
        return find(network, known, "network")
    name, _, file = network.partition("@")
    return models.starting_from(find(name, known, "network"), file)


def find_device(device: str | torch.device = "auto") -> torch.device:
    """The device of that name, or ``ValueError`` with what there is. "auto" is the GPU where there
    is one, else the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = ("cuda" if count else "cpu") if device == "auto" else str(device)
    gpus = [f"cuda:{i}" for i in range(count)]
    if name in ("cpu", *gpus) or (gpus and name == "cuda"):
        return torch.device(name)
    named = [f"{gpu} ({torch.cuda.get_device_name(gpu)})" for gpu in gpus]
    there = ", ".join(named) or f"no CUDA GPU that torch {torch.__version__} can use"
    raise ValueError(f"There is no device {name!r} here: this machine has cpu and {there}.")


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    hashed = blake2b(digest_size=8)
    for t in tensors:
        hashed.update(f"{t.dtype} {tuple(t.shape)}".encode())
        hashed.update(t.cpu().contiguous().numpy())
    return hashed.hexdigest()
