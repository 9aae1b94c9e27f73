"""How an attempt can end: the outcomes that transports report and the scheduler decides by.

The module does not know HTTP. Codecs and transports have already mapped a status code to a ``FailureKind``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from qreward.errors import QRewardError


class FailureKind(IntEnum):
    """Why an attempt brought no answer. The kinds differ in what may be done about them."""

    OVERLOADED = 0
    """The endpoint is at capacity or a rate limit is used up (429, 503, 529). Costs the task no attempt and does not affect health."""
    QUOTA = 1
    """The account is used up (``insufficient_quota``): the endpoint is useless for minutes, but another one may serve the task."""
    TRANSIENT = 2
    """The endpoint failed while it processed the request (500, 502, 504, connection reset, broken JSON). The task may be retried."""
    UNREACHABLE = 3
    """No connection was made; the request was certainly not processed."""
    TIMEOUT = 4
    """The attempt's own time limit passed."""
    UNSUITABLE = 5
    """This endpoint will never serve the task, another may (401, 403, 404, 405, 501, a redirect, context too long)."""
    REFUSED = 6
    """The request itself is wrong (400, 413, 422, content filter). It is never sent again."""
    UNSENDABLE = 7
    """The request could not be built (unserialisable content). It is never sent."""
    LOCAL = 8
    """The client's machine is at fault (no file descriptor left). The task is retried; the endpoint's health is not affected."""


class RateLimit:
    """One rate limit as a server advertises it. All numbers are finite and not negative; None is not advertised.

    Attributes:
        limit: requests or tokens that are allowed per window.
        remaining: how many of them are left.
        reset: seconds until all of them are available again.
        window: length of the window in seconds; most servers do not advertise it.
    """

    __slots__ = ("limit", "remaining", "reset", "window")

    def __init__(
        self, limit: float | None = None, remaining: float | None = None, reset: float | None = None, window: float | None = None
    ) -> None:
        self.limit = limit
        self.remaining = remaining
        self.reset = reset
        self.window = window

    def __repr__(self) -> str:
        return f"RateLimit(limit={self.limit}, remaining={self.remaining}, reset={self.reset}, window={self.window})"


class RateLimitInfo:
    """The rate limits that a response advertises: of requests, of tokens, or of both."""

    __slots__ = ("requests", "tokens")

    def __init__(self, requests: RateLimit | None = None, tokens: RateLimit | None = None) -> None:
        self.requests = requests
        self.tokens = tokens

    def __repr__(self) -> str:
        return f"RateLimitInfo(requests={self.requests}, tokens={self.tokens})"


class ProbeResult:
    """Result of a probe: what a server reports about itself. None is not reported.

    Attributes:
        ready: the server is ready. False if it reports that it is not, or does not respond.
        running, waiting: items of requests that the server works on, and that wait inside it.
        most: items that the server works on at once at most.
        items: maximum items of one list.
        trouble: why the probe failed, if a wrong setting is the cause.
    """

    __slots__ = ("items", "most", "ready", "running", "trouble", "waiting")

    def __init__(
        self,
        ready: bool | None = None,
        running: float | None = None,
        waiting: float | None = None,
        most: float | None = None,
        items: int | None = None,
        trouble: str | None = None,
    ) -> None:
        self.ready = ready
        self.running = running
        self.waiting = waiting
        self.most = most
        self.items = items
        self.trouble = trouble

    def __repr__(self) -> str:
        members = ", ".join(f"{name}={getattr(self, name)!r}" for name in ("ready", "running", "waiting", "most", "items", "trouble"))
        return f"ProbeResult({members})"


class Answer:
    """A successful attempt.

    Attributes:
        value: the answer; opaque to the scheduler (see ``qreward.results.Answered``).
        prompt_tokens, output_tokens: tokens used as reported by the server, or None.
        limits: rate limits that the response advertises, or None.
    """

    __slots__ = ("limits", "output_tokens", "prompt_tokens", "value")

    def __init__(
        self, value: Any, prompt_tokens: int | None = None, output_tokens: int | None = None, limits: RateLimitInfo | None = None
    ) -> None:
        self.value = value
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.limits = limits


class Failure:
    """A failed attempt.

    Attributes:
        kind: see :class:`FailureKind`.
        error: the error that the caller receives if the task is not retried.
        retry_after: seconds to wait as requested by the endpoint (``Retry-After``), or None.
        should_retry: value of the endpoint's ``x-should-retry`` header, or None.
        misconfigured: the endpoint itself seems to be configured wrongly (401, 403, 404, ...), not just this request.
        limits: rate limits that the response advertises, or None.
    """

    __slots__ = ("error", "kind", "limits", "misconfigured", "retry_after", "should_retry")

    def __init__(
        self,
        kind: FailureKind,
        error: QRewardError,
        *,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        misconfigured: bool = False,
        limits: RateLimitInfo | None = None,
    ) -> None:
        self.kind = kind
        self.error = error
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.misconfigured = misconfigured
        self.limits = limits

    def __repr__(self) -> str:
        return f"Failure({self.kind.name}, {self.error!r})"


class Cancelled:
    """An attempt that was cancelled, by the scheduler or by the caller. Its connection is closed."""

    __slots__ = ()


CANCELLED = Cancelled()

Outcome = Answer | Failure | Cancelled
