"""What an answer's headers say about trying again. Every number that comes out is finite and not negative."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LAST = frozenset("smhd")
_EPOCH = 1e9  # seconds; a larger number is a date, not a wait


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to stay away: ``retry-after-ms``, ``retry-after``, else the reset of an ``x-ratelimit`` that has nothing left.

    Args:
        headers: of the answer, case-insensitive or in lower case.
        now: wall clock, as of ``time.time()``, for headers that name a date.

    Example:
        >>> retry_after({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 0.0)
        360.0
    """
    if (milliseconds := number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    if (asked := headers.get("retry-after")) is not None and (seconds := wait(asked, now)) is not None:
        return seconds
    resets = [_reset(headers, what, now) for what in ("-requests", "-tokens", "")]
    return max((reset for reset in resets if reset is not None), default=None)


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """The server's ``x-should-retry``, if it says true or false."""
    return {"true": True, "false": False}.get((headers.get("x-should-retry") or "").strip().lower())


def _reset(headers: Mapping[str, str], what: str, now: float) -> float | None:
    if number(headers.get(f"x-ratelimit-remaining{what}")) != 0:
        return None
    return wait(headers.get(f"x-ratelimit-reset{what}"), now)


def wait(text: str | None, now: float) -> float | None:
    """Seconds of a text that says how long or until when: a number of them, ``6m0s``, or a date.

    Args:
        text: a date may be HTTP's, RFC 3339, or an epoch in seconds or milliseconds. One in the past is None.
        now: wall clock, for dates.
    """
    if text is None:
        return None
    text = text.strip()
    if text[-1:] in _LAST and _DURATION.fullmatch(text):
        return _not_negative(sum([float(count) * _UNIT[unit] for count, unit in _PART.findall(text)]))
    if (given := number(text)) is not None:
        if given < _EPOCH:
            return given
        return _not_negative((given if given < _EPOCH * 1000 else given / 1000) - now)
    moment = timestamp(text)
    return None if moment is None else _not_negative(moment - now)


def timestamp(text: str) -> float | None:
    """Seconds since the epoch of a date as HTTP or RFC 3339 writes it; None if it is none, or names no zone."""
    try:
        moment = datetime.fromisoformat(text) if text[:1].isdigit() else parsedate_to_datetime(text)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def number(text: str | None) -> float | None:
    """The number that a text is, if it is finite and not negative."""
    try:
        return _not_negative(float(text)) if text is not None else None
    except ValueError:
        return None


def _not_negative(number: float) -> float | None:
    return number if math.isfinite(number) and number >= 0 else None
