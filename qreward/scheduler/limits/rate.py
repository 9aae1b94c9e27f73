"""Rate limits: a configured one (``Gcra``), and one learned from rejects (``LearnedRate``).

``Gcra`` is the generic cell rate algorithm (ITU-T I.371): one float of state per limit, O(1), exact wake times. A request of cost c moves
the theoretical arrival time by c / rate. The next request conforms once that time is less than ``burst`` seconds ahead. A cost larger than
the burst is allowed when there is no debt, and paid off afterwards.

``LearnedRate`` starts with the first reject that carries a hint (``Retry-After``), which may mean a rate limit. The requests accepted over
the last minute, less 2 %, are a rate that the limit certainly allows, for token buckets and calendar windows alike. From there the rate is
raised: 2 % after 20 s without a reject, then twice as much (at most 30 %) every 5 s. A reject takes back the last raise. Rejects that
continue among answers at a rate that was not raised are not caused by the rate: after two of them the learned rate is dropped. Too few
accepted requests are no evidence of a rate. A source that accepts nothing any more is unavailable, so only the first reject after an answer
counts.
"""

from __future__ import annotations

from math import inf

BURST = 0.1
"""Seconds' worth of a rate that may be sent at once. One second can put twice the rate into a provider's per-second window (simulated)."""


class Gcra:
    """A limit on requests or tokens per second."""

    def __init__(self, rate: float, burst: float = BURST) -> None:
        self.rate = rate
        self.burst = burst
        self._arrival = -inf

    @property
    def ready_at(self) -> float:
        """Earliest time at which a request conforms. A past time means now."""
        return self._arrival - self.burst

    def take(self, now: float, cost: float = 1.0, _plain: float | None = None) -> None:
        """Charge for a request. (``HeaderRateLimit`` also takes a plain estimate of its cost.)"""
        self._arrival = max(self._arrival, now) + cost / self.rate

    def give_back(self, cost: float) -> None:
        """Correct an earlier charge: return the unused part, or charge the excess if ``cost`` is negative."""
        self._arrival -= cost / self.rate

    def settle(self, reserved: float, used: float) -> None:
        """A request ended for which ``reserved`` was charged and which used ``used``; 0 if it was not served."""
        self.give_back(reserved - used)


SPAN = 60
SHARE = 0.98
FIRST_RAISE, LARGEST_RAISE = 0.02, 0.30
CALM, NEXT = 20.0, 5.0
EVIDENCE = 5
"""Accepted requests in the last minute needed to learn a rate, and answers needed before a reject counts against a learned rate."""


class LearnedRate:
    """No limit until a reject carries a hint; then a limit on requests per second by GCRA."""

    def __init__(self) -> None:
        self._pace: Gcra | None = None
        self._accepted: dict[int, int] = {}  # second -> requests sent and not rejected, over the last minute
        self._began: float | None = None
        self._changed = self._cut = -inf
        self._answered = 0  # since the last cut
        self._in_vain = False  # the last cut was of a rate that had not been raised
        self._raised = 0.0  # share by which the rate was last raised; 0 before the first raise

    @property
    def rate(self) -> float:
        """Requests per second; inf while there is no limit."""
        return inf if self._pace is None else self._pace.rate

    @property
    def ready_at(self) -> float:
        """Earliest time at which a request conforms."""
        return -inf if self._pace is None else self._pace.ready_at

    def sent(self, now: float) -> None:
        """A request is sent."""
        second = int(now)
        if self._began is None:
            self._began = now
        if second not in self._accepted:
            self._accepted = {then: count for then, count in self._accepted.items() if then >= second - SPAN}
        self._accepted[second] = self._accepted.get(second, 0) + 1
        if self._pace is not None:
            self._pace.take(now)

    def ok(self, now: float) -> None:
        """An answer arrived."""
        self._answered += 1
        if self._pace is not None and now - self._changed > (NEXT if self._raised else CALM):
            self._raised = min(LARGEST_RAISE, max(FIRST_RAISE, 2 * self._raised))
            self._pace.rate *= 1 + self._raised
            self._changed = now

    def refused(self, sent_at: float) -> None:
        """A request sent at ``sent_at`` was rejected."""
        if int(sent_at) in self._accepted:
            self._accepted[int(sent_at)] -= 1

    def hinted(self, now: float, hint: float) -> None:
        """A reject carried a wait of ``hint`` seconds. Rejects within one second count once."""
        if now - self._cut < 1.0 or not self._answered:
            return
        began = now if self._began is None else self._began
        span = float(SPAN) if now - began >= SPAN else now - began + hint
        recent = sum(count for then, count in self._accepted.items() if then >= now - SPAN - 1)
        if recent < EVIDENCE:
            return
        seen = max(1 / SPAN, SHARE * recent / max(1.0, span))
        if self._pace is None:
            self._pace = Gcra(seen)
            self._in_vain = False
        elif self._raised:
            self._pace.rate = max(min(seen, self._pace.rate), self._pace.rate / (1 + self._raised))
            self._in_vain = False
        elif not self._in_vain:
            self._pace.rate = min(seen, SHARE * self._pace.rate)
            self._in_vain = self._answered >= EVIDENCE
        else:
            self._pace = None
        self._cut = self._changed = now
        self._raised, self._answered = 0.0, 0
