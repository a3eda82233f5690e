"""What all tasks share: a data set, how it is split over clients, a network, and the passes over a
client's samples that training makes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from .. import models, rng, settings
from ..arguments import is_whole, short
from ..data import makers
from ..data import partition as partitions
from ..data.sources import Source
from ..errors import pick
from ..extensions import find
from .metrics import (
    METRICS,
    ByClient,
    Metric,
    Seen,
    find_metrics,
    measured,
    per_client,
    refuse_without_owners,
)


@dataclass(frozen=True, eq=False)
class Task:
    """Made by functions such as ``classification``. Images stay on ``device`` as they are, mostly
    uint8, and are normalised when they are used.

    ``train`` and ``test`` are x [n, channels, height, width] and y [n, ...]: labels, or whatever
    the task's ``loss`` and ``score`` take. ``owners`` is the client of each test sample, int64
    [n], -1 where it is nobody's; None if the data do not say whose they are. With ``validation``
    the test samples are a tenth of the training samples, on which nobody trains."""

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
    metrics: dict[str, Metric] = field(default_factory=dict, repr=False)  # by their columns' names

    default_data: ClassVar[str] = "digits"
    networks: ClassVar[Mapping[str, Callable]] = models.NETWORKS  # that a name may mean
    augmentations: ClassVar[Mapping[str, Callable]] = {}
    known_metrics: ClassVar[Mapping[str, Metric]] = METRICS
    ignored: ClassVar[float] = -100  # in place of all of a sample's y if it is to count for nothing
    batch: ClassVar[int] = 512  # of evaluation
    right: ClassVar[Callable | None] = None  # see ``metrics.Seen``
    about: ClassVar[dict[str, str]] = {}  # what a history says besides, such as its main metric

    # What kinds of task differ in:

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        """Mean over the batch of the samples' losses, separately for each leading client: outputs
        of a network for x [..., batch, ...], y [..., batch, ...] -> [...]."""
        raise NotImplementedError

    def score(self, net: nn.Module, client: int | None, predictions: ByClient) -> dict[str, float]:
        """{"accuracy": the task's main metric, "loss", ...} of a network in evaluation mode on the
        test set. What ``measure`` needs is put into ``predictions``, under ``client``."""
        raise NotImplementedError

    @staticmethod
    def find_source(dataset: Any) -> Source:
        """The data that a set's name means, or that a maker has given."""
        return makers.find(dataset)

    @classmethod
    def default_network(cls, source: Source) -> str:
        """The name of a small network for these images."""
        return next(iter(cls.networks))

    def classes(self, y: Tensor) -> Tensor:
        """The class of all that y shows: images, objects, or pixels."""
        return y.flatten()

    def read(self, outputs: Any) -> Any:
        """What a network's outputs say: of scores the best class of each sample."""
        return outputs.argmax(-1)

    # What they share:

    def predict(self, net: nn.Module, x: Any) -> Any:
        """What a network, such as ``history.network()``, says of samples as the data have them:
        their classes, numbers, boxes or masks."""
        samples = self.samples(x)
        try:
            with models.evaluating(net.to(self.device)), torch.no_grad():
                return self.read(net(self.inputs(torch.as_tensor(samples).to(self.device))))
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValueError(
                f"Samples {list(samples.shape)} do not fit a network for {list(self.shape)} "
                f"({models.one_line(error)})."
            ) from error

    def samples(self, x: Any) -> np.ndarray:
        """New samples as the task's own are stored."""
        return makers.samples_like(self.source, x)

    def evaluate(
        self, net: nn.Module, client: int | None = None, predictions: ByClient | None = None
    ) -> dict[str, Any]:
        """Measure a network on the test set: what ``score`` gives, and the task's metrics; with
        ``predictions``, which collects by client, ``measure`` makes them. ``client``: whose network
        it is, or whose order of pixels counts; None: everybody's."""
        collected: ByClient = {} if predictions is None else predictions
        with models.evaluating(net), torch.inference_mode():
            result = self.score(net, client, collected)
        return result if predictions is not None else result | self.measure(collected)

    def measure(self, predictions: ByClient) -> dict[str, Any]:
        """The task's metrics, from predictions for each client or, under None, for all."""
        return measured(self.metrics, self.seen(predictions)) if self.metrics else {}

    def seen(self, predictions: ByClient) -> Seen:
        """What metrics see."""
        return Seen(predictions, self.test[1].cpu(), self.owners, self.held, self.right)

    def own_accuracy(self, net: nn.Module, client: int) -> float:
        """The accuracy of a client's network on its own test samples, NaN if it has none."""
        predictions: ByClient = {}
        self.evaluate(net, client, predictions)
        return per_client(self.seen(predictions))[client]

    @cached_property
    def held(self) -> Tensor:
        """How much of each class (images, objects or pixels) a client holds, [clients, classes]."""
        y, n = self.train[1].cpu(), self.source.classes
        counts = [torch.bincount(self.classes(y[mine]), minlength=n)[:n] for mine in self.owned]
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
        """Number of training images of each client."""
        return [len(i) for i in self.split.indices]

    @cached_property
    def statistics(self) -> Tensor:
        """Mean and standard deviation, each [channels, 1, 1]; of vectors [1, 1, features]."""
        both = torch.tensor([self.source.mean, self.source.std], device=self.device)
        return both.view(2, self.shape[0], 1, -1)

    @cached_property
    def owned(self) -> list[Tensor]:
        """The positions of each client's training images, int64."""
        return [torch.as_tensor(indices) for indices in self.split.indices]

    def network(
        self, network: str | Callable | None = None, shape: tuple[int, ...] | None = None
    ) -> nn.Module:
        """A new network where the images are: the task's, or that of a name or function, for inputs
        of the images' shape or of another; ``ValueError`` if it cannot be built."""
        network = self.network_name if network is None else network
        build, shape = find_network(network, self.networks), shape or self.shape
        name = repr(shown(network))
        try:
            net = build(shape, self.source.classes)
        except Exception as error:
            raise ValueError(
                f"The network {name} cannot be built for inputs of shape {list(shape)} and "
                f"{self.source.classes} classes ({models.one_line(error)})."
            ) from error
        if not isinstance(net, nn.Module):
            raise ValueError(f"The network {name} is a {type(net).__name__}, not a nn.Module.")
        values = not any(p.is_meta for p in net.parameters())  # else ``try_network`` refuses it
        return net.to(self.device) if values else net

    def try_network(self) -> None:
        """``ValueError`` if a network of the user's own cannot be trained on these samples."""
        with rng.scope(self.seed, "trial"):
            net = self.network()
        name = f"The network {shown(self.network_name)!r}"
        models.check_tensors(name, net)
        x, y = (t[:2] for t in self.test)
        try:
            with models.evaluating(net), torch.no_grad():
                outputs = net(x := self.inputs(x))
        except Exception as error:
            raise ValueError(
                f"{name} does not take a batch of {str(x.dtype)[6:]} {list(x.shape)} "
                f"({models.one_line(error)})."
            ) from error
        self.check_outputs(name, outputs, y)

    def check_outputs(self, name: str, outputs: Any, y: Tensor) -> None:
        """``ValueError`` unless a network, called ``name``, gives a score a class: for y [n, ...]
        scores [n, classes, ...]. More scores are no error: data may lack the last classes."""
        wanted = [len(y), self.source.classes, *y.shape[1:]]
        got = list(getattr(outputs, "shape", ()))
        fits = len(got) == len(wanted) and got[1] >= wanted[1]
        if not fits or got != [len(y), got[1], *y.shape[1:]]:
            raise ValueError(
                f"{name} gives {got or type(outputs).__name__} for {len(y)} samples of "
                f"{wanted[1]} classes: {wanted} is needed, a score for each class, as of a last "
                "layer nn.Linear(..., classes)."
            )
        if not outputs.isfinite().all():
            raise ValueError(f"{name} gives scores that are NaN or infinite.")

    def tested(self, net: nn.Module, client: int | None = None) -> Iterator[tuple[Any, Tensor]]:
        """What a network gives for the test set, ``batch`` samples at a time, and their y."""
        for x, y in zip(*(t.split(self.batch) for t in self.test), strict=True):
            yield net(self.inputs(x, client)), y

    def permute(self, x: Tensor, client: int | None) -> Tensor:
        """The client's own order of pixels, if the partition permutes them."""
        if client is None or self.split.permutations is None:
            return x
        order = torch.as_tensor(self.split.permutations[client], device=x.device)
        return x.flatten(-2)[..., order].reshape(x.shape)

    def inputs(self, x: Tensor, client: int | None = None) -> Tensor:
        """Images as they are stored -> normalised float32, with the client's own order of pixels if
        the partition permutes them."""
        mean, std = self.statistics
        return (self.permute(x, client) - mean) / std

    def gather(
        self, clients: list[int], orders: list[Tensor], generators: list[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """One pass over the images of several clients, client after client: as they are stored,
        augmented and permuted, [sum of n_k, channels, height, width], and their y. For each client
        a permutation of its n_k positions, and what draws the augmentation."""
        orders = [self.owned[k][order] for k, order in zip(clients, orders, strict=True)]
        picked = torch.cat(orders).to(self.device)
        x, y = self.train[0][picked], self.train[1][picked]
        if self.augment or self.split.permutations is not None:
            sizes, parts = [len(order) for order in orders], []
            images = zip(clients, generators, x.split(sizes), y.split(sizes), strict=True)
            for client, generator, x, y in images:
                for name in self.augment:
                    x, y = self.augmentations[name](x, y, generator)
                parts.append((self.permute(x, client), y))
            x, y = map(torch.cat, zip(*parts, strict=True))
        return x, y

    def epoch(
        self, client: int, order: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """One pass over a client's images, normalised, in this ``order`` [n]; see ``gather``."""
        x, y = self.gather([client], [order], [generator])
        return self.inputs(x), y

    @cached_property
    def digests(self) -> dict[str, str]:
        """Short hashes of the images with their y, and of who holds which. Two tasks that are
        described alike may still be different, such as the two CIFAR-100s of ``data.sources``."""
        arrays: dict[str, Iterable[Tensor]]
        arrays = {"images": (*self.train, *self.test), "clients": self.owned}
        if self.split.permutations is not None:
            arrays["permutations"] = map(torch.as_tensor, self.split.permutations)
        if self.owners is not None:
            arrays["owners"] = (self.owners,)
        return {name: _digest(tensors) for name, tensors in arrays.items()}

    def describe(self) -> dict[str, Any]:
        """What a history says about its task."""
        network = self.network_name
        return {
            "dataset": self.dataset,
            "clients": self.clients,
            "partition": repr(self.partition),
            "seed": self.seed,
            "network": shown(network),
            "augment": list(self.augment),
            "train": len(self.train[1]),
            "test": len(self.test[1]),
            **({"validation": True} if self.validation else {}),
            **({"metrics": list(self.metrics)} if self.metrics else {}),
            **({"note": self.source.note} if self.source.note else {}),
            **self.about,
        }

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
        if isinstance(partition, str):
            partition = partitions.parse(partition)
        if not isinstance(partition, partitions.Partition | None):
            given = getattr(partition, "__name__", short(partition))
            call = f": call it, as in {given.lower()}(...)" if callable(partition) else ""
            raise ValueError(f"{given} is no partition of fl.partition{call}.")
        augment = (augment,) if isinstance(augment, str) else tuple(augment)
        for name in augment:
            pick(name, cls.augmentations, "augmentation")
        if network is not None:
            find_network(network, cls.networks)
        metrics, owners = find_metrics(metrics, cls.known_metrics), None
        device = find_device(device)
        source = cls.find_source(cls.default_data if dataset is None else dataset)
        given = holders(source, clients)
        if given is None:
            clients = 10 if clients is None else int(clients)
            partition = partition or partitions.iid()
        elif partition is not None or train is not None or validation:
            raise ValueError(
                f"{source.name} says which client holds what, so neither partition nor train nor "
                "validation goes with it: clients=10 deals its samples out anew."
            )
        else:
            clients, partition = given.clients, given
            if given.owner is source.users and source.test_users is not None:
                owners = torch.as_tensor(source.test_users)
        if owners is None:
            refuse_without_owners(metrics, source.name)
        size = source.train_x.shape[2:]
        if augment and min(size) == 1:
            raise ValueError("crop and flip are for images, and these are vectors.")
        if source.labels is not None and isinstance(partition, partitions.Permuted):
            raise ValueError("The partition permuted is for classification: choose another.")
        if validation and test is not None:
            raise ValueError("With validation no test image is looked at: leave test out.")

        def keep(count: int | None, total: int, purpose: str) -> Any:
            settings.kept(source.name, total, purpose, count)
            if count is None:
                return slice(None)
            return torch.randperm(total, generator=rng.generator(seed, purpose))[:count]

        kept = keep(train, len(source.train_y), "train")
        kept_test = keep(test, len(source.test_y), "test")
        tested = source.test_x, source.test_y
        if validation:
            drawn = torch.arange(len(source.train_y))[kept]
            count = settings.held_out(source.name, len(drawn))
            order = torch.randperm(len(drawn), generator=rng.generator(seed, "validation"))
            kept_test, kept = drawn[order].tensor_split([count])
            tested = source.train_x, source.train_y
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
                source.column(partition.by)[kept].numpy(),
                clients,
                rng.numpy_generator(seed, "partition"),
                coarse=source.coarse,
                pixels=size.numel() if min(size, default=1) > 1 else None,
            ),
            train=(source.train_x[kept].to(device), source.train_y[kept].to(device)),
            test=(tested[0][kept_test].to(device), tested[1][kept_test].to(device)),
            owners=None if owners is None else owners[kept_test],
            metrics=metrics,
            validation=validation,
        )
        if callable(network) or network not in (None, *cls.networks):  # one of the user's own
            task.try_network()
        return task


def holders(source: Source, clients: Any) -> partitions.Given | None:
    """Who holds what, if the data or ``clients`` say so; None if samples are to be dealt out."""
    if isinstance(clients, str) and clients == "users" and source.users is None:
        raise ValueError(
            f'{source.name} names no users for clients="users": users= of fl.data.arrays and '
            "fl.data.dataset, and user= of fl.data.table, name them."
        )
    if clients is None or (isinstance(clients, str) and clients == "users"):
        return None if source.users is None else partitions.Given(source.users)
    if is_whole(clients) and clients >= 1:
        return None
    if isinstance(clients, list | tuple):
        return partitions.given(clients, len(source.train_y))
    raise ValueError(
        'clients must be a whole number of at least 1, "users", or a list of positions for each, '
        f"not {short(clients)}: users= of fl.data.arrays takes whose each sample is."
    )


def find_network(network: str | Callable, known: Mapping[str, Callable]) -> Callable:
    """What a name means; with "@FILE" the network starts from the weights in that file."""
    if isinstance(network, nn.Module):
        raise ValueError(
            "A network is a function (shape, classes) -> module, by which every run begins anew, "
            f"not a module: of this {type(network).__name__}, lambda shape, classes: deepcopy(net)."
        )
    if callable(network):
        return network
    name, at, file = network.partition("@") if isinstance(network, str) else (network, "", "")
    build = find(name, known, "network")
    return models.starting_from(build, file) if at else build


def shown(network: str | Callable) -> str:
    """A network's name, for a sentence."""
    known = network if isinstance(network, str) else getattr(network, "__name__", None)
    return known or type(network).__name__


def find_device(device: str | torch.device = "auto") -> torch.device:
    """The device of that name; "auto" is the GPU where there is one, else the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = ["cuda", *(f"cuda:{i}" for i in range(count))] if count else []
    name = [*gpus, "cpu"][0] if device == "auto" else str(device)
    apple = ["mps"] * torch.backends.mps.is_available()
    return torch.device(pick(name, {n: n for n in ("cpu", *gpus, *apple)}, "device"))


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = blake2b(digest_size=8)
    for t in tensors:
        digest.update(f"{t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.cpu().contiguous().numpy())
    return digest.hexdigest()
