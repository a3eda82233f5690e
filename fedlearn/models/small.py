"""Networks for 32 x 32 colour images that two CPU cores can train: those of the scale "small" of
the recipes, at most 15 million multiply-adds an image. Widths of 32 to 128 channels leave room
for the 16 base kernels of Fed-KGF."""

from .cnn import Network, Shape, conv_bn
from .reparam import _repghost, _repvgg
from .resnet import _residual

WIDTHS = 32, 64, 128


def small_resnet(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """A stem of stride 2 and three basic blocks: 308,650 parameters with 10 classes, eight modules
    in the sense of Fed-KGF."""
    stem = conv_bn(in_shape[0], WIDTHS[0], stride=2)
    return _residual(stem, WIDTHS[0], [(32, 1), (64, 2), (128, 2)], classes)


def small_server(in_shape: Shape = (16, 32, 32), classes: int = 10) -> Network:
    """FedGKT's server network for what the stem of ``resnet8`` gives: three basic blocks of
    stride 2, 303,690 parameters with 10 classes."""
    return _residual([], in_shape[0], [(width, 2) for width in WIDTHS], classes)


def small_whole(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """The stem of ``resnet8`` and ``small_server`` behind it, what a client would have to train
    without FedGKT: 304,154 parameters with 10 classes."""
    stem = conv_bn(in_shape[0], 16)
    return _residual(stem, 16, [(width, 2) for width in WIDTHS], classes)


def small_repvgg(in_shape: Shape = (3, 32, 32), classes: int = 10, form: str = "tr") -> Network:
    """RepVGG's relative: a stem of stride 2 and six blocks, 332,362 parameters with 10 classes as
    "tr", 298,026 as "inf"."""
    return _repvgg(in_shape[0], (32, 2), [(32, 2, 1), (64, 2, 2), (128, 2, 2)], classes, form)


def small_repghost(in_shape: Shape = (3, 32, 32), classes: int = 10, form: str = "tr") -> Network:
    """RepGhostNet's relative: a stem of stride 2 and five bottlenecks, 113,530 parameters with 10
    classes as "tr", 112,362 as "inf"."""
    rows = [
        (3, 32, 24, 0, 1),
        (3, 48, 32, 0, 2),
        (3, 64, 32, 0.25, 1),
        (3, 96, 64, 0, 2),
        (3, 128, 64, 0.25, 1),
    ]
    return _repghost(in_shape[0], 16, rows, 160, 256, classes, form, 0.0, 2)
