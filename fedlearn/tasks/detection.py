"""Object detection: boxes with classes. The network brings its loss along (``models.heads``)."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch

from .. import models, rng
from ..arguments import checked, short
from ..data import published, scenes
from ..data.arrays import CROWD, annotated, from_boxes
from ..data.sources import Source
from .augment import ANNOTATED
from .base import Task
from .metrics import ByClient

DATASETS: dict[str, Callable[[str], Source]] = {
    "digits": partial(scenes.named, "boxes"),
    "voc": partial(published.named, "voc", "boxes"),
    "coco": partial(published.named, "coco", "boxes"),
}
BEYOND = 1e10  # square pixels; COCO's evaluation leaves larger objects out
SCORE = 0.01  # what scores less is no prediction
OVERLAP = 0.5  # IoU with a better box of the same class from which on a box is suppressed
MOST = 100  # predictions an image, as COCO counts

Boxes = dict[str, torch.Tensor]  # of an image: boxes [k, 4] xyxy, scores [k], labels [k]


def best(boxes: torch.Tensor, scores: torch.Tensor) -> Boxes:
    """What a detector says of one image, boxes [places, 4] and scores [places, classes], without
    what is weak or said twice (torchvision's nms, class by class)."""
    from torchvision.ops import batched_nms

    score, label = scores.max(-1)
    strong = score > SCORE
    boxes, score, label = boxes[strong], score[strong], label[strong]
    kept = batched_nms(boxes, score, label, OVERLAP)[:MOST]
    return {"boxes": boxes[kept], "scores": score[kept], "labels": label[kept]}


def average_precision(predictions: list[Boxes], y: torch.Tensor) -> dict[str, float]:
    """COCO's mAP: at an IoU of 0.5, and the mean over 0.5, 0.55, ..., 0.95; y [n, objects, 6].

    What finds an object that is difficult is neither right nor wrong, and what lies in a crowd
    neither, however often. Both are -1 if there is no object to be found."""
    from torchmetrics.detection import MeanAveragePrecision

    targets = []
    for rows in y.cpu():
        rows = rows[rows[:, 4] >= 0]
        crowd = rows[:, 5] == CROWD
        area = torch.where(rows[:, 5] == 1, 2 * BEYOND, (rows[:, 2:4] - rows[:, :2]).prod(-1))
        more = {"iscrowd": crowd.long(), "area": area}
        targets.append({"boxes": rows[:, :4], "labels": rows[:, 4].long(), **more})
    metric = MeanAveragePrecision(backend="faster_coco_eval")
    metric.update([{name: t.cpu() for name, t in boxes.items()} for boxes in predictions], targets)
    result = metric.compute()
    return {"map_50": float(result["map_50"]), "map_50_95": float(result["map"])}


class Detection(Task):
    """Images with any number of boxes: y [n, objects, 6], see ``data.arrays``."""

    networks = models.DETECTORS
    augmentations = ANNOTATED
    batch = 128
    about = {"task": "detection", "accuracy": "mAP@0.5"}

    @classmethod
    def find_source(cls, dataset: Any, users: Any = None) -> Source:
        source = annotated(dataset, DATASETS, from_boxes)
        if source.train_y.dim() != 3 or source.train_y.shape[-1] != 6:
            raise ValueError(f"{source.name} has no boxes (fl.data.from_boxes makes such a set).")
        return source

    @classmethod
    def default_network(cls, source: Source) -> str:
        return "scene_detector"

    @cached_property
    def head(self) -> Any:
        """What the network's output means."""
        with rng.scope(self.seed, "head"):
            net = self.network()
        if not isinstance(getattr(net, "head", None), models.heads.Head):
            raise ValueError(
                f"A network for detection has a head (fedlearn.models.heads), unlike {short(net)}."
            )
        return net.head

    def loss(self, outputs: Any, y: torch.Tensor) -> torch.Tensor:
        return self.head.loss(outputs, y, self.shape[1:])

    def classes(self, y: torch.Tensor) -> torch.Tensor:
        kinds = y[..., 4].long()
        return kinds[kinds >= 0]

    def predict(self, net: torch.nn.Module, x: torch.Tensor) -> list[Boxes]:
        """What ``net`` finds in images as they are stored, best first."""
        return self._read(net(self.inputs(x)))

    def _read(self, outputs: Any) -> list[Boxes]:
        pairs = zip(*self.head.decode(outputs, self.shape[1:]), strict=True)
        return [best(boxes, scores) for boxes, scores in pairs]

    def score(
        self, net: torch.nn.Module, batch: int, client: int | None, predictions: ByClient
    ) -> dict[str, float]:
        """{"accuracy": mAP@0.5, "loss", "map_50_95": mAP@0.5:0.95} on the test set."""
        (x, y), total, boxes = self.test, 0.0, []
        for images, target in zip(x.split(batch), y.split(batch), strict=True):
            outputs = net(self.inputs(images))
            total += float(self.loss(outputs, target)) * len(target)
            boxes += self._read(outputs)
        precision = average_precision(boxes, y)
        accuracy = precision.pop("map_50")
        return {"accuracy": accuracy, "loss": total / len(y), **precision}


@checked
def detection(
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
) -> Detection:
    """Boxes with classes. The column accuracy is mAP@0.5, and there are no other ``metrics``.

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
    clients, seed, train, test, device
        As of ``classification``.

    Examples
    --------
    >>> import numpy as np
    >>> pictures, boxes = np.zeros((4, 64, 64), np.uint8), [[[20, 10, 36, 30, 0]]] * 4
    >>> detection((pictures, boxes, 1, 0.5), clients=2).sizes
    [1, 1]
    """
    if metrics:
        raise ValueError("Detection measures mAP and nothing else: leave metrics out.")
    task = Detection.make(
        dataset, clients, partition, seed, network, augment, train, test, device, ()
    )
    task.head  # noqa: B018  a network without one is said now
    if not ((task.test[1][..., 4] >= 0) & (task.test[1][..., 5] < 1)).any():
        raise ValueError("The test images show no object that counts: nothing can be measured.")
    return task
