"""Detects whether an exception means that a server is overloaded, and how long to wait. This module supports exceptions of many libraries,
and imports none of these libraries.

Only statuses, headers and machine-readable codes of an exception count. Messages are ignored, because words such as "too many requests"
may also come from a prompt or a log line. There is one case in which the message counts: urllib3's ``ResponseError`` has its status only in
the message. A false detection would be costly: the call would wait and be retried, and the failure would not count for the circuit breaker.

These exceptions are inspected:

- the exception itself, then the exception that it was raised ``from``, and the ``reason`` attribute of wrappers (urllib3);
- the exception that was being handled, if the ``except`` block itself raised the new exception, as in
  ``except RateLimitError: raise JudgeFailed``. If a function that the block calls raised the new exception, the handled exception is
  ignored, because the new exception is then about the fallback;
- all exceptions of an exception group. The group counts as an overload only if each of its exceptions counts as an overload.

An exhausted account (402, ``insufficient_quota``) is not an overload, because waiting does not help.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from qreward.codecs import error_body, rate_limit_headers
from qreward.codecs.error_body import ErrorBody, error_body_of, parse_error_body
from qreward.errors import RateLimited

LINKS = 8
"""Maximum number of exceptions of a chain that are inspected. Libraries build chains of at most four exceptions. The limit also ends
cycles."""
_OVERLOADED = frozenset({429, 503, 529})
_USED_UP = 402
_ELSEWHERE = frozenset({200, 400, 403, 500})  # streams and some servers use these statuses for overload; the code in the body decides
_GRPC = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE"})
_AWS = frozenset({
    "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException", "EC2ThrottledException",
    "TooManyRequestsException", "ProvisionedThroughputExceededException", "RequestLimitExceeded", "BandwidthLimitExceeded", "SlowDown",
})  # fmt: skip
"""botocore's throttling codes, except LimitExceededException and the codes for conflicts, which may be permanent."""
_URLLIB3_STATUS = re.compile(r"too many (\d{3}) error responses")  # ResponseError.SPECIFIC_ERROR; only this text has the status
_VARINT = rb"([\x80-\xff]{0,8}[\x00-\x7f])"  # at most 9 bytes, because only negative integers of protobuf take 10 bytes
_RETRY_INFO = re.compile(rb"\x0a(.)(?:\x08" + _VARINT + rb")?(?:\x10" + _VARINT + rb")?", re.DOTALL)
"""A protobuf ``RetryInfo``. The groups are the length of its ``Duration``, and the seconds and nanoseconds of the duration."""


class Overload(NamedTuple):
    """States that a server is overloaded, or that a rate limit is exhausted.

    Attributes:
        retry_after: seconds to wait, as the server requested; None if the server requested no wait.
        should_retry: False if the server forbids a retry, and True if it asks for a retry (``x-should-retry``, gRPC's pushback). None if
            the server does neither.
    """

    retry_after: float | None = None
    should_retry: bool | None = None


class _AccountExhausted(Exception):
    """The account has no quota left, so waiting does not help."""


def overload_of(error: BaseException) -> Overload | None:
    """Return the overload that an exception reports, or None for any other error. This function never raises.

    Exceptions are recognised by their attributes, not by their type:

    - status 429, 503 or 529 in ``status_code``, ``status`` or ``response``, as in httpx, aiohttp, requests, urllib3, openai and anthropic;
    - RESOURCE_EXHAUSTED and UNAVAILABLE of gRPC;
    - throttling errors of botocore;
    - :class:`qreward.RateLimited`, which a function can raise itself.

    The wait is read from the headers (``retry-after-ms``, ``retry-after``, ``x-ratelimit-*``), from gRPC's RetryInfo or pushback, or from
    an attribute ``retry_after`` (seconds) of the exception.

    Example:
        >>> class TooBusy(Exception):
        ...     status_code, headers = 429, {"Retry-After": "2"}
        >>> overload_of(TooBusy())
        Overload(retry_after=2.0, should_retry=None)
        >>> overload_of(ValueError("429 too many requests")) is None
        True
    """
    found: Overload | None = None
    link: BaseException | None = error
    for _ in range(LINKS):
        if link is None:
            break
        try:
            overload = _overload_of_one(link)
        except _AccountExhausted:
            return None
        except Exception:  # attributes of other libraries' exceptions may raise; the caller must see the original error
            overload = None
        if overload is not None:
            if overload.retry_after is not None:
                return overload
            found = found or overload
        link = _next_in_chain(link)
    return found


def _next_in_chain(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    context = error.__context__
    if context is not None and not error.__suppress_context__ and _raised_by_handler(error, context):
        return context
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, BaseException) else None


def _raised_by_handler(error: BaseException, caught: BaseException) -> bool:
    """Return True if ``error`` was raised in the frame that caught ``caught``."""
    place, catcher = error.__traceback__, caught.__traceback__
    if place is None or catcher is None:
        return False
    while place.tb_next is not None:
        place = place.tb_next
    return place.tb_frame is catcher.tb_frame


