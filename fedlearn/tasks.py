"""A task is data, their split over clients, a network, a loss, and what is measured.

``Task`` has what all kinds of tasks share, ``Classification`` is the kind of the book.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from hashlib import blake2b
from itertools import chain
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import models, rng
from .data import makers
from .data import partition as partitions
from .data.images import Source
from .errors import check_whole, pick, short
from .extensions import find
from .history import COLUMNS

# ---- metrics: functions metric(seen) -> a number or a list of numbers
# Each becomes a column of the history under the function's name. Metrics cost no bytes:
# the server has the test set, and a simulation has the owners of its samples.

ByClient = dict[int | None, Any]  # by client, or under None one for all


@dataclass(frozen=True, eq=False)
class Seen:
    """The input of a metric: predictions for a test set, its labels and owners."""

    predictions: ByClient  # of clients with a network or a view of their own, or of all
    labels: Tensor  # [n], or of pixels [n, height, width]; void is no class
    owners: Tensor | None  # [n]: the client of each sample, -1 for none, if known
    class_counts: Tensor  # [clients, classes]: training samples of each class

    def of(self, client: int) -> Tensor | None:
        """The predictions for a client, which most methods share; None if there are
        none."""
        return self.predictions.get(client, self.predictions.get(None))

    @cached_property
    def confusion(self) -> Tensor:
        """The test samples of each true class (row) and predicted class (column),
        float64 [classes, classes]; summed over ``predictions``."""
        return sum(self.confusions.values(), torch.zeros(()))

    @cached_property
    def confusions(self) -> ByClient:
        """The same, with the keys of ``predictions``."""
        classes = self.class_counts.shape[1]
        counted = (self.labels >= 0) & (self.labels < classes)
        first = self.labels.long() * classes
        counts: ByClient = {}
        for client, predicted in self.predictions.items():
            pairs = (first + predicted)[counted]
            count = torch.bincount(pairs, minlength=classes**2).double()
            counts[client] = count.view(classes, classes)
        return counts


Metric = Callable[[Seen], Any]


def per_class(seen: Seen) -> list[float]:
    """The share of each class's test samples that is recognised (recall)."""
    return (seen.confusion.diag() / seen.confusion.sum(1)).tolist()


def per_client(seen: Seen) -> list[float]:
    """The accuracy on the test samples of each client; NaN for a client without any."""
    if seen.owners is None:
        raise ValueError("The test samples have no owners.")
    clients, classes = seen.class_counts.shape
    accuracies = []
    for k in range(clients):
        rows = seen.owners == k
        predicted = seen.of(k)
        labels = seen.labels[rows]
        counted = (labels >= 0) & (labels < classes)
        if predicted is None or not counted.any():
            accuracies.append(math.nan)
        else:
            correct = (predicted[rows] == labels)[counted]
            accuracies.append(float(correct.double().mean()))
    return accuracies


def per_class_mix(seen: Seen) -> list[float]:
    """For each client the accuracy on all test samples, in which a class weighs as much
    as in the client's training samples. It stands in for ``per_client`` where test
    samples have no owners, and sees no other particularity of a client."""
    accuracies = []
    for k, class_count in enumerate(seen.class_counts):
        counts = seen.confusions.get(k, seen.confusions.get(None))
        if counts is None:
            accuracies.append(math.nan)
            continue
        weights = class_count * (counts.sum(1) > 0)  # without absent test classes
        recall = (counts.diag() / counts.sum(1)).nan_to_num()
        accuracies.append(float((weights * recall).sum() / weights.sum()))
    return accuracies


def worst_class_mix(seen: Seen) -> float:
    """The lowest of ``per_class_mix``."""
    values = [value for value in per_class_mix(seen) if not math.isnan(value)]
    return min(values, default=math.nan)


METRICS: dict[str, Metric] = {
    f.__name__: f for f in (per_class, per_client, per_class_mix, worst_class_mix)
}


