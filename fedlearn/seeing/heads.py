"""Heads: how a detector's outputs are assigned to objects, the loss, and the decoding
into boxes. The attribute ``head`` of a network for detection is one of these.

The loss of an image depends on no other image. YOLOX's authors divide by the number of
assigned places of the whole batch instead.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Size = tuple[int, ...]  # height and width of the images in pixels


def set_prior(layer: nn.Conv2d, share: float, stop: int | None = None) -> None:
    """Set the biases of the outputs from 4 (objectness) to ``stop`` so that their
    sigmoid starts at ``share``: few places hold an object."""
    with torch.no_grad():
        layer.bias[4:stop] = torch.tensor(share).logit()


# ---- places and objects


class Places(NamedTuple):
    """The cells of all maps, map after map, row after row. The network's outputs are
    [images, places, ...]."""

    xy: Tensor
    wh: Tensor
    objectness: Tensor  # [images, places]
    scores: Tensor  # of the classes
    corner: Tensor  # column and row of the cell, [places, 2]
    side: Tensor  # width and height of the cell in pixels, [places, 2]

    @property
    def middle(self) -> Tensor:
        """The middle of each cell in pixels, [places, 2]."""
        return (self.corner + 0.5) * self.side


def places_of(outputs: Any, size: Size) -> Places:
    """The places of one map or several, [..., images, 5 + classes, rows, columns]."""
    height, width = size
    numbers = []
    corners = []
    sides = []
    for level in [outputs] if torch.is_tensor(outputs) else outputs:
        rows, columns = level.shape[-2:]
        cell = torch.arange(rows * columns, device=level.device)
        corner = torch.stack([cell % columns, cell // columns], -1)
        side = level.new_tensor([width / columns, height / rows])
        images = level.flatten(0, -4).flatten(2)
        numbers.append(images.transpose(1, 2))
        corners.append(corner)
        sides.append(side.expand_as(corner))
    joined = torch.cat(numbers, 1)
    xy, wh, objectness, scores = joined.tensor_split((2, 4, 5), -1)
    return Places(
        xy,
        wh,
        objectness[..., 0],
        scores,
        torch.cat(corners),
        torch.cat(sides),
    )


class Objects(NamedTuple):
    """The objects of images, each [images, objects, ...]."""

    box: Tensor  # x1, y1, x2, y2
    kind: Tensor  # the class, int64; 0 for padding
    present: Tensor  # whether the object is trained on
    ignored: Tensor  # whether the object is neither trained on nor evaluated
    absent: Tensor  # whether the image fills up a batch and has no loss, [images, 1]

    @property
    def middle(self) -> Tensor:
        """The middle of each box in pixels, [images, objects, 2]."""
        low, high = self.box.chunk(2, -1)
        return (low + high) / 2


def objects_of(y: Tensor) -> Objects:
    """The objects of y [images, objects, 6], see ``targets``."""
    kind = y[..., 4]
    real = kind >= 0
    ignored = y[..., 5] > 0
    return Objects(
        box=y[..., :4],
        kind=kind.long().clamp(min=0),
        present=real & ~ignored,
        ignored=real & ignored,
        absent=(kind <= -100).all(-1, keepdim=True),
    )


def rows_at(values: Tensor, place: Tensor) -> Tensor:
    """Rows of ``values`` [images, places, n] at these places [images, objects] ->
    [images, objects, n]."""
    width = values.shape[-1]
    index = place[..., None].expand(-1, -1, width)
    return values.gather(1, index)


def within(box: Tensor, points: Tensor) -> Tensor:
    """Whether points [places, 2] lie in boxes [images, objects, 4] -> [images, objects,
    places]."""
    low, high = box[..., None, :].chunk(2, -1)
    return ((low < points) & (points < high)).all(-1)


def box_around(middle: Tensor, half: Tensor) -> Tensor:
    """The box x1, y1, x2, y2 of a middle and half the sides."""
    return torch.cat([middle - half, middle + half], -1)


# ---- heads


def bce(scores: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of each score."""
    return F.binary_cross_entropy_with_logits(scores, target, reduction="none")


