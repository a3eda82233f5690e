"""Semantic segmentation: the class of each pixel."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F

from .. import models
from ..arguments import checked
from ..data import published, scenes
from ..data.annotated import VOID, from_masks, source_of
from ..data.sources import Source
from .base import Task
from .metrics import ByClient
from .moves import MOVES

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
    """Images with a mask: y uint8 [n, height, width], see ``data.annotated``."""

    networks = models.SEGMENTERS
    augmentations = MOVES
    ignored = VOID
    about = {"task": "segmentation", "accuracy": "mIoU"}
    loss = staticmethod(pixel_cross_entropy)  # type: ignore[assignment]

    @classmethod
    def find_source(cls, dataset: Any, users: Any = None) -> Source:
        source = source_of(dataset, DATASETS, from_masks)
        if source.train_y.dtype != torch.uint8:
            raise ValueError(f"{source.name} has no masks (fl.data.from_masks makes such a set).")
        return source

    @classmethod
    def default_network(cls, source: Source) -> str:
        return "scene_fcn"

    def predict(self, net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """The class of each pixel of images as they are stored, [n, height, width]."""
        return net(self.inputs(x)).argmax(-3)

    def evaluate(
        self,
        net: torch.nn.Module,
        batch: int = 128,
        client: int | None = None,
        predictions: ByClient | None = None,
    ) -> dict[str, Any]:
        """{"accuracy": mIoU, "loss", "pixel_accuracy"} on the test set, and the task's metrics. A
        class that is neither shown nor predicted counts for nothing."""
        from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

        (x, y), classes, total, predicted = self.test, self.source.classes, 0.0, []
        about = {"num_classes": classes, "ignore_index": VOID, "validate_args": False}
        overlap = MulticlassJaccardIndex(**about).to(self.device)
        right = MulticlassAccuracy(average="micro", **about).to(self.device)
        with models.evaluating(net), torch.inference_mode():
            for images, own in zip(x.split(batch), y.split(batch), strict=True):
                scores = net(self.inputs(images))
                total += float(self.loss(scores, own)) * len(own)
                best = scores.argmax(1)
                for metric in (overlap, right):
                    metric.update(best, own.long())
                if self.metrics:
                    predicted.append(best.to(torch.uint8).cpu())
            result = {
                "accuracy": float(overlap.compute()),
                "loss": total / len(y),
                "pixel_accuracy": float(right.compute()),
            }
        found = {} if predictions is None else predictions
        if self.metrics:
            found[client] = torch.cat(predicted)
        return result if predictions is not None else result | self.measure(found)

    @cached_property
    def held(self) -> torch.Tensor:
        """How many pixels of each class a client holds, [clients, classes]."""
        y, classes = self.train[1].cpu(), self.source.classes
        counts = (
            torch.bincount(y[own].flatten(), minlength=VOID + 1)[:classes] for own in self.owned
        )
        return torch.stack(list(counts))


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
    """The arguments of ``detection``, for masks: ``dataset`` is "digits" or "voc", or the arguments
    of ``fl.data.from_masks``, or what that makes of them. ``network`` is a name in
    ``fedlearn.models.SEGMENTERS`` or makes a module that gives scores [batch, classes, height,
    width]. The column accuracy is mIoU; ``metrics`` are those of ``classification``, of pixels."""
    return Segmentation.make(
        dataset, clients, partition, seed, network, augment, train, test, device, metrics
    )
