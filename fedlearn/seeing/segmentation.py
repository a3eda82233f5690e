"""Segmentation: images with a class for each pixel."""

from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.images import Source
from ..tasks import METRICS, ByClient, Seen, Task
from .fcn import fcn32s, scene_fcn
from .published import find
from .targets import VOID
from .trunk import lite0_fcn

SEGMENTERS = {f.__name__: f for f in (scene_fcn, lite0_fcn, fcn32s)}


def pixel_cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, the mean over an image's pixels that are not void, then over the
    batch: scores [..., batch, classes, height, width], y [..., batch, height, width] ->
    [...]. Scores for squares of k x k pixels are compared with the middle pixel."""
    k = y.shape[-1] // scores.shape[-1]
    y = y[..., k // 2 :: k, k // 2 :: k]
    masks = y.flatten(0, -3).long()
    each = F.cross_entropy(
        scores.flatten(0, -4), masks, ignore_index=VOID, reduction="none"
    )
    counted = (masks != VOID).sum((-2, -1))
    losses = each.sum((-2, -1)) / counted.clamp(min=1)
    return losses.view(y.shape[:-2]).mean(-1)


def per_class_iou(seen: Seen) -> list[float]:
    """The intersection over union of each class, whose mean is mIoU."""
    shared = seen.confusion.diag()
    union = seen.confusion.sum(0) + seen.confusion.sum(1) - shared
    return (shared / union).tolist()


class Segmentation(Task):
    """Images with a mask: y uint8 [n, height, width], see ``targets``."""

    networks = SEGMENTERS
    known_metrics = METRICS | {"per_class_iou": per_class_iou}
    ignored = VOID
    batch = 128
    meta = {"task": "segmentation", "accuracy": "mIoU"}
    loss = staticmethod(pixel_cross_entropy)  # type: ignore[assignment]

    @staticmethod
    def find_source(dataset: Any) -> Source:
        return find(dataset, "masks")

    def check_outputs(self, name: str, outputs: Any, y: Tensor) -> None:
        shape = getattr(outputs, "shape", ())
        if len(shape) == 4 and shape[-1]:  # scores of squares are allowed
            k = max(1, y.shape[-1] // shape[-1])
            y = y[:, ::k, ::k]
        super().check_outputs(name, outputs, y)

    def read(self, scores: Tensor) -> Tensor:
        """The class of each pixel [n, height, width], of scores for squares of k x k
        pixels."""
        k = self.shape[-1] // scores.shape[-1]
        answers = scores[..., : self.source.classes, :, :].argmax(-3)
        kinds = answers.repeat_interleave(k, -1)
        return kinds.repeat_interleave(k, -2)

    def score(
        self, net: nn.Module, client: int | None, predictions: ByClient
    ) -> dict[str, float]:
        """mIoU, loss and pixel accuracy. The mean leaves out a class that is neither in
        the masks nor predicted."""
        from torchmetrics import classification

        options = {
            "num_classes": self.source.classes,
            "ignore_index": VOID,
            "validate_args": False,
        }
        overlap = classification.MulticlassJaccardIndex(**options).to(self.device)
        right = classification.MulticlassAccuracy(average="micro", **options)
        right = right.to(self.device)
        total = 0.0
        predicted = []
        for scores, target in self.tested(net):
            total += float(self.loss(scores, target)) * len(target)
            kinds = self.read(scores)
            overlap.update(kinds, target.long())
            right.update(kinds, target.long())
            predicted.append(kinds.to(torch.uint8).cpu())
        predictions[client] = torch.cat(predicted)
        return {
            "accuracy": float(overlap.compute()),
            "loss": total / len(self.test[1]),
            "pixel_accuracy": float(right.compute()),
        }


@wraps(Task.make, assigned=(), updated=())  # its signature
def segmentation(*args: Any, **options: Any) -> Segmentation:
    """A task with masks. The column accuracy is mIoU.

    Parameters
    ----------
    dataset
        "digits" or "voc" as of ``detection``; or what ``fl.seeing.from_masks`` makes.
    network
        A name in ``fl.seeing.SEGMENTERS``, or a function that makes a module with
        scores [batch, classes, height, width] as output; height and width may both be
        smaller by a whole factor.
    metrics
        "per_class_iou", or those of ``fl.tasks.classification``, which count pixels.
    clients, partition, seed, train, test, device, validation
        As of ``detection``.

    Examples
    --------
    >>> import numpy as np
    >>> import fedlearn as fl
    >>> pictures = np.zeros((4, 64, 64), np.uint8)
    >>> masks = np.ones((4, 64, 64), np.uint8)
    >>> source = fl.seeing.from_masks(pictures, masks, classes=2, test=0.5)
    >>> fl.seeing.segmentation(source, clients=2).class_counts.tolist()
    [[0, 4096], [0, 4096]]
    """
    task = Segmentation.make(*args, **options)
    task.try_network()
    return task
