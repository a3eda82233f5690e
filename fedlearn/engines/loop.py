"""Clients of this process: one after another, or several in one stacked step."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import WireError


class Loop:
    """Clients take turns. ``memories`` is what each of them keeps."""

    def __init__(self, side: Any) -> None:
        self.side = side
        self.memories: dict[int, Any] = {}

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """They always are."""

    def answer(self, t: int, client: int, data: bytes, what: str = "train") -> bytes:
        """One client's answer, bytes -> bytes."""
        return self.side.answer(t, client, what, data, self.memories.setdefault(client, {}))

    def exchange(
        self, t: int, what: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """See ``round.Exchange``."""
        for k in clients:
            yield k, self.answer(t, k, write(k), what)


class Stacked(Loop):
    """Clients train ``together`` so many at a time. No more messages than those of one group are
    there at once."""

    def __init__(self, side: Any, together: int) -> None:
        super().__init__(side)
        self.together = together

    def exchange(
        self, t: int, what: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        order = list(clients)
        for i in range(0, len(order), self.together):
            group = order[i : i + self.together]
            if what != "train" or len(group) == 1:
                yield from super().exchange(t, what, group, write)
                continue
            falling = sorted(group, key=lambda k: -self.side.task.sizes[k])
            memories = {k: self.memories.setdefault(k, {}) for k in falling}
            messages = {k: write(k) for k in falling}
            answers = self.side.train_stacked(t, messages, memories, self.together)
            del messages
            yield from ((k, answers.pop(k)) for k in group)
