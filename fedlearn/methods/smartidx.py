"""SmartIdx: Wu et al., "SmartIdx: Reducing Communication Cost in Federated Learning by Exploiting the CNNs Structures", AAAI 2022.

The largest entries of update + residual are sent as signs and one magnitude, and their indices are made cheap: kernels of
which most entries were selected go whole under one index, kernels that share a pattern of signs share it, and the rest goes
entry by entry. The thresholds of the selection are our reading (see ``fedlearn.wire.SmartIdx``).
"""

from ..method import SGD, Compressed, Method
from ..wire import SmartIdx


def smartidx(lr=0.1, ratio=1 / 32):
    """``ratio`` 1/32 is that of the Fed-KGF paper."""
    return Method("smartidx", optimizer=SGD(lr), uplink=Compressed(SmartIdx(ratio)))
