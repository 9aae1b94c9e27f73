"""Pacing by GCRA, the generic cell rate algorithm (ITU-T I.371): one float of state a limit, O(1), exact wake times.

A send of cost c moves the theoretical arrival time by c / rate; the next send conforms once that time is less than
``burst`` seconds ahead. A cost larger than the burst is let through when there is no debt, and paid off afterwards.
"""

from __future__ import annotations

BURST = 0.1
"""Seconds of a rate that may be sent at once. One second doubles up in providers' per-second windows (simulated)."""


class Pace:
    """A limit on requests or tokens per second."""

    __slots__ = ("_arrival", "burst", "rate")

    def __init__(self, rate: float, burst: float = BURST) -> None:
        self.rate = rate
        self.burst = burst
        self._arrival = float("-inf")

    @property
    def ready_at(self) -> float:
        """The earliest time at which a send conforms; a time in the past means now."""
        return self._arrival - self.burst

    def take(self, now: float, cost: float = 1.0) -> None:
        """Pay for a send."""
        self._arrival = max(self._arrival, now) + cost / self.rate

    def give_back(self, cost: float) -> None:
        """Correct an earlier payment: what was not used comes back, what was used beyond it (negative) is paid."""
        self._arrival -= cost / self.rate
