"""Knowledge distillation (Hinton et al., 2015): what a teacher's logits add to a student's loss."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from ..parts import Batch, Context, Objective, TaskLoss
from ..parts.base import Loss


def distillation(teacher: torch.Tensor, student: torch.Tensor, T: float = 3.0) -> torch.Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over the batch: logits [..., n, C]
    twice -> [...]."""
    log_p, log_q = F.log_softmax(teacher / T, -1), F.log_softmax(student / T, -1)
    return T**2 * (log_p.exp() * (log_p - log_q)).sum(-1).mean(-1)


@dataclass(frozen=True)
class Distilled(Objective):
    """The task's loss plus ``alpha`` times the distillation from a table of the teacher's logits, a
    row for each of the client's images, which it keeps as ``z_s`` [n_k, C]; the task's loss alone
    as long as there is none."""

    recordable = True

    T: float = 3.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.T < math.inf or not 0 <= self.alpha < math.inf:
            raise ValueError(
                "Distillation needs a temperature T > 0 and a weight alpha >= 0, both finite, not "
                f"{self}."
            )

    def begin(self, net: nn.Module, ctx: Context) -> Loss:
        J, many = ctx.task.loss, isinstance(ctx.client, list)
        z_s = [memory.get("z_s") for memory in (ctx.memory if many else [ctx.memory])]
        known = next((z for z in z_s if z is not None), None)
        if known is None or not self.alpha:
            return TaskLoss().begin(net, ctx)
        there = torch.tensor([z is not None for z in z_s], dtype=known.dtype, device=known.device)
        weight = self.alpha * there
        filled = [known[:1] * 0 if z is None else z for z in z_s]
        table = pad_sequence(filled, batch_first=True)  # [clients, n, C]
        who = torch.arange(len(z_s), device=known.device)[:, None]
        if not many:
            weight, table, who = weight[0], table[0], None

        def loss(net: nn.Module, batch: Batch) -> torch.Tensor:
            z_k, index = net(batch.x), batch.index.clamp(max=table.shape[-2] - 1)
            teacher = table[index] if who is None else table[who, index]
            return J(z_k, batch.y) + weight * distillation(teacher, z_k, self.T)

        return loss
