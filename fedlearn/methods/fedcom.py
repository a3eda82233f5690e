"""FedCOM and FedCOMGATE: Haddadpour et al., "Federated Learning with Compression: Unified
Analysis and Sharp Guarantees", AISTATS 2021, Algorithms 1 and 3.

    FedCOM:  w <- w - eta gamma mean_j Q_j,   Q_j = Q((w - w_j) / eta)
    GATE:    local step with g - delta_j
             after the round  delta_j <- delta_j + (1 / tau) (Q_j - mean_j Q_j)

Q quantises evenly between the smallest and the largest entry of a tensor; gamma = 1, eta the
local learning rate, tau the local steps. mean_j Q_j is the movement of the global model, divided
by -eta: a client that stores its last download computes it from the next one. So gradient tracking
costs no byte. (The paper sends it, which doubles the downlink.)
"""

from dataclasses import dataclass

import torch

from ..core import SGD, Averaging, Context, Lossy, Step, Tensors, Update, Uplink
from ..core.optim import Params
from ..wire import Uniform
from .base import Shifted, remembered


def fedcom(lr: float = 0.1, bits: int = 8) -> Averaging:
    """FedCOM, Haddadpour et al. (2021), Algorithm 1: quantised updates, averaged.

    Parameters
    ----------
    bits : int
        Of an entry of the update, 1 to 16.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * Q takes the nearest level, the theorems want it drawn: error ‖C(u) - u‖ / ‖u‖ of client 0's
      first update in FedAvg 0.010 with 8 bits
    """
    return Averaging(
        "fedcom", optimizer=SGD(lr), uplink=Uplink(Update(), Lossy(Uniform(bits)))
    )


@dataclass(frozen=True)
class Remember(Step):
    """Stores the sent update, and the model at its start, until the next round."""

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        for n in set(sent) - ctx.schema.buffers:
            ctx.memory[f"sent/{n}"] = sent[n]
            ctx.memory[f"start/{n}"] = ctx.start[n].clone()
        ctx.memory["round"] = torch.tensor(ctx.round)


class Tracked(Shifted):
    """SGD on g - delta_j.

    After an absence the movement of the model counts as its mean over the rounds since.
    """

    needs = (Remember,)

    def _shift(self, params: Params, ctx: Context) -> Params:
        if isinstance(ctx.memory, list):
            for j, memory in enumerate(ctx.memory):
                start = {n: w[j] for n, w in ctx.start.items()}
                self._track(memory, start, ctx.client[j], ctx)
        else:
            self._track(ctx.memory, ctx.start, ctx.client, ctx)
        return remembered(ctx, "delta", params)

    def _track(self, memory: Tensors, start: Tensors, j: int, ctx: Context) -> None:
        """delta_j after the client's last round, as movement of weights over -eta tau."""
        names = [n for n in start if f"sent/{n}" in memory]
        for n in names:
            moved = (start[n] - memory[f"start/{n}"]) / (
                ctx.round - int(memory["round"])
            )
            change = (moved - memory[f"sent/{n}"]) / (self.lr * ctx.steps(j))
            memory[f"delta/{n}"] = memory.get(f"delta/{n}", 0) + change


def fedcomgate(lr: float = 0.1, bits: int = 8) -> Averaging:
    """FedCOMGATE, Haddadpour et al. (2021), Algorithm 3: FedCOM with local gradient tracking.

    Parameters
    ----------
    lr, bits
        As for ``fedcom``.

    Notes
    -----
    Deviations from paper and authors' program, beside those of ``fedcom``, and their effect:

    * mean_j Q_j is computed at the client, not sent: half the paper's downlink
    * delta_j moves by Q_j as in Algorithm 3, authors': by the client's movement, unquantised, and
      they quantise the downlink, too; not measured: no option
    * an absent client takes the mean of the rounds that it missed: none where all take part
    """
    uplink = Uplink(Update(), Remember(), Lossy(Uniform(bits)))
    return Averaging("fedcomgate", optimizer=Tracked(lr), uplink=uplink)
