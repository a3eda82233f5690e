"""signSGD with majority vote: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex
Problems", ICML 2018, Algorithm 3.

    client:  send sign(u_i), one bit an entry
    server:  w <- w + lr sign(sum_i sign(u_i)), and sends that sign

In federated learning u_i is the update of the round. Every client has one vote. Batch statistics
are averaged and travel whole.
"""

from dataclasses import dataclass

import torch

from ..core import (
    SGD,
    Aggregator,
    Arrivals,
    Averaging,
    Context,
    Lossy,
    Mean,
    Tensors,
    Update,
    Uplink,
)
from ..errors import check_number
from ..wire import Signs, Votes
from .base import summed
from .replay import KeptSteps, Replay


@dataclass(frozen=True)
class Majority(Aggregator):
    """Each parameter moves by ``lr`` in the direction of most clients; a tie counts as up."""

    needs = (Votes,)

    lr: float = 0.01

    def __post_init__(self) -> None:
        check_number("lr of Majority", self.lr, above=0)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        buffers, votes = summed(arrivals, state.keys() - ctx.schema.buffers, torch.sign)
        new = Mean("clients").aggregate(state, buffers, ctx)
        for n, (v, _) in votes.items():
            up = v.to(state[n].device) >= 0
            new[n] = state[n] + self.lr * torch.where(up, 1.0, -1.0)
        return new


def signsgd(lr: float = 0.1, server_lr: float = 0.01) -> Averaging:
    """signSGD with majority vote, Bernstein et al. (2018), Algorithm 3.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * sign of the update of a round; not measured: a message a batch is another setting
    * a tie counts as up, so does an entry that did not move: 0.03 % of an update's entries are 0
    """
    steps = Uplink(Update(), Lossy(Signs(), whole=0))
    return Averaging(
        "signsgd",
        optimizer=SGD(lr),
        uplink=Uplink(Update(), Lossy(Signs(scaled=False), whole=0)),
        downlink=Replay(steps),
        server=KeptSteps(steps, Majority(server_lr)),
    )
