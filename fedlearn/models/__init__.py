"""The networks, one file a family, and what is counted in them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

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

_PLAIN = digits_cnn, mcmahan_cnn, cifar_cnn, rpn_cnn, mlp
_BRANCHED = (
    repvgg_b1,
    repghost_05,
    digits_repvgg,
    digits_repghost,
    small_repvgg,
    small_repghost,
)
# by name, functions (shape of an image, classes) -> network; classifiers give [batch, classes]
NETWORKS: dict[str, Callable[..., Network]] = {
    **{f.__name__: f for f in _PLAIN},
    **resnet.NETWORKS,
    **{f.__name__: f for f in _BRANCHED},
}


globals().update(resnet.NETWORKS)  # digits_resnet and the others
if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Network]: ...


def starting_from(build: Callable, file: str | Path) -> Callable:
    """``build``, but with the weights of a file; its integer buffers may be absent."""
    path = Path(file).expanduser()

    def network(shape: tuple[int, ...], classes: int) -> nn.Module:
        net = build(shape, classes)
        integers = {
            n: t for n, t in net.state_dict().items() if not t.is_floating_point()
        }
        try:
            if path.suffix == ".safetensors":
                state = load_file(path)
            else:
                state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ValueError(f"{path} holds no weights ({one_line(error)}).") from None
        try:
            net.load_state_dict(integers | state)
        except Exception as error:  # no state at all, or another network's
            raise ValueError(
                f"{path} does not fit {build.__name__} ({one_line(error)})."
            ) from None
        return net

    network.__name__ = f"{build.__name__}@{path.name}"
    return network


def check_tensors(name: str, net: nn.Module) -> None:
    """``ValueError`` if a network, called ``name``, has no parameters that can be trained here."""
    params = [*net.parameters()]
    if any(map(nn.parameter.is_lazy, params)):
        raise ValueError(f"{name} has lazy layers: give them their sizes.")
    if not any(p.requires_grad for p in params):
        raise ValueError(f"{name} has no parameters to train, so nothing to send.")
    floats = [
        t for t in (*params, *net.buffers()) if t.is_floating_point() or t.is_complex()
    ]
    right = torch.get_default_dtype()  # float32, unless a program sets another
    if any(t.dtype != right or t.is_meta for t in floats):
        kind = str(right).removeprefix("torch.")
        raise ValueError(
            f"{name} must be of {kind}, with values, as net.float() makes it."
        )


def one_line(error: Exception) -> str:
    """An error in one line that is not endless."""
    text = " ".join(str(error).split())
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:160]


def state_of(net: nn.Module) -> dict[str, Tensor]:
    """The tensors that training changes, by name: trained parameters and floating-point buffers.

    They are the network's own, not copies. A tied weight has its first name only. Frozen
    parameters are left out: both sides have them from the seed, so they never travel.
    """
    tensors: dict[str, Tensor] = {}
    seen = set()
    for name, t in net.state_dict(keep_vars=True).items():
        frozen = isinstance(t, nn.Parameter) and not t.requires_grad
        if t.is_floating_point() and not frozen and id(t) not in seen:
            seen.add(id(t))
            tensors[name] = t.detach()
    return tensors


def digest(net: nn.Module) -> str:
    """A hash of the network's layers, names and shapes, by which a checkpoint knows it."""
    shapes = [(name, tuple(t.shape)) for name, t in net.state_dict().items()]
    text = f"{net} {shapes}"
    if frozen := [name for name, p in net.named_parameters() if not p.requires_grad]:
        text += f" {frozen}"
    return blake2b(text.encode(), digest_size=8).hexdigest()


def kernel_names(state: Mapping[str, Tensor]) -> list[str]:
    """The convolution weights in a state: the tensors of three dimensions or more."""
    return [name for name, t in state.items() if t.dim() > 2]


def parameter_count(net: nn.Module) -> int:
    """How many parameters, without buffers; the network may lie on "meta", without memory."""
    return sum(p.numel() for p in net.parameters())


@contextmanager
def evaluating(net: nn.Module) -> Iterator[nn.Module]:
    """The network in evaluation mode; afterwards, even after an error, in the mode it had."""
    training = net.training
    try:
        yield net.eval()
    finally:
        net.train(training)


def multiply_adds(net: nn.Module, shape: Sequence[int] | Tensor) -> int:
    """Multiply-adds of one image [channels, height, width] that passes through convolutions, linear
    and recurrent layers: over these, the number of outputs times the inputs of each. In place of
    the shape there may be such an input [1, ...]. ``ValueError`` if the network takes none."""
    total = 0

    def add(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal total
        if isinstance(module, nn.RNNBase):
            weights = sum(w.numel() for w in module.parameters() if w.dim() == 2)
            total += output[0].shape[-2] * weights
        else:
            total += output[0].numel() * module.weight[0].numel()

    kinds = nn.modules.conv._ConvNd, nn.Linear, nn.RNNBase
    layers = [m for m in net.modules() if isinstance(m, kinds)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    try:
        with evaluating(net), torch.no_grad():
            given = isinstance(shape, Tensor)
            net(shape if given else next(net.parameters()).new_zeros(1, *shape))
    except RuntimeError as error:
        shape = shape.shape[1:] if isinstance(shape, Tensor) else shape
        raise ValueError(
            f"This {type(net).__name__} does not take inputs of shape {list(shape)} "
            f"({one_line(error)})."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return total
