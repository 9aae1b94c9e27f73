"""What headers tell of rate limits: every notation there is, and never a number that is endless or below zero."""

from __future__ import annotations

import math
import string

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from shared_tools import each

from qreward.codecs.rate_limit_headers import REQUESTS, TOKENS, read, wait
from qreward.scheduler.outcome import RateLimit, RateLimitInfo

NOW = 1_800_000_000.0
DATE = "Fri, 15 Jan 2027 08:00:00 GMT"  # the same moment
NAMES = sorted({name for names in (*REQUESTS, *TOKENS) for name in (names.limit, names.remaining, names.reset)})

Said = tuple[float | None, float | None, float | None, float | None]


def said(allowance: RateLimit | None) -> Said | None:
    return None if allowance is None else (allowance.limit, allowance.remaining, allowance.reset, allowance.window)


def told(headers: dict[str, str], now: float = NOW) -> tuple[Said | None, Said | None] | None:
    found = read(CIMultiDict(headers), now)
    return None if found is None else (said(found.requests), said(found.tokens))


OPENAI = {
    "x-ratelimit-limit-requests": "5000",
    "x-ratelimit-remaining-requests": "4999",
    "x-ratelimit-reset-requests": "12ms",
    "x-ratelimit-limit-tokens": "160000",
    "x-ratelimit-remaining-tokens": "159976",
    "x-ratelimit-reset-tokens": "6m0s",
}
ANTHROPIC = {
    "date": DATE,
    "anthropic-ratelimit-requests-limit": "1000",
    "anthropic-ratelimit-requests-remaining": "999",
    "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:01Z",
    "anthropic-ratelimit-tokens-limit": "96000",
    "anthropic-ratelimit-tokens-remaining": "95000",
    "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:30+00:00",
}
CEREBRAS = {
    "x-ratelimit-limit-requests-day": "14400",
    "x-ratelimit-remaining-requests-day": "14399",
    "x-ratelimit-reset-requests-day": "33011.382867097855",
    "x-ratelimit-limit-tokens-minute": "60000",
    "x-ratelimit-remaining-tokens-minute": "59000",
    "x-ratelimit-reset-tokens-minute": "11.5",
}
MISTRAL = {
    "x-ratelimit-limit-req-minute": "720",
    "x-ratelimit-remaining-req-minute": "717",
    "x-ratelimit-limit-tokens-minute": "5000000",
    "x-ratelimit-remaining-tokens-minute": "4999911",
}


def plain(prefix: str, limit: str, remaining: str, reset: str) -> dict[str, str]:
    return {f"{prefix}-limit": limit, f"{prefix}-remaining": remaining, f"{prefix}-reset": reset}


FORMS: list[tuple[str, dict[str, str], Said | None, Said | None]] = [
    ("openai", OPENAI, (5000, 4999, 0.012, None), (160000, 159976, 360, None)),
    ("anthropic", ANTHROPIC, (1000, 999, 1, None), (96000, 95000, 30, None)),
    ("cerebras", CEREBRAS, (14400, 14399, 33011.382867097855, 86400), (60000, 59000, 11.5, 60)),
    ("mistral", MISTRAL, (720, 717, None, 60), (5000000, 4999911, None, 60)),
    ("seconds", plain("x-ratelimit", "100", "42", "23"), (100, 42, 23, None), None),
    ("epoch", plain("x-ratelimit", "100", "42", f"{NOW + 9:.0f}"), (100, 42, 9, None), None),
    ("epoch in milliseconds", plain("x-ratelimit", "20", "0", f"{NOW * 1000 + 9000:.0f}"), (20, 0, 9, None), None),
    ("HTTP date", plain("x-ratelimit", "20", "7", "Fri, 15 Jan 2027 08:00:05 GMT"), (20, 7, 5, None), None),
    ("gone by", plain("x-ratelimit", "20", "7", "Fri, 15 Jan 2027 07:00:05 GMT"), (20, 7, None, None), None),
    ("old draft", plain("ratelimit", "100, 100;w=10", "1", "5"), (100, 1, 5, 10), None),
    ("old draft, two policies", plain("ratelimit", "100, 100;w=60, 1000;w=3600", "1", "5"), (100, 1, 5, 60), None),
    ("old draft, the second policy", plain("ratelimit", "1000, 100;w=60, 1000;w=3600", "1", "5"), (1000, 1, 5, 3600), None),
    ("old draft, no such policy", plain("ratelimit", "50, 100;w=60, 1000;w=3600", "1", "5"), (50, 1, 5, None), None),
    (
        "old draft, policy",
        {**plain("ratelimit", "300", "219", "2"), "ratelimit-policy": '300;w=5;comment="bucket"'},
        (300, 219, 2, 5),
        None,
    ),
    ("only what is left", {"x-ratelimit-remaining-tokens": "19913"}, None, (None, 19913, None, None)),
]


