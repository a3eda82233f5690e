"""FedFusion: Yao et al., "Towards Faster and Better Federated Learning: A Feature Fusion Approach", ICIP 2019, Algorithm 2.

    client:  minimise  CE(C(F(E_l(x), E_g(x))), y)  over E_l, F and C;   E_g the downloaded extractor, frozen
    conv     F = W (E_g || E_l) + b, a 1 x 1 convolution from 2C to C channels                       Eq. (6)
    multi    F = lam E_g + (1 - lam) E_l,   lam one number a channel                                 Eq. (7)
    single   the same with one number for all                                                        Eq. (8)
    server:  weighted mean; for multi and single  lam <- 0.9 lam + 0.1 mean

E_g is never sent: it is the last download. The fusion begins as the identity on E_l (lam = 0), so the first step is federated
averaging. The global model is tested with E_g = E_l, which makes multi and single the identity.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ..errors import WireError, pick
from ..method import SGD, Downlink, Mean, Method, TaskNetwork, Uplink
from ..models import Network
from .fedmmd import Reference


class Convolution(nn.Module):
    """Maps [..., C, H, W] of the global and of the local extractor -> [..., C, H, W]."""

    def __init__(self, channels):
        super().__init__()
        self.mix = nn.Conv2d(2 * channels, channels, 1)
        with torch.no_grad():
            self.mix.bias.zero_()
            self.mix.weight.zero_()[:, channels:, 0, 0].fill_diagonal_(1)

    def forward(self, E_g, E_l):
        return self.mix(torch.cat([E_g, E_l], -3))


class Weighted(nn.Module):
    """The same for multi (``channels`` of the maps) and single (1)."""

    def __init__(self, channels):
        super().__init__()
        self.lam = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, E_g, E_l):
        return self.lam * E_g + (1 - self.lam) * E_l


OPERATORS = {"conv": Convolution, "multi": Weighted, "single": lambda channels: Weighted(1)}


class Fused(Network):
    """Extractor, fusion, classifier; as a network of its own it has the same extractor in both streams."""

    def __init__(self, extractor, fusion, classifier):
        super().__init__(extractor, classifier)
        self.fusion = fusion

    def forward(self, x):
        maps = self.extractor(x)
        return self.classifier(self.fusion(maps, maps))


@dataclass(frozen=True)
class FusionNetwork:
    """The network of another model part with a fusion operator ("conv", "multi", "single") between extractor and classifier."""

    operator: str = "multi"
    of: object = TaskNetwork()

    def __post_init__(self):
        pick(self.operator, OPERATORS, "fusion operator")

    def build(self, task):
        net = self.of.build(task)
        if not isinstance(net, Network):
            raise ValueError(
                f"FedFusion needs a network split into extractor and classifier (models.Network), not {type(net).__name__}."
            )
        with torch.no_grad():
            maps = net.extractor.eval()(torch.zeros(1, *task.shape))
        if maps.dim() != 4:
            raise ValueError(
                f"FedFusion fuses feature maps [channels, height, width]; this extractor gives {list(maps.shape[1:])}."
            )
        return Fused(net.extractor.train(), OPERATORS[self.operator](maps.shape[1]), net.classifier)


@dataclass(frozen=True)
class FusionLoss:
    """The task's loss of the fused streams."""

    def begin(self, net, ctx):
        E_g, J = Reference(net.extractor, ctx), ctx.task.loss
        return lambda net, batch: J(
            net.classifier(net.fusion(E_g(batch), net.extractor(batch.x))), batch.y
        )


@dataclass(frozen=True)
class MovingAverage:
    """The weighted mean, of which the fusion weights take a share: lam <- mu lam + (1 - mu) mean."""

    mu: float = 0.9

    def __post_init__(self):
        if not 0 <= self.mu < 1:
            raise ValueError(
                f"A moving average keeps a share mu of the old value, at least 0 and below 1, not {self.mu!r}."
            )

    def aggregate(self, state, arrivals, ctx):
        new = Mean().aggregate(state, arrivals, ctx)
        return new | {n: state[n].lerp(new[n], 1 - self.mu) for n in fusion(state)}


def fusion(names):
    return [n for n in names if n.startswith("fusion.")]


@dataclass(frozen=True)
class OwnUplink(Uplink):
    """Everything but the fusion, which stays with its client."""

    def encode(self, trained, ctx):
        own = fusion(trained)
        ctx.memory.update({n: trained[n].clone() for n in own})
        return super().encode({n: t for n, t in trained.items() if n not in own}, ctx)

    def decode(self, sections, ctx):
        if list(sections) != [n for n in ctx.schema.shapes if n not in fusion(ctx.schema.shapes)]:
            raise WireError(f"Client {ctx.client} did not send just what lies outside its fusion.")
        return self.unpack(sections, ctx.schema)


@dataclass(frozen=True)
class OwnDownlink(Downlink):
    """Everything but the fusion, which the client has kept from its last round."""

    def encode(self, state, ctx):
        return self.pack({n: t for n, t in state.items() if n not in fusion(state)}, ctx.schema)

    def decode(self, sections, ctx):
        own = {n: ctx.memory.get(n, ctx.initial[n]) for n in fusion(ctx.schema.shapes)}
        if len(sections) + len(own) != len(ctx.schema.shapes) or own.keys() & sections.keys():
            raise WireError("The server's message does not hold the whole model.")
        received = {
            n: t.to(ctx.initial[n].device) for n, t in self.unpack(sections, ctx.schema).items()
        }
        return {n: own[n] if n in own else received[n] for n in ctx.schema.shapes}


def fedfusion(lr=0.1, operator="multi", personal=False, momentum=0.0, decay=1.0):
    """``operator``: "conv", "multi" or "single". With ``personal`` every client keeps a fusion of its own, which is what the
    paper's text says; its Algorithm 2 averages them. ``decay`` multiplies the learning rate each round."""
    links = {"uplink": OwnUplink(), "downlink": OwnDownlink()} if personal else {}
    server = Mean() if operator == "conv" or personal else MovingAverage()
    optimizer = SGD(lr, momentum, decay=decay)
    return Method(
        "fedfusion", FusionNetwork(operator), FusionLoss(), optimizer, server=server, **links
    )
