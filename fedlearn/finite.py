"""Whether a run can go on from a state, and who sent what made it otherwise.

Every number that comes off the wire is finite, and yet one upload of 1e30 makes an aggregate from
which nobody can train. Such an aggregate is not taken (``round.one_round``).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .errors import Diverged
from .parts import State

LIMIT = torch.finfo(torch.float32).max  # of a squared norm
IMAGES = 8  # that a network is tried on


def overflows(tensors: Iterable[Any]) -> bool:
    """Whether the squared norm of all these tensors of floats is more than a float32 holds, or is
    not a number."""
    floats = [t for t in tensors if torch.is_tensor(t) and t.is_floating_point() and t.numel()]
    norms = map(float, torch._foreach_norm(floats) if floats else ())
    return not sum(norm * norm for norm in norms) < LIMIT


def check(state: State, before: State) -> None:
    """``Diverged`` if what is new in ``state`` overflows: weights or the memory of a part."""
    for what, new, old in (
        ("weights", state.weights, before.weights),
        ("server's memory", state.memory, before.memory),
    ):
        if overflows(t for name, t in new.items() if t is not old.get(name)):
            raise Diverged(f"The norm of the new {what} is NaN, infinite or overflows a float32.")


def try_out(net: nn.Module, task: Any) -> None:
    """``Diverged`` unless a network that holds the new weights gives finite numbers for a few test
    images: a product of large finite weights overflows."""
    training = net.training
    with torch.inference_mode():
        out = net.eval()(task.inputs(task.test[0][:IMAGES]))
    net.train(training)
    if not all(t.isfinite().all() for t in torch.utils._pytree.tree_leaves(out)):
        raise Diverged("With the new weights the network's output is NaN or infinite.")


def magnitude(taken: Any) -> float:
    """The largest absolute value of what was read from an answer: tensors by name, or what has
    such an ``update``; 0 for anything else."""
    tensors = getattr(taken, "update", taken)
    tensors = tensors.values() if isinstance(tensors, Mapping) else ()
    floats = [t for t in tensors if torch.is_tensor(t) and t.is_floating_point() and t.numel()]
    return max(map(float, torch._foreach_norm(floats, math.inf) if floats else ()), default=0.0)
