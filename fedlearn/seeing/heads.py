"""What a detector's output means: the assignment of objects to places, the loss, and
the way back to boxes. A network for detection has the attribute ``head``, one of these.

The loss of an image depends on no other image. In YOLOX the authors differ: they divide
by the assigned places of the whole batch.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Maps = Sequence[Tensor]  # of several strides
Size = tuple[int, ...]  # height and width of the images in pixels

PRIOR = 0.05  # share of places that hold an object, before anything is learned


def expect_few(
    layer: nn.Conv2d, outputs: Iterable[int], share: float = PRIOR
) -> nn.Conv2d:
    """The layer, with biases by which the sigmoid of these outputs begins at
    ``share``."""
    with torch.no_grad():
        layer.bias[list(outputs)] = torch.tensor(share).logit()
    return layer


# ---- places and objects


class Places(NamedTuple):
    """All places of the maps: map after map, anchor after anchor, row after row. The
    network's numbers are [images, places, ...]."""

    xy: Tensor
    wh: Tensor
    objectness: Tensor  # [images, places]
    scores: Tensor  # of the classes
    corner: Tensor  # column and row of the place's cell, [places, 2]
    side: Tensor  # width and height of that cell in pixels, [places, 2]
    anchor: Tensor  # the number of the place's anchor, [places]

    @property
    def middle(self) -> Tensor:
        """The middle of each place's cell in pixels, [places, 2]."""
        return (self.corner + 0.5) * self.side


