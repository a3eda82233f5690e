"""Image classification: a data set, how it is split over clients, a network, a loss and a
metric."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..arguments import checked
from ..data import arrays
from ..data.sources import Source
from .augment import LABELLED
from .base import Task
from .metrics import ByClient

NETWORK = {"digits": "digits_cnn", "mnist": "mcmahan_cnn", "fashion_mnist": "mcmahan_cnn"}


def cross_entropy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean over the batch, separately for each leading client: logits [..., batch, classes],
    y [..., batch] -> [...]."""
    return F.cross_entropy(logits.movedim(-1, 1), y, reduction="none").mean(-1)


class Classification(Task):
    """Images with one label each."""

    augmentations = LABELLED
    loss = staticmethod(cross_entropy)  # type: ignore[assignment]

    @classmethod
    def find_source(cls, dataset: Any, users: Any = None) -> Source:
        source = arrays.labelled(dataset, users)
        if source.labels is not None:
            raise ValueError(
                f"{source.name} has boxes or masks: it is for fl.tasks.detection or segmentation."
            )
        return source

    @classmethod
    def default_network(cls, source: Source) -> str:
        return NETWORK.get(source.name) or default_network(source)

    def score(
        self, net: torch.nn.Module, batch: int, client: int | None, predictions: ByClient
    ) -> dict[str, float]:
        """Accuracy and mean loss on the test set; with permuted pixels, under the permutation of
        ``client`` or, if none is named, the mean over the clients' permutations."""
        x, y = self.test
        views: Any = [client]
        if self.split.permutations is not None and client is None:
            views = range(self.clients)
        totals = torch.zeros(2, device=self.device, dtype=torch.float64)
        for view in views:
            predicted = []
            for images, target in zip(x.split(batch), y.split(batch), strict=True):
                logits = net(self.inputs(images, view))
                predicted.append(logits.argmax(-1))
                totals[0] += (predicted[-1] == target).sum()
                totals[1] += self.loss(logits, target) * len(target)
            if self.metrics:
                predictions[view] = torch.cat(predicted).cpu()
        accuracy, loss = (totals / (len(y) * len(views))).tolist()
        return {"accuracy": accuracy, "loss": loss}


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

    Parameters
    ----------
    dataset
        A name (see ``fedlearn.data.sources``), or your own data: (x, y), ((x, y), (test x, test
        y)), a data set in torchvision's style, the path of a folder of images or of an .npz file,
        or what ``fl.data.from_arrays`` and the like make of them.
    clients
        Their number; or a list of positions for each; or a column that names each sample's user;
        or "users", if the data name them. Positions and columns are of all samples of (x, y), else
        of the training samples.
    partition
        An object of ``fl.partition`` or its text, such as ``"dirichlet:0.5"``; IID by default.
    seed
        Of all that is drawn.
    network
        A name in ``fl.models.NETWORKS``, a function ``(shape, classes) -> module``, or where to
        find one (``fedlearn.extensions``).
    augment
        Any of "crop" and "flip".
    train, test
        How many images to keep, drawn once from the seed, for quick runs.
    device
        "auto" (the GPU where there is one), "cpu", "cuda" or one of several GPUs, "cuda:1".
    metrics
        What is measured beside accuracy and loss (``fedlearn.tasks.metrics``).

    Returns
    -------
    Classification
        What ``fl.run`` takes.

    Raises
    ------
    ValueError
        For arguments that mean nothing, or do not fit together.
    DataError
        For data that are absent or damaged.

    Examples
    --------
    >>> task = classification("digits", clients=3, partition="dirichlet:0.5", train=60)
    >>> task.shape, sum(task.sizes)
    ((1, 8, 8), 60)
    """
    return Classification.make(
        dataset, clients, partition, seed, network, augment, train, test, device, metrics
    )
