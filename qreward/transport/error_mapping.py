"""Conversion of error responses and transport errors to a ``Failure``, which has a kind, and an error with advice to the user.

First, ``parse_error_body`` extracts the message and the error codes from the body. Then ``status_of`` maps codes, types and phrases to the
HTTP status that the server should have sent. Last, ``_MEANINGS`` maps the status to a kind of failure, an error class and advice.

These forms of a body are understood:

- OpenAI and vLLM: ``{"error": {"message", "type", "code"}}``
- various servers: ``{"error": "text"}``
- TEI: ``{"error", "error_type"}`` and ``{"message", "code", "type"}``
- SGLang: ``{"object": "error", "message", "code"}``
- FastAPI: ``{"detail": ...}``
- a list that contains one of these objects, plain text, and HTML

This module does not depend on sockets, or on what the scheduler does after a failure.
"""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs import rate_limit_headers
from qreward.codecs.base import EmbeddedError, Malformed, Reply, TransportError, Unfinished
from qreward.codecs.finish_reason import ABORTED
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
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.transport.redaction import Secrets

_MARKUP = re.compile(r"(?is)<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>")
_LOOKED_AT = 8192  # maximum number of characters or bytes that are examined; messages show far fewer


class ErrorBody(msgspec.Struct, frozen=True):
    """The content of a server's error response.

    Attributes:
        text: the message, on one line.
        names: the codes in the members ``code``, ``type``, ``error_type`` and ``status``, in this order. They are in lower case, with
            ``_`` between words.
    """

    text: str
    names: tuple[str, ...] = ()


def parse_error_body(body: bytes) -> ErrorBody:
    """Parse the body of an error response."""
    try:
        return error_body_of(jsonio.read_leniently(body))
    except Malformed:
        return ErrorBody(one_line(_MARKUP.sub(" ", body[:_LOOKED_AT].decode("utf-8", "replace"))))


def error_body_of(document: Any) -> ErrorBody:
    """Parse the error in a JSON document or in its ``error`` member."""
    if isinstance(document, list):
        return error_body_of(document[0]) if document else ErrorBody("")
    if not isinstance(document, dict):
        return ErrorBody("" if document is None else one_line(str(document)))
    inner = document.get("error")
    if isinstance(inner, dict | list) and inner:
        within = error_body_of(inner)
        return ErrorBody(within.text or _text(document), within.names + _names(document))
    return ErrorBody(_text(document), _names(document))


def one_line(text: str) -> str:
    """Return the text without line breaks and control characters, so that it cannot forge a log line."""
    text = text[:_LOOKED_AT]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())


def _text(document: dict[Any, Any]) -> str:
    members = ("message", "error", "detail", "msg", "error_message", "title")
    return next((one_line(text) for member in members if (text := _message(document.get(member)))), "")


def _message(value: Any) -> str:
    """Return the message in a text or in FastAPI's list of ``{"loc", "msg", "input"}``. ``input`` is left out, because it is user data."""
    match value:
        case str():
            return value
        case {"loc": [*place], **rest} if text := _text(rest):
            return f"{'.'.join(map(str, place))}: {text}" if place else text
        case dict():
            return _text(value)
        case list():
            return "; ".join(filter(None, (_message(item) for item in value[:3] if not isinstance(item, list))))
    return ""


def _names(document: dict[str, Any]) -> tuple[str, ...]:
    values = (document.get(member) for member in ("code", "type", "error_type", "status"))
    return tuple(re.sub(r"[\s.-]+", "_", str(value).strip().lower()) for value in values if value)


QUOTA = frozenset({
    "insufficient_quota", "billing_hard_limit_reached", "billing_hard_limit", "billing_not_active", "insufficient_balance",
    "insufficient_credits", "insufficient_funds", "payment_required", "402",
})  # fmt: skip
"""Error codes that mean that the account's quota or credit is used up."""

INVALID_SCORES = "invalid_scores"
"""The error code of qreward's own reward server for a scorer that did not return one reward for each completion."""

