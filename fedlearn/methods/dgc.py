"""DGC: Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training", ICLR 2018.

    u <- m u + g,   v <- v + u         momentum correction and accumulation    Section 3.1, Eq. (4)
    send the entries of v that are largest in magnitude, a share ``ratio`` of each tensor
    u, v <- 0 where an entry was sent  momentum factor masking                 Section 3.2
    g <- g min(1, clip / (sqrt(N) ||g||))   local gradient clipping            Section 3.1

In federated learning g is the update of the round, after local training without momentum. Sparsity is warmed up: 75, 93.75,
98.4, 99.6 % in the first rounds, as far as ``ratio`` allows. Vectors and batch statistics travel whole.
"""

from dataclasses import dataclass, replace

import torch

from ..method import SGD, Compressed, Method
from ..wire import TopK


@dataclass(frozen=True)
class DeepGradient(Compressed):
    feedback: bool = False  # v is the memory
    momentum: float = 0.9
    clip: float = float("inf")
    warmup: int = 4

    def __post_init__(self):
        if (
            not 0 <= self.momentum < 1
            or not self.clip > 0
            or not isinstance(self.warmup, int)
            or self.warmup < 0
        ):
            raise ValueError(
                f"DGC needs 0 <= momentum < 1, clip > 0 and a whole number of warmup rounds, not {self}."
            )

    def encode(self, trained, ctx):
        g, memory = self._update(trained, ctx), ctx.memory
        lossy = [name for name in g if self.coder_for(name, ctx.schema) is self.coder]
        norm = torch.stack(torch._foreach_norm([g[n] for n in lossy])).norm() if lossy else 0
        limit = self.clip / len(ctx.participants) ** 0.5
        for n in lossy:
            u = self.momentum * memory.get(f"u/{n}", 0) + g[n] * min(
                1.0, limit / max(float(norm), 1e-30)
            )
            memory[f"u/{n}"], memory[f"v/{n}"] = u, memory.get(f"v/{n}", 0) + u
            g[n] = memory[f"v/{n}"]
        ratio = (
            max(self.coder.ratio, 0.25**ctx.round) if ctx.round <= self.warmup else self.coder.ratio
        )
        now = replace(self, coder=replace(self.coder, ratio=ratio))
        sections, sent = now.compress(g, ctx)
        for n in lossy:
            keep = sent[n] == 0
            memory[f"u/{n}"], memory[f"v/{n}"] = memory[f"u/{n}"] * keep, memory[f"v/{n}"] * keep
        return sections


def dgc(lr=0.1, ratio=1 / 32, momentum=0.9, clip=float("inf"), warmup=4):
    """``ratio`` 1/32 is that of the Fed-KGF paper; the original's is 1/1000. ``clip`` bounds the norm of a client's update,
    divided by the square root of the number of participants; by default it is off."""
    return Method(
        "dgc",
        optimizer=SGD(lr),
        uplink=DeepGradient(TopK(ratio), momentum=momentum, clip=clip, warmup=warmup),
    )
