"""Middleware that runs before every route: it rejects requests while the server drains, checks the token, and counts responses.

It is plain ASGI, so that it costs almost nothing and never reads a body.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from qreward.server.admission import check_caller
from qreward.server.http_errors import HTTPError, draining
from qreward.server.responses import write
from qreward.server.service import Service

OPEN = ("/health", "/liveness")
"""Paths that need no token, because health probes have none."""
ALWAYS = (*OPEN, "/metrics")
"""Paths that are served while the server drains."""
JSON = "application/json"


def error_response(error: HTTPError) -> Response:
    return Response(write(error.document()), error.status, error.headers, JSON)


class AdmissionMiddleware:
    """Middleware around the app of a service. Paths that are not in ``routes`` are counted as ``other``."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]], service: Service, routes: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._routes = routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, begun, service, status = scope["path"], time.perf_counter(), self._service, 500  # until the app sends a status

        async def counted_send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                if service.draining and not any(name == b"connection" for name, _ in headers):
                    message["headers"] = [*headers, (b"connection", b"close")]
            await send(message)

        if path not in ALWAYS:
            service.begin()
        try:
            await self._pass(scope, receive, counted_send, path)
        finally:
            if path not in ALWAYS:
                service.end()
            route = path if path in self._routes else "other"
            service.requests.add(route, str(status))
            service.seconds.observe(time.perf_counter() - begun, route)

    async def _pass(self, scope: Any, receive: Any, send: Any, path: str) -> None:
        try:
            if self._service.draining and path not in ALWAYS:
                raise draining()
            if path not in OPEN:
                check_caller(scope, self._service.config)
        except HTTPError as error:
            self._service.rejections.add(error.kind)
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)
