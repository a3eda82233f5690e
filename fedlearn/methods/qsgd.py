"""QSGD: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017.

    Q(x_i) = ||x||_2 sign(x_i) xi_i / s,   xi_i = s |x_i| / ||x||_2 rounded up or down at random    Section 3.1

The rounding is unbiased, E[Q(x)] = x, so nothing needs to be remembered. The norm is taken over buckets of entries (Section 4).
"""

from ..method import SGD, Compressed, Method
from ..wire import QSGD


def qsgd(lr=0.1, levels=127, bucket=512, entropy=False):
    """``levels`` is s: 127 fits into 8 bits an entry with its sign. ``entropy`` codes the levels by how often they occur, in
    place of the paper's Elias code."""
    return Method(
        "qsgd", optimizer=SGD(lr), uplink=Compressed(QSGD(levels, bucket, entropy), feedback=False)
    )
