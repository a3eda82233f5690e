"""Flower's SuperNode for a worker: ``python node.py SHORTEST ...``, with the options of
``flower-supernode``.

Flower 1.41 lets a node without work wait three seconds before it asks again. Here it waits a tenth
of the time since its last message: at least SHORTEST seconds, at most Flower's own. For the rest
see ``bounds``: whoever started it answers what it fetches, and nobody else does.
"""

import sys
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


def main() -> None:
    """Start Flower's SuperNode with these pauses."""
    shortest = float(sys.argv.pop(1))
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli.flower_supernode import flower_supernode

    from fedlearn.flower.bounds import bind

    bind(patience=10)  # in which it takes its leave of the server
    own: Any = loop
    pauses = Pauses(shortest)
    own._pull_and_store_message = pauses.noting(own._pull_and_store_message)
    own.time = SimpleNamespace(**vars(time) | {"sleep": pauses.sleep})
    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()
