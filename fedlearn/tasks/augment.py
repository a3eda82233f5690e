"""Augmentation of images with a label: functions of images, their y and a generator."""

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[Tensor, Tensor]
PADDING = 4  # pixels on each side that an image may be shifted by


def crop(x: Tensor, y: Tensor, generator: torch.Generator) -> Pair:
    """Shift every image by up to ``PADDING`` pixels, black where nothing was."""
    n, _, height, width = x.shape
    padded = F.pad(x, [PADDING] * 4)
    shift = torch.randint(0, 2 * PADDING + 1, (2, n, 1), generator=generator).to(
        x.device
    )
    rows = (shift[0] + torch.arange(height, device=x.device))[:, :, None]
    columns = (shift[1] + torch.arange(width, device=x.device))[:, None, :]
    image = torch.arange(n, device=x.device)[:, None, None]
    return padded[image, :, rows, columns].movedim(-1, 1), y


def flip(x: Tensor, y: Tensor, generator: torch.Generator) -> Pair:
    """Mirror every second image, left to right, at random."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=generator).to(x.device) < 0.5
    return torch.where(mirrored, x.flip(-1), x), y


LABELLED = {"crop": crop, "flip": flip}
