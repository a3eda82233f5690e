"""What FedRepOpt (``methods.fed_repopt``) needs of a network: the scales of its blocks,
its twin with one kernel a block, and the multipliers of that one's gradients."""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from .reparam import blocks, collapse, unit

SCALES = ("s3", "s1", "s_id")


@dataclass(frozen=True)
class Scales:
    """The scales of each block, {"<block>.s3": [out], ...}: s3, and s1 and s_id where
    there are."""

    of: dict[str, Tensor] = field(repr=False, compare=False)
    digest: str = ""

    def __post_init__(self) -> None:
        for name, t in self.of.items():
            if not torch.is_tensor(t) or t.dim() != 1 or not torch.isfinite(t).all():
                raise ValueError(
                    "A scale is a finite number for each output channel; "
                    f"{name} is not."
                )
        data = b"".join(
            name.encode() + t.detach().cpu().float().numpy().tobytes()
            for name, t in sorted(self.of.items())
        )
        object.__setattr__(self, "digest", blake2b(data, digest_size=4).hexdigest())

    def put_into(self, net: nn.Module) -> None:
        """Set the scales of a network whose blocks are in the form "csla" or "search";
        ``ValueError`` if any does not fit."""
        current = scales_of(net)
        wrong = sorted(current.keys() ^ self.of.keys()) or [
            name for name in current if current[name].shape != self.of[name].shape
        ]
        if wrong:
            raise ValueError(
                f"These scales belong to another network: {wrong[0]} does not fit."
            )
        for name, t in current.items():
            t.copy_(self.of[name])


def _attributes(net: nn.Module, *names: str) -> dict[str, Any]:
    """These attributes of all blocks, where they are not None, as "<block>.<name>"."""
    pairs = [
        (f"{block}.{n}", getattr(m, n, None))
        for block, m in blocks(net).items()
        for n in names
    ]
    return {name: part for name, part in pairs if part is not None}


def scales_of(net: nn.Module) -> dict[str, Tensor]:
    """The scales of a network in the form "csla" or "search", by name; its own, not
    copies."""
    return {
        name: part.value.detach() for name, part in _attributes(net, *SCALES).items()
    }


def target(net: nn.Module) -> nn.Module:
    """A network in the form "csla" -> the "repopt" network: one kernel a block, which
    starts with the same outputs, and the constants of which the multiplier is made as
    buffers that are no part of the state."""
    one = collapse(net)
    for before, block in zip(blocks(net).values(), blocks(one).values(), strict=True):
        for s in ("s3", "s1"):
            scale = getattr(before, s)
            block.register_buffer(
                f"constant_{s}",
                None if scale is None else scale.value.clone(),
                persistent=False,
            )
    return one


def constants(net: nn.Module) -> dict[str, Tensor]:
    """The constants of a "repopt" network by name, [out] each; ``ValueError`` if it has
    none."""
    by_name = _attributes(net, "constant_s3", "constant_s1")
    if not by_name:
        raise ValueError(
            'RepOpt needs the constants of a network in the form "repopt" (Form).'
        )
    return {name.replace(".constant_", "."): t for name, t in by_name.items()}


def multipliers(net: nn.Module, power: int = 2) -> list[Tensor | float]:
    """M for each trained parameter of a "repopt" network, in their order: a tensor of
    its shape, or 1.0 for all that is no kernel of a block. With ``power`` 1 it has the
    absolute value of s in place of s^2: what Adam's step, which does not grow with the
    gradient, is multiplied by."""
    constants(net)
    M: dict[str, Tensor] = {}
    for name, block in blocks(net).items():
        kernel = block.conv3.weight
        s3 = block.constant_s3[:, None, None, None].to(kernel)
        m = s3.abs() ** power * torch.ones_like(kernel)
        if block.constant_s1 is not None:
            m[:, :, 1, 1] += block.constant_s1[:, None].to(kernel).abs() ** power
        M[f"{name}.conv3.weight"] = m + unit(kernel) if block.identity else m
    return [M.get(name, 1.0) for name, p in net.named_parameters() if p.requires_grad]
