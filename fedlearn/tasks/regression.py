"""Numbers to be predicted: mean squared error to train, R^2 to compare."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..data import arrays, forms
from ..data.sources import Source
from .base import Task
from .kinds import Classification, arguments_of
from .metrics import OWNED, ByClient


class Regression(Classification):
    """Samples with numbers, y float32 [n, targets]. A network gives [n, targets] in units of the
    training targets' spread, so that a learning rate does not depend on euros or cents."""

    known_metrics = {f.__name__: f for f in OWNED}
    ignored = float("nan")
    about = {"task": "regression", "accuracy": "R²"}

    @staticmethod
    def find_source(dataset: Any, users: Any = None) -> Source:
        source = forms.read(dataset, users, arrays.from_numbers)
        if source.train_y.dim() == 1:  # labels that are numbers
            test = [source.test_x, source.test_y, source.test_users]
            train, name = (source.train_x, source.train_y), source.name
            source = arrays.from_numbers(*train, test, name=name, users=source.users)
        if not source.train_y.is_floating_point() or source.train_y.dim() > 2:
            raise ValueError(f"{source.name} has no numbers to be predicted.")
        return source

    @cached_property
    def spread(self) -> Tensor:
        """Mean and standard deviation of the training targets, each [targets]."""
        y = self.source.train_y.double()
        return torch.stack([y.mean(0), y.std(0, correction=0)]).float().to(self.device)

    @cached_property
    def variance(self) -> Tensor:
        """Of the test targets, [targets]."""
        return self.test[1].cpu().double().var(0, correction=0)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        mean, std = self.spread
        error = outputs - (y - mean) / std
        return torch.where(y.isnan(), 0, error).square().mean((-2, -1))

    def read(self, outputs: Tensor) -> Tensor:
        """The targets, in their own units."""
        mean, std = self.spread
        return outputs * std + mean

    def right(self, predicted: Tensor, y: Tensor) -> Tensor:
        """1 - the squared error over the test targets' variance, whose mean is R^2."""
        return (1 - (predicted.double() - y) ** 2 / self.variance).mean(-1)

    @cached_property
    def held(self) -> Tensor:
        """How many samples of each tenth of the first target a client holds, [clients, 10]."""
        tenth = torch.from_numpy(arrays.tenths(self.train[1].cpu().numpy()))
        return torch.stack([torch.bincount(tenth[mine], minlength=10) for mine in self.owned])

    def check_outputs(self, name: str, outputs: Any, y: Tensor) -> None:
        got = list(getattr(outputs, "shape", ()))
        if got != list(y.shape):
            raise ValueError(
                f"{name} gives {got or type(outputs).__name__} for {len(y)} samples: "
                f"{list(y.shape)} is needed, a number for each target."
            )

    def score(self, net: nn.Module, client: int | None, predictions: ByClient) -> dict[str, float]:
        """R^2, the mean over the targets; the mean squared error in units of the training targets'
        spread; and its root in their own units (of several targets the root of the mean)."""
        outputs = torch.cat([given for given, _ in self.tested(net)])
        predicted, y = self.read(outputs).cpu(), self.test[1].cpu()
        if self.metrics:
            predictions[client] = predicted
        return {
            "accuracy": float(self.right(predicted, y).mean()),
            "loss": float(self.loss(outputs, self.test[1])),
            "rmse": float((predicted.double() - y).square().mean().sqrt()),
        }


@arguments_of(Task.make)
def regression(**arguments: Any) -> Regression:
    """Numbers to be predicted. The column accuracy is R^2 on the test set: 1 is exact, 0 no better
    than their mean. ``rmse`` is the error in the targets' own units; ``metrics`` may be
    "per_client", "client_spread" and "worst_client".

    Parameters
    ----------
    dataset
        As of ``classification``, with one number a sample, or several [n, targets], in place of
        labels; or what ``fl.data.from_numbers`` makes of them.
    partition
        As of ``classification``, by tenths of the first target.
    network
        As of ``classification``; it is given the number of targets in place of that of classes.
    clients, seed, augment, train, test, device, metrics, validation
        As of ``classification``.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> task = regression((x, 1000 * x[:, 0]), clients=2)
    >>> task.shape, task.sizes
    ((1, 1, 3), [20, 20])
    """
    task = Regression.make(**arguments)
    if not (task.spread[1].min() > 0 and task.variance.min() > 0):
        raise ValueError("A target is the same in all samples to train, or in all to test.")
    return task
