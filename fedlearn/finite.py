"""Whether a run can go on from a state, and who sent what made it otherwise.

Every number that comes off the wire is finite, and yet one upload of 1e30 makes an aggregate from
which nobody can train. Such an aggregate is not taken (``round.run``).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .context import State
from .errors import Diverged
from .models import evaluating

LIMIT = torch.finfo(torch.float32).max  # of a squared norm
IMAGES = 4  # that a network is tried on
GROWN = 4.0  # times in one round, as honest weights never do


def _norms(tensors: Iterable[Any]) -> list[float]:
    """The norm of each tensor of floats; infinite where its square is more than a float32 holds."""
    floats = [t for t in tensors if torch.is_tensor(t) and t.is_floating_point() and t.numel()]
    return list(map(float, torch._foreach_norm(floats))) if floats else []


def norm(tensors: Iterable[Any]) -> float:
    """The norm of all these tensors of floats; NaN if its square overflows a float32."""
    square = sum(norm * norm for norm in _norms(tensors))
    return math.sqrt(square) if square < LIMIT else math.nan


def check(state: State, before: State) -> bool:
    """``Diverged`` if what is new in ``state`` overflows: weights or the memory of a part; else
    whether the weights have grown so much that the network had better be tried."""
    for what, new, old in (
        ("weights", state.weights, before.weights),
        ("server's memory", state.memory, before.memory),
    ):
        if math.isnan(norm(t for name, t in new.items() if t is not old.get(name))):
            raise Diverged(f"The norm of the new {what} is NaN, infinite or overflows a float32.")
    return norm(state.weights.values()) > GROWN * norm(before.weights.values())


def try_out(net: nn.Module, task: Any) -> None:
    """``Diverged`` if a network that holds the new weights gives anything for a few test images
    that is not finite, or if the gradient of it overflows: products of large finite weights do."""
    params = [p for p in net.parameters() if p.requires_grad]
    with evaluating(net), torch.enable_grad():
        out = tree_leaves(net(task.inputs(task.test[0][:IMAGES])))
        total = sum(t.sum() for t in out)
        grads = torch.autograd.grad(total, params, allow_unused=True) if total.requires_grad else ()
    if not all(t.isfinite().all() for t in out):
        raise Diverged("With the new weights the network's output is NaN or infinite.")
    if math.isnan(norm(grads)):
        raise Diverged("With the new weights the network's gradient overflows.")


def magnitude(taken: Any) -> float:
    """The norm of what was read from an answer: tensors by name, or what has such an ``update``; 0
    for anything else."""
    tensors = taken if isinstance(taken, Mapping) else getattr(taken, "update", None)
    tensors = list(tensors.values()) if isinstance(tensors, Mapping) else []
    norm = math.hypot(*_norms(tensors))
    if math.isfinite(norm):
        return norm
    return math.hypot(*_norms(t.double() for t in tensors))  # takes ten times as long
