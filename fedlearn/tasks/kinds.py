"""The kinds of task: classification, detection, segmentation. Each has a data set, how it is split
over clients, a network, a loss and a metric."""

import inspect
import math
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import models, rng
from ..arguments import checked, short
from ..data import published
from ..data.annotations import CROWD, VOID
from ..data.sources import Source
from .augment import ANNOTATED, LABELLED
from .base import Task
from .metrics import ByClient, Seen

NETWORK = {"digits": "digits_cnn", "mnist": "mcmahan_cnn", "fashion_mnist": "mcmahan_cnn"}
BEYOND = 1e10  # square pixels; COCO's evaluation leaves larger objects out
SCORE = 0.01  # what scores less is no prediction
OVERLAP = 0.5  # IoU with a better box of the same class from which on a box is suppressed
MOST = 100  # predictions an image, as COCO counts

Boxes = dict[str, Tensor]  # of an image: boxes [k, 4] xyxy, scores [k], labels [k]
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


# ---- classification ------------------------------------------------------------------------------


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
        return np.array(names)[numbers.cpu()] if names else numbers

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


# ---- detection -----------------------------------------------------------------------------------


def best(boxes: Tensor, scores: Tensor) -> Boxes:
    """What a detector says of one image, boxes [places, 4] and scores [places, classes], without
    what is weak or said twice (torchvision's nms, class by class)."""
    from torchvision.ops import batched_nms

    score, label = scores.max(-1)
    strong = score > SCORE
    boxes, score, label = boxes[strong], score[strong], label[strong]
    kept = batched_nms(boxes, score, label, OVERLAP)[:MOST]
    return {"boxes": boxes[kept], "scores": score[kept], "labels": label[kept]}


def precisions(predictions: list[Boxes], y: Tensor, **options: Any) -> dict[str, Tensor]:
    """What torchmetrics' COCO evaluation says of predictions; y [n, objects, 6].

    What finds an object that is difficult is neither right nor wrong, and what lies in a crowd
    neither, however often."""
    from torchmetrics.detection import MeanAveragePrecision

    targets = []
    for rows in y.cpu():
        rows = rows[rows[:, 4] >= 0]
        crowd = rows[:, 5] == CROWD
        area = torch.where(rows[:, 5] == 1, 2 * BEYOND, (rows[:, 2:4] - rows[:, :2]).prod(-1))
        more = {"iscrowd": crowd.long(), "area": area}
        targets.append({"boxes": rows[:, :4], "labels": rows[:, 4].long(), **more})
    metric = MeanAveragePrecision(backend="faster_coco_eval", **options)
    metric.update([{name: t.cpu() for name, t in boxes.items()} for boxes in predictions], targets)
    return metric.compute()


def average_precision(predictions: list[Boxes], y: Tensor) -> dict[str, float]:
    """COCO's mAP at an IoU of 0.5, and over 0.5 to 0.95; -1 if no object is to be found."""
    result = precisions(predictions, y)
    return {"map_50": float(result["map_50"]), "map_50_95": float(result["map"])}


def per_class_ap(seen: Seen) -> list[float]:
    """The average precision at an IoU of 0.5 of each class; None for one that is not shown."""
    predictions = [boxes for each in seen.predictions.values() for boxes in each]
    y = seen.labels.repeat(len(seen.predictions), 1, 1)
    result = precisions(predictions, y, iou_thresholds=[0.5], class_metrics=True)
    pairs = torch.stack([result["classes"], result["map_per_class"]], -1).view(-1, 2)
    values = {int(kind): value for kind, value in pairs.tolist() if value >= 0}  # -1: not shown
    return [values.get(kind, math.nan) for kind in range(seen.held.shape[1])]


class Detection(Task):
    """Images with any number of boxes: y [n, objects, 6], see ``data.annotations``. The network
    brings its loss along (``models.heads``)."""

    networks = models.DETECTORS
    augmentations = ANNOTATED
    known_metrics = {"per_class_ap": per_class_ap}
    batch = 128
    about = {"task": "detection", "accuracy": "mAP@0.5"}

    @staticmethod
    def find_source(dataset: Any) -> Source:
        return published.annotated(dataset, "boxes")

    @cached_property
    def head(self) -> models.heads.Head:
        """What the network's output means."""
        with rng.scope(self.seed, "head"):
            net = self.network()
        if not isinstance(getattr(net, "head", None), models.heads.Head):
            raise ValueError(
                f"A network for detection has a head (fedlearn.models.heads), unlike {short(net)}."
            )
        return net.head

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        return self.head.loss(outputs, y, self.shape[1:])

    def check_outputs(self, name: str, outputs: Any, y: Tensor) -> None:
        head = self.head
        try:
            head.loss(outputs, y, self.shape[1:])
        except Exception as error:
            reason = models.one_line(error)
            raise ValueError(f"{name} gives what its head cannot read ({reason}).") from error

    def classes(self, y: Tensor) -> Tensor:
        kinds = y[..., 4].long()
        return kinds[kinds >= 0]

    def read(self, outputs: Any) -> list[Boxes]:
        """What a network finds in each image, best first."""
        pairs = zip(*self.head.decode(outputs, self.shape[1:]), strict=True)
        return [best(boxes, scores) for boxes, scores in pairs]

    def score(self, net: nn.Module, client: int | None, predictions: ByClient) -> dict[str, float]:
        """mAP@0.5, loss, and mAP@0.5:0.95 as "map_50_95"."""
        y, total, boxes = self.test[1], 0.0, []
        for outputs, target in self.tested(net):
            total += float(self.loss(outputs, target)) * len(target)
            boxes += self.read(outputs)
        predictions[client] = boxes
        precision = average_precision(boxes, y)
        accuracy = precision.pop("map_50")
        return {"accuracy": accuracy, "loss": total / len(y), **precision}


