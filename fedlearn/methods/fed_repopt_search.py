"""FedRepOpt's first step (``fed_repopt.py``): the forms of a network, and the search in which the
server trains the scales of its branches on data of its own."""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn

from .. import tasks
from ..arguments import Checked, checked, short
from ..averaging import Averaging
from ..errors import pick
from ..models import reparam
from ..models.repopt import SCALES, Scales, target
from ..parts import SGD, Context, Continued, Model, Named, Optimizer, Smoothed, TaskLoss
from ..settings import whole_number
from ..wire.base import brief


@dataclass(frozen=True)
class Planned(SGD):
    """SGD as the authors' program searches with it: of ``rounds`` rounds the first ``warmup`` raise
    the rate evenly to lr, the others let it fall along half a cosine to 0; without a warm-up it
    stays. With ``clip`` a gradient that is longer, over all parameters, is cut to that length."""

    recordable = True

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


@dataclass(frozen=True)
class Search(Checked):
    """A search by its settings: the data set (``train`` of its images, or all), and the options of
    ``search``. It is made once a process, when its scales are first asked for."""

    dataset: str = "digits"
    rounds: int = 5
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 32
    spare: bool = False
    smoothing: float = 0.0
    train: int | None = None
    seed: int = 0
    warmup: int = field(default=0, repr=False)
    clip: float = field(default=0.0, repr=False)
    __repr__ = brief

    def __post_init__(self) -> None:
        whole_number("rounds", self.rounds)
        whole_number("batch_size", self.batch_size)
        its = {n: getattr(self, n) for n in ("lr", "momentum", "weight_decay", "rounds")}
        Planned(**its, warmup=self.warmup, clip=self.clip)  # refuses what is no rate, decay, ...
        Smoothed(self.smoothing)

    @cache  # noqa: B019 (records of a few numbers, alive as long as the module anyway)
    def found(self, network: Any, device: str = "cpu") -> Scales:
        """The scales of that network."""
        how = vars(self) | {"network": network}
        data = {n: how.pop(n) for n in ("dataset", "train", "seed")}
        task = tasks.classification(**data, clients=1, test=1, device=device)
        return search(task, **how)


@dataclass(frozen=True)
class Form(Model):
    """The network of that name (or the task's, if None) with its blocks in one of the forms of
    ``models.reparam``; or as "repopt": "csla" collapsed into one kernel a block. ``scales``:
    instead of those that the network begins with; a ``Search`` is made when the first network is
    built."""

    form: str = "repopt"
    network: Any = None
    scales: Scales | Search | None = None

    @property
    def gives(self) -> frozenset[str]:
        return frozenset({"constants"} if self.form == "repopt" else ())

    def __post_init__(self) -> None:
        Named(self.network)  # refuses what is no network
        pick(self.form, reparam.FORMS | {"repopt": None}, "form")
        if self.scales is not None and (
            not isinstance(self.scales, (Scales, Search))
            or self.form not in ("csla", "search", "repopt")
        ):
            raise ValueError(
                'scales are Scales or a Search, for the forms "csla", "search" and "repopt", not '
                f'{short(self.scales)} for "{self.form}".'
            )

    def build(self, task: Any) -> nn.Module:
        whole = Named(self.network).build(task)
        if self.form not in ("csla", "search", "repopt"):
            return reparam.reform(whole, self.form)
        net = reparam.reform(whole, "search" if self.form == "search" else "csla")
        scales = self.scales
        if isinstance(scales, Search):
            scales = scales.found(self.network, str(task.device))
        if scales:
            scales.put_into(net)
        return target(net) if self.form == "repopt" else net


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
    from .. import round  # the round knows the methods

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
    history = round.run(
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
