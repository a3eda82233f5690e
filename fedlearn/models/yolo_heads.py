"""What YOLOv3's and YOLOX's outputs mean: assignment, loss and the way back to boxes. Both give
three maps. The loss of an image depends on no other image, which deviates from YOLOX alone: its
authors divide by the taken places of a whole batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .heads import Head, absent, hidden, middles, within

Maps = Sequence[torch.Tensor]

# YOLOv3's anchors for COCO, width and height in pixels of a picture of 416 x 416, coarse map first
ANCHORS = (
    ((116, 90), (156, 198), (373, 326)),
    ((30, 61), (62, 45), (59, 119)),
    ((10, 13), (16, 30), (33, 23)),
)
AT = 416
FAR = 1e5  # what a pair costs that is not both in the object's box and near its middle
NEVER = 1e9  # what a pair costs that must not be


def overlaps(y: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """IoU of objects y [images, objects, ...] with boxes [images, places, 4]: [images, objects,
    places]."""
    from torchvision.ops import box_iou  # takes long to load

    return torch.stack([box_iou(own[:, :4], its) for own, its in zip(y, boxes, strict=True)])


def one_hot(y: torch.Tensor, classes: int) -> torch.Tensor:
    """Of each object, y [..., 6]; of what is none, of class 0."""
    return F.one_hot(y[..., 4].long().clamp(min=0), classes).to(y.dtype)


@dataclass(frozen=True)
class ThreeAnchors(Head):
    """YOLOv3 (Redmon and Farhadi, 2018, section 2): three anchors a cell, a map [..., batch,
    3 (5 + classes), rows, columns] for each of three strides, of x, y, w, h, objectness and class
    scores for each anchor.

    The cell at (i, j), of s pixels, predicts the centre ((j + sigmoid(x)) s, (i + sigmoid(y)) s)
    and the sides p_w exp(w), p_h exp(h) of an anchor p. An object belongs to the anchor, of all
    nine, whose shape overlaps most with its own, in the cell that its centre lies in. The loss of
    an image is the sum of

        objects: (2 - share of the picture) / 2 x squared errors of sigmoid(x), sigmoid(y), w, h
        objects: binary cross-entropy of each class
        places:  binary cross-entropy of objectness; a place without an object is not asked if its
                 box overlaps one by more than ``ignore``

    as in the authors' program (the factor before the squares is not in the paper). Sides of anchors
    are those for COCO, in proportion to the picture. Places in an ignored object are not asked."""

    ignore: float = 0.5

    def channels(self, classes: int) -> int:
        return 3 * (5 + classes)

    def anchors(self, size: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """[maps, 3, 2], in pixels of a picture of height and width ``size``."""
        return like.new_tensor(ANCHORS) * like.new_tensor([size[1], size[0]]) / AT

    def places(self, m: torch.Tensor) -> torch.Tensor:
        """[images, 3 (5 + classes), rows, columns] -> [images, 3, cells, 5 + classes]."""
        return m.unflatten(1, (3, -1)).flatten(-2).transpose(-1, -2)

    def boxes(
        self,
        places: torch.Tensor,
        anchors: torch.Tensor,
        rows: int,
        columns: int,
        size: tuple[int, ...],
    ) -> torch.Tensor:
        """[images, 3, cells, 4 and more] and anchors [3, 2] -> xyxy in pixels."""
        cell = torch.arange(rows * columns, device=places.device)
        corner = torch.stack([cell % columns, cell // columns], -1)
        scale = places.new_tensor([size[1] / columns, size[0] / rows])
        middle = (corner + places[..., :2].sigmoid()) * scale
        half = places[..., 2:4].clamp(max=5).exp() * anchors[:, None] / 2
        return torch.cat([middle - half, middle + half], -1)

    def chosen(self, y: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """The anchor of each object, 0 to 8: [images, objects]."""
        sides, own = (y[..., 2:4] - y[..., :2])[..., None, :], anchors.flatten(0, 1)
        common = torch.minimum(sides, own).prod(-1)
        return (common / (sides.prod(-1) + own.prod(-1) - common).clamp(min=1e-9)).argmax(-1)

    def loss(self, outputs: Maps, y: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        lead, (height, width) = y.shape[:-2], size
        maps = [m.flatten(0, -4) for m in outputs]
        y = y.flatten(0, -3).to(maps[0].dtype)
        anchors = self.anchors(size, y)
        seen, best = y[..., 4] >= 0, self.chosen(y, anchors)
        there = seen & (y[..., 5] < 1)
        middle, sides = (y[..., :2] + y[..., 2:4]) / 2, y[..., 2:4] - y[..., :2]
        weight = (2 - sides.prod(-1) / (width * height)) / 2
        total = y.new_zeros(len(y))
        for level, m in enumerate(maps):
            rows, columns = m.shape[-2:]
            mine = there & (best // 3 == level)
            at = middle * y.new_tensor([columns / width, rows / height])
            corner = at.floor().clamp(min=0).minimum(at.new_tensor([columns - 1, rows - 1]))
            cell = (corner[..., 1] * columns + corner[..., 0]).long()
            place = torch.where(mine, best % 3 * rows * columns + cell, 0)
            places = self.places(m)
            boxes = self.boxes(places.detach(), anchors[level], rows, columns, size).flatten(1, 2)
            places = places.flatten(1, 2)
            taken = y.new_zeros(places.shape[:2]).scatter_reduce(1, place, mine.to(y.dtype), "amax")
            near = (overlaps(y, boxes) * seen[..., None]).amax(1) > self.ignore
            near |= hidden(y, middles(rows, columns, size, y.device)).repeat(1, 3)
            asked = ((taken > 0) | ~near) & ~absent(y)
            found = F.binary_cross_entropy_with_logits(places[..., 4], taken, reduction="none")
            own = places.gather(1, place[..., None].expand(-1, -1, places.shape[-1]))
            anchor = anchors[level][best % 3]
            wanted = (sides.clamp(min=1e-9) / anchor).log()
            error = (own[..., :2].sigmoid() - (at - corner)) ** 2 + (own[..., 2:4] - wanted) ** 2
            kinds = one_hot(y, own.shape[-1] - 5)
            kind = F.binary_cross_entropy_with_logits(own[..., 5:], kinds, reduction="none")
            each = weight * error.sum(-1) + kind.sum(-1)
            total = total + (found * asked).sum(-1) + torch.where(mine, each, 0).sum(-1)
        return total.view(lead).mean(-1)

    def decode(self, outputs: Maps, size: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        boxes, scores = [], []
        for m, anchors in zip(outputs, self.anchors(size, outputs[0]), strict=True):
            places = self.places(m)
            rows, columns = m.shape[-2:]
            boxes.append(self.boxes(places, anchors, rows, columns, size).flatten(1, 2))
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

    def channels(self, classes: int) -> int:
        return 5 + classes

    def places(
        self, outputs: Maps, size: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """All maps as [images, places, 5 + classes]; boxes [images, places, 4]; middles of cells
        [places, 2]; their sides [places, 2]."""
        flat, points, sides = [], [], []
        for m in outputs:
            rows, columns = m.shape[-2:]
            flat.append(m.flatten(0, -4).flatten(-2).transpose(-1, -2))
            points.append(middles(rows, columns, size, m.device).to(m.dtype))
            side = m.new_tensor([size[1] / columns, size[0] / rows])
            sides.append(side.expand(rows * columns, 2))
        places, point, cell = torch.cat(flat, 1), torch.cat(points), torch.cat(sides)
        middle = point + (places[..., :2] - 0.5) * cell  # a cell's corner is its x = y = 0
        half = places[..., 2:4].clamp(max=8).exp() * cell / 2
        return places, torch.cat([middle - half, middle + half], -1), point, cell

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
        there = ((y[..., 4] >= 0) & (y[..., 5] < 1))[..., None]
        middle = ((y[..., :2] + y[..., 2:4]) / 2)[..., None, :]
        near = ((middle - point).abs() < self.radius * cell).all(-1)
        inside = within(y, point)
        may = there & (there & (inside | near)).any(1, keepdim=True)
        score = (places[..., 4:5].sigmoid() * places[..., 5:].sigmoid()).sqrt()
        score = score.clamp(1e-7, 1 - 1e-7)
        wrong = -(1 - score).log().sum(-1)  # of no class; then the right one in place of wrong
        right = (1 - score).log() - score.log()
        kind = y[..., 4].long().clamp(min=0)[..., None].expand(-1, -1, places.shape[1])
        cost = wrong[:, None] + right.transpose(1, 2).gather(1, kind)
        cost = cost - 3 * (iou + 1e-8).log() + FAR * ~(inside & near)
        cost = cost.masked_fill(~may, NEVER)
        own = (iou * may).topk(min(self.most, iou.shape[-1]), -1).values
        count = own.sum(-1).int().clamp(min=1)
        rank = torch.argsort(cost, dim=-1, stable=True).argsort(-1)
        wanted = may & (rank < count[..., None])
        several = wanted.sum(1) > 1
        first = wanted.int().argmax(1)
        cheapest = cost.argmin(1)
        return torch.where(wanted.any(1), torch.where(several, cheapest, first), -1)

    def loss(self, outputs: Maps, y: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        lead = y.shape[:-2]
        places, boxes, point, cell = self.places(outputs, size)
        y = y.flatten(0, -3).to(places.dtype)
        iou = overlaps(y, boxes)
        with torch.no_grad():
            taken = self.assign(y, places, iou, point, cell)
        mine, which = taken >= 0, taken.clamp(min=0)
        own = iou.gather(1, which[:, None])[:, 0]
        kinds = one_hot(y, places.shape[-1] - 5)
        kinds = kinds.gather(1, which[..., None].expand(-1, -1, kinds.shape[-1]))
        kind = F.binary_cross_entropy_with_logits(
            places[..., 5:], kinds * own.detach()[..., None], reduction="none"
        ).sum(-1)
        each = torch.where(mine, 5 * (1 - own**2) + kind, 0).sum(-1)
        asked = (mine | ~hidden(y, point)) & ~absent(y)
        found = F.binary_cross_entropy_with_logits(
            places[..., 4], mine.to(y.dtype), reduction="none"
        )
        total = (found * asked).sum(-1) + each
        return (total / mine.sum(-1).clamp(min=1)).view(lead).mean(-1)

    def decode(self, outputs: Maps, size: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        places, boxes, *_ = self.places(outputs, size)
        return boxes, places[..., 4:5].sigmoid() * places[..., 5:].sigmoid()
