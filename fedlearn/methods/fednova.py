"""FedNova: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020, section 4::

    d_i = (x - y_i) / ||a_i||_1             the mean direction of client i's tau_i local steps
    x <- x - tau_eff sum_i p_i d_i          tau_eff = sum_i p_i ||a_i||_1,   p_i = n_i / n

||a_i||_1 = tau_i for SGD without momentum. FedAvg is sum_i p_i (x - y_i): a client counts for more
the more steps it takes. The local learning rate is part of d_i here. Batch statistics are averaged
as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ..core import (
    SGD,
    Aggregator,
    Arrival,
    Arrivals,
    Averaging,
    Context,
    Tensors,
    Update,
)
from .base import mean_update


@dataclass(frozen=True)
class Normalised(Aggregator):
    """The mean direction of the clients times tau_eff."""

    needs = (Update,)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        n = ctx.task.sizes
        tau: dict[int, int] = {}

        def directions() -> Iterator[Arrival]:
            for arrival in arrivals:
                i = arrival.client
                tau[i] = ctx.steps(i)
                d_i = dict(arrival.update)
                for name in d_i.keys() - ctx.schema.buffers:
                    d_i[name] = d_i[name] / tau[i]
                yield arrival._replace(update=d_i)

        d, _ = mean_update(state, directions(), ctx)
        weighted = sum(n[i] * tau[i] for i in tau)
        tau_eff = weighted / sum(n[i] for i in tau)
        for name in d.keys() - ctx.schema.buffers:
            d[name] = tau_eff * d[name]
        return {name: x + d[name] for name, x in state.items()}


def fednova(lr: float = 0.1) -> Averaging:
    """FedNova, Wang et al. (2020), section 4: normalised averaging.

    With ``but(optimizer=...)`` the optimizer must be SGD without momentum, or ||a_i||_1 is wrong.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * tau_i is not sent, the server knows n_i, B and E: no byte more than FedAvg
    * no momentum of clients or server, no proximal term; not measured: no option
    """
    return Averaging("fednova", optimizer=SGD(lr), server=Normalised())
