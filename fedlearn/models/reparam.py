"""Networks whose blocks exist in several forms: RepVGG (Ding et al., 2021) and
RepGhostNet (Chen et al., 2022).

    tr       BN_3(W_3 * x) + BN_1(W_1 * x) + BN_id(x)   a normalisation for each branch
    csla     BN(s_3 W_3 * x + s_1 W_1 * x + s_id x)     s_3, s_1 constant, s_id trained
    search   the same                                   all three trained
    inf      BN(W * x)                                  one kernel
    deploy   W * x + b                                  normalisation folded in

The scales s are one number an output channel (FedRepOpt paper, section 3.1). The branch
with x exists where input and output have the same shape. Ghost modules have depth-wise
kernels and no 1 x 1 branch.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..errors import pick
from .cnn import Network, Residual, Shape, conv_bn, mean_head

FORMS = {  # the layers of a block
    "tr": "conv3 conv1 bn3 bn1 bn_id",
    "csla": "conv3 conv1 s3 s1 s_id bn",
    "search": "conv3 conv1 s3 s1 s_id bn",
    "inf": "conv3 bn",
    "deploy": "conv3",
}


class Scale(nn.Module):
    """One factor a channel, [..., C] on [..., n, C, h, w].

    A constant is no part of the state.
    """

    def __init__(self, channels: int, value: float, trained: bool) -> None:
        super().__init__()
        factors = torch.full((channels,), float(value))
        if trained:
            self.value = nn.Parameter(factors)
        else:
            self.register_buffer("value", factors, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.value[..., None, :, None, None]


class Branches(nn.Module):
    """A sum of linear branches and batch normalisation, in one of the forms above.

    ``scale`` is the first value of s_3 and s_1. With several ``groups`` there is no 1 x 1
    branch. A layer that the form does not have is None.
    """

    def __init__(
        self,
        form: str,
        inputs: int,
        outputs: int,
        stride: int = 1,
        scale: float = 1.0,
        groups: int = 1,
    ) -> None:
        super().__init__()
        pick(form, FORMS, "form")
        self.form = form
        self.size = (inputs, outputs, stride, scale, groups)
        self.identity = inputs == outputs and stride == 1
        names = set(FORMS[form].split())
        if groups > 1:
            names -= {"conv1", "s1", "bn1"}
        if not self.identity:
            names -= {"s_id", "bn_id"}
        trained = form == "search"
        options = {"groups": groups, "bias": form == "deploy"}
        self.conv3 = nn.Conv2d(inputs, outputs, 3, stride, 1, **options)
        self.conv1 = self.s_id = None
        if "conv1" in names:
            self.conv1 = nn.Conv2d(inputs, outputs, 1, **options)
        for name in ("s3", "s1"):
            layer = None
            if name in names:
                layer = Scale(outputs, scale, trained)
            setattr(self, name, layer)
        if "s_id" in names:
            self.s_id = Scale(outputs, 1.0, trained=True)
        for name in ("bn3", "bn1", "bn_id", "bn"):
            layer = None
            if name in names:
                layer = nn.BatchNorm2d(outputs)
            setattr(self, name, layer)

    def branches(self) -> list[tuple]:
        """Convolution (None is x itself), scale and normalisation of each branch."""
        layers = [
            (self.conv3, self.s3, self.bn3),
            (self.conv1, self.s1, self.bn1),
            (None, self.s_id, self.bn_id),
        ]
        return [branch for branch in layers if any(branch)]

    def forward(self, x: Tensor) -> Tensor:
        stride = self.conv3.stride[0]
        total = None
        for branch in self.branches():
            # conv1 has no stride: with few channels, channels last, the gradient of a
            # strided 1 x 1 convolution makes oneDNN 3.13 write outside its memory
            # (processors with AVX2 and no AVX-512)
            y = x
            if branch[0] is self.conv1:
                y = x[..., ::stride, ::stride]
            for layer in branch:
                y = y if layer is None else layer(y)
            total = y if total is None else total + y
        return total if self.bn is None else self.bn(total)

    def like(self, form: str) -> "Branches":
        """A block of the same size in another form, its weights drawn anew."""
        weight = self.conv3.weight
        return Branches(form, *self.size).to(weight.device, weight.dtype)


def unit(weight: Tensor) -> Tensor:
    """The kernel of that shape that returns its input: 1 in the middle, from channel o
    to o."""
    kernel = torch.zeros_like(weight)
    o = torch.arange(len(weight), device=weight.device)
    kernel[o, o % weight.shape[1], 1, 1] = 1
    return kernel


def blocks(net: nn.Module) -> dict[str, Branches]:
    """The multi-branch blocks of a network by name; ``ValueError`` without any."""
    by_name = {name: m for name, m in net.named_modules() if isinstance(m, Branches)}
    if not by_name:
        raise ValueError(
            f"{type(net).__name__} has no multi-branch blocks "
            "(models.reparam.Branches); digits_repvgg and repvgg_b1 have."
        )
    return by_name


def _replace(net: nn.Module, make: Callable[[Branches], Branches]) -> nn.Module:
    """A copy of the network with each block replaced by ``make(block)``."""
    net = copy.deepcopy(net)
    for name, block in blocks(net).items():
        parent, _, child = name.rpartition(".")
        new = make(block).train(block.training)
        setattr(net.get_submodule(parent), child, new)
    return net


def reform(net: nn.Module, form: str) -> nn.Module:
    """The same network with its blocks in another form, drawn anew."""
    return _replace(net, lambda block: block.like(form))


def _sum(block: Branches) -> tuple[Tensor, Tensor]:
    """The kernel W and the bias b to which the branches of a block add up."""
    W = torch.zeros_like(block.conv3.weight)
    b = block.conv3.bias
    if b is None:
        b = W.new_zeros(len(W))
    for convolution, scale, bn in block.branches():
        kernel = unit(W) if convolution is None else convolution.weight
        if kernel.shape[-1] == 1:
            kernel = nn.functional.pad(kernel, [1] * 4)
        factor = torch.ones_like(b) if scale is None else scale.value
        if bn is not None:
            factor, offset = folded(bn)
            b = b + offset
        W = W + factor[:, None, None, None] * kernel
    return W.detach(), b.detach()


def folded(bn: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Batch normalisation in evaluation mode as y = factor x + offset, each [C]."""
    factor = bn.weight / (bn.running_var + bn.eps).sqrt()
    return factor, bn.bias - factor * bn.running_mean