_NAMES = {
    400: (
        "invalid_request_error", "badrequesterror", "bad_request", "bad_request_error", "invalid_argument", "invalid_value", "validation",
        "content_filter", "content_policy_violation", "context_length_exceeded", "exceed_context_size_error", "string_above_max_length",
        "unprocessableentityerror", "tokenizer", "empty",
    ),
    401: ("invalid_api_key", "incorrect_api_key", "authentication_error", "authenticationerror", "unauthorized", "unauthenticated"),
    403: ("permission_error", "permission_denied", "permissiondeniederror", "forbidden"),
    404: ("model_not_found", "not_found_error", "notfounderror", "not_found", "deploymentnotfound"),
    429: (
        "rate_limit_exceeded", "rate_limit_error", "rate_limited", "ratelimiterror", "rate_limit", "too_many_requests", "toomanyrequests",
        "resource_exhausted", "throttled", "throttling", "throttlingexception", "tokens", "requests",
    ),
    500: ("server_error", "internal_error", "internal_server_error", "internalservererror", "api_error", "internal", "backend"),
    503: (
        "overloaded", "overloaded_error", "server_overloaded", "engine_overloaded", "service_unavailable", "service_unavailable_error",
        "serviceunavailableerror", "unavailable", "queueoverflowerror", "queue_full", "slow_down", "server_busy", "unhealthy",
    ),
    504: ("timeout", "timeout_error", "request_timeout", "gateway_timeout", "deadline_exceeded"),
}  # fmt: skip
_STATUS_OF = {name: status for status, names in _NAMES.items() for name in names} | dict.fromkeys(QUOTA, 402)

_SAYS_OVERLOAD = re.compile(
    r"(?i)\boverloaded\b|too many requests|rate.?limit(?:s|ed)?\b.{0,20}\b(?:exceeded|reached|hit)|rate.?limited\b"
    r"|queue is full|server (?:is )?(?:too |currently )?busy|\bat (?:full )?capacity\b"
)
_SAYS_TOO_LONG = re.compile(
    r"(?i)maximum context length|longer than the (?:maximum model|model's context|maximum context) length|max_model_len"
    r"|exceeds? the (?:model's |maximum |available )?(?:maximum )?(?:context|model length|number of tokens)"
    r"|must have less than \d+ tokens|(?:prompt|input) is too long|input token count .{0,40}exceeds"
)
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"})


def status_of(error_body: ErrorBody) -> int | None:
    """Return the HTTP status that an error body stands for, or None.

    The first known code of the body determines the status. If no code is known, a phrase in the text determines the status.

    Example:
        >>> status_of(ErrorBody("slow down", ("rate_limit_exceeded",)))
        429
    """
    overloaded = _SAYS_OVERLOAD.search(error_body.text) is not None
    for name in error_body.names:
        status = _STATUS_OF.get(name) or (int(name) if name.isdecimal() and 400 <= int(name) < 600 else None)
        if status is not None:
            # servers use the type "invalid_request_error" for all errors, so a phrase that means overload takes precedence
            return 503 if status == 400 and overloaded else status
    return 503 if overloaded else 400 if is_too_long(error_body) else None


def is_too_long(error_body: ErrorBody) -> bool:
    """Return True if the input exceeds the model's context.

    The errors of OpenAI, vLLM, SGLang, TEI, llama.cpp and Gemini are recognised.
    """
    return not _TOO_LONG.isdisjoint(error_body.names) or _SAYS_TOO_LONG.search(error_body.text) is not None


_TRANSIENT, _REFUSED = FailureKind.TRANSIENT, FailureKind.REFUSED
_SHOWN = 300  # maximum number of characters of a server's message in an error
_SHOWN_BODY = 200  # maximum number of characters of a malformed body in an error


class FailureMeaning(NamedTuple):
    """The meaning of an HTTP status: kind of failure, error class, and advice to the user."""

    kind: FailureKind
    error: type[RequestError]
    advice: str = ""
    misconfigured: bool = False


