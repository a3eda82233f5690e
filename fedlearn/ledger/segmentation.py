"""FCN-32s on ResNet-50 (Long et al., 2015), the segmentation network of RPN's section 4.3."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet50


class FCN32s(nn.Module):
    """ResNet-50 without its classifier, a 1x1 convolution, bilinear enlargement: x [N, 3, H, W] ->
    [N, classes, H, W].

    The paper names only "FCN" and "ResNet-50". The 23,577,621 parameters of its Table 3 are those
    of this network with 21 classes and a bias in every convolution, as Keras builds it;
    torchvision's ``fcn_resnet50`` is another one.
    """

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            OrderedDict(list(resnet50(weights=None).named_children())[:-2])
        )
        for module in self.backbone.modules():
            if isinstance(module, nn.Conv2d):
                module.bias = nn.Parameter(
                    torch.zeros(module.out_channels, device=module.weight.device)
                )
        self.score = nn.Conv2d(2048, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(
            self.score(self.backbone(x)), size=x.shape[-2:], mode="bilinear", align_corners=False
        )