def collapse(net: nn.Module) -> nn.Module:
    """CSLA -> one kernel a block, W' = s_3 W_3 + pad(s_1 W_1) + s_id I.

    Normalisation stays, and the outputs are equal in every mode.
    """

    def one(block: Branches) -> Branches:
        new = block.like("inf")
        new.conv3.weight.data.copy_(_sum(block)[0])
        new.bn.load_state_dict(block.bn.state_dict())
        return new

    return _replace(net, one)


def deploy(net: nn.Module) -> nn.Module:
    """Any form -> one kernel and a bias a block, equal outputs in evaluation mode."""

    def one(block: Branches) -> Branches:
        new = block.like("deploy")
        W, b = _sum(block)
        if block.bn is not None:
            factor, offset = folded(block.bn)
            W = W * factor[:, None, None, None]
            b = offset + factor * b
        new.conv3.weight.data.copy_(W)
        new.conv3.bias.data.copy_(b)
        return new

    return _replace(net, one)


def _repvgg(
    in_shape: Shape,
    stem: tuple[int, int],
    stages: Sequence[tuple[int, int, int]],
    classes: int,
    form: str,
) -> Network:
    """``stem`` is (width, stride), ``stages`` lists (width, blocks, stride).

    The scales of the i-th of several equal blocks begin at sqrt(2 / i), those of the
    first at 1.
    """
    width, stride = stem
    layers = [Branches(form, in_shape[0], width, stride), nn.ReLU()]
    for outputs, count, stride in stages:
        layers += [Branches(form, width, outputs, stride), nn.ReLU()]
        for i in range(1, count):
            scale = (2 / i) ** 0.5
            layers += [Branches(form, outputs, outputs, 1, scale), nn.ReLU()]
        width = outputs
    return Network(nn.Sequential(*layers), mean_head(width, classes))


