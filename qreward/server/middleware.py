"""Middleware that runs before every route: it rejects requests while the server drains, checks the token, and counts responses.

It is plain ASGI, so that it costs almost nothing and never reads a body.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

from qreward.server.http_errors import HTTPError, draining
from qreward.server.request import check_caller
from qreward.server.responses import write
from qreward.server.service import Service

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
OPEN = ("/health", "/liveness")
"""Paths that need no token, because health probes have none."""
ALWAYS = (*OPEN, "/metrics")
"""Paths that are served while the server drains."""
JSON = "application/json"


def refused(refusal: HTTPError) -> Response:
    """Convert an error into a response."""
    return Response(write(refusal.document()), refusal.status, refusal.headers, JSON)


class AdmissionMiddleware:
    """Middleware around the app of a service. Paths that are not in ``routes`` are counted as ``other``."""

    def __init__(self, app: App, service: Service, routes: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._routes = routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, begun, told = scope["path"], time.perf_counter(), _Told(send, self._service)
        working = path not in ALWAYS
        if working:
            self._service.begin()
        try:
            await self._pass(scope, receive, told, path)
        finally:
            if working:
                self._service.end()
            route = path if path in self._routes else "other"
            self._service.requests.add(route, str(told.status))
            self._service.seconds.observe(time.perf_counter() - begun, route)

    async def _pass(self, scope: Any, receive: Any, send: _Told, path: str) -> None:
        try:
            if self._service.draining and path not in ALWAYS:
                raise draining()
            if path not in OPEN:
                check_caller(scope, self._service.config)
        except HTTPError as refusal:
            self._service.rejections.add(refusal.kind)
            await refused(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class _Told:
    """Forwards a response, records its status, and adds ``Connection: close`` while the server drains."""

    def __init__(self, send: Callable[[Message], Awaitable[None]], service: Service) -> None:
        self._send = send
        self._service = service
        self.status = 500  # until the app sends a status

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            if self._service.draining and not any(name == b"connection" for name, _ in headers):
                message["headers"] = [*headers, (b"connection", b"close")]
        await self._send(message)