def objectness_loss(places: Places, taken: Tensor, objects: Objects) -> Tensor:
    """The sum of the places' BCE of objectness, [images]. ``taken`` is 1 for a place
    with an object, else 0. A place without an object is left out if its middle lies in
    an ignored object, or if the image is absent."""
    covered = within(objects.box, places.middle) & objects.ignored[..., None]
    silent = covered.any(1) | objects.absent
    counted = (taken > 0) | ~silent
    losses = bce(places.objectness, taken)
    return (losses * counted).sum(-1)


class Head:
    """The meaning of a place's outputs: x, y, w, h, objectness and class scores."""

    def loss(self, outputs: Any, y: Tensor, size: Size) -> Tensor:
        """The mean loss of the batch, [...], from one map or several and y [..., batch,
        objects, 6]. An image whose y is -100 is absent and has no loss."""
        places = places_of(outputs, size)
        rows = y.flatten(0, -3).to(places.xy.dtype)
        losses = self.image_losses(places, objects_of(rows))
        return losses.view(y.shape[:-2]).mean(-1)

    def image_losses(self, places: Places, objects: Objects) -> Tensor:
        """The loss of each image, [images], independent of other images, and zero for
        an absent image."""
        raise NotImplementedError

    def decode(self, outputs: Any, size: Size) -> tuple[Tensor, Tensor]:
        """Boxes [batch, places, 4] and scores [batch, places, classes], before
        non-maximum suppression."""
        places = places_of(outputs, size)
        return self.boxes(places), self.probabilities(places)

    def boxes(self, places: Places) -> Tensor:
        """Boxes [images, places, 4]."""
        raise NotImplementedError

    def probabilities(self, places: Places) -> Tensor:
        """Objectness times each class score, [images, places, classes]."""
        return places.objectness[..., None].sigmoid() * places.scores.sigmoid()


class Centre(Head):
    """YOLOv3 (Redmon and Farhadi, 2018) without anchors: one box a place, on one map.
    The cell at (i, j), of s pixels, predicts the centre ((j + sigmoid(x)) s, (i +
    sigmoid(y)) s) and the sides s exp(w), s exp(h).

    The place of an object is the cell that holds its centre. With n objects, the loss
    of an image is

        (sum of all cells' BCE of objectness
         + sum of objects' (2 box GIoU + cross-entropy)) / n

    n at least 1.
    """

    def boxes(self, places: Places) -> Tensor:
        middle = (places.corner + places.xy.sigmoid()) * places.side
        half = places.wh.clamp(max=5).exp() * places.side / 2  # 5: sides of 148 cells
        return box_around(middle, half)

    def probabilities(self, places: Places) -> Tensor:
        return places.objectness[..., None].sigmoid() * places.scores.softmax(-1)

    def image_losses(self, places: Places, objects: Objects) -> Tensor:
        from torchvision.ops import generalized_box_iou_loss  # takes long to load

        present = objects.present
        cell = (objects.middle[..., None, :] / places.side).floor()
        right = (cell == places.corner).all(-1)
        place = right.int().argmax(-1).masked_fill(~present, 0)
        taken = torch.zeros_like(places.objectness)
        taken = taken.scatter_reduce(1, place, present.to(taken.dtype), "amax")

        box = rows_at(self.boxes(places), place)
        # padding is compared with a predicted box, and its loss is left out
        truth = torch.where(present[..., None], objects.box, box.detach())
        box_loss = generalized_box_iou_loss(box, truth)
        scores = rows_at(places.scores, place).transpose(1, 2)
        class_loss = F.cross_entropy(scores, objects.kind, reduction="none")
        losses = 2 * box_loss + class_loss
        losses = losses.masked_fill(~present, 0)
        total = objectness_loss(places, taken, objects) + losses.sum(-1)
        return total / present.sum(-1).clamp(min=1)


