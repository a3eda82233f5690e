"""Residual networks for small images (He et al., 2016).

FedGKT (Figure 1(b), Appendix B.3) cuts them in two: an edge network's extractor is its stem, and a
server network takes what the stem gives. Those called ``small_`` have at most 15 million
multiply-adds an image of 32 x 32, which two CPU cores can train, and 32 to 128 channels, which
leaves room for the 16 base kernels of Fed-KGF.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from .cnn import Network, Shape, conv_bn, pooled

WIDTHS = 32, 64, 128  # of the small networks
DIGITS = [(16, 1), (16, 1), (32, 2), (32, 1)]


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The identity, or a 1x1 convolution where the shape changes."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(*conv_bn(inputs, outputs, 1, stride)[:2])


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(*conv_bn(inputs, outputs, stride=stride))
        self.conv2 = nn.Sequential(*conv_bn(outputs, outputs)[:2])
        self.shortcut = _shortcut(inputs, outputs, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.conv2(self.conv1(x)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1 to a quarter of the channels, 3x3, 1x1 back, and the same shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        narrow = conv_bn(inputs, outputs // 4, 1), conv_bn(outputs // 4, outputs // 4, 3, stride)
        self.body = nn.Sequential(*sum(narrow, []), *conv_bn(outputs // 4, outputs, 1)[:2])
        self.shortcut = _shortcut(inputs, outputs, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


def _residual(
    stem: Sequence[nn.Module] | int,
    blocks: Sequence[tuple[int, int]],
    classes: int,
    block: type[nn.Module] = BasicBlock,
    extractor: int = -3,
) -> Network:
    """``stem`` begins with a convolution; a number stands for so many channels and no stem.
    ``blocks`` lists (channels, stride); the first so many layers are the extractor, by default all
    but pooling and the linear layer."""
    layers, width = ([], stem) if isinstance(stem, int) else ([*stem], stem[0].out_channels)
    for outputs, stride in blocks:
        layers.append(block(width, outputs, stride))
        width = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    net = Network(nn.Sequential(*layers[:extractor]), nn.Sequential(*layers[extractor:]))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def _stages(blocks: int) -> list[tuple[int, int]]:
    """Three stages of so many bottlenecks: (channels, stride) of each."""
    stages = enumerate((64, 128, 256))
    return [(width, 1 + (i == 0 < stage)) for stage, width in stages for i in range(blocks)]


def resnet18(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """ResNet-18 with a 3x3 stem and no first pooling, as used on CIFAR: 11,173,962 parameters
    with 10 classes. (Fed-KGF, section 4: its 98.3 % share of k x k kernels fits this stem and no
    other that was tried.)"""
    blocks = [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]
    return _residual(conv_bn(in_shape[0], 64), blocks, classes)


def digits_resnet(in_shape: Shape = (1, 8, 8), classes: int = 10) -> Network:
    """Its small relative for 8x8 digits: nine 3x3 convolutions of 16 and 32 channels behind a
    pooled stem, and a linear layer, so ten modules in the sense of Fed-KGF; 42,938 parameters."""
    return _residual(pooled(in_shape[0], 16), DIGITS, classes)


def digits_narrow(in_shape: Shape = (1, 8, 8), classes: int = 10) -> Network:
    """``digits_resnet`` with 6 and 13 channels: 7,023 parameters, nearly as many as it learns with
    four base kernels of Fed-KGF."""
    return _residual(pooled(in_shape[0], 6), [(6, 1), (6, 1), (13, 2), (13, 1)], classes)


def resnet56(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """Three stages of six bottlenecks: 591,322 parameters with 10 classes."""
    return _residual(conv_bn(in_shape[0], 16), _stages(6), classes, Bottleneck)


def resnet110(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """Three stages of twelve: 1,147,738 parameters with 10 classes."""
    return _residual(conv_bn(in_shape[0], 16), _stages(12), classes, Bottleneck)


def resnet55(in_shape: Shape = (16, 32, 32), classes: int = 10) -> Network:
    """ResNet-56 without its stem: 590,858 parameters with 10 classes."""
    return _residual(in_shape[0], _stages(6), classes, Bottleneck)


def resnet109(in_shape: Shape = (16, 32, 32), classes: int = 10) -> Network:
    """ResNet-110 without its stem: 1,147,274 parameters with 10 classes."""
    return _residual(in_shape[0], _stages(12), classes, Bottleneck)


def resnet8(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """Edge network: stem and two bottlenecks, 10,586 parameters with 10 classes, 464 of them in
    the extractor. (Table 7 of the paper shows other blocks and a pooling layer, which do not fit
    its text or its numbers.)"""
    return _residual(conv_bn(in_shape[0], 16), [(64, 1)] * 2, classes, Bottleneck, 3)


def resnet6(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """Smaller edge network: stem and two basic blocks, 9,978 parameters with 10 classes."""
    return _residual(conv_bn(in_shape[0], 16), [(16, 1)] * 2, classes, extractor=3)


def resnet4(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """The smallest: stem and one basic block, 5,306 parameters with 10 classes."""
    return _residual(conv_bn(in_shape[0], 16), [(16, 1)], classes, extractor=3)


def digits_edge(in_shape: Shape = (1, 8, 8), classes: int = 10) -> Network:
    """The edge network for 8x8 digits: the stem of ``digits_resnet`` and one bottleneck, 2,138
    parameters."""
    return _residual(pooled(in_shape[0], 16), [(32, 1)], classes, Bottleneck, 4)


def digits_server(in_shape: Shape = (16, 4, 4), classes: int = 10) -> Network:
    """``digits_resnet`` without its stem: 42,762 parameters."""
    return _residual(in_shape[0], DIGITS, classes)


def small_resnet(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """A stem of stride 2 and three basic blocks: 308,650 parameters with 10 classes, eight modules
    in the sense of Fed-KGF."""
    stem = conv_bn(in_shape[0], WIDTHS[0], stride=2)
    return _residual(stem, [(32, 1), (64, 2), (128, 2)], classes)


def small_server(in_shape: Shape = (16, 32, 32), classes: int = 10) -> Network:
    """FedGKT's server network for what the stem of ``resnet8`` gives: three basic blocks of
    stride 2, 303,690 parameters with 10 classes."""
    return _residual(in_shape[0], [(width, 2) for width in WIDTHS], classes)


def small_whole(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """The stem of ``resnet8`` and ``small_server`` behind it, what a client would have to train
    without FedGKT: 304,154 parameters with 10 classes."""
    blocks = [(width, 2) for width in WIDTHS]
    return _residual(conv_bn(in_shape[0], 16), blocks, classes)
