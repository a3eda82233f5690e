"""Classification: images with one label each."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import checked
from ..data import forms
from ..data.sources import Source
from .augment import LABELLED
from .base import Task
from .metrics import ByClient

NETWORK = {"digits": "digits_cnn", "mnist": "mcmahan_cnn", "fashion_mnist": "mcmahan_cnn"}
P = ParamSpec("P")
R = TypeVar("R")


def arguments_of(make: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """The signature of ``make``, checked, for a function that takes keyword arguments."""
    signature = inspect.signature(make)

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(**signature.bind(*args, **kwargs).arguments)

        vars(call)["__signature__"] = signature.replace(
            return_annotation=inspect.signature(function).return_annotation
        )
        return checked(call)

    return decorate


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over the batch for each leading client: logits [..., batch, classes], y -> [...]."""
    return F.cross_entropy(logits.movedim(-1, 1), y, reduction="none").mean(-1)


class Classification(Task):
    """Images with one label each."""

    augmentations = LABELLED
    loss = staticmethod(cross_entropy)  # type: ignore[assignment]

    @staticmethod
    def find_source(dataset: Any, users: Any = None) -> Source:
        source = forms.read(dataset, users)
        if source.train_y.dim() > 1 or source.train_x.dim() == 2:
            raise ValueError(
                f"{source.name} has no labels: it is for fl.tasks.regression, sequences, or "
                "fl.seeing."
            )
        return source

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

    def score(self, net: nn.Module, client: int | None, predictions: ByClient) -> dict[str, float]:
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
        A name (see ``fedlearn.data.sources``), by default "digits", or your own data: (x, y), ((x,
        y), (test x, test y)), [(x, y), ...] with an entry for each client, (table, "column"), a
        data set in the style of torchvision or Hugging Face, a list of tables or data sets, one for
        each client, the path of a folder of images, of LEAF's, or of a .csv or .npz file, or what
        ``fl.data.from_arrays`` and the like make.
    clients
        Their number; or a list of positions, or (x, y), for each; or a column that names each
        sample's user, of a table its name; or "users", if the data name them. Positions and columns
        are of all samples of (x, y), else of the training samples.
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
