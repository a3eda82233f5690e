"""FedRepOpt's first step: the search in which the server trains the scales of a network's branches
on data of its own (``fed_repopt.py`` has the rounds that follow)."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..arguments import checked, short
from ..models.repopt import SCALES, Scales
from ..parts import SGD, Context, Continued, Optimizer, Smoothed, TaskLoss
from ..round import Averaging, run
from ..settings import whole_number
from .fed_repopt import Form


@dataclass(frozen=True)
class Planned(SGD):
    """SGD as the authors' program searches with it: of ``rounds`` rounds the first ``warmup`` raise
    the rate evenly to lr, the others let it fall along half a cosine to 0; without a warm-up it
    stays. With ``clip`` a gradient that is longer, over all parameters, is cut to that length."""

    rounds: int = 1
    warmup: int = 0
    clip: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.warmup <= self.rounds or not 0 <= self.clip < math.inf:
            raise ValueError(
                "A search needs 0 <= warmup <= rounds and a finite clip >= 0, not "
                f"warmup={short(self.warmup)}, rounds={short(self.rounds)}, clip={self.clip!r}."
            )

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        state, t = super().init(params, ctx), ctx.round - 0.5  # the middle of the round
        if self.warmup:
            falling = (1 + math.cos(math.pi * t / self.rounds)) / 2
            state["lr"] *= t / self.warmup if t < self.warmup else falling
        return state

    def step(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any]
    ) -> None:
        if self.clip:
            norm = torch.stack(list(torch._foreach_norm(grads))).norm()
            grads = list(torch._foreach_mul(grads, (self.clip / norm).clamp(max=1)))
        super().step(params, grads, state)


@checked
def search(
    task: Any,
    rounds: int = 5,
    network: Any = "digits_repvgg",
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batch_size: int = 32,
    spare: bool = False,
    smoothing: float = 0.0,
    checkpoint: Any = None,
    warmup: int = 0,
    clip: float = 0.0,
) -> Scales:
    """Train the network with all scales trained on the one client of ``task``, which is the server
    itself. ``spare`` and ``smoothing``: as in ``fed_repopt``; ``checkpoint``: as in ``run``. With
    ``warmup`` the rate rises for so many rounds and then falls along half a cosine; ``clip`` is the
    greatest length of a gradient; with either, momentum goes on from round to round. The authors'
    program has 10 rounds and 5."""
    if not hasattr(task, "evaluate"):
        raise ValueError(f"A search takes a task (fedlearn.tasks), not {short(task)}.")
    whole_number("rounds", rounds)
    if task.clients != 1:
        raise ValueError(
            f"The search is the server's own: a task with one client, not {task.clients}."
        )
    its: dict[str, Any] = {
        "lr": lr,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "spare": spare,
    }
    sgd: Optimizer = SGD(**its)
    if warmup or clip:
        sgd = Continued(Planned(**its, rounds=rounds, warmup=warmup, clip=clip))
    loss = Smoothed(smoothing) if smoothing else TaskLoss()
    method = Averaging("search", Form("search", network), loss, optimizer=sgd)
    history = run(
        method,
        task,
        rounds,
        batch_size=batch_size,
        evaluate_every=rounds,
        progress=False,
        checkpoint=checkpoint,
    )
    ends = tuple(f".{s}.value" for s in SCALES)
    state = history.state or {}
    found = {n: t.clone() for n, t in state.items() if n.endswith(ends)}
    return Scales({n.removesuffix(".value"): t for n, t in found.items()})
