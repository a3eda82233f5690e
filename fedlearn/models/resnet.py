"""Residual networks for small images (He et al., 2016).

FedGKT (Figure 1(b), Appendix B.3) cuts them in two: the extractor of an edge network is
its stem, and a server network takes the stem's output. The networks ``small_...`` have at
most 15 million multiply-adds an image of 32 x 32, which two CPU cores can train, and 32
to 128 channels, which leaves room for the 16 base kernels of Fed-KGF.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from .cnn import Network, Residual, Shape, conv_bn, mean_head, pooled


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
        y = self.conv2(self.conv1(x))
        return self.relu(y + self.shortcut(x))


def bottleneck(inputs: int, outputs: int, stride: int = 1) -> Residual:
    """1x1 to a quarter of the channels, 3x3, 1x1 back, and a shortcut."""
    inner = outputs // 4
    body = nn.Sequential(
        *conv_bn(inputs, inner, 1),
        *conv_bn(inner, inner, 3, stride),
        *conv_bn(inner, outputs, 1)[:2],
    )
    return Residual(body, _shortcut(inputs, outputs, stride), nn.ReLU())


class Row(NamedTuple):
    """The layers of a residual network."""

    shape: Shape  # of an image, or of the maps of an edge network
    stem: Callable | None  # input channels -> layers, the first one a convolution
    blocks: Sequence[tuple[int, int]]  # (channels, stride)
    block: Callable[..., nn.Module] = BasicBlock
    extractor: int = -3  # its layers: by default all but pooling and the linear layer


def build(row: Row, in_shape: Shape, classes: int) -> Network:
    """The network of a row for images of a shape."""
    width = in_shape[0]
    layers: list[nn.Module] = []
    if row.stem:
        layers += row.stem(width)
        width = layers[0].out_channels
    for outputs, stride in row.blocks:
        layers.append(row.block(width, outputs, stride))
        width = outputs
    layers += mean_head(width, classes)
    extractor = nn.Sequential(*layers[: row.extractor])
    classifier = nn.Sequential(*layers[row.extractor :])
    net = Network(extractor, classifier)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def _function(name: str, row: Row) -> Callable[..., Network]:
    def network(in_shape: Shape = row.shape, classes: int = 10) -> Network:
        return build(row, in_shape, classes)

    network.__name__ = name
    network.__qualname__ = name
    network.__doc__ = (
        f"The residual network ``ROWS[{name!r}]``, by default for {row.shape}."
    )
    return network


def stage(outputs: int, blocks: int, stride: int) -> list[tuple[int, int]]:
    """(channels, stride) of each block of a stage; the first block has the stride."""
    return [(outputs, stride), *[(outputs, 1)] * (blocks - 1)]


def bottlenecks(blocks: int) -> list[tuple[int, int]]:
    """Three stages of bottlenecks."""
    return [
        *stage(64, blocks, 1),
        *stage(128, blocks, 2),
        *stage(256, blocks, 2),
    ]


DIGIT = (1, 8, 8)
IMAGE = (3, 32, 32)
MAPS = (16, 32, 32)
TO_16 = partial(conv_bn, outputs=16)
POOLED = partial(pooled, outputs=16)
EIGHTEEN = [
    *stage(64, 2, 1),
    *stage(128, 2, 2),
    *stage(256, 2, 2),
    *stage(512, 2, 2),
]
DIGITS = stage(16, 2, 1) + stage(32, 2, 2)
SMALL = [(32, 2), (64, 2), (128, 2)]
# Behind each row: its parameters with 10 classes.
ROWS = {
    # a 3x3 stem and no first pooling, as used on CIFAR (Fed-KGF, section 4: its 98.3 %
    # share of k x k kernels fits this stem, and no other of those tried): 11,173,962
    "resnet18": Row(IMAGE, partial(conv_bn, outputs=64), EIGHTEEN),
    # nine 3x3 convolutions behind a pooled stem, and a linear layer, so ten modules in
    # the sense of Fed-KGF: 42,938
    "digits_resnet": Row(DIGIT, POOLED, DIGITS),
    # digits_resnet with 6 and 13 channels: about as many parameters as digits_resnet
    # learns with four base kernels of Fed-KGF: 7,023
    "digits_narrow": Row(
        DIGIT,
        partial(pooled, outputs=6),
        stage(6, 2, 1) + stage(13, 2, 2),
    ),
    "resnet56": Row(IMAGE, TO_16, bottlenecks(6), bottleneck),  # 591,322
    "resnet110": Row(IMAGE, TO_16, bottlenecks(12), bottleneck),  # 1,147,738
    # FedGKT's edge networks: 10,586, of which 464 are in the extractor (Table 7 of the
    # paper shows other blocks and a pooling layer, which do not fit its text or its
    # numbers); 9,978; 5,306
    "resnet8": Row(IMAGE, TO_16, stage(64, 2, 1), bottleneck, 3),
    "resnet6": Row(IMAGE, TO_16, stage(16, 2, 1), extractor=3),
    "resnet4": Row(IMAGE, TO_16, stage(16, 1, 1), extractor=3),
    "digits_edge": Row(DIGIT, POOLED, stage(32, 1, 1), bottleneck, 4),  # 2,138
    # its server networks, which have no stem: 590,858; 1,147,274; 42,762
    "resnet55": Row(MAPS, None, bottlenecks(6), bottleneck),
    "resnet109": Row(MAPS, None, bottlenecks(12), bottleneck),
    "digits_server": Row((16, 4, 4), None, DIGITS),
    # eight modules in the sense of Fed-KGF: 308,650
    "small_resnet": Row(
        IMAGE,
        partial(conv_bn, outputs=32, stride=2),
        [(32, 1), (64, 2), (128, 2)],
    ),
    # about as many parameters as small_resnet learns with 16 base kernels: 51,789
    "small_narrow": Row(
        IMAGE,
        partial(conv_bn, outputs=13, stride=2),
        [(13, 1), (26, 2), (52, 2)],
    ),
    "small_server": Row(MAPS, None, SMALL),  # 303,690
    # edge and server in one, which a client trains without FedGKT: 304,154
    "small_whole": Row(IMAGE, TO_16, SMALL),
}
NETWORKS = {name: _function(name, row) for name, row in ROWS.items()}
globals().update(NETWORKS)  # each is found by its name, by pickle too
