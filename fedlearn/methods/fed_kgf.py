"""Fed-KGF: Li et al., "Representative Kernels-based CNN for Faster Transmission in Federated
Learning", IEEE TMC.

    model:   each convolution learns its first m kernels w only; the others are copies of w, of each
             w' = KGF(w) = sign(w) (|w|^beta + alpha)                                     Eq. (2)
             with beta ~ U[2, 10], alpha ~ U[1e-5, 0.1] for each entry
    uplink:  the modules (a convolution and what follows it) form as many groups as there are
             clients; a permutation, new in each round, says whose group is whose     section 3.3
    server:  puts the groups together

alpha and beta come from the shared seed and never travel. The server part is the default: a
weighted mean for each tensor over the clients that sent it is the tensor itself where only one
did. The gradient of the copies flows back into w with the factor beta |w|^(beta - 1); the paper
can also be read as cutting it off (``detach``).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import rng
from ..averaging import Averaging
from ..models.computed import computed
from ..parts import SGD, Context, Model, Step, TaskNetwork, Tensors, Update, Uplink
from ..settings import whole_number
from ..wire import Schema

ALPHA, BETA = (1e-5, 0.1), (2.0, 10.0)


class Generated:
    """A convolution whose parameter ``base`` is w [m, in, k, k]; its ``weight`` [out, in, k, k]
    is w, then the generated kernels, of which the i-th comes from base kernel i mod m. Stacked,
    everything has a client axis in front."""

    @property
    def weight(self) -> torch.Tensor:
        w, count = self.base, self.beta.shape[-4]
        blocks = -(-count // w.shape[-4])
        copies = torch.cat([w.detach() if self.detach else w] * blocks, -4).narrow(-4, 0, count)
        generated = copies.abs() ** self.beta
        if self.alpha is not None:
            generated = generated + self.alpha
        if self.sign:
            generated = copies.sign() * generated
        return torch.cat([w, generated], -4)


CONVOLUTION = computed(Generated, nn.Conv2d)[nn.Conv2d]


def draw(shape: Sequence[int], seed: int, layer: str, round: int = 0) -> list[torch.Tensor]:
    """(alpha, beta) of a layer, uniform in ``ALPHA`` and ``BETA``: every party draws the same."""
    generator = rng.generator(seed, "kernel generation", layer, round)
    return [
        torch.rand(shape, generator=generator) * (high - low) + low for low, high in (ALPHA, BETA)
    ]


def represent(
    net: nn.Module,
    base_kernels: int = 16,
    seed: int = 0,
    sign: bool = True,
    alpha: bool = True,
    detach: bool = False,
) -> nn.Module:
    """A copy of any network in which each convolution with more than ``base_kernels`` output
    channels learns only so many."""
    whole_number("base_kernels", base_kernels)
    net = copy.deepcopy(net)
    convolutions = [(n, m) for n, m in net.named_modules() if type(m) is nn.Conv2d]
    layers = [(n, m) for n, m in convolutions if m.out_channels > base_kernels]
    if not layers:
        raise ValueError(
            f"No convolution has more than {base_kernels} kernels: choose fewer base_kernels."
        )
    for name, layer in layers:
        weight = layer.weight.detach()
        layer.__class__, layer.sign, layer.detach = CONVOLUTION, sign, detach
        trained = layer._parameters["weight"].requires_grad
        base = nn.Parameter(weight[:base_kernels].clone(), trained)
        # base stands first, as the weight did: order is what modules go by
        layer._parameters = {"base": base, "bias": layer._parameters["bias"]}
        drawn = draw((layer.out_channels - base_kernels, *weight.shape[1:]), seed, name)
        for key, t in zip(("alpha", "beta"), drawn, strict=True):
            kept = t.to(weight) if key == "beta" or alpha else None
            layer.register_buffer(key, kept, persistent=False)  # no part of the state: never sent
    return net


def write_out(net: nn.Module) -> nn.Module:
    """A copy with plain convolutions, the generated kernels written out: the same function in
    evaluation mode."""
    net = copy.deepcopy(net)
    for layer in net.modules():
        if type(layer) is CONVOLUTION:
            weight, bias = layer.weight.detach().clone(), layer._parameters["bias"]
            layer.__class__ = nn.Conv2d
            layer._parameters = {"weight": nn.Parameter(weight), "bias": bias}
            layer._buffers.clear()
            layer._non_persistent_buffers_set.clear()
    return net


@dataclass(frozen=True)
class Representative(Model):
    """The network of another model part with ``base_kernels`` representative kernels a
    convolution. ``redraw`` draws alpha and beta anew each round (the paper's Algorithm 1 does at
    each call, after which no two networks would agree); to use the state of such a run, call
    ``refresh`` with its last round on a fresh network first."""

    base_kernels: int = 16
    sign: bool = True
    alpha: bool = True
    detach: bool = False
    redraw: bool = False
    of: Model = TaskNetwork()

    def build(self, task: Any) -> nn.Module:
        net = self.of.build(task)
        return represent(net, self.base_kernels, task.seed, self.sign, self.alpha, self.detach)

    def refresh(self, net: nn.Module, task: Any, round: int) -> None:
        self.of.refresh(net, task, round)
        for name, layer in net.named_modules() if self.redraw else ():
            if isinstance(layer, Generated):
                drawn = draw(layer.beta.shape[-4:], task.seed, name, round)
                for t, new in zip((layer.alpha, layer.beta), drawn, strict=True):
                    if t is not None:
                        t.copy_(new)  # for all clients if stacked


def modules(schema: Schema) -> list[list[str]]:
    """The names of each module's tensors, in order. A matrix or a kernel wider than 1 x 1 begins a
    module; all that follows belongs to it: batch normalisation, biases, and the 1 x 1 shortcut of a
    residual block. ResNet-18 has 18."""
    found: list[list[str]] = []
    for name, shape in schema.shapes.items():
        if not found or len(shape) == 2 or (len(shape) > 2 and max(shape[2:]) > 1):
            found.append([])
        found[-1].append(name)
    return found


@dataclass(frozen=True)
class Modules(Step):
    """Each participant sends one group of modules, the i-th of them this round's ``order[i]``.

    By default there are as many groups as participants, or as modules if these are fewer; then
    some groups are sent by several clients and averaged. ``groups``, if given, must divide the
    participants evenly; 1 is no module uploading.
    """

    groups: int | None = None

    def check(self, ctx: Context) -> None:
        if self.groups is None:
            return
        whole_number("groups", self.groups)
        count, participants = len(modules(ctx.schema)), len(ctx.participants)
        if self.groups > count or participants % self.groups:
            raise ValueError(
                f"groups must be at most {count}, the modules, and divide {participants}, the "
                f"participants, not {self.groups}."
            )

    def names(self, names: list[str], ctx: Context) -> list[str]:
        found = modules(ctx.schema)
        groups = self.groups or min(len(found), len(ctx.participants))
        generator = rng.generator(ctx.task.seed, "modules", ctx.round)
        longer = torch.randperm(groups, generator=generator) < len(found) % groups  # by one module
        ends = (len(found) // groups + longer.long()).cumsum(0).tolist()
        order = torch.randperm(groups, generator=generator).tolist()
        group = order[ctx.participants.index(ctx.client) % groups]
        first = ends[group - 1] if group else 0
        sent = {name for module in found[first : ends[group]] for name in module}
        return [name for name in names if name in sent]

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        return {name: x[name] for name in self.names(list(x), ctx)}


def fed_kgf(
    lr: float = 0.1,
    momentum: float = 0.0,
    base_kernels: int = 16,
    groups: int | None = None,
    sign: bool = True,
    alpha: bool = True,
    detach: bool = False,
    redraw: bool = False,
) -> Averaging:
    """Kernel generation and module uploading. ``groups=1`` is the paper's "without MU"; ``sign``
    and ``alpha`` are the ablations of Figure 8; ``detach`` keeps the gradient of generated
    kernels from w; ``redraw``: see ``Representative``."""
    return Averaging(
        "fed_kgf",
        model=Representative(base_kernels, sign, alpha, detach, redraw),
        optimizer=SGD(lr, momentum),
        uplink=Uplink(Modules(groups), Update()),
    )
