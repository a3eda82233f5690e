"""What only chapters use: figures, tables, explorers, exercises, the class edition.

A chapter's module has its explorers, its drawings and the checks of its exercises.
Names are loaded when first asked for: ``fedlearn.check`` needs no matplotlib.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "claims": "by_label ends holds ledger ledger_counts opening reached",
    "check": "course given seed",
    "choosing": "entries rivals standing",
    "explorers": "explore explorer",
    "drawings": "drawing",
    "fed_gkt": "crossing painted twenty_rounds watch_maps who_teaches",
    "fed_kgf": "beside_paper equal_bytes more_training watch_round",
    "fed_repopt": "grown",
    "fedavg": "train",
    "flower": "engine_rows first_messages watch_message",
    "grids": "grid",
    "heterogeneity": "dirichlet_shares",
    "index": "cards everything_and_a_tenth methods_map minutes",
    "pictures": "kernel_rows partition",
    "play": "playground ring",
    "rpn": "frozen seven_kernels watch_kernel",
    "seeing": (
        "answering found_boxes learned moving_boxes pooled_layers "
        "real_masks seen steer_box"
    ),
    "sends": "reasons totals two_networks",
    "setup": "chapter styles",
    "show": "chart figure runs table",
    "wire": "watch_update",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedlearn.book' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
