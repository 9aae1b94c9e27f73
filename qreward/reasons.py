"""Why requests wait: the reasons as codes, and one sentence for the work of a route. The scheduler makes them (``scheduler.why``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReasonCode = Literal[
    "ready", "running", "rate_limit", "token_limit", "concurrency_limit", "recovering", "cooldown", "out_of_service", "failing", "quota",
    "no_answer", "held_back", "input", "consumer", "budget", "paused", "marked_unhealthy", "removed", "no_endpoint", "event_loop",
]  # fmt: skip
"""Why work waits; ``docs/how-to/why-nothing-moves.md`` lists them. Of two endpoints that are expected to take a request at the same time,
the one whose code comes first is the reason."""

WAITING: tuple[ReasonCode, ...] = (
    "rate_limit", "token_limit", "concurrency_limit", "cooldown", "out_of_service", "failing", "quota", "no_answer", "paused",
)  # fmt: skip
"""The reasons that trainers log."""


@dataclass(frozen=True, slots=True)
class EndpointReason:
    """Why one endpoint takes no request now.

    Attributes:
        text: the reason with its numbers, such as ``gpu-0 is at its limit of 16 requests in flight``; ``code`` is a ``ReasonCode``.
        ready_in: seconds until the endpoint can take a request, 0.0 for now. None if an event must come first.
    """

    endpoint: str
    code: ReasonCode
    text: str
    ready_in: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the work of one route waits. ``str`` returns the sentence.

    Attributes:
        route: pattern of the route; ``""`` if the reason concerns all routes.
        code, text: the binding reason: that of the endpoint that is expected to take a request first.
        waiting: items that are not in flight and have no result.
        endpoints: the endpoints, the binding one first.
    """

    route: str
    code: ReasonCode
    text: str
    waiting: int = 0
    in_flight: int = 0
    endpoints: tuple[EndpointReason, ...] = ()

    @property
    def is_stuck(self) -> bool:
        """True if work waits or is in flight, and something prevents it."""
        return self.code not in ("ready", "running")

    def __str__(self) -> str:
        return self.text
