"""What a task may measure on its test set beyond accuracy and loss, once a round.

A metric is a function ``metric(seen)`` that returns a number or a list of numbers, which become
a column of the history under the function's name. It costs no byte: the server has the test set,
and in a simulation knows who holds what.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import pstdev
from typing import Any

import torch
from torch import Tensor

from ..errors import short
from ..extensions import find
from ..history import COLUMNS

ByClient = dict[int | None, Any]  # by client, or under None one for all


@dataclass(frozen=True, eq=False)
class Seen:
    """What a metric sees of a test set: predictions, labels and owners."""

    predictions: (
        ByClient  # of clients with a network or a view of their own, else of all
    )
    labels: (
        Tensor  # [n], or of pixels [n, height, width]: void has the number of no class
    )
    owners: (
        Tensor | None
    )  # [n], whose sample it is, -1 nobody's; None if the data do not say
    held: Tensor  # [clients, classes]: how much of each class a client has to train
    right: Callable[[Any, Tensor], Tensor] | None = (
        None  # how right predictions are; else equal
    )

    def of(self, client: int) -> Tensor | None:
        """The predictions for a client, those of all for most methods; None if it was not seen."""
        return self.predictions.get(client, self.predictions.get(None))

    def rightness(self, predicted: Tensor, labels: Tensor) -> Tensor:
        """Of predictions that count, how right each is."""
        if self.right is not None:
            return self.right(predicted, labels)
        known = (labels >= 0) & (labels < self.held.shape[1])
        return (predicted == labels)[known].double()

    @cached_property
    def confusion(self) -> Tensor:
        """How many test samples of the class of a row were taken for the class of a column, float64
        [classes, classes]; summed over ``predictions``."""
        return sum(self.confusions.values(), torch.zeros(()))

    @cached_property
    def confusions(self) -> ByClient:
        """The same, with the keys of ``predictions``."""
        classes = self.held.shape[1]
        known = (self.labels >= 0) & (self.labels < classes)
        first = self.labels.long() * classes
        pairs = {
            k: (first + predicted)[known] for k, predicted in self.predictions.items()
        }
        counts = {
            k: torch.bincount(p, minlength=classes**2).double()
            for k, p in pairs.items()
        }
        return {k: count.view(classes, classes) for k, count in counts.items()}


Metric = Callable[[Seen], Any]


def per_class(seen: Seen) -> list[float]:
    """The share of each class's test samples that is recognised (recall)."""
    return (seen.confusion.diag() / seen.confusion.sum(1)).tolist()


def per_client(seen: Seen) -> list[float]:
    """For each client the accuracy on its own test samples; None for a client that has none."""
    if seen.owners is None:
        raise ValueError("The test samples have no owners.")
    accuracies = []
    for k in range(len(seen.held)):
        predicted, rows = seen.of(k), seen.owners == k
        right: Any = (
            []
            if predicted is None
            else seen.rightness(predicted[rows], seen.labels[rows])
        )
        accuracies.append(float(right.mean()) if len(right) else math.nan)
    return accuracies


def client_spread(seen: Seen) -> float:
    """The standard deviation of ``per_client`` over the clients."""
    known = [v for v in per_client(seen) if not math.isnan(v)]
    return pstdev(known) if known else math.nan


def worst_client(seen: Seen) -> float:
    """The lowest of ``per_client``."""
    return _lowest(per_client(seen))


def per_class_mix(seen: Seen) -> list[float]:
    """For each client the accuracy on everybody's test samples, mixed as its own training samples
    are: a class counts as much as the client holds of it. It stands in for ``per_client`` where
    test samples have no owners, and says nothing of what else is particular to a client."""
    accuracies = []
    for k, held in enumerate(seen.held):
        counts = seen.confusions.get(k, seen.confusions.get(None))
        if counts is None:
            accuracies.append(math.nan)
            continue
        weights = held * (
            counts.sum(1) > 0
        )  # a class that the test set lacks says nothing
        recall = (counts.diag() / counts.sum(1)).nan_to_num()
        accuracies.append(float((weights * recall).sum() / weights.sum()))
    return accuracies


def worst_class_mix(seen: Seen) -> float:
    """The lowest of ``per_class_mix``."""
    return _lowest(per_class_mix(seen))


def _lowest(values: list[float]) -> float:
    return min((v for v in values if not math.isnan(v)), default=math.nan)


OWNED = per_client, client_spread, worst_client  # of test samples that have owners
MIXED = per_class_mix, worst_class_mix  # in their place where they have none
METRICS: dict[str, Metric] = {f.__name__: f for f in (per_class, *OWNED, *MIXED)}


def find_metrics(
    metrics: Any, known: Mapping[str, Metric] = METRICS
) -> dict[str, Metric]:
    """Functions by the names of their columns; each is given as a ``known`` name, a function,
    or where to find one (``fedlearn.extensions``)."""
    functions: dict[str, Metric] = {}
    for given in (
        [metrics] if isinstance(metrics, str) or callable(metrics) else metrics
    ):
        metric = given if callable(given) else find(given, known, "metric")
        name = getattr(metric, "__name__", "")
        if not name.isidentifier() or name in functions or name in COLUMNS:
            raise ValueError(
                f"A metric needs a name of its own, as a column, not {name!r}."
            )
        try:
            inspect.signature(metric).bind(None)
        except TypeError:
            raise ValueError(
                f"A metric takes one argument, what it sees of the test set, unlike {name}: "
                "write a function of it that calls that."
            ) from None
        functions[name] = metric
    return functions


def refuse_without_owners(metrics: dict[str, Metric], dataset: str) -> None:
    """``ValueError`` for a metric of test samples with owners, which the data set has not."""
    for metric in OWNED:
        if metric in metrics.values():
            instead = worst_class_mix if metric is worst_client else per_class_mix
            raise ValueError(
                f"The test samples of {dataset} belong to no client, so {metric.__name__} cannot "
                f"be measured; {instead.__name__} weights their classes as a client's training "
                "samples."
            )


def measured(metrics: dict[str, Metric], seen: Seen) -> dict:
    """The columns; what is not a finite number is None."""
    known = bool(seen.predictions)
    return {
        name: _column(name, f(seen) if known else None) for name, f in metrics.items()
    }


def _column(name: str, value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return [_column(name, v) for v in value]
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float)
    ):
        raise ValueError(
            f"The metric {name} gives {short(value)}, not a number or several."
        )
    return value if value is not None and math.isfinite(value) else None
