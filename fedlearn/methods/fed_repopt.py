"""FedRepOpt: Lau et al., "FedRepOpt: Gradient Re-parametrized Optimizers in Federated Learning", 2024, Algorithm 1.

    server:  scales s_3, s_1 (and s_id) of every block from a search on data of its own; sent to each client once
    start:   W' = s_3 W_3 + pad(s_1 W_1) + s_id I, one kernel a block                          (section 3.2, first rule)
    client:  g <- M g with M = s_3^2, + s_1^2 in the middle, + 1 in the middle from o to o where the block has an identity
             branch; then weight decay, momentum and step of SGD                                (second rule, Eq. 1)

M has the shape of W' [out, in, 3, 3] and never changes. The paper prints the scalar s_3^2 + s_1^2 instead, with which training is
not that of the several branches; the 1 is there because s_id is itself trained, with a constant 1 in front. With these rules a
plain network takes the very steps of the network with constant scales ("csla"). Ghost modules have no s_1.
"""

from dataclasses import dataclass, field
from hashlib import blake2b

import torch

from .. import federation, local
from ..errors import WireError, pick
from ..method import SGD, Adam, Downlink, Method
from ..models import reparam, state_of
from ..models.reparam import blocks, collapse, reform, unit
from .fed_gkt import Named

SCALES = ("s3", "s1", "s_id")


@dataclass(frozen=True)
class Scales:
    """The scales of each block, {"<block>.s3": [out], ...}: s3, and s1 and s_id where the block has them."""

    of: dict = field(repr=False)
    digest: str = ""

    def __post_init__(self):
        for name, t in self.of.items():
            if not torch.is_tensor(t) or t.dim() != 1 or not torch.isfinite(t).all():
                raise ValueError(f"A scale is a finite number for each output channel; {name} is not.")
        data = b"".join(name.encode() + t.detach().cpu().float().numpy().tobytes() for name, t in sorted(self.of.items()))
        object.__setattr__(self, "digest", blake2b(data, digest_size=4).hexdigest())

    def put_into(self, net):
        """Set the scales of a network whose blocks are in the form "csla" or "search"; ``ValueError`` if any does not fit."""
        own = read(net)
        wrong = sorted(own.keys() ^ self.of.keys()) or [name for name in own if own[name].shape != self.of[name].shape]
        if wrong:
            raise ValueError(f"These scales belong to another network: {wrong[0]} does not fit.")
        for name, t in own.items():
            t.copy_(self.of[name])


def read(net):
    """The scales of a network in the form "csla" or "search", by name; its own tensors, not copies."""
    parts = {f"{name}.{s}": getattr(block, s) for name, block in blocks(net).items() for s in SCALES}
    return {name: part.value.detach() for name, part in parts.items() if part is not None}


@dataclass(frozen=True)
class Form:
    """The network of that name (or the task's, if None) with its blocks in one of the forms of ``models.reparam``; or as
    "repopt": "csla" collapsed into one kernel a block. ``scales``: instead of those that the network begins with."""

    form: str = "repopt"
    network: object = None
    scales: Scales | None = None

    def __post_init__(self):
        pick(self.form, reparam.FORMS | {"repopt": None}, "form")

    def build(self, task):
        whole = Named(self.network).build(task)
        if self.form not in ("csla", "search", "repopt"):
            return reform(whole, self.form)
        net = reform(whole, "search" if self.form == "search" else "csla")
        if self.scales:
            self.scales.put_into(net)
        if self.form != "repopt":
            return net
        target = collapse(net)
        for name, block in blocks(target).items():
            for s in ("s3", "s1"):  # what the multiplier is made of; no part of the state
                scale = getattr(blocks(net)[name], s)
                block.register_buffer(f"constant_{s}", None if scale is None else scale.value.clone(), persistent=False)
        return target


def constants(net):
    """The constants of a "repopt" network by name, [out] each; ``ValueError`` for any other network."""
    found = {f"{n}.{s}": getattr(b, f"constant_{s}", None) for n, b in blocks(net).items() for s in ("s3", "s1")}
    found = {name: t for name, t in found.items() if t is not None}
    if not found:
        raise ValueError('RepOpt needs the constants of a network in the form "repopt" (Form).')
    return found


def multipliers(net, power=2):
    """M for each trained parameter of a "repopt" network, in their order: a tensor of its shape, or 1.0 for all that is no kernel
    of a block. ``power`` 2 is for SGD; for Adam, whose steps do not grow with the gradient, it is 1."""
    constants(net)
    M = {}
    for name, block in blocks(net).items():
        kernel = block.conv3.weight
        m = block.constant_s3[:, None, None, None].to(kernel) ** power * torch.ones_like(kernel)
        if block.constant_s1 is not None:
            m[:, :, 1, 1] += block.constant_s1[:, None].to(kernel) ** power
        M[f"{name}.conv3.weight"] = m + unit(kernel) if block.identity else m
    return [M.get(name, 1.0) for name, p in net.named_parameters() if p.requires_grad]


class Multiplied:
    """An optimiser that multiplies gradients by M first."""

    power = 2

    def init(self, params, ctx):
        M = multipliers(ctx.net, self.power)
        wrong = len(M) != len(params) or any(torch.is_tensor(m) and p.shape[-4:] != m.shape for m, p in zip(M, params, strict=True))
        if wrong:
            raise ValueError("The multipliers of RepOpt do not fit the parameters that it is to train.")
        return super().init(params, ctx) | {"M": tuple((i, m) for i, m in enumerate(M) if torch.is_tensor(m))}

    def step(self, params, grads, state):
        grads, chosen = list(grads), [i for i, _ in state["M"]]
        for i, g in zip(chosen, torch._foreach_mul([grads[i] for i in chosen], [m for _, m in state["M"]]), strict=True):
            grads[i] = g
        super().step(params, grads, state)


@dataclass(frozen=True)
class RepSGD(Multiplied, SGD):
    """RepOpt with SGD: first M, then weight decay, momentum and step."""

    recordable = True


@dataclass(frozen=True)
class RepAdamW(Multiplied, Adam):
    """RepOpt with AdamW (Loshchilov and Hutter, 2019): weight decay apart from the moments."""

    recordable = True
    power = 1

    def step(self, params, grads, state):
        if self.weight_decay:
            torch._foreach_mul_(params, 1 - self.lr * self.weight_decay)
        SGD_free = Adam(self.lr, self.beta1, self.beta2, self.eps)
        raise NotImplementedError(SGD_free)
