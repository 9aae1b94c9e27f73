"""What an SDK asks, out of its HTTP request. Pure; knows the OpenAI API, and nothing of who will answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed
from qreward.errors import BadRequest

ROUTES = ("/chat/completions", "/completions", "/embeddings", "/moderations", "/rerank")
"""What may be asked by POST, by the end of the path; the first that fits counts."""

_OURS = frozenset({
    "host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "accept-encoding", "user-agent",
    "authorization", "proxy-authorization", "api-key", "x-api-key", "cookie", "openai-organization", "openai-project",
    "traceparent", "tracestate", "baggage",
})  # fmt: skip
"""Headers that are not passed on: they belong to the connection, to the account, which is the endpoint's, or to our own spans."""

_SDK = "x-stainless-"


class Asked(NamedTuple):
    """One request.

    Attributes:
        route: one of ``ROUTES``.
        model: chooses who answers.
        inputs: messages, or what stands in their place; None if there is nothing.
        params: everything else of the body, as it was sent.
        headers: those that are passed on; None if there are none.
    """

    route: str
    model: str
    inputs: Any
    params: dict[str, Any]
    headers: dict[str, str] | None


MEMBERS = dict(zip(ROUTES, ("messages", "prompt", "input", "input", "documents"), strict=True))
"""What the body calls the inputs."""


def route_of(path: str) -> str | None:
    """Which of ``ROUTES`` a path means, whatever stands before it; None if it is none of them.

    Example:
        >>> route_of("/v1/chat/completions"), route_of("/v1/files")
        ('/chat/completions', None)
    """
    return next((route for route in ROUTES if path.endswith(route)), None)


def read(route: str, headers: Iterable[tuple[str, str]], body: bytes) -> Asked:
    """The request. Raises ``BadRequest`` for a body that is none."""
    params = _document(body)
    model = params.pop("model", None)
    if not isinstance(model, str) or not model:
        raise BadRequest("the request has no model; set model='...' to a name that a route matches")
    return Asked(route, model, params.pop(MEMBERS[route], None), params, passed_on(headers))


def passed_on(headers: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """The headers that go to the endpoint: what the program added, but no key, and nothing that the connection or the SDK put there."""
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
