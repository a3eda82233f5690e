"""Federated averaging: McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1.

    server:  w_{t+1} = w_t + sum_{k in S_t} (n_k / n) u_k,     n = sum_{k in S_t} n_k
    client:  u_k = w_k - w_t after E epochs of minibatch SGD from w_t

The update form is the average of the models written differently,
sum (n_k / n) w_k = w_t + sum (n_k / n) (w_k - w_t). Batch statistics are averaged with the same
weights.

Deviations from paper and authors' program: what, why, effect measured::

    batch statistics are averaged,      the paper's networks have      not measured: without, the
      too                               none                           server's network has none
    clients with few images have        the paper says nothing of it   not measured: there is
      short batches                                                    nothing to compare with
"""

from ..parts import SGD
from ..round import Averaging


def fedavg(lr: float = 0.1, momentum: float = 0.0) -> Averaging:
    """The six defaults: the task's network and loss, SGD, dense both ways, the mean by n_k."""
    return Averaging("fedavg", optimizer=SGD(lr, momentum))