@arguments_of(Task.make)
def detection(**arguments: Any) -> Detection:
    """Boxes with classes. The column accuracy is mAP@0.5; ``metrics`` may be "per_class_ap", the
    same of each class.

    Parameters
    ----------
    dataset
        "digits", digit scenes (``fl.data.digit_scenes``), or "digits:0.8" in that difficulty from
        0 to 1; "voc" or "coco", or "voc:96" for pictures of 96 pixels and "voc:96,skip" to leave
        out those that are wrong; or the first arguments of ``fl.data.from_boxes``, or what that
        makes of them.
    partition
        As of ``classification``, by the class that fills most of an image; "objects" goes by their
        number.
    network
        A name in ``fl.models.DETECTORS``, with "@FILE" behind it if it starts from weights in a
        file, or a function that makes a module with a ``head``.
    augment
        Any of "crop", "flip" and "scale".
    clients, seed, train, test, device, validation
        As of ``classification``.

    Examples
    --------
    >>> import numpy as np
    >>> pictures, boxes = np.zeros((4, 64, 64), np.uint8), [[[20, 10, 36, 30, 0]]] * 4
    >>> detection((pictures, boxes, 1, 0.5), clients=2).sizes
    [1, 1]
    """
    task = Detection.make(**arguments)
    task.head  # noqa: B018  a network without one is said now
    if not models.heads.present(task.test[1]).any():
        raise ValueError("The test images show no object that counts: nothing can be measured.")
    return task


# ---- segmentation --------------------------------------------------------------------------------


def pixel_cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, the mean of an image's pixels that are not void, then of the batch: scores
    [..., batch, classes, height, width], y [..., batch, height, width] -> [...]. Of scores for
    squares of k x k pixels the middle one counts."""
    k = y.shape[-1] // scores.shape[-1]
    y = y[..., k // 2 :: k, k // 2 :: k]
    each = F.cross_entropy(
        scores.flatten(0, -4), y.flatten(0, -3).long(), ignore_index=VOID, reduction="none"
    )
    counted = (y.flatten(0, -3) != VOID).sum((-2, -1)).clamp(min=1)
    return (each.sum((-2, -1)) / counted).view(y.shape[:-2]).mean(-1)


class Segmentation(Task):
    """Images with a mask: y uint8 [n, height, width], see ``data.annotations``."""

    networks = models.SEGMENTERS
    augmentations = ANNOTATED
    ignored = VOID
    batch = 128
    about = {"task": "segmentation", "accuracy": "mIoU"}
    loss = staticmethod(pixel_cross_entropy)  # type: ignore[assignment]

    @staticmethod
    def find_source(dataset: Any) -> Source:
        return published.annotated(dataset, "masks")

    def read(self, scores: Tensor) -> Tensor:
        """The class of each pixel [n, height, width], of scores for squares of k x k pixels."""
        kinds, k = scores.argmax(-3), self.shape[-1] // scores.shape[-1]
        return kinds.repeat_interleave(k, -1).repeat_interleave(k, -2)

    def score(self, net: nn.Module, client: int | None, predictions: ByClient) -> dict[str, float]:
        """mIoU, loss and pixel accuracy. A class that is neither shown nor predicted counts for
        nothing."""
        from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

        options = {"num_classes": self.source.classes, "ignore_index": VOID, "validate_args": False}
        overlap = MulticlassJaccardIndex(**options).to(self.device)
        right = MulticlassAccuracy(average="micro", **options).to(self.device)
        total, predicted = 0.0, []
        for scores, target in self.tested(net):
            total += float(self.loss(scores, target)) * len(target)
            kinds = self.read(scores)
            overlap.update(kinds, target.long())
            right.update(kinds, target.long())
            if self.metrics:
                predicted.append(kinds.to(torch.uint8).cpu())
        if predicted:
            predictions[client] = torch.cat(predicted)
        accuracy = {"accuracy": float(overlap.compute()), "loss": total / len(self.test[1])}
        return accuracy | {"pixel_accuracy": float(right.compute())}


@arguments_of(Task.make)
def segmentation(**arguments: Any) -> Segmentation:
    """Masks. The column accuracy is mIoU; ``metrics`` are those of ``classification``, of pixels.

    Parameters
    ----------
    dataset
        "digits" or "voc" as of ``detection``; or the first arguments of ``fl.data.from_masks``, or
        what that makes of them.
    network
        A name in ``fl.models.SEGMENTERS``, or a function that makes a module that gives scores
        [batch, classes, height, width], or a k-th of both sides.
    clients, partition, seed, augment, train, test, device, validation
        As of ``detection``.

    Examples
    --------
    >>> import numpy as np
    >>> pictures, masks = np.zeros((4, 64, 64), np.uint8), np.ones((4, 64, 64), np.uint8)
    >>> segmentation((pictures, masks, 2, 0.5), clients=2).held.tolist()
    [[0, 4096], [0, 4096]]
    """
    return Segmentation.make(**arguments)
