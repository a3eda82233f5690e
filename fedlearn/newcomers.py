"""Clients that arrive after a training: how good a start do they have? (Figure 6 of FedFusion.)

Each trains alone, from the weights that the training left, and is tested before and after each of
its epochs. Its images are as many as those of the clients before it, drawn anew from the same set,
and where a partition permutes pixels its order is one that no client had. Its rate is that of a
first round; with FedFusion the frozen stream is the extractor that it begins with.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn

from . import local, round
from .experiment import Experiment
from .method import Method
from .models import state_of
from .parts import Model, Tensors

COUNT = 3  # of newcomers


@dataclass(frozen=True)
class Begun(Model):
    """The network of another model part, with these weights."""

    model: Model
    weights: Tensors = field(repr=False)

    def given(self) -> set[Any]:
        return super().given() | self.model.given()

    def refresh(self, net: nn.Module, task: Any, round: int) -> None:
        self.model.refresh(net, task, round)

    def build(self, task: Any) -> nn.Module:
        net = self.model.build(task)
        local.load(state_of(net), self.weights)
        return net


def newcomers(
    method: Method, experiment: Experiment, weights: Tensors, images: int, epochs: int
) -> list[list[float]]:
    """For each newcomer, with that many ``images``, its test accuracy before it trains and after
    1, 2, ..., ``epochs`` epochs. ``weights`` are those that the training of ``experiment`` with
    ``method`` left."""
    begun, curves = replace(method, model=Begun(method.model, weights)), []
    how = asdict(experiment.settings) | {"participation": 1.0, "evaluate_every": 1}
    how |= {"threads": experiment.threads, "progress": False}
    for k in range(COUNT):
        seed = experiment.seed + 1000 * (k + 1)  # the recipes' own seeds are small numbers
        task = replace(experiment, clients=1, train=images, seed=seed).make_task()
        first = task.evaluate(local.new_network(begun.model, task), client=0)["accuracy"]
        after = [  # each from the start: the longer begins as the shorter does
            round.run(begun, task, 1, **how | {"epochs": n}).final["accuracy"]
            for n in range(1, epochs + 1)
        ]
        curves.append([first, *after])
    return curves
