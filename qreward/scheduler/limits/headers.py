"""A rate limit that follows the server's rate limit headers, so that requests slow down before the first reject.

The headers of a response *advertise* the ``remaining`` amount of a limit, and the seconds (``reset``) until all of it is available again.
There are two kinds of limits, which the headers do not distinguish. A *bucket* refills continuously, and its ``reset`` grows with use.
OpenAI's limits are buckets. Their reset is "the time until the rate limit resets to its initial state" (guide to rate limits). For example,
the reset was 13.554 s after 4,518 of 20,000 tokens a minute were used. A *window* ends at a fixed time, at which the whole limit is
available again (``RateLimit-Reset`` of draft-ietf-httpapi-ratelimit-headers-06; proxies that count calendar minutes).

A1  The remaining amount is computed from the response to the latest request. It is the amount that this response advertised, less the cost
    of requests sent after that request, plus the refill since then. Responses to earlier requests are outdated. Requests that
    were sent at the same instant may be processed in any order. If the server writes the headers when it answers, it has counted some later
    requests already. The computed amount is then too low until the next response.
A2  If ``remaining`` falls and ``reset`` rises, the limit is a bucket; if both fall, it is a window. The latest such observation counts.
    Before the first observation the limit is taken for a window, unless the used amount divided by ``reset`` equals the limit divided by a
    usual window. In that case the limit is taken for a bucket. The refill rate of a bucket is the fall of ``remaining`` divided by the rise
    of ``reset``.
A3  If nothing remains, requests wait for the refill or for the end of the window. After a minute without a request, or when the time of a
    ``Retry-After`` has passed, one request is sent anyway. If this request is answered and the response advertises that nothing remains,
    the headers are ignored until they advertise a remaining amount. An answer without the header ends the limit.
A4  For each request an estimate of its tokens is reserved. The estimate is scaled by what the server has charged for earlier estimates,
    because the server may count ``max_tokens``, or the tokens of other clients. A request is sent only if enough remains: the largest
    recent cost of a request, and a share of the reserved tokens that no answer has confirmed yet.

A limit that is not reached delays nothing. A configured limit applies in addition. This module does not parse headers.
"""

from __future__ import annotations

from collections import deque
from math import inf

from qreward.scheduler.limits.rate import BURST, Gcra
from qreward.scheduler.outcome import RateLimit

MINUTE = 60.0
"""Length in seconds that the window of a limit is assumed to have if nothing else is known."""
USUAL_WINDOWS = (1.0, 10.0, 60.0, 3600.0, 86400.0)
"""Lengths in seconds that the windows of servers usually have."""
LONG = USUAL_WINDOWS[2:]
"""Lengths in seconds of the windows that are recognised from a single response. The shorter usual windows are left out, because a small
empty bucket would look like a window of one second."""
NEAR, EXACT = 0.25, 0.05
"""Relative tolerances (0 to 1) within which a window counts as a usual window. ``NEAR`` is for a measured window, ``EXACT`` for a window
that a single response shows."""
MARKED = 0.05
"""Share (0 to 1) of the largest ``remaining`` seen. ``remaining`` must have fallen by this much before it is decided whether the limit is a
bucket or a window."""
TICKS = 5.0
"""Number of rounding steps, because servers round ``reset`` and ``remaining``. ``reset`` must have changed by this many steps before the
kind of the limit is decided, and ``remaining`` by this many steps before the rate is measured."""
PLENTY, GLANCE = 0.5, 1.0
"""``PLENTY``: share (0 to 1) of a limit. ``GLANCE``: seconds. While more than ``PLENTY`` of a limit remains, headers are read only once in
``GLANCE`` seconds."""
FINE = 0.001
"""Rounding step of ``reset`` in seconds, if the server advertises fractions of a second."""
STEADY = 0.98
"""Share (0 to 1) of the rate that is used if windows are shorter than the time from a request to its response."""
LONGEST_WAIT = 60.0
"""Seconds after the last request. When they have passed, one request is sent although nothing remains."""
FORGOTTEN = 300.0
"""Seconds after which an advertised limit is dropped if no response has advertised it again."""
DOUBT = 0.25
"""Share (0 to 1) of the reserved tokens by which the used tokens may exceed the reserved tokens."""
RESERVE = 0.05
"""Maximum share (0 to 1) of a window's limit that is kept free for a large request. It is small, because the kept part is lost if no large
request comes before the window ends. For a bucket there is no such maximum, because the kept part of a bucket is not lost."""
FADE = 0.998
"""Factor by which each request multiplies the largest recent cost, and each response the longest recent lag. The cost halves in about 350
requests, and the lag in about 350 responses."""
PRIOR, MEMORY = 10.0, 0.99
"""``PRIOR``: weight of the initial estimate, as a number of requests. ``MEMORY``: factor by which each new charge multiplies the weight of
older charges."""
MOST_SCALE = 8.0
"""Largest value of ``scale``, which is the server's charges divided by the estimates. The smallest value is 1 divided by this number."""
REMEMBERED = 4096
"""Maximum number of send times that are kept. Without this maximum, the number would grow while no response advertises the limit."""


