"""What both of Flower's programs run with here: connections that cannot stay for ever, and an end
with the process that started them.

Flower 1.41 serves HTTP by uvicorn, which takes httptools where it is installed: a head may then be
endless, and who is slow may stay. Here uvicorn takes h11, which bounds the head, and each step of a
request has its time, as in Apache's mod_reqtimeout.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any

import h11
import uvicorn.config
from uvicorn.protocols.http.h11_impl import H11Protocol

STEP = 20.0  # seconds for the head of a request, and for each part of a body or of an answer
RATE = 500  # bytes a second, as many as must come of a body
MOST = 500  # connections


class Bounded(H11Protocol):  # type: ignore[misc]
    """One connection. It is closed if a head takes too long, a body comes too slowly, or an answer
    is not read; and if there are too many, the one that has waited for a head for the longest
    time."""

    def connection_made(self, transport: Any) -> None:
        """Begin; make room if there is none."""
        self.clocks: dict[str, asyncio.TimerHandle] = {}
        self.step: Any = None  # of the request that is under way
        self.since, self.came = self.loop.time(), 0
        super().connection_made(transport)
        self.look()
        if len(self.connections) > MOST:
            waiting = [c for c in self.connections if c.step[0] is h11.IDLE]
            min(waiting, key=lambda c: c.since, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self.stop("request")
        self.stop("answer")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes."""
        self.came += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        """What has come is taken in; then another step of the request may be under way."""
        super().handle_events()
        self.look()

    def look(self) -> None:
        """Give the step that is under way its time. The server's own work has as long as it
        takes."""
        step = self.conn.their_state, self.cycle
        if step != self.step:
            self.step, self.since = step, self.loop.time()
            self.stop("request")
            if step[0] in (h11.IDLE, h11.SEND_BODY):
                self.start("request")

    def pause_writing(self) -> None:
        """The other side does not read."""
        super().pause_writing()
        self.start("answer")

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self.stop("answer")

    def start(self, clock: str) -> None:
        """Give it time from now on."""
        self.stop(clock)
        self.came = 0
        self.clocks[clock] = self.loop.call_later(STEP, self.late, clock)

    def late(self, clock: str) -> None:
        """Close the connection, unless enough of a body has come; but in a second, in which what
        waits to be read is: the machine may have slept."""
        if clock == "request" and self.step[0] is h11.SEND_BODY and self.came >= STEP * RATE:
            self.start(clock)
        else:
            self.clocks[clock] = self.loop.call_later(1, self.transport.abort)

    def stop(self, clock: str) -> None:
        """Take the time back."""
        if clock in self.clocks:
            self.clocks.pop(clock).cancel()


def bind(patience: float) -> None:
    """Serve within these bounds in this process, and end it when its standard input does: whoever
    started it holds the other end, and a killed process holds nothing. For so many seconds it may
    end as it likes."""
    uvicorn.config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{Bounded.__name__}"
    uvicorn.config.WS_PROTOCOLS["auto"] = None

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        if patience:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(patience)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
