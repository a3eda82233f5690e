"""Detectors: YOLOv3 (Redmon and Farhadi, 2018; RPN, section 4.2), YOLOX (Ge et al., 2021; Fed-KGF,
section 4.4), and a small one for digit scenes. The classes are the networks as they are counted;
the functions at the end make them ready for images of a shape, from scratch."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from .cnn import SCENES, Network, Residual, Shape, conv_bn, pooled
from .heads import Centre, Head, SimOTA, ThreeAnchors, expect_few

STRIDE = 32  # of the coarsest map


LeakyReLU, SiLU = partial(nn.LeakyReLU, 0.1, inplace=True), partial(nn.SiLU, inplace=True)


def leaky(*sizes: int, activation: Callable = LeakyReLU, **more: int) -> nn.Sequential:
    """``conv_bn`` with a leaky ReLU."""
    return nn.Sequential(*conv_bn(*sizes, activation=activation, **more))


def stage(inputs: int, outputs: int, blocks: int) -> list[nn.Module]:
    """Halve the map, then ``blocks`` residual pairs conv1x1, conv3x3 through half the channels."""
    half = outputs // 2
    first = leaky(inputs, outputs, 3, stride=2)
    pairs = (nn.Sequential(leaky(outputs, half, 1), leaky(half, outputs, 3)) for _ in range(blocks))
    return [first, *map(Residual, pairs)]


class Branch(nn.Module):
    """Five convolutions 1x1, 3x3, 1x1, 3x3, 1x1, from which the next head goes on, then 3x3 and the
    1x1 prediction: x -> (what the next head takes, the map of predictions)."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        kernels = [(inputs, width, 1)] + [(width, 2 * width, 3), (2 * width, width, 1)] * 2
        self.neck = nn.Sequential(*(leaky(*k) for k in kernels))
        self.predict = nn.Sequential(leaky(width, 2 * width, 3), nn.Conv2d(2 * width, outputs, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.neck(x)
        return x, self.predict(x)


def lateral(width: int) -> nn.Sequential:
    """From one head to the next finer one: half the channels, twice the resolution."""
    return nn.Sequential(leaky(width, width // 2, 1), nn.Upsample(scale_factor=2))


class YOLOv3(nn.Module):
    """Darknet-53 and three heads: x [N, 3, H, W], H and W multiples of 32 -> three maps, of strides
    32, 16 and 8.

    A map is [N, 3 (classes + 5), H/stride, W/stride]: for each of three anchors the box, objectness
    and class scores, before any sigmoid. 61,949,149 parameters with COCO's 80 classes, 61,895,776
    of them kernels: the latter is the count that RPN's section 4.2 and Table 2 print, though VOC
    has 20 classes (61,626,049).
    """

    head: Head = ThreeAnchors()

    def __init__(self, classes: int = 80, channels: int = 3) -> None:
        super().__init__()
        self.fine = nn.Sequential(
            leaky(channels, 32, 3), *stage(32, 64, 1), *stage(64, 128, 2), *stage(128, 256, 8)
        )
        self.middle = nn.Sequential(*stage(256, 512, 8))
        self.coarse = nn.Sequential(*stage(512, 1024, 4))
        outputs = 3 * (classes + 5)
        self.heads = nn.ModuleList(
            [Branch(1024, 512, outputs), Branch(256 + 512, 256, outputs), Branch(384, 128, outputs)]
        )
        self.laterals = nn.ModuleList([lateral(512), lateral(256)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fine = self.fine(x)
        middle = self.middle(fine)
        x, coarse_map = self.heads[0](self.coarse(middle))
        x, middle_map = self.heads[1](torch.cat([self.laterals[0](x), middle], -3))
        _, fine_map = self.heads[2](torch.cat([self.laterals[1](x), fine], -3))
        return coarse_map, middle_map, fine_map

    def layers(self) -> dict[str, int]:
        """Layers by kind, as Darknet's configuration file counts them: RPN's section 4.2 prints
        107, of which 75 are convolutional."""
        kinds = [type(module) for module in self.modules()]
        return {
            "convolutional": kinds.count(nn.Conv2d),
            "shortcut": kinds.count(Residual),
            "route": 2 * len(self.laterals),  # one back to the head's neck, one that concatenates
            "upsample": kinds.count(nn.Upsample),
            "yolo": len(self.heads),
        }


silu = partial(leaky, activation=SiLU)


class CSP(nn.Module):
    """Two paths through half the channels, one with ``blocks`` pairs conv1x1, conv3x3, mixed."""

    def __init__(self, inputs: int, outputs: int, blocks: int, shortcut: bool = False) -> None:
        super().__init__()
        half, first = outputs // 2, silu(inputs, outputs // 2, 1)
        pairs = (nn.Sequential(silu(half, half, 1), silu(half, half, 3)) for _ in range(blocks))
        self.long = nn.Sequential(first, *(map(Residual, pairs) if shortcut else pairs))
        self.short = silu(inputs, half, 1)
        self.mix = silu(2 * half, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.cat([self.long(x), self.short(x)], -3))


class SPP(nn.Module):
    """A map beside its maxima over windows of 5, 9 and 13, between two 1x1 convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.narrow, self.mix = silu(width, width // 2, 1), silu(2 * width, width, 1)
        self.pools = nn.ModuleList([nn.MaxPool2d(size, 1, size // 2) for size in (5, 9, 13)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(x)
        return self.mix(torch.cat([x, *(pool(x) for pool in self.pools)], -3))


class DecoupledHead(nn.Module):
    """[N, inputs, H, W] -> [N, 5 + classes, H, W]: boxes in one branch, classes in another."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = silu(inputs, width, 1)
        self.boxes, self.kinds = (
            nn.Sequential(*(silu(width, width, 3) for _ in range(2))) for _ in range(2)
        )
        self.predict = nn.ModuleList([nn.Conv2d(width, outputs, 1) for outputs in (4, 1, classes)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        boxes, kinds = self.boxes(x), self.kinds(x)
        return torch.cat(
            [layer(y) for layer, y in zip(self.predict, (boxes, boxes, kinds), strict=True)], -3
        )


class YOLOX(nn.Module):
    """YOLOX: x [N, 3, H, W], H and W multiples of 32 -> maps [N, 5 + classes, H/stride, W/stride]
    of strides 8, 16 and 32: box, objectness and class scores of each place, before any sigmoid.

    ``blocks`` and ``width`` set the size: 1 and 32 are YOLOX-S, 8,968,255 parameters with COCO's 80
    classes, 3 and 64 are YOLOX-L, 54,208,895. Fed-KGF (section 4.4) prints 8.94 for YOLOX-S: the
    8,944,896 kernel entries in millions.
    """

    head: Head = SimOTA()

    def __init__(
        self, classes: int = 80, blocks: int = 1, width: int = 32, channels: int = 3
    ) -> None:
        super().__init__()
        c3, c4, c5 = 4 * width, 8 * width, 16 * width  # channels at strides 8, 16 and 32

        def down(outputs: int, *rest: nn.Module) -> list[nn.Module]:
            return [silu(outputs // 2, outputs, 3, 2), *rest]

        # the stem turns squares of 2 x 2 pixels into channels
        stem = nn.PixelUnshuffle(2), silu(4 * channels, width, 3)
        first = down(2 * width, CSP(2 * width, 2 * width, blocks, True))
        self.fine = nn.Sequential(*stem, *first, *down(c3, CSP(c3, c3, 3 * blocks, True)))
        self.middle = nn.Sequential(*down(c4, CSP(c4, c4, 3 * blocks, True)))
        self.coarse = nn.Sequential(*down(c5, SPP(c5), CSP(c5, c5, blocks)))
        # from coarse to fine and back; each step concatenates with the map of that resolution
        self.laterals = nn.ModuleList([silu(c5, c4, 1), silu(c4, c3, 1)])
        self.ups = nn.ModuleList([CSP(2 * c4, c4, blocks), CSP(2 * c3, c3, blocks)])
        self.strides = nn.ModuleList([silu(c3, c3, 3, 2), silu(c4, c4, 3, 2)])
        self.downs = nn.ModuleList([CSP(2 * c3, c4, blocks), CSP(2 * c4, c5, blocks)])
        self.upsample = nn.Upsample(scale_factor=2)
        self.heads = nn.ModuleList([DecoupledHead(inputs, c3, classes) for inputs in (c3, c4, c5)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fine = self.fine(x)
        middle = self.middle(fine)
        top = self.laterals[0](self.coarse(middle))
        side = self.laterals[1](self.ups[0](torch.cat([self.upsample(top), middle], -3)))
        maps = [self.ups[1](torch.cat([self.upsample(side), fine], -3))]
        for stride, mix, other in zip(self.strides, self.downs, (side, top), strict=True):
            maps.append(mix(torch.cat([stride(maps[-1]), other], -3)))
        return tuple(head(x) for head, x in zip(self.heads, maps, strict=True))


def _whole(name: str, shape: Shape) -> None:
    if any(side % STRIDE for side in shape[1:]):
        raise ValueError(
            f"{name} takes images whose sides are multiples of {STRIDE} pixels, not {shape[2]} x "
            f"{shape[1]}."
        )


def yolov3(in_shape: Shape = (3, 416, 416), classes: int = 20) -> YOLOv3:
    """RPN's detector: 61,626,049 parameters with VOC's 20 classes."""
    _whole("YOLOv3", in_shape)
    net = YOLOv3(classes, in_shape[0])
    for branch in net.heads:
        layer = branch.predict[1]
        expect_few(layer, range(4, layer.out_channels, classes + 5))
    return net


def yolox_s(in_shape: Shape = (3, 640, 640), classes: int = 80, width: int = 32) -> YOLOX:
    """Fed-KGF's detector: 8,968,255 parameters with COCO's 80 classes."""
    _whole("YOLOX", in_shape)
    net = YOLOX(classes, width=width, channels=in_shape[0])
    for head in net.heads:
        _, objectness, kinds = head.predict
        expect_few(objectness, [0], 0.01)  # as in the authors' program
        expect_few(kinds, range(classes), 0.01)
    return net


def scene_detector(in_shape: Shape = (1, 64, 64), classes: int = 10) -> Network:
    """Five 3x3 convolutions, pooled three times, and a 1x1 to a box for each cell of 8 x 8 pixels:
    98,367 parameters with 10 classes, all but 975 of them of the five."""
    layers: list[nn.Module] = []
    for i, pair in enumerate(pairwise((in_shape[0], *SCENES))):
        layers += pooled(*pair) if i < 3 else conv_bn(*pair)
    head = Centre()
    last = expect_few(nn.Conv2d(SCENES[-1], head.channels(classes), 1), [4])
    net = Network(nn.Sequential(*layers), last)
    net.head = head
    return net
