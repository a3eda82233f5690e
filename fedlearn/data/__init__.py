"""The data: ``makers`` make what a task takes of one's own, ``sources`` finds and loads
a set by its name, ``partition`` says which client holds which sample."""

from importlib import import_module
from typing import Any

_NAMES = {
    "makers": "arrays clients dataset table",
    "sources": "Source",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """``arrays`` and the others, loaded when they are first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"fl.data has no {name!r}, but {', '.join(__all__)}.")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
