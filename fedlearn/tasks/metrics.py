"""What a task may measure on its test set beyond accuracy and loss, once a round.

A metric is a function ``metric(confusion, clients)`` that returns a number or a list of numbers,
which become a column of the history under the function's name. ``confusion`` is float64 [classes,
classes]: how many test images of the class of a row were taken for the class of a column.
``clients`` is a list with, for each client, a pair: the same matrix as its own network or its own
view of the pixels has it (for most methods the very same matrix; None if it was not seen), and how
many training images of each class it holds, [classes].
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..arguments import short
from ..extensions import find
from ..history import COLUMNS

Clients = list[tuple[torch.Tensor | None, torch.Tensor]]
Metric = Callable[[torch.Tensor, Clients], Any]
Seen = dict[int | None, torch.Tensor]  # confusion matrices by client, or of all under None


def per_class(confusion: torch.Tensor, clients: Clients) -> list[float]:
    """The share of each class's test images that is recognised (recall)."""
    return (confusion.diag() / confusion.sum(1)).tolist()


def per_client(confusion: torch.Tensor, clients: Clients) -> list[float]:
    """For each client the accuracy on test images that are mixed as its own training images are: a
    class counts as much as the client holds of it. Costs no byte: the server knows the test set,
    and in a simulation the partition."""
    return [math.nan if own is None else _as_held(own, held) for own, held in clients]


def client_spread(confusion: torch.Tensor, clients: Clients) -> float:
    """The standard deviation of ``per_client`` over the clients."""
    values = [v for v in per_client(confusion, clients) if not math.isnan(v)]
    mean = sum(values) / len(values) if values else math.nan
    return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) if values else math.nan


def worst_client(confusion: torch.Tensor, clients: Clients) -> float:
    """The lowest of ``per_client``."""
    return min((v for v in per_client(confusion, clients) if not math.isnan(v)), default=math.nan)


METRICS: dict[str, Metric] = {
    f.__name__: f for f in (per_class, per_client, client_spread, worst_client)
}


def find_metrics(metrics: Any) -> dict[str, Metric]:
    """Functions by the names of their columns; each is given as a name of ``METRICS``, a function,
    or where to find one (``fedlearn.extensions``)."""
    found = {}
    for given in [metrics] if isinstance(metrics, str) or callable(metrics) else metrics:
        metric = given if callable(given) else find(given, METRICS, "metric")
        name = getattr(metric, "__name__", "")
        if not name.isidentifier() or name in found or name in COLUMNS:
            raise ValueError(f"A metric needs a name of its own, as a column, not {name!r}.")
        found[name] = metric
    return found


def measured(metrics: dict[str, Metric], seen: Seen, held: Iterable[torch.Tensor]) -> dict:
    """The columns; what is not a finite number is None."""
    total: Any = sum(seen.values())
    clients = [(seen.get(k, seen.get(None)), own) for k, own in enumerate(held)]
    return {name: _column(name, f(total, clients) if seen else None) for name, f in metrics.items()}


def _as_held(own: torch.Tensor, held: torch.Tensor) -> float:
    weights = held * (own.sum(1) > 0)  # a class that the test set lacks says nothing
    right = (own.diag() / own.sum(1)).nan_to_num()
    return float((weights * right).sum() / weights.sum())


def _column(name: str, value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return [_column(name, v) for v in value]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"The metric {name} gives {short(value)}, not a number or several.")
    return value if value is not None and math.isfinite(value) else None
