"""How an attempt can end. The wire says it in these words, the scheduler decides by them.

Knows nothing of HTTP: a status has already become a kind when it arrives here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from qreward.errors import QRewardError


class FailureKind(IntEnum):
    """Why an attempt gave no answer, by what may be done about it."""

    OVERLOADED = 0
    """The endpoint has no room or a rate is used up (429, 503, 529). Costs the task nothing, says nothing of health."""
    QUOTA = 1
    """The account is used up (``insufficient_quota``): no use for minutes, but another endpoint may serve."""
    TRANSIENT = 2
    """The endpoint failed while it worked on it (500, 502, 504, reset, broken JSON). May be tried again."""
    UNREACHABLE = 3
    """No connection was made; the request was certainly not processed."""
    TIMEOUT = 4
    """The attempt's own time limit passed."""
    UNSUITABLE = 5
    """This endpoint will never serve it, another may (401, 403, 404, 405, 501, a redirect, context too long)."""
    REFUSED = 6
    """The request itself is wrong (400, 413, 422, content filter). Never sent again."""
    UNSENDABLE = 7
    """The request could not be built (unserialisable content). Never sent."""
    LOCAL = 8
    """Our own machine is at fault (no file descriptor left). Tried again; says nothing of the endpoint."""


class RateLimit:
    """What a server says of one of its rate limits. All numbers are finite and not negative; None is not said.

    Attributes:
        limit: requests or tokens that are allowed a window.
        remaining: how many of them are left.
        reset: seconds until all of them are back.
        window: seconds of the window, where the server names it; most do not.
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
    """What an answer says of the rate limits it was served under: of requests, of tokens, or of both."""

    __slots__ = ("requests", "tokens")

    def __init__(self, requests: RateLimit | None = None, tokens: RateLimit | None = None) -> None:
        self.requests = requests
        self.tokens = tokens

    def __repr__(self) -> str:
        return f"RateLimitInfo(requests={self.requests}, tokens={self.tokens})"


class ProbeResult:
    """What a server says of itself when it is asked from outside; None is not said.

    Attributes:
        ready: it serves. False: it says that it does not, or nobody is there.
        running, waiting: elements of requests that it works on, and that wait for it.
        most: elements that it works on at once at most.
        items: most items of one list.
        trouble: why it can say nothing, if that is a fault of its settings.
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
    """An attempt that succeeded.

    Attributes:
        value: the answer, opaque here (see ``qreward.results.Answered``).
        prompt_tokens, output_tokens: what the server says it used, if it does.
        limits: what the server says of its rate limits, if it does.
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
    """An attempt that gave no answer.

    Attributes:
        kind: see :class:`FailureKind`.
        error: what the caller gets if this is the last word.
        retry_after: seconds the endpoint asks us to stay away, or None.
        should_retry: the endpoint's own word (``x-should-retry``), or None.
        misconfigured: the endpoint itself looks wrongly set up (401, 403, 404, ...), not just this request.
        limits: what the endpoint says of its rate limits, if it does.
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
    """An attempt that was stopped, by us or by the caller; the connection is closed."""

    __slots__ = ()


CANCELLED = Cancelled()

Outcome = Answer | Failure | Cancelled
