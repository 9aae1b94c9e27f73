"""What an exception of a function means: whether the call is tried again, whether a server is overloaded, and how long to wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from qreward.codecs import rate_limit_headers
from qreward.errors import RateLimited
from qreward.scheduler.functions import CallFailure

ENDINGS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end tasks and programs. They are never retried."""


def is_retried(error: BaseException, options: Any) -> bool | float:
    """Return whether ``exception_types`` names an exception, or the seconds to wait before the retry."""
    kinds: Any = options.exception_types
    if isinstance(kinds, type | tuple):
        return isinstance(error, kinds) and not isinstance(error, ENDINGS)
    return kinds(error) if isinstance(error, Exception) else False


def failure_of(error: BaseException, options: Any, *, waits: bool) -> CallFailure:
    """Classify an exception that a try raised: whether and when the call is tried again, and whether the exception means overload."""
    overload = overload_of(error)
    wait = None if overload is None else overload.retry_after
    again = is_retried(error, options)
    covered = again is not False
    if covered and again is not True:
        again, wait = True, max(0.0, float(again))  # also for NaN
    if overload is not None and overload.should_retry is False:  # the server forbids a retry
        again = False
    if wait is not None and not waits:
        wait = 0.0
    return CallFailure(error, again=bool(again), wait=wait, overloaded=overload is not None, covered=covered)


LINKS = 8
"""Maximum number of exceptions of a chain that are inspected. Libraries build chains of at most four exceptions. The limit also ends
cycles."""
_OVERLOADED = frozenset({429, 503, 529})


class Overload(NamedTuple):
    """States that a server is overloaded, or that a rate limit is exhausted."""

    retry_after: float | None = None  # seconds to wait, as the server requested; None if the server requested no wait
    should_retry: bool | None = None  # False if the server forbids a retry, True if it asks for one (``x-should-retry``)


def overload_of(error: BaseException) -> Overload | None:
    """Return the overload that an exception, or one that it was raised ``from``, reports; None for any other error. Never raises.

    A group counts if all of its exceptions count. Messages are ignored, because their words may come from a prompt.
    """
    found: Overload | None = None
    link: BaseException | None = error
    for _ in range(LINKS):
        if link is None:
            break
        try:
            overload = _overload_of_one(link)
        except Exception:  # attributes of other libraries' exceptions may raise; the caller must see the original error
            overload = None
        if overload is not None:
            if overload.retry_after is not None:
                return overload
            found = found or overload
        link = link.__cause__
    return found


def _overload_of_one(error: BaseException) -> Overload | None:
    if isinstance(error, ExceptionGroup):
        members = [overload for each in error.exceptions if (overload := overload_of(each)) is not None]
        if len(members) < len(error.exceptions):
            return None
        waits = [each.retry_after for each in members if each.retry_after is not None]
        return Overload(max(waits, default=None), False if any(each.should_retry is False for each in members) else None)
    plain = type(error).__module__ == "builtins" and not error.__dict__  # most exceptions are plain and have no status
    if plain or not isinstance(error, Exception):
        return None
    holders = error, getattr(error, "response", None)
    if isinstance(error, RateLimited):
        if error.status_code == 402 or (error.attempts and error.attempts[-1].outcome == "quota"):
            return None  # the account is exhausted, so waiting does not help
    else:
        found = (getattr(holder, name, None) for holder in holders for name in ("status_code", "status"))
        if next((status for status in found if isinstance(status, int)), None) not in _OVERLOADED:
            return None
    all_headers = (getattr(holder, "headers", None) for holder in holders)
    given: Any = next((each for each in all_headers if isinstance(each, Iterable) and hasattr(each, "items")), {})
    headers = {str(name).lower(): str(value) for name, value in given.items()}
    seconds: Any = rate_limit_headers.retry_after(headers, time.time())
    if seconds is None:
        own = getattr(error, "retry_after", None)
        seconds = rate_limit_headers.number(str(own)) if isinstance(own, int | float) else None
    return Overload(seconds, rate_limit_headers.should_retry(headers))
