"""FedPM: Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning", ICLR 2023, Algorithm 1.

    model:   weights frozen at random signs times c = e / sqrt(fan-in), each behind a mask m ~ Bernoulli(theta),
             theta = sigmoid(s); only the scores s are trained, with the gradient of m passed straight to theta
    uplink:  one mask drawn from theta, entropy-coded: at most one bit an entry
    server:  the posterior Beta(1 + sum m, 1 + K - sum m), whose mode is the mean of the masks; s = logit(theta) goes back

The frozen weights come from the shared seed and never travel. Batch normalisation has no learned scale and shift here (ours:
the paper's networks have no such layers), and its statistics travel dense. In evaluation a weight is on if theta > 1/2.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from .. import rng
from ..errors import Diverged
from ..method import Adam, Mean, Method, TaskNetwork, Uplink
from ..stacked import computed
from ..wire import Dense, Mask

_WHOLE = Dense()
FLOOR = 0.01  # theta stays between this and one minus this, so that no weight is decided for ever


class Masked:
    """A layer whose ``weight`` and ``bias`` are frozen signed constants behind masks; parameters are their scores."""

    generators = ()  # of the clients, if stacked: see ``stacked.seed_dropout``

    def masked(self, frozen, score):
        theta = score.sigmoid()
        if not self.training:
            return frozen * (theta > 0.5)
        if not self.generators or score.is_cuda:
            draw = torch.rand(theta.shape, device=theta.device)
        else:
            draw = torch.stack([torch.rand(theta.shape[1:], generator=g) for g in self.generators])
        m = (draw < theta).to(theta.dtype)
        return frozen * (m - theta.detach() + theta)  # the value of m, the gradient of theta

    @property
    def weight(self):
        return self.masked(self.frozen_weight, self.weight_score)

    @property
    def bias(self):
        return None if self.frozen_bias is None else self.masked(self.frozen_bias, self.bias_score)


LAYERS = computed(Masked, nn.Conv2d, nn.Linear)


@dataclass(frozen=True)
class MaskedNetwork:
    """The network of another model part with trained masks over random weights."""

    of: object = TaskNetwork()

    def build(self, task):
        net = self.of.build(task)
        for name, layer in net.named_modules():
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
                layer.affine, layer.weight, layer.bias = False, None, None
            elif type(layer) in LAYERS:
                c = math.e / math.sqrt(layer.weight[0].numel())
                tensors = dict(layer._parameters)
                layer.__class__ = LAYERS[type(layer)]
                layer._parameters = {}
                for key, t in tensors.items():
                    if t is None:
                        layer.register_buffer(f"frozen_{key}", None)
                        continue
                    signs = (
                        torch.rand(t.shape, generator=rng.generator(task.seed, "signs", name, key))
                        < 0.5
                    )
                    layer.register_buffer(
                        f"frozen_{key}", torch.where(signs, -c, c), persistent=False
                    )
                    layer.register_parameter(
                        f"{key}_score", nn.Parameter(torch.randn(t.shape), t.requires_grad)
                    )
        for name, _ in net.named_parameters():
            if not name.endswith("_score"):
                raise ValueError(
                    f"FedPM masks nn.Conv2d and nn.Linear layers; {name} belongs to another kind of layer."
                )
        return net


@dataclass(frozen=True)
class MaskUplink(Uplink):
    """A mask drawn from the trained probabilities."""

    def coder_for(self, name, schema):
        return _WHOLE if name in schema.buffers else self.coder

    def encode(self, trained, ctx):
        generator, sends = ctx.generator("mask"), {}
        for n, s in trained.items():
            if n in ctx.schema.buffers:
                sends[n] = s - ctx.start[n]
            else:
                if not torch.isfinite(s).all():
                    raise Diverged(f"The scores of {n} are NaN or infinite.")
                sends[n] = (torch.rand(s.shape, generator=generator) < s.sigmoid().cpu()).float()
        return self.pack(sends, ctx.schema)


@dataclass(frozen=True)
class BetaPosterior:
    """Mode of Beta(1 + sum m, 1 + K - sum m), the prior taken anew every round; statistics are averaged."""

    def aggregate(self, state, arrivals, ctx):
        new = Mean().aggregate(state, arrivals, ctx)
        for n in state.keys() - ctx.schema.buffers:
            masks = [a.update[n].to(state[n].device) for a in arrivals]
            a, b = 1 + sum(masks), 1 + len(masks) - sum(masks)
            new[n] = ((a - 1) / (a + b - 2)).clamp(FLOOR, 1 - FLOOR).logit()
        return new


def fedpm(lr=0.1):
    """``lr`` is Adam's, on the scores."""
    return Method(
        "fedpm",
        MaskedNetwork(),
        optimizer=Adam(lr),
        uplink=MaskUplink(Mask()),
        server=BetaPosterior(),
    )
