"""FedFusion: Yao et al., "Towards Faster and Better Federated Learning: A Feature Fusion
Approach", ICIP 2019, Algorithm 2.

    client:  minimise  CE(C(F(E_l(x), E_g(x))), y)  over E_l, F and C
    conv     F = W (E_g || E_l) + b, a 1 x 1 convolution from 2C to C channels    Eq. (6)
    multi    F = lam E_g + (1 - lam) E_l,   lam one number a channel              Eq. (7)
    single   as multi, with one number for all channels                           Eq. (8)
    server:  weighted mean; for multi and single  lam <- 0.9 lam + 0.1 mean

E_g is the downloaded extractor, frozen, and so never sent. The fusion begins as the identity on
E_l (lam = 0), so the first step is federated averaging. The global model is tested with E_g = E_l,
which makes multi and single the identity.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..core import (
    SGD,
    Aggregator,
    Arrivals,
    Averaging,
    Batch,
    Context,
    Downlink,
    Loss,
    Mean,
    Model,
    Objective,
    Tensors,
    Update,
    Uplink,
)
from ..errors import pick
from ..models import Network
from .base import Reference, Subset
from .edge import output

MU = 0.9  # how much of the fusion stays in a round, as in the authors' program


class Convolution(nn.Module):
    """Maps [..., C, H, W] of the global and of the local extractor -> [..., C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(2 * channels, channels, 1)
        with torch.no_grad():
            self.mix.bias.zero_()
            self.mix.weight.zero_()[:, channels:, 0, 0].fill_diagonal_(1)

    def forward(self, E_g: torch.Tensor, E_l: torch.Tensor) -> torch.Tensor:
        return self.mix(torch.cat([E_g, E_l], -3))


class Weighted(nn.Module):
    """The fusion of multi (``channels`` of the maps) and of single (1)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.lam = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, E_g: torch.Tensor, E_l: torch.Tensor) -> torch.Tensor:
        return self.lam * E_g + (1 - self.lam) * E_l


OPERATORS = {
    "conv": Convolution,
    "multi": Weighted,
    "single": lambda channels: Weighted(1),
}


class Fused(Network):
    """Extractor, fusion, classifier. Its ``forward`` has one extractor in both streams."""

    def __init__(
        self, extractor: nn.Module, fusion: nn.Module, classifier: nn.Module
    ) -> None:
        super().__init__(extractor, classifier)
        self.fusion = fusion

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.extractor(x)
        return self.classifier(self.fusion(maps, maps))


@dataclass(frozen=True)
class FusionNetwork(Model):
    """The task's network with a fusion between extractor and classifier."""

    operator: str = "multi"

    def __post_init__(self) -> None:
        pick(self.operator, OPERATORS, "fusion operator")

    def build(self, task: Any) -> nn.Module:
        net = task.network()
        maps: Any = None
        if isinstance(net, Network):
            maps = output(net.extractor, task.shape)
        if not torch.is_tensor(maps) or maps.dim() != 4:
            raise ValueError(
                "FedFusion needs a network (models.Network) with an extractor of feature maps "
                f"[channels, height, width] and a classifier; this {type(net).__name__} has none."
            )
        operator = OPERATORS[self.operator](maps.shape[1])
        return Fused(net.extractor, operator, net.classifier)


@dataclass(frozen=True)
class FusionLoss(Objective):
    """The task's loss of the fused streams."""

    needs = (FusionNetwork,)

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        J = ctx.task.loss
        E_g = Reference(net.extractor, ctx)

        def loss(net: nn.Module, batch: Batch) -> torch.Tensor:
            F = net.fusion(E_g(batch), net.extractor(batch.x))
            return J(net.classifier(F), batch.y)

        return loss


@dataclass(frozen=True)
class MovingAverage(Aggregator):
    """The weighted mean; of the fusion lam <- mu lam + (1 - mu) mean."""

    needs = (Update,)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        new = Mean().aggregate(state, arrivals, ctx)
        for name in fusion(state):
            new[name] = state[name].lerp(new[name], 1 - MU)
        return new


def fusion(names: Iterable[str]) -> list[str]:
    """The names that belong to the fusion operator."""
    return [n for n in names if n.startswith("fusion.")]


class Outside(Subset):
    """Everything but the fusion travels."""

    def names(self, names: list[str], ctx: Context) -> list[str]:
        return [n for n in names if not n.startswith("fusion.")]


@dataclass(frozen=True)
class Keep(Outside):
    """Uplink: the client stores its fusion, which does not travel."""

    def encode(self, x: Tensors, ctx: Context) -> Tensors:
        ctx.memory.update({n: x[n].clone() for n in fusion(x)})
        return super().encode(x, ctx)


@dataclass(frozen=True)
class TakeBack(Outside):
    """Downlink: the client adds the fusion of its last round to the model."""

    def decode(self, x: Tensors, ctx: Context) -> Tensors:
        names = fusion(ctx.schema.shapes)
        return x | {n: ctx.memory.get(n, ctx.initial[n]) for n in names}


def fedfusion(
    lr: float = 0.1,
    operator: str = "multi",
    personal: bool = False,
) -> Averaging:
    """FedFusion, Yao et al. (2019), Algorithm 2 and Eqs. (6) to (8).

    Parameters
    ----------
    operator : {"conv", "multi", "single"}
        F.
    personal : bool
        Every client has its own fusion, as in the paper's text; Algorithm 2 averages the fusions.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * conv begins as the identity on E_l, authors': Xavier; not measured: no option, FedAvg's first
      step would be lost
    * conv adds b, as the authors' program, Eq. (6) has none; not measured: no option, b begins as 0
    * multi: lam is the share of E_g, Eq. (7) is damaged in the scan; none: the authors' form
    * E_g stands first as in Eq. (6), authors': E_l; none: a name of channels
    * tested with E_g = E_l, authors': E_g of the round before; not measured: that pair is no
      client's network
    * rate 0.1, constant, and no momentum; authors': momentum 0.9, weight decay 0.0005 and a rate
      that falls by a hundredth each round; "their rates", the least one 0.00010, theirs 0.000099;
      momentum alone, multi at lr 0.01: "momentum 0.9", and "keep" if it goes on from round to round
    """
    method = Averaging("fedfusion", FusionNetwork(operator), FusionLoss(), SGD(lr))
    if personal:
        return method.but(
            uplink=Uplink(Keep(), Update()), downlink=Downlink(TakeBack())
        )
    return method if operator == "conv" else method.but(server=MovingAverage())
