"""Networks that are trained before the first round, on classes 0 to 4 of a data set, for clients
that hold 5 to 9.

Recipes name these functions, such as data/pretrained/networks.py:late_digits and
data/pretrained/networks.py:digits_rank_4, so they are run at the root of the repository. All first
weights come from one seed: both sides have those that are frozen, and these never travel.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import fedlearn as fl
from fedlearn.models import NETWORKS

EARLY = 5  # classes of the training before the first round
IMAGES = 6000  # at most, of the training before the first round
EPOCHS = {"digits": 20, "mnist": 5, "cifar10": 20}


def half(name: str, late: bool) -> Any:
    """The samples of classes 0 to 4, or of 5 to 9, which become 0 to 4."""
    source = fl.tasks.classification(name, clients=1).source

    def chosen(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mine = (y >= EARLY) == late
        return x[mine], y[mine] % EARLY

    x, y = chosen(source.train_x, source.train_y)
    test = chosen(source.test_x, source.test_y)
    title = f"{name}, classes {'5 to 9' if late else '0 to 4'}"
    return fl.data.arrays(x, y, test=test, channels="first", name=title)


@cache
def state(name: str, network: str) -> dict[str, Tensor]:
    """The weights after training on classes 0 to 4, at one place."""
    data = half(name, late=False)
    train = min(IMAGES, len(data.train_y))
    task = fl.tasks.classification(data, clients=1, network=network, train=train)
    method = fl.methods.fedavg(lr=0.1)
    history = fl.run(method, task, EPOCHS[name], batch_size=16, progress=False)
    return history.state


class Line(nn.Module):
    """Batch normalisation with the statistics of its training: a frozen scale and shift."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        shift = norm.bias - scale * norm.running_mean
        self.scale = nn.Parameter(scale.detach()[:, None, None], requires_grad=False)
        self.shift = nn.Parameter(shift.detach()[:, None, None], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Adapted(nn.Module):
    """A frozen convolution, and beside it two that train: to ``rank`` channels and back."""

    def __init__(self, frozen: nn.Conv2d, rank: int) -> None:
        super().__init__()
        how = {"stride": frozen.stride, "padding": frozen.padding, "bias": False}
        self.frozen = frozen
        self.down = nn.Conv2d(frozen.in_channels, rank, frozen.kernel_size, **how)
        self.up = nn.Conv2d(rank, frozen.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def adapted(net: nn.Module, rank: int) -> nn.Module:
    """All but the classifier is frozen, and convolutions get adapters of this rank."""
    net.extractor.requires_grad_(False)
    for block in list(net.extractor.modules()):
        for name, layer in block.named_children():
            if isinstance(layer, nn.BatchNorm2d):
                setattr(block, name, Line(layer))
            if isinstance(layer, nn.Conv2d) and rank:
                setattr(block, name, Adapted(layer, rank))
    return net


def pretrained(
    name: str, network: str, rank: int | None = None, statistics: bool = True
) -> Callable:
    """A network's function: trained on classes 0 to 4, then ready to train whole, or (``rank`` 0)
    its classifier alone, or with adapters. Without ``statistics`` those of batch normalisation
    begin anew."""

    def build(shape: Any, classes: int) -> nn.Module:
        with torch.random.fork_rng():
            weights = state(name, network)
        if not statistics:
            weights = {key: w for key, w in weights.items() if ".running_" not in key}
        net = NETWORKS[network](shape, classes)
        net.load_state_dict(weights, strict=False)  # which copies them
        return net if rank is None else adapted(net, rank)

    kind = {None: "whole", 0: "head"}.get(rank, f"rank {rank}")
    kind += "" if statistics else ", new statistics"
    build.__name__ = f"{network}, pretrained, {kind}"
    return build


late_digits = partial(half, "digits", late=True)
late_mnist = partial(half, "mnist", late=True)
late_cifar10 = partial(half, "cifar10", late=True)
digits = pretrained("digits", "digits_cnn")
digits_head = pretrained("digits", "digits_cnn", 0)
digits_rank_1 = pretrained("digits", "digits_cnn", 1)
digits_rank_2 = pretrained("digits", "digits_cnn", 2)
digits_rank_4 = pretrained("digits", "digits_cnn", 4)
digits_rank_8 = pretrained("digits", "digits_cnn", 8)
digits_rank_16 = pretrained("digits", "digits_cnn", 16)
digits_anew = pretrained("digits", "digits_cnn", statistics=False)
mnist = pretrained("mnist", "digits_cnn")
mnist_anew = pretrained("mnist", "digits_cnn", statistics=False)
cifar10 = pretrained("cifar10", "small_resnet")
cifar10_head = pretrained("cifar10", "small_resnet", 0)
