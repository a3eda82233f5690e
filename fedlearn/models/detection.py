"""YOLOv3 (Redmon and Farhadi, 2018), the detector of RPN's section 4.2."""

import torch
from torch import nn


class ConvBN(nn.Sequential):
    """Convolution without bias, batch normalisation, leaky ReLU."""

    def __init__(self, inputs, outputs, kernel, stride=1):
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(0.1, inplace=True),
        )


class Residual(nn.Module):
    """Darknet's "shortcut" layer: ``x + conv3x3(conv1x1(x))`` through half the channels."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(ConvBN(width, width // 2, 1), ConvBN(width // 2, width, 3))

    def forward(self, x):
        return x + self.body(x)


def stage(inputs, outputs, blocks):
    """Halve the map, then ``blocks`` residual pairs."""
    return [ConvBN(inputs, outputs, 3, stride=2), *(Residual(outputs) for _ in range(blocks))]


class Head(nn.Module):
    """Five convolutions 1x1, 3x3, 1x1, 3x3, 1x1, from which the next head goes on, then 3x3 and the 1x1 prediction."""

    def __init__(self, inputs, width, outputs):
        super().__init__()
        kernels = [(inputs, width, 1)] + [(width, 2 * width, 3), (2 * width, width, 1)] * 2
        self.neck = nn.Sequential(*(ConvBN(*k) for k in kernels))
        self.predict = nn.Sequential(ConvBN(width, 2 * width, 3), nn.Conv2d(2 * width, outputs, 1))

    def forward(self, x):
        x = self.neck(x)
        return x, self.predict(x)


def lateral(width):
    """From one head to the next finer one: half the channels, twice the resolution."""
    return nn.Sequential(ConvBN(width, width // 2, 1), nn.Upsample(scale_factor=2))


class YOLOv3(nn.Module):
    """Darknet-53 and three heads: x [N, 3, H, W], H and W multiples of 32 -> maps of strides 32, 16 and 8.

    A map is [N, 3 (classes + 5), H/stride, W/stride]: for each of three anchors the box, objectness and class scores,
    before any sigmoid. 61,949,149 parameters with COCO's 80 classes, 61,895,776 of them kernels: the latter is
    the count that RPN's section 4.2 and Table 2 print, though VOC has 20 classes (61,626,049).
    """

    def __init__(self, classes=80):
        super().__init__()
        self.fine = nn.Sequential(ConvBN(3, 32, 3), *stage(32, 64, 1), *stage(64, 128, 2), *stage(128, 256, 8))
        self.middle = nn.Sequential(*stage(256, 512, 8))
        self.coarse = nn.Sequential(*stage(512, 1024, 4))
        outputs = 3 * (classes + 5)
        self.heads = nn.ModuleList([Head(1024, 512, outputs), Head(256 + 512, 256, outputs), Head(384, 128, outputs)])
        self.laterals = nn.ModuleList([lateral(512), lateral(256)])

    def forward(self, x):
        fine = self.fine(x)
        middle = self.middle(fine)
        x, coarse_map = self.heads[0](self.coarse(middle))
        x, middle_map = self.heads[1](torch.cat([self.laterals[0](x), middle], 1))
        _, fine_map = self.heads[2](torch.cat([self.laterals[1](x), fine], 1))
        return coarse_map, middle_map, fine_map

    def layers(self):
        """Layers as Darknet's configuration file counts them (RPN, section 4.2: 107, 75 of them convolutional)."""
        kinds = [type(module) for module in self.modules()]
        return {
            "convolutional": kinds.count(nn.Conv2d),
            "shortcut": kinds.count(Residual),
            "route": 2 * len(self.laterals),  # one back to the head's neck, one that concatenates
            "upsample": kinds.count(nn.Upsample),
            "yolo": len(self.heads),
        }
