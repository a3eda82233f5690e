"""Fed-KGF: Li et al., "Representative Kernels-based CNN for Faster Transmission in Federated
Learning", IEEE TMC.

    model:   each convolution learns only its first m kernels w; further kernels are generated
             w' = KGF(w) = sign(w) (|w|^beta + alpha)                                     Eq. (2)
             with beta ~ U[2, 10], alpha ~ U[1e-5, 0.1] for each entry
    uplink:  the modules (a convolution and the layers behind it) form as many groups as there are
             clients; a permutation, new in each round, gives a group to each client  section 3.3
    server:  puts the groups together

The server part is the default: a weighted mean for each tensor over the clients that sent it is
the tensor itself where only one did.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import rng
from ..core import SGD, Averaging, Context, Model, Update, Uplink
from ..errors import check_whole, pick, short
from ..models.kernels import COPIES, Generated, represent
from ..wire import Schema
from .base import Subset

STARTS = {  # the values with which the kernels of convolutions begin
    "network": lambda layer: None,
    "torch": nn.Conv2d.reset_parameters,
    "uniform": lambda layer: nn.init.uniform_(layer.weight, -1, 1),  # section 3.2
}


@dataclass(frozen=True)
class Representative(Model):
    """The task's network with ``base_kernels`` representative kernels a convolution.

    The options are those of ``fed_kgf``.
    """

    base_kernels: int = 16
    sign: bool = True
    alpha: bool = True
    detach: bool = False
    redraw: bool = False
    every_call: bool = False
    copies: str = "generated"
    start: str = "network"

    def __post_init__(self) -> None:
        pick(self.copies, dict.fromkeys(COPIES), "kind of copies")
        pick(self.start, STARTS, "start")

    def build(self, task: Any) -> nn.Module:
        net = task.network()
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d):
                STARTS[self.start](layer)
        return represent(
            net,
            self.base_kernels,
            task.seed,
            self.sign,
            self.alpha,
            self.detach,
            self.every_call,
            self.copies,
        )

    def refresh(self, net: nn.Module, task: Any, round: int) -> None:
        for name, layer in net.named_modules():
            if isinstance(layer, Generated):
                if self.redraw or self.every_call:
                    layer.draw(task.seed, name, round)
                if self.copies == "trained":
                    layer.discard()


def modules(schema: Schema) -> list[list[str]]:
    """The names of each module's tensors.

    A matrix or a kernel wider than 1 x 1 begins a module. Normalisation, biases and 1 x 1
    shortcuts that follow belong to it. ResNet-18 has 18 modules.
    """
    groups: list[list[str]] = []
    for name, shape in schema.shapes.items():
        if not groups or len(shape) == 2 or (len(shape) > 2 and max(shape[2:]) > 1):
            groups.append([])
        groups[-1].append(name)
    return groups


@dataclass(frozen=True)
class Modules(Subset):
    """Each participant sends one group of modules, which the round draws (section 3.3).

    By default there are as many groups as participants, but not more than modules. With one group
    every client sends the whole model.
    """

    groups: int | None = None

    def __post_init__(self) -> None:
        if self.groups is not None:
            check_whole("groups", self.groups)

    def validate(self, ctx: Context) -> None:
        count = len(modules(ctx.schema))
        participants = len(ctx.participants)
        if self.groups and (self.groups > count or participants % self.groups):
            raise ValueError(
                f"groups must be at most {count}, the modules, and divide {participants}, the "
                f"participants, not {short(self.groups)}."
            )

    def names(self, names: list[str], ctx: Context) -> list[str]:
        listed = modules(ctx.schema)
        count = len(listed)
        groups = self.groups or min(count, len(ctx.participants))
        generator = rng.generator(ctx.task.seed, "modules", ctx.round)
        longer = torch.randperm(groups, generator=generator) < count % groups
        sizes = (count // groups + longer.long()).tolist()
        order = torch.randperm(groups, generator=generator).tolist()
        group = order[ctx.participants.index(ctx.client) % groups]
        chosen = torch.arange(count).split(sizes)[group]
        sent = {name for i in chosen for name in listed[i]}
        return [name for name in names if name in sent]


def fed_kgf(
    lr: float = 0.1,
    base_kernels: int = 16,
    groups: int | None = None,
    sign: bool = True,
    alpha: bool = True,
    detach: bool = False,
    redraw: bool = False,
    every_call: bool = False,
    copies: str = "generated",
    start: str = "network",
) -> Averaging:
    """Fed-KGF, Li et al., Eq. (2) and section 3.3: kernel generation and module uploading.

    Parameters
    ----------
    base_kernels : int
        m, the representative kernels a convolution, at least 1.
    groups : int or None
        Groups of modules, a divisor of the participants; None: one for each; 1: "without MU".
    sign, alpha : bool
        Whether Eq. (2) has its sign and its alpha, the ablations of Figure 8.
    detach : bool
        Keep the gradient of generated kernels from w.
    redraw, every_call : bool
        Draw alpha and beta anew each round, or each time a client or the server computes kernels.
    copies : {"generated", "trained", "frozen"}
        The kernels that are not learned: those of Eq. (2); the same, but each client trains them in
        a round and discards the result; or constant random kernels, a control.
    start : {"network", "torch", "uniform"}
        The first values of kernels: those of the network, torch's, or uniform in [-1, 1].

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * alpha and beta drawn once a run from the shared seed, Algorithm 1: by each client in each
      epoch, which gives clients different networks; "every call"; one draw for all: "redraw"
    * gradients flow through the copies, times ``beta |w|^(beta - 1)``; the other reading: "detach"
    * kernels start as the network has them, by He's rule in the book's; section 3.2 names [-1, 1],
      ``start``; line 12 trains copies, too, ``copies``: the recipe fed_kgf_controls has both
    * a 1 x 1 convolution belongs to the module before it: 18 of ResNet-18, as the paper counts
    """
    model = Representative(
        base_kernels,
        sign,
        alpha,
        detach,
        redraw,
        every_call,
        copies,
        start,
    )
    return Averaging(
        "fed_kgf",
        model,
        optimizer=SGD(lr),
        uplink=Uplink(Modules(groups), Update()),
    )
