"""STC: Sattler et al., "Robust and Communication-Efficient Federated Learning From Non-i.i.d.
Data", IEEE TNNLS 2020, Algorithm 2.

    client:  send T(u_i + e_i),   e_i <- u_i + e_i - T(u_i + e_i)
    server:  W <- W + s,   s = T(mean_i + e),   e <- mean_i + e - s,   and s is sent

T keeps the share ``ratio`` of entries that are largest in magnitude and replaces each by + or -
their mean magnitude. A client receives steps, not a model. After missed rounds it receives their
steps one after the other, or the whole model where that is shorter.
"""

from ..core import SGD, Averaging, Feedback, Lossy, Update, Uplink
from ..wire import TopK
from .replay import KeptSteps, Replay


def stc(lr: float = 0.1, ratio: float = 1 / 32) -> Averaging:
    """STC, Sattler et al. (2020), Algorithm 2: sparse ternary compression both ways.

    Parameters
    ----------
    ratio : float
        Share of entries sent in both directions, above 0 and at most 1.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * each tensor is coded by itself: 0.26 bits an entry at 1/32, as one long vector 0.23
    * a late client gets the model if that is shorter, the paper sends all steps
    """
    link = Uplink(Update(), Feedback(), Lossy(TopK(ratio, "sign")))
    return Averaging(
        "stc",
        optimizer=SGD(lr),
        uplink=link,
        downlink=Replay(link),
        server=KeptSteps(link),
    )
