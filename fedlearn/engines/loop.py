"""Clients of this process: one after another, or several in one stacked step."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import WireError


class Loop:
    """Clients take turns. ``memories`` is what each of them keeps.

    One whose code raises is refused, with the error as the reason and its cause, and keeps what it
    had before."""

    def __init__(self, side: Any) -> None:
        self.side = side
        self.memories: dict[int, Any] = {}

    def ready(self, t: int, clients: Iterable[int]) -> None:
        """They always are."""

    def answer(self, t: int, client: int, data: bytes, what: str = "train") -> bytes:
        """One client's answer, bytes -> bytes."""
        memory = dict(self.memories.setdefault(client, {}))
        answer = self.side.answer(t, client, what, data, memory)
        self.memories[client] = memory
        return answer

    def _try(self, t: int, client: int, data: bytes, what: str = "train") -> bytes | WireError:
        """One client's answer, or why there is none."""
        try:
            return self.answer(t, client, data, what)
        except WireError as error:
            return error
        except Exception as error:
            refusal = WireError(f"Client {client} raised {type(error).__name__}: {error}")
            refusal.__cause__ = error
            return refusal

    def exchange(
        self, t: int, what: str, clients: Iterable[int], write: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | WireError]]:
        """See ``round.Exchange``."""
        for k in clients:
            yield k, self._try(t, k, write(k), what)


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
            answers = self._train(t, {k: write(k) for k in falling})
            yield from ((k, answers.pop(k)) for k in group)

    def _train(self, t: int, messages: dict[int, bytes]) -> dict[int, bytes | WireError]:
        memories = {k: dict(self.memories.setdefault(k, {})) for k in messages}
        try:
            answers = self.side.train_stacked(t, messages, memories, self.together)
        except Exception:  # of one of them: each by itself
            alone = {k: self._try(t, k, data) for k, data in messages.items()}
            if not any(isinstance(answer, WireError) for answer in alone.values()):
                raise  # it is the stack that fails
            return alone
        self.memories |= memories
        return answers
