"""Image classification: a data set, how it is split over clients, a network, a loss and a
metric."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .. import models, rng
from ..arguments import checked, short
from ..data import own, sources
from ..data import partition as partitions
from ..errors import pick
from ..extensions import find
from .metrics import Metric, Seen, find_metrics, measured

NETWORK = {"digits": "digits_cnn", "mnist": "mcmahan_cnn", "fashion_mnist": "mcmahan_cnn"}
PADDING = 4  # pixels on each side that a random crop may shift an image by


def cross_entropy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean over the batch, separately for each leading client: logits [..., batch, classes],
    y [..., batch] -> [...]."""
    return F.cross_entropy(logits.movedim(-1, 1), y, reduction="none").mean(-1)


def crop(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shift every image by up to ``PADDING`` pixels, black where nothing was: x [n, channels,
    height, width]."""
    n, _, height, width = x.shape
    padded = F.pad(x, [PADDING] * 4)
    shift = torch.randint(0, 2 * PADDING + 1, (2, n, 1), generator=generator).to(x.device)
    rows = (shift[0] + torch.arange(height, device=x.device))[:, :, None]
    columns = (shift[1] + torch.arange(width, device=x.device))[:, None, :]
    return padded[torch.arange(n, device=x.device)[:, None, None], :, rows, columns].movedim(-1, 1)


def flip(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Mirror every second image, left to right, at random."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=generator).to(x.device) < 0.5
    return torch.where(mirrored, x.flip(-1), x)


AUGMENTATIONS = {"crop": crop, "flip": flip}


@dataclass(frozen=True, eq=False)
class Classification:
    """Made by ``classification``. Images stay on ``device`` as they are, mostly uint8, and are
    normalised when they are used."""

    dataset: str
    clients: int
    partition: Any
    seed: int
    network_name: Any
    augment: tuple
    device: torch.device
    source: Any = field(repr=False)
    split: Any = field(repr=False)
    train: tuple = field(repr=False)  # x [n, c, h, w] uint8, y [n]
    test: tuple = field(repr=False)
    metrics: dict[str, Metric] = field(default_factory=dict, repr=False)  # by their columns' names

    loss = staticmethod(cross_entropy)

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
        network = network or self.network_name
        build = network if callable(network) else find(network, models.NETWORKS, "network")
        try:
            return build(shape or self.shape, self.source.classes)
        except RuntimeError as error:
            raise ValueError(
                f"The network {network!r} cannot be built for inputs of shape "
                f"{list(shape or self.shape)} ({short(str(error))})."
            ) from error

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
        stored, augmented and permuted, and labels.

        For each client, its order (a permutation of its n_k positions) and the generator that
        draws the augmentation."""
        picked = torch.cat(
            [self.owned[k][order] for k, order in zip(clients, orders, strict=True)]
        ).to(self.device)
        x, y = self.train[0][picked], self.train[1][picked]
        if self.augment or self.split.permutations is not None:
            parts = list(x.split([len(order) for order in orders]))
            for i, (client, generator) in enumerate(zip(clients, generators, strict=True)):
                for name in self.augment:
                    parts[i] = AUGMENTATIONS[name](parts[i], generator)
                parts[i] = self.permute(parts[i], client)
            x = torch.cat(parts)
        return x, y

    def epoch(
        self, client: int, order: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass over a client's images, normalised: ``order`` [n] is a permutation,
        ``generator`` draws the augmentation."""
        x, y = self.gather([client], [order], [generator])
        return self.inputs(x), y

    def evaluate(
        self,
        net: torch.nn.Module,
        batch: int = 512,
        client: int | None = None,
        seen: Seen | None = None,
    ) -> dict[str, Any]:
        """Accuracy and mean loss on the test set; with permuted pixels, under the permutation of
        ``client`` or, if none is named, the mean over the clients' permutations. And the task's
        metrics; or, if there is a dict ``seen``, what ``measure`` makes them of is put there, for
        this client or, under None, for all."""
        x, y = self.test
        classes, found = self.source.classes, {} if seen is None else seen
        views = (
            [None]
            if self.split.permutations is None
            else range(self.clients)
            if client is None
            else [client]
        )
        totals = torch.zeros(2, device=self.device, dtype=torch.float64)
        training = net.training
        net.eval()
        with torch.inference_mode():
            for view in views:
                for at in range(0, len(y), batch):
                    target = y[at : at + batch]
                    logits = net(self.inputs(x[at : at + batch], view))
                    totals[0] += (logits.argmax(-1) == target).sum()
                    totals[1] += self.loss(logits, target) * len(target)
                    if self.metrics:
                        pairs = target * classes + logits.argmax(-1)
                        counts = torch.bincount(pairs, minlength=classes**2).double().cpu()
                        k = client if view is None else view
                        found[k] = found.get(k, 0) + counts.view(classes, classes)
        net.train(training)
        accuracy, loss = (totals / (len(y) * len(views))).tolist()
        result = {"accuracy": accuracy, "loss": loss}
        return result if seen is not None else result | self.measure(found)

    def measure(self, seen: Seen) -> dict[str, Any]:
        """The task's metrics, from a confusion matrix for each client or, under None, for all."""
        return measured(self.metrics, seen, self.held) if self.metrics else {}

    @cached_property
    def held(self) -> torch.Tensor:
        """The number of training images of each class that a client holds, [clients, classes]."""
        y, classes = self.train[1].cpu(), self.source.classes
        return torch.stack([torch.bincount(y[own], minlength=classes) for own in self.owned])

    @cached_property
    def digests(self) -> dict[str, str]:
        """Short hashes of the images with their labels, and of who holds which. Two tasks that are
        described alike may still be different, such as the two CIFAR-100s of ``data.sources``."""
        arrays: dict[str, Iterable[torch.Tensor]]
        arrays = {"images": (*self.train, *self.test), "clients": self.owned}
        if self.split.permutations is not None:
            arrays["permutations"] = map(torch.as_tensor, self.split.permutations)
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
        } | ({"metrics": list(self.metrics)} if self.metrics else {})


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


def default_network(source: sources.Source) -> str:
    """A small network that works for images of this shape, or for vectors."""
    channels, height, width = source.train_x.shape[1:]
    if min(height, width) < 4:
        return "mlp"
    if max(height, width) <= 16:
        return "digits_cnn"
    if max(height, width) <= 32:
        return "mcmahan_cnn" if channels == 1 else "cifar_cnn"
    return "digits_resnet"  # pooled to one pixel at its end, whatever the size


@checked
def classification(
    dataset: Any = "digits",
    clients: Any = 10,
    partition: Any = None,
    seed: int = 0,
    network: str | Callable | None = None,
    augment: Any = (),
    train: int | None = None,
    test: int | None = None,
    device: str | torch.device = "auto",
    metrics: Any = (),
) -> Classification:
    """A task: ``dataset`` split over ``clients``.

    ``dataset`` is a name (see ``fedlearn.data.sources``), or your own data: (x, y), ((x, y), (test
    x, test y)), a data set in torchvision's style, the path of a folder of images or of an .npz
    file, or what ``fl.data.from_arrays`` and the like make of them. ``clients`` is their number,
    with ``partition`` an object of ``fedlearn.partition`` or its text, such as ``"dirichlet:0.5"``,
    IID by default; or a list of positions for each client; or a column that names each sample's
    user; or "users", if the data name them. Positions and columns are of all samples of (x, y),
    else of the training samples.

    ``network`` is a name in ``fedlearn.models.NETWORKS``, a function ``(shape, classes) ->
    module``, or where to find one (``fedlearn.extensions``). ``augment`` lists "crop" and "flip".
    ``train`` and ``test`` keep that many images, drawn once from the seed, for quick runs.
    ``device`` is "auto" (the GPU where there is one), "cpu", "cuda" or one of several GPUs, such as
    "cuda:1". ``metrics`` are measured beside accuracy and loss (``fedlearn.tasks.metrics``)."""
    counted = isinstance(clients, int) and not isinstance(clients, bool)
    if isinstance(clients, bool | float | None | dict) or (counted and clients < 1):
        raise ValueError(f"clients must be a whole number of at least 1, not {clients!r}.")
    if isinstance(clients, str) and clients != "users":
        raise ValueError(f'clients is a number, lists, a column or "users", not {clients!r}.')
    if not counted and (partition is not None or train is not None):
        raise ValueError(
            "Clients that are given leave no choice: neither partition nor train goes with them."
        )
    if isinstance(partition, str):
        partition = partitions.parse(partition)
    partition = partition or partitions.iid()
    if not isinstance(partition, partitions.Partition):
        raise ValueError(f"{short(partition)} is no partition (fedlearn.partition).")
    augment = (augment,) if isinstance(augment, str) else tuple(augment)
    for name in augment:
        pick(name, AUGMENTATIONS, "augmentation")
    if network is not None and not callable(network):
        find(network, models.NETWORKS, "network")
    metrics, device = find_metrics(metrics), find_device(device)
    whole = isinstance(dataset, tuple) and not isinstance(dataset[0], tuple)  # to be split here
    users = None
    if whole and not counted and not isinstance(clients, str):
        users = partitions.given(clients, len(dataset[0])).owner
    source = own.source_of(dataset, users)
    if not counted:
        column = clients if users is None and not isinstance(clients, str) else source.users
        if column is None:
            raise ValueError(f'{source.name} names no users, so clients="users" is not possible.')
        given = partitions.Given(column) if users is not None else None
        partition = given or partitions.given(column, len(source.train_y))
        clients = partition.clients
    dataset, shape = source.name, source.train_x.shape[1:]
    network = network or NETWORK.get(dataset) or default_network(source)
    if augment and min(shape[1:]) == 1:
        raise ValueError("crop and flip are for images, and these are vectors.")

    def keep(x, y, count, purpose):
        if count is not None and not 1 <= count <= len(y):
            raise ValueError(
                f"{dataset} has {len(y)} {purpose} images, so {purpose}={count!r} cannot be kept."
            )
        chosen = (
            slice(None)
            if count is None
            else torch.randperm(len(y), generator=rng.generator(seed, purpose))[:count]
        )
        return x[chosen].to(device), y[chosen].to(device)

    kept = keep(source.train_x, source.train_y, train, "train")
    split = partition(
        kept[1].cpu().numpy(),
        clients,
        rng.numpy_generator(seed, "partition"),
        coarse=source.coarse,
        pixels=int(np.prod(shape[1:])) if min(shape[1:]) > 1 else None,
    )
    kept_test = keep(source.test_x, source.test_y, test, "test")
    return Classification(
        *(dataset, clients, partition, seed, network, augment, device),
        *(source, split, kept, kept_test, metrics),
    )