def _wrong_setup(error: type[RequestError], advice: str) -> FailureMeaning:
    return FailureMeaning(FailureKind.UNSUITABLE, error, advice, misconfigured=True)


_QUOTA = FailureMeaning(FailureKind.QUOTA, RateLimited, "the account is used up: add credit, or take the endpoint out")
_INVALID_SCORES = FailureMeaning(
    _TRANSIENT, InvalidResponse, "the scorer of endpoint {endpoint!r} must return one reward for each completion"
)
_TOO_LONG_BODY = FailureMeaning(FailureKind.UNSUITABLE, BadRequest, "shorten the input, or route it to a model with a longer context")
_REDIRECT = _wrong_setup(InvalidResponse, "set base_url of endpoint {endpoint!r} to the final address")
_PLACE = _wrong_setup(
    BadRequest, "check base_url of endpoint {endpoint!r}, and that it serves {model!r} (model_names maps names; base_url often ends in /v1)"
)
_WRONG_KEY = _wrong_setup(AuthenticationFailed, "check api_key of endpoint {endpoint!r}")
_NO_KEY = _wrong_setup(
    AuthenticationFailed,
    "set api_key of endpoint {endpoint!r}, such as '${{JUDGE_KEY}}' for a key in the environment variable JUDGE_KEY; "
    "QRewardClient.from_env() reads OPENAI_API_KEY",
)
_SERVER = FailureMeaning(_TRANSIENT, ServerError)
_REQUEST = FailureMeaning(_REFUSED, BadRequest)

_MEANINGS = {
    402: _QUOTA,
    **dict.fromkeys((401, 403), _WRONG_KEY),
    **dict.fromkeys((404, 405, 410), _PLACE),
    407: _wrong_setup(AuthenticationFailed, "check user and password in proxy of endpoint {endpoint!r}"),
    **dict.fromkeys((408, 409, 424, 425, 499), _SERVER),
    413: FailureMeaning(_REFUSED, BadRequest, "send a smaller request"),
    501: _wrong_setup(ServerError, "the server of endpoint {endpoint!r} does not offer this; check its kind and base_url"),
    **dict.fromkeys((429, 503, 529), FailureMeaning(FailureKind.OVERLOADED, RateLimited)),
}


def failure_from_reply(
    reply: Reply, endpoint: str, model: str, secrets: Secrets, now: float | None = None, *, keyless: bool = False
) -> Failure:
    """Return the failure for an HTTP response with a status other than 2xx.

    Args:
        reply: the response.
        endpoint: name of the endpoint, for the message.
        model: name of the model, for the message.
        secrets: texts that the message must not show.
        now: the wall clock, for dates in headers.
        keyless: True if no API key was sent. The error then mentions this, because servers often call a missing key an incorrect key.
    """
    about = _About(reply, endpoint, model, secrets, keyless)
    if 300 <= reply.status < 400:
        return about.failure(_REDIRECT, f"it points to {_target(reply)}", now)
    error_body = parse_error_body(reply.body)
    return about.failure(_meaning_of(reply.status, error_body), error_body.text, now)


def failure_from_body(
    error: Malformed | EmbeddedError | Unfinished,
    reply: Reply,
    endpoint: str,
    model: str,
    secrets: Secrets,
    now: float | None = None,
    *,
    keyless: bool = False,
) -> Failure:
    """Return the failure for a 2xx response whose body is not a valid answer, carries an error, or has an incomplete answer.

    The message for an invalid body shows the beginning of the body. An incomplete answer is retried if the server aborted the generation.
    Otherwise, the request with the incomplete answer fails.
    """
    about = _About(reply, endpoint, model, secrets, keyless)
    match error:
        case EmbeddedError():
            error_body = error_body_of(error.body)
            return about.failure(
                _meaning_of(reply.status, error_body), f"an error in the body: {error_body.text or 'without a message'}", now
            )
        case Malformed():
            beginning = shorten(secrets, reply.body[:_LOOKED_AT].decode("utf-8", "replace"), _SHOWN_BODY)
            kind, words = _TRANSIENT, f": {error}" + (f"; it begins: {beginning}" if beginning else "")
        case Unfinished():
            kind = _TRANSIENT if error.ending in ABORTED else _REFUSED
            words = f" with an answer that is not whole: {shorten(secrets, str(error), _SHOWN)}"
    return Failure(kind, about.error(InvalidResponse, words), limits=rate_limit_headers.read(reply.headers))


