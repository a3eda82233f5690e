"""FedRepOpt's first step: the server trains the scales of a network's branches on its own data
(``fed_repopt.py`` has the rounds that follow)."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..core import SGD, Averaging, Context, TaskLoss, run
from ..errors import check_number, short
from ..models.repopt import Scales, scales_of
from .base import Continued
from .fed_repopt import Form, Smoothed


@dataclass(frozen=True)
class Planned(SGD):
    """SGD as the authors search.

    The rate rises evenly to lr in the first ``warmup`` of ``rounds``, and then falls along half a
    cosine to 0. With ``warmup`` 0 the rate is constant. ``clip`` is the greatest norm of a
    gradient over all parameters; 0: no limit.
    """

    rounds: int = 1
    warmup: int = 0
    clip: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("clip", self.clip, least=0)
        if not 0 <= self.warmup <= self.rounds:
            raise ValueError(
                f"warmup is 0 to {self.rounds} rounds, not {short(self.warmup)}."
            )

    def init(self, params: list[torch.Tensor], ctx: Context) -> dict[str, Any]:
        state = super().init(params, ctx)
        t = ctx.round - 0.5  # the middle of the round
        if t < self.warmup:
            state["lr"] *= t / self.warmup
        elif self.warmup:
            state["lr"] *= (1 + math.cos(math.pi * t / self.rounds)) / 2
        return state

    def step(self, params: list, grads: list, state: dict[str, Any]) -> None:
        if self.clip:
            norm = torch.stack(list(torch._foreach_norm(grads))).norm()
            grads = list(torch._foreach_mul(grads, (self.clip / norm).clamp(max=1)))
        super().step(params, grads, state)


def repopt_search(
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
    """Train a network with all its scales at the server (Lau et al., 2024, Algorithm 1, step 1).

    Parameters
    ----------
    task : Task
        With one client, which is the server itself.
    rounds, batch_size : int
        Epochs and images a batch, at least 1.
    network, lr, momentum, weight_decay, spare, smoothing
        As in ``fed_repopt``; momentum continues from round to round.
    checkpoint : path or None
        As in ``fl.run``.
    warmup : int
        Rounds in which the rate rises, before it falls along half a cosine. Authors': 10.
    clip : float
        Greatest norm of a gradient; 0: no limit. Authors': 5.

    Returns
    -------
    Scales
        The trained scales, for ``fed_repopt(scales=...)``.

    Raises
    ------
    ValueError
        For a task with several clients, or an option that cannot be.

    Examples
    --------
    >>> import fedlearn as fl
    >>> task = fl.tasks.classification("digits", clients=1, train=16, test=10)
    >>> fl.repopt_search(task, rounds=1)
    Scales(digest='...')
    """
    if getattr(task, "clients", 1) != 1:
        raise ValueError(
            f"A search takes a task with one client, the server, not {task.clients}."
        )
    optimizer = Planned(
        lr,
        momentum,
        weight_decay,
        spare=spare,
        rounds=rounds,
        warmup=warmup,
        clip=clip,
    )
    method = Averaging(
        "search",
        Form("search", network),
        Smoothed(smoothing) if smoothing else TaskLoss(),
        Continued(optimizer),
    )
    history = run(
        method,
        task,
        rounds,
        batch_size=batch_size,
        evaluate_every=rounds,
        checkpoint=checkpoint,
        progress=False,
    )
    return Scales(scales_of(history.network()))
