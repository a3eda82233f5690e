"""The bar that a run shows."""

import sys
from typing import Any


def progress_bar(name: str, done: int, rounds: int, show: bool | None) -> Any:
    """A text bar, shown on a terminal or in a notebook unless ``show`` says otherwise."""
    from tqdm import tqdm

    if show is None:
        ipython = sys.modules.get("IPython")
        show = sys.stderr.isatty() or hasattr(ipython and ipython.get_ipython(), "kernel")
    return tqdm(initial=done, total=rounds, desc=name, unit="round", disable=not show, leave=False)
