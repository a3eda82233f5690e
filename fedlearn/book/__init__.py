"""What only chapters use: figures, tables, explorers, drawings, exercises, the class edition.

A chapter's module has its explorers, its drawings and the checks of its exercises. Names are loaded
when first asked for: ``fedlearn.check`` needs no matplotlib.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "claims": "difference holds ledger ledger_counts opening origin",
    "compose": "mixing mixtures pareto",
    "drawings": "cards drawing",
    "explorers": "explore explorer",
    "fed_gkt": "soft_labels",
    "fed_kgf": "kernel_generation",
    "fed_mmd_fusion": "kernel_widths",
    "fed_repopt": "gradient_multiplier",
    "fedavg": "round_time two_bowls",
    "flower": "carried framed",
    "front": "minutes",
    "grids": "grid",
    "loop": "train",
    "heterogeneity": "dirichlet_shares two_parabolas",
    "pictures": "kernel_rows pairs partition",
    "rpn": "frozen pooled_kernel seven_kernels watch_kernel",
    "seeing": "moving_boxes pooled_layers scenes seen",
    "setup": "chapter styles usual_processor",
    "shootout": "enter entries rivals",
    "show": "chart figure runs table",
    "speed": "ratios",
    "wire": "errors message positions quantiser",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedlearn.book' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
