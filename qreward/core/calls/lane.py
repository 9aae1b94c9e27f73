"""One key of a function: who waits for it, its rate, its breaker, and when it may be forgotten."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import TYPE_CHECKING

from qreward.core.calls.adapting import Adaptive, kept
from qreward.core.calls.breaker import Breaker
from qreward.core.calls.ranked import Ranked
from qreward.core.calls.ration import Ration

if TYPE_CHECKING:
    from qreward.core.calls.call import Call
    from qreward.core.calls.function import Function

MEMORY = 60.0
"""Seconds for which the failures of a key, its breaker's being due, and the limit it was found to have are remembered unused."""


class Lane:
    """It stands where an endpoint does for a request.

    Attributes:
        line: calls that wait for the rate or for room, the first in rank first.
        adaptive: the limit of its rate, if that moves.
        closed_until: it has asked to be left alone until then.
        calls: that have not ended.
        inflight: tries under way.
        used_at: when a try last began or ended.
        resting: it is among those that may be forgotten soon.
    """

    __slots__ = (
        "adaptive", "breaker", "calls", "closed_until", "function", "inflight", "key", "line", "ration", "resting", "used_at",
    )  # fmt: skip

    handle: object = None

    def __init__(self, function: Function, key: Hashable) -> None:
        self.function = function
        self.key = key
        self.line: Ranked[Call] = Ranked()
        self.calls = self.inflight = 0
        self.used_at = -inf
        self.resting = False
        self.start_anew()

    def start_anew(self) -> None:
        """Forget what was counted and learned."""
        self.ration: Ration | None = None
        self.breaker: Breaker | None = None
        self.adaptive: Adaptive | None = None
        self.closed_until = -inf
        self.follow()

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return f"{self.function.name}()" + (f" for the key {self.key!r}" if self.function.keyed else "")

    def follow(self) -> None:
        """Hold what the function says now."""
        terms = self.function.terms
        rate, breaking = terms.rate, terms.breaking
        if rate is None:
            self.ration = self.adaptive = None
        else:
            self.adaptive = kept(self.adaptive, terms.adapting, rate.size, rate.size)
            if self.ration is None:
                self.ration = Ration(rate.size, rate.window)
            self.ration.change(rate.size, rate.window)
            self.settle()
        if breaking is None:
            self.breaker = None
        elif self.breaker is None:
            self.breaker = Breaker(breaking)
        else:
            self.breaker.terms = breaking

    def settle(self) -> None:
        """The limit that moves has moved."""
        if self.ration is not None and self.adaptive is not None:
            self.ration.size = self.adaptive.limit

    def ready_at(self, call: Call) -> float:
        """The earliest time at which it allows a try of a call; a past time means now."""
        at = self.closed_until
        return at if self.ration is None or not call.terms.paced else max(at, self.ration.ready_at)

    @property
    def idle(self) -> bool:
        """No call and no try needs it."""
        return not self.calls and not self.inflight

    def clear_at(self) -> float:
        """From then on nothing is lost if it is forgotten; inf while it is in use."""
        if not self.idle:
            return inf
        at = self.closed_until if self.ration is None else max(self.closed_until, self.ration.clear_at)
        breaker = self.breaker
        if breaker is not None and breaker.failures:
            at = max(at, self.used_at + MEMORY, breaker.open_until + MEMORY)
        return at if self.adaptive is None else max(at, self.used_at + MEMORY)
