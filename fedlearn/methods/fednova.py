"""FedNova: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020, section 4::

    d_i = (x - y_i) / ||a_i||_1             the mean direction of client i's tau_i local steps
    x <- x - tau_eff sum_i p_i d_i          tau_eff = sum_i p_i ||a_i||_1,   p_i = n_i / n

||a_i||_1 = tau_i for SGD; with momentum rho it is (tau_i - rho (1 - rho^tau_i) / (1 - rho)) /
(1 - rho). FedAvg is sum_i p_i (x - y_i), which lets a client count for more the more steps it
takes. The local learning rate is part of d_i here. Batch statistics are averaged as they are.
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
from ..errors import check_number
from .base import mean_update


@dataclass(frozen=True)
class Normalised(Aggregator):
    """The mean direction of the clients times tau_eff; ``momentum`` is that of their SGD."""

    needs = (Update,)

    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_number("momentum", self.momentum, minimum=0, below=1)

    def _norm(self, tau: int) -> float:
        """||a_i||_1: an entry of a_i is the weight of a local gradient in the update."""
        rho = self.momentum
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)

    def aggregate(self, state: Tensors, arrivals: Arrivals, ctx: Context) -> Tensors:
        n = ctx.task.sizes
        a: dict[int, float] = {}

        def directions() -> Iterator[Arrival]:
            for arrival in arrivals:
                i = arrival.client
                a[i] = self._norm(ctx.steps(i))
                d_i = dict(arrival.update)
                for name in d_i.keys() - ctx.schema.buffers:
                    d_i[name] = d_i[name] / a[i]
                yield arrival._replace(update=d_i)

        d, _ = mean_update(state, directions(), ctx)
        weighted = sum(n[i] * a[i] for i in a)
        tau_eff = weighted / sum(n[i] for i in a)
        for name in d.keys() - ctx.schema.buffers:
            d[name] = tau_eff * d[name]
        return {name: x + d[name] for name, x in state.items()}


def fednova(lr: float = 0.1, momentum: float = 0.0) -> Averaging:
    """FedNova, Wang et al. (2020), section 4: normalised averaging.

    With ``but(optimizer=...)`` the optimizer must be SGD whose momentum is that of ``Normalised``,
    or ||a_i||_1 is wrong.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * tau_i is not sent, the server knows n_i, B and E: no byte more than FedAvg
    * no proximal term, no momentum of the server; not measured: the rule does not have them
    """
    return Averaging(
        "fednova", optimizer=SGD(lr, momentum), server=Normalised(momentum)
    )
