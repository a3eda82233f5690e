"""How do the clients' updates become the next global model?"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..errors import pick
from .context import Arrival, Context, Part, Tensors
from .links import Update

# of one round, at least one; they may come while clients train
Arrivals = Iterable[Arrival]


class Aggregator(Part):
    """Turns the arrivals of a round into the next global model."""

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        """The next global model; ``ctx.memory`` is kept for the next round."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Aggregator):
    """w <- w + sum_k p_k u_k, for each tensor over the clients that sent it.

    Updates are added as they come, and none of them is kept.

    Parameters
    ----------
    by : str
        "samples" weighs a client by its images, n_k; "clients" counts every client once.

    Examples
    --------
    >>> import fedlearn as fl
    >>> fl.methods.fedavg().but(server=fl.Mean("clients")).server
    Mean(by='clients')
    """

    needs = (Update,)

    by: str = "samples"

    def __post_init__(self) -> None:
        pick(self.by, {"samples": 1, "clients": 1}, "weighting")

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        if ctx.expected:
            senders = [(ctx.task.sizes[k], names) for k, names in ctx.expected.items()]
        else:  # outside of a round the arrivals themselves say what has come
            arrivals = list(arrivals)
            senders = [(a.samples, a.update) for a in arrivals]
        # of each tensor, the weight of all its senders, and of those that came
        totals: Counter[str] = Counter()
        came: Counter[str] = Counter()
        for samples, names in senders:
            totals.update(dict.fromkeys(names, self._weight(samples)))
        new = {name: w.clone() for name, w in state.items()}
        for a in arrivals:
            weight = self._weight(a.samples)
            came.update(dict.fromkeys(a.update, weight))
            shares: dict[float, list[str]] = {}  # p_k, and the tensors that it is for
            for name in a.update:
                shares.setdefault(weight / totals[name], []).append(name)
            for p, names in shares.items():
                updates = [a.update[name].to(new[name].device) for name in names]
                torch._foreach_add_([new[name] for name in names], updates, alpha=p)
        # where an answer was refused, the others count for more
        for name in came:
            if came[name] != totals[name]:
                change = (new[name] - state[name]) * (totals[name] / came[name])
                new[name] = state[name] + change
        return new

    def _weight(self, samples: int) -> int:
        return samples if self.by == "samples" else 1