def _overload_of_one(error: BaseException) -> Overload | None:
    """Return the overload that one exception reports; None if it reports no overload. The chain of the exception is not inspected.

    Raises:
        _AccountExhausted: the exception reports that the account has no quota left.
    """
    if isinstance(error, ExceptionGroup):
        return _overload_of_group(error.exceptions)
    if isinstance(error, RateLimited):
        if error.status_code == _USED_UP or (error.attempts and error.attempts[-1].outcome == "quota"):
            raise _AccountExhausted
        return Overload(_own_wait(error))
    plain = type(error).__module__ == "builtins" and not error.__dict__  # most exceptions are plain and have no status
    if plain or not isinstance(error, Exception):
        return None
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return _overload_of_aws(response)
    status = _status_of(error, response)
    if status is None and response is None and _is_grpc(error):
        return _overload_of_grpc(error)
    if status is None and type(error).__name__ == "ResponseError" and type(error).__module__.startswith("urllib3"):
        text = _URLLIB3_STATUS.fullmatch(str(error))
        status = int(text[1]) if text else None
    return _overload_of_http(error, response, status)


def _overload_of_group(errors: tuple[Exception, ...]) -> Overload | None:
    found = [overload for each in errors if (overload := overload_of(each)) is not None]
    if len(found) < len(errors):
        return None
    waits = [each.retry_after for each in found if each.retry_after is not None]
    return Overload(max(waits, default=None), False if any(each.should_retry is False for each in found) else None)


def _overload_of_http(error: Exception, response: Any, status: int | None) -> Overload | None:
    names = _codes(error, response, status)
    if status == _USED_UP or ((status is None or status < 500) and not error_body.QUOTA.isdisjoint(names)):
        raise _AccountExhausted
    if names and (status is None or status in _ELSEWHERE):
        status = error_body.status_of(ErrorBody("", names), status or 400)
    if status not in _OVERLOADED:
        return None
    headers = _headers(error, response)
    seconds = rate_limit_headers.retry_after(headers, time.time())
    return Overload(_own_wait(error) if seconds is None else seconds, rate_limit_headers.should_retry(headers))


def _status_of(error: Exception, response: Any) -> int | None:
    for holder, name in ((error, "status_code"), (error, "status"), (response, "status_code"), (response, "status")):
        if isinstance(status := getattr(holder, name, None), int):
            return status
    code = getattr(error, "code", None)  # as in google.api_core and tornado; without a response, the number may mean anything
    return code if isinstance(code, int) and (response is not None or hasattr(type(error), "response")) else None


def _codes(error: Exception, response: Any, status: int | None) -> tuple[str, ...]:
    body = getattr(error, "body", None)
    if isinstance(body, dict | list):
        return error_body_of(body).names
    content = getattr(response, "_content", None) if status in _OVERLOADED else None  # the public attribute would read an unread body
    return parse_error_body(content).names if isinstance(content, bytes) else ()


def _headers(error: Exception, response: Any) -> dict[str, str]:
    """Return the headers of the exception or of its response, with names in lower case."""
    for holder in (error, response):
        headers = getattr(holder, "headers", None)
        if isinstance(headers, Iterable) and hasattr(headers, "items"):
            return {str(name).lower(): str(value) for name, value in headers.items()}
    return {}


def _own_wait(error: Exception) -> float | None:
    seconds = getattr(error, "retry_after", None)
    return rate_limit_headers.number(str(seconds)) if isinstance(seconds, int | float) else None


def _overload_of_aws(response: dict[str, Any]) -> Overload | None:
    fault, metadata = response.get("Error"), response.get("ResponseMetadata")
    code = fault.get("Code") if isinstance(fault, dict) else None
    status = metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None
    if code not in _AWS and status not in _OVERLOADED:
        return None
    headers = metadata.get("HTTPHeaders") if isinstance(metadata, dict) else None  # botocore's names are in lower case
    return Overload(rate_limit_headers.retry_after(headers, time.time()) if isinstance(headers, Mapping) else None)


def _is_grpc(error: Exception) -> bool:
    return callable(getattr(error, "code", None)) and any(base.__module__.partition(".")[0] == "grpc" for base in type(error).__mro__)


def _overload_of_grpc(error: Any) -> Overload | None:
    if getattr(error.code(), "name", None) not in _GRPC:
        return None
    trailing = getattr(error, "trailing_metadata", None)
    entries: dict[str, Any] = dict(trailing() or ()) if callable(trailing) else {}
    if (pushback := entries.get("grpc-retry-pushback-ms", entries.get("retry-pushback-ms"))) is not None:
        milliseconds = rate_limit_headers.number(pushback)
        return Overload(None, False) if milliseconds is None else Overload(milliseconds / 1000)  # gRFC A6: no number means "no retry"
    return Overload(_retry_delay(entries))


def _retry_delay(entries: Mapping[str, bytes]) -> float | None:
    """Return the seconds in a RetryInfo; None if there is no RetryInfo.

    A RetryInfo is sent alone or in the details of a ``google.rpc.Status``.
    """
    detail = entries.get("grpc-status-details-bin", b"").partition(b"google.rpc.RetryInfo\x12")[2][1:]  # the first byte is the length
    found = _RETRY_INFO.match(entries.get("google.rpc.retryinfo-bin", detail))
    if found is None or found.end() - found.end(1) != found[1][0]:
        return None
    seconds, nanoseconds = (sum((byte & 0x7F) << 7 * at for at, byte in enumerate(part or b"")) for part in found.groups()[1:])
    return float(seconds + nanoseconds / 1e9)
