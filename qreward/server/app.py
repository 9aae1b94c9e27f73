"""The ASGI app: its routes, the token, the counting of responses, and the responses to errors. ``Service`` implements the routes."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from qreward import __version__
from qreward.errors import ConfigError
from qreward.server import forms
from qreward.server.config import ServerConfig, is_loopback
from qreward.server.http_errors import HTTPError, draining
from qreward.server.metrics import CONTENT_TYPE
from qreward.server.responses import write
from qreward.server.service import ClientDisconnected, Read, Receive, Service

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
"""Path of POST requests -> function that parses the body, and types of the accepted bodies."""
STATUS = (*ALWAYS, "/v1/models", "/openapi.json")
"""Paths of GET requests."""


class HTTPResponse(NamedTuple):
    """A response. ``content_type`` is that of the body."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = {}


def create_app(scorer: Any, config: ServerConfig | None = None, **settings: Any) -> RewardApp:
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
    return RewardApp(Service(scorer, config or ServerConfig(**settings)))


class RewardApp:
    """A reward server as an ASGI application."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            if not self.service.draining:
                await self.service.drain()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _http(self, scope: Any, receive: Receive, send: Any) -> None:
        path, begun, service, status = scope["path"].removeprefix(scope.get("root_path", "")), time.perf_counter(), self.service, 500
        if path not in ALWAYS:
            service.begin()
        try:
            failure: Exception | None = None
            try:
                reply = await self._reply(scope, receive, path)
            except HTTPError as error:
                service.rejections.add(error.kind)
                reply = _reply_of(error)
            except ClientDisconnected:
                reply = HTTPResponse(_CLIENT_CLOSED, b"")
            except Exception as error:
                failure = error
                reply = _reply_of(HTTPError(500, "internal_error", f"the server failed with a {type(error).__name__}; see its log"))
            status, headers = reply.status, {"content-type": reply.content_type, "content-length": str(len(reply.body)), **reply.headers}
            if service.draining:
                headers.setdefault("connection", "close")
            encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": encoded})
            await send({"type": "http.response.body", "body": reply.body})
            if failure is not None:
                raise failure  # so that it is logged
        finally:
            if path not in ALWAYS:
                service.end()
            route = path if path in SCORING or path in STATUS else "other"
            service.requests.add(route, str(status))
            service.seconds.add(route, amount=time.perf_counter() - begun)

    async def _reply(self, scope: Any, receive: Receive, path: str) -> HTTPResponse:
        service = self.service
        if service.draining and path not in ALWAYS:
            raise draining()
        if path not in OPEN:
            check_caller(scope, service.config)
        allowed = "POST" if path in SCORING else "GET" if path in STATUS else None
        if scope["method"] != allowed:
            missing = (404, "not_found") if allowed is None else (405, "method_not_allowed")
            headers = {} if allowed is None else {"allow": allowed}
            return _reply_of(HTTPError(*missing, f"there is no route {scope['method']} {path}", headers))
        if path in SCORING:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            return HTTPResponse(200, await service.rewards(receive, headers, SCORING[path][0]))
        if path == "/metrics":
            return HTTPResponse(200, service.metrics().encode(), CONTENT_TYPE)
        if path == "/openapi.json":
            return HTTPResponse(200, write(_description()))
        if path == "/v1/models":
            model = {"id": service.config.model, "object": "model", "created": 0, "owned_by": "qreward"}
            return HTTPResponse(200, write({"object": "list", "data": [model]}))
        return HTTPResponse(503, write({"status": "draining"})) if service.draining else HTTPResponse(200, write({"status": "ok"}))


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


def _reply_of(error: HTTPError) -> HTTPResponse:
    return HTTPResponse(error.status, write(error.document()), JSON, error.headers)


def _description() -> dict[str, Any]:
    """Return the OpenAPI document, with the JSON schemas of the accepted bodies."""
    done = {"200": {"description": "OK"}}
    paths: dict[str, Any] = {path: {"get": {"responses": done}} for path in STATUS}
    for path, (_, bodies) in SCORING.items():
        schemas = [msgspec.json.schema(body)["$defs"][body.__name__] for body in bodies]
        content = {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
        paths[path] = {"post": {"requestBody": {"required": True, "content": content}, "responses": done}}
    return {"openapi": "3.1.0", "info": {"title": "qreward", "version": __version__}, "paths": paths}
