"""What a detector's output means: how objects are assigned to places, the loss, and the way back to
boxes. A network for detection says which of these it ends in: its attribute ``head``.

In YOLOX alone the loss deviates from the authors': they divide by the assigned places of a whole
batch, and here the loss of an image depends on no other image.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import extra

Maps = Sequence[Tensor]  # of several strides
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


def expect_few(layer: nn.Conv2d, outputs: Iterable[int], share: float = PRIOR) -> nn.Conv2d:
    """The layer with biases that make these of its outputs, behind a sigmoid, as rare as that."""
    with torch.no_grad():
        layer.bias[list(outputs)] = torch.tensor(share).logit()
    return layer


def cells(m: Tensor, size: Size) -> tuple[Tensor, Tensor]:
    """Column and row of each cell of a map [cells, 2], and the sides of a cell in pixels [2]."""
    rows, columns = m.shape[-2:]
    cell = torch.arange(rows * columns, device=m.device)
    grid = torch.stack([cell % columns, cell // columns], -1)
    return grid, m.new_tensor([size[1] / columns, size[0] / rows])


def by_cell(m: Tensor) -> Tensor:
    """[..., channels, rows, columns] -> [..., cells, channels]."""
    return m.flatten(-2).transpose(-1, -2)


def xyxy(middle: Tensor, half: Tensor) -> Tensor:
    """Boxes from their middles and half their sides."""
    return torch.cat([middle - half, middle + half], -1)


def middles(y: Tensor) -> Tensor:
    """The middles of objects in pixels, [..., 2]."""
    return (y[..., :2] + y[..., 2:4]) / 2


def boxes_of(places: Tensor, grid: Tensor, side: Tensor, shape: Tensor) -> Tensor:
    """YOLOv3's equations, [..., cells, 4 and more] -> xyxy in pixels: the cell at (i, j), of s
    pixels, predicts the centre ((j + sigmoid(x)) s, (i + sigmoid(y)) s) and the sides p exp(w) and
    p exp(h), p of ``shape``."""
    half = places[..., 2:4].clamp(max=5).exp() * shape / 2  # 5: sides of 148 cells
    return xyxy((grid + places[..., :2].sigmoid()) * side, half)


def present(y: Tensor) -> Tensor:
    """Which rows of y are objects to be learned, neither padding nor ignored: [images, objects]."""
    return (y[..., 4] >= 0) & (y[..., 5] < 1)


def classes_of(y: Tensor) -> Tensor:
    """The class of each object, int64 [images, objects]; 0 for what is none."""
    return y[..., 4].long().clamp(min=0)


def within(y: Tensor, points: Tensor) -> Tensor:
    """Which points [n, 2] lie in the boxes of y [images, objects, ...]: [images, objects, n]."""
    after = (y[..., None, :2] < points) & (points < y[..., None, 2:4])
    return after.all(-1)


def centre_cells(y: Tensor, m: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """The cell of each object's centre, a number, and where in it, 0 to 1 [images, objects, 2]."""
    rows, columns = m.shape[-2:]
    at = middles(y) / side
    corner = at.floor().clamp(min=0).minimum(at.new_tensor([columns - 1, rows - 1]))
    return (corner[..., 1] * columns + corner[..., 0]).long(), at - corner


def taken_places(place: Tensor, taken: Tensor, places: Tensor) -> Tensor:
    """1 for each of ``places`` [images, n, ...] that an object takes."""
    zeros = places.new_zeros(places.shape[:2])
    return zeros.scatter_reduce(1, place, taken.to(zeros.dtype), "amax")


def rows_at(places: Tensor, index: Tensor) -> Tensor:
    """places [images, n, ...] at index [images, objects]: [images, objects, ...]."""
    return places.gather(1, index[..., None].expand(-1, -1, places.shape[-1]))


