"""What a detector's output means: how objects are assigned to places, the loss, and the way back to
boxes. A network for detection says which of these it ends in: its attribute ``head``."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

PRIOR = 0.05  # how likely a place is to hold an object, before anything is learned


def expect_few(
    layer: torch.nn.Conv2d, outputs: Iterable[int], share: float = PRIOR
) -> torch.nn.Conv2d:
    """The layer with biases that make these of its outputs, behind a sigmoid, as rare as that."""
    with torch.no_grad():
        layer.bias[list(outputs)] = torch.tensor(share).logit()
    return layer


def middles(rows: int, columns: int, size: tuple[int, ...], device: Any) -> torch.Tensor:
    """The middles of all cells of a map, row after row, x and y in pixels [cells, 2]."""
    x = (torch.arange(columns, device=device) + 0.5) * size[1] / columns
    y = (torch.arange(rows, device=device) + 0.5) * size[0] / rows
    return torch.stack([x.repeat(rows), y.repeat_interleave(columns)], -1)


def within(y: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Which points [n, 2] lie in the boxes of y [images, objects, ...]: [images, objects, n]."""
    left, top, right, bottom = (y[..., i, None] for i in range(4))
    at_x, at_y = points.unbind(-1)
    return (left < at_x) & (at_x < right) & (top < at_y) & (at_y < bottom)


def hidden(y: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Which points lie in an object that is to be ignored: [images, n]."""
    ignored = (y[..., 4] >= 0) & (y[..., 5] > 0)
    return (within(y, points) & ignored[..., None]).any(1)


def absent(y: torch.Tensor) -> torch.Tensor:
    """Which images count for nothing: [images, 1]."""
    return (y[..., 4] <= -100).all(-1, keepdim=True)


class Head:
    """Base of all heads. ``size`` is height and width of the images in pixels; y is [..., batch,
    objects, 6] as ``data.annotated`` has it, and -100 throughout for an image that counts for
    nothing."""

    def channels(self, classes: int) -> int:
        """How many numbers the network gives for a place."""
        raise NotImplementedError

    def loss(self, outputs: Any, y: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        """Mean over the batch of the images' losses, [...]. Each image's must depend on no other
        image, and be zero if the image counts for nothing."""
        raise NotImplementedError

    def decode(self, outputs: Any, size: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Boxes [batch, places, 4] and scores [batch, places, classes], before any suppression."""
        raise NotImplementedError


@dataclass(frozen=True)
class Centre(Head):
    """One box a place, without anchors: the output is a map [..., batch, 5 + classes, rows,
    columns] of x, y, w, h, objectness and class scores.

    The place of an object is the cell that its centre lies in. The cell at (i, j), of s pixels,
    predicts the centre ((j + sigmoid(x)) s, (i + sigmoid(y)) s) (YOLOv3's equations) and the
    sides s exp(w), s exp(h). With n objects, the loss of an image is

        (sum of all cells' BCE of objectness + sum of objects' (box GIoU + cross-entropy)) / n

    each with its weight, n at least 1. Cells whose middle lies in an ignored object say nothing
    about objectness, unless another object's centre is there.
    """

    objectness: float = 1.0
    box: float = 2.0
    kind: float = 1.0

    def channels(self, classes: int) -> int:
        return 5 + classes

    def start(self, layer: torch.nn.Conv2d) -> torch.nn.Conv2d:
        """The convolution in front of this head with a bias that expects few objects."""
        return expect_few(layer, [4])

    def cells(self, y: torch.Tensor, size: tuple[int, ...], rows: int, columns: int) -> Any:
        """Where objects belong, y [images, objects, 6]: cell of each (0 if there is none), which of
        them count, 1 for each cell with an object, and which cells are asked for objectness: two
        [images, objects], two [images, cells]."""
        there, (height, width) = (y[..., 4] >= 0) & (y[..., 5] < 1), size
        middle = (y[..., :2] + y[..., 2:4]) / 2
        column = (middle[..., 0] * columns / width).long().clamp(0, columns - 1)
        row = (middle[..., 1] * rows / height).long().clamp(0, rows - 1)
        cell = torch.where(there, row * columns + column, 0)
        taken = torch.zeros(len(y), rows * columns, device=y.device, dtype=y.dtype)
        taken = taken.scatter_reduce(1, cell, there.to(y.dtype), "amax")
        asked = (taken > 0) | ~hidden(y, middles(rows, columns, size, y.device))
        return cell, there, taken, asked & ~absent(y)

    def boxes(self, places: torch.Tensor, rows: int, columns: int, size: Any) -> torch.Tensor:
        """[..., cells, 4 and more] -> xyxy in pixels."""
        cell = torch.arange(rows * columns, device=places.device)
        corner = torch.stack([cell % columns, cell // columns], -1)
        scale = places.new_tensor([size[1] / columns, size[0] / rows])
        middle = (corner + places[..., :2].sigmoid()) * scale
        half = places[..., 2:4].clamp(max=5).exp() * scale / 2  # 5: sides of 148 cells
        return torch.cat([middle - half, middle + half], -1)

    def loss(self, outputs: torch.Tensor, y: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        from torchvision.ops import generalized_box_iou_loss  # takes long to load

        lead, (rows, columns) = y.shape[:-2], outputs.shape[-2:]
        places = outputs.flatten(-2).transpose(-1, -2).flatten(0, -3)  # [images, cells, channels]
        y = y.flatten(0, -3).to(places.dtype)
        cell, there, taken, asked = self.cells(y, size, rows, columns)
        found = F.binary_cross_entropy_with_logits(places[..., 4], taken, reduction="none")
        boxes = self.boxes(places, rows, columns, size)
        mine = torch.cat([boxes, places[..., 5:]], -1)
        mine = mine.gather(1, cell[..., None].expand(-1, -1, mine.shape[-1]))
        # a row that holds no object is compared with the box of its own place, and not counted
        truth = torch.where(there[..., None], y[..., :4], mine[..., :4].detach())
        box = generalized_box_iou_loss(mine[..., :4], truth)
        kind = torch.where(there, y[..., 4], 0).long()
        kind = F.cross_entropy(mine[..., 4:].transpose(1, 2), kind, reduction="none")
        each = torch.where(there, self.box * box + self.kind * kind, 0).sum(-1)
        total = self.objectness * (found * asked).sum(-1) + each
        return (total / there.sum(-1).clamp(min=1)).view(lead).mean(-1)

    def decode(
        self, outputs: torch.Tensor, size: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, columns = outputs.shape[-2:]
        places = outputs.flatten(-2).transpose(-1, -2)
        scores = places[..., 4:5].sigmoid() * places[..., 5:].softmax(-1)
        return self.boxes(places, rows, columns, size), scores
