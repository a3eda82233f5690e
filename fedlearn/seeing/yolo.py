"""Detectors: YOLOv3 (Redmon and Farhadi, 2018; RPN, section 4.2), YOLOX (Ge et al.,
2021; Fed-KGF, section 4.4), and a small one for digit scenes. The classes are the
networks that the papers count; the functions at the end build them for images of a
shape, from scratch."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.cnn import Network, Residual, Shape, conv_bn, pooled
from .heads import Centre, Head, SimOTA, ThreeAnchors, expect_few

SCENES = (16, 32, 64, 64, 64)  # channels of the networks for digit scenes


def silu(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    activation: Callable = nn.SiLU,
) -> nn.Sequential:
    """Convolution, normalisation and an activation."""
    return nn.Sequential(*conv_bn(inputs, outputs, kernel, stride, 1, activation))


leaky = partial(silu, activation=partial(nn.LeakyReLU, 0.1, inplace=True))


def narrowed(layer: Callable, width: int, inner: int) -> nn.Sequential:
    """1x1 to so many inner channels, and 3x3 back."""
    return nn.Sequential(layer(width, inner, 1), layer(inner, width, 3))


# ---- YOLOv3


def stage(inputs: int, outputs: int, blocks: int) -> list[nn.Module]:
    """Halve the map, then residual blocks of 1x1 and 3x3 through half the channels."""
    layers: list[nn.Module] = [leaky(inputs, outputs, 3, 2)]
    for _ in range(blocks):
        layers.append(Residual(narrowed(leaky, outputs, outputs // 2)))
    return layers


class Branch(nn.Module):
    """Five convolutions 1x1, 3x3, 1x1, 3x3, 1x1, from which the next branch goes on,
    then 3x3 and the 1x1 prediction: x -> (input of the next branch, map of
    predictions)."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        neck = [leaky(inputs, width, 1)]
        for _ in range(2):
            neck += [leaky(width, 2 * width, 3), leaky(2 * width, width, 1)]
        self.neck = nn.Sequential(*neck)
        self.predict = nn.Sequential(
            leaky(width, 2 * width, 3),
            nn.Conv2d(2 * width, outputs, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.neck(x)
        return x, self.predict(x)


def lateral(width: int) -> nn.Sequential:
    """From one branch to the next finer one: half the channels, twice the
    resolution."""
    return nn.Sequential(leaky(width, width // 2, 1), nn.Upsample(scale_factor=2))


class YOLOv3(nn.Module):
    """Darknet-53 and three branches: x [N, 3, H, W], H and W multiples of 32 -> three
    maps, of strides 32, 16 and 8.

    A map is [N, 3 (classes + 5), H/stride, W/stride]: for each of three anchors the
    box, objectness and class scores, before any sigmoid. 61,949,149 parameters with
    COCO's 80 classes, 61,895,776 of them kernels: the latter is the count that RPN's
    section 4.2 and Table 2 print, though VOC has 20 classes (61,626,049).
    """

    head: Head = ThreeAnchors()

    def __init__(self, classes: int = 80, channels: int = 3) -> None:
        super().__init__()
        self.fine = nn.Sequential(
            leaky(channels, 32, 3),
            *stage(32, 64, 1),
            *stage(64, 128, 2),
            *stage(128, 256, 8),
        )
        self.middle = nn.Sequential(*stage(256, 512, 8))
        self.coarse = nn.Sequential(*stage(512, 1024, 4))
        outputs = self.head.channels(classes)
        self.heads = nn.ModuleList()
        for inputs, width in ((1024, 512), (256 + 512, 256), (128 + 256, 128)):
            self.heads.append(Branch(inputs, width, outputs))
        self.laterals = nn.ModuleList([lateral(512), lateral(256)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fine = self.fine(x)
        middle = self.middle(fine)
        x, coarse_map = self.heads[0](self.coarse(middle))
        x, middle_map = self.heads[1](torch.cat([self.laterals[0](x), middle], -3))
        _, fine_map = self.heads[2](torch.cat([self.laterals[1](x), fine], -3))
        return coarse_map, middle_map, fine_map

    def layers(self) -> dict[str, int]:
        """Layers by kind, as Darknet's configuration file counts them: RPN's section
        4.2 prints 107, of which 75 are convolutional."""
        kinds = [type(module) for module in self.modules()]
        return {
            "convolutional": kinds.count(nn.Conv2d),
            "shortcut": kinds.count(Residual),
            "route": 2
            * len(self.laterals),  # one back to the neck, one that concatenates
            "upsample": kinds.count(nn.Upsample),
            "yolo": len(self.heads),
        }


# ---- YOLOX


class CSP(nn.Module):
    """Two paths through half the channels, one of them with so many ``blocks``, and a
    mix."""

    def __init__(
        self, inputs: int, outputs: int, blocks: int, shortcut: bool = False
    ) -> None:
        super().__init__()
        half = outputs // 2
        long: list[nn.Module] = [silu(inputs, half, 1)]
        for _ in range(blocks):
            block = narrowed(silu, half, half)
            long.append(Residual(block) if shortcut else block)
        self.long = nn.Sequential(*long)
        self.short = silu(inputs, half, 1)
        self.mix = silu(2 * half, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.cat([self.long(x), self.short(x)], -3))


class SPP(nn.Module):
    """A map beside its maxima over windows of 5, 9 and 13, between two 1x1
    convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.narrow = silu(width, width // 2, 1)
        self.mix = silu(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(x)
        maxima = [F.max_pool2d(x, size, 1, size // 2) for size in (5, 9, 13)]
        return self.mix(torch.cat([x, *maxima], -3))


class DecoupledHead(nn.Module):
    """[N, inputs, H, W] -> [N, 5 + classes, H, W]: boxes in one branch, classes in
    another."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = silu(inputs, width, 1)
        self.boxes = nn.Sequential(silu(width, width, 3), silu(width, width, 3))
        self.kinds = nn.Sequential(silu(width, width, 3), silu(width, width, 3))
        self.predict = nn.ModuleList(
            [nn.Conv2d(width, outputs, 1) for outputs in (4, 1, classes)]
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        boxes = self.boxes(x)
        box, objectness, kinds = self.predict
        return torch.cat([box(boxes), objectness(boxes), kinds(self.kinds(x))], -3)


class YOLOX(nn.Module):
    """YOLOX: x [N, 3, H, W], H and W multiples of 32 -> maps [N, 5 + classes, H/stride,
    W/stride] of strides 8, 16 and 32: box, objectness and class scores of each place,
    before any sigmoid.

    ``blocks`` and ``width`` set the size: 1 and 32 are YOLOX-S, 8,968,255 parameters
    with COCO's 80 classes, 3 and 64 are YOLOX-L, 54,208,895. Fed-KGF (section 4.4)
    prints 8.94 for YOLOX-S: the 8,944,896 kernel entries in millions.
    """

    head: Head = SimOTA()

    def __init__(
        self,
        classes: int = 80,
        blocks: int = 1,
        width: int = 32,
        channels: int = 3,
    ) -> None:
        super().__init__()
        c2 = 2 * width  # channels at strides 4, 8, 16 and 32
        c3 = 4 * width
        c4 = 8 * width
        c5 = 16 * width
        self.fine = nn.Sequential(
            nn.PixelUnshuffle(2),  # squares of 2 x 2 pixels become channels
            silu(4 * channels, width, 3),
            silu(width, c2, 3, 2),
            CSP(c2, c2, blocks, True),
            silu(c2, c3, 3, 2),
            CSP(c3, c3, 3 * blocks, True),
        )
        self.middle = nn.Sequential(silu(c3, c4, 3, 2), CSP(c4, c4, 3 * blocks, True))
        self.coarse = nn.Sequential(silu(c4, c5, 3, 2), SPP(c5), CSP(c5, c5, blocks))
        # from coarse to fine and back; each step concatenates with the map of that
        # resolution
        self.laterals = nn.ModuleList([silu(c5, c4, 1), silu(c4, c3, 1)])
        self.ups = nn.ModuleList([CSP(2 * c4, c4, blocks), CSP(2 * c3, c3, blocks)])
        self.strides = nn.ModuleList([silu(c3, c3, 3, 2), silu(c4, c4, 3, 2)])
        self.downs = nn.ModuleList([CSP(2 * c3, c4, blocks), CSP(2 * c4, c5, blocks)])
        self.upsample = nn.Upsample(scale_factor=2)
        self.heads = nn.ModuleList(
            [DecoupledHead(inputs, c3, classes) for inputs in (c3, c4, c5)]
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        fine = self.fine(x)
        middle = self.middle(fine)
        top = self.laterals[0](self.coarse(middle))
        side = self.laterals[1](
            self.ups[0](torch.cat([self.upsample(top), middle], -3))
        )
        maps = [self.ups[1](torch.cat([self.upsample(side), fine], -3))]
        for stride, mix, other in zip(
            self.strides, self.downs, (side, top), strict=True
        ):
            maps.append(mix(torch.cat([stride(maps[-1]), other], -3)))
        return tuple(head(x) for head, x in zip(self.heads, maps, strict=True))


# ---- networks for images of a shape


def yolov3(in_shape: Shape = (3, 416, 416), classes: int = 20) -> YOLOv3:
    """RPN's detector: 61,626,049 parameters with VOC's 20 classes."""
    net = YOLOv3(classes, in_shape[0])
    for branch in net.heads:
        layer = branch.predict[1]
        expect_few(layer, range(4, layer.out_channels, classes + 5))
    return net


def yolox_s(
    in_shape: Shape = (3, 640, 640), classes: int = 80, width: int = 32
) -> YOLOX:
    """Fed-KGF's detector: 8,968,255 parameters with COCO's 80 classes."""
    net = YOLOX(classes, width=width, channels=in_shape[0])
    for head in net.heads:
        _, objectness, kinds = head.predict
        expect_few(objectness, [0], 0.01)  # as in the authors' program
        expect_few(kinds, range(classes), 0.01)
    return net


def scene_detector(in_shape: Shape = (1, 64, 64), classes: int = 10) -> Network:
    """Five 3x3 convolutions, pooled three times, and a 1x1 to a box for each cell of 8
    x 8 pixels: 98,367 parameters with 10 classes, all but 975 of them of the five."""
    layers: list[nn.Module] = []
    for i, pair in enumerate(pairwise((in_shape[0], *SCENES))):
        layers += pooled(*pair) if i < 3 else conv_bn(*pair)
    head = Centre()
    last = expect_few(nn.Conv2d(SCENES[-1], head.channels(classes), 1), [4])
    net = Network(nn.Sequential(*layers), last)
    net.head = head
    return net
