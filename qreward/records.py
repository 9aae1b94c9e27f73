"""The usage and the attempt records of results and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec

MOST_TOKENS = 10**9
"""Highest count of tokens that is read from a response. A higher one is a fault of the server."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class PromptTokensDetails(msgspec.Struct, frozen=True, gc=False):
    """Details of the prompt tokens, as reported by the server."""

    cached_tokens: Count | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens used, as reported by the server. A count that was not reported is None.

    A judge adds ``cost``, in US dollars, None if no endpoint has a price; and ``unreported``, the number of attempts that a server may have
    charged although it reported no tokens, such as attempts that timed out.
    """

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    total_tokens: Count | None = None
    prompt_tokens_details: PromptTokensDetails | None = None
    cost: float | None = msgspec.field(default=None, name="qreward_cost")  # servers use the name for other things
    unreported: int = msgspec.field(default=0, name="qreward_unreported")

    @property
    def tokens(self) -> int:
        """The total number of tokens; 0 if no count was reported."""
        return self.total_tokens or (self.prompt_tokens or 0) + (self.completion_tokens or 0)

    @property
    def cached_tokens(self) -> int | None:
        """Those of ``prompt_tokens`` that the server read from its prefix cache."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


def added(one: Usage | None, other: Usage | None) -> Usage | None:
    """Return the sum of two usages. If only one usage has a count, the sum has this count."""
    if one is None or other is None:
        return one or other
    prompt, completion, total, cached = (
        _sum(getattr(one, name), getattr(other, name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")
    )
    details = None if cached is None else PromptTokensDetails(cached)
    return Usage(prompt, completion, total, details, _sum(one.cost, other.cost), one.unreported + other.unreported)


def _sum(one: Any, other: Any) -> Any:
    return one if other is None else other if one is None else one + other


class AttemptRecord(msgspec.Struct, frozen=True, gc=False):
    """Describes one attempt to send a request to one endpoint.

    Attributes:
        endpoint: name of the endpoint.
        outcome: ``ok``, or the kind of failure, such as ``overloaded``, ``transient``, ``timeout`` or ``cancelled``.
        latency: seconds from sending to the outcome.
        status_code: HTTP status of a failure, if there was a response.
        detail: message of the failure, without secrets.
        hedge: True for an attempt that was sent while another attempt of the request was in flight.
    """

    endpoint: str
    outcome: str
    latency: float
    status_code: int | None = None
    detail: str = ""
    hedge: bool = False


def is_retry(earlier: Sequence[AttemptRecord]) -> bool:
    """Return whether an attempt after these is a retry: the last one not cancelled has failed. Overload (such as 429) is no failure."""
    last = next((attempt.outcome for attempt in reversed(earlier) if attempt.outcome != "cancelled"), "ok")
    return last not in ("ok", "overloaded")


def retries(attempts: Sequence[AttemptRecord]) -> Iterator[AttemptRecord]:
    """Yield the attempts that were made because the one before had failed."""
    return (attempt for place, attempt in enumerate(attempts) if not attempt.hedge and is_retry(attempts[:place]))