@each("headers, requests, tokens", [form[1:] for form in FORMS])
def test_each_notation_is_read(headers: dict[str, str], requests: Said | None, tokens: Said | None) -> None:
    assert told(headers) == (requests, tokens)


@each(
    "headers",
    [
        {},
        {"content-type": "application/json", "x-request-id": "1"},
        {"x-ratelimit-limit-tokens": "-1", "x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "0"},
        {"x-ratelimit-limit-requests": "0", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1s"},
        plain("x-ratelimit", "100", "burst:100;rate:10", "1"),
        {"x-ratelimit-limit-requests": "1e300", "x-ratelimit-remaining-requests": "1"},
        {"x-ratelimit-limit-tokens-prompt": "1000", "x-ratelimit-limit-requests": "60"},
        {"ratelimit": '"bytes";r=5;t=1', "ratelimit-policy": '"bytes";q=10;qu="content-bytes"'},
        {"ratelimit": "nonsense"},
    ],
)
def test_headers_that_do_not_say_how_much_is_left_are_ignored(headers: dict[str, str]) -> None:
    assert told(headers) is None


def test_a_time_is_taken_by_the_clock_of_the_server_that_wrote_it_or_without_a_date_by_ours() -> None:
    late = told(ANTHROPIC, NOW + 500.0)
    assert late is not None
    assert late[0] == (1000, 999, 1, None)
    undated = {name: value for name, value in ANTHROPIC.items() if name != "date"}
    for headers in (undated, {**undated, "date": "yesterday"}):
        found = told(headers, NOW - 10.0)
        assert found is not None
        assert found[1] == (96000, 95000, 40, None)


@each(
    "text, seconds",
    [
        ("2m59.56s", 179.56),
        ("1h2m3.5s", 3723.5),
        ("250us", 0.00025),
        ("1d", 86400.0),
        ("2027-01-15T08:00:09.5Z", 9.5),
        ("2027-01-15T09:00:09+01:00", 9.0),
        ("2027-01-15T08:00:09", None),  # of which zone?
        ("2027-13-45T08:00:09Z", None),
        ("5 apples", None),
        ("s", None),
        ("", None),
    ],
)
def test_how_long_or_until_when(text: str, seconds: float | None) -> None:
    assert wait(text, NOW) == (None if seconds is None else pytest.approx(seconds))


def numbers(found: RateLimitInfo | None) -> list[float | None]:
    limits = () if found is None else (found.requests, found.tokens)
    return [number for each in limits if each is not None for number in (each.limit, each.remaining, each.reset, each.window)]


ODD = st.text(alphabet=string.digits + "smhdDuTZWedgrtqw;=,\"'-+.:eE_ infa\u0661\x00", max_size=40)


@given(st.dictionaries(st.sampled_from([*NAMES, "ratelimit", "ratelimit-policy", "date"]), ODD), st.floats(0, 1e11))
def test_every_number_is_finite_and_not_negative_whatever_the_headers_say(headers: dict[str, str], now: float) -> None:
    found = read(headers, now)
    assert all(number is None or (math.isfinite(number) and number >= 0) for number in numbers(found)), found
    assert found is None or found.requests is not None or found.tokens is not None


def test_headers_of_any_engine_are_read() -> None:
    upper = {name.upper(): value for name, value in OPENAI.items()}
    for headers in (CIMultiDict(upper), httpx.Headers(upper)):
        found = read(headers, NOW)
        assert found is not None
        assert said(found.requests) == (5000, 4999, 0.012, None)