def objectness_loss(
    places: Tensor, taken: Tensor, y: Tensor, points: Tensor, near: Tensor | bool = False
) -> Tensor:
    """The sum of the places' BCE of objectness, [images]. A place that no object takes says nothing
    if it is ``near`` one, if its middle, of ``points`` [n, 2], lies in an object to be ignored, or
    if the image counts for nothing."""
    ignored = (y[..., 4] >= 0) & (y[..., 5] > 0)
    absent = (y[..., 4] <= -100).all(-1, keepdim=True)
    silent = (within(y, points) & ignored[..., None]).any(1) | absent | near
    return (bce(places[..., 4], taken) * ((taken > 0) | ~silent)).sum(-1)


def overlaps(y: Tensor, boxes: Tensor) -> Tensor:
    """IoU of objects y with boxes [images, places, 4]: [images, objects, places]."""
    with extra("seeing"):
        from torchvision.ops import box_iou  # takes long to load

    return torch.stack([box_iou(o[:, :4], b) for o, b in zip(y, boxes, strict=True)])


def scores_of(places: Tensor) -> Tensor:
    """Objectness times each class score, [..., classes]."""
    return places[..., 4:5].sigmoid() * places[..., 5:].sigmoid()


class Head:
    """y is [..., batch, objects, 6] (``data.annotations``); -100 if an image counts for nothing."""

    def channels(self, classes: int) -> int:
        """How many numbers the network gives for a place."""
        return 5 + classes

    def loss(self, outputs: Any, y: Tensor, size: Size) -> Tensor:
        """Mean over the batch of the images' losses, [...], from a map or several."""
        maps = [outputs] if torch.is_tensor(outputs) else outputs
        objects = y.flatten(0, -3).to(maps[0].dtype)
        losses = self.image_losses([m.flatten(0, -4) for m in maps], objects, size)
        return losses.view(y.shape[:-2]).mean(-1)

    def image_losses(self, maps: Maps, y: Tensor, size: Size) -> Tensor:
        """The losses of images, from maps [images, channels, rows, columns] and y [images, objects,
        6]. Each must depend on no other image, and be zero if the image counts for nothing."""
        raise NotImplementedError

    def decode(self, outputs: Any, size: Size) -> tuple[Tensor, Tensor]:
        """Boxes [batch, places, 4] and scores [batch, places, classes], before any suppression."""
        raise NotImplementedError


class Centre(Head):
    """One box a place, without anchors: the output is a map [..., batch, 5 + classes, rows,
    columns] of x, y, w, h, objectness and class scores.

    The place of an object is the cell that its centre lies in; boxes as in ``boxes_of``, p the
    sides of a cell. With n objects, the loss of an image is

        (sum of all cells' BCE of objectness + sum of objects' (2 box GIoU + cross-entropy)) / n

    n at least 1. Cells whose middle lies in an ignored object say nothing about objectness, unless
    another object's centre is there.
    """

    def image_losses(self, maps: Maps, y: Tensor, size: Size) -> Tensor:
        with extra("seeing"):
            from torchvision.ops import generalized_box_iou_loss  # takes long to load

        objects, places, (grid, side) = present(y), by_cell(maps[0]), cells(maps[0], size)
        cell = torch.where(objects, centre_cells(y, maps[0], side)[0], 0)
        boxes = boxes_of(places, grid, side, side)
        predicted = rows_at(torch.cat([boxes, places[..., 5:]], -1), cell)
        # a row that holds no object is compared with the box of its own place, and not counted
        truth = torch.where(objects[..., None], y[..., :4], predicted[..., :4].detach())
        box = generalized_box_iou_loss(predicted[..., :4], truth)
        kind = F.cross_entropy(predicted[..., 4:].transpose(1, 2), classes_of(y), reduction="none")
        total = torch.where(objects, 2 * box + kind, 0).sum(-1)
        taken = taken_places(cell, objects, places)
        total = objectness_loss(places, taken, y, (grid + 0.5) * side) + total
        return total / objects.sum(-1).clamp(min=1)

    def decode(self, outputs: Tensor, size: Size) -> tuple[Tensor, Tensor]:
        places, (grid, side) = by_cell(outputs), cells(outputs, size)
        scores = places[..., 4:5].sigmoid() * places[..., 5:].softmax(-1)
        return boxes_of(places, grid, side, side), scores