class HeaderRateLimit:
    """Follows a limit on requests or on tokens that a server advertises. It has the interface of a ``Gcra``.

    Args:
        pace: the configured limit, which applies as well.
        doubt: 0 if costs are known beforehand (requests), ``DOUBT`` if they are estimates (tokens).

    Example:
        >>> limit = HeaderRateLimit()
        >>> limit.update(2.0, 1.0, RateLimit(limit=600, remaining=0, reset=30.0))
        >>> limit.ready_at
        32.0
    """

    def __init__(self, pace: Gcra | None = None, *, doubt: float = 0.0) -> None:
        self.pace = pace
        self.window: float | None = None  # seconds in which the whole limit is available again, or None if unknown
        self.refill = 0.0  # amount per second; 0 for a window, which is refilled at once
        self.scale = 1.0  # tokens that the server charges for one estimated token; always 1 for requests
        self._doubt = doubt
        # accounting
        self._left, self._at = inf, -inf  # remaining amount (inf while unknown), and the time for which it was computed
        self._most = inf  # remaining amount when nothing is used
        self._used = 0.0  # amount used according to the latest response; the reset refills only this, unless the limit is surely a window
        self._paid = self._confirmed = 0.0  # cost of all requests so far, and the part of it that responses cover
        # the requests by their send time: [time, total cost after the first of them, total cost after the last, their number]
        self._sends: deque[list[float]] = deque(maxlen=REMEMBERED)
        self._ask_at = inf  # when one request is sent although nothing remains
        self._probe_at = inf  # when the last such request was sent
        self._open = 0.0  # reserved amount that is not settled
        self._largest = 1.0  # largest recent cost of a request
        # what responses advertise
        self._follows = False  # responses advertise ``remaining``, and not only the limit
        self._newest, self._advertised_at = -inf, -inf  # when the latest request with headers was sent, and when it was answered
        self._replies, self._lowest = 0, 0.0  # responses to requests sent at ``_newest``: number, and lowest ``remaining``
        self._nonsense = False  # headers are ignored, by A3
        self._sums = (0.0, 0.0)  # charged and estimated amounts, with more weight on recent amounts
        self._reference: tuple[float, float, float] | None = None  # (sent at, cost so far, remaining) that charges are compared with
        # the kind of limit
        self._bucket: bool | None = None  # whether it is a bucket; None if unknown
        self._mark: tuple[float, float, float] | None = None  # (sent at, remaining, reset) by which the kind is decided
        self._peak = 0.0  # largest ``remaining`` advertised
        self._began, self._full_at = -inf, -inf  # start and end of the window; requests sent before the start belong to the window before
        self._guessed = False  # the end of the window was computed, and not advertised yet
        self._longest = 0.0  # largest ``reset`` advertised; a window is at least as long
        self._lag = 0.0  # longest recent number of seconds from a request to its response

    # the interface of a ``Gcra``

    @property
    def rate(self) -> float:
        """Requests or tokens per second, as far as known; inf while there is no limit."""
        return min(inf if self.pace is None else self.pace.rate, self.refill or inf)

    @property
    def ready_at(self) -> float:
        """Earliest time at which a request is allowed. If the time has passed, a request is allowed now."""
        at = -inf if self.pace is None else self.pace.ready_at
        needed = self._needed()
        if self._left >= needed:
            return at
        back_at = self._at + (needed - self._left) / self.refill if self.refill else self._full_at
        return max(at, min(back_at, self._ask_at))

    def take(self, now: float, cost: float = 1.0, plain: float | None = None) -> None:
        """Charge for a request.

        Args:
            now: seconds.
            cost: expected cost of the request.
            plain: an estimate of the cost that does not depend on earlier answers. While the server advertises the remaining amount, this
                estimate times ``scale`` is charged instead of ``cost``.
        """
        if self.pace is not None:
            self.pace.take(now, cost)
        if self._doubt:
            self._open += cost
            if plain is not None and self._follows:
                cost = plain * self.scale
            self._largest = max(cost, FADE * self._largest)
        if self._left == inf or now - self._advertised_at > FORGOTTEN:
            self._left = inf
            return
        self._advance(now)
        if self._left < self._needed() and now >= self._ask_at:
            self._probe_at = now
        self._ask_at = now + LONGEST_WAIT
        self._left -= cost
        self._paid += cost
        sends = self._sends
        if sends and sends[-1][0] == now:
            sends[-1][2] = self._paid
            sends[-1][3] += 1
        else:
            sends.append([now, self._paid, self._paid, 1])

    def settle(self, reserved: float, used: float) -> None:
        """Correct the charge of a request that has ended.

        While the server advertises ``remaining``, the tokens that an answer used do not change the remaining amount, because the server
        counts them itself. Besides, short answers arrive first, so the tokens that the first answers used would be too low an estimate.

        Args:
            reserved: the amount that was charged.
            used: the amount that the request used; 0 if it was not served.
        """
        if self.pace is not None:
            self.pace.give_back(reserved - used)
        self._open = max(0.0, self._open - reserved)
        self._largest = max(used, self._largest)
        if not self._follows or not used:
            self._left += reserved - used

    # responses

    def update(
        self, now: float, sent_at: float, info: RateLimit | None, *, answered: bool = True, others: float = 0.0, hint: float | None = None
    ) -> None:
        """Apply what a response advertises, because a request ended or its streamed answer began.

        Args:
            now: when the response arrived.
            sent_at: when its request was sent.
            info: the advertised limit, or None if there is none. None ends the limit if the request was answered and was sent after the
                last response with a limit.
            answered: the request was served, not rejected.
            others: cost of the other requests in flight; used only with the first advertised limit.
            hint: seconds after which a rejected request may be retried, as the server requests, or None. The hint takes precedence over
                computed times.
        """
        if info is not None:
            self._apply(now, sent_at, info, answered, others)
            if hint is not None:
                self._ask_at = now + hint
        elif hint is not None:
            self._ask_at = min(self._ask_at, now + hint)
        elif sent_at > self._advertised_at:
            if answered:
                self._left = inf
            else:
                self._ask_at = now

    def _apply(self, now: float, sent_at: float, info: RateLimit, answered: bool, others: float) -> None:
        limit, remaining, window = info.limit, info.remaining, info.window
        plenty = PLENTY * self._most
        if remaining is not None and remaining > plenty and self._left > plenty and now < self._advertised_at + GLANCE:
            return
        if sent_at < max(self._newest, self._began) or (limit is not None and limit <= 0):
            return
        if remaining is None:
            if limit is None or window is None:  # a limit of unknown window may be per second, and would be taken for a limit per minute
                return
            remaining = limit if self._left == inf else min(limit, self._left)
            self._follows = False
        elif limit is None and info.reset is None:
            return
        else:
            self._follows = True
        if self._contradicts(sent_at, remaining, answered=answered):
            return
        later = sent_at > self._newest
        self._newest, self._advertised_at = sent_at, now
        self._advance(now)
        self._update_refill(now, sent_at, remaining, info)
        if self._left == inf:
            self._left, self._at, self._ask_at = remaining - others, now, now + LONGEST_WAIT
            self._sends.clear()
        elif self._follows:
            self._follow(now, sent_at, remaining, later=later)

    def _needed(self) -> float:
        largest = self._largest if self.refill else max(1.0, min(self._largest, RESERVE * self._most))
        return min(self._most, largest + self._doubt * min(self._open, self._paid - self._confirmed))

    def _advance(self, now: float) -> None:
        if self.refill:
            if self._left < self._most:
                self._left = min(self._most, self._left + (now - self._at) * self.refill)
        elif now >= self._full_at and self._left < self._most:
            span = self.window or (near_usual(self._longest) if self._began > -inf else max(MINUTE, self._longest)) or MINUTE
            self._left = self._most if self._bucket is False else min(self._most, self._left + self._used)
            self._began = self._full_at
            self._full_at += span * ((now - self._full_at) // span + 1)
            self._guessed = True
        self._at = max(self._at, now)

    def _follow(self, now: float, sent_at: float, remaining: float, *, later: bool) -> None:
        """Set the remaining amount to the advertised amount, less the cost of later requests, plus the refill since then."""
        sends = self._sends
        while sends and sends[0][0] < sent_at:
            sends.popleft()
        if not sends or sends[0][0] > sent_at:  # sent before the accounting began, so the response can only lower the amount
            self._left = min(self._left, remaining)
            return
        _, first, last, count = sends[0]
        self._replies = 1 if later else self._replies + 1
        self._lowest = remaining if later else min(self._lowest, remaining)
        uncounted = (last - first) * max(0.0, count - self._replies) / max(1.0, count - 1)  # the server may have counted these later
        since = self._paid - last - self.refill * (now - sent_at)
        self._left = min(max(self._left, self._lowest - max(0.0, since + uncounted)), self._lowest - max(0.0, since))
        self._confirmed = last - uncounted
        if self._doubt and count == 1:
            self._compare(sent_at, first, remaining)

    def _compare(self, sent_at: float, paid: float, remaining: float) -> None:
        """Learn what the server charges per reserved token, from two requests. Each of the two was the only request sent at its instant."""
        reference, self._reference = self._reference, (sent_at, paid, remaining)
        if reference is None or reference[0] < self._began:
            return
        charged = reference[2] - remaining + self.refill * (sent_at - reference[0])
        reserved = (paid - reference[1]) / self.scale
        if reserved > 0 and charged >= 0:
            before = self._sums if self._sums[1] else (PRIOR * self._largest, PRIOR * self._largest)
            self._sums = (MEMORY * before[0] + charged, MEMORY * before[1] + reserved)
            self.scale = min(MOST_SCALE, max(1 / MOST_SCALE, self._sums[0] / self._sums[1]))

    def _contradicts(self, sent_at: float, remaining: float, *, answered: bool) -> bool:
        """Return whether the server advertises that nothing remains, but answers requests."""
        if remaining >= 1:
            self._nonsense = False
        elif answered and sent_at == self._probe_at:
            self._nonsense, self._left = True, inf
        return self._nonsense

    def _update_refill(self, now: float, sent_at: float, remaining: float, info: RateLimit) -> None:
        """Determine how the limit is refilled: at which rate and up to which amount, or at which time."""
        limit, reset = info.limit, info.reset
        self._peak = max(self._peak, remaining)
        if info.window is not None:
            self.window = info.window
        if reset is None:
            if limit is not None:
                self.refill, self._most = limit / (self.window or MINUTE), max(limit, remaining)
            return
        self._detect_kind(now, sent_at, remaining, reset, limit)
        self.refill = self._rate_of_bucket(remaining, reset, limit)
        if self.refill:
            self._most = max(remaining, min(limit or inf, remaining + self.refill * reset))
        else:
            self._most = inf if limit is None else max(limit, remaining)
            self._used = self._most - remaining
            self._update_end(now, sent_at, reset)
            self._lag = max(now - sent_at, FADE * self._lag)
            span = near_usual(self._longest)
            if limit is not None and self._began > -inf and 0 < span < self._lag:
                self._spread(limit / span)

    def _rate_of_bucket(self, remaining: float, reset: float, limit: float | None) -> float:
        """Return the refill per second; 0 if the limit is not a bucket."""
        if self._bucket is False or (self._bucket is None and self._began > -inf):  # a window, or restored at once like a window
            return 0.0
        if limit is None:
            return self.refill if self._bucket else 0.0
        used, windows = limit - remaining, LONG if self.window is None else (self.window,)
        found = next((window for window in windows if abs(used * window - limit * reset) < EXACT * limit * reset), None)
        if not self._bucket:
            return limit / found if found else 0.0
        window = self.window or found or MINUTE
        if window not in USUAL_WINDOWS and used > 0.5 * limit:  # more is used than when the window was measured, so this is more exact
            seen = limit * reset / used
            window = seen if abs(seen - window) <= NEAR * window else window
        return limit / window

    def _update_end(self, now: float, sent_at: float, reset: float) -> None:
        """Update the end of the window, which lies between ``sent_at + reset`` and ``now + reset``.

        The upper bound is used. Several responses may give different upper bounds. Before the limit is known to be a window, the highest
        upper bound counts. After that, the lowest upper bound counts.
        """
        self._longest = max(self._longest, reset)
        first = self._guessed or sent_at + reset > self._full_at
        nearer = min if self._bucket is False else max  # each use of a bucket delays the time at which it is full
        self._full_at, self._guessed = now + reset if first else nearer(self._full_at, now + reset), False

    def _spread(self, rate: float) -> None:
        """Use an even rate, because the windows are so short that each one has ended when the response that advertises it arrives."""
        self.refill = STEADY * rate
        self._most = self._largest + BURST * self.refill
        self._left = min(self._left, self._most)
        self._follows = False

    def _detect_kind(self, now: float, sent_at: float, remaining: float, reset: float, limit: float | None) -> None:
        mark = self._mark
        if mark is None or now >= mark[0] + mark[2] or remaining > mark[1]:  # a window may have ended, or the limit was raised
            self._mark = (sent_at, remaining, reset)
            return
        fell, rose = mark[1] - remaining, reset - mark[2]
        tick = 1.0 if reset % 1 == 0 and mark[2] % 1 == 0 else FINE
        if fell < max(1.0, MARKED * self._peak) or abs(rose) < TICKS * tick:
            return
        self._bucket = rose > 0
        if self._bucket and fell < TICKS:  # too small a fall to measure the rate
            return
        self._mark = (sent_at, remaining, reset)
        if self._bucket and limit is not None:
            self.window = near_usual(limit * rose / fell)
        elif self._bucket:
            self.refill = fell / rose


def near_usual(seconds: float) -> float:
    """Return the usual window that is near a number of seconds. If there is none, return the number itself.

    Example:
        >>> near_usual(57.0), near_usual(25.0)
        (60.0, 25.0)
    """
    return next((window for window in USUAL_WINDOWS if abs(seconds - window) <= NEAR * window), seconds)
