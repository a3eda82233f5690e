"""QSGD: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NeurIPS 2017.

    Q(x_i) = ||x||_2 sign(x_i) xi_i / s,   xi_i = s |x_i| / ||x||_2 rounded up or down at random

(Section 3.1). The rounding is unbiased, E[Q(x)] = x, so nothing needs to be remembered. The norm is
taken over buckets of entries (Section 4).
"""

from ..core import SGD, Averaging, Lossy, Update, Uplink
from ..wire import QSGD


def qsgd(lr: float = 0.1, levels: int = 127) -> Averaging:
    """QSGD, Alistarh et al. (2017), sections 3.1 and 4.

    Parameters
    ----------
    levels : int
        s, at least 1; 127 fits into 8 bits an entry with its sign.

    Notes
    -----
    Deviations from paper and authors' program, and their effect:

    * g is the update of a round; not measured: a message a batch is another setting
    * one norm for every 512 entries: error ‖C(u) - u‖ / ‖u‖ of client 0's first update in FedAvg
      0.06, with one norm a tensor 0.19; "one norm"
    * fixed width, not Elias' code: 8.06 bits an entry, with a range code (``wire.QSGD``) 4.68
    """
    uplink = Uplink(Update(), Lossy(QSGD(levels)))
    return Averaging("qsgd", optimizer=SGD(lr), uplink=uplink)
