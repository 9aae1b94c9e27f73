"""Detects whether an exception means that a server is overloaded, and how long to wait."""

from __future__ import annotations

import time
from collections.abc import Iterable
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


class Overload(NamedTuple):
    """States that a server is overloaded, or that a rate limit is exhausted."""

    retry_after: float | None = None
    should_retry: bool | None = None


class _AccountExhausted(Exception):
    """The account has no quota left, so waiting does not help."""


def overload_of(error: BaseException) -> Overload | None:
    """Return the overload that an exception reports, or None for any other error. This function never raises."""
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
    handled = context is not None and not error.__suppress_context__ and _raised_by_handler(error, context)
    return context if handled else None


def _raised_by_handler(error: BaseException, caught: BaseException) -> bool:
    """Return True if ``error`` was raised in the frame that caught ``caught``."""
    place, catcher = error.__traceback__, caught.__traceback__
    if place is None or catcher is None:
        return False
    while place.tb_next is not None:
        place = place.tb_next
    return place.tb_frame is catcher.tb_frame


def _overload_of_one(error: BaseException) -> Overload | None:
    """Return the overload that one exception reports; None if it reports no overload. The chain of the exception is not inspected."""
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
    status = _status_of(error, response)
    if status is None and response is None and _is_grpc(error):
        code: Any = error.code()  # type: ignore[attr-defined]
        return Overload() if getattr(code, "name", None) in _GRPC else None
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


def _is_grpc(error: Exception) -> bool:
    return callable(getattr(error, "code", None)) and any(base.__module__.partition(".")[0] == "grpc" for base in type(error).__mro__)
