"""What an answer's headers say about trying again. Every number that comes out is finite and not negative."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
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
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    if (asked := headers.get("retry-after")) is not None and (seconds := _wait(asked, now)) is not None:
        return seconds
    resets = [_reset(headers, what, now) for what in ("-requests", "-tokens", "")]
    return max((reset for reset in resets if reset is not None), default=None)


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """The server's ``x-should-retry``, if it says true or false."""
    return {"true": True, "false": False}.get((headers.get("x-should-retry") or "").strip().lower())


def _reset(headers: Mapping[str, str], what: str, now: float) -> float | None:
    if _number(headers.get(f"x-ratelimit-remaining{what}")) != 0:
        return None
    return _wait(headers.get(f"x-ratelimit-reset{what}"), now)


def _wait(text: str | None, now: float) -> float | None:
    """A number of seconds, ``6m0s``, or a date (HTTP's, or an epoch in seconds or milliseconds)."""
    if text is None:
        return None
    if (number := _number(text)) is not None:
        if number < _EPOCH:
            return number
        return _not_negative((number if number < _EPOCH * 1000 else number / 1000) - now)
    if _DURATION.fullmatch(text.strip()):
        return _not_negative(sum(float(count) * _UNIT[unit] for count, unit in _PART.findall(text)))
    try:
        return _not_negative(parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        return _not_negative(float(text)) if text is not None else None
    except ValueError:
        return None


def _not_negative(number: float) -> float | None:
    return number if math.isfinite(number) and number >= 0 else None
