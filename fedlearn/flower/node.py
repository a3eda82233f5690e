"""Flower's SuperNode for a worker: ``python node.py PARENT SHORTEST ...``, with the options of
``flower-supernode``.

Flower 1.41 lets a node without work wait three seconds before it asks again. Here it waits a tenth
of the time since its last message: at least SHORTEST seconds, at most Flower's own. And the node
ends with PARENT, the process that started it, for nobody else answers what it fetches.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class Pauses:
    """How long Flower's loop waits: its ``sleep`` takes the place of that of ``time`` there."""

    def __init__(self, shortest: float) -> None:
        self.shortest, self.last = shortest, time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait no longer than ``seconds``."""
        time.sleep(min(seconds, max(self.shortest, (time.monotonic() - self.last) / 10)))

    def noting(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        """The function that fetches a message, and the time is noted when one came."""

        def fetched(*args: Any, **more: Any) -> Any:
            found = fetch(*args, **more)
            if found is not None:
                self.last = time.monotonic()
            return found

        return fetched


def end_with(parent: int) -> None:
    """Ask this process to end once it is no longer ``parent``'s child."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Start Flower's SuperNode with these pauses."""
    parent, shortest = int(sys.argv.pop(1)), float(sys.argv.pop(1))
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli.flower_supernode import flower_supernode

    own: Any = loop
    pauses = Pauses(shortest)
    own._pull_and_store_message = pauses.noting(own._pull_and_store_message)
    own.time = SimpleNamespace(**vars(time) | {"sleep": pauses.sleep})
    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()
