"""The convolutions of the papers' detectors, YOLOv3 (Redmon and Farhadi, 2018; RPN,
section 4.2) and YOLOX (Ge et al., 2021; Fed-KGF, section 4.4), of which the ledger
counts parameters, and a small detector for digit scenes."""

from torch import nn

from ..models.cnn import Network, Shape, conv_bn, pooled
from .heads import Centre, set_prior

SCENES = (16, 32, 64, 64, 64)  # channels of the networks for digit scenes


def yolov3(classes: int = 80) -> nn.ModuleList:
    """YOLOv3's convolutions with their batch normalisation: Darknet-53, three branches,
    and two convolutions between branches. The layers are not connected.

    61,949,149 parameters with COCO's 80 classes, 61,895,776 of them kernels: the latter
    is the count that RPN's section 4.2 and Table 2 print, though VOC has 20 classes
    (61,626,049).
    """
    layers = conv_bn(3, 32)
    width = 32
    for blocks in (1, 2, 8, 8, 4):
        layers += conv_bn(width, 2 * width)
        for _ in range(blocks):
            layers += conv_bn(2 * width, width, 1)
            layers += conv_bn(width, 2 * width)
        width = 2 * width
    branches = {
        512: 1024,
        256: 256 + 512,
        128: 128 + 256,
    }
    for width, inputs in branches.items():
        layers += conv_bn(inputs, width, 1)
        for _ in range(2):
            layers += conv_bn(width, 2 * width)
            layers += conv_bn(2 * width, width, 1)
        layers += conv_bn(width, 2 * width)
        layers.append(nn.Conv2d(2 * width, 3 * (5 + classes), 1))
    layers += conv_bn(512, 256, 1)
    layers += conv_bn(256, 128, 1)
    return nn.ModuleList(layers)


def csp(inputs: int, outputs: int, blocks: int) -> list[nn.Module]:
    """A cross-stage partial block: two paths of half the channels, one of them with
    ``blocks``, and a convolution of both."""
    half = outputs // 2
    layers = conv_bn(inputs, half, 1)
    layers += conv_bn(inputs, half, 1)
    for _ in range(blocks):
        layers += conv_bn(half, half, 1)
        layers += conv_bn(half, half)
    return layers + conv_bn(outputs, outputs, 1)


def yolox(classes: int = 80, blocks: int = 1, width: int = 32) -> nn.ModuleList:
    """YOLOX's convolutions with their batch normalisation. The layers are not connected.

    ``blocks`` and ``width`` set the size: 1 and 32 are YOLOX-S, 8,968,255 parameters
    with COCO's 80 classes, 3 and 64 are YOLOX-L, 54,208,895. Fed-KGF (section 4.4)
    prints 8.94 for YOLOX-S: the 8,944,896 kernel entries in millions.
    """
    c2 = 2 * width  # channels at strides 4, 8, 16 and 32
    c3 = 4 * width
    c4 = 8 * width
    c5 = 16 * width
    layers = [
        *conv_bn(12, width),  # squares of 2 x 2 pixels are channels
        # from fine to coarse
        *conv_bn(width, c2),
        *csp(c2, c2, blocks),
        *conv_bn(c2, c3),
        *csp(c3, c3, 3 * blocks),
        *conv_bn(c3, c4),
        *csp(c4, c4, 3 * blocks),
        *conv_bn(c4, c5),
        *conv_bn(c5, c4, 1),  # before and after spatial pyramid pooling
        *conv_bn(2 * c5, c5, 1),
        *csp(c5, c5, blocks),
        # back to fine, and to coarse again
        *conv_bn(c5, c4, 1),
        *csp(2 * c4, c4, blocks),
        *conv_bn(c4, c3, 1),
        *csp(2 * c3, c3, blocks),
        *conv_bn(c3, c3),
        *csp(2 * c3, c4, blocks),
        *conv_bn(c4, c4),
        *csp(2 * c4, c5, blocks),
    ]
    for inputs in (c3, c4, c5):  # a head for each of three maps
        layers += conv_bn(inputs, c3, 1)
        for _ in range(4):
            layers += conv_bn(c3, c3)
        for outputs in (4, 1, classes):
            layers.append(nn.Conv2d(c3, outputs, 1))
    return nn.ModuleList(layers)


def scene_detector(in_shape: Shape = (1, 64, 64), classes: int = 10) -> Network:
    """Five 3x3 convolutions, pooled three times, and a 1x1 to a box for each cell of 8
    x 8 pixels: 98,367 parameters with 10 classes, all but 975 of them of the five."""
    a, b, c, d, e = SCENES
    layers = [
        *pooled(in_shape[0], a),
        *pooled(a, b),
        *pooled(b, c),
        *conv_bn(c, d),
        *conv_bn(d, e),
    ]
    last = nn.Conv2d(e, 5 + classes, 1)
    set_prior(last, 0.05, stop=5)
    net = Network(nn.Sequential(*layers), last)
    net.head = Centre()
    return net
