"""What a detector's output means: how objects are assigned to places, the loss, and the way back to
boxes. A network for detection says which of these it ends in: its attribute ``head``.

In YOLOX alone the loss deviates from the authors': they divide by the assigned places of a whole
batch, and here the loss of an image depends on no other image.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

Maps = Sequence[torch.Tensor]
Size = tuple[int, ...]  # height and width of the images in pixels

PRIOR = 0.05  # how likely a place is to hold an object, before anything is learned
# YOLOv3's anchors for COCO, width and height in pixels of a picture of 416 x 416, coarse map first
ANCHORS = (
    ((116, 90), (156, 198), (373, 326)),
    ((30, 61), (62, 45), (59, 119)),
    ((10, 13), (16, 30), (33, 23)),
)
AT = 416
FAR = 1e5  # what a pair costs that is not both in the object's box and near its middle
NEVER = 1e9  # what a pair costs that must not be

bce = partial(F.binary_cross_entropy_with_logits, reduction="none")


def expect_few(
    layer: torch.nn.Conv2d, outputs: Iterable[int], share: float = PRIOR
) -> torch.nn.Conv2d:
    """The layer with biases that make these of its outputs, behind a sigmoid, as rare as that."""
    with torch.no_grad():
        layer.bias[list(outputs)] = torch.tensor(share).logit()
    return layer


def middles(rows: int, columns: int, size: Size, device: Any) -> torch.Tensor:
    """The middles of all cells of a map, row after row, x and y in pixels [cells, 2]."""
    x = (torch.arange(columns, device=device) + 0.5) * size[1] / columns
    y = (torch.arange(rows, device=device) + 0.5) * size[0] / rows
    return torch.stack([x.repeat(rows), y.repeat_interleave(columns)], -1)


def within(y: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Which points [n, 2] lie in the boxes of y [images, objects, ...]: [images, objects, n]."""
    left, top, right, bottom = (y[..., i, None] for i in range(4))
    at_x, at_y = points.unbind(-1)
    return (left < at_x) & (at_x < right) & (top < at_y) & (at_y < bottom)


def present(y: torch.Tensor) -> torch.Tensor:
    """Which rows of y are objects to be learned, neither padding nor ignored: [images, objects]."""
    return (y[..., 4] >= 0) & (y[..., 5] < 1)


