"""Rate limits: a configured limit (``Gcra``), and a limit that is learned from rejects (``LearnedRate``).

``Gcra`` is the generic cell rate algorithm (ITU-T I.371). It needs one float per limit and constant time per request, and its wake times
are exact. A request delays the theoretical arrival time by the cost of the request divided by the rate. The next request is allowed once
the theoretical arrival time is at most ``burst`` seconds ahead. A request whose cost exceeds the burst is allowed too; later requests then
wait until its cost is paid off.

``LearnedRate`` has no limit until a reject carries a hint (``Retry-After``). Then it allows the rate at which requests were accepted over
the last minute, less 2 %, which token buckets and calendar minutes both allow. A reject takes back the last raise.
"""

from __future__ import annotations

from math import inf

BURST = 0.1
"""The requests that the rate allows in this number of seconds may be sent together. With one second, a provider that counts in windows of
one second could receive twice the rate (simulated)."""


class Gcra:
    """Limits the requests or the tokens per second."""

    def __init__(self, rate: float, burst: float = BURST) -> None:
        self.rate = rate
        self.burst = burst
        self._arrival = -inf

    @property
    def ready_at(self) -> float:
        """Earliest time at which a request is allowed. If the time has passed, a request is allowed now."""
        return self._arrival - self.burst

    def take(self, now: float, cost: float = 1.0) -> None:
        """Charge for a request."""
        self._arrival = max(self._arrival, now) + cost / self.rate

    def give_back(self, cost: float) -> None:
        """Correct an earlier charge: return the unused part, or charge the excess if ``cost`` is negative."""
        self._arrival -= cost / self.rate

    def settle(self, reserved: float, used: float) -> None:
        """Correct the charge of a request that has ended. ``used`` is what it really used; 0 if it was not served."""
        self.give_back(reserved - used)


SPAN = 60
"""Seconds over which accepted requests are counted."""
SHARE = 0.98
"""Share (0 to 1) of the rate of accepted requests that becomes the learned rate."""
FIRST_RAISE, LARGEST_RAISE = 0.02, 0.30
"""Shares (0 to 1) by which the first raise increases the rate, and a later one at most. Each raise is twice as large as the last."""
CALM, NEXT = 20.0, 5.0
"""``CALM``: seconds without a reject before the first raise. ``NEXT``: seconds without a reject between two raises."""
EVIDENCE = 5
"""Least number of accepted requests for a rate to be learned."""


class LearnedRate:
    """Limits the requests per second to a rate that is learned from rejects."""

    def __init__(self) -> None:
        self.pace: Gcra | None = None  # the limit, once there is one
        self._accepted: dict[int, int] = {}  # second -> requests sent and not rejected, over the last minute
        self._began: float | None = None  # when the first request was sent
        self._changed = self._cut = -inf  # when the rate was last changed, and when it was last lowered
        self._answered = False  # an answer has come since the rate was last lowered
        self._raised = 0.0  # share by which the rate was last raised; 0 before the first raise

    @property
    def rate(self) -> float:
        return inf if self.pace is None else self.pace.rate

    @property
    def ready_at(self) -> float:
        return -inf if self.pace is None else self.pace.ready_at

    def sent(self, now: float) -> None:
        second = int(now)
        if self._began is None:
            self._began = now
        if second not in self._accepted:
            self._accepted = {then: count for then, count in self._accepted.items() if then >= second - SPAN}
        self._accepted[second] = self._accepted.get(second, 0) + 1
        if self.pace is not None:
            self.pace.take(now)

    def ok(self, now: float) -> None:
        self._answered = True
        if self.pace is not None and now - self._changed > (NEXT if self._raised else CALM):
            self._raised = min(LARGEST_RAISE, max(FIRST_RAISE, 2 * self._raised))
            self.pace.rate *= 1 + self._raised
            self._changed = now

    def refused(self, sent_at: float) -> None:
        if int(sent_at) in self._accepted:
            self._accepted[int(sent_at)] -= 1

    def hinted(self, now: float, hint: float) -> None:
        """Record a reject that carried a wait of ``hint`` seconds. Rejects within one second count once."""
        if now - self._cut < 1.0 or not self._answered:
            return
        began = now if self._began is None else self._began
        span = float(SPAN) if now - began >= SPAN else now - began + hint
        recent = sum(count for then, count in self._accepted.items() if then >= now - SPAN - 1)
        if recent < EVIDENCE:
            return
        seen = max(1 / SPAN, SHARE * recent / max(1.0, span))
        if self.pace is None:
            self.pace = Gcra(seen)
        elif self._raised:
            self.pace.rate = max(min(seen, self.pace.rate), self.pace.rate / (1 + self._raised))
        else:
            self.pace.rate = min(seen, SHARE * self.pace.rate)
        self._cut = self._changed = now
        self._raised, self._answered = 0.0, False
