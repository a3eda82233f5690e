"""One file a method: the paper's equations, the parts that the method replaces, and one function
that returns the ``Method``. The function raises ``ValueError`` for an option outside the range that
its docstring gives. ``base.py`` has the parts that several methods share.

In all methods ``lr`` is the learning rate of local steps, above 0; ``momentum`` is the momentum of
local SGD, at least 0 and below 1; ``server_lr`` is the learning rate of the server, above 0.

A method's notes list its deviations from the paper and the authors' program. A name in quotes, such
as "keep", is that of a form which was measured beside the default: its runs are stored as
"deviations_digits". Where the form is no option today, an older program made them. All methods
share two deviations: the mean is weighted by n_k unless an option says otherwise (with equal shares
there is no difference), and a lossy coder leaves biases and normalisation dense (0.36 bits for each
entry of digits_resnet).
"""

from collections.abc import Callable
from typing import Any

from ..core import METHODS, Method
from ..extensions import find as find_in
from .dgc import dgc
from .fed_gkt import fed_gkt
from .fed_kgf import fed_kgf, represent
from .fed_repopt import fed_repopt
from .fedavg import fedavg
from .fedcams import fedcams
from .fedcom import fedcom, fedcomgate
from .feddyn import feddyn
from .fedfusion import fedfusion
from .fedmmd import fedmmd
from .fednova import fednova
from .fedopt import fedadagrad, fedadam, fedyogi
from .fedpm import fedpm
from .fedprox import fedprox
from .local import local
from .qsgd import qsgd
from .rpn import rpn
from .scaffold import scaffold
from .signsgd import signsgd
from .smartidx import smartidx
from .split_learning import split_learning
from .stc import stc

_NAMES = """
    fedavg rpn fed_kgf fedmmd fedfusion fed_gkt fed_repopt qsgd signsgd dgc stc smartidx
    fedcom fedcomgate fedcams fedpm split_learning
    fedprox scaffold fednova fedadagrad fedyogi fedadam feddyn local
"""
METHODS.update({name: globals()[name] for name in _NAMES.split()})


def find(name: str) -> Callable[..., Method]:
    """The function that makes a method: by name, or in a file as in "mine.py:rotated"."""
    return find_in(name, METHODS, "method")


def get(name: str, **options: Any) -> Method:
    """A method by name, such as ``get("rpn", share=0.5)`` or ``get("mine.py:rotated")``."""
    return find(name)(**options)
