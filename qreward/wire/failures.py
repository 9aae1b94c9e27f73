"""From what went wrong on the wire to a ``Failure``: what may be done about it, and an error that says what to change.

Knows HTTP statuses and servers' dialects; knows nothing of sockets, nor of what the scheduler makes of a kind.
"""

from __future__ import annotations

import time
from typing import NamedTuple
from urllib.parse import urlsplit

from qreward.core.outcome import Failure, FailureKind
from qreward.errors import (
    AuthenticationFailed,
    BadRequest,
    ConnectionFailed,
    InvalidResponse,
    RateLimited,
    RequestError,
    RequestTimeout,
    ServerError,
)
from qreward.wire import hints, meanings, ratelimits
from qreward.wire.base import Malformed, Reply, TransportError, Unfinished
from qreward.wire.complaints import Complaint, complaint_of, one_line, read_complaint
from qreward.wire.endings import GIVEN_UP
from qreward.wire.secrets import Secrets

_OVERLOADED, _TRANSIENT, _REFUSED = FailureKind.OVERLOADED, FailureKind.TRANSIENT, FailureKind.REFUSED
_SHOWN = 300  # characters of a server's own words
_SHOWN_BODY = 200  # characters of a body that is no answer
_LOOKED_AT = 8192  # bytes of such a body; more than is shown, so that a secret is hidden before the rest is cut


class Verdict(NamedTuple):
    """What a status means, and what the user may change."""

    kind: FailureKind
    error: type[RequestError]
    advice: str = ""
    misconfigured: bool = False


def _wrong_setup(error: type[RequestError], advice: str) -> Verdict:
    return Verdict(FailureKind.UNSUITABLE, error, advice, misconfigured=True)


_OVERLOAD = Verdict(_OVERLOADED, RateLimited)
_QUOTA = Verdict(FailureKind.QUOTA, RateLimited, "the account is used up: add credit, or take the endpoint out")
_INVALID_SCORES = Verdict(_TRANSIENT, InvalidResponse, "the scorer of endpoint {endpoint!r} must return one reward for each completion")
_TOO_LONG = Verdict(FailureKind.UNSUITABLE, BadRequest, "shorten the input, or route it to a model with a longer context")
_PASSING = Verdict(_TRANSIENT, ServerError)
_WRONG = Verdict(_REFUSED, BadRequest)
_KEY = _wrong_setup(AuthenticationFailed, "check api_key of endpoint {endpoint!r}")
_PLACE = _wrong_setup(BadRequest, "check base_url of endpoint {endpoint!r}, and that it serves {model!r} (model_names maps names)")
_ELSEWHERE = _wrong_setup(InvalidResponse, "set base_url of endpoint {endpoint!r} to the final address")

_VERDICTS = {
    402: _QUOTA,
    401: _KEY,
    403: _KEY,
    404: _PLACE,
    405: _PLACE,
    407: _wrong_setup(AuthenticationFailed, "check user and password in proxy of endpoint {endpoint!r}"),
    408: _PASSING,
    409: _PASSING,
    410: _PLACE,
    413: Verdict(_REFUSED, BadRequest, "send a smaller request"),
    424: _PASSING,
    425: _PASSING,
    429: _OVERLOAD,
    499: _PASSING,
    501: _wrong_setup(ServerError, "the server of endpoint {endpoint!r} does not offer this; check its kind and base_url"),
    503: _OVERLOAD,
    529: _OVERLOAD,
}


def failure_from_reply(reply: Reply, endpoint: str, model: str, secrets: Secrets, now: float | None = None) -> Failure:
    """The failure that an HTTP answer other than 2xx stands for.

    Args:
        endpoint: its name.
        model: what the caller asked for.
        secrets: what the message must not show.
        now: wall clock (``time.time()``), against which dates in headers are read.
    """
    if 300 <= reply.status < 400:
        return _failure(_ELSEWHERE, reply, f"it points to {_target(reply)}", endpoint, model, secrets, now)
    complaint = read_complaint(reply.body)
    return _failure(_verdict(reply.status, complaint), reply, complaint.text, endpoint, model, secrets, now)


def failure_from_embedded(error: object, reply: Reply, endpoint: str, model: str, secrets: Secrets, now: float | None = None) -> Failure:
    """The failure in a body that carries an ``error`` although its status is 200."""
    complaint = complaint_of(error)
    words = f"an error in the body: {complaint.text or 'without a message'}"
    return _failure(_verdict(reply.status, complaint), reply, words, endpoint, model, secrets, now)


