"""signSGD with majority vote: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018, Algorithm 3.

    client:  send sign(u_i), one bit an entry;      server:  w <- w + lr sign(sum_i sign(u_i)), and sends that sign

In federated learning u_i is the update of the round. Every client has one vote. Batch statistics are averaged and travel whole.
"""

import math
from dataclasses import dataclass

import torch

from ..method import SGD, Compressed, Mean, Method
from ..wire import Signs
from .stc import steps_both_ways


@dataclass(frozen=True)
class Majority:
    """Each parameter moves by ``lr`` where most clients want it to. A tie counts as up; so does, at a client, an update of
    exactly zero, since one bit has no third value."""

    lr: float = 0.01

    def __post_init__(self):
        if not 0 < self.lr < math.inf:
            raise ValueError(f"The server's step must be above 0 and finite, not {self.lr!r}.")

    def aggregate(self, state, arrivals, ctx):
        new = Mean("clients").aggregate(state, arrivals, ctx)
        for n in state.keys() - ctx.schema.buffers:
            votes = sum(a.update[n].sign().to(state[n].device) for a in arrivals)
            new[n] = state[n] + self.lr * torch.where(votes >= 0, 1.0, -1.0)
        return new


def signsgd(lr=0.1, server_lr=0.01):
    """``lr`` is the rate of local training, ``server_lr`` the size of the server's step."""
    votes, steps = (Compressed(Signs(scaled), feedback=False, whole=0) for scaled in (False, True))
    return steps_both_ways(Method("signsgd", optimizer=SGD(lr)), votes, steps, Majority(server_lr))
