"""Classification: images with one label each."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.sources import Source
from .augment import LABELLED
from .base import Task
from .metrics import ByClient

NETWORK = {
    "digits": "digits_cnn",
    "mnist": "mcmahan_cnn",
    "fashion_mnist": "mcmahan_cnn",
}
P = ParamSpec("P")
R = TypeVar("R")


def arguments_of(
    make: Callable[P, Any],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """The signature of ``make`` for a function that takes keyword arguments."""
    signature = inspect.signature(make)

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(**signature.bind(*args, **kwargs).arguments)

        vars(call)["__signature__"] = signature.replace(
            return_annotation=inspect.signature(function).return_annotation
        )
        return call

    return decorate


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over the batch for each leading client: logits [..., batch, classes], y -> [...]."""
    return F.cross_entropy(logits.movedim(-1, 1), y, reduction="none").mean(-1)


class Classification(Task):
    """Images with one label each."""

    augmentations = LABELLED
    loss = staticmethod(cross_entropy)  # type: ignore[assignment]

    @classmethod
    def find_source(cls, dataset: Any) -> Source:
        source = super().find_source(dataset)
        if source.train_y.dim() > 1:
            raise ValueError(f"{source.name} has more than one label a picture.")
        return source

    def predict(self, net: nn.Module, x: Any) -> Any:
        """The class of each sample: an array of the labels' names, if they have any, else a tensor
        of numbers."""
        numbers = super().predict(net, x)
        names = self.source.names
        return np.array(names)[numbers.cpu().numpy()] if names else numbers

    @classmethod
    def default_network(cls, source: Source) -> str:
        channels, height, width = source.train_x.shape[1:]
        if source.name in NETWORK:
            return NETWORK[source.name]
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
        """Accuracy and mean loss; with permuted pixels, under the permutation of ``client`` or, if
        none is named, the mean over the clients' permutations."""
        views: Any = [client]
        if self.split.permutations is not None and client is None:
            views = range(self.clients)
        right, total, n = 0, 0.0, len(self.test[1]) * len(views)
        for view in views:
            predicted = []
            for logits, target in self.tested(net, view):
                predicted.append(logits.argmax(-1))
                right += int((predicted[-1] == target).sum())
                total += float(self.loss(logits, target) * len(target))
            if self.metrics:
                predictions[view] = torch.cat(predicted).cpu()
        return {"accuracy": right / n, "loss": total / n}


@arguments_of(Task.make)
def classification(**arguments: Any) -> Classification:
    """A task: ``dataset`` split over ``clients``.

    Parameters
    ----------
    dataset
        A name (see ``fedlearn.data.sources``), by default "digits"; or your own data, which
        ``fl.data.arrays``, ``clients``, ``dataset`` and ``table`` make; or "mine.py:name", a
        function that gives such data.
    clients
        Their number, by default 10; or "users", a client for each user that the data name, which is
        the default if they name some; or a list of positions of training samples for each.
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
    validation
        Whether a tenth of the training images, drawn from the seed, is held out and takes the place
        of the test images: for choices, such as that of a learning rate.

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
    return Classification.make(**arguments)
