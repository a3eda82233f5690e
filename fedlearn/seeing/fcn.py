"""Fully convolutional networks for segmentation: FCN-32s on a ResNet-50 (Long et al.,
2015; RPN, section 4.3), and a small one for digit scenes."""

from itertools import chain

from torch import Tensor, nn

from ..models.cnn import Network, Shape, conv_bn
from ..models.resnet import bottleneck, stage
from .yolo import SCENES

RESNET50 = (
    stage(256, 3, 1),
    stage(512, 4, 2),
    stage(1024, 6, 2),
    stage(2048, 3, 2),
)


def fcn32s(in_shape: Shape = (3, 320, 320), classes: int = 21) -> Network:
    """ResNet-50 without its classifier, a 1x1 convolution and bilinear upsampling, for
    images with sides that are multiples of 32. The paper names only "FCN" and "ResNet-50";
    the 23,577,621 parameters of its Table 3 are those of this network with VOC's 21
    classes and a bias in every convolution, as Keras builds it."""
    layers = conv_bn(in_shape[0], 64, 7, 2)
    layers.append(nn.MaxPool2d(3, 2, 1))
    width = 64
    for outputs, stride in chain(*RESNET50):
        layers.append(bottleneck(width, outputs, stride))
        width = outputs
    backbone = nn.Sequential(*layers)
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            zeros = module.weight.new_zeros(module.out_channels)
            module.bias = nn.Parameter(zeros)
    score = nn.Conv2d(width, classes, 1)
    enlarge = nn.Upsample(scale_factor=32, mode="bilinear", align_corners=False)
    return Network(backbone, nn.Sequential(score, enlarge))


class Pyramid(nn.Module):
    """The map of each stage, the largest first."""

    def __init__(self, stages: list[list[nn.Module]]) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Sequential(*layers) for layers in stages])

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for layers in self.stages:
            x = layers(x)
            maps.append(x)
        return maps


class Summed(nn.Module):
    """Class scores of each map, added up from the smallest map to the largest with
    bilinear upsampling (FCN-8s: Long et al., 2015, Figure 3)."""

    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        scores = [nn.Conv2d(width, classes, 1) for width in widths]
        self.scores = nn.ModuleList(scores)
        self.enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    def forward(self, maps: list[Tensor]) -> Tensor:
        scores = [score(x) for score, x in zip(self.scores, maps, strict=True)]
        total = scores.pop()
        for finer in reversed(scores):
            total = finer + self.enlarge(total)
        return total


def scene_fcn(in_shape: Shape = (1, 64, 64), classes: int = 11) -> Network:
    """The five convolutions of ``scene_detector`` with class scores at all four
    resolutions, for images with sides that are multiples of 8: 99,372 parameters with
    11 classes, 1,980 of them in the layers of scores."""
    a, b, c, d, e = SCENES
    stages = [
        conv_bn(in_shape[0], a),
        [nn.MaxPool2d(2), *conv_bn(a, b)],
        [nn.MaxPool2d(2), *conv_bn(b, c)],
        [nn.MaxPool2d(2), *conv_bn(c, d), *conv_bn(d, e)],
    ]
    return Network(Pyramid(stages), Summed([a, b, c, e], classes))