def failure_from_transport(error: TransportError, endpoint: str, model: str, secrets: Secrets) -> Failure:
    """Return the failure for an attempt that received no complete response."""
    kind: FailureKind = _TRANSIENT
    cls: type[RequestError] = InvalidResponse if error.malformed else ConnectionFailed
    if error.local or not error.sent:
        kind, cls = FailureKind.LOCAL if error.local else FailureKind.UNREACHABLE, ConnectionFailed
    elif error.timeout:
        kind, cls = FailureKind.TIMEOUT, RequestTimeout
    message = f"endpoint {endpoint!r}, model {model!r}: {shorten(secrets, str(error), _SHOWN)}"
    return Failure(kind, cls(message, endpoint=endpoint, model=model))


def shorten(secrets: Secrets, text: str, most: int) -> str:
    """Return the text on one line, without secrets, cut to ``most`` characters.

    Secrets are hidden both before and after the text is put on one line, because joining lines may complete or split a secret.
    """
    clean = secrets.hide(one_line(secrets.hide(text)))
    return clean if len(clean) <= most else clean[: most - 3] + "..."


def _meaning_of(status: int, error_body: ErrorBody) -> FailureMeaning:
    """Return the meaning of an HTTP status.

    A code in the body takes precedence over the statuses 200 and 400. A code that means overload also takes precedence over 500.
    """
    stated = status_of(error_body)
    if status in (200, 400) or (status == 500 and stated in (429, 503, 529)):
        status = stated or status
    if QUOTA.intersection(error_body.names) and status < 500:
        return _QUOTA
    if INVALID_SCORES in error_body.names:
        return _INVALID_SCORES
    if status in (400, 413, 422) and is_too_long(error_body):
        return _TOO_LONG_BODY
    return _MEANINGS.get(status) or (_REQUEST if 400 <= status < 500 else _SERVER)


class _About(NamedTuple):
    """A response, the names that an error about it shows, and the secrets that the error must not show."""

    reply: Reply
    endpoint: str
    model: str
    secrets: Secrets
    keyless: bool

    def failure(self, meaning: FailureMeaning, words: str, now: float | None) -> Failure:
        headers = self.reply.headers
        message = f": {shorten(self.secrets, words, _SHOWN)}" if words else ""
        if self.keyless and meaning is _WRONG_KEY:
            meaning, message = _NO_KEY, f", and no API key was sent{message}"
        if meaning.advice:
            message = message if message.endswith("...") else message.removesuffix(".")
            message += f"; {meaning.advice.format(endpoint=self.endpoint, model=self.model)}"
        return Failure(
            meaning.kind,
            self.error(meaning.error, message),
            retry_after=rate_limit_headers.retry_after(headers, time.time() if now is None else now),
            should_retry=rate_limit_headers.should_retry(headers),
            misconfigured=meaning.misconfigured,
            limits=rate_limit_headers.read(headers, now),
        )

    def error(self, cls: type[RequestError], words: str) -> RequestError:
        status, request_id = self.reply.status, self.reply.headers.get("x-request-id")
        shown = shorten(self.secrets, request_id, _SHOWN_BODY) if request_id else None
        message = f"endpoint {self.endpoint!r} answered {status} for model {self.model!r}{words}"
        return cls(message, endpoint=self.endpoint, model=self.model, status_code=status, request_id=shown)


def _target(reply: Reply) -> str:
    """Return the target of a redirect. Only the host is named, because a path or query may contain a token."""
    try:
        host = urlsplit(reply.headers.get("location") or "").hostname
    except ValueError:
        host = None
    return f"host {host!r}" if host else "another path of the same host"
