"""FedRepOpt: Lau et al., "FedRepOpt: Gradient Re-parametrized Optimizers in Federated Learning",
2024, Algorithm 1.

    server:  s_3, s_1 (and s_id) of every block, from a search on data of its own, sent once
    start:   W' = s_3 W_3 + pad(s_1 W_1) + s_id I, one kernel a block      section 3.2, first rule
    client:  g <- M g, then weight decay, momentum and step of SGD         second rule, Eq. (1)

M has the shape of W' [out, in, 3, 3] and never changes: it is s_3^2, plus s_1^2 in the middle,
plus 1 in the middle from o to o where the block has an identity branch. The paper prints the
scalar s_3^2 + s_1^2 instead, with which training is not that of the several branches; the 1 is
there because s_id is itself trained, with a constant 1 in front. With these rules a plain network
takes the very steps of the network with constant scales ("csla"). Ghost modules have no s_1.

Deviations from paper and authors' program: what, why, effect measured::

    M by position; the paper prints a   only so RepOpt is CSLA         kernels off by 1e-14, with
      scalar                                                           the scalar 85 % of what was
                                                                       learned
    W' has s_id I; section 3.2: s_3 W_3 blocks with an identity branch not measured: without it W'
      + s_1 W_1                         have it in their sum           is not the sum of CSLA's
                                                                       branches
    with ``spare`` Ghost's t shrinks    exact                          CSLA and RepOpt else 7e-3
      as its kernel does; authors':                                    (weight decay 0.01) apart
      it does not
    no smoothing, decay of vectors,     as the other methods here      accuracy: "smoothing", and
      too; authors': ``smoothing``                                     decay 0.01 with and without
      0.1, ``spare``                                                   "spare"
    no normalisation behind the sum     RepVGG has none                24,704 numbers less in
      of Tr; authors': one                                             RepVGG-B1
    the search's rate changes by        a round is an epoch there      not measured: no option
      rounds; authors': by batches
    CSLA of Ghost modules has the       then it is what RepOpt         not measured: no option
      scales of RepOpt; authors': 1     stands for
    scales are those with which a       a search costs more than a     "searched" (5 rounds on 300
      search begins, unless             run here                       of the digits)
      ``scales`` says more

Accuracy IID and with a main class, of ``fedlearn reproduce deviations``::

    RepOpt                          0.983 ± 0.008    0.944 ± 0.008
    RepOpt, smoothing               0.982 ± 0.009    0.938 ± 0.010
    RepOpt, decay 0.01              0.981 ± 0.006    0.937 ± 0.013
    RepOpt, decay 0.01, spare       0.983 ± 0.003    0.945 ± 0.006
    RepOpt, searched                0.983 ± 0.006    0.947 ± 0.005
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..arguments import short
from ..errors import WireError, pick
from ..models import reparam
from ..models.repopt import Scales, constants, multipliers, target
from ..parts import (
    SGD,
    Adam,
    Context,
    Downlink,
    Model,
    Named,
    Optimizer,
    Smoothed,
    Step,
    TaskLoss,
    Tensors,
)
from ..round import Averaging
from ..wire.base import brief


class Repopt:
    """What the model gives whose blocks are one kernel each."""

    words, giver = 'a network in the form "repopt" (Form)', "model"


@dataclass(frozen=True)
class Form(Model):
    """The network of that name (or the task's, if None) with its blocks in one of the forms of
    ``models.reparam``; or as "repopt": "csla" collapsed into one kernel a block. ``scales``:
    instead of those that the network begins with."""

    form: str = "repopt"
    network: Any = None
    scales: Scales | None = None

    @property
    def gives(self) -> frozenset[Any]:  # type: ignore[override]
        return frozenset({Repopt} if self.form == "repopt" else ())

    def __post_init__(self) -> None:
        Named(self.network)  # refuses what is no network
        pick(self.form, reparam.FORMS | {"repopt": None}, "form")
        if self.scales is not None and (
            not isinstance(self.scales, Scales) or self.form not in ("csla", "search", "repopt")
        ):
            raise ValueError(
                'scales are Scales, for the forms "csla", "search" and "repopt", not '
                f'{short(self.scales)} for "{self.form}".'
            )

    def build(self, task: Any) -> nn.Module:
        whole = Named(self.network).build(task)
        if self.form not in ("csla", "search", "repopt"):
            return reparam.reform(whole, self.form)
        net = reparam.reform(whole, "search" if self.form == "search" else "csla")
        if self.scales:
            self.scales.put_into(net)
        return target(net) if self.form == "repopt" else net


class Multiplied(Optimizer):
    """What both optimisers share: M, and its product with a list of tensors."""

    needs = frozenset({Repopt})
    _power = 2

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        M = self._kept(ctx.net)
        wrong = len(M) != len(params) or any(
            torch.is_tensor(m) and p.shape[-4:] != m.shape for m, p in zip(M, params, strict=True)
        )
        if wrong:
            raise ValueError(
                "The multipliers of RepOpt do not fit the parameters that it is to train."
            )
        return super().init(params, ctx) | {
            "M": tuple((i, m) for i, m in enumerate(M) if torch.is_tensor(m))
        }

    def _kept(self, net: nn.Module) -> list:
        """M, computed anew only if the constants have changed since the last round."""
        of = [(t.data_ptr(), t._version, t.dtype) for t in constants(net).values()]
        if vars(net).get("multipliers", (None,))[0] != (self._power, of):
            net.multipliers = (self._power, of), multipliers(net, self._power)
        return net.multipliers[1]

    def _times(self, tensors: Any, state: dict[str, Any]) -> list[torch.Tensor]:
        tensors, chosen = list(tensors), [i for i, _ in state["M"]]
        products = torch._foreach_mul([tensors[i] for i in chosen], [m for _, m in state["M"]])
        for i, t in zip(chosen, products, strict=True):
            tensors[i] = t
        return tensors


@dataclass(frozen=True)
class RepSGD(Multiplied, SGD):
    """RepOpt with SGD: first M, then weight decay, momentum and step."""

    __repr__ = brief

    def step(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any]
    ) -> None:
        super().step(params, self._times(grads, state), state)


@dataclass(frozen=True)
class RepAdam(Multiplied, Adam):
    """RepOpt with AdamW. Adam divides every constant factor of a gradient out again, so its step is
    what M multiplies: a step of W_3 moves W' by s_3 times as much. Equal to the training of the
    branches but for Adam's eps."""

    __repr__ = brief
    _power = 1

    def _direction(self, grads: list[torch.Tensor], state: dict[str, Any]) -> list[torch.Tensor]:
        return self._times(super()._direction(grads, state), state)


@dataclass(frozen=True)
class Constants(Step):
    """With the first message to a client the constants, which it keeps."""

    needs = frozenset({Repopt})

    def shapes(self, net: nn.Module) -> dict[str, tuple[int, ...]]:
        return {name: tuple(t.shape) for name, t in constants(net).items()}

    def group(self, ctx: Context) -> Hashable:
        """Who has been heard has the constants: a message may have been lost before."""
        return ctx.client in ctx.last_seen

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        return x if self.group(ctx) else x | constants(ctx.net)

    def decode(self, x: Tensors, ctx: Context) -> Tensors:
        own = constants(ctx.net)
        ctx.memory.update({name: t for name, t in x.items() if name in own})
        if any(name not in ctx.memory for name in own):
            raise WireError("The constants of RepOpt have not come.")
        for name, t in own.items():
            if not torch.equal(t, ctx.memory[name].to(t)):
                t.copy_(ctx.memory[name])
        return {name: t for name, t in x.items() if name not in own}


def fed_repopt(
    lr: float = 0.1,
    form: str = "repopt",
    network: Any = "digits_repvgg",
    scales: Scales | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    optimizer: str = "sgd",
    spare: bool = False,
    smoothing: float = 0.0,
) -> Averaging:
    """``form``: "repopt", or what the paper compares it with, trained by plain SGD: "tr", "inf",
    "csla". ``network``: one of the package's multi-branch networks; None is the task's. ``scales``:
    what ``fl.repopt_search`` found; by default those of the search's start. ``optimizer``: "sgd",
    or "adamw", which takes no ``momentum``.
    ``spare`` keeps weight decay from vectors, ``smoothing`` is that of labels. The authors' program
    has ``weight_decay`` 0.00004, ``spare`` and ``smoothing`` 0.1."""
    rep, part = form == "repopt", pick(optimizer, {"sgd": SGD, "adamw": Adam}, "optimizer")
    pick(form, dict.fromkeys(("repopt", "tr", "inf", "csla")), "form")
    if optimizer == "adamw" and momentum:
        raise ValueError('momentum belongs to optimizer "sgd"; "adamw" has its own.')
    own: dict[str, Any] = {"weight_decay": weight_decay, "spare": spare}
    own |= {"momentum": momentum} if optimizer == "sgd" else {"decoupled": True}
    if rep:
        part = {SGD: RepSGD, Adam: RepAdam}[part]
    return Averaging(
        "fed_repopt",
        Form(form, network, scales),
        Smoothed(smoothing) if smoothing else TaskLoss(),
        optimizer=part(lr, **own),
        downlink=Downlink(Constants()) if rep else Downlink(),
    )