def asked(y: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Where objectness is learned: not in an object that is to be ignored, and nowhere in an image
    that counts for nothing: [images, n]."""
    ignored = (y[..., 4] >= 0) & (y[..., 5] > 0)
    absent = (y[..., 4] <= -100).all(-1, keepdim=True)
    return ~(within(y, points) & ignored[..., None]).any(1) & ~absent


def by_cell(m: torch.Tensor) -> torch.Tensor:
    """[..., channels, rows, columns] -> [..., cells, channels]."""
    return m.flatten(-2).transpose(-1, -2)


def taken_places(place: torch.Tensor, taken: torch.Tensor, count: int, like: Any) -> torch.Tensor:
    """1 for each place [images, count] that an object takes, by place and whether it does."""
    zeros = like.new_zeros(len(place), count)
    return zeros.scatter_reduce(1, place, taken.to(zeros.dtype), "amax")


def rows_at(places: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """places [images, n, ...] at index [images, objects]: [images, objects, ...]."""
    return places.gather(1, index[..., None].expand(-1, -1, places.shape[-1]))


def boxes_of(places: torch.Tensor, sides: Any, grid: Sequence[int], size: Size) -> torch.Tensor:
    """YOLOv3's equations, [..., cells, 4 and more] -> xyxy in pixels: the cell at (i, j), of s
    pixels, predicts the centre ((j + sigmoid(x)) s, (i + sigmoid(y)) s) and the sides p exp(w) and
    p exp(h), p of ``sides`` (None: s). ``grid`` is rows and columns."""
    rows, columns = grid
    cell = torch.arange(rows * columns, device=places.device)
    corner = torch.stack([cell % columns, cell // columns], -1)
    scale = places.new_tensor([size[1] / columns, size[0] / rows])
    middle = (corner + places[..., :2].sigmoid()) * scale
    half = places[..., 2:4].clamp(max=5).exp() * (scale if sides is None else sides) / 2
    return torch.cat([middle - half, middle + half], -1)  # 5: sides of 148 cells


def overlaps(y: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """IoU of objects y [images, objects, ...] with boxes [images, places, 4]: [images, objects,
    places]."""
    from torchvision.ops import box_iou  # takes long to load

    return torch.stack([box_iou(o[:, :4], b) for o, b in zip(y, boxes, strict=True)])


def one_hot(y: torch.Tensor, classes: int) -> torch.Tensor:
    """Of each object, y [..., 6]; of what is none, of class 0."""
    return F.one_hot(y[..., 4].long().clamp(min=0), classes).to(y.dtype)


class Head:
    """Base of all heads. y is [..., batch, objects, 6] as ``data.arrays`` has it, and -100
    throughout for an image that counts for nothing."""

    def channels(self, classes: int) -> int:
        """How many numbers the network gives for a place."""
        return 5 + classes

    def loss(self, outputs: Any, y: torch.Tensor, size: Size) -> torch.Tensor:
        """Mean over the batch of the images' losses, [...]. Each image's must depend on no other
        image, and be zero if the image counts for nothing."""
        raise NotImplementedError

    def decode(self, outputs: Any, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
        """Boxes [batch, places, 4] and scores [batch, places, classes], before any suppression."""
        raise NotImplementedError


@dataclass(frozen=True)
class Centre(Head):
    """One box a place, without anchors: the output is a map [..., batch, 5 + classes, rows,
    columns] of x, y, w, h, objectness and class scores.

    The place of an object is the cell that its centre lies in; boxes as in ``boxes_of``. With n
    objects, the loss of an image is

        (sum of all cells' BCE of objectness + sum of objects' (box GIoU + cross-entropy)) / n

    each with its weight, n at least 1. Cells whose middle lies in an ignored object say nothing
    about objectness, unless another object's centre is there.
    """

    objectness: float = 1.0
    box: float = 2.0
    kind: float = 1.0

    def start(self, layer: torch.nn.Conv2d) -> torch.nn.Conv2d:
        """The convolution in front of this head with a bias that expects few objects."""
        return expect_few(layer, [4])

    def cells(self, y: torch.Tensor, size: Size, rows: int, columns: int) -> Any:
        """Where objects belong, y [images, objects, 6]: cell of each (0 if there is none), which of
        them count, 1 for each cell with an object, and which cells are asked for objectness: two
        [images, objects], two [images, cells]."""
        objects, (height, width) = present(y), size
        middle = (y[..., :2] + y[..., 2:4]) / 2
        column = (middle[..., 0] * columns / width).long().clamp(0, columns - 1)
        row = (middle[..., 1] * rows / height).long().clamp(0, rows - 1)
        cell = torch.where(objects, row * columns + column, 0)
        taken = taken_places(cell, objects, rows * columns, y)
        learned = asked(y, middles(rows, columns, size, y.device))
        return cell, objects, taken, (taken > 0) | learned

    def loss(self, outputs: torch.Tensor, y: torch.Tensor, size: Size) -> torch.Tensor:
        from torchvision.ops import generalized_box_iou_loss  # takes long to load

        lead, (rows, columns) = y.shape[:-2], outputs.shape[-2:]
        places = by_cell(outputs).flatten(0, -3)  # [images, cells, channels]
        y = y.flatten(0, -3).to(places.dtype)
        cell, objects, taken, learned = self.cells(y, size, rows, columns)
        boxes = boxes_of(places, None, (rows, columns), size)
        predicted = rows_at(torch.cat([boxes, places[..., 5:]], -1), cell)
        # a row that holds no object is compared with the box of its own place, and not counted
        truth = torch.where(objects[..., None], y[..., :4], predicted[..., :4].detach())
        box = generalized_box_iou_loss(predicted[..., :4], truth)
        kind = torch.where(objects, y[..., 4], 0).long()
        kind = F.cross_entropy(predicted[..., 4:].transpose(1, 2), kind, reduction="none")
        each = torch.where(objects, self.box * box + self.kind * kind, 0).sum(-1)
        total = self.objectness * (bce(places[..., 4], taken) * learned).sum(-1) + each
        return (total / objects.sum(-1).clamp(min=1)).view(lead).mean(-1)

    def decode(self, outputs: torch.Tensor, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
        places = by_cell(outputs)
        scores = places[..., 4:5].sigmoid() * places[..., 5:].softmax(-1)
        return boxes_of(places, None, outputs.shape[-2:], size), scores


@dataclass(frozen=True)
class ThreeAnchors(Head):
    """YOLOv3 (Redmon and Farhadi, 2018, section 2): three anchors a cell, a map [..., batch,
    3 (5 + classes), rows, columns] for each of three strides, of x, y, w, h, objectness and class
    scores for each anchor; boxes as in ``boxes_of``, p the sides of the anchor.

    An object belongs to the anchor, of all nine, whose shape overlaps most with its own, in the
    cell that its centre lies in. The loss of an image is the sum of::

        objects: (2 - share of the picture) / 2 x squared errors of sigmoid(x), sigmoid(y), w, h
        objects: binary cross-entropy of each class
        places:  binary cross-entropy of objectness; a place without an object is not asked if its
                 box overlaps one by more than ``ignore``

    as in the authors' program (the factor before the squares is not in the paper). Sides of anchors
    are those for COCO, in proportion to the picture. Places in an ignored object are not asked."""

    ignore: float = 0.5

    def channels(self, classes: int) -> int:
        return 3 * (5 + classes)

    def anchors(self, size: Size, like: torch.Tensor) -> torch.Tensor:
        """[maps, 3, 2], in pixels of a picture of height and width ``size``."""
        return like.new_tensor(ANCHORS) * like.new_tensor([size[1], size[0]]) / AT

    def places(self, m: torch.Tensor) -> torch.Tensor:
        """[images, 3 (5 + classes), rows, columns] -> [images, 3, cells, 5 + classes]."""
        return by_cell(m.unflatten(1, (3, -1)))

    def chosen(self, y: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """The anchor of each object, 0 to 8: [images, objects]."""
        sides, shapes = (y[..., 2:4] - y[..., :2])[..., None, :], anchors.flatten(0, 1)
        common = torch.minimum(sides, shapes).prod(-1)
        return (common / (sides.prod(-1) + shapes.prod(-1) - common).clamp(min=1e-9)).argmax(-1)

    def loss(self, outputs: Maps, y: torch.Tensor, size: Size) -> torch.Tensor:
        lead, (height, width) = y.shape[:-2], size
        maps = [m.flatten(0, -4) for m in outputs]
        y = y.flatten(0, -3).to(maps[0].dtype)
        anchors = self.anchors(size, y)
        best = self.chosen(y, anchors)
        middle, sides = (y[..., :2] + y[..., 2:4]) / 2, y[..., 2:4] - y[..., :2]
        weight = (2 - sides.prod(-1) / (width * height)) / 2
        total = y.new_zeros(len(y))
        for level, m in enumerate(maps):
            rows, columns = m.shape[-2:]
            objects = present(y) & (best // 3 == level)
            at = middle * y.new_tensor([columns / width, rows / height])
            corner = at.floor().clamp(min=0).minimum(at.new_tensor([columns - 1, rows - 1]))
            cell = (corner[..., 1] * columns + corner[..., 0]).long()
            place = torch.where(objects, best % 3 * rows * columns + cell, 0)
            places, shapes = self.places(m), anchors[level][:, None]
            boxes = boxes_of(places.detach(), shapes, (rows, columns), size).flatten(1, 2)
            places = places.flatten(1, 2)
            taken = taken_places(place, objects, places.shape[1], y)
            near = (overlaps(y, boxes) * (y[..., 4:5] >= 0)).amax(1) > self.ignore
            learned = ~near & asked(y, middles(rows, columns, size, y.device)).repeat(1, 3)
            learned |= taken > 0
            predicted = rows_at(places, place)
            wanted = (sides.clamp(min=1e-9) / anchors[level][best % 3]).log()
            error = (predicted[..., :2].sigmoid() - (at - corner)) ** 2
            error = error + (predicted[..., 2:4] - wanted) ** 2
            kind = bce(predicted[..., 5:], one_hot(y, predicted.shape[-1] - 5))
            each = weight * error.sum(-1) + kind.sum(-1)
            objectness = (bce(places[..., 4], taken) * learned).sum(-1)
            total = total + objectness + torch.where(objects, each, 0).sum(-1)
        return total.view(lead).mean(-1)

    def decode(self, outputs: Maps, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
        boxes, scores = [], []
        for m, anchors in zip(outputs, self.anchors(size, outputs[0]), strict=True):
            places = self.places(m)
            boxes.append(boxes_of(places, anchors[:, None], m.shape[-2:], size).flatten(1, 2))
            score = places[..., 4:5].sigmoid() * places[..., 5:].sigmoid()
            scores.append(score.flatten(1, 2))
        return torch.cat(boxes, 1), torch.cat(scores, 1)


@dataclass(frozen=True)
class SimOTA(Head):
    """YOLOX (Ge et al., 2021, section 2.1): one box a place, maps [..., batch, 5 + classes, rows,
    columns] of three strides, of x, y, w, h, objectness and class scores. The cell at (i, j), of s
    pixels, predicts the centre ((j + x) s, (i + y) s) and the sides s exp(w), s exp(h).

    SimOTA: places may be taken that lie in an object's box, or within ``radius`` cells of its
    middle. A pair of object and place costs BCE(class) + 3 (-log IoU), and far more if not both
    hold for the two. An object takes as many of its cheapest places as the sum of its ``most``
    largest IoU says, at least one; a place that several want goes to the cheapest. The loss of an
    image is, over its number of taken places,

        taken: 5 (1 - IoU^2) + BCE of the classes, of which the right one should be the IoU
        all:   BCE of objectness, but for places in an ignored object
    """

    radius: float = 1.5
    most: int = 10

    def places(self, outputs: Maps, size: Size) -> tuple[torch.Tensor, ...]:
        """All maps as [images, places, 5 + classes]; boxes [images, places, 4]; middles of cells
        [places, 2]; their sides [places, 2]."""
        flat, points, sides = [], [], []
        for m in outputs:
            rows, columns = m.shape[-2:]
            flat.append(by_cell(m.flatten(0, -4)))
            points.append(middles(rows, columns, size, m.device).to(m.dtype))
            side = m.new_tensor([size[1] / columns, size[0] / rows])
            sides.append(side.expand(rows * columns, 2))
        places, point, cell = torch.cat(flat, 1), torch.cat(points), torch.cat(sides)
        middle = point + (places[..., :2] - 0.5) * cell  # a cell's corner is its x = y = 0
        half = places[..., 2:4].clamp(max=8).exp() * cell / 2
        return places, torch.cat([middle - half, middle + half], -1), point, cell

    @torch.no_grad()
    def assign(
        self,
        y: torch.Tensor,
        places: torch.Tensor,
        iou: torch.Tensor,
        point: torch.Tensor,
        cell: torch.Tensor,
    ) -> torch.Tensor:
        """The object that takes each place, -1 for none: int64 [images, places]; ``iou`` [images,
        objects, places]."""
        objects = present(y)[..., None]
        middle = ((y[..., :2] + y[..., 2:4]) / 2)[..., None, :]
        near = ((middle - point).abs() < self.radius * cell).all(-1)
        inside = within(y, point)
        may = objects & (objects & (inside | near)).any(1, keepdim=True)
        score = (places[..., 4:5].sigmoid() * places[..., 5:].sigmoid()).sqrt()
        score = score.clamp(1e-7, 1 - 1e-7)
        wrong = -(1 - score).log().sum(-1)  # of no class; then the right one in place of wrong
        right = (1 - score).log() - score.log()
        kind = y[..., 4].long().clamp(min=0)[..., None].expand(-1, -1, places.shape[1])
        cost = wrong[:, None] + right.transpose(1, 2).gather(1, kind)
        cost = cost - 3 * (iou + 1e-8).log() + FAR * ~(inside & near)
        cost = cost.masked_fill(~may, NEVER)
        count = (iou * may).topk(min(self.most, iou.shape[-1]), -1).values
        count = count.sum(-1).int().clamp(min=1)
        rank = torch.argsort(cost, dim=-1, stable=True).argsort(-1)
        wanted = may & (rank < count[..., None])
        first, cheapest = wanted.int().argmax(1), cost.argmin(1)
        object_of = torch.where(wanted.sum(1) > 1, cheapest, first)
        return torch.where(wanted.any(1), object_of, -1)

    def loss(self, outputs: Maps, y: torch.Tensor, size: Size) -> torch.Tensor:
        places, boxes, point, cell = self.places(outputs, size)
        lead, y = y.shape[:-2], y.flatten(0, -3).to(places.dtype)
        iou = overlaps(y, boxes)
        object_of = self.assign(y, places, iou, point, cell)
        taken, which = object_of >= 0, object_of.clamp(min=0)
        overlap = iou.gather(1, which[:, None])[:, 0]
        kinds = rows_at(one_hot(y, places.shape[-1] - 5), which)
        kind = bce(places[..., 5:], kinds * overlap.detach()[..., None]).sum(-1)
        each = torch.where(taken, 5 * (1 - overlap**2) + kind, 0).sum(-1)
        objectness = bce(places[..., 4], taken.to(y.dtype))
        total = (objectness * (taken | asked(y, point))).sum(-1) + each
        return (total / taken.sum(-1).clamp(min=1)).view(lead).mean(-1)

    def decode(self, outputs: Maps, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
        places, boxes, *_ = self.places(outputs, size)
        return boxes, places[..., 4:5].sigmoid() * places[..., 5:].sigmoid()
