"""The bar that a run shows."""

import sys
from typing import Any


def progress_bar(name: str, done: int, rounds: int, show: bool | None) -> Any:
    """A bar, of text on a terminal and a widget in a notebook, unless ``show`` says otherwise."""
    from importlib.util import find_spec

    kernel = hasattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel")
    if kernel and find_spec("ipywidgets"):
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

    if show is None:
        show = kernel or sys.stderr.isatty()
    return tqdm(initial=done, total=rounds, desc=name, unit="round", disable=not show, leave=False)
