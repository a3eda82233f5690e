"""Image classification: a data set, how it is split over clients, a network, a loss and a
metric."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F

from .. import models
from ..arguments import checked
from ..data import own
from ..data.sources import Source
from .base import Task
from .metrics import ByClient

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


class Classification(Task):
    """Images with one label each."""

    augmentations = AUGMENTATIONS
    loss = staticmethod(cross_entropy)  # type: ignore[assignment]

    def augmented(
        self, name: str, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return AUGMENTATIONS[name](x, generator), y

    @classmethod
    def find_source(cls, dataset: Any, users: Any = None) -> Source:
        source = own.source_of(dataset, users)
        if source.labels is not None:
            raise ValueError(
                f"{source.name} has boxes or masks: it is for fl.tasks.detection or segmentation."
            )
        return source

    @classmethod
    def default_network(cls, source: Source) -> str:
        return NETWORK.get(source.name) or default_network(source)

    def evaluate(
        self,
        net: torch.nn.Module,
        batch: int = 512,
        client: int | None = None,
        predictions: ByClient | None = None,
    ) -> dict[str, Any]:
        """Accuracy and mean loss on the test set; with permuted pixels, under the permutation of
        ``client`` or, if none is named, the mean over the clients' permutations. And the task's
        metrics; or, if there is a dict ``predictions``, what ``measure`` makes them of is put
        there, for this client or, under None, for all."""
        x, y = self.test
        found = {} if predictions is None else predictions
        views = (
            [None]
            if self.split.permutations is None
            else range(self.clients)
            if client is None
            else [client]
        )
        totals = torch.zeros(2, device=self.device, dtype=torch.float64)
        with models.evaluating(net), torch.inference_mode():
            for view in views:
                predicted = []
                for at in range(0, len(y), batch):
                    target = y[at : at + batch]
                    logits = net(self.inputs(x[at : at + batch], view))
                    predicted.append(logits.argmax(-1))
                    totals[0] += (predicted[-1] == target).sum()
                    totals[1] += self.loss(logits, target) * len(target)
                if self.metrics:
                    found[client if view is None else view] = torch.cat(predicted).cpu()
        accuracy, loss = (totals / (len(y) * len(views))).tolist()
        result = {"accuracy": accuracy, "loss": loss}
        return result if predictions is not None else result | self.measure(found)

    @cached_property
    def held(self) -> torch.Tensor:
        """The number of training images of each class that a client holds, [clients, classes]."""
        y, classes = self.train[1].cpu(), self.source.classes
        return torch.stack([torch.bincount(y[own], minlength=classes) for own in self.owned])


def default_network(source: Source) -> str:
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
    return Classification.make(
        dataset, clients, partition, seed, network, augment, train, test, device, metrics
    )
