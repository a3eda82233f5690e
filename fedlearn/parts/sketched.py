"""The server of FetchSGD: Rothchild et al., "FetchSGD: Communication-Efficient Federated Learning
with Sketching", ICML 2020, Algorithm 1::

    S <- mean_i S(u_i),   S_u <- m S_u + S,   S_e <- S_e + S_u
    D <- the heavy hitters of S_e,   S_e <- S_e - S(D),   w <- w + D

Momentum and error are tables like those that come in, so clients keep nothing. All of it, with
sparse steps on the way down::

    sketch, top = CountSketch(merged=True), Uplink(Update(), Lossy(TopK(1 / 64)))
    fedavg().but(uplink=Uplink(Update(), Lossy(sketch)), downlink=Replay(top),
                 server=KeptSteps(top, HeavyHitters(sketch)))
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..wire import CountSketch
from .base import Arrival, Context, Tensors
from .link import Lossy
from .server import Aggregator, Mean, summed


@dataclass(frozen=True)
class HeavyHitters(Aggregator):
    """The server's step from the sum of count sketches. ``momentum`` is m: with the paper's 0.9,
    steps add up to ten times as much, so it wants a lower learning rate. Every client counts once.
    Tensors of fewer than ``whole`` dimensions come dense, as from ``Lossy``, and are averaged."""

    sketch: CountSketch = CountSketch(merged=True)
    momentum: float = 0.0
    whole: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.sketch, CountSketch) or not self.sketch.merged:
            raise ValueError(f"What is added up are CountSketch(merged=True), not {self.sketch!r}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"Momentum is at least 0 and below 1, not {self.momentum!r}.")

    @property
    def needs(self) -> frozenset:
        return frozenset({("sketch", Lossy(self.sketch, self.whole))})

    def aggregate(self, state: Tensors, arrivals: Iterable[Arrival], ctx: Context) -> Tensors:
        names = {n for n in state.keys() - ctx.schema.buffers if state[n].dim() >= self.whole}
        tables: dict[str, tuple[torch.Tensor, int]] = {}
        rest = summed(arrivals, names, tables)
        new, memory = Mean("clients").aggregate(state, rest, ctx), ctx.memory
        for n, (total, count) in tables.items():
            u = self.momentum * memory.get(f"sketch/u/{n}", 0) + total.cpu().double() / count
            e, D = u + memory.get(f"sketch/e/{n}", 0), torch.zeros(state[n].numel())
            index, values = self.sketch.recover(e.numpy(), len(D))
            D[torch.from_numpy(index)] = torch.from_numpy(values).float()
            e = e - torch.from_numpy(self.sketch.table(D.double().numpy()))
            memory |= {f"sketch/u/{n}": u, f"sketch/e/{n}": e}
            new[n] = state[n] + D.reshape(state[n].shape).to(state[n])
        return new
