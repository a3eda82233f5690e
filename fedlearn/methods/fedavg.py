"""Federated averaging: McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1.

    server:  w_{t+1} = w_t + sum_{k in S_t} (n_k / n) u_k,     n = sum_{k in S_t} n_k
    client:  u_k = w_k - w_t after E epochs of minibatch SGD from w_t

The update form is the average of the models written differently,
sum (n_k / n) w_k = w_t + sum (n_k / n) (w_k - w_t). Batch statistics are averaged with the same
weights.
"""

from ..core import SGD, Averaging


def fedavg(lr: float = 0.1, momentum: float = 0.0) -> Averaging:
    """Federated averaging, McMahan et al. (2017), Algorithm 1: all parts are the defaults.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * batch statistics are averaged, too; not measured: without, the server's network has none
    * clients with few images have short batches; not measured: there is nothing to compare with
    """
    return Averaging("fedavg", optimizer=SGD(lr, momentum))
