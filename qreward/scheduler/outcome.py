"""The outcomes of an attempt, as transports report them to the scheduler, which knows no HTTP."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from qreward.errors import QRewardError


class FailureKind(IntEnum):
    """The reason why an attempt brought no answer. ``failure_policy.RULES`` says what follows from each kind."""

    OVERLOADED = 0
    """The endpoint is at capacity or a rate limit is used up (429, 503, 529)."""
    QUOTA = 1
    """The quota of the account is used up (``insufficient_quota``)."""
    TRANSIENT = 2
    """The endpoint failed while it processed the request (500, 502, 504, connection reset, broken JSON). The task may be retried."""
    UNREACHABLE = 3
    """No connection was made; the request was certainly not processed."""
    TIMEOUT = 4
    """The attempt's own time limit passed."""
    UNSUITABLE = 5
    """This endpoint will never serve the task, but another endpoint may (401, 403, 404, 405, 501, a redirect, context too long)."""
    REFUSED = 6
    """The request itself is wrong (400, 413, 422, content filter). It is not sent again, unless with ``x-should-retry: true``."""
    UNSENDABLE = 7
    """A fault on the side of the client: the request could not be built, or its answer not be handled. It is not sent (again)."""
    LOCAL = 8
    """The client's machine is the cause (no file descriptor left)."""


@dataclass(slots=True, eq=False)
class RateLimit:
    """One rate limit as a server advertises it. All numbers are finite and not negative, or None if not advertised."""

    limit: float | None = None  # requests or tokens that are allowed per window
    remaining: float | None = None  # how many requests or tokens are left
    reset: float | None = None  # seconds until the whole limit is available again
    window: float | None = None  # length of the window in seconds; most servers do not advertise it


@dataclass(slots=True, eq=False)
class RateLimitInfo:
    requests: RateLimit | None = None
    tokens: RateLimit | None = None


@dataclass(slots=True, eq=False)
class ProbeResult:
    """What a server reports about itself. A field is None if the server does not report it."""

    ready: bool | None = None  # False if it reports that it is not ready, or does not respond
    running: float | None = None  # number of items that the server works on
    waiting: float | None = None  # number of items that wait inside the server
    most: float | None = None  # maximum number of items that the server works on at once
    items: int | None = None  # maximum number of items in one request
    cache_tokens: int | None = None  # number of tokens that the server's prefix cache holds
    trouble: str | None = None  # why the probe failed, if a wrong setting is the cause


class Answer(msgspec.Struct, eq=False):
    """The outcome of an attempt that was answered. Tokens are as the server reported them, or None."""

    response: Any  # the decoded response; opaque to the scheduler (see ``qreward.results.Answered``)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    limits: RateLimitInfo | None = None  # rate limits that the response advertises, or None
    cached_tokens: int | None = None  # prompt tokens that the server read from its prefix cache

    __repr__ = object.__repr__  # does not show the response


@dataclass(slots=True, eq=False)
class Failure:
    """The outcome of an attempt that failed."""

    kind: FailureKind  # see :class:`FailureKind`
    error: QRewardError  # the error that the caller receives if the task is not retried
    _: KW_ONLY
    retry_after: float | None = None  # seconds to wait as requested by the endpoint (``Retry-After``), or None
    should_retry: bool | None = None  # value of the endpoint's ``x-should-retry`` header, or None
    hurts_health: bool = True  # False if the failure does not count against the health of the endpoint, whatever its kind
    misconfigured: bool = False  # the endpoint itself seems to be configured wrongly (401, 403, 404, ...), not just this request
    limits: RateLimitInfo | None = None  # rate limits that the response advertises, or None


class Cancelled:
    """The outcome of an attempt that was cancelled, by the scheduler or by the caller."""

    __slots__ = ()


CANCELLED = Cancelled()

Outcome = Answer | Failure | Cancelled


class LastFailure(NamedTuple):
    """The last failure of a source other than overload. ``shown`` is its description without the server's text."""

    at: float
    kind: FailureKind
    message: str
    shown: str


def described(outcome: Failure | Cancelled) -> str:
    """Describe what ended an attempt, for a message. The server's text is left out, because that text may quote the request."""
    if not isinstance(outcome, Failure):
        return "requests were given up without an answer"
    error = outcome.error
    status, model = getattr(error, "status_code", None), getattr(error, "model", None)
    answered = f"it answered {status}" + (f" for model {model!r}" if model else "")
    return f"{type(error).__name__}: {error if status is None else answered}"
