"""Detection: images with any number of boxes."""

import math
from functools import cached_property, wraps
from typing import Any

from torch import Tensor, nn

from .. import rng
from ..data.images import Source
from ..errors import short
from ..tasks import ByClient, Seen, Task
from .heads import Head, objects_of
from .published import find
from .trunk import lite0_detector
from .yolo import scene_detector

SCORE = 0.01  # a box with a lower score is no prediction
OVERLAP = 0.5  # IoU with a better box of its class from which on a box is suppressed
MOST = 100  # predictions an image, as COCO counts
DETECTORS = {f.__name__: f for f in (scene_detector, lite0_detector)}

Boxes = dict[str, Tensor]  # of an image: boxes [k, 4] xyxy, scores [k], labels [k]


def best(boxes: Tensor, scores: Tensor) -> Boxes:
    """Non-maximum suppression, class by class, of one image's boxes [places, 4] with
    scores [places, classes], without the boxes of low scores."""
    from torchvision.ops import batched_nms

    score, label = scores.max(-1)
    strong = score > SCORE
    boxes = boxes[strong]
    score = score[strong]
    label = label[strong]
    index = batched_nms(boxes, score, label, OVERLAP)[:MOST]
    return {"boxes": boxes[index], "scores": score[index], "labels": label[index]}


def precisions(
    predictions: list[Boxes], y: Tensor, **options: Any
) -> dict[str, Tensor]:
    """torchmetrics' COCO evaluation of predictions; y [n, objects, 6]. A mean over no
    object is -1. Ignored objects are COCO's crowds: a prediction inside one is neither
    right nor wrong."""
    from torchmetrics.detection import MeanAveragePrecision

    targets = []
    for rows in y.cpu():
        rows = rows[rows[:, 4] >= 0]
        target = {
            "boxes": rows[:, :4],
            "labels": rows[:, 4].long(),
            "iscrowd": rows[:, 5].long(),
        }
        targets.append(target)
    predicted = []
    for boxes in predictions:
        predicted.append({name: t.cpu() for name, t in boxes.items()})
    metric = MeanAveragePrecision(backend="faster_coco_eval", **options)
    metric.update(predicted, targets)
    return metric.compute()


def per_class_ap(seen: Seen) -> list[float]:
    """The average precision at an IoU of 0.5 of each class, NaN for one without an
    object."""
    predictions = [boxes for each in seen.predictions.values() for boxes in each]
    y = seen.labels.repeat(len(seen.predictions), 1, 1)
    result = precisions(predictions, y, iou_thresholds=[0.5], class_metrics=True)
    precision = result["map_per_class"].view(-1)
    values = precision.new_full((seen.class_counts.shape[1],), -1)
    values[result["classes"].view(-1).long()] = precision
    return values.masked_fill(values < 0, math.nan).tolist()


class Detection(Task):
    """Images with any number of boxes: y [n, objects, 6], see ``targets``. The loss is
    that of the network's attribute ``head``."""

    networks = DETECTORS
    known_metrics = {"per_class_ap": per_class_ap}
    batch = 128
    meta = {"task": "detection", "accuracy": "mAP@0.5"}

    @staticmethod
    def find_source(dataset: Any) -> Source:
        return find(dataset, "boxes")

    @cached_property
    def head(self) -> Head:
        """The meaning of the network's output."""
        with rng.scope(self.seed, "head"):
            net = self.network()
        head = getattr(net, "head", None)
        if not isinstance(head, Head):
            raise ValueError(
                "A network for detection has a head (fedlearn.seeing.heads), unlike "
                f"{short(net)}."
            )
        return head

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        return self.head.loss(outputs, y, self.shape[1:])

    def check_outputs(self, name: str, outputs: Any, y: Tensor) -> None:
        head = self.head
        try:
            head.loss(outputs, y, self.shape[1:])
        except Exception as error:
            raise ValueError(
                f"{name} gives what its head cannot read ({short(error)})."
            ) from error

    def classes(self, y: Tensor) -> Tensor:
        kinds = y[..., 4].long()
        return kinds[kinds >= 0]

    def read(self, outputs: Any) -> list[Boxes]:
        """The predicted boxes of each image, those with the highest scores first."""
        decoded = self.head.decode(outputs, self.shape[1:])
        return [best(*image) for image in zip(*decoded, strict=True)]

    def score(
        self, net: nn.Module, client: int | None, predictions: ByClient
    ) -> dict[str, float]:
        """mAP@0.5, loss, and mAP@0.5:0.95 as "map_50_95"."""
        total = 0.0
        boxes = []
        for outputs, target in self.tested(net):
            total += float(self.loss(outputs, target)) * len(target)
            boxes += self.read(outputs)
        predictions[client] = boxes
        y = self.test[1]
        result = precisions(boxes, y)
        return {
            "accuracy": float(result["map_50"]),
            "loss": total / len(y),
            "map_50_95": float(result["map"]),
        }


@wraps(Task.make, assigned=(), updated=())  # its signature
def detection(*args: Any, **options: Any) -> Detection:
    """A task with boxes and classes. The column accuracy is mAP@0.5.

    Parameters
    ----------
    dataset
        "digits", digit scenes (``fl.seeing.digit_scenes``), or "digits:0.8" in that
        difficulty from 0 to 1; "voc" or "coco", or "voc:96" for pictures of 96 pixels;
        or what ``fl.seeing.from_boxes`` makes.
    partition
        As of ``fl.tasks.classification``, by the class that fills most of an image.
    network
        A name in ``fl.seeing.DETECTORS``, or a function that makes a module with a
        ``head``.
    metrics
        "per_class_ap", the average precision of each class, or functions of your own.
    clients, seed, train, test, device, validation
        As of ``fl.tasks.classification``.

    Examples
    --------
    >>> import numpy as np
    >>> import fedlearn as fl
    >>> pictures, boxes = np.zeros((4, 64, 64), np.uint8), [[[20, 10, 36, 30, 0]]] * 4
    >>> source = fl.seeing.from_boxes(pictures, boxes, classes=1, test=0.5)
    >>> fl.seeing.detection(source, clients=2).sizes
    [1, 1]
    """
    task = Detection.make(*args, **options)
    task.try_network()
    if not objects_of(task.test[1]).present.any():
        raise ValueError(
            "The test images have no object that is not ignored: nothing can be "
            "measured."
        )
    return task
