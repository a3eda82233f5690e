"""How do the clients' updates become the next global model?"""

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..errors import pick
from .context import Arrival, Context, Part, Tensors
from .links import Update

# of one round, at least one; they may come while clients train
Arrivals = Iterable[Arrival]
Names = tuple[str, ...]  # the tensors of a message


def weight_of_tensors(senders: Counter[Names]) -> Counter[str]:
    """The weight of all senders of each tensor."""
    weights: Counter[str] = Counter()
    for names, weight in senders.items():
        weights.update(dict.fromkeys(names, weight))
    return weights


class Aggregator(Part):
    """Turns the arrivals of a round into the next global model."""

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        """The next global model; ``ctx.memory`` is kept for the next round."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Aggregator):
    """w <- w + sum_k p_k u_k, for each tensor over the clients that sent it.

    In a round each update is added as it arrives, and not kept.

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
        # weights of all senders, and of those that came, by the tensors of their messages
        sending: Counter[Names] = Counter()
        came: Counter[Names] = Counter()
        for samples, names in senders:
            sending[tuple(names)] += self._weight(samples)
        totals = weight_of_tensors(sending)
        new = {name: w.clone() for name, w in state.items()}
        for a in arrivals:
            names = tuple(a.update)
            weight = self._weight(a.samples)
            came[names] += weight
            for total, group in itertools.groupby(names, totals.__getitem__):
                updates = {name: a.update[name].to(new[name].device) for name in group}
                means = [new[name] for name in updates]
                torch._foreach_add_(means, list(updates.values()), alpha=weight / total)
        # where an answer was refused, the others count for more
        for name, weight in weight_of_tensors(came).items():
            if weight != totals[name]:
                change = (new[name] - state[name]) * (totals[name] / weight)
                new[name] = state[name] + change
        return new

    def _weight(self, samples: int) -> int:
        return samples if self.by == "samples" else 1