def repvgg_b1(
    in_shape: Shape = (3, 64, 64), classes: int = 200, form: str = "tr"
) -> Network:
    """RepVGG-B1: a stem and 28 blocks in four stages, all of stride 2.

    The stem has stride 1 for images below 64 pixels. With 200 classes there are
    55,775,816 parameters as "tr", 50,202,632 as "inf" and 55,741,768 as "csla", which
    has 24,704 constants as well.
    """
    stem = (64, 1 + (in_shape[-1] >= 64))
    stages = [
        (128, 4, 2),
        (256, 6, 2),
        (512, 16, 2),
        (2048, 1, 2),
    ]
    return _repvgg(in_shape, stem, stages, classes, form)


def digits_repvgg(
    in_shape: Shape = (1, 8, 8), classes: int = 10, form: str = "tr"
) -> Network:
    """A small RepVGG for 8x8 digits: five blocks of 16 and 32 channels."""
    stages = [(16, 2, 1), (32, 2, 2)]
    return _repvgg(in_shape, (16, 2), stages, classes, form)


def small_repvgg(
    in_shape: Shape = (3, 32, 32), classes: int = 10, form: str = "tr"
) -> Network:
    """For 32 x 32 colour images (see ``resnet``): a stem of stride 2 and six blocks.

    332,362 parameters with 10 classes as "tr", 298,026 as "inf".
    """
    stages = [
        (32, 2, 1),
        (64, 2, 2),
        (128, 2, 2),
    ]
    return _repvgg(in_shape, (32, 2), stages, classes, form)


def ghost(
    inputs: int, outputs: int, form: str, scale: float, relu: bool = False
) -> list[nn.Module]:
    """1 x 1 convolution, normalisation, depth-wise 3 x 3 branches; ReLU after both."""
    convolution, normalisation, activation = conv_bn(inputs, outputs, 1)
    branches = Branches(form, outputs, outputs, 1, scale, outputs)
    if not relu:
        return [convolution, normalisation, branches]
    return [convolution, normalisation, activation, branches, nn.ReLU()]