def places_of(maps: Maps, size: Size, anchors: int) -> Places:
    """The places of maps [images, anchors (5 + classes), rows, columns]."""
    height, width = size
    parts = []
    for level, m in enumerate(maps):
        rows, columns = m.shape[-2:]
        cell = torch.arange(rows * columns, device=m.device)
        corner = torch.stack([cell % columns, cell // columns], -1)
        side = m.new_tensor([width / columns, height / rows])
        anchor = torch.arange(anchors, device=m.device) + anchors * level
        by_anchor = m.unflatten(1, (anchors, -1)).flatten(3).transpose(2, 3)
        part = (
            by_anchor.flatten(1, 2),
            corner.repeat(anchors, 1),
            side.expand(anchors * len(cell), 2),
            anchor.repeat_interleave(len(cell)),
        )
        parts.append(part)
    numbers, *cells = zip(*parts, strict=True)
    xy, wh, objectness, scores = torch.cat(numbers, 1).tensor_split((2, 4, 5), -1)
    return Places(xy, wh, objectness[..., 0], scores, *map(torch.cat, cells))


class Objects(NamedTuple):
    """The objects of images, each [images, objects, ...]."""

    box: Tensor  # x1, y1, x2, y2
    kind: Tensor  # the class, int64; 0 for padding
    present: Tensor  # whether the object is learned
    ignored: Tensor  # whether it counts neither for nor against a detector
    absent: Tensor  # whether the image counts for nothing, [images, 1]

    @property
    def middle(self) -> Tensor:
        """[images, objects, 2] in pixels."""
        return (self.box[..., :2] + self.box[..., 2:]) / 2

    @property
    def sides(self) -> Tensor:
        """Width and height in pixels, [images, objects, 2]."""
        return self.box[..., 2:] - self.box[..., :2]


def objects_of(y: Tensor) -> Objects:
    """The objects of y [images, objects, 6], see ``targets``."""
    kind, ignored = y[..., 4], y[..., 5]
    return Objects(
        y[..., :4],
        kind.long().clamp(min=0),
        (kind >= 0) & (ignored < 1),
        (kind >= 0) & (ignored > 0),
        (kind <= -100).all(-1, keepdim=True),
    )


def rows_at(values: Tensor, place: Tensor) -> Tensor:
    """values [images, places, n] at place [images, objects]: [images, objects, n]."""
    return values.gather(1, place[..., None].expand(-1, -1, values.shape[-1]))


def centre_places(objects: Objects, places: Places, anchor: Tensor | int) -> Tensor:
    """The place of each object: the cell of its centre, with this anchor; 0 for
    padding."""
    cell = (objects.middle[..., None, :] / places.side).floor()
    right = (cell == places.corner).all(-1) & (places.anchor == anchor)
    return torch.where(objects.present, right.int().argmax(-1), 0)


def taken_places(place: Tensor, objects: Objects, places: Places) -> Tensor:
    """1 for each place that an object takes, else 0: [images, places]."""
    zeros = torch.zeros_like(places.objectness)
    return zeros.scatter_reduce(1, place, objects.present.to(zeros.dtype), "amax")


def within(box: Tensor, points: Tensor) -> Tensor:
    """Which points [places, 2] lie in boxes [images, objects, 4]: [images, objects,
    places]."""
    box = box[..., None, :]
    return ((box[..., :2] < points) & (points < box[..., 2:])).all(-1)


def overlaps(objects: Tensor, places: Tensor) -> Tensor:
    """IoU of the boxes of objects with those of places: [images, objects, places]."""
    from torchvision.ops import box_iou  # takes long to load

    return torch.stack([box_iou(*pair) for pair in zip(objects, places, strict=True)])


# ---- heads


def bce(scores: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of each score."""
    return F.binary_cross_entropy_with_logits(scores, target, reduction="none")


def corners(middle: Tensor, half: Tensor) -> Tensor:
    """Boxes x1, y1, x2, y2 of their middles and half their sides."""
    return torch.cat([middle - half, middle + half], -1)


def objectness_loss(
    places: Places, taken: Tensor, objects: Objects, near: Tensor | bool = False
) -> Tensor:
    """The sum of the places' BCE of objectness, [images]. A free place does not count
    if it is ``near``, if its middle lies in an ignored object, or if the image is
    absent."""
    covered = within(objects.box, places.middle) & objects.ignored[..., None]
    silent = covered.any(1) | objects.absent | near
    return (bce(places.objectness, taken) * ((taken > 0) | ~silent)).sum(-1)


class Head:
    """A form of detection: a place's x, y, w, h, objectness and class scores."""

    anchors = 1  # of each cell

    def channels(self, classes: int) -> int:
        """The number of channels that a network's last layer has."""
        return self.anchors * (5 + classes)

    def loss(self, outputs: Any, y: Tensor, size: Size) -> Tensor:
        """Mean over the batch of the images' losses, [...], from a map or several and y
        [..., batch, objects, 6]; -100 if an image is absent and counts for nothing."""
        maps = [outputs] if torch.is_tensor(outputs) else outputs
        objects = objects_of(y.flatten(0, -3).to(maps[0].dtype))
        places = places_of([m.flatten(0, -4) for m in maps], size, self.anchors)
        losses = self.image_losses(places, objects, size)
        return losses.view(y.shape[:-2]).mean(-1)

    def image_losses(self, places: Places, objects: Objects, size: Size) -> Tensor:
        """The loss of each image, [images]. Each must depend on no other image, and be
        zero if the image is absent."""
        raise NotImplementedError

    def decode(self, outputs: Any, size: Size) -> tuple[Tensor, Tensor]:
        """Boxes [batch, places, 4] and scores [batch, places, classes], before any
        suppression."""
        maps = [outputs] if torch.is_tensor(outputs) else outputs
        places = places_of(maps, size, self.anchors)
        return self.boxes(places, size), self.probabilities(places)

    def boxes(self, places: Places, size: Size) -> Tensor:
        """YOLOv3's equations: the cell at (i, j), of s pixels, predicts the centre ((j
        + sigmoid(x)) s, (i + sigmoid(y)) s) and the sides p exp(w), p exp(h), p of
        ``shapes``."""
        middle = (places.corner + places.xy.sigmoid()) * places.side
        shapes = self.shapes(places, size)
        half = places.wh.clamp(max=5).exp() * shapes / 2  # 5: sides of 148 cells
        return corners(middle, half)

    def shapes(self, places: Places, size: Size) -> Tensor:
        """The sides p of each place, in pixels [places, 2]."""
        return places.side

    def probabilities(self, places: Places) -> Tensor:
        """Objectness times each class score, [images, places, classes]."""
        return places.objectness[..., None].sigmoid() * places.scores.sigmoid()


class Centre(Head):
    """One box a place, without anchors, on one map.

    The place of an object is the cell that holds its centre; p are the sides of a cell.
    With n objects, the loss of an image is

        (sum of all cells' BCE of objectness
         + sum of objects' (2 box GIoU + cross-entropy)) / n

    n at least 1.
    """

    def image_losses(self, places: Places, objects: Objects, size: Size) -> Tensor:
        from torchvision.ops import generalized_box_iou_loss  # takes long to load

        place = centre_places(objects, places, 0)
        box = rows_at(self.boxes(places, size), place)
        scores = rows_at(places.scores, place).transpose(1, 2)
        # padding is compared with the box of its own place, and does not count
        truth = torch.where(objects.present[..., None], objects.box, box.detach())
        box_loss = generalized_box_iou_loss(box, truth)
        class_loss = F.cross_entropy(scores, objects.kind, reduction="none")
        total = torch.where(objects.present, 2 * box_loss + class_loss, 0).sum(-1)
        taken = taken_places(place, objects, places)
        total = objectness_loss(places, taken, objects) + total
        return total / objects.present.sum(-1).clamp(min=1)

    def probabilities(self, places: Places) -> Tensor:
        return places.objectness[..., None].sigmoid() * places.scores.softmax(-1)


class ThreeAnchors(Head):
    """YOLOv3 (Redmon and Farhadi, 2018, section 2): three maps, coarse first, with
    three anchors a cell; p are the sides of the anchor, those for COCO in proportion to
    the picture.

    An object belongs to the anchor, of all nine, with the largest IoU of shapes, in the
    cell that holds its centre. The loss of an image is the sum of::

        objects: (2 - share of the picture) / 2 x squared errors of sigmoid(x),
        sigmoid(y),
                 w, h
        objects: binary cross-entropy of each class
        places:  binary cross-entropy of objectness; a free place does not count if its
        box
                 has an IoU above ``IGNORE`` with an object

    as in the authors' program (the paper does not have the factor before the squares).
    """

    IGNORE = 0.5
    ANCHORS = (  # for COCO: width and height in pixels of a picture of 416 x 416
        (116, 90),
        (156, 198),
        (373, 326),
        (30, 61),
        (62, 45),
        (59, 119),
        (10, 13),
        (16, 30),
        (33, 23),
    )
    PICTURE = 416
    anchors = 3

    def pixels(self, size: Size, like: Tensor) -> Tensor:
        """Sides of the nine anchors in pixels, [9, 2]."""
        height, width = size
        scale = like.new_tensor([width, height])
        return like.new_tensor(self.ANCHORS) * scale / self.PICTURE

    def shapes(self, places: Places, size: Size) -> Tensor:
        return self.pixels(size, places.wh)[places.anchor]

    def image_losses(self, places: Places, objects: Objects, size: Size) -> Tensor:
        anchors = self.pixels(size, objects.box)
        sides = objects.sides
        area = sides.prod(-1)
        common = torch.minimum(sides[..., None, :], anchors).prod(-1)
        union = area[..., None] + anchors.prod(-1) - common
        anchor = (common / union.clamp(min=1e-9)).argmax(-1)
        place = centre_places(objects, places, anchor[..., None])

        inside = objects.middle / places.side[place] - places.corner[place]
        logarithm = (sides.clamp(min=1e-9) / anchors[anchor]).log()
        error = (rows_at(places.xy, place).sigmoid() - inside) ** 2
        error = error + (rows_at(places.wh, place) - logarithm) ** 2
        weight = (2 - area / (size[0] * size[1])) / 2
        scores = rows_at(places.scores, place)
        kinds = F.one_hot(objects.kind, scores.shape[-1])
        each = weight * error.sum(-1) + bce(scores, kinds.to(scores.dtype)).sum(-1)

        iou = overlaps(objects.box, self.boxes(places, size).detach())
        real = objects.present | objects.ignored
        near = (iou * real[..., None]).amax(1) > self.IGNORE
        taken = taken_places(place, objects, places)
        total = torch.where(objects.present, each, 0).sum(-1)
        return objectness_loss(places, taken, objects, near) + total


class SimOTA(Head):
    """YOLOX (Ge et al., 2021, section 2.1): one box a place on each of three maps. The
    cell at (i, j), of s pixels, predicts the centre ((j + x) s, (i + y) s) and the
    sides s exp(w), s exp(h).

    SimOTA: an object may take the places in its box, or within ``RADIUS`` cells of its
    middle. A pair of object and place costs BCE(class) + 3 (-log IoU), and ``FAR`` more
    unless the place is both in the box and near the middle. An object takes as many of
    its cheapest places as the sum of its ``MOST`` largest IoU, at least one; of several
    objects the cheapest takes the place. The loss of an image is, over its number of
    taken places,

        taken: 5 (1 - IoU^2) + BCE of the classes, whose target is the IoU for the right
        class all:   BCE of objectness, but for places in an ignored object
    """

    RADIUS = 1.5
    MOST = 10
    FAR = 1e5
    NEVER = 1e9  # the cost of a pair that is not allowed

    def boxes(self, places: Places, size: Size) -> Tensor:
        # a cell's corner is its x = y = 0
        middle = places.middle + (places.xy - 0.5) * places.side
        return corners(middle, places.wh.clamp(max=8).exp() * places.side / 2)

    @torch.no_grad()
    def assign(self, objects: Objects, places: Places, iou: Tensor) -> Tensor:
        """The object that takes each place, -1 for none: int64 [images, places];
        ``iou`` [images, objects, places]."""
        present = objects.present[..., None]
        distance = (objects.middle[..., None, :] - places.middle).abs()
        near = (distance < self.RADIUS * places.side).all(-1)
        inside = within(objects.box, places.middle)
        allowed = present & (present & (inside | near)).any(1, keepdim=True)

        score = self.probabilities(places).sqrt().clamp(1e-7, 1 - 1e-7)
        no_class = -(1 - score).log().sum(-1)
        change = (1 - score).log() - score.log()  # where a class is the right one
        kind = objects.kind[..., None].expand(-1, -1, score.shape[1])
        cost = no_class[:, None] + change.transpose(1, 2).gather(1, kind)
        cost = cost - 3 * (iou + 1e-8).log() + self.FAR * ~(inside & near)
        cost = cost.masked_fill(~allowed, self.NEVER)

        largest = (iou * allowed).topk(min(self.MOST, iou.shape[-1]), -1).values
        count = largest.sum(-1).int().clamp(min=1)
        rank = torch.argsort(cost, dim=-1, stable=True).argsort(-1)
        pairs = allowed & (rank < count[..., None])
        first = pairs.int().argmax(1)
        object_of = torch.where(pairs.sum(1) > 1, cost.argmin(1), first)
        return torch.where(pairs.any(1), object_of, -1)

    def image_losses(self, places: Places, objects: Objects, size: Size) -> Tensor:
        iou = overlaps(objects.box, self.boxes(places, size))
        object_of = self.assign(objects, places, iou)
        taken = object_of >= 0
        index = object_of.clamp(min=0)
        overlap = iou.gather(1, index[:, None])[:, 0]
        kinds = F.one_hot(objects.kind.gather(1, index), places.scores.shape[-1])
        target = kinds * overlap.detach()[..., None]
        class_loss = bce(places.scores, target).sum(-1)
        total = torch.where(taken, 5 * (1 - overlap**2) + class_loss, 0).sum(-1)
        objectness = objectness_loss(places, taken.to(iou.dtype), objects)
        return (objectness + total) / taken.sum(-1).clamp(min=1)
