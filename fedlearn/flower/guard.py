"""Flower's SuperLink behind a guard: ``python guard.py LIMIT ...``, with the options of
``flower-superlink``.

Flower 1.41 serves the clients (``/v1/fleet``), its own command line (``/v1/control``) and its apps
(``/v1/runtime``) on one port, and asks only clients for a key. Whoever reaches the port could
register keys and start programs. Behind the guard other machines reach the clients' part only, and
no request of theirs may have a body of more than LIMIT bytes: a longer one is answered before it is
read.
"""

import sys
from collections.abc import Mapping
from typing import Any


class Guard:
    """ASGI middleware around the whole of Flower's application."""

    def __init__(self, app: Any, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        status = self.refusal(scope) if scope["type"] in ("http", "websocket") else None
        if status is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            start = {"status": status, "headers": [(b"connection", b"close")]}
            await send({"type": "http.response.start", **start})
            await send({"type": "http.response.body", "body": b""})

    def refusal(self, scope: Mapping[str, Any]) -> int | None:
        """The HTTP status of a request that is not let through, else ``None``."""
        if not scope["path"].startswith("/v1/fleet/"):
            own = "127.0.0.1", "::1", scope["server"][0]
            return None if scope["client"] and scope["client"][0] in own else 403
        headers = dict(scope["headers"])
        if b"transfer-encoding" in headers:  # a body whose length is not said beforehand
            return 411
        length = headers.get(b"content-length", b"0")
        return None if length.isdigit() and int(length) <= self.limit else 413


def main() -> None:
    """Start Flower's SuperLink with the guard as the first of its middleware."""
    limit = int(sys.argv.pop(1))
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    others = extensions.get_middleware
    extensions.get_middleware = lambda: [Middleware(Guard, limit=limit), *others()]
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