class SimOTA(Head):
    """YOLOX (Ge et al., 2021, section 2.1): one box a place on each of three maps. The
    cell at (i, j), of s pixels, predicts the centre ((j + x) s, (i + y) s) and the
    sides s exp(w), s exp(h).

    SimOTA: an object may be assigned to places in its box, or within ``RADIUS`` cells
    of its middle. A pair of object and place costs BCE(class) + 3 (-log IoU), and
    ``FAR`` more unless the place is both in the box and near the middle. The number of
    places of an object is the sum of its ``MOST`` largest IoU, at least one; the
    cheapest places are assigned. A place that several objects want goes to the cheapest
    pair. The loss of an image is divided by its number of assigned places:

    * assigned places: 5 (1 - IoU^2) + BCE of the classes, of which the true one has the
      IoU as its target
    * all places: BCE of objectness, but for places in an ignored object
    """

    RADIUS = 1.5
    MOST = 10
    FAR = 1e5
    NEVER = 1e9  # the cost of a pair that is not allowed

    def boxes(self, places: Places) -> Tensor:
        # x = y = 0 is a cell's corner
        middle = places.middle + (places.xy - 0.5) * places.side
        half = places.wh.clamp(max=8).exp() * places.side / 2
        return box_around(middle, half)

    @torch.no_grad()
    def assign(self, objects: Objects, places: Places, iou: Tensor) -> Tensor:
        """The object of each place, -1 for none: int64 [images, places]; ``iou``
        [images, objects, places]."""
        present = objects.present[..., None]
        distance = (objects.middle[..., None, :] - places.middle).abs()
        near = (distance < self.RADIUS * places.side).all(-1)
        inside = within(objects.box, places.middle)
        candidates = present & (inside | near)
        allowed = present & candidates.any(1, keepdim=True)

        score = self.probabilities(places).sqrt()
        score = score.clamp(1e-7, 1 - 1e-7)
        no_class = -(1 - score).log().sum(-1)
        change = (1 - score).log() - score.log()  # for the true class
        kind = objects.kind[..., None].expand_as(iou)
        right = change.transpose(1, 2).gather(1, kind)
        cost = no_class[:, None] + right
        cost = cost - 3 * (iou + 1e-8).log()
        cost = cost + self.FAR * ~(inside & near)
        cost = cost.masked_fill(~allowed, self.NEVER)

        limit = min(self.MOST, iou.shape[-1])
        largest = (iou * allowed).topk(limit, -1).values
        count = largest.sum(-1).int().clamp(min=1)
        order = torch.argsort(cost, dim=-1, stable=True)
        rank = order.argsort(-1)
        pairs = allowed & (rank < count[..., None])
        several = pairs.sum(1) > 1
        first = pairs.int().argmax(1)
        object_of = torch.where(several, cost.argmin(1), first)
        return object_of.masked_fill(~pairs.any(1), -1)

    def image_losses(self, places: Places, objects: Objects) -> Tensor:
        from torchvision.ops import box_iou  # takes long to load

        images = zip(objects.box, self.boxes(places), strict=True)
        iou = torch.stack([box_iou(*boxes) for boxes in images])
        object_of = self.assign(objects, places, iou)
        taken = object_of >= 0
        index = object_of.clamp(min=0)
        overlap = iou.gather(1, index[:, None])[:, 0]
        kind = objects.kind.gather(1, index)
        kinds = F.one_hot(kind, places.scores.shape[-1])
        target = kinds * overlap.detach()[..., None]
        class_loss = bce(places.scores, target).sum(-1)
        losses = 5 * (1 - overlap**2) + class_loss
        losses = losses.masked_fill(~taken, 0)
        objectness = objectness_loss(places, taken.to(iou.dtype), objects)
        total = objectness + losses.sum(-1)
        return total / taken.sum(-1).clamp(min=1)
