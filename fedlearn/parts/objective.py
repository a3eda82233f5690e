"""The second part: what does local training minimise?"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from .base import Batch, Context, Loss, Part


class Objective(Part):
    """The loss of a batch.

    When all clients of a round train at once, parameters are [clients, ...], images [clients,
    batch, ...] and the loss is [clients]. So a loss is averaged over the batch axis only, and
    dimensions are counted from the end.
    """

    recordable = False  # True in a class whose loss does nothing but tensor operations: a CUDA
    # graph may then replay it. A subclass has to say so anew.

    pads = False  # True in a class whose loss is a mean over samples that does not look at any
    # other, with zero for label -100: stacked batches may then have rows that count for nothing

    def __init_subclass__(cls) -> None:
        for name in ("recordable", "pads"):
            setattr(cls, name, cls.__dict__.get(name, False))

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        """Called before local training -> ``loss(net, batch)``."""
        raise NotImplementedError


@dataclass(frozen=True)
class TaskLoss(Objective):
    """The task's own loss, for classification the mean cross-entropy of the batch."""

    recordable = pads = True

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        loss = ctx.task.loss
        return lambda net, batch: loss(net(batch.x), batch.y)


@dataclass(frozen=True)
class Smoothed(Objective):
    """Label smoothing (Szegedy et al., 2016, section 7), the arithmetic of torch's
    ``label_smoothing``: J <- (1 - eps) J + eps mean_c(-log p_c) over all classes c."""

    recordable = True

    eps: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.eps < 1:
            raise ValueError(f"Label smoothing takes a share eps of 0 to below 1, not {self.eps}.")

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        J, eps = ctx.task.loss, self.eps

        def loss(net: nn.Module, batch: Batch) -> torch.Tensor:
            logits = net(batch.x)
            return (1 - eps) * J(logits, batch.y) - eps * F.log_softmax(logits, -1).mean((-2, -1))

        return loss


def trained(net: nn.Module, ctx: Context) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parameters that local training moves, and where they start from."""
    named = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    return [p for _, p in named], [ctx.start[name] for name, _ in named]


def inner(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], ctx: Context) -> torch.Tensor:
    """<a, b> over all tensors of two lists; of each stacked client: [clients]."""
    first = int(isinstance(ctx.client, list))  # axis that is summed
    products = [x * y for x, y in zip(a, b, strict=True)]
    sums = [p.sum(tuple(range(first, p.dim()))) if p.dim() > first else p for p in products]
    return torch.stack(sums).sum(0)


class Reference:
    """What a frozen copy of a network, as it is now, says about a client's batches.

    A client that trains by itself and does not augment its images meets the same ones in every
    epoch. Their outputs are computed in the first epoch and looked up in the others. Batch
    normalisation and dropout are in evaluation mode.
    """

    def __init__(self, net: nn.Module, ctx: Context) -> None:
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        alone = not isinstance(ctx.client, list) and not ctx.task.augment
        self.images = ctx.task.sizes[ctx.client] if alone else None
        self.seen, self.table = 0, torch.empty(0)

    def __call__(self, batch: Batch) -> torch.Tensor:
        if self.seen == self.images:
            return self.table[batch.index]
        with torch.no_grad():
            outputs = self.net(batch.x)
        if self.images:
            if not len(self.table):
                self.table = outputs.new_empty(self.images, *outputs.shape[1:])
            self.table[batch.index] = outputs
            self.seen += len(outputs)
        return outputs
