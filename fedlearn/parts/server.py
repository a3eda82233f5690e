"""The sixth part: how do uploads become the next global state?"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass

import torch

from ..errors import pick
from .base import Arrival, Context, Part, Tensors


class Aggregator(Part):
    """``needs`` names what it can work with: "update", "votes" or "mask"."""

    def validate(self, ctx: Context) -> None:
        """``ValueError`` for a task or settings that this part cannot work with."""

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        """The next global state; ``state`` is not changed. ``arrivals`` come one by one, in the
        order of the clients, and there is at least one; ``ctx.memory`` is kept for the next
        round."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Aggregator):
    """w <- w + sum_k p_k u_k for each tensor, over the clients that sent that tensor.

    ``by="samples"`` weighs by n_k (McMahan et al., 2017, Algorithm 1), ``by="clients"`` counts
    every client once. Each update is added when it comes and not kept: both sides know who is to
    send which tensor and how many samples a client has, so the p_k are known before. Where some
    are refused, the sum of the others is stretched to weights that add up to one.
    """

    needs = frozenset({"update"})

    by: str = "samples"

    def __post_init__(self) -> None:
        pick(self.by, dict.fromkeys(("samples", "clients")), "weighting")

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        def weight(samples: int) -> int:
            return samples if self.by == "samples" else 1

        due, came = Counter[str](), Counter[str]()  # sum of n_k by tensor
        for k in ctx.participants:
            due.update(dict.fromkeys(ctx.sends(k), weight(ctx.task.sizes[k])))
        new = {name: w.clone() for name, w in state.items()}
        for a in arrivals:
            n = weight(a.samples)
            came.update(dict.fromkeys(a.update, n))
            for total in {due[name] for name in a.update}:  # what the same clients send, at once
                names = [name for name in a.update if due[name] == total]
                torch._foreach_add_(
                    [new[name] for name in names],
                    [a.update[name].to(new[name].device) for name in names],
                    alpha=n / (total or 1),
                )
            del a  # before the next client trains
        for name, total in came.items():
            if total != due[name]:  # somebody was refused: the others' shares grow
                new[name] = state[name].lerp(new[name], (due[name] or 1) / total)
        return new


def mean_update(state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> tuple[Tensors, float]:
    """The mean of the updates that ``Mean`` adds, zero for a tensor that nobody sent; and the share
    that those who came have of all clients' samples."""
    came: list[int] = []

    def noted(a: Arrival) -> Arrival:
        came.append(ctx.task.sizes[a.client])
        return a

    zeros = {name: torch.zeros_like(w) for name, w in state.items()}
    mean = Mean().aggregate(zeros, map(noted, arrivals), ctx)
    return mean, sum(came) / sum(ctx.task.sizes)


def summed(
    arrivals: Iterable[Arrival],
    names: Set[str],
    sums: dict[str, tuple[torch.Tensor, int]],
    value: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float,
) -> Iterator[Arrival]:
    """``arrivals`` without the tensors of these ``names``: when they come by, their values are
    added up, and counted, in ``sums``."""
    for a in arrivals:
        rest = dict(a.update)
        for name in names & rest.keys():
            total, count = sums.get(name, (0, 0))
            sums[name] = total + value(rest.pop(name)), count + 1
        yield a._replace(update=rest)
        del a, rest
