"""FedCOM and FedCOMGATE: Haddadpour et al., "Federated Learning with Compression: Unified Analysis and Sharp Guarantees",
AISTATS 2021, Algorithms 1 and 3.

    FedCOM:  w <- w - eta gamma mean_j Q_j,   Q_j = Q((w - w_j) / eta)
    GATE:    local step with g - delta_j;  after the round  delta_j <- delta_j + (1 / tau) (Q_j - mean_j Q_j)

Q quantises evenly between the smallest and the largest entry of a tensor; gamma = 1, eta the local learning rate, tau the
local steps. The mean is weighted by n_k; the paper counts clients alike. mean_j Q_j is what the global model has moved by,
divided by -eta: a client that remembers its last download computes it from the next one, so gradient tracking costs no
byte. (The paper sends it, which doubles the downlink.)
"""

from dataclasses import dataclass

import torch

from ..method import SGD, Compressed, Method
from ..wire import Uniform


def fedcom(lr=0.1, bits=8):
    """Quantised updates, averaged."""
    return Method("fedcom", optimizer=SGD(lr), uplink=Compressed(Uniform(bits), feedback=False))


@dataclass(frozen=True)
class Tracked(SGD):
    """SGD on g - delta_j, together with the uplink ``Remembered``. A client that was absent for some rounds takes the mean
    of what the model did in them."""

    def __post_init__(self):
        super().__post_init__()
        if self.decay != 1:
            raise ValueError(
                f"Gradient tracking needs a constant learning rate: decay 1, not {self.decay!r}."
            )

    def init(self, params, ctx):
        state, memories = (
            super().init(params, ctx),
            ctx.memory if isinstance(ctx.memory, list) else [ctx.memory],
        )
        if not any("round" in memory for memory in memories):  # nobody has taken part before
            return state | {"delta": [torch.zeros_like(p) for p in params]}
        for i, memory in enumerate(memories):
            if "round" in memory:
                self.track(
                    memory,
                    ctx.start
                    if memories[0] is ctx.memory
                    else {n: t[i] for n, t in ctx.start.items()},
                    ctx,
                )
        names = [n for n in ctx.start if n not in ctx.schema.buffers]
        rows = [
            [m.get(f"delta/{n}", torch.zeros_like(ctx.initial[n])) for m in memories] for n in names
        ]
        return state | {
            "delta": [
                torch.stack(row).reshape(p.shape) for row, p in zip(rows, params, strict=True)
            ]
        }

    def track(self, memory, start, ctx):
        """delta_j after the round in which this client took part last. All is divided by -eta tau: movement of weights."""
        rounds, steps = ctx.round - int(memory["round"]), float(memory["steps"])
        for n in [key[5:] for key in memory if key.startswith("sent/")]:
            moved = (start[n] - memory[f"start/{n}"]) / rounds
            delta = (moved - memory[f"sent/{n}"]) / (self.lr * steps)
            memory[f"delta/{n}"] = memory.get(f"delta/{n}", 0) + delta

    def step(self, params, grads, state):
        super().step(params, torch._foreach_sub(grads, state["delta"]), state)


@dataclass(frozen=True)
class Remembered(Compressed):
    """Keeps what was sent, and what it was the update of, until the next round."""

    def encode(self, trained, ctx):
        sections, sent = self.compress(self._update(trained, ctx), ctx)
        for n in set(sent) - ctx.schema.buffers:
            ctx.memory[f"sent/{n}"], ctx.memory[f"start/{n}"] = sent[n], ctx.start[n].clone()
        E, B, samples = ctx.settings.epochs, ctx.settings.batch_size, ctx.task.sizes[ctx.client]
        ctx.memory |= {
            "round": torch.tensor(ctx.round),
            "steps": torch.tensor(E * -(-samples // B)),
        }
        return sections


def fedcomgate(lr=0.1, bits=8):
    """FedCOM with local gradient tracking."""
    return Method(
        "fedcomgate", optimizer=Tracked(lr), uplink=Remembered(Uniform(bits), feedback=False)
    )