def find_metrics(metrics: Any, options: Mapping[str, Metric]) -> dict[str, Metric]:
    """Functions by the names of their columns, from names of ``options``, functions,
    or places of functions (``fedlearn.extensions``)."""
    if isinstance(metrics, str) or callable(metrics):
        metrics = [metrics]
    functions: dict[str, Metric] = {}
    for entry in metrics:
        metric = entry if callable(entry) else find(entry, options, "metric")
        name = getattr(metric, "__name__", "")
        if not name.isidentifier() or name in functions or name in COLUMNS:
            raise ValueError(
                f"The name of a metric becomes a new column, unlike {name!r}."
            )
        try:
            inspect.signature(metric).bind(None)
        except TypeError:
            raise ValueError(
                f"A metric takes one argument, what it sees of the test set, unlike "
                f"{name}: write a function of it that calls that."
            ) from None
        functions[name] = metric
    return functions


def measured(metrics: dict[str, Metric], seen: Seen) -> dict[str, Any]:
    """The columns, with None for all that is no finite number."""
    if not seen.predictions:
        return dict.fromkeys(metrics)
    return {name: _column(name, metric(seen)) for name, metric in metrics.items()}


def _column(name: str, value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return [_column(name, part) for part in value]
    if value is None:
        return None
    if not isinstance(value, Real):
        raise ValueError(
            f"The metric {name} gives {short(value)}, not a number or several."
        )
    return value if math.isfinite(value) else None


# ---- the task


@dataclass(frozen=True, eq=False)
class Task:
    """Made by functions such as ``classification``. Samples stay on ``device`` as they
    are, mostly uint8, and are normalised when they are used.

    ``train`` and ``test`` are x [n, channels, height, width] and y [n, ...]: labels, or
    another input of ``loss`` and ``score``. ``owners`` is the client of each
    test sample, int64 [n], -1 for none; None if the data do not say. With
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

    networks: ClassVar[Mapping[str, Callable]] = models.NETWORKS  # by name
    augmentations: ClassVar[Mapping[str, Callable]] = {}
    known_metrics: ClassVar[Mapping[str, Metric]] = METRICS
    ignored: ClassVar[float] = -100  # the label of padding, which the loss leaves out
    batch: ClassVar[int] = 512  # of evaluation
    meta: ClassVar[dict[str, str]] = {}  # further entries of ``describe``

    # Kinds of tasks override:

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
        """The data of a set's name, or those that a maker has made."""
        return makers.find(dataset)

    @classmethod
    def default_network(cls, source: Source) -> str:
        """The name of a small network for these samples."""
        return next(iter(cls.networks))

    def classes(self, y: Tensor) -> Tensor:
        """The class of each image, object or pixel in y."""
        return y.flatten()

    def read(self, outputs: Any) -> Any:
        """A network's answers, a tensor or a list with an entry for each sample: of
        scores the best class."""
        return outputs[..., : self.source.classes].argmax(-1)

    def inputs(self, x: Tensor, client: int | None = None) -> Tensor:
        """Stored samples -> normalised float32, with the client's order of pixels if
        the partition permutes them."""
        mean, std = self.statistics
        return (self.permute(x, client) - mean) / std

    # All kinds share:

    def predict(self, net: nn.Module, x: Any) -> Any:
        """A network's answers to samples in the form of the data, such as classes or
        boxes. A table's columns are matched by their names."""
        if not isinstance(net, nn.Module):
            raise ValueError(
                f"predict takes a network, such as history.network(), not {short(net)}."
            )
        samples = makers.samples_like(self.source, x)
        try:
            with models.evaluating(net.to(self.device)), torch.no_grad():
                stored = torch.as_tensor(samples).to(self.device)
                parts = stored.split(self.batch)
                answers = [self.read(net(self.inputs(part))) for part in parts]
            if len(answers) == 1:
                return answers[0]
            if isinstance(answers[0], Tensor):
                return torch.cat(answers)
            return [*chain(*answers)]
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValueError(
                f"Samples {list(samples.shape)} do not fit this network "
                f"({short(error)})."
            ) from error

    def evaluate(
        self,
        net: nn.Module,
        client: int | None = None,
        predictions: ByClient | None = None,
    ) -> dict[str, Any]:
        """Measure a network on the test set: ``score`` and the task's metrics. A caller
        that brings ``predictions`` collects them by client for ``measure``. ``client``
        owns the network or the order of pixels; None: all clients."""
        collected: ByClient = {} if predictions is None else predictions
        with models.evaluating(net), torch.inference_mode():
            result = self.score(net, client, collected)
        if predictions is not None:
            return result
        return result | self.measure(collected)

    def measure(self, predictions: ByClient) -> dict[str, Any]:
        """The task's metrics, from predictions by client or, under None, for all."""
        return measured(self.metrics, self.seen(predictions)) if self.metrics else {}

    def seen(self, predictions: ByClient) -> Seen:
        """The argument of metrics."""
        return Seen(predictions, self.test[1].cpu(), self.owners, self.class_counts)

    @cached_property
    def class_counts(self) -> Tensor:
        """The training samples of each client and class, int64 [clients, classes]."""
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
        name = f"The network {title_of(network)!r}"
        try:
            net = build(shape, self.source.classes)
        except Exception as error:
            raise ValueError(
                f"{name} cannot be built for inputs of shape {list(shape)} and "
                f"{self.source.classes} classes ({short(error)})."
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
        name = f"The network {title_of(self.network_name)!r}"
        models.check_tensors(name, net)
        x, y = (t[:2] for t in self.test)
        x = self.inputs(x)
        try:
            with models.evaluating(net), torch.no_grad():
                outputs = net(x)
        except Exception as error:
            raise ValueError(
                f"{name} does not take a batch of {str(x.dtype)[6:]} {list(x.shape)} "
                f"({short(error)})."
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
        """The client's order of pixels, if the partition permutes them."""
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
        positions = [
            self.owned[k][order] for k, order in zip(clients, orders, strict=True)
        ]
        rows = torch.cat(positions).to(self.device)
        x = self.train[0][rows]
        y = self.train[1][rows]
        if not self.augment and self.split.permutations is None:
            return x, y
        sizes = [len(order) for order in orders]
        xs = list(x.split(sizes))
        ys = list(y.split(sizes))
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
        """Short hashes of the samples with their y, and of the clients' positions. Two
        tasks of one description may differ, such as the two CIFAR-100s of
        ``data.images``."""
        arrays: dict[str, Iterable[Tensor]] = {}
        arrays["images"] = (*self.train, *self.test)
        arrays["clients"] = self.owned
        if self.split.permutations is not None:
            arrays["permutations"] = map(torch.as_tensor, self.split.permutations)
        if self.owners is not None:
            arrays["owners"] = (self.owners,)
        return {name: _digest(tensors) for name, tensors in arrays.items()}

    def describe(self) -> dict[str, Any]:
        """The entries of a history about its task."""
        entries = {
            "dataset": self.dataset,
            "clients": self.clients,
            "partition": repr(self.partition),
            "seed": self.seed,
            "network": title_of(self.network_name),
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
        return entries | self.meta

    @classmethod
    def make(
        cls,
        dataset: Any = "digits",
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
        check_whole("seed", seed, minimum=0)
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

        source = cls.find_source(dataset)
        assigned = find_owners(source, clients)
        owners = None
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
        if owners is None and per_client in metrics.values():
            raise ValueError(
                f"The test samples of {source.name} belong to no client, so per_client "
                "cannot be measured; per_class_mix weights their classes as a client's "
                "training samples."
            )
        size = source.train_x.shape[2:]
        if augment and min(size) == 1:
            raise ValueError("crop and flip are for images, and these are vectors.")
        if source.labels is not None and isinstance(partition, partitions.Permuted):
            raise ValueError("The partition permuted is for classification only.")

        trained = drawn(source.name, len(source.train_y), train, seed, "train")
        tested = drawn(source.name, len(source.test_y), test, seed, "test")
        test_x = source.test_x
        test_y = source.test_y
        if validation:
            test_x = source.train_x
            test_y = source.train_y
            positions = torch.arange(len(test_y))[trained]
            count = len(positions) // 10
            if not count:
                raise ValueError(
                    f"{source.name} has {len(positions)} training images here, too few "
                    "to hold a tenth out."
                )
            draw = rng.generator(seed, "validation")
            order = torch.randperm(len(positions), generator=draw)
            tested, trained = positions[order].tensor_split([count])
        labels = source.train_y if source.labels is None else source.labels
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
                torch.as_tensor(labels)[trained].numpy(),
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


def drawn(name: str, total: int, count: int | None, seed: int, purpose: str) -> Any:
    """The positions of ``count`` of a set's samples, drawn from the seed; all for
    None."""
    if count is None:
        return slice(None)  # which copies nothing
    check_whole(f"{purpose} of {name}", count, maximum=total)
    return torch.randperm(total, generator=rng.generator(seed, purpose))[:count]


def find_owners(source: Source, clients: Any) -> partitions.Assigned | None:
    """The clients of the samples, if the data or ``clients`` name them; None if samples
    are dealt out."""
    if isinstance(clients, str) and clients == "users" and source.users is None:
        raise ValueError(
            f'{source.name} names no users for clients="users": users= of '
            "fl.data.arrays and fl.data.dataset, and user= of fl.data.table, name them."
        )
    if clients is None or isinstance(clients, str) and clients == "users":
        return None if source.users is None else partitions.Assigned(source.users)
    if isinstance(clients, list | tuple):
        return partitions.positions(clients, len(source.train_y))
    if isinstance(clients, str) or hasattr(clients, "__len__"):
        raise ValueError(
            'clients must be a whole number of at least 1, "users", or a list of '
            f"positions for each client, not {short(clients)}: users= of fl.data.arrays "
            "takes a name for each sample."
        )
    check_whole("clients", clients)
    return None


def find_partition(partition: Any) -> partitions.Partition | None:
    """The partition of a text, or itself."""
    if isinstance(partition, str):
        return partitions.parse(partition)
    if not isinstance(partition, partitions.Partition | None):
        name = getattr(partition, "__name__", short(partition))
        call = f": call it, as in {name.lower()}(...)" if callable(partition) else ""
        raise ValueError(f"{name} is no partition of fl.partition{call}.")
    return partition


def find_network(network: str | Callable, options: Mapping[str, Callable]) -> Callable:
    """The function of a name, or the function itself."""
    if isinstance(network, nn.Module):
        raise ValueError(
            "A network is a function (shape, classes) -> module, so every run begins "
            f"anew, not a module: of this {type(network).__name__}, lambda shape, "
            "classes: deepcopy(net)."
        )
    if callable(network):
        return network
    return find(network, options, "network")


def title_of(network: str | Callable) -> str:
    """A network's name, for a sentence."""
    if isinstance(network, str):
        return network
    return getattr(network, "__name__", None) or type(network).__name__


def find_device(device: str | torch.device = "auto") -> torch.device:
    """The device of that name; "auto" is the GPU where there is one, else the CPU."""
    names = ["cpu"]
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        names += ["cuda", *(f"cuda:{i}" for i in range(count))]
    if torch.backends.mps.is_available():
        names.append("mps")
    if device == "auto":
        device = "cuda" if "cuda" in names else "cpu"
    pick(str(device), dict.fromkeys(names), "device")
    return torch.device(device)


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = blake2b(digest_size=8)
    for t in tensors:
        digest.update(f"{t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.cpu().contiguous().numpy())
    return digest.hexdigest()


# ---- classification

Pair = tuple[Tensor, Tensor]
PADDING = 4  # pixels on each side that an image may be shifted by


def crop(x: Tensor, y: Tensor, generator: torch.Generator) -> Pair:
    """Shift every image by up to ``PADDING`` pixels; zeros fill the border."""
    n, _, height, width = x.shape
    padded = F.pad(x, [PADDING] * 4)
    shift = torch.randint(0, 2 * PADDING + 1, (2, n, 1), generator=generator)
    shift = shift.to(x.device)
    rows = (shift[0] + torch.arange(height, device=x.device))[:, :, None]
    columns = (shift[1] + torch.arange(width, device=x.device))[:, None, :]
    image = torch.arange(n, device=x.device)[:, None, None]
    return padded[image, :, rows, columns].movedim(-1, 1), y


def flip(x: Tensor, y: Tensor, generator: torch.Generator) -> Pair:
    """Mirror every second image, left to right, at random."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=generator).to(x.device) < 0.5
    return torch.where(mirrored, x.flip(-1), x), y


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over the batch for each leading client: logits [..., batch, classes], y ->
    [...]."""
    return F.cross_entropy(logits.movedim(-1, 1), y, reduction="none").mean(-1)


class Classification(Task):
    """Images with one label each."""

    augmentations = {"crop": crop, "flip": flip}
    loss = staticmethod(cross_entropy)  # type: ignore[assignment]

    @staticmethod
    def find_source(dataset: Any) -> Source:
        source = makers.find(dataset)
        if source.train_y.dim() > 1:
            raise ValueError(f"{source.name} has more than one label a picture.")
        return source

    def predict(self, net: nn.Module, x: Any) -> Any:
        """The class of each sample: an array of the labels' names, if they have any,
        else a tensor of numbers."""
        numbers = super().predict(net, x)
        names = self.source.names
        return np.array(names)[numbers.cpu().numpy()] if names else numbers

    @classmethod
    def default_network(cls, source: Source) -> str:
        channels, height, width = source.train_x.shape[1:]
        if min(height, width) < 4:
            return "mlp"
        if max(height, width) <= 16:
            return "digits_cnn"
        if max(height, width) <= 32:
            return "mcmahan_cnn" if channels == 1 else "cifar_cnn"
        return "digits_resnet"  # pooled to one pixel at its end, whatever the size

    def score(
        self, net: nn.Module, client: int | None, predictions: ByClient
    ) -> dict[str, float]:
        """Accuracy and mean loss; with permuted pixels, in the order of ``client`` or,
        for None, the mean over the clients' orders."""
        views: Any = [client]
        if self.split.permutations is not None and client is None:
            views = range(self.clients)
        right = 0
        total = 0.0
        n = len(self.test[1]) * len(views)
        for view in views:
            predicted = []
            for logits, target in self.tested(net, view):
                predicted.append(Task.read(self, logits))
                right += int((predicted[-1] == target).sum())
                total += float(self.loss(logits, target) * len(target))
            if self.metrics:
                predictions[view] = torch.cat(predicted).cpu()
        return {"accuracy": right / n, "loss": total / n}


@wraps(Task.make, assigned=(), updated=())  # its signature
def classification(*args: Any, **options: Any) -> Classification:
    """A task: ``dataset`` split over ``clients``.

    Parameters
    ----------
    dataset
        A name (see ``fedlearn.data.images``), or your own data, which
        ``fl.data.arrays``, ``clients``, ``dataset`` and ``table`` make; or
        "mine.py:name", a function that gives such data.
    clients
        Their number, by default 10; or "users", a client for each user that the data
        name, which is the default if they name some; or a list of positions of training
        samples for each.
    partition
        An object of ``fl.partition`` or its text, such as ``"dirichlet:0.5"``; IID by
        default.
    seed
        Of all random numbers.
    network
        A name in ``fl.models.NETWORKS``, a function ``(shape, classes) -> module``, or
        the place of one (``fedlearn.extensions``).
    augment
        Any of "crop" and "flip".
    train, test
        The number of images to keep, drawn once from the seed, for quick runs.
    device
        "auto" (the GPU where there is one), "cpu", "cuda" or one of several GPUs,
        "cuda:1".
    metrics
        Names in ``fl.tasks.METRICS``, or functions, which are measured beside accuracy
        and loss.
    validation
        Whether a tenth of the training images, drawn from the seed, is held out and
        takes the place of the test images: for choices, such as that of a learning
        rate.

    Returns
    -------
    Classification
        What ``fl.run`` takes.

    Raises
    ------
    ValueError
        For arguments that are not allowed, or not together.
    DataError
        For data that are absent or damaged.

    Examples
    --------
    >>> task = classification("digits", clients=3, partition="dirichlet:0.5", train=60)
    >>> task.shape, sum(task.sizes)
    ((1, 8, 8), 60)
    """
    return Classification.make(*args, **options)


TASKS = {"classification": classification}
