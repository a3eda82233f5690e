"""Whether a run can go on from a state.

Every number that comes off the wire is finite, and yet one upload of 1e30 makes an aggregate from
which nobody can train. Such an aggregate is not taken (``round.one_round``).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .context import State
from .errors import Diverged
from .models import evaluating

LIMIT = math.sqrt(torch.finfo(torch.float32).max)  # a norm whose square a float32 does not hold
IMAGES = 4  # that a network is tried on
GROWN = 4.0  # times in one round, as honest weights never do


def norm(tensors: Iterable[Any]) -> float:
    """The norm of all these tensors of floats together; NaN or infinite if one of them is."""
    floats = [t for t in tensors if torch.is_tensor(t) and t.is_floating_point() and t.numel()]
    whole = math.hypot(*map(float, torch._foreach_norm(floats))) if floats else 0.0
    if math.isfinite(whole):
        return whole
    return math.hypot(*(float(t.double().norm()) for t in floats))  # takes ten times as long


def check(state: State, before: State) -> bool:
    """``Diverged`` if what is new in ``state`` overflows: weights or the memory of a part; else
    whether the weights have grown so much that the network had better be tried."""
    for noun, new, old in (
        ("weights", state.weights, before.weights),
        ("server's memory", state.memory, before.memory),
    ):
        if not norm([t for name, t in new.items() if t is not old.get(name)]) < LIMIT:
            raise Diverged(f"The norm of the new {noun} is NaN, infinite or overflows a float32.")
    return norm(state.weights.values()) > GROWN * norm(before.weights.values())


def try_out(net: nn.Module, task: Any) -> None:
    """``Diverged`` if a network that holds the new weights gives anything for a few test images
    that is not finite, or if the gradient of it overflows: products of large finite weights do."""
    params = [p for p in net.parameters() if p.requires_grad]
    with evaluating(net), torch.enable_grad():
        outputs = tree_leaves(net(task.inputs(task.test[0][:IMAGES])))
        total = sum(t.sum() for t in outputs)
        grads = torch.autograd.grad(total, params, allow_unused=True) if total.requires_grad else ()
    if not all(t.isfinite().all() for t in outputs):
        raise Diverged("With the new weights the network's output is NaN or infinite.")
    if not norm(grads) < LIMIT:
        raise Diverged("With the new weights the network's gradient overflows.")
