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

# by name, functions (shape of an image, classes) -> network; classifiers give [batch, classes]
NETWORKS = {
    name: globals()[name]
    for name in (
        "digits_cnn mcmahan_cnn cifar_cnn rpn_cnn mlp resnet18 digits_resnet resnet56 resnet110 "
        "resnet8 resnet6 resnet4 digits_edge resnet55 resnet109 digits_server repvgg_b1 "
        "repghost_05 digits_repvgg digits_repghost small_resnet small_server small_whole "
        "small_repvgg small_repghost"
    ).split()
}
# detectors have a ``head``, see ``heads``; segmenters give [batch, classes, height, width]
DETECTORS = {f.__name__: f for f in (scene_detector, small_yolox, yolox_s, yolov3)}
SEGMENTERS = {f.__name__: f for f in (scene_fcn, fcn32s, fcn_resnet50)}


def state_of(net: nn.Module) -> dict[str, torch.Tensor]:
    """What a network learns, by name: parameters, then floating-point buffers.

    Parameters
    ----------
    net : torch.nn.Module
        Any network.

    Returns
    -------
    dict of str to torch.Tensor
        The network's own tensors, not copies. Integer buffers (``num_batches_tracked``) are left
        out: nothing that the package computes reads them.

    Examples
    --------
    >>> import fedlearn as fl
    >>> [(name, tuple(t.shape)) for name, t in fl.models.state_of(fl.models.mlp()).items()][:2]
    [('extractor.1.weight', (64, 64)), ('extractor.1.bias', (64,))]
    """
    tensors = net.state_dict(keep_vars=True)
    return {name: t.detach() for name, t in tensors.items() if t.is_floating_point()}


def kernel_names(state: Mapping[str, torch.Tensor]) -> list[str]:
    """The convolution weights in a state.

    Parameters
    ----------
    state : mapping of str to torch.Tensor
        As ``state_of`` gives it.

    Returns
    -------
    list of str
        Names of the tensors of three dimensions or more.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.models.kernel_names(fl.models.state_of(fl.models.digits_cnn()))
    ['extractor.0.weight', 'extractor.4.weight', 'extractor.8.weight']
    """
    return [name for name, t in state.items() if t.dim() > 2]


def parameter_count(net: nn.Module) -> int:
    """Number of parameters: the sum of their sizes, buffers not counted.

    Parameters
    ----------
    net : torch.nn.Module
        Any network, also one on the device "meta", which takes no memory.

    Returns
    -------
    int
        The count that papers print.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.models.parameter_count(fl.models.digits_cnn())
    10078
    """
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
    """Multiply-adds of one image that passes through convolutions and linear layers.

    Parameters
    ----------
    net : torch.nn.Module
        Any network.
    shape : sequence of int
        Of the image: channels, height, width.

    Returns
    -------
    int
        Over all layers, the number of outputs times the inputs of each.

    Raises
    ------
    ValueError
        If the network does not take inputs of this shape.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.models.multiply_adds(fl.models.mlp(), (1, 1, 64))  # 64 x 64 + 64 x 10
    4736
    """
    total = 0

    def add(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal total
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
