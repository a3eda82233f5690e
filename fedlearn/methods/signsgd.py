"""signSGD with majority vote: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex
Problems", ICML 2018, Algorithm 3.

    client:  send sign(u_i), one bit an entry
    server:  w <- w + lr sign(sum_i sign(u_i)), and sends that sign

In federated learning u_i is the update of the round. Every client has one vote. Batch statistics
are averaged and travel whole.

Deviations from paper and authors' program: what, why, effect measured::

    sign of the update of a round       federated, not distributed,    not measured: a message a
                                        SGD                            batch is another task
    a tie counts as up; so does an      one bit has no third value     0.03 % of an update's
      entry that did not move                                          entries are 0
"""

import math
from dataclasses import dataclass

import torch

from ..parts import (
    SGD,
    Aggregator,
    Arrivals,
    Context,
    KeptSteps,
    Lossy,
    Mean,
    Replay,
    Tensors,
    Update,
    Uplink,
    summed,
)
from ..round import Averaging
from ..wire import Signs, Votes


@dataclass(frozen=True)
class Majority(Aggregator):
    """Each parameter moves by ``lr`` where most clients want it to. A tie counts as up; so does,
    at a client, an update of exactly zero, since one bit has no third value."""

    needs = frozenset({Votes})

    lr: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"The server's step must be above 0 and finite, not {self.lr!r}.")

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        rest, votes = summed(arrivals, state.keys() - ctx.schema.buffers, torch.sign)
        new = Mean("clients").aggregate(state, rest, ctx)
        for n, (v, _) in votes.items():
            up = v.to(state[n].device) >= 0
            new[n] = state[n] + self.lr * torch.where(up, 1.0, -1.0)
        return new


def signsgd(lr: float = 0.1, server_lr: float = 0.01) -> Averaging:
    """``lr`` is the rate of local training, ``server_lr`` the size of the server's step."""
    votes, steps = (Uplink(Update(), Lossy(Signs(scaled), whole=0)) for scaled in (False, True))
    server = KeptSteps(steps, Majority(server_lr))
    return Averaging(
        "signsgd", optimizer=SGD(lr), uplink=votes, downlink=Replay(steps), server=server
    )
