"""The FastAPI app: its routes, the middleware before them, and exception handlers. ``Service`` implements the routes."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from qreward import __version__
from qreward.errors import ConfigError
from qreward.server import forms
from qreward.server.config import ServerConfig, is_loopback
from qreward.server.http_errors import HTTPError, draining
from qreward.server.metrics import CONTENT_TYPE
from qreward.server.responses import write
from qreward.server.service import ClientDisconnected, Read, Service

OPEN = ("/health", "/liveness")
"""Paths that need no token, because health probes send no token."""
ALWAYS = (*OPEN, "/metrics")
"""Paths that are served while the server drains, that is, while it finishes the last requests before it stops."""
JSON = "application/json"
_CLIENT_CLOSED = 499
"""HTTP status under which a request is counted if the caller closed the connection. nginx uses the same number. No caller receives this
status."""
SCORING: dict[str, tuple[Read, tuple[type[msgspec.Struct], ...]]] = {
    "/get_reward": (forms.read_get_reward, (forms.OpenRlhfBody, forms.BufferBody)),
    "/classify": (forms.read_classify, (forms.ClassifyBody,)),
    "/score": (forms.read_score, (forms.ScoreBody,)),
    "/v1/score": (forms.read_score, (forms.ScoreBody,)),
}
"""Path -> function that parses the body, and types of the accepted bodies."""


def create_app(scorer: Any, config: ServerConfig | None = None, **settings: Any) -> FastAPI:
    """Create an ASGI app that scores with a function, in batches, through the APIs of OpenRLHF, MolGenDocking and vLLM.

    Args:
        scorer: function of the form ``scorer(completions: list[str], metadata: list[dict]) -> rewards``; see ``RewardBuffer``.
        config: the settings.
        settings: the settings as keyword arguments, instead of ``config``; see :class:`ServerConfig`.

    Raises:
        ConfigError: a setting is invalid, or both ``config`` and ``settings`` were passed.
        TypeError: the scorer cannot be called with these arguments.

    Example:
        app = create_app(scorer, max_batch_size=32)    # then: uvicorn module:app
    """
    if config is not None and settings:
        raise ConfigError("pass config or settings, not both")
    service = Service(scorer, config or ServerConfig(**settings))
    status_routes = _status_routes(service)
    app = FastAPI(title="qreward", version=__version__, docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.qreward = service
    app.add_middleware(AdmissionMiddleware, service=service, routes=frozenset((*SCORING, *status_routes)))
    for kind, handler in ((HTTPError, _refuse), (ClientDisconnected, _client_closed), (HTTPException, _no_route), (Exception, _failed)):
        app.add_exception_handler(kind, handler)
    for path, (read, bodies) in SCORING.items():
        app.add_api_route(path, _scoring(service, read), methods=["POST"], openapi_extra=_described(bodies), name=path.strip("/"))
    for path, status in status_routes.items():
        app.add_api_route(path, status, methods=["GET"], response_class=Response, name=path.strip("/"))
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    try:
        yield
    finally:
        if not app.state.qreward.draining:
            await app.state.qreward.drain()


def _scoring(service: Service, read: Read) -> Callable[[Request], Any]:
    async def rewards(request: Request) -> Response:
        return Response(await service.rewards(request, read), media_type=JSON)

    return rewards


def _status_routes(service: Service) -> dict[str, Callable[[], Any]]:

    async def health() -> Response:
        status = ("draining", 503) if service.draining else ("ok", 200)
        return Response(write({"status": status[0]}), status[1], media_type=JSON)

    async def models() -> Response:
        model = {"id": service.config.model, "object": "model", "created": 0, "owned_by": "qreward"}
        return Response(write({"object": "list", "data": [model]}), media_type=JSON)

    async def metrics() -> Response:
        return Response(service.metrics(), media_type=CONTENT_TYPE)

    return {"/health": health, "/liveness": health, "/v1/models": models, "/metrics": metrics}


def _described(bodies: tuple[type[msgspec.Struct], ...]) -> dict[str, Any]:
    schemas = [msgspec.json.schema(body)["$defs"][body.__name__] for body in bodies]
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}}}


class AdmissionMiddleware:
    """Rejects requests while the server drains, checks the token, and counts responses."""

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
            service.seconds.add(route, amount=time.perf_counter() - begun)

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


def check_caller(scope: Mapping[str, Any], config: ServerConfig) -> None:
    if config.token is None:
        host = (scope.get("server") or ("",))[0]
        is_address = host[:1].isdigit() or ":" in host  # False for a name, or for the path of a Unix socket
        if is_address and not is_loopback(host):
            message = "a server without a token answers only requests from its own machine; set token in its configuration"
            raise HTTPError(403, "forbidden", message)
        return
    given = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
    scheme, _, token = given.partition(b" ")
    right = hmac.compare_digest(token.strip(), config.token.get_secret_value().encode())
    if scheme.lower() != b"bearer" or not right:
        raise HTTPError(401, "unauthorized", "send the server's token as 'Authorization: Bearer ...'", {"www-authenticate": "Bearer"})


def error_response(error: HTTPError) -> Response:
    return Response(write(error.document()), error.status, error.headers, JSON)


async def _refuse(request: Request, error: Any) -> Response:
    request.app.state.qreward.rejections.add(error.kind)
    return error_response(error)


async def _client_closed(request: Request, error: Any) -> Response:  # noqa: ARG001 - the signature of exception handlers
    return Response(status_code=_CLIENT_CLOSED)


async def _no_route(request: Request, error: Any) -> Response:
    kind = "method_not_allowed" if error.status_code == 405 else "not_found"
    message = f"there is no route {request.method} {request.url.path}"
    return error_response(HTTPError(error.status_code, kind, message, dict(error.headers or {})))


async def _failed(request: Request, error: Any) -> Response:  # noqa: ARG001
    """Return the response to an unexpected error. Starlette raises the error again, so it is logged."""
    return error_response(HTTPError(500, "internal_error", f"the server failed with a {type(error).__name__}; see its log"))
