"""Fully convolutional networks that segment: FCN-32s on a ResNet-50 (Long et al., 2015;
RPN, section 4.3), and a small one for digit scenes."""

from torch import Tensor, nn
from torch.nn import functional as F

from ..models.cnn import Network, Shape, conv_bn
from ..models.resnet import bottleneck
from .yolo import SCENES


class FCN32s(nn.Module):
    """ResNet-50 without its classifier, a 1x1 convolution, bilinear enlargement: x [N,
    3, H, W] -> [N, classes, H, W]. The paper names only "FCN" and "ResNet-50"; the
    23,577,621 parameters of its Table 3 are those of this network with 21 classes and a
    bias in every convolution, as Keras builds it."""

    def __init__(self, classes: int = 21, channels: int = 3) -> None:
        super().__init__()
        layers = [*conv_bn(channels, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
        width = 64
        for outputs, blocks, stride in (
            (256, 3, 1),
            (512, 4, 2),
            (1024, 6, 2),
            (2048, 3, 2),
        ):
            for i in range(blocks):
                layers.append(bottleneck(width, outputs, stride if i == 0 else 1))
                width = outputs
        self.backbone = nn.Sequential(*layers)
        for module in self.backbone.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )
                module.bias = nn.Parameter(module.weight.new_zeros(module.out_channels))
        self.score = nn.Conv2d(2048, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.score(self.backbone(x))
        return F.interpolate(
            scores, size=x.shape[-2:], mode="bilinear", align_corners=False
        )


def fcn32s(in_shape: Shape = (3, 320, 320), classes: int = 21) -> FCN32s:
    """RPN's segmentation network: 23,577,621 parameters with VOC's 21 classes."""
    return FCN32s(classes, in_shape[0])


class Pyramid(nn.Module):
    """The map of each stage, the largest first."""

    def __init__(self, stages: list[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


class Summed(nn.Module):
    """Class scores at each resolution, added up from the smallest map to the largest
    through bilinear doubling (FCN-8s: Long et al., 2015, Figure 3)."""

    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        self.scores = nn.ModuleList([nn.Conv2d(width, classes, 1) for width in widths])
        self.enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    def forward(self, maps: list[Tensor]) -> Tensor:
        *finer, total = [score(x) for score, x in zip(self.scores, maps, strict=True)]
        for scores in reversed(finer):
            total = scores + self.enlarge(total)
        return total


def scene_fcn(in_shape: Shape = (1, 64, 64), classes: int = 11) -> Network:
    """The five convolutions of ``scene_detector`` with scores at all four resolutions,
    for images whose sides are multiples of 8: 99,372 parameters with 11 classes, 1,980
    of them of the scores."""
    a, b, c, d, e = SCENES
    stages: list[nn.Module] = [
        nn.Sequential(*conv_bn(in_shape[0], a)),
        nn.Sequential(nn.MaxPool2d(2), *conv_bn(a, b)),
        nn.Sequential(nn.MaxPool2d(2), *conv_bn(b, c)),
        nn.Sequential(nn.MaxPool2d(2), *conv_bn(c, d), *conv_bn(d, e)),
    ]
    return Network(Pyramid(stages), Summed([a, b, c, e], classes))
