"""A circuit breaker that does what it is told: so many failures in a row open it, after a while one call tries again.

Nygard, "Release It!" (2007). Unlike ``core.health``, which finds out by itself whether an endpoint is well, the numbers are the user's.
"""

from __future__ import annotations

from math import inf

from qreward.core.calls.terms import Breaking


class Breaker:
    """Closed, open until a time, or half-open with one call under way that decides.

    Attributes:
        terms: may be changed at any time.
        probe: the call that decides, while half-open.
        failures: in a row.
    """

    __slots__ = ("_opened_at", "failures", "probe", "terms")

    def __init__(self, terms: Breaking) -> None:
        self.terms = terms
        self.failures = 0
        self.probe: object = None
        self._opened_at = -inf

    @property
    def open_until(self) -> float:
        """No call before this time; -inf while closed."""
        return self._opened_at + self.terms.recovery

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        if self._opened_at == -inf:
            return "closed"
        return "open" if self.probe is None else "half-open"

    def trusts(self, call: object) -> bool:
        """Whether a call may go on as if nothing had happened: nothing has, or it is the one that finds out."""
        return self._opened_at == -inf or self.probe is call

    def admits(self, now: float, call: object) -> bool:
        """Whether a call may be tried. If it is the one that is to find out, it must be told of by :meth:`over`."""
        if self.trusts(call):
            return True
        if self.probe is None and now >= self.open_until:
            self.probe = call
            return True
        return False

    def ok(self, call: object) -> None:
        """A try succeeded. While the breaker is not closed, only that of one call tells anything: others began before it opened."""
        if self.trusts(call):
            self.failures, self._opened_at, self.probe = 0, -inf, None

    def failed(self, now: float, call: object) -> bool:
        """A try failed. True if the breaker has opened now."""
        self.failures += 1
        if not self.trusts(call) or (self.probe is None and self.failures < self.terms.threshold):
            return False
        self._opened_at, self.probe = now, None
        return True

    def over(self, call: object) -> None:
        """A call has ended: if it was to find out and did not, the next one is."""
        if self.probe is call:
            self.probe = None
