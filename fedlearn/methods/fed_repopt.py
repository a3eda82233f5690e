"""FedRepOpt: Lau et al., "FedRepOpt: Gradient Re-parametrized Optimizers in Federated Learning",
2024, Algorithm 1.

    server:  s_3, s_1 (and s_id) of every block, from a search on the server's data, sent once
    start:   W' = s_3 W_3 + pad(s_1 W_1) + s_id I, one kernel a block      section 3.2, first rule
    client:  g <- M g, then weight decay, momentum and step of SGD         second rule, Eq. (1)

M has the shape of W' [out, in, 3, 3] and never changes: it is s_3^2, plus s_1^2 in the middle,
plus 1 in the middle from o to o where the block has an identity branch. The paper prints the
scalar s_3^2 + s_1^2 instead, with which training is not that of the several branches; the 1 is
there because s_id is itself trained, with a constant 1 in front. With these rules a plain network
takes the very steps of the network with constant scales ("csla"). Ghost modules have no s_1.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..core import (
    SGD,
    Averaging,
    Context,
    Downlink,
    Model,
    Named,
    Tensors,
)
from ..core.optim import Moments, Params
from ..errors import pick, short
from ..models import reparam
from ..models.repopt import Scales, constants, multipliers, target
from .base import Added, Shapes, shapes_of


@dataclass(frozen=True)
class Form(Model):
    """The network (None: the task's) with its blocks in a form of ``models.reparam``, or "repopt".

    "repopt" is "csla" collapsed into one kernel a block. ``scales`` replace the first scales of
    the network.
    """

    form: str = "repopt"
    network: Any = None
    scales: Scales | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.scales, Scales | None):
            raise ValueError(f"scales must be Scales, not {short(self.scales)}.")

    def build(self, task: Any) -> nn.Module:
        collapsed = self.form == "repopt"
        net = Named(self.network).build(task)
        for name, block in reparam.blocks(net).items():
            if not all(p.requires_grad for p in block.parameters()):
                raise ValueError(
                    f"FedRepOpt draws blocks anew, so none can be frozen, as {name} is."
                )
        net = reparam.reform(net, "csla" if collapsed else self.form)
        if self.scales:
            self.scales.put_into(net)
        return target(net) if collapsed else net


class RepSGD(SGD):
    """RepOpt with SGD: first M, then weight decay, momentum and step."""

    def validate(self, ctx: Context) -> None:
        constants(ctx.net)  # refuses a network in another form

    def init(self, params: Params, ctx: Context) -> Moments:
        state = super().init(params, ctx)
        state["M"] = tuple(multipliers(ctx.net))
        return state

    def step(self, params: Params, grads: Params, state: Moments) -> None:
        scaled = [M * g for M, g in zip(state["M"], grads, strict=True)]
        super().step(params, scaled, state)


@dataclass(frozen=True)
class Constants(Added):
    """Sends the constants with the first message to a client, which stores them."""

    def shapes(self, net: nn.Module) -> Shapes:
        return shapes_of(constants(net))

    def group(self, ctx: Context) -> Hashable:
        """Whether the client has answered: then it has the constants."""
        return ctx.client in ctx.last_seen

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        return x if self.group(ctx) else x | constants(ctx.net)

    def decode(self, x: Tensors, ctx: Context) -> Tensors:
        x = super().decode(x, ctx)
        for name, t in constants(ctx.net).items():
            t.copy_(ctx.memory[name])
        return x


def fed_repopt(
    lr: float = 0.1,
    form: str = "repopt",
    network: Any = "digits_repvgg",
    scales: Scales | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> Averaging:
    """FedRepOpt, Lau et al. (2024), Algorithm 1 and Eq. (1).

    Parameters
    ----------
    lr, momentum, weight_decay : float
        Of local SGD; authors': weight decay 0.00004.
    form : {"repopt", "tr", "inf", "csla"}
        The method, or a network that the paper compares, trained by plain SGD.
    network : str, function (shape, classes) -> module, or None
        A network of several branches; None: the task's.
    scales : Scales or None
        The result of ``fl.repopt_search``; None: the values with which a search begins.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * M by position, the paper prints a scalar: kernels within 1e-14 of CSLA's; with the scalar the
      distance is 85 % of the movement in training
    * W' has s_id I, section 3.2 does not; not measured: without it W' is not the branches' sum
    * no label smoothing, authors': "smoothing", with 0.1
    * weight decay is for vectors, too, authors': for kernels alone; "decay 0.01", and for kernels
      alone "spare"
    * no normalisation behind the sum of Tr, as in RepVGG, authors': one; 24,704 numbers less in
      RepVGG-B1
    * the search's rate is constant, authors': it rises and falls; not measured: no option
    * CSLA of Ghost modules has RepOpt's scales, authors': 1; not measured: no option
    * scales have the values with which a search begins: "searched" (5 rounds on 300 digits)
    """
    pick(form, dict.fromkeys(("repopt", "tr", "inf", "csla")), "form")
    multiplied = form == "repopt"
    sgd = RepSGD if multiplied else SGD
    return Averaging(
        "fed_repopt",
        Form(form, network, scales),
        optimizer=sgd(lr, momentum, weight_decay),
        downlink=Downlink(Constants()) if multiplied else Downlink(),
    )
