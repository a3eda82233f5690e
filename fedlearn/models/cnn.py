"""The convolutional networks of the papers: an extractor of feature maps and a classifier."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]  # channels, height and width of one image


class Network(nn.Module):
    """``classifier(extractor(x))``: x [batch, channels, height, width] -> logits [batch, classes].

    The split is FedFusion's (paper, section 4.1): all up to the last feature map, then the rest.
    """

    def __init__(self, extractor: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.extractor(x))


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
) -> list[nn.Module]:
    """Convolution without bias (batch normalisation has one), normalisation, ReLU."""
    options = {"padding": kernel // 2, "groups": groups, "bias": False}
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, **options)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


class Residual(nn.Module):
    """``body(x) + shortcut(x)``, by default x itself, and an activation if there is one."""

    def __init__(
        self,
        body: nn.Module,
        shortcut: nn.Module | None = None,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()
        self.activation = activation or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.body(x) + self.shortcut(x))


def pooled(inputs: int, outputs: int) -> list[nn.Module]:
    """``conv_bn`` with pooling behind the convolution: later layers have a quarter of the work."""
    convolution, *layers = conv_bn(inputs, outputs)
    return [convolution, nn.MaxPool2d(2), *layers]


def mean_head(width: int, classes: int) -> nn.Sequential:
    """The mean of each channel, and a linear layer."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


def digits_cnn(in_shape: Shape = (1, 8, 8), classes: int = 10) -> Network:
    """A small network for 8x8 digits, with 10,078 parameters.

    Three 3x3 convolutions with batch normalisation are pooled to 4x4, 2x2 and 1x1; a linear layer
    follows. Nearly all parameters are convolution kernels.
    """
    extractor = nn.Sequential(
        *pooled(in_shape[0], 12),
        *pooled(12, 24),
        *conv_bn(24, 32),
    )
    return Network(extractor, mean_head(32, classes))


def mlp(in_shape: Shape = (1, 1, 64), classes: int = 10) -> Network:
    """One hidden layer of 64, for vectors: 4,810 parameters for 64 features and 10 classes."""
    extractor = nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(in_shape), 64),
        nn.ReLU(),
    )
    return Network(extractor, nn.Sequential(nn.Linear(64, classes)))


def _dense_head(
    extractor: nn.Sequential,
    in_shape: Shape,
    hidden: Sequence[int],
    classes: int,
    dropout: float,
) -> Network:
    """The extractor, and dense layers of ``hidden`` sizes behind it."""
    layers: list[nn.Module] = [nn.Flatten()]
    x = extractor[0].weight.new_zeros(1, *in_shape)
    with torch.no_grad():
        width = extractor.eval()(x).numel()
    for size in hidden:
        layers.append(nn.Linear(width, size))
        layers.append(nn.ReLU())
        layers.append(nn.Dropout(dropout))
        width = size
    layers.append(nn.Linear(width, classes))
    return Network(extractor.train(), nn.Sequential(*layers))


def _two_convolutions(
    inputs: int, first: int, second: int, *pooling: int
) -> nn.Sequential:
    """Two 5x5 convolutions with ReLU and pooling."""
    return nn.Sequential(
        nn.Conv2d(inputs, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(*pooling),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(*pooling),
    )


def mcmahan_cnn(in_shape: Shape = (1, 28, 28), classes: int = 10) -> Network:
    """McMahan et al. (2017); FedMMD/FedFusion, section 4.1.1: 1,663,370 parameters on 28x28."""
    extractor = _two_convolutions(in_shape[0], 32, 64, 2)
    return _dense_head(extractor, in_shape, [512], classes, 0.2)


def cifar_cnn(in_shape: Shape = (3, 32, 32), classes: int = 10) -> Network:
    """FedMMD/FedFusion paper, section 4.1.1: 1,756,426 parameters on 32x32 colour images."""
    extractor = _two_convolutions(in_shape[0], 64, 64, 3, 2, 1)
    return _dense_head(extractor, in_shape, [384, 192], classes, 0.2)


def rpn_cnn(in_shape: Shape = (1, 28, 28), classes: int = 10) -> Network:
    """RPN, section 4.1: 1,199,882 parameters on 28x28. The paper names no dropout; it is ours."""
    extractor = nn.Sequential(
        nn.Conv2d(in_shape[0], 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
    )
    return _dense_head(extractor, in_shape, [128], classes, 0.5)
