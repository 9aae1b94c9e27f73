"""Conversion of error responses and transport errors to a ``Failure``, which has a kind, and an error with advice to the user."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from qreward.codecs import rate_limit_headers
from qreward.codecs.base import ABORTED, EmbeddedError, Ignored, Malformed, Reply, TransportError, Unfinished
from qreward.codecs.error_body import INVALID_SCORES, LOOKED_AT, ErrorBody, error_in, one_line, read_error
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
from qreward.transport.connection_settings import Secrets

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
_TOO_LONG, _TOO_MUCH_OUTPUT, _TOO_LONG_TOGETHER = (
    FailureMeaning(FailureKind.UNSUITABLE, BadRequest, f"{what}, or route it to a model with a longer context")
    for what in ("shorten the input", "lower max_tokens", "shorten the input or lower max_tokens")
)
_MORE_THAN_A_MINUTE = FailureMeaning(
    FailureKind.UNSUITABLE, BadRequest, "it exceeds the tokens per minute of endpoint {endpoint!r}; shorten the input or lower max_tokens"
)
_REDIRECT = _wrong_setup(InvalidResponse, "set base_url of endpoint {endpoint!r} to the final address")
_NO_TARGET = _wrong_setup(InvalidResponse, "check base_url of endpoint {endpoint!r}, and a proxy or cache in front of the server")
_PLACE = _wrong_setup(
    BadRequest, "check base_url of endpoint {endpoint!r}, and that it serves {model!r} (model_names maps names; base_url often ends in /v1)"
)
_NO_MODEL = _PLACE._replace(misconfigured=False)  # the endpoint may serve other models
_ACCOUNT = _wrong_setup(AuthenticationFailed, "check the account of endpoint {endpoint!r}")
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
    412: FailureMeaning(FailureKind.UNSUITABLE, BadRequest),
    413: FailureMeaning(_REFUSED, BadRequest, "send a smaller request"),
    501: _wrong_setup(ServerError, "the server of endpoint {endpoint!r} does not offer this; check its kind and base_url"),
    **dict.fromkeys((429, 503, 529), FailureMeaning(FailureKind.OVERLOADED, RateLimited)),
}


class FailedReply(NamedTuple):
    """A response that is an error or no valid answer, the names that an error about it shows, and the secrets that it must not show.
    ``keyless`` is True if the request had no key. ``now`` is the time, in seconds since 1970; None for that of the clock."""

    reply: Reply
    endpoint: str
    model: str
    secrets: Secrets
    keyless: bool = False
    now: float | None = None

    def by_status(self) -> Failure:
        reply = self.reply
        if 300 <= reply.status < 400:
            target = _target(reply)
            return self._failure(_REDIRECT if target else _NO_TARGET, f"it points to {target or 'no other address'}")
        error_body = ErrorBody.read(reply.body)
        return self._failure(_meaning_of(reply.status, error_body), error_body.text)

    def by_body(self, error: Malformed | EmbeddedError | Unfinished) -> Failure:
        """Return the failure for a 2xx response whose body is not a valid answer, carries an error, or has an incomplete answer."""
        body, stated = self.reply.body, error.body if isinstance(error, EmbeddedError) else None
        if not isinstance(error, Unfinished):
            with suppress(Malformed):
                stated = error_in(read_error(body)) or stated
        if stated is not None or isinstance(error, EmbeddedError):
            error_body = ErrorBody.of(stated)
            words = f"an error in the body: {error_body.text or 'without a message'}"
            return self._failure(_meaning_of(self.reply.status, error_body), words)
        match error:
            case Ignored():
                kind, words = FailureKind.UNSUITABLE, f": {error}"
            case Malformed():
                beginning = shorten(self.secrets, body[:LOOKED_AT].decode("utf-8", "replace"), _SHOWN_BODY)
                kind, words = _TRANSIENT, f": {error}" + (f"; it begins: {beginning}" if beginning else "")
            case Unfinished():
                kind = _TRANSIENT if error.ending in ABORTED else _REFUSED
                words = f" with an answer that is not whole: {shorten(self.secrets, str(error), _SHOWN)}"
        return Failure(kind, self._error(InvalidResponse, words), limits=rate_limit_headers.read(self.reply.headers))

    def _failure(self, meaning: FailureMeaning, words: str) -> Failure:
        headers = self.reply.headers
        message = f": {shorten(self.secrets, words, _SHOWN)}" if words else ""
        if self.keyless and meaning is _WRONG_KEY:
            meaning, message = _NO_KEY, f", and no API key was sent{message}"
        if meaning.advice:
            message = message if message.endswith("...") else message.removesuffix(".")
            message += f"; {meaning.advice.format(endpoint=self.endpoint, model=self.model)}"
        return Failure(
            meaning.kind,
            self._error(meaning.error, message, 404 if meaning is _NO_MODEL or (meaning is _PLACE and self.reply.status == 200) else None),
            retry_after=rate_limit_headers.retry_after(headers, time.time() if self.now is None else self.now),
            should_retry=rate_limit_headers.should_retry(headers),
            misconfigured=meaning.misconfigured,
            limits=rate_limit_headers.read(headers, self.now),
        )

    def _error(self, cls: type[RequestError], words: str, means: int | None = None) -> RequestError:
        """Return the error. ``means`` is the status that the server should have sent, if it sent a misleading one."""
        status, request_id = self.reply.status, self.reply.headers.get("x-request-id")
        shown = shorten(self.secrets, request_id, _SHOWN_BODY) if request_id else None
        answered = f"{status}, which hides {means}," if means not in (None, status) else f"{status}"
        message = f"endpoint {self.endpoint!r} answered {answered} for model {self.model!r}{words}"
        return cls(message, endpoint=self.endpoint, model=self.model, status_code=means or status, request_id=shown)


def failure_from_transport(error: TransportError, endpoint: str, model: str, secrets: Secrets) -> Failure:
    kind: FailureKind = _TRANSIENT
    cls: type[RequestError] = InvalidResponse if error.malformed else ConnectionFailed
    if error.local or not error.sent:
        kind, cls = FailureKind.LOCAL if error.local else FailureKind.UNREACHABLE, ConnectionFailed
    elif error.timeout:
        kind, cls = FailureKind.TIMEOUT, RequestTimeout
    message = f"endpoint {endpoint!r}, model {model!r}: {shorten(secrets, str(error), _SHOWN)}"
    return Failure(kind, cls(message, endpoint=endpoint, model=model))


def shorten(secrets: Secrets, text: str, most: int) -> str:
    """Return the text on one line, without secrets, cut to ``most`` characters."""
    clean = secrets.hide(one_line(secrets.hide(text)))  # twice, because joining lines may complete or split a secret
    return clean if len(clean) <= most else clean[: most - 3] + "..."


def _meaning_of(status: int, error_body: ErrorBody) -> FailureMeaning:
    """A code in the body takes precedence over 200, 400 and 403. A code that means overload also takes precedence over 500
    and 498, with which Groq refuses what exceeds the capacity of its flex tier."""
    stated = error_body.status(status)
    if status in (200, 400, 403) or (status in (498, 500) and stated in (429, 503, 529)):
        status = stated or status
    account = _QUOTA if error_body.is_quota() else _ACCOUNT if error_body.is_refused_account() else None
    if account is not None and status < 500:
        return account
    if INVALID_SCORES in error_body.names:
        return _INVALID_SCORES
    if status in (400, 413, 422) and (error_body.is_too_much_output() or error_body.is_too_long()):
        return _TOO_MUCH_OUTPUT if error_body.is_too_much_output() else _TOO_LONG_TOGETHER if error_body.names_output() else _TOO_LONG
    if status in (413, 429) and error_body.exceeds_a_minute():
        return _MORE_THAN_A_MINUTE
    if status in (400, 404, 422) and error_body.is_unknown_model():
        return _NO_MODEL
    return _MEANINGS.get(status) or (_REQUEST if 400 <= status < 500 else _SERVER)


def _target(reply: Reply) -> str | None:
    location = reply.headers.get("location")
    try:
        host = urlsplit(location or "").hostname
    except ValueError:
        host = None
    # only the host is named, because a path or query may contain a token
    return f"host {host!r}" if host else "another path of the same host" if location else None