class ThreeAnchors(Head):
    """YOLOv3 (Redmon and Farhadi, 2018, section 2): three anchors a cell, a map [..., batch,
    3 (5 + classes), rows, columns] for each of three strides, of x, y, w, h, objectness and class
    scores for each anchor; boxes as in ``boxes_of``, p the sides of the anchor.

    An object belongs to the anchor, of all nine, whose shape overlaps most with its own, in the
    cell that its centre lies in. The loss of an image is the sum of::

        objects: (2 - share of the picture) / 2 x squared errors of sigmoid(x), sigmoid(y), w, h
        objects: binary cross-entropy of each class
        places:  binary cross-entropy of objectness; a place without an object is not asked if its
                 box overlaps one by more than ``IGNORE``

    as in the authors' program (the factor before the squares is not in the paper). Sides of anchors
    are those for COCO, in proportion to the picture. Places in an ignored object are not asked."""

    IGNORE = 0.5

    def channels(self, classes: int) -> int:
        return 3 * (5 + classes)

    def anchors(self, size: Size, like: Tensor) -> Tensor:
        """[maps, 3, 2], in pixels."""
        return like.new_tensor(ANCHORS) * like.new_tensor([size[1], size[0]]) / AT

    def places(self, m: Tensor, anchors: Tensor, size: Size) -> tuple[Tensor, Tensor]:
        """[images, 3 (5 + classes), rows, columns] -> [images, 3, cells, 5 + classes], and the
        boxes."""
        places, (grid, side) = by_cell(m.unflatten(1, (3, -1))), cells(m, size)
        return places, boxes_of(places, grid, side, anchors[:, None])

    def image_losses(self, maps: Maps, y: Tensor, size: Size) -> Tensor:
        anchors, sides, total = self.anchors(size, y), y[..., 2:4] - y[..., :2], y.new_zeros(len(y))
        common = torch.minimum(sides[..., None, :], anchors.flatten(0, 1)).prod(-1)
        union = sides.prod(-1)[..., None] + anchors.flatten(0, 1).prod(-1) - common
        best = (common / union.clamp(min=1e-9)).argmax(-1)  # of nine
        weight = (2 - sides.prod(-1) / (size[0] * size[1])) / 2
        for level, m in enumerate(maps):
            objects = present(y) & (best // 3 == level)
            grid, side = cells(m, size)
            cell, inside = centre_cells(y, m, side)
            place = torch.where(objects, best % 3 * len(grid) + cell, 0)
            places, boxes = (t.flatten(1, 2) for t in self.places(m, anchors[level], size))
            near = (overlaps(y, boxes.detach()) * (y[..., 4:5] >= 0)).amax(1) > self.IGNORE
            predicted = rows_at(places, place)
            wanted = (sides.clamp(min=1e-9) / anchors[level][best % 3]).log()
            error = (predicted[..., :2].sigmoid() - inside) ** 2
            error = error + (predicted[..., 2:4] - wanted) ** 2
            kinds = F.one_hot(classes_of(y), predicted.shape[-1] - 5).to(y.dtype)
            kind = bce(predicted[..., 5:], kinds)
            each = weight * error.sum(-1) + kind.sum(-1)
            taken = taken_places(place, objects, places)
            points = ((grid + 0.5) * side).repeat(3, 1)
            objectness = objectness_loss(places, taken, y, points, near)
            total = total + objectness + torch.where(objects, each, 0).sum(-1)
        return total

    def decode(self, outputs: Maps, size: Size) -> tuple[Tensor, Tensor]:
        anchors = self.anchors(size, outputs[0])
        pairs = [self.places(m, a, size) for m, a in zip(outputs, anchors, strict=True)]
        boxes, scores = zip(*((boxes, scores_of(places)) for places, boxes in pairs), strict=True)
        return tuple(torch.cat([t.flatten(1, 2) for t in ts], 1) for ts in (boxes, scores))


class SimOTA(Head):
    """YOLOX (Ge et al., 2021, section 2.1): one box a place, maps [..., batch, 5 + classes, rows,
    columns] of three strides, of x, y, w, h, objectness and class scores. The cell at (i, j), of s
    pixels, predicts the centre ((j + x) s, (i + y) s) and the sides s exp(w), s exp(h).

    SimOTA: places may be taken that lie in an object's box, or within ``RADIUS`` cells of its
    middle. A pair of object and place costs BCE(class) + 3 (-log IoU), and far more if not both
    hold for the two. An object takes as many of its cheapest places as the sum of its ``MOST``
    largest IoU says, at least one; a place that several want goes to the cheapest. The loss of an
    image is, over its number of taken places,

        taken: 5 (1 - IoU^2) + BCE of the classes, of which the right one should be the IoU
        all:   BCE of objectness, but for places in an ignored object
    """

    RADIUS = 1.5
    MOST = 10

    def places(self, maps: Maps, size: Size) -> tuple[Tensor, ...]:
        """All maps as [images, places, 5 + classes]; boxes [images, places, 4]; middles of cells
        [places, 2]; their sides [places, 2]."""
        grids = [cells(m, size) for m in maps]
        places = torch.cat([by_cell(m) for m in maps], 1)
        point = torch.cat([(grid + 0.5) * side for grid, side in grids])
        cell = torch.cat([side.expand(len(grid), 2) for grid, side in grids])
        middle = point + (places[..., :2] - 0.5) * cell  # a cell's corner is its x = y = 0
        return places, xyxy(middle, places[..., 2:4].clamp(max=8).exp() * cell / 2), point, cell

    @torch.no_grad()
    def assign(self, y: Tensor, places: Tensor, iou: Tensor, point: Tensor, cell: Tensor) -> Tensor:
        """The object that takes each place, -1 for none: int64 [images, places]; ``iou`` [images,
        objects, places]."""
        objects = present(y)[..., None]
        near = ((middles(y)[..., None, :] - point).abs() < self.RADIUS * cell).all(-1)
        inside = within(y, point)
        may = objects & (objects & (inside | near)).any(1, keepdim=True)
        score = scores_of(places).sqrt().clamp(1e-7, 1 - 1e-7)
        wrong = -(1 - score).log().sum(-1)  # of no class; then the right one in place of wrong
        right = (1 - score).log() - score.log()
        kind = classes_of(y)[..., None].expand(-1, -1, places.shape[1])
        cost = wrong[:, None] + right.transpose(1, 2).gather(1, kind)
        cost = cost - 3 * (iou + 1e-8).log() + FAR * ~(inside & near)
        cost = cost.masked_fill(~may, NEVER)
        count = (iou * may).topk(min(self.MOST, iou.shape[-1]), -1).values
        count = count.sum(-1).int().clamp(min=1)
        rank = torch.argsort(cost, dim=-1, stable=True).argsort(-1)
        wanted = may & (rank < count[..., None])
        first, cheapest = wanted.int().argmax(1), cost.argmin(1)
        object_of = torch.where(wanted.sum(1) > 1, cheapest, first)
        return torch.where(wanted.any(1), object_of, -1)

    def image_losses(self, maps: Maps, y: Tensor, size: Size) -> Tensor:
        places, boxes, point, cell = self.places(maps, size)
        iou = overlaps(y, boxes)
        object_of = self.assign(y, places, iou, point, cell)
        taken, which = object_of >= 0, object_of.clamp(min=0)
        overlap = iou.gather(1, which[:, None])[:, 0]
        kinds = F.one_hot(classes_of(y).gather(1, which), places.shape[-1] - 5)
        kind = bce(places[..., 5:], kinds * overlap.detach()[..., None]).sum(-1)
        each = torch.where(taken, 5 * (1 - overlap**2) + kind, 0).sum(-1)
        total = objectness_loss(places, taken.to(y.dtype), y, point) + each
        return total / taken.sum(-1).clamp(min=1)

    def decode(self, outputs: Maps, size: Size) -> tuple[Tensor, Tensor]:
        places, boxes, *_ = self.places(outputs, size)
        return boxes, scores_of(places)
