"""Semantic segmentation: the class of each pixel."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .. import models
from ..arguments import checked
from ..data import published, scenes
from ..data.arrays import VOID, annotated, from_masks
from ..data.sources import Source
from .augment import ANNOTATED
from .base import Task
from .metrics import ByClient

DATASETS: dict[str, Callable[[str], Source]] = {
    "digits": partial(scenes.named, "masks"),
    "voc": partial(published.named, "voc", "masks"),
}


def pixel_cross_entropy(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, the mean of an image's pixels that are not void, then of the batch: scores
    [..., batch, classes, height, width], y [..., batch, height, width] -> [...]."""
    each = F.cross_entropy(
        scores.flatten(0, -4), y.flatten(0, -3).long(), ignore_index=VOID, reduction="none"
    )
    counted = (y.flatten(0, -3) != VOID).sum((-2, -1)).clamp(min=1)
    return (each.sum((-2, -1)) / counted).view(y.shape[:-2]).mean(-1)


class Segmentation(Task):
    """Images with a mask: y uint8 [n, height, width], see ``data.arrays``."""

    networks = models.SEGMENTERS
    augmentations = ANNOTATED
    ignored = VOID
    batch = 128
    about = {"task": "segmentation", "accuracy": "mIoU"}
    loss = staticmethod(pixel_cross_entropy)  # type: ignore[assignment]

    @classmethod
    def find_source(cls, dataset: Any, users: Any = None) -> Source:
        source = annotated(dataset, DATASETS, from_masks)
        if source.train_y.dtype != torch.uint8:
            raise ValueError(f"{source.name} has no masks (fl.data.from_masks makes such a set).")
        return source

    @classmethod
    def default_network(cls, source: Source) -> str:
        return "scene_fcn"

    def predict(self, net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """The class of each pixel of images as they are stored, [n, height, width]."""
        return net(self.inputs(x)).argmax(-3)

    def score(
        self, net: torch.nn.Module, batch: int, client: int | None, predictions: ByClient
    ) -> dict[str, float]:
        """{"accuracy": mIoU, "loss", "pixel_accuracy"} on the test set. A class that is neither
        shown nor predicted counts for nothing."""
        from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

        (x, y), total, predicted = self.test, 0.0, []
        options = {"num_classes": self.source.classes, "ignore_index": VOID, "validate_args": False}
        overlap = MulticlassJaccardIndex(**options).to(self.device)
        right = MulticlassAccuracy(average="micro", **options).to(self.device)
        for images, target in zip(x.split(batch), y.split(batch), strict=True):
            scores = net(self.inputs(images))
            total += float(self.loss(scores, target)) * len(target)
            kinds = scores.argmax(1)
            overlap.update(kinds, target.long())
            right.update(kinds, target.long())
            if self.metrics:
                predicted.append(kinds.to(torch.uint8).cpu())
        if self.metrics:
            predictions[client] = torch.cat(predicted)
        accuracy = {"accuracy": float(overlap.compute()), "loss": total / len(y)}
        return accuracy | {"pixel_accuracy": float(right.compute())}


@checked
def segmentation(
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
) -> Segmentation:
    """Masks. The column accuracy is mIoU; ``metrics`` are those of ``classification``, of pixels.

    Parameters
    ----------
    dataset
        "digits" or "voc" as of ``detection``; or the first arguments of ``fl.data.from_masks``, or
        what that makes of them.
    network
        A name in ``fl.models.SEGMENTERS``, or a function that makes a module that gives scores
        [batch, classes, height, width].
    clients, partition, seed, augment, train, test, device
        As of ``detection``.

    Examples
    --------
    >>> import numpy as np
    >>> pictures, masks = np.zeros((4, 64, 64), np.uint8), np.ones((4, 64, 64), np.uint8)
    >>> segmentation((pictures, masks, 2, 0.5), clients=2).held.tolist()
    [[0, 4096], [0, 4096]]
    """
    return Segmentation.make(
        dataset, clients, partition, seed, network, augment, train, test, device, metrics
    )
