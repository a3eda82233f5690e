"""FedCAMS: Wang, Lin and Chen, "Communication-Efficient Adaptive Federated Learning", ICML 2022,
Algorithm 2.

    client:  send C(D_i + e_i),   e_i <- D_i + e_i - C(D_i + e_i),   D_i = w_i - w
    server:  m <- b1 m + (1 - b1) D,   v <- b2 v + (1 - b2) D^2,   v^ <- max(v^, v, eps)
             w <- w + lr m / sqrt(v^)

C is the scaled sign, (||x||_1 / d) sign(x). D is the mean of the messages. A client
keeps its e_i while it does not take part. Batch statistics are averaged as they are.
"""

from dataclasses import dataclass

import torch

from ..core import (
    SGD,
    Aggregator,
    Arrivals,
    Averaging,
    Context,
    Feedback,
    Lossy,
    Mean,
    Tensors,
    Update,
    Uplink,
)
from ..errors import check_number
from ..wire import Signs


@dataclass(frozen=True)
class AMSGrad(Aggregator):
    """FedAMS, Option 1."""

    needs = (Update,)
    lr: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-3

    def __post_init__(self) -> None:
        check_number("lr of AMSGrad", self.lr, above=0)
        check_number("beta1", self.beta1, minimum=0, below=1)
        check_number("beta2", self.beta2, minimum=0, below=1)
        check_number("eps", self.eps, above=0)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        memory = ctx.memory
        new = Mean().aggregate(state, arrivals, ctx)
        for n in state.keys() - ctx.schema.buffers:
            D = new[n] - state[n]
            m = self.beta1 * memory.get(f"m/{n}", 0) + (1 - self.beta1) * D
            v = self.beta2 * memory.get(f"v/{n}", 0) + (1 - self.beta2) * D * D
            floor = torch.full_like(v, self.eps)
            highest = torch.maximum(memory.get(f"highest/{n}", floor), v)
            memory[f"m/{n}"] = m
            memory[f"v/{n}"] = v
            memory[f"highest/{n}"] = highest
            new[n] = state[n] + self.lr * m / highest.sqrt()
        return new


def fedcams(lr: float = 0.1, server_lr: float = 1.0) -> Averaging:
    """FedCAMS, Wang, Lin and Chen (2022), Algorithm 2.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * a sign scale for each tensor, authors': one; error ‖C(u) - u‖ / ‖u‖ of client 0's first update
      in FedAvg 0.66, with one scale 0.79; "one scale"
    * no bias corrections, as in Algorithm 2, authors': as in Adam, "corrected"; "both" is their
      program at max_init 0.001
    * v^ is at least eps, as in Algorithm 2, authors': it begins as max_init, 0 by default, and
      1e-8 is added to its root; none at max_init 0.001, else not measured: no option
    """
    return Averaging(
        "fedcams",
        optimizer=SGD(lr),
        uplink=Uplink(Update(), Feedback(), Lossy(Signs(), whole=0)),
        server=AMSGrad(server_lr),
    )