class SqueezeExcite(nn.Module):
    """Each channel times a factor computed from all channels' means (Hu et al., 2018).

    The sigmoid is a hard one. The inner width is a multiple of 4, and at most a tenth
    below ``ratio`` of the channels.
    """

    def __init__(self, channels: int, ratio: float) -> None:
        super().__init__()
        inner = max(4, int(channels * ratio + 2) // 4 * 4)
        inner += 4 * (inner < 0.9 * channels * ratio)
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            nn.ReLU(),
            nn.Conv2d(inner, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.body(x)


def depthwise(channels: int, kernel: int, stride: int) -> list[nn.Module]:
    """One kernel a channel, and batch normalisation."""
    return conv_bn(channels, channels, kernel, stride, channels)[:2]


def ghost_bottleneck(
    inputs: int, row: tuple, form: str, scales: Sequence[float]
) -> Residual:
    """Two ghost modules, with stride and squeeze-excite between them, and a shortcut.

    ``row`` is (kernel, inner, outputs, ratio of squeeze-excite, stride).
    """
    kernel, inner, outputs, ratio, stride = row
    body = nn.Sequential(
        nn.Sequential(*ghost(inputs, inner, form, scales[0], relu=True)),
        *(depthwise(inner, kernel, stride) if stride > 1 else []),
        *([SqueezeExcite(inner, ratio)] if ratio else []),
        nn.Sequential(*ghost(inner, outputs, form, scales[1])),
    )
    if stride == 1 and inputs == outputs:
        return Residual(body)
    thin = depthwise(inputs, kernel, stride)
    shortcut = nn.Sequential(*thin, *conv_bn(inputs, outputs, 1)[:2])
    return Residual(body, shortcut)


def _repghost(
    stem: list[nn.Module],
    rows: Sequence[tuple],
    last: int,
    hidden: int,
    classes: int,
    form: str,
    dropout: float = 0.0,
) -> Network:
    """``rows`` as in ``ghost_bottleneck``.

    The scales of the i-th of equal ghost modules in a row begin at sqrt(2 / (i + 1)).
    """
    layers = stem
    width = stem[0].out_channels
    i = -1  # the number of the next ghost module among equal ones
    for row in rows:
        _, _, outputs, _, stride = row
        equal = stride == 1 and outputs == width
        i = i + 2 if equal else 1
        scales = [
            (2 / (i + 1)) ** 0.5,
            (2 / (i + 2)) ** 0.5,
        ]
        layers.append(ghost_bottleneck(width, row, form, scales))
        width = outputs
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(last, hidden, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )
    layers += conv_bn(width, last, 1)
    return Network(nn.Sequential(*layers), head)


def repghost_05(
    in_shape: Shape = (3, 64, 64), classes: int = 200, form: str = "tr"
) -> Network:
    """RepGhostNet 0.5x: a stem and 16 bottlenecks.

    The stem has stride 1 for images below 64 pixels. With 200 classes there are 1,289,168
    parameters as "tr", 1,284,208 as "inf" and 1,286,688 as "csla", which has 2,480
    constants as well.
    """
    rows = [
        (3, 4, 8, 0, 1),
        (3, 12, 12, 0, 2),
        (3, 20, 12, 0, 1),
        (5, 20, 20, 0.25, 2),
        (5, 32, 20, 0.25, 1),
        (3, 60, 40, 0, 2),
        (3, 52, 40, 0, 1),
        (3, 60, 40, 0, 1),
        (3, 60, 40, 0, 1),
        (3, 120, 56, 0.25, 1),
        (3, 168, 56, 0.25, 1),
        (5, 168, 80, 0.25, 2),
        (5, 240, 80, 0, 1),
        (5, 240, 80, 0.25, 1),
        (5, 240, 80, 0, 1),
        (5, 240, 80, 0.25, 1),
    ]
    stem = conv_bn(in_shape[0], 8, stride=1 + (in_shape[-1] >= 64))
    return _repghost(stem, rows, 480, 1280, classes, form, 0.2)


def digits_repghost(
    in_shape: Shape = (1, 8, 8), classes: int = 10, form: str = "tr"
) -> Network:
    """Two bottlenecks of 12 and 16 channels behind a stem of stride 2."""
    stem = conv_bn(in_shape[0], 12, stride=2)
    rows = [
        (3, 24, 12, 0, 1),
        (3, 32, 16, 0.25, 2),
    ]
    return _repghost(stem, rows, 48, 64, classes, form)


def small_repghost(
    in_shape: Shape = (3, 32, 32), classes: int = 10, form: str = "tr"
) -> Network:
    """For 32 x 32 colour images: a stem of stride 2 and five bottlenecks.

    113,530 parameters with 10 classes as "tr", 112,362 as "inf".
    """
    stem = conv_bn(in_shape[0], 16, stride=2)
    rows = [
        (3, 32, 24, 0, 1),
        (3, 48, 32, 0, 2),
        (3, 64, 32, 0.25, 1),
        (3, 96, 64, 0, 2),
        (3, 128, 64, 0.25, 1),
    ]
    return _repghost(stem, rows, 160, 256, classes, form)
