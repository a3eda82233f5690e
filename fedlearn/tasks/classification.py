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
from ..data import partition as partitions
from ..data import sources
from ..errors import pick
from ..extensions import find

NETWORK = {
    "digits": "digits_cnn",
    "mnist": "mcmahan_cnn",
    "fashion_mnist": "mcmahan_cnn",
}  # any other: cifar_cnn
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
    """Made by ``classification``. Images stay on ``device`` as uint8 and are normalised when they
    are used."""

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
        """Mean and standard deviation of the training images, each [channels, 1, 1]."""
        return torch.tensor([self.source.mean, self.source.std], device=self.device)[
            ..., None, None
        ]

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
        return build(shape or self.shape, self.source.classes)

    def permute(self, x: torch.Tensor, client: int | None) -> torch.Tensor:
        """The client's own order of pixels, if the partition permutes them."""
        if client is None or self.split.permutations is None:
            return x
        order = torch.as_tensor(self.split.permutations[client], device=x.device)
        return x.flatten(-2)[..., order].reshape(x.shape)

    def inputs(self, x: torch.Tensor, client: int | None = None) -> torch.Tensor:
        """uint8 images -> normalised float32, with the client's own order of pixels if the
        partition permutes them."""
        mean, std = self.statistics
        return (self.permute(x, client) - mean) / std

    def gather(
        self, clients: list[int], orders: list[torch.Tensor], generators: list[torch.Generator]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass over the images of each client, client after client: uint8 images, augmented
        and permuted, and labels.

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
        self, net: torch.nn.Module, batch: int = 512, client: int | None = None
    ) -> dict[str, float]:
        """Accuracy and mean loss on the test set; with permuted pixels, under the permutation of
        ``client`` or, if none is named, the mean over the clients' permutations."""
        x, y = self.test
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
            for client in views:
                for at in range(0, len(y), batch):
                    target = y[at : at + batch]
                    logits = net(self.inputs(x[at : at + batch], client))
                    totals[0] += (logits.argmax(-1) == target).sum()
                    totals[1] += self.loss(logits, target) * len(target)
        net.train(training)
        accuracy, loss = (totals / (len(y) * len(views))).tolist()
        return {"accuracy": accuracy, "loss": loss}

    @cached_property
    def digests(self) -> dict[str, str]:
        """Short hashes of the images with their labels, and of who holds which: two tasks that are
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
        }


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


def classification(
    dataset: str = "digits",
    clients: int = 10,
    partition: Any = None,
    seed: int = 0,
    network: str | Callable | None = None,
    augment: Any = (),
    train: int | None = None,
    test: int | None = None,
    device: str | torch.device = "auto",
) -> Classification:
    """A task: ``dataset`` (see ``fedlearn.data.sources``) split over ``clients``.

    ``partition`` is an object of ``fedlearn.partition`` or its text, such as ``"dirichlet:0.5"``;
    IID by default. ``network`` is a name in ``fedlearn.models.NETWORKS``, a function ``(shape,
    classes) -> module``, or where to find one (``fedlearn.extensions``). ``augment`` lists "crop"
    and "flip". ``train`` and ``test`` keep that many images, drawn once from the seed, for quick
    runs. ``device`` is "auto" (the GPU where there is one), "cpu", "cuda" or one of several GPUs,
    such as "cuda:1"."""
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 1:
        raise ValueError(f"clients must be a whole number of at least 1, not {clients!r}.")
    if isinstance(partition, str):
        partition = partitions.parse(partition)
    partition = partition or partitions.iid()
    augment = (augment,) if isinstance(augment, str) else tuple(augment)
    for name in augment:
        pick(name, AUGMENTATIONS, "augmentation")
    network = network or NETWORK.get(dataset, "cifar_cnn")
    if isinstance(network, str):
        find(network, models.NETWORKS, "network")
    device = find_device(device)
    source = sources.load(dataset)

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
        pixels=int(np.prod(source.train_x.shape[-2:])),
    )
    kept_test = keep(source.test_x, source.test_y, test, "test")
    return Classification(
        dataset, clients, partition, seed, network, augment, device, source, split, kept, kept_test
    )
