"""One file a method. Each holds the parts that the method replaces and one function that returns the ``Method``."""

from ..errors import pick
from .dgc import dgc
from .fed_gkt import fed_gkt
from .fed_kgf import fed_kgf, represent, write_out
from .fed_repopt import fed_repopt, search
from .fedavg import fedavg
from .fedcams import fedcams
from .fedcom import fedcom, fedcomgate
from .fedfusion import fedfusion
from .fedmmd import fedmmd
from .fedpm import fedpm
from .qsgd import qsgd
from .rpn import rpn
from .signsgd import signsgd
from .smartidx import smartidx
from .split_learning import split_learning
from .stc import stc

METHODS = {
    f.__name__: f
    for f in (
        fedavg,
        rpn,
        fed_kgf,
        fedmmd,
        fedfusion,
        fed_gkt,
        fed_repopt,
        qsgd,
        signsgd,
        dgc,
        stc,
        smartidx,
        fedcom,
        fedcomgate,
        fedcams,
        fedpm,
        split_learning,
    )
}

__all__ = ["METHODS", *METHODS, "get", "represent", "search", "write_out"]


def get(name, **options):
    """A method by name, such as ``get("rpn", share=0.5)``."""
    return pick(name, METHODS, "method")(**options)
