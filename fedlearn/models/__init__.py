"""The networks, one file a family, and what is counted in them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from . import heads
from .cnn import Network, cifar_cnn, digits_cnn, mcmahan_cnn, mlp, rpn_cnn
from .fcn import fcn32s, fcn_resnet50
from .reparam import (
    digits_repghost,
    digits_repvgg,
    repghost_05,
    repvgg_b1,
    small_repghost,
    small_repvgg,
)
from .resnet import (
    digits_edge,
    digits_resnet,
    digits_server,
    resnet4,
    resnet6,
    resnet8,
    resnet18,
    resnet55,
    resnet56,
    resnet109,
    resnet110,
    small_resnet,
    small_server,
    small_whole,
)
from .scenes import Detector, scene_detector, scene_fcn
from .weights import starting_from
from .yolo import small_yolox, yolov3, yolox_s

NETWORKS = {
    f.__name__: f
    for f in (
        digits_cnn,
        mcmahan_cnn,
        cifar_cnn,
        rpn_cnn,
        mlp,
        resnet18,
        digits_resnet,
        resnet56,
        resnet110,
        resnet8,
        resnet6,
        resnet4,
        digits_edge,
        resnet55,
        resnet109,
        digits_server,
        repvgg_b1,
        repghost_05,
        digits_repvgg,
        digits_repghost,
        small_resnet,
        small_server,
        small_whole,
        small_repvgg,
        small_repghost,
    )
}

# detectors have a ``head``, see ``heads``; segmenters give [batch, classes, height, width]
DETECTORS = {f.__name__: f for f in (scene_detector, small_yolox, yolox_s, yolov3)}
SEGMENTERS = {f.__name__: f for f in (scene_fcn, fcn32s, fcn_resnet50)}


def state_of(net: nn.Module) -> dict[str, torch.Tensor]:
    """What a network learns, by name: parameters, then floating-point buffers (batch statistics).

    The tensors are the network's own, not copies. Integer buffers (``num_batches_tracked``) are
    left out: nothing that the package computes reads them.
    """
    tensors = net.state_dict(keep_vars=True)
    return {name: t.detach() for name, t in tensors.items() if t.is_floating_point()}


def kernel_names(state: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the convolution weights in a state: the tensors of three dimensions or more."""
    return [name for name, t in state.items() if t.dim() > 2]


def parameter_count(net: nn.Module) -> int:
    """Number of parameters: the sum of their sizes, buffers not counted."""
    return sum(p.numel() for p in net.parameters())


@contextmanager
def evaluating(net: nn.Module) -> Iterator[nn.Module]:
    """The network in evaluation mode; afterwards, even after an error, in the mode it had."""
    training = net.training
    try:
        yield net.eval()
    finally:
        net.train(training)


def multiply_adds(net: nn.Module, shape: Sequence[int]) -> int:
    """Multiply-adds of one image of ``shape`` passing through convolutions and linear layers."""
    total = 0

    def add(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal total  # outputs of the image, times inputs of each of them
        total += output[0].numel() * module.weight[0].numel()

    layers = [m for m in net.modules() if isinstance(m, (nn.modules.conv._ConvNd, nn.Linear))]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    try:
        with evaluating(net), torch.no_grad():
            net(next(net.parameters()).new_zeros(1, *shape))
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise ValueError(
            f"This {type(net).__name__} does not take inputs of shape {list(shape)} ({text})."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return total
