"""Augmentation: functions of images, their y and a generator. ``LABELLED`` are those of images with
a label; ``ANNOTATED`` move boxes and masks with the picture: mirror, shift and zoom are one affine
map, x' = a x + b in pixels along each axis, drawn for each picture."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.annotations import NOTHING, VOID

Pair = tuple[Tensor, Tensor]
PADDING = 4  # pixels on each side that an image may be shifted by
ZOOM = 0.75, 1.33  # times an object's size
LEFT = 0.25  # of an object's area; of which less is left in the picture, that is ignored


def crop(x: Tensor, y: Tensor, generator: torch.Generator) -> Pair:
    """Shift every image by up to ``PADDING`` pixels, black where nothing was."""
    n, _, height, width = x.shape
    padded = F.pad(x, [PADDING] * 4)
    shift = torch.randint(0, 2 * PADDING + 1, (2, n, 1), generator=generator).to(x.device)
    rows = (shift[0] + torch.arange(height, device=x.device))[:, :, None]
    columns = (shift[1] + torch.arange(width, device=x.device))[:, None, :]
    image = torch.arange(n, device=x.device)[:, None, None]
    return padded[image, :, rows, columns].movedim(-1, 1), y


def flip(x: Tensor, y: Tensor, generator: torch.Generator) -> Pair:
    """Mirror every second image, left to right, at random."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=generator).to(x.device) < 0.5
    return torch.where(mirrored, x.flip(-1), x), y


def affine(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Pair:
    """Pictures x uint8 [n, channels, height, width] with boxes y [n, objects, 6] or masks y [n,
    height, width]; a and b [n, 2], for (x, y). Where nothing was the picture is black and the mask
    void."""
    size = torch.tensor(x.shape[:1:-1], device=x.device)  # width, height
    shift = (1 - 2 * b / size) / a - 1  # from the new picture back to the old one, in -1 ... 1
    back = torch.cat([torch.diag_embed(1 / a), shift[..., None]], -1)
    grid = F.affine_grid(back, list(x.shape), align_corners=False)
    new = F.grid_sample(x.float(), grid, align_corners=False)
    new = new.round().to(x.dtype) if x.dtype == torch.uint8 else new
    if x.shape[-2:] == y.shape[1:]:
        counted = (VOID - y[:, None].float()).contiguous()  # what lies outside is sampled as zero
        mask = F.grid_sample(counted, grid, mode="nearest", align_corners=False)
        return new, (VOID - mask[:, 0]).round().to(y.dtype)
    ends = (y[..., :4].unflatten(-1, (2, 2)) * a[:, None, None] + b[:, None, None]).sort(2).values
    visible = ends.clamp(min=torch.zeros_like(size), max=size)
    is_object = y[..., 4] > NOTHING
    area, left = ((corners[:, :, 1] - corners[:, :, 0]).prod(-1) for corners in (ends, visible))
    kind = torch.where(is_object & (left <= 0), NOTHING, y[..., 4])
    ignored = torch.where(is_object & (left < LEFT * area), 1, y[..., 5])
    boxes = torch.where(is_object[..., None], visible.flatten(2), y[..., :4])
    return new, torch.cat([boxes, kind[..., None], ignored[..., None]], -1)


def mirror(x: Tensor, y: Tensor, generator: torch.Generator) -> Pair:
    """Mirror every second picture, left to right, at random."""
    mirrored = torch.rand(len(x), generator=generator).to(x.device) < 0.5
    a = torch.ones(len(x), 2, device=x.device)
    a[mirrored, 0] = -1
    b = torch.zeros_like(a)
    b[mirrored, 0] = x.shape[-1]
    return affine(x, y, a, b)


def shift(x: Tensor, y: Tensor, generator: torch.Generator) -> Pair:
    """Shift every picture by up to ``PADDING`` pixels each way."""
    pixels = torch.randint(-PADDING, PADDING + 1, (len(x), 2), generator=generator).to(x.device)
    return affine(x, y, torch.ones(len(x), 2, device=x.device), pixels.float())


def zoom(x: Tensor, y: Tensor, generator: torch.Generator) -> Pair:
    """Zoom into every picture, or out of it, about a point of it."""
    low, high = ZOOM
    draws = torch.rand(len(x), 3, generator=generator).to(x.device)
    a = low * (high / low) ** draws[:, :1].expand(-1, 2)
    point = draws[:, 1:] * torch.tensor(x.shape[:1:-1], device=x.device)
    return affine(x, y, a, point * (1 - a))


LABELLED = {"crop": crop, "flip": flip}
ANNOTATED = {"crop": shift, "flip": mirror, "scale": zoom}
