"""What FedRepOpt (``methods.fed_repopt``) needs of a network.

Scales of blocks, the network with one kernel a block, and the multipliers of gradients.
"""

from dataclasses import dataclass, field
from hashlib import blake2b

import torch
from torch import Tensor, nn

from .reparam import Scale, blocks, collapse, unit


@dataclass(frozen=True)
class Scales:
    """The scales of each block by name, {"<block>.s3": [out], ...}: s3, s1 and s_id."""

    tensors: dict[str, Tensor] = field(repr=False, compare=False)
    digest: str = ""

    def __post_init__(self) -> None:
        digest = blake2b(digest_size=4)
        for name, t in sorted(self.tensors.items()):
            if t.dim() != 1 or not torch.isfinite(t).all():
                raise ValueError(
                    "A scale is a finite number for each output channel; "
                    f"{name} is not."
                )
            values = t.detach().cpu().float()
            digest.update(name.encode())
            digest.update(values.numpy().tobytes())
        object.__setattr__(self, "digest", digest.hexdigest())

    def put_into(self, net: nn.Module) -> None:
        """Set the scales of a network whose blocks have the form "csla" or "search"."""
        current = scales_of(net)
        shapes = {name: t.shape for name, t in current.items()}
        if {name: t.shape for name, t in self.tensors.items()} != shapes:
            raise ValueError("These scales belong to another network.")
        for name, t in current.items():
            t.copy_(self.tensors[name])


def scales_of(net: nn.Module) -> dict[str, Tensor]:
    """The scales of a network by name; they are the network's own, not copies."""
    tensors = {}
    for name, layer in net.named_modules():
        if isinstance(layer, Scale):
            tensors[name] = layer.value.detach()
    return tensors


def target(net: nn.Module) -> nn.Module:
    """A network in the form "csla" -> the "repopt" network, with one kernel a block.

    Both have the same outputs at the start. The constants of the multipliers become
    buffers, which no state contains.
    """
    one = collapse(net)
    for before, block in zip(blocks(net).values(), blocks(one).values(), strict=True):
        for s in ("s3", "s1"):
            scale = getattr(before, s)
            constant = None if scale is None else scale.value.clone()
            block.register_buffer(f"constant_{s}", constant, persistent=False)
    return one


def constants(net: nn.Module) -> dict[str, Tensor]:
    """The constants of a "repopt" network by name, {"<block>.s3": [out], ...}."""
    by_name = {}
    for name, t in net.named_buffers():
        if ".constant_" in name:
            by_name[name.replace(".constant_", ".")] = t
    if not by_name:
        raise ValueError('RepOpt needs a network in the form "repopt", as of Form.')
    return by_name


def multipliers(net: nn.Module) -> list[Tensor | float]:
    """M for each trained parameter of a "repopt" network, in their order.

    M is a tensor for the kernel of a block, and 1.0 for all other parameters.
    """
    M: dict[nn.Parameter, Tensor] = {}
    for block in blocks(net).values():
        kernel = block.conv3.weight
        s3 = block.constant_s3.to(kernel)
        m = torch.ones_like(kernel) * s3[:, None, None, None] ** 2
        if block.constant_s1 is not None:
            s1 = block.constant_s1.to(kernel)
            m[:, :, 1, 1] += s1[:, None] ** 2
        if block.identity:
            m += unit(kernel)
        M[kernel] = m
    return [M.get(p, 1.0) for p in net.parameters() if p.requires_grad]
