"""FedCOM and FedCOMGATE: Haddadpour et al., "Federated Learning with Compression: Unified
Analysis and Sharp Guarantees", AISTATS 2021, Algorithms 1 and 3.

    FedCOM:  w <- w - eta gamma mean_j Q_j,   Q_j = Q((w - w_j) / eta)
    GATE:    local step with g - delta_j
             after the round  delta_j <- delta_j + (1 / tau) (Q_j - mean_j Q_j)

Q quantises evenly between the smallest and the largest entry of a tensor; gamma = 1, eta the
local learning rate, tau the local steps. The mean is weighted by n_k; the paper counts clients
alike. mean_j Q_j is what the global model has moved by, divided by -eta: a client that remembers
its last download computes it from the next one, so gradient tracking costs no byte. (The paper
sends it, which doubles the downlink.)

Deviations from paper and authors' program: what, why, effect measured::

    mean_j Q_j is computed at the       its next download tells it     half the paper's downlink
      client, not sent
    delta_j moves by Q_j; authors': by  Algorithm 3                    not measured: no option
      what the client moved, unquantised,
      and they quantise the way down, too
    Q takes the nearest level; the      less error, no generator       error of an update 0.010
      theorems want it drawn                                           with 8 bits [u]
    biases and normalisation travel     1.1 % of the numbers of        0.36 bits for each entry of
      dense                             digits_resnet                  the model
    the mean is weighted by n_k         as everywhere in this package  none with equal shares
    GATE: who was absent counts the     its next download tells only   none where all take part
      mean of the rounds it missed      their sum (``Tracked``)

    [u] ‖C(u) - u‖ / ‖u‖ of what is coded with loss: update of client 0 in round 1 of FedAvg, seed
    0, digits, IID, 10 clients, batches of 16, digits_resnet
"""

from dataclasses import dataclass

import torch

from ..parts import SGD, Context, Lossy, Shifted, Step, Tensors, Update, Uplink
from ..round import Averaging
from ..wire import Uniform


def fedcom(lr: float = 0.1, bits: int = 8) -> Averaging:
    """Quantised updates, averaged."""
    return Averaging("fedcom", optimizer=SGD(lr), uplink=Uplink(Update(), Lossy(Uniform(bits))))


@dataclass(frozen=True)
class Remember(Step):
    """Keeps what was sent, and what it was the update of, until the next round."""

    words = "an uplink that remembers what it sent (Remember)"

    def sent(self, x: Tensors, sent: Tensors, ctx: Context) -> None:
        for n in set(sent) - ctx.schema.buffers:
            ctx.memory[f"sent/{n}"], ctx.memory[f"start/{n}"] = sent[n], ctx.start[n].clone()
        ctx.memory["round"] = torch.tensor(ctx.round)
        ctx.memory["steps"] = torch.tensor(ctx.steps(ctx.client))


@dataclass(frozen=True)
class Tracked(Shifted):
    """SGD on g - delta_j, together with the step ``Remember``. A client that was absent for some
    rounds takes the mean of what the model did in them."""

    needs = frozenset({Remember})

    def _shift(self, params: list[torch.Tensor], ctx: Context) -> list[torch.Tensor]:
        alone = not isinstance(ctx.memory, list)
        for i, memory in enumerate([ctx.memory] if alone else ctx.memory):
            if "round" in memory:
                start = ctx.start if alone else {n: t[i] for n, t in ctx.start.items()}
                self._track(memory, start, ctx.round)
        return ctx.kept("delta", params)

    def _track(self, memory: Tensors, start: Tensors, round: int) -> None:
        """delta_j after the round in which this client took part last. All is divided by -eta tau:
        movement of weights."""
        rounds, steps = round - int(memory["round"]), float(memory["steps"])
        for n in [key[5:] for key in memory if key.startswith("sent/")]:
            moved = (start[n] - memory[f"start/{n}"]) / rounds
            delta = (moved - memory[f"sent/{n}"]) / (self.lr * steps)
            memory[f"delta/{n}"] = memory.get(f"delta/{n}", 0) + delta


def fedcomgate(lr: float = 0.1, bits: int = 8) -> Averaging:
    """FedCOM with local gradient tracking."""
    uplink = Uplink(Update(), Remember(), Lossy(Uniform(bits)))
    return Averaging("fedcomgate", optimizer=Tracked(lr), uplink=uplink)
