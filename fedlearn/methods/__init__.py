"""One file a method. Each holds the parts that the method replaces and one function that returns the ``Method``."""

from ..errors import pick
from .fedavg import fedavg
from .rpn import rpn

METHODS = {f.__name__: f for f in (fedavg, rpn)}

__all__ = ["METHODS", *METHODS, "get"]


def get(name, **options):
    """A method by name, such as ``get("rpn", share=0.5)``."""
    return pick(name, METHODS, "method")(**options)
