"""Parsers of response headers about rate limits and retries."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import NamedTuple

from qreward.codecs.json import finite
from qreward.scheduler.outcome import RateLimit, RateLimitInfo

Headers = Mapping[str, str]

MOST = 1e15
"""Largest number of requests or tokens that is accepted. A header with a larger number is ignored."""

_MINUTE, _DAY = 60.0, 86400.0
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY}
_PARAMETER = re.compile(r'([a-z]+)="?([^;,"]+)')
_EPOCH = 1e9  # a smaller number is a duration in seconds; a larger number is a date since 1970


class Names(NamedTuple):
    remaining: str
    limit: str
    reset: str
    window: float | None = None

    @classmethod
    def of(cls, pattern: str, window: float | None = None) -> Names:
        return cls(pattern.format("remaining"), pattern.format("limit"), pattern.format("reset"), window)


REQUESTS = (
    Names.of("x-ratelimit-{}-requests"),  # OpenAI, Azure OpenAI, Groq, LiteLLM's proxy; mostly token buckets
    Names.of("x-ratelimit-{}"),  # gateways
    Names.of("ratelimit-{}"),  # draft-ietf-httpapi-ratelimit-headers up to version -06
    Names.of("anthropic-ratelimit-requests-{}"),  # the reset is a time, which may be slightly in the past
    Names.of("x-ratelimit-{}-requests-minute", _MINUTE),  # Cerebras
    Names.of("x-ratelimit-{}-req-minute", _MINUTE),  # Mistral, without reset
    Names.of("x-ratelimit-{}-requests-day", _DAY),
)
TOKENS = (
    Names.of("x-ratelimit-{}-tokens"),
    Names.of("anthropic-ratelimit-tokens-{}"),
    Names.of("x-ratelimit-{}-tokens-minute", _MINUTE),
    Names.of("x-ratelimit-{}-tokens-day", _DAY),
)
_SIGNS = frozenset(names.remaining for names in (*REQUESTS, *TOKENS))
_HINTS = (REQUESTS[0], TOKENS[0], REQUESTS[1])
"""Header names of the limits for which ``reset`` is the time to wait if ``remaining`` is 0."""


def retry_after(headers: Headers, now: float) -> float | None:
    """Return the seconds to wait before the next request, or None if no header contains them."""
    if (milliseconds := number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    now = _clock(headers, now)
    if (seconds := wait(headers.get("retry-after"), now)) is not None:
        return seconds
    resets = [wait(headers.get(names.reset), now) for names in _HINTS if number(headers.get(names.remaining)) == 0]
    return max((reset for reset in resets if reset is not None), default=None)


def should_retry(headers: Headers) -> bool | None:
    return {"true": True, "false": False}.get((headers.get("x-should-retry") or "").strip().lower())


def wait(text: str | None, now: float) -> float | None:
    """Return a header value as the number of seconds to wait; None if the value is invalid or a date in the past."""
    if text is None:
        return None
    text = text.strip()
    if text[-1:] in _UNIT and _DURATION.fullmatch(text):
        return number(sum([float(count) * _UNIT[unit] for count, unit in _PART.findall(text)]))
    moment = number(text)
    if moment is None:
        moment = timestamp(text)
    elif moment < _EPOCH:
        return moment
    elif moment >= _EPOCH * 1000:
        moment /= 1000
    return None if moment is None else number(moment - now)


def timestamp(text: str) -> float | None:
    """Return an HTTP or RFC 3339 date as seconds since 1970; None if the date is invalid or has no time zone."""
    try:
        moment = datetime.fromisoformat(text) if text[:1].isdigit() else parsedate_to_datetime(text)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def number(raw: str | float | None) -> float | None:
    """Return a number, or the number in a text; None if there is none, or if it is infinite, NaN or negative."""
    value = finite(raw)
    return value if value is not None and value >= 0 else None


def read(headers: Headers, now: float | None = None) -> RateLimitInfo | None:
    if not tell_limits(tuple(headers)):
        return None
    clock = _clock(headers, now)
    requests = _first(REQUESTS, headers, clock)
    tokens = _first(TOKENS, headers, clock)
    return RateLimitInfo(requests, tokens) if requests is not None or tokens is not None else None


@lru_cache(maxsize=1024)
def tell_limits(names: tuple[str, ...]) -> bool:
    """Return whether headers with these names tell a limit. A server nearly always answers with the same names."""
    return not _SIGNS.isdisjoint(map(str.lower, names))


def _clock(headers: Headers, now: float | None) -> float:
    """Return the server's time from the ``date`` header, because the local clock may differ by more than a window."""
    date = headers.get("date")
    moment = None if date is None else _date(date)
    return moment if moment is not None else time.time() if now is None else now


_date = lru_cache(maxsize=64)(timestamp)


def _first(known: tuple[Names, ...], headers: Headers, clock: float) -> RateLimit | None:
    for names in known:
        remaining = headers.get(names.remaining)
        if remaining is None:
            continue
        limit = headers.get(names.limit)
        policies = "" if limit is None or limit.isdigit() else limit  # "100, 100;w=60, 1000;w=3600"
        if limit is not None:
            limit = limit.partition(",")[0].partition(";")[0].strip()
        window = names.window or _window(policies, limit)
        if window is None and names.remaining == "ratelimit-remaining":
            window = _window(headers.get("ratelimit-policy") or "", limit)
        left, most = number(remaining), number(limit)
        if left is None or left > MOST or most == 0 or (most is not None and most > MOST):
            return None
        return RateLimit(most, left, wait(headers.get(names.reset), clock), window)
    return None


def _window(policies: str, limit: str | None) -> float | None:
    """Return the window in seconds (parameter ``w``) of the policy with this limit. If only one policy has a window, return this window."""
    windows = {}
    for policy in policies.lower().split(","):
        quota, _, parameters = policy.partition(";")
        if window := number(dict(_PARAMETER.findall(";" + parameters)).get("w")):
            windows[quota.strip()] = window
    return next(iter(windows.values())) if len(windows) == 1 else windows.get(limit or "")
