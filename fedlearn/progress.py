"""The bar that a run shows, and lines where nobody could see one move."""

import sys
import time
from typing import Any

EVERY = 10.0  # seconds at least between two lines


class Lines:
    """What the bar says, for a log: a line when a run begins, and one a round but not more often
    than ``EVERY``."""

    def __init__(self, name: str, done: int, rounds: int) -> None:
        self.name, self.done, self.rounds, self.reached = name, done, rounds, ""
        self.say()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def say(self) -> None:
        """The line."""
        self.last = time.monotonic()
        line = f"{self.name}: {self.done} of {self.rounds} rounds{self.reached}"
        print(line, file=sys.stderr, flush=True)

    def set_postfix(self, **numbers: str) -> None:
        """What the next line ends in."""
        self.reached = "".join(f", {name} {number}" for name, number in numbers.items())

    def update(self) -> None:
        """A round is done."""
        self.done += 1
        if time.monotonic() - self.last >= EVERY:
            self.say()


def progress_bar(name: str, done: int, rounds: int, show: bool | None) -> Any:
    """A bar, of text on a terminal and a widget in a notebook, if ``show`` is not False; lines
    elsewhere, if it is True."""
    from importlib.util import find_spec

    kernel = hasattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel")
    seen = kernel or sys.stderr.isatty()
    if show and not seen:
        return Lines(name, done, rounds)
    if kernel and find_spec("ipywidgets"):
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

    hide = not (seen if show is None else show)
    return tqdm(initial=done, total=rounds, desc=name, unit="round", disable=hide, leave=False)
