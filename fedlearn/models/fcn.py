"""Fully convolutional networks on a ResNet-50: FCN-32s (Long et al., 2015), which RPN's section 4.3
segments with, and torchvision's."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

from .cnn import Shape


class FCN32s(nn.Module):
    """ResNet-50 without its classifier, a 1x1 convolution, bilinear enlargement: x [N, 3, H, W] ->
    [N, classes, H, W]. The paper names only "FCN" and "ResNet-50"; the 23,577,621 parameters of its
    Table 3 are those of this network with 21 classes and a bias in every convolution, as Keras
    builds it."""

    def __init__(self, classes: int = 21, channels: int = 3) -> None:
        from torchvision.models import resnet50  # takes long to load

        super().__init__()
        self.backbone = nn.Sequential(
            OrderedDict(list(_for(channels, resnet50(weights=None)).named_children())[:-2])
        )
        for module in self.backbone.modules():
            if isinstance(module, nn.Conv2d):
                module.bias = nn.Parameter(module.weight.new_zeros(module.out_channels))
        self.score = nn.Conv2d(2048, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(
            self.score(self.backbone(x)), size=x.shape[-2:], mode="bilinear", align_corners=False
        )


class FCN(nn.Module):
    """torchvision's FCN on a ResNet-50 whose last two stages are dilated, without its second
    output: 32,957,013 parameters with 21 classes."""

    def __init__(self, classes: int = 21, channels: int = 3) -> None:
        from torchvision.models.segmentation import fcn_resnet50

        super().__init__()
        self.net = fcn_resnet50(weights=None, weights_backbone=None, num_classes=classes)
        _for(channels, self.net.backbone)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)["out"]


def _for(channels: int, resnet: nn.Module) -> nn.Module:
    """A ResNet whose first convolution takes so many channels."""
    if channels != 3:
        resnet.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    return resnet


def fcn32s(in_shape: Shape = (3, 320, 320), classes: int = 21) -> FCN32s:
    """RPN's segmentation network: 23,577,621 parameters with VOC's 21 classes."""
    return FCN32s(classes, in_shape[0])


def fcn_resnet50(in_shape: Shape = (3, 320, 320), classes: int = 21) -> FCN:
    """torchvision's network of that name, from scratch."""
    return FCN(classes, in_shape[0])
