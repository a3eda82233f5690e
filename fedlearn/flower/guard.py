"""Flower's SuperLink behind a guard: ``python guard.py LIMIT SECRET ...``, with the options of
``flower-superlink``.

Flower 1.41 serves the clients (``/v1/fleet``), its own command line (``/v1/control``) and its apps
(``/v1/runtime``) on one port, and asks only clients for a key. Whoever reaches the port, from
another machine or another account of this one, could register keys and start programs. Behind the
guard all but the clients' part is for those who know what is in the file SECRET. And no request of
the others may have a body of more than LIMIT bytes, or a head of more than h11 takes piece by
piece: it is answered before it is read. For the rest see ``bounds``.
"""

import hmac
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SECRET = "x-fedlearn-secret"  # the header of requests that are not a client's
HEAD = 16 * 1024, 100  # bytes of a head, and its lines


class Guard:
    """ASGI middleware around the whole of Flower's application."""

    def __init__(self, app: Any, limit: int, secret: str) -> None:
        self.app, self.limit, self.secret = app, limit, secret.encode()

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        status = self.refusal(scope) if scope["type"] == "http" else None
        if status is None:
            await self.app(scope, receive, send)
        else:
            start = {"status": status, "headers": [(b"connection", b"close")]}
            await send({"type": "http.response.start", **start})
            await send({"type": "http.response.body", "body": b""})

    def refusal(self, scope: Mapping[str, Any]) -> int | None:
        """The HTTP status of a request that is not let through, else ``None``."""
        headers = dict(scope["headers"])
        size = len(scope["path"]) + sum(len(name) + len(text) for name, text in scope["headers"])
        if size > HEAD[0] or len(scope["headers"]) > HEAD[1]:
            return 431
        if not scope["path"].startswith("/v1/fleet/"):
            known = hmac.compare_digest(headers.get(SECRET.encode(), b""), self.secret)
            return None if known else 403
        if b"transfer-encoding" in headers:  # a body whose length is not said beforehand
            return 411
        length = headers.get(b"content-length", b"0")
        return None if length.isdigit() and int(length) <= self.limit else 413


def main() -> None:
    """Start Flower's SuperLink with the guard as the first of its middleware."""
    limit, secret = int(sys.argv.pop(1)), Path(sys.argv.pop(1)).read_bytes().hex()
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    from fedlearn.flower.bounds import bind

    bind(patience=0)  # with the port
    others = extensions.get_middleware
    extensions.get_middleware = lambda: [Middleware(Guard, limit=limit, secret=secret), *others()]
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
