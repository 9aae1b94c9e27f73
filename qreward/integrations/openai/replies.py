"""What an SDK is answered: a status, headers, and a body. Our errors become those of the OpenAI API. Knows no HTTP library.

Every error says ``x-should-retry: false``: it is the end of a call that has been queued, tried, tried elsewhere and hedged already, so an
SDK that tries again by itself would only multiply that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from qreward.errors import (
    AuthenticationFailed,
    BadRequest,
    ConfigError,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidResponse,
    NoEndpoint,
    QRewardError,
    RateLimited,
    Rejected,
    RequestError,
    RequestTimeout,
    ServerError,
    StreamInterrupted,
)
from qreward.integrations.openai.asked import ROUTES
from qreward.integrations.openai.events import Events, strict
from qreward.wire import meanings
from qreward.wire.complaints import Complaint

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_STATUSES: tuple[tuple[type[QRewardError], int, frozenset[int]], ...] = (
    (NoEndpoint, 404, frozenset()),
    (BadRequest, 400, frozenset(range(400, 500)) - {401, 403, 407, 408, 409, 429}),
    (ConfigError, 400, frozenset()),
    (AuthenticationFailed, 401, frozenset({401, 403})),
    (RateLimited, 429, frozenset()),
    (RequestTimeout, 504, frozenset()),
    (DeadlineExceeded, 504, frozenset()),
    (ServerError, 502, frozenset(range(500, 600))),
    (Rejected, 503, frozenset()),
    (ConnectionFailed, 502, frozenset()),
    (InvalidResponse, 502, frozenset()),
    (StreamInterrupted, 502, frozenset()),
    (QRewardError, 500, frozenset()),
)
"""Error, the first that fits -> its status, and which of the server's own it may have instead."""


class Reply(NamedTuple):
    """An HTTP answer, whose body may be still to come."""

    status: int
    headers: dict[str, str]
    body: bytes | Events


def answered(body: bytes, endpoint: str | None) -> Reply:
    """An answer, as its endpoint gave it."""
    return Reply(200, _headers(**{"x-qreward-endpoint": endpoint}), strict(body))


def streamed(events: Events) -> Reply:
    """An answer that has begun."""
    return Reply(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}, events)


def models(names: Iterable[str]) -> Reply:
    """The list of models; a pattern stands in it as it is written."""
    return Reply(200, _headers(), _json({"object": "list", "data": [_model(name) for name in names]}))


def model(name: str) -> Reply:
    """One model."""
    return Reply(200, _headers(), _json(_model(name)))


def not_offered(method: str, path: str) -> Reply:
    """404, saying what there is."""
    offered = ", ".join(f"POST {route}" for route in ROUTES)
    words = f"qreward does not offer {method} {path}; it offers {offered} and GET /models. Send what else there is to its server directly."
    return Reply(404, _headers(**{"x-should-retry": "false"}), _json({"error": _error(words, 404, "not_offered")}))


def refused(error: QRewardError) -> Reply:
    """A call that failed for good."""
    status, told = status_of(error), error if isinstance(error, RequestError) else None
    more = {"x-request-id": told.request_id, "x-qreward-endpoint": told.endpoint} if told else {}
    return Reply(status, _headers(**{"x-should-retry": "false", **more}), _json({"error": described(error)}))


def described(error: QRewardError) -> dict[str, Any]:
    """The ``error`` of a body: what went wrong in the API's words, where, and after how many attempts."""
    told = {"endpoint": error.endpoint, "attempts": len(error.attempts)} if isinstance(error, RequestError) else {}
    return _error(str(error), status_of(error), _code(error)) | told


def status_of(error: QRewardError) -> int:
    """The HTTP status that stands for an error: the server's own where SDKs take it for the same.

    Example:
        >>> status_of(NoEndpoint("no route")), status_of(RateLimited("full", status_code=503))
        (404, 429)
    """
    own = error.status_code if isinstance(error, RequestError) else None
    status, allowed = next((status, allowed) for kind, status, allowed in _STATUSES if isinstance(error, kind))
    return own if own in allowed else status


def _error(message: str, status: int, code: str) -> dict[str, Any]:
    return {"message": message, "type": _TYPES.get(status, "server_error"), "param": None, "code": code}


def _code(error: QRewardError) -> str:
    """The API's code where programs look for it, else the name of our error."""
    if isinstance(error, NoEndpoint):
        return "model_not_found"
    if isinstance(error, BadRequest) and meanings.is_too_long(Complaint(str(error))):
        return "context_length_exceeded"
    if isinstance(error, RateLimited) and error.attempts and error.attempts[-1].outcome == "quota":
        return "insufficient_quota"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "qreward"}


def _headers(**more: str | None) -> dict[str, str]:
    """As HTTP can carry them: names of endpoints may be in any script."""
    told = {name: value.encode("ascii", "backslashreplace").decode() for name, value in more.items() if value}
    return {"content-type": "application/json", **told}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
