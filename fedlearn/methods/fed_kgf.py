"""Fed-KGF: Li et al., "Representative Kernels-based CNN for Faster Transmission in Federated
Learning", IEEE TMC.

    model:   each convolution learns its first m kernels w only; the others are copies of w, of each
             w' = KGF(w) = sign(w) (|w|^beta + alpha)                                     Eq. (2)
             with beta ~ U[2, 10], alpha ~ U[1e-5, 0.1] for each entry
    uplink:  the modules (a convolution and what follows it) form as many groups as there are
             clients; a permutation, new in each round, says whose group is whose     section 3.3
    server:  puts the groups together

The server part is the default: a weighted mean for each tensor over the clients that sent it is
the tensor itself where only one did.

Deviations from paper and authors' program: what, why, effect measured::

    alpha, beta once a run, from the    clients that draw by           accuracy: at each call and
      shared seed; Algorithm 1: each    themselves hold different      client, "every call"; new
      client in each epoch t            networks                       each round, the same for
                                                                       all, "redraw"
    gradients flow through the          the text can also mean         "detach"
      copies, times beta |w|^(beta -    ``detach``
      1)
    a 1 x 1 convolution belongs to      18 modules of ResNet-18, as    none: a choice of groups
      the module before it              the paper counts

Accuracy IID and with a main class, of ``fedlearn reproduce deviations``: lr 0.3,
base_kernels 4, 20 rounds, 10 clients, batches of 16, digits_resnet::

    Fed-KGF                         0.633 ± 0.039    0.139 ± 0.035
    Fed-KGF, every call             0.314 ± 0.098    0.099 ± 0.003
    Fed-KGF, redraw                 0.404 ± 0.166    0.106 ± 0.007
    Fed-KGF, detach                 0.636 ± 0.110    0.161 ± 0.080
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .. import rng
from ..arguments import short
from ..models.kernels import ALPHA as ALPHA  # for those who look for them here
from ..models.kernels import BETA as BETA
from ..models.kernels import Generated, draw, represent
from ..models.kernels import write_out as write_out
from ..parts import SGD, Context, Model, Step, TaskNetwork, Tensors, Update, Uplink
from ..round import Averaging
from ..settings import whole_number
from ..wire import Schema
from ..wire.base import brief


@dataclass(frozen=True)
class Representative(Model):
    """The network of another model part with ``base_kernels`` representative kernels a
    convolution. ``redraw`` draws alpha and beta anew each round; to use the state of such a run,
    call ``refresh`` with its last round on a fresh network first. ``every_call`` draws them each
    time a client or the server computes the kernels, so that no two networks agree."""

    __repr__ = brief

    base_kernels: int = 16
    sign: bool = True
    alpha: bool = True
    detach: bool = False
    redraw: bool = False
    of: Model = TaskNetwork()
    every_call: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        whole_number("base_kernels", self.base_kernels)

    def build(self, task: Any) -> nn.Module:
        own = self.base_kernels, task.seed, self.sign, self.alpha, self.detach, self.every_call
        return represent(self.of.build(task), *own)

    def refresh(self, net: nn.Module, task: Any, round: int) -> None:
        self.of.refresh(net, task, round)
        for name, layer in net.named_modules() if self.redraw or self.every_call else ():
            if isinstance(layer, Generated):
                layer.place, layer.calls = (task.seed, "kernel generation", name, round), 0
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

    def __post_init__(self) -> None:
        if self.groups is not None:
            whole_number("groups", self.groups)

    def validate(self, ctx: Context) -> None:
        if self.groups is None:
            return
        count, participants = len(modules(ctx.schema)), len(ctx.participants)
        if self.groups > count or participants % self.groups:
            raise ValueError(
                f"groups must be at most {count}, the modules, and divide {participants}, the "
                f"participants, not {short(self.groups)}."
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
    every_call: bool = False,
) -> Averaging:
    """Kernel generation and module uploading. ``groups=1`` is the paper's "without MU"; ``sign``
    and ``alpha`` are the ablations of Figure 8; ``detach`` keeps the gradient of generated
    kernels from w; ``redraw`` and ``every_call``: see ``Representative``."""
    return Averaging(
        "fed_kgf",
        Representative(base_kernels, sign, alpha, detach, redraw, every_call=every_call),
        optimizer=SGD(lr, momentum),
        uplink=Uplink(Modules(groups), Update()),
    )
