"""Small networks that detect or segment objects of some ten pixels or more, for digit scenes."""

from itertools import pairwise

import torch
from torch import nn

from .cnn import Network, Shape, conv_bn, pooled
from .heads import Centre, expect_few

WIDTHS = 16, 32, 64, 64, 64


class Detector(Network):
    """A network with a head: what it gives, and how that is learned from and read."""

    def __init__(self, extractor: nn.Module, classifier: nn.Module, head: Centre) -> None:
        super().__init__(extractor, classifier)
        self.head = head


def scene_detector(in_shape: Shape = (1, 64, 64), classes: int = 10) -> Detector:
    """Five 3x3 convolutions, pooled three times, and a 1x1 to a box for each cell of 8 x 8 pixels:
    98,367 parameters with 10 classes, all but 975 of them of the five."""
    layers: list[nn.Module] = []
    for i, pair in enumerate(pairwise((in_shape[0], *WIDTHS))):
        layers += pooled(*pair) if i < 3 else conv_bn(*pair)
    head = Centre()
    last = expect_few(nn.Conv2d(WIDTHS[-1], head.channels(classes), 1), [4])
    return Detector(nn.Sequential(*layers), last, head)


class Pyramid(nn.Module):
    """A map behind each stage, the largest first."""

    def __init__(self, stages: list[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


class Summed(nn.Module):
    """Class scores at each resolution, added up from the smallest map to the largest through
    bilinear doubling (FCN-8s: Long et al., 2015, Figure 3)."""

    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        self.scores = nn.ModuleList([nn.Conv2d(width, classes, 1) for width in widths])
        self.enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    def forward(self, maps: list[torch.Tensor]) -> torch.Tensor:
        *finer, total = [score(x) for score, x in zip(self.scores, maps, strict=True)]
        for score in reversed(finer):
            total = score + self.enlarge(total)
        return total


def scene_fcn(in_shape: Shape = (1, 64, 64), classes: int = 11) -> Network:
    """The same five convolutions with scores at all four resolutions, for images whose sides are
    multiples of 8: 99,372 parameters with 11 classes, 1,980 of them of the scores."""
    a, b, c, d, e = (conv_bn(*pair) for pair in pairwise((in_shape[0], *WIDTHS)))
    stages = [a, *([nn.MaxPool2d(2), *layers] for layers in (b, c, d + e))]
    pyramid = Pyramid([nn.Sequential(*stage) for stage in stages])
    return Network(pyramid, Summed([WIDTHS[i] for i in (0, 1, 2, 4)], classes))
