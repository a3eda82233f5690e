"""What all tasks share: data, their split over clients, a network, and the passes over
a client's samples that training makes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from .. import models, rng
from ..data import makers
from ..data import partition as partitions
from ..data.sources import Source
from ..errors import check_whole, pick, short
from ..extensions import find
from .metrics import (
    METRICS,
    ByClient,
    Metric,
    Seen,
    find_metrics,
    measured,
    refuse_without_owners,
)


@dataclass(frozen=True, eq=False)
class Task:
    """Made by functions such as ``classification``. Samples stay on ``device`` as they
    are, mostly uint8, and are normalised when they are used.

    ``train`` and ``test`` are x [n, channels, height, width] and y [n, ...]: labels, or
    whatever the task's ``loss`` and ``score`` take. ``owners`` is the client of each
    test sample, int64 [n], -1 where it is nobody's; None if the data do not say. With
    ``validation`` the test samples are a tenth of the training samples, on which nobody
    trains.
    """

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
    owners: Tensor | None = field(default=None, repr=False)
    validation: bool = False
    metrics: dict[str, Metric] = field(default_factory=dict, repr=False)  # by columns

    default_data: ClassVar[str] = "digits"
    networks: ClassVar[Mapping[str, Callable]] = models.NETWORKS  # by name
    augmentations: ClassVar[Mapping[str, Callable]] = {}
    known_metrics: ClassVar[Mapping[str, Metric]] = METRICS
    ignored: ClassVar[float] = -100  # fills the y of a sample that counts for nothing
    batch: ClassVar[int] = 512  # of evaluation
    right: ClassVar[Callable | None] = None  # see ``metrics.Seen``
    about: ClassVar[dict[str, str]] = {}  # further entries of a history's ``meta``

    # What kinds of task differ in:

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        """The mean of a batch's losses, for each leading client: outputs of a network
        for x [..., batch, ...], y [..., batch, ...] -> [...]."""
        raise NotImplementedError

    def score(
        self, net: nn.Module, client: int | None, predictions: ByClient
    ) -> dict[str, float]:
        """{"accuracy": the task's main metric, "loss", ...} of a network in evaluation
        mode on the test set. ``predictions`` receives, under ``client``, the input of
        ``measure``."""
        raise NotImplementedError

    @staticmethod
    def find_source(dataset: Any) -> Source:
        """The data that a set's name means, or that a maker has made."""
        return makers.find(dataset)

    @classmethod
    def default_network(cls, source: Source) -> str:
        """The name of a small network for these samples."""
        return next(iter(cls.networks))

    def classes(self, y: Tensor) -> Tensor:
        """The class of each image, object or pixel in y."""
        return y.flatten()

    def read(self, outputs: Any) -> Any:
        """A network's answer to each sample: of scores the best class."""
        return outputs.argmax(-1)

    def inputs(self, x: Tensor, client: int | None = None) -> Tensor:
        """Stored samples -> normalised float32, with the client's own order of pixels
        if the partition permutes them."""
        mean, std = self.statistics
        return (self.permute(x, client) - mean) / std

    # What they share:

    def predict(self, net: nn.Module, x: Any) -> Any:
        """A network's answers to samples in the form of the data, such as classes or
        boxes. A table's columns are matched by their names."""
        samples = makers.samples_like(self.source, x)
        try:
            with models.evaluating(net.to(self.device)), torch.no_grad():
                stored = torch.as_tensor(samples).to(self.device)
                return self.read(net(self.inputs(stored)))
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValueError(
                f"Samples {list(samples.shape)} do not fit this network "
                f"({models.one_line(error)})."
            ) from error

    def evaluate(
        self,
        net: nn.Module,
        client: int | None = None,
        predictions: ByClient | None = None,
    ) -> dict[str, Any]:
        """Measure a network on the test set: ``score`` and the task's metrics. A caller
        that brings ``predictions`` collects them by client for ``measure``. ``client``
        owns the network or the order of pixels; None: everybody's."""
        collected: ByClient = {} if predictions is None else predictions
        with models.evaluating(net), torch.inference_mode():
            result = self.score(net, client, collected)
        if predictions is not None:
            return result
        return result | self.measure(collected)

    def measure(self, predictions: ByClient) -> dict[str, Any]:
        """The task's metrics, from predictions by client or, under None, for all."""
        if not self.metrics:
            return {}
        return measured(self.metrics, self.seen(predictions))

    def seen(self, predictions: ByClient) -> Seen:
        """What metrics see."""
        y = self.test[1].cpu()
        return Seen(predictions, y, self.owners, self.held, self.right)

    @cached_property
    def held(self) -> Tensor:
        """How much of each class every client holds, int64 [clients, classes]."""
        y = self.train[1].cpu()
        n = self.source.classes
        counts = []
        for owned in self.owned:
            count = torch.bincount(self.classes(y[owned]), minlength=n)
            counts.append(count[:n])
        return torch.stack(counts)

    @property
    def example(self) -> Tensor:
        """A training sample as a network takes it, [1, ...]."""
        return self.inputs(self.train[0][:1])

    @property
    def shape(self) -> tuple[int, ...]:
        """(channels, height, width) of one image."""
        return tuple(self.train[0].shape[1:])

    @cached_property
    def sizes(self) -> list[int]:
        """Number of training samples of each client."""
        return [len(indices) for indices in self.split.indices]

    @cached_property
    def statistics(self) -> Tensor:
        """Mean and standard deviation, each [channels, 1, 1], or [1, 1, features]."""
        values = [self.source.mean, self.source.std]
        return torch.tensor(values, device=self.device).view(2, self.shape[0], 1, -1)

    @cached_property
    def owned(self) -> list[Tensor]:
        """The positions of each client's training samples, int64."""
        return [torch.as_tensor(indices) for indices in self.split.indices]

    def network(
        self,
        network: str | Callable | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> nn.Module:
        """A new network on the task's device: the task's, or that of a name or
        function, for inputs of the samples' shape or of another; ``ValueError`` if it
        cannot be built."""
        network = self.network_name if network is None else network
        shape = shape or self.shape
        build = find_network(network, self.networks)
        name = f"The network {shown(network)!r}"
        try:
            net = build(shape, self.source.classes)
        except Exception as error:
            raise ValueError(
                f"{name} cannot be built for inputs of shape {list(shape)} and "
                f"{self.source.classes} classes ({models.one_line(error)})."
            ) from error
        if not isinstance(net, nn.Module):
            raise ValueError(f"{name} is a {type(net).__name__}, not a nn.Module.")
        if any(p.is_meta for p in net.parameters()):  # ``try_network`` refuses it
            return net
        return net.to(self.device)

    def try_network(self) -> None:
        """``ValueError`` if a user's network cannot be trained on these samples."""
        with rng.scope(self.seed, "trial"):
            net = self.network()
        name = f"The network {shown(self.network_name)!r}"
        models.check_tensors(name, net)
        x, y = (t[:2] for t in self.test)
        x = self.inputs(x)
        try:
            with models.evaluating(net), torch.no_grad():
                outputs = net(x)
        except Exception as error:
            raise ValueError(
                f"{name} does not take a batch of {str(x.dtype)[6:]} {list(x.shape)} "
                f"({models.one_line(error)})."
            ) from error
        self.check_outputs(name, outputs, y)

    def check_outputs(self, name: str, outputs: Any, y: Tensor) -> None:
        """``ValueError`` unless a network gives a score a class: for y [n, ...] scores
        [n, classes, ...]. More scores are no error: data may lack the last classes."""
        classes = self.source.classes
        shape = list(getattr(outputs, "shape", ()))
        enough = len(shape) > 1 and shape[1] >= classes
        if not enough or [shape[0], *shape[2:]] != list(y.shape):
            raise ValueError(
                f"{name} gives {shape or type(outputs).__name__} for {len(y)} samples "
                f"of {classes} classes: {[len(y), classes, *y.shape[1:]]} is needed, a "
                "score for each class, as of a last layer nn.Linear(..., classes)."
            )
        if not outputs.isfinite().all():
            raise ValueError(f"{name} gives scores that are NaN or infinite.")

    def tested(
        self, net: nn.Module, client: int | None = None
    ) -> Iterator[tuple[Any, Tensor]]:
        """A network's outputs for the test set, ``batch`` samples at a time, and their
        y."""
        for x, y in zip(*(t.split(self.batch) for t in self.test), strict=True):
            yield net(self.inputs(x, client)), y

    def permute(self, x: Tensor, client: int | None) -> Tensor:
        """The client's own order of pixels, if the partition permutes them."""
        if client is None or self.split.permutations is None:
            return x
        order = torch.as_tensor(self.split.permutations[client], device=x.device)
        return x.flatten(-2)[..., order].reshape(x.shape)

    def gather(
        self,
        clients: list[int],
        orders: list[Tensor],
        generators: list[torch.Generator],
    ) -> tuple[Tensor, Tensor]:
        """One pass over the samples of several clients, client after client: as stored,
        augmented and permuted, [sum of n_k, channels, height, width], and their y. Each
        client has a permutation of its n_k positions, and a generator for
        augmentation."""
        orders = [
            self.owned[k][order] for k, order in zip(clients, orders, strict=True)
        ]
        rows = torch.cat(orders).to(self.device)
        x, y = self.train[0][rows], self.train[1][rows]
        if not self.augment and self.split.permutations is None:
            return x, y
        sizes = [len(order) for order in orders]
        xs, ys = list(x.split(sizes)), list(y.split(sizes))
        for i, client in enumerate(clients):
            for name in self.augment:
                xs[i], ys[i] = self.augmentations[name](xs[i], ys[i], generators[i])
            xs[i] = self.permute(xs[i], client)
        return torch.cat(xs), torch.cat(ys)

    def epoch(
        self, client: int, order: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """One pass over a client's samples, normalised, in this ``order``; see
        ``gather``."""
        x, y = self.gather([client], [order], [generator])
        return self.inputs(x), y

    @cached_property
    def digests(self) -> dict[str, str]:
        """Short hashes of the samples with their y, and of who holds which. Two tasks
        of one description may differ, such as the two CIFAR-100s of
        ``data.sources``."""
        arrays: dict[str, Iterable[Tensor]] = {}
        arrays["images"] = (*self.train, *self.test)
        arrays["clients"] = self.owned
        if self.split.permutations is not None:
            arrays["permutations"] = map(torch.as_tensor, self.split.permutations)
        if self.owners is not None:
            arrays["owners"] = (self.owners,)
        return {name: _digest(tensors) for name, tensors in arrays.items()}

    def describe(self) -> dict[str, Any]:
        """What a history says about its task."""
        entries = {
            "dataset": self.dataset,
            "clients": self.clients,
            "partition": repr(self.partition),
            "seed": self.seed,
            "network": shown(self.network_name),
            "augment": list(self.augment),
            "train": len(self.train[1]),
            "test": len(self.test[1]),
        }
        if self.validation:
            entries["validation"] = True
        if self.metrics:
            entries["metrics"] = list(self.metrics)
        if self.source.note:
            entries["note"] = self.source.note
        return entries | self.about

    @classmethod
    def make(
        cls,
        dataset: Any = None,
        clients: Any = None,
        partition: Any = None,
        seed: int = 0,
        network: str | Callable | None = None,
        augment: Any = (),
        train: int | None = None,
        test: int | None = None,
        device: str | torch.device = "auto",
        metrics: Any = (),
        validation: bool = False,
    ) -> Self:
        """A task of this kind; the arguments are explained at ``classification``."""
        check_whole("seed", seed, least=0)
        partition = find_partition(partition)
        augment = (augment,) if isinstance(augment, str) else tuple(augment)
        for name in augment:
            pick(name, cls.augmentations, "augmentation")
        if network is not None:
            find_network(network, cls.networks)
        metrics = find_metrics(metrics, cls.known_metrics)
        device = find_device(device)
        if validation and test is not None:
            raise ValueError(
                "With validation no test image is looked at: leave test out."
            )

        source = cls.find_source(cls.default_data if dataset is None else dataset)
        owners = None
        assigned = holders(source, clients)
        if assigned is None:
            clients = 10 if clients is None else int(clients)
            partition = partition or partitions.iid()
        elif partition is not None or train is not None or validation:
            raise ValueError(
                f"{source.name} says which client holds what, so neither partition nor "
                "train nor validation goes with it: clients=10 deals samples out anew."
            )
        else:
            clients = assigned.clients
            partition = assigned
            if assigned.owner is source.users and source.test_users is not None:
                owners = torch.as_tensor(source.test_users)
        if owners is None:
            refuse_without_owners(metrics, source.name)
        size = source.train_x.shape[2:]
        if augment and min(size) == 1:
            raise ValueError("crop and flip are for images, and these are vectors.")
        if source.labels is not None and isinstance(partition, partitions.Permuted):
            raise ValueError("The partition permuted is for classification only.")

        trained = keep(source.name, len(source.train_y), train, seed, "train")
        tested = keep(source.name, len(source.test_y), test, seed, "test")
        test_x, test_y = source.test_x, source.test_y
        if validation:
            drawn = torch.arange(len(source.train_y))[trained]
            count = len(drawn) // 10
            if not count:
                raise ValueError(
                    f"{source.name} has {len(drawn)} training images here, too few to "
                    "hold a tenth out."
                )
            order = torch.randperm(
                len(drawn), generator=rng.generator(seed, "validation")
            )
            tested, trained = drawn[order].tensor_split([count])
            test_x, test_y = source.train_x, source.train_y
        task = cls(
            dataset=source.name,
            clients=clients,
            partition=partition,
            seed=seed,
            network_name=network or cls.default_network(source),
            augment=augment,
            device=device,
            source=source,
            split=partition(
                source.column(partition.by)[trained].numpy(),
                clients,
                rng.numpy_generator(seed, "partition"),
                coarse=source.coarse,
                pixels=size.numel() if min(size, default=1) > 1 else None,
            ),
            train=(
                source.train_x[trained].to(device),
                source.train_y[trained].to(device),
            ),
            test=(test_x[tested].to(device), test_y[tested].to(device)),
            owners=None if owners is None else owners[tested],
            metrics=metrics,
            validation=validation,
        )
        if callable(network) or network not in (None, *cls.networks):
            task.try_network()
        return task


def keep(name: str, total: int, count: int | None, seed: int, purpose: str) -> Any:
    """The positions of ``count`` of a set's samples, drawn from the seed; all for
    None."""
    if count is None:
        return slice(None)  # which copies nothing
    check_whole(f"{purpose} of {name}", count, most=total)
    return torch.randperm(total, generator=rng.generator(seed, purpose))[:count]


def holders(source: Source, clients: Any) -> partitions.Assigned | None:
    """Who holds what, if the data or ``clients`` say so; None if samples are dealt
    out."""
    users = isinstance(clients, str) and clients == "users"
    if users and source.users is None:
        raise ValueError(
            f'{source.name} names no users for clients="users": users= of '
            "fl.data.arrays and fl.data.dataset, and user= of fl.data.table, name them."
        )
    if users or clients is None:
        return None if source.users is None else partitions.Assigned(source.users)
    if isinstance(clients, list | tuple):
        return partitions.positions(clients, len(source.train_y))
    if not (isinstance(clients, str) or hasattr(clients, "__len__")):
        check_whole("clients", clients)
        return None
    raise ValueError(
        'clients must be a whole number of at least 1, "users", or a list of positions '
        f"for each client, not {short(clients)}: users= of fl.data.arrays takes a name "
        "for each sample."
    )


def find_partition(partition: Any) -> partitions.Partition | None:
    """The partition that a text means, or itself."""
    if isinstance(partition, str):
        return partitions.parse(partition)
    if not isinstance(partition, partitions.Partition | None):
        name = getattr(partition, "__name__", short(partition))
        call = f": call it, as in {name.lower()}(...)" if callable(partition) else ""
        raise ValueError(f"{name} is no partition of fl.partition{call}.")
    return partition


def find_network(network: str | Callable, known: Mapping[str, Callable]) -> Callable:
    """What a name means; with "@FILE" the network starts from the weights in that
    file."""
    if isinstance(network, nn.Module):
        raise ValueError(
            "A network is a function (shape, classes) -> module, so every run begins "
            f"anew, not a module: of this {type(network).__name__}, lambda shape, "
            "classes: deepcopy(net)."
        )
    if callable(network):
        return network
    if not isinstance(network, str):
        return find(network, known, "network")
    name, at, file = network.partition("@")
    build = find(name, known, "network")
    return models.starting_from(build, file) if at else build


def shown(network: str | Callable) -> str:
    """A network's name, for a sentence."""
    if isinstance(network, str):
        return network
    return getattr(network, "__name__", None) or type(network).__name__


def find_device(device: str | torch.device = "auto") -> torch.device:
    """The device of that name; "auto" is the GPU where there is one, else the CPU."""
    names = []
    if torch.cuda.is_available() and torch.cuda.device_count():
        count = torch.cuda.device_count()
        names = ["cuda", *(f"cuda:{i}" for i in range(count))]
    name = [*names, "cpu"][0] if device == "auto" else str(device)
    names = ["cpu", *names]
    if torch.backends.mps.is_available():
        names.append("mps")
    return torch.device(pick(name, {n: n for n in names}, "device"))


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = blake2b(digest_size=8)
    for t in tensors:
        digest.update(f"{t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.cpu().contiguous().numpy())
    return digest.hexdigest()
