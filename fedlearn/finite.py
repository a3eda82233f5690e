"""Whether a run can go on from a state, and whose answer stands out if it cannot.

Every number that comes off the wire is finite, and yet one upload of 1e30 makes an aggregate from
which nobody can train. Such an aggregate is not taken (``round.one_round``).
"""

import math
from collections.abc import Iterable, Mapping
from statistics import median_low
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .context import State, Tensors
from .errors import Diverged, WireError
from .models import evaluating

LIMIT = math.sqrt(torch.finfo(torch.float32).max)  # a norm whose square a float32 does not hold
IMAGES = 4  # that a network is tried on
FAR = 8.0  # times the median norm of a round, as honest updates hardly ever have
GROWN = 10.0  # times the norm before, as honest weights hardly ever do


def norm(tensors: Iterable[Any]) -> float:
    """The norm of all these tensors of floats together; NaN or infinite if one of them is."""
    floats = [t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()]
    whole = math.hypot(*map(float, torch._foreach_norm(floats))) if floats else 0.0
    if math.isfinite(whole):
        return whole
    return math.hypot(*(float(t.cpu().double().norm()) for t in floats))  # takes ten times as long


def check(state: State, before: State) -> bool:
    """``Diverged`` if what is new in ``state`` overflows: weights or the memory of a part; else
    whether the weights have grown so much that gradients may."""
    for noun, new, old in (
        ("weights", state.weights, before.weights),
        ("server's memory", state.memory, before.memory),
    ):
        if not norm([t for name, t in new.items() if t is not old.get(name)]) < LIMIT:
            raise Diverged(f"The norm of the new {noun} is NaN, infinite or overflows a float32.")
    return grown(state, before)


def grown(state: State, before: State) -> bool:
    """Whether the weights are so much larger that honest clients can hardly be the reason."""
    return norm(state.weights.values()) > GROWN * norm(before.weights.values())


def try_out(net: nn.Module, task: Any, large: bool = True) -> None:
    """``Diverged`` if a network that holds the new weights gives anything for a few test images
    that is not finite, or a loss, or if the gradient of ``large`` ones overflows: products of
    large finite weights do, and roots of negative variances."""
    x, y = (t[:IMAGES] for t in task.test)
    with evaluating(net), torch.set_grad_enabled(large):
        given = net(task.inputs(x))
        outputs, loss, grads = tree_leaves(given), task.loss(given, y), ()
        total = sum(t.sum() for t in outputs)
        if total.requires_grad:
            params = [p for p in net.parameters() if p.requires_grad]
            grads = torch.autograd.grad(total, params, allow_unused=True)
    if not all(t.isfinite().all() for t in (*outputs, loss)):
        raise Diverged("With the new weights the network's output or loss is NaN or infinite.")
    if not norm(grads) < LIMIT:
        raise Diverged("With the new weights the network's gradient overflows.")


def refuse_negative(weights: Tensors, update: Tensors) -> None:
    """``WireError`` if a variance, moved by ``update``, is below zero by more than what coding may
    have lost."""
    names = [n for n in update if n.endswith("running_var") and n in weights]
    new = [weights[n] + update[n].to(weights[n].device) for n in names]
    low = min((float(t.min()) for t in new), default=0.0)
    if low < 0:
        largest = max(float(t[n].abs().max()) for n in names for t in (weights, update))
        if low < -0.01 * largest:
            raise WireError("The upload says that a running_var, a variance, is negative.")


def far(norms: Mapping[int, float]) -> list[int]:
    """The clients whose answers have a norm far above the round's median; of two the lower."""
    most = FAR * median_low(norms.values()) if norms else 0.0
    return [k for k, norm in norms.items() if norm > most]
