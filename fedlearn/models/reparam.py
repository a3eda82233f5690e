"""Networks whose blocks exist in several forms: RepVGG (Ding et al., 2021) and
RepGhostNet (Chen et al., 2022).

    tr       BN_3(W_3 * x) + BN_1(W_1 * x) + BN_id(x)    branches, each with its own
    normalisation csla     BN(s_3 W_3 * x + s_1 W_1 * x + s_id x)      s_3 and s_1
    constant, s_id trained search   the same                                    all
    three trained inf      BN(W * x)                                   one kernel deploy
    W * x + b                                   one kernel, normalisation folded in

The scales s are one number an output channel (FedRepOpt paper, section 3.1). The branch
with x is there where input and output have the same shape. Ghost modules have
depth-wise kernels and no 1 x 1 branch.
"""

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from ..errors import pick
from .cnn import Network, Residual, Shape, conv_bn

FORMS = dict.fromkeys(("tr", "csla", "search", "inf", "deploy"))


class Scale(nn.Module):
    """One factor a channel, [..., C] on [..., n, C, h, w]: counted from the end, so
    that clients may be stacked in front. A constant is no part of the state: it never
    changes. ``decays``: weight decay that spares vectors is for this one all the same
    (``optim.shrunk``)."""

    def __init__(
        self, channels: int, value: float, trained: bool, decays: bool = False
    ) -> None:
        super().__init__()
        self.decays = decays
        factors = torch.full((channels,), float(value))
        if trained:
            self.value = nn.Parameter(factors)
        else:
            self.register_buffer("value", factors, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.value[..., None, :, None, None]


class Branches(nn.Module):
    """A sum of linear branches and batch normalisation, in one of the forms above.
    ``scale`` is where s_3 and s_1 begin; ``pointwise``: whether there is a 1 x 1
    branch."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int = 1,
        form: str = "tr",
        groups: int = 1,
        pointwise: bool = True,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        pick(form, FORMS, "form")
        self.form, self.pointwise, self.scale = form, pointwise, scale
        self.identity = inputs == outputs and stride == 1
        branched = form == "tr"
        scaled = form in ("csla", "search")
        trained = form == "search"

        def convolution(kernel: int, stride: int, bias: bool) -> nn.Conv2d:
            padding = kernel // 2
            return nn.Conv2d(inputs, outputs, kernel, stride, padding, 1, groups, bias)

        def normalisation(needed: bool) -> nn.Module | None:
            return nn.BatchNorm2d(outputs) if needed else None

        self.conv3 = convolution(3, stride, form == "deploy")
        self.conv1 = self.s3 = self.s1 = self.s_id = None
        if pointwise and (branched or scaled):
            self.conv1 = convolution(1, 1, False)  # ``forward`` has the stride
        if scaled:
            self.s3 = Scale(outputs, scale, trained)
        if scaled and pointwise:
            self.s1 = Scale(outputs, scale, trained)
        if scaled and self.identity:
            # s_id I is part of the kernel to which the branches add up: it decays, too
            self.s_id = Scale(outputs, 1.0, trained=True, decays=True)
        self.bn3 = normalisation(branched)
        self.bn1 = normalisation(branched and pointwise)
        self.bn_id = normalisation(branched and self.identity)
        self.bn = normalisation(scaled or form == "inf")

    def branches(
        self,
    ) -> Iterator[tuple[nn.Module | None, nn.Module | None, nn.Module | None]]:
        """Convolution (None is x itself), scale and normalisation of each branch."""
        yield self.conv3, self.s3, self.bn3
        if self.conv1 is not None:
            yield self.conv1, self.s1, self.bn1
        if self.s_id is not None or self.bn_id is not None:
            yield None, self.s_id, self.bn_id

    def forward(self, x: Tensor) -> Tensor:
        total, stride = None, self.conv3.stride[0]
        for layers in self.branches():
            # not by a stride of conv1: of few channels, channels last, its gradient
            # makes oneDNN 3.13 write where it must not (processors with AVX2 and no
            # AVX-512)
            y = x[..., ::stride, ::stride] if layers[0] is self.conv1 else x
            for layer in layers:
                y = y if layer is None else layer(y)
            total = y if total is None else total + y
        return total if self.bn is None else self.bn(total)

    def like(self, form: str) -> "Branches":
        """A block of the same size in another form, its weights drawn anew."""
        c = self.conv3
        return Branches(
            c.in_channels,
            c.out_channels,
            c.stride[0],
            form,
            c.groups,
            self.pointwise,
            self.scale,
        ).to(c.weight.device, c.weight.dtype)


def unit(weight: Tensor) -> Tensor:
    """The kernel of that shape that returns its input: 1 in the middle, from channel o
    to o."""
    kernel = torch.zeros_like(weight)
    o = torch.arange(len(weight), device=weight.device)
    kernel[o, o % weight.shape[1], 1, 1] = 1
    return kernel


def blocks(net: nn.Module) -> dict[str, Branches]:
    """The multi-branch blocks of a network by name; ``ValueError`` if there are
    none."""
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
        setattr(net.get_submodule(parent), child, make(block).train(block.training))
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
    """CSLA -> one kernel a block, W' = s_3 W_3 + pad(s_1 W_1) + s_id I, normalisation
    kept: equal outputs in every mode."""

    def one(block: Branches) -> Branches:
        if block.form not in ("csla", "search"):
            raise ValueError(
                'Only blocks in the forms "csla" and "search" collapse into one '
                f'kernel, not "{block.form}".'
            )
        new = block.like("inf")
        new.conv3.weight.data.copy_(_sum(block)[0])
        new.bn.load_state_dict(block.bn.state_dict())
        return new

    return _replace(net, one)


def deploy(net: nn.Module) -> nn.Module:
    """Any form -> one kernel and a bias a block, equal outputs in evaluation mode."""

    def one(block: Branches) -> Branches:
        new, (W, b) = block.like("deploy"), _sum(block)
        if block.bn is not None:
            factor, offset = folded(block.bn)
            W, b = W * factor[:, None, None, None], offset + factor * b
        new.conv3.weight.data.copy_(W)
        new.conv3.bias.data.copy_(b)
        return new

    return _replace(net, one)


def _repvgg(
    channels: int,
    stem: tuple[int, int],
    stages: Sequence[tuple],
    classes: int,
    form: str,
) -> Network:
    """``stem`` is (width, stride), ``stages`` lists (width, blocks, stride). The scales
    of the i-th of several equal blocks begin at sqrt(2 / i), those of the first at
    1."""
    width, stride = stem
    layers: list[nn.Module] = [Branches(channels, width, stride, form), nn.ReLU()]
    for outputs, count, stride in stages:
        for i in range(count):
            if i == 0:
                block = Branches(width, outputs, stride, form)
            else:
                block = Branches(width, outputs, 1, form, scale=(2 / i) ** 0.5)
            layers += [block, nn.ReLU()]
            width = outputs
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)
    )
    return Network(nn.Sequential(*layers), head)


def repvgg_b1(
    in_shape: Shape = (3, 64, 64), classes: int = 200, form: str = "tr"
) -> Network:
    """28 blocks in four stages behind a stem, all of stride 2 (the stem of 1 for images
    below 64 pixels). With 200 classes 55,775,816 parameters as "tr", 50,202,632 as
    "inf" and 55,741,768 as "csla", which has 24,704 constants besides."""
    stages = [(128, 4, 2), (256, 6, 2), (512, 16, 2), (2048, 1, 2)]
    return _repvgg(in_shape[0], (64, 1 + (in_shape[-1] >= 64)), stages, classes, form)


def digits_repvgg(
    in_shape: Shape = (1, 8, 8), classes: int = 10, form: str = "tr"
) -> Network:
    """Its small relative for 8x8 digits: five blocks of 16 and 32 channels."""
    return _repvgg(in_shape[0], (16, 2), [(16, 2, 1), (32, 2, 2)], classes, form)


def small_repvgg(
    in_shape: Shape = (3, 32, 32), classes: int = 10, form: str = "tr"
) -> Network:
    """For 32 x 32 colour images (see ``resnet``): a stem of stride 2 and six blocks,
    332,362 parameters with 10 classes as "tr", 298,026 as "inf"."""
    return _repvgg(
        in_shape[0], (32, 2), [(32, 2, 1), (64, 2, 2), (128, 2, 2)], classes, form
    )


def ghost(inputs: int, outputs: int, form: str, relu: bool, scale: float) -> nn.Module:
    """1 x 1 convolution, normalisation, depth-wise 3 x 3 branches; ReLU behind both or
    none."""
    convolution, normalisation, activation = conv_bn(inputs, outputs, 1)
    branches = Branches(outputs, outputs, 1, form, outputs, False, scale)
    if not relu:
        return nn.Sequential(convolution, normalisation, branches)
    return nn.Sequential(convolution, normalisation, activation, branches, nn.ReLU())


class SqueezeExcite(nn.Module):
    """Each channel times a factor computed from all channels' means (Hu et al., 2018),
    with a hard sigmoid; inside so many channels that are a multiple of 4, but never
    more than a tenth below ``ratio`` of them."""

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
    """Two ghost modules, between them stride and squeeze-excite where there are; a
    shortcut. ``row`` is (kernel, inner, outputs, ratio of squeeze-excite, stride)."""
    kernel, inner, outputs, ratio, stride = row
    body = nn.Sequential(
        ghost(inputs, inner, form, True, scales[0]),
        *(depthwise(inner, kernel, stride) if stride > 1 else []),
        *([SqueezeExcite(inner, ratio)] if ratio else []),
        ghost(inner, outputs, form, False, scales[1]),
    )
    if stride == 1 and inputs == outputs:
        return Residual(body)
    shortcut = depthwise(inputs, kernel, stride) + conv_bn(inputs, outputs, 1)[:2]
    return Residual(body, nn.Sequential(*shortcut))


def _repghost(
    stem: list[nn.Module],
    rows: Sequence[tuple],
    last: int,
    hidden: int,
    classes: int,
    form: str,
    dropout: float = 0.0,
) -> Network:
    """``rows`` as in ``ghost_bottleneck``; the scales of the i-th module of equal ones
    in a row begin at sqrt(2 / i), i from 1."""
    layers = stem
    width = stem[0].out_channels
    run = -2  # modules of this stage so far
    for row in rows:
        run = run + 2 if row[4] == 1 and row[2] == width else 0
        scales = [(2 / (run + m + 1)) ** 0.5 for m in (1, 2)]
        layers.append(ghost_bottleneck(width, row, form, scales))
        width = row[2]
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(last, hidden, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )
    return Network(nn.Sequential(*layers, *conv_bn(width, last, 1)), head)


def repghost_05(
    in_shape: Shape = (3, 64, 64), classes: int = 200, form: str = "tr"
) -> Network:
    """RepGhostNet 0.5x: 16 bottlenecks (behind a stem of stride 1 for images below 64
    pixels). With 200 classes 1,289,168 parameters as "tr", 1,284,208 as "inf" and
    1,286,688 as "csla", which has 2,480 constants besides."""
    rows = [
        (3, 4, 8, 0, 1), (3, 12, 12, 0, 2), (3, 20, 12, 0, 1),
        (5, 20, 20, 0.25, 2), (5, 32, 20, 0.25, 1),
        (3, 60, 40, 0, 2), (3, 52, 40, 0, 1), (3, 60, 40, 0, 1), (3, 60, 40, 0, 1),
        (3, 120, 56, 0.25, 1), (3, 168, 56, 0.25, 1),
        (5, 168, 80, 0.25, 2), (5, 240, 80, 0, 1), (5, 240, 80, 0.25, 1),
        (5, 240, 80, 0, 1), (5, 240, 80, 0.25, 1),
    ]  # fmt: skip
    stem = conv_bn(in_shape[0], 8, stride=1 + (in_shape[-1] >= 64))
    return _repghost(stem, rows, 480, 1280, classes, form, 0.2)


def digits_repghost(
    in_shape: Shape = (1, 8, 8), classes: int = 10, form: str = "tr"
) -> Network:
    """Two bottlenecks of 12 and 16 channels behind a stem of stride 2."""
    rows = [(3, 24, 12, 0, 1), (3, 32, 16, 0.25, 2)]
    return _repghost(conv_bn(in_shape[0], 12, stride=2), rows, 48, 64, classes, form)


def small_repghost(
    in_shape: Shape = (3, 32, 32), classes: int = 10, form: str = "tr"
) -> Network:
    """For 32 x 32 colour images: a stem of stride 2 and five bottlenecks, 113,530
    parameters with 10 classes as "tr", 112,362 as "inf"."""
    rows = [(3, 32, 24, 0, 1), (3, 48, 32, 0, 2), (3, 64, 32, 0.25, 1)]
    rows += [(3, 96, 64, 0, 2), (3, 128, 64, 0.25, 1)]
    return _repghost(conv_bn(in_shape[0], 16, stride=2), rows, 160, 256, classes, form)
