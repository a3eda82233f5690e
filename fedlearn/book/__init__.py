"""What only chapters use: figures, tables, explorers, drawings, exercises, the class edition.

Names are loaded when first asked for: ``fedlearn.check`` needs no matplotlib.
"""

from importlib import import_module
from typing import Any

_ROOMS = {
    "carried": "bills",
    "cards": "front",
    "chapter": "setup",
    "chart": "show",
    "dirichlet_shares": "skew",
    "drawing": "drawings",
    "enter": "shootout",
    "entries": "contest",
    "errors": "losses",
    "explorer": "explorers",
    "figure": "show",
    "framed": "bills",
    "gradient_multiplier": "cells",
    "grid": "grids",
    "holds": "statements",
    "kernel_generation": "formulas",
    "ledger": "verdicts",
    "ledger_counts": "verdicts",
    "message": "inspector",
    "minutes": "front",
    "mixing": "composing",
    "mixtures": "mixes",
    "moving_boxes": "boxes",
    "kernel_rows": "pictures",
    "kernel_widths": "streams",
    "opening": "openings",
    "origin": "openings",
    "pairs": "pictures",
    "pareto": "mixes",
    "partition": "pictures",
    "positions": "coding",
    "quantiser": "coding",
    "pooled_kernel": "cells",
    "pooled_layers": "seeing",
    "ratios": "bills",
    "rivals": "contest",
    "round_time": "formulas",
    "runs": "show",
    "scenes": "boxes",
    "seen": "seeing",
    "soft_labels": "formulas",
    "styles": "setup",
    "table": "show",
    "two_parabolas": "skew",
    "usual_processor": "setup",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'fedlearn.book' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
