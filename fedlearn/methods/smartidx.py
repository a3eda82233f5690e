"""SmartIdx: Wu et al., "SmartIdx: Reducing Communication Cost in Federated Learning by Exploiting
the CNNs Structures", AAAI 2022.

The largest entries of update + residual are sent as signs and one magnitude, and their indices
are made cheap: kernels of which most entries were selected go whole under one index, kernels that
share a pattern of signs share it, and the rest goes entry by entry. The thresholds of the
selection are our reading (see ``fedlearn.wire.SmartIdx``).
"""

from ..core import SGD, Averaging, Feedback, Lossy, Update, Uplink
from ..wire import SmartIdx


def smartidx(lr: float = 0.1, ratio: float = 1 / 32) -> Averaging:
    """SmartIdx, Wu et al. (2022): signs of the largest entries, with cheap indices.

    Parameters
    ----------
    ratio : float
        Share of entries sent, above 0 and at most 1; 1/32 is the Fed-KGF paper's.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * a kernel goes whole if more than half of it was selected, our reading: client 0's first update
      in FedAvg 1.74 kB, error ‖C(u) - u‖ / ‖u‖ 0.87; with 0.2 1.68 kB and 0.88; "full 0.2"
    * two kernels with one pattern share it; not measured: no option, and equal entries are sent
    """
    uplink = Uplink(Update(), Feedback(), Lossy(SmartIdx(ratio)))
    return Averaging("smartidx", optimizer=SGD(lr), uplink=uplink)