def failure_from_malformed(error: Malformed, reply: Reply, endpoint: str, model: str, secrets: Secrets) -> Failure:
    """The failure that a body stands for which is not an answer; its beginning is shown."""
    beginning = shorten(secrets, reply.body[:_LOOKED_AT].decode("utf-8", "replace"), _SHOWN_BODY)
    words = f"{error}" + (f"; it begins: {beginning}" if beginning else "")
    message = f"endpoint {endpoint!r} answered {reply.status} for model {model!r}: {words}"
    return Failure(_TRANSIENT, _error(InvalidResponse, message, reply, endpoint, model, secrets), limits=ratelimits.read(reply.headers))


def failure_from_unfinished(error: Unfinished, reply: Reply, endpoint: str, model: str, secrets: Secrets) -> Failure:
    """The failure that an answer stands for which is not whole: tried again if the server gave it up, else the end of the request."""
    kind = _TRANSIENT if error.ending in GIVEN_UP else _REFUSED
    words = shorten(secrets, str(error), _SHOWN)
    message = f"endpoint {endpoint!r} answered {reply.status} for model {model!r} with an answer that is not whole: {words}"
    return Failure(kind, _error(InvalidResponse, message, reply, endpoint, model, secrets), limits=ratelimits.read(reply.headers))


def failure_from_transport(error: TransportError, endpoint: str, model: str, secrets: Secrets) -> Failure:
    """The failure of an attempt that got no complete answer."""
    kind, cls = _of_transport(error)
    message = f"endpoint {endpoint!r}, model {model!r}: {shorten(secrets, str(error), _SHOWN)}"
    return Failure(kind, cls(message, endpoint=endpoint, model=model))


def shorten(secrets: Secrets, text: str, most: int) -> str:
    """The text on one line, without secrets (before and after cleaning: neither may bring one out), cut to ``most`` characters."""
    clean = secrets.hide(one_line(secrets.hide(text)))
    return clean if len(clean) <= most else clean[: most - 3] + "..."


def _verdict(status: int, complaint: Complaint) -> Verdict:
    """By the status, unless the body knows better: in a 200 or 400 its own code counts, a 500 may be an overload."""
    spoken = meanings.status_of(complaint)
    if status in (200, 400) or (status == 500 and spoken in (429, 503, 529)):
        status = spoken or status
    if meanings.QUOTA.intersection(complaint.names) and status < 500:
        return _QUOTA
    if meanings.INVALID_SCORES in complaint.names:
        return _INVALID_SCORES
    if status in (400, 413, 422) and meanings.is_too_long(complaint):
        return _TOO_LONG
    if (known := _VERDICTS.get(status)) is not None:
        return known
    return _WRONG if 400 <= status < 500 else _PASSING


def _failure(verdict: Verdict, reply: Reply, words: str, endpoint: str, model: str, secrets: Secrets, now: float | None) -> Failure:
    message = f"endpoint {endpoint!r} answered {reply.status} for model {model!r}"
    if words:
        message += f": {shorten(secrets, words, _SHOWN)}"
    if verdict.advice:
        message += f"; {verdict.advice.format(endpoint=endpoint, model=model)}"
    return Failure(
        verdict.kind,
        _error(verdict.error, message, reply, endpoint, model, secrets),
        retry_after=hints.retry_after(reply.headers, time.time() if now is None else now),
        should_retry=hints.should_retry(reply.headers),
        misconfigured=verdict.misconfigured,
        limits=ratelimits.read(reply.headers, now),
    )


def _error(cls: type[RequestError], message: str, reply: Reply, endpoint: str, model: str, secrets: Secrets) -> RequestError:
    request_id = reply.headers.get("x-request-id")
    shown = shorten(secrets, request_id, _SHOWN_BODY) if request_id else None
    return cls(message, endpoint=endpoint, model=model, status_code=reply.status, request_id=shown)


def _of_transport(error: TransportError) -> tuple[FailureKind, type[RequestError]]:
    if error.local:
        return FailureKind.LOCAL, ConnectionFailed
    if not error.sent:
        return FailureKind.UNREACHABLE, ConnectionFailed
    if error.timeout:
        return FailureKind.TIMEOUT, RequestTimeout
    return _TRANSIENT, InvalidResponse if error.malformed else ConnectionFailed


def _target(reply: Reply) -> str:
    """Where a redirect leads, by host only: a path or query may hold a token."""
    try:
        host = urlsplit(reply.headers.get("location") or "").hostname
    except ValueError:
        host = None
    return f"host {host!r}" if host else "another path of the same host"
