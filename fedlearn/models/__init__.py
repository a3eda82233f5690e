"""The networks, one file a family, and functions that count in them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import short
from . import resnet
from .cnn import Network, cifar_cnn, digits_cnn, mcmahan_cnn, mlp, rpn_cnn
from .reparam import (
    digits_repghost,
    digits_repvgg,
    repghost_05,
    repvgg_b1,
    small_repghost,
    small_repvgg,
)

_OWN = (
    digits_cnn,
    mcmahan_cnn,
    cifar_cnn,
    rpn_cnn,
    mlp,
    repvgg_b1,
    repghost_05,
    digits_repvgg,
    digits_repghost,
    small_repvgg,
    small_repghost,
)
# by name, functions (shape of an image, classes) -> network; classifiers give [batch, classes]
NETWORKS: dict[str, Callable[..., Network]] = {
    **{f.__name__: f for f in _OWN},
    **resnet.NETWORKS,
}


globals().update(resnet.NETWORKS)  # so that ``models.digits_resnet`` is found
if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Network]: ...


def check_tensors(name: str, net: nn.Module) -> None:
    """``ValueError`` if a network, called ``name``, has no parameters to train here."""
    params = list(net.parameters())
    if any(nn.parameter.is_lazy(p) for p in params):
        raise ValueError(f"{name} has lazy layers: give them their sizes.")
    if not any(p.requires_grad for p in params):
        raise ValueError(f"{name} has no parameters to train, so nothing to send.")
    dtype = torch.get_default_dtype()  # float32, unless a program sets another
    for t in (*params, *net.buffers()):
        numbers = t.is_floating_point() or t.is_complex()
        if numbers and (t.dtype != dtype or t.is_meta):
            kind = str(dtype).removeprefix("torch.")
            raise ValueError(
                f"{name} must be of {kind}, with values, as net.float() makes it; "
                "complex numbers as torch.view_as_real gives them."
            )
    state = net.state_dict(keep_vars=True)
    names = {n for n, p in net.named_parameters() if p.requires_grad}
    if hidden := sorted(n for n in names if not isinstance(state.get(n), nn.Parameter)):
        raise ValueError(
            f"{name} has a state_dict that leaves out, renames or copies {hidden}: by "
            "these names they are sent."
        )


def state_of(net: nn.Module) -> dict[str, Tensor]:
    """The tensors that training changes, by name: trained parameters and float buffers.

    They are the network's own, not copies. A tied weight has its first name only. Frozen
    parameters are left out: both sides have them from the seed, so they never travel.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[Any] = set()
    for name, t in net.state_dict(keep_vars=True).items():
        frozen = isinstance(t, nn.Parameter) and not t.requires_grad
        floats = isinstance(t, Tensor) and t.is_floating_point()
        if not floats or frozen:
            continue
        place: Any = id(t)
        if t.numel() and not t.is_meta:  # tied parameters may share their values alone
            place = t.data_ptr(), t.shape, t.stride()
        if place not in seen:
            seen.add(place)
            tensors[name] = t.detach()
    return tensors


def digest(net: nn.Module) -> str:
    """A hash of the network's layers, names, shapes and frozen weights, by which a
    checkpoint knows it."""
    state = net.state_dict()
    shapes = [(n, tuple(t.shape)) for n, t in state.items() if isinstance(t, Tensor)]
    text = f"{net} {shapes}"
    frozen = {n: p for n, p in net.named_parameters() if not p.requires_grad}
    if frozen:
        text += f" {[*frozen]}"
    checksum = blake2b(text.encode(), digest_size=8)
    for p in frozen.values():
        checksum.update(p.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return checksum.hexdigest()


def kernel_names(state: Mapping[str, Tensor]) -> list[str]:
    """The convolution weights in a state: the tensors of three dimensions or more."""
    return [name for name, t in state.items() if t.dim() > 2]


def parameter_count(net: nn.Module) -> int:
    """The number of parameters, without buffers; the network may lie on "meta"."""
    return sum(p.numel() for p in net.parameters())


@contextmanager
def evaluating(net: nn.Module) -> Iterator[nn.Module]:
    """The network in evaluation mode; afterwards its mode is as before, also after an error."""
    training = net.training
    try:
        yield net.eval()
    finally:
        net.train(training)


def multiply_adds(net: nn.Module, shape: Sequence[int] | Tensor) -> int:
    """Multiply-adds of one input in convolutions and linear layers.

    For each layer this is the number of outputs times the inputs of each output; for a
    transposed convolution, the other way round. ``shape`` is that of an image [channels,
    height, width], or a batch of one input.

    >>> multiply_adds(nn.ConvTranspose2d(3, 8, 4, stride=2), (3, 10, 10)) == 300 * 8 * 16
    True
    """
    total = 0

    def add(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal total
        each = inputs[0] if getattr(layer, "transposed", False) else output
        total += each[0].numel() * layer.weight[0].numel()

    kinds = nn.modules.conv._ConvNd, nn.Linear
    layers = [layer for layer in net.modules() if isinstance(layer, kinds)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    x = shape
    if not isinstance(x, Tensor):
        x = next(net.parameters()).new_zeros(1, *shape)
    x = torch.cat([x, x])  # since some layers normalise over a batch
    try:
        with evaluating(net), torch.no_grad():
            net(x)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"This {type(net).__name__} does not take inputs of shape "
            f"{list(x.shape[1:])} ({short(error)})."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return total
