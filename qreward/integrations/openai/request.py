"""Parses the HTTP request of an SDK. Pure. Knows the OpenAI API, but not the endpoints that will answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed
from qreward.errors import BadRequest

ROUTES = ("/chat/completions", "/completions", "/embeddings", "/moderations", "/rerank")
"""Supported POST routes, matched by the end of the path. The first match counts."""

_OURS = frozenset({
    "host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "accept-encoding", "user-agent",
    "authorization", "proxy-authorization", "api-key", "x-api-key", "cookie", "openai-organization", "openai-project",
    "traceparent", "tracestate", "baggage",
})  # fmt: skip
"""Headers that are not forwarded. They belong to the connection, to the account (each endpoint has its own), or to the client's spans."""

_SDK = "x-stainless-"


class OpenAIRequest(NamedTuple):
    """One request.

    Attributes:
        route: one of ``ROUTES``.
        model: name of the model, which selects the endpoints.
        inputs: the messages, or the corresponding member of the body; None if it is missing.
        params: all other members of the body, unchanged.
        headers: the headers to forward; None if there are none.
    """

    route: str
    model: str
    inputs: Any
    params: dict[str, Any]
    headers: dict[str, str] | None


MEMBERS = dict(zip(ROUTES, ("messages", "prompt", "input", "input", "documents"), strict=True))
"""Route -> member of the body that holds the inputs."""


def route_of(path: str) -> str | None:
    """Return which of ``ROUTES`` a path ends with; None if it is none of them.

    Example:
        >>> route_of("/v1/chat/completions"), route_of("/v1/files")
        ('/chat/completions', None)
    """
    return next((route for route in ROUTES if path.endswith(route)), None)


def read(route: str, headers: Iterable[tuple[str, str]], body: bytes) -> OpenAIRequest:
    """Parse a request. Raises ``BadRequest`` if the body is not a JSON object or names no model."""
    params = _document(body)
    model = params.pop("model", None)
    if not isinstance(model, str) or not model:
        raise BadRequest("the request has no model; set model='...' to a name that a route matches")
    return OpenAIRequest(route, model, params.pop(MEMBERS[route], None), params, passed_on(headers))


def passed_on(headers: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """Return the headers to forward: those that the program added, without keys and without headers of the connection or the SDK."""
    named = ((name.lower(), value) for name, value in headers)
    return {name: value for name, value in named if name not in _OURS and not name.startswith(_SDK)} or None


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except jsonio.REFUSED:
        found = _leniently(body)
    if not isinstance(found, dict):
        raise BadRequest(f"the body is a JSON {type(found).__name__}; send an object with 'model'")
    return found


def _leniently(body: bytes) -> Any:
    try:
        return jsonio.read_leniently(body)
    except Malformed:
        raise BadRequest("the body is not JSON; send a JSON object as the OpenAI API takes it, without compression") from None
