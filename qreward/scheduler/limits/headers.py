"""A rate limit that the server tells: what is left of it, counted on by what is sent, so that the first reject need not come.

An answer says of a limit how much of it is ``remaining``, and in how many seconds (``reset``) all of it is back. Two kinds of
limit say so, and the words do not tell which. A *bucket* refills all the time, and its ``reset`` grows with use: OpenAI's is "the
time until the rate limit resets to its initial state" (guide to rate limits); 4,518 of 20,000 tokens used gave 13.554 s, which
is 20,000 a minute. A *window* holds until a time that does not move, and then all comes back (``RateLimit-Reset`` of
draft-ietf-httpapi-ratelimit-headers-06; proxies that count calendar minutes).

A1  What is left is what was told last, less what was sent since that request left, beyond what came back since. (Where headers
    are written with the answer, some of it was counted already: too little is left then, until the next answer.) What an earlier
    request tells is old. Of requests of one instant nobody knows the order: any that is possible may be true.
A2  The kind is what was seen last: ``remaining`` fell and ``reset`` rose is a bucket, both fell is a window. Until then it is a
    window, unless used / reset is just the limit by a usual span. A bucket's slope is its rate.
A3  Nothing left waits for the refill, or for the window's end. After a minute without a send, or when the server itself said to
    come back (``Retry-After``), one request asks all the same. If it is answered, and still nothing is said to be left, the
    advertisement is nonsense until it says something else. What is answered without a word of the limit is the end of it.
A4  Tokens are reserved by a guess, scaled by what the server was seen to charge for such guesses (it may count ``max_tokens``, or
    other clients). The largest recent cost must be left, and a share of what nobody has confirmed yet.
A limit that is not reached costs nothing, and what an operator set holds besides. Knows nothing of headers.
"""

from __future__ import annotations

from collections import deque
from math import inf

from qreward.scheduler.limits.rate import BURST, Gcra
from qreward.scheduler.outcome import RateLimit

MINUTE = 60.0
"""Window of a limit of which nothing else is known."""
USUAL = (1.0, 10.0, 60.0, 3600.0, 86400.0)
LONG = USUAL[2:]
"""Windows that are known at first sight: a small bucket that is empty looks like one of a second."""
NEAR, EXACT = 0.25, 0.05
"""Parts by which a window may differ from a usual one and be taken for it: where it was measured, and at first sight."""
MARKED = 0.05
"""Share of the largest ``remaining`` seen by which it must have fallen to tell the kind."""
TICKS = 5.0
"""Steps by which ``reset`` must have moved to tell the kind, and ``remaining`` to tell the rate: both are rounded."""
PLENTY, GLANCE = 0.5, 1.0
"""Share of a limit over which what is told is looked at only every so many seconds."""
FINE = 0.001
"""A step of ``reset`` in seconds, where not only whole ones are told."""
STEADY = 0.98
"""Share of a rate that is kept where windows are shorter than answers take."""
LONGEST_WAIT = 60.0
"""Seconds after the last send at which one request asks, whatever is said."""
FORGOTTEN = 300.0
"""Seconds after the last advertisement at which nothing is known any more."""
DOUBT = 0.25
"""Share by which tokens may exceed what was reserved."""
RESERVE = 0.05
"""Share of a window that may be left unused for the sake of a large request. What is left of a bucket is not lost."""
FADE = 0.998
"""What is left of the largest cost with each send: half after 350."""
PRIOR, MEMORY = 10.0, 0.99
"""Requests for which a guess is believed before charges count, and what a charge still counts at the next."""
MOST_SCALE = 8.0
REMEMBERED = 4096
"""Times of sending that are remembered, should answers not tell."""


class HeaderRateLimit:
    """One limit, on requests or on tokens, in the place of a ``Gcra``.

    Args:
        pace: what an operator set, which holds as well.
        doubt: 0 where costs are known beforehand (requests), ``DOUBT`` where they are guesses (tokens).

    Attributes:
        window: seconds in which the whole limit comes back, as far as that is known.
        refill: a second; 0 where all comes back at once.
        scale: what the server charges for one token of a plain guess; always 1 for requests.

    Example:
        >>> meter = Meter()
        >>> meter.told(2.0, 1.0, Allowance(limit=600, remaining=0, reset=30.0))
        >>> meter.ready_at
        32.0
    """

    __slots__ = (
        "_ask_at", "_at", "_began", "_bucket", "_confirmed", "_doubt", "_follows", "_full_at", "_guessed", "_heard", "_lag", "_largest",
        "_left", "_longest", "_lowest", "_mark", "_most", "_newest", "_nonsense", "_open", "_paid", "_peak", "_probe_at", "_reference",
        "_sends", "_sums", "_told_at", "_used", "pace", "refill", "scale", "window",
    )  # fmt: skip

    def __init__(self, pace: Gcra | None = None, *, doubt: float = 0.0) -> None:
        self.pace = pace
        self.window: float | None = None
        self.refill = 0.0
        self.scale = 1.0
        self._doubt = doubt
        # the count
        self._left, self._at = inf, -inf  # what is left, as of when; inf while nothing is known
        self._most = inf  # what is left when nothing is used
        self._used = 0.0  # of it, when it was told last: if this is a bucket, only so much is back at its reset
        self._paid = self._confirmed = 0.0  # for all sends so far; of it, what has been told of
        self._sends: deque[list[float]] = deque(maxlen=REMEMBERED)  # time, paid until after its first and its last send, how many
        self._ask_at, self._probe_at = inf, inf  # when one request asks all the same, and when the last one did
        self._open = 0.0  # reserved and not settled
        self._largest = 1.0
        # what was told
        self._follows = False  # how much is left is told, not only the limit
        self._newest, self._told_at = -inf, -inf  # when the request left that told last, and when it was answered
        self._heard, self._lowest = 0, 0.0  # of that instant's requests: how many told, and the least
        self._nonsense = False
        self._sums = (0.0, 0.0)  # charged, guessed; recent ones count most
        self._reference: tuple[float, float, float] | None = None  # sent at, paid, remaining: since when charges are compared
        # its kind
        self._bucket: bool | None = None
        self._mark: tuple[float, float, float] | None = None  # sent at, remaining, reset: what the kind is told by
        self._peak = 0.0  # largest remaining that was told
        self._began, self._full_at = -inf, -inf  # of the window: what was sent before it began tells of the one before
        self._guessed = False  # when it ends was not told yet
        self._longest = 0.0  # largest reset that was told: a window is at least as long
        self._lag = 0.0  # seconds from a request to its answer, of slow ones

    # in the place of a pace

    @property
    def rate(self) -> float:
        """Requests, or tokens, a second, as far as is known; inf while nothing limits."""
        return min(inf if self.pace is None else self.pace.rate, self.refill or inf)

    @property
    def ready_at(self) -> float:
        """The earliest time at which a send conforms; a time in the past means now."""
        at = -inf if self.pace is None else self.pace.ready_at
        needed = self._needed()
        if self._left >= needed:
            return at
        back_at = self._at + (needed - self._left) / self.refill if self.refill else self._full_at
        return max(at, min(back_at, self._ask_at))

    def take(self, now: float, cost: float = 1.0, plain: float | None = None) -> None:
        """Pay for a send; ``plain`` is a guess that follows no answers, from which the server's charges are scaled."""
        if self.pace is not None:
            self.pace.take(now, cost)
        if self._doubt:
            self._open += cost
            if plain is not None and self._follows:
                cost = plain * self.scale
            self._largest = max(cost, FADE * self._largest)
        if self._left == inf or now - self._told_at > FORGOTTEN:
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
        """A request ended for which so much was paid, and used so much; 0 if it was not served.

        What an answer used changes nothing here: the server has told what it charged for it, or will. And short answers come first.
        """
        if self.pace is not None:
            self.pace.give_back(reserved - used)
        self._open = max(0.0, self._open - reserved)
        self._largest = max(used, self._largest)
        if not self._follows or not used:
            self._left += reserved - used

    # what the server says

    def told(
        self, now: float, sent_at: float, said: RateLimit, *, answered: bool = True, others: float = 0.0, hint: float | None = None
    ) -> None:
        """Take in an advertisement.

        Args:
            now: when the answer came.
            sent_at: when its request was sent.
            answered: it was served, not turned away.
            others: cost of what else is in flight, which is only asked for the first time.
            hint: seconds after which the server said to come back, as it turned the request away: that goes before what is inferred.
        """
        self._take_in(now, sent_at, said, answered, others)
        if hint is not None:
            self._ask_at = now + hint

    def untold(self, now: float, sent_at: float, *, answered: bool, hint: float | None = None) -> None:
        """A request ended without a word of this limit. If it was answered, and sent after the limit was told of, that is forgotten."""
        if hint is not None:
            self._ask_at = min(self._ask_at, now + hint)
        elif sent_at > self._told_at:
            if answered:
                self._left = inf
            else:
                self._ask_at = now

    def _take_in(self, now: float, sent_at: float, said: RateLimit, answered: bool, others: float) -> None:
        limit, remaining, window = said.limit, said.remaining, said.window
        plenty = PLENTY * self._most
        if remaining is not None and remaining > plenty and self._left > plenty and now < self._told_at + GLANCE:
            return
        if sent_at < max(self._newest, self._began) or (limit is not None and limit <= 0):
            return
        if remaining is None:
            if limit is None or window is None:  # a limit on what? a second's would be taken for a minute's
                return
            remaining = limit if self._left == inf else min(limit, self._left)
            self._follows = False
        elif limit is None and said.reset is None:
            return
        else:
            self._follows = True
        if self._is_nonsense(sent_at, remaining, answered=answered):
            return
        later = sent_at > self._newest
        self._newest, self._told_at = sent_at, now
        self._advance(now)
        self._size_up(now, sent_at, remaining, said)
        if self._left == inf:
            self._left, self._at, self._ask_at = remaining - others, now, now + LONGEST_WAIT
            self._sends.clear()
        elif self._follows:
            self._follow(now, sent_at, remaining, later=later)

    def _needed(self) -> float:
        """What must be left for a send."""
        largest = self._largest if self.refill else max(1.0, min(self._largest, RESERVE * self._most))
        return min(self._most, largest + self._doubt * min(self._open, self._paid - self._confirmed))

    def _advance(self, now: float) -> None:
        """Let time pass: what comes back comes back."""
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
        """Take over what was left when a request was sent, less what was sent since beyond what came back."""
        sends = self._sends
        while sends and sends[0][0] < sent_at:
            sends.popleft()
        if not sends or sends[0][0] > sent_at:  # sent before there was anything to count: it can only tell that less is left
            self._left = min(self._left, remaining)
            return
        _, first, last, count = sends[0]
        self._heard = 1 if later else self._heard + 1
        self._lowest = remaining if later else min(self._lowest, remaining)
        unheard = (last - first) * max(0.0, count - self._heard) / max(1.0, count - 1)  # of that instant; they may have come after
        since = self._paid - last - self.refill * (now - sent_at)
        self._left = min(max(self._left, self._lowest - max(0.0, since + unheard)), self._lowest - max(0.0, since))
        self._confirmed = last - unheard
        if self._doubt and count == 1:
            self._compare(sent_at, first, remaining)

    def _compare(self, sent_at: float, paid: float, remaining: float) -> None:
        """Learn what the server charges for what we reserve, from two requests that each went out alone."""
        reference, self._reference = self._reference, (sent_at, paid, remaining)
        if reference is None or reference[0] < self._began:
            return
        charged = reference[2] - remaining + self.refill * (sent_at - reference[0])
        reserved = (paid - reference[1]) / self.scale
        if reserved > 0 and charged >= 0:
            before = self._sums if self._sums[1] else (PRIOR * self._largest, PRIOR * self._largest)
            self._sums = (MEMORY * before[0] + charged, MEMORY * before[1] + reserved)
            self.scale = min(MOST_SCALE, max(1 / MOST_SCALE, self._sums[0] / self._sums[1]))

    def _is_nonsense(self, sent_at: float, remaining: float, *, answered: bool) -> bool:
        """Whether nothing is said to be left, although answers come."""
        if remaining >= 1:
            self._nonsense = False
        elif answered and sent_at == self._probe_at:
            self._nonsense, self._left = True, inf
        return self._nonsense

    def _size_up(self, now: float, sent_at: float, remaining: float, said: RateLimit) -> None:
        """Find out how it comes back: how fast, up to what, or when."""
        limit, reset = said.limit, said.reset
        self._peak = max(self._peak, remaining)
        if said.window is not None:
            self.window = said.window
        if reset is None:
            if limit is not None:
                self.refill, self._most = limit / (self.window or MINUTE), max(limit, remaining)
            return
        self._tell_kind(now, sent_at, remaining, reset, limit)
        self.refill = self._rate_of_bucket(remaining, reset, limit)
        if self.refill:
            self._most = max(remaining, min(limit or inf, remaining + self.refill * reset))
        else:
            self._most = inf if limit is None else max(limit, remaining)
            self._used = self._most - remaining
            self._see_end(now, sent_at, reset)
            self._lag = max(now - sent_at, FADE * self._lag)
            span = near_usual(self._longest)
            if limit is not None and self._began > -inf and 0 < span < self._lag:
                self._spread(limit / span)

    def _rate_of_bucket(self, remaining: float, reset: float, limit: float | None) -> float:
        """What comes back a second; 0 if it is no bucket."""
        if self._bucket is False or (self._bucket is None and self._began > -inf):  # a window, or one that has ended before
            return 0.0
        if limit is None:
            return self.refill if self._bucket else 0.0
        used, windows = limit - remaining, LONG if self.window is None else (self.window,)
        found = next((window for window in windows if abs(used * window - limit * reset) < EXACT * limit * reset), None)
        if not self._bucket:
            return limit / found if found else 0.0
        window = self.window or found or MINUTE
        if window not in USUAL and used > 0.5 * limit:  # measured by a small difference: this is a large one
            seen = limit * reset / used
            window = seen if abs(seen - window) <= NEAR * window else window
        return limit / window

    def _see_end(self, now: float, sent_at: float, reset: float) -> None:
        """The window ends between ``sent_at + reset`` and ``now + reset``: at the earliest of the latest, once it is known as one."""
        self._longest = max(self._longest, reset)
        first = self._guessed or sent_at + reset > self._full_at
        nearer = min if self._bucket is False else max  # a bucket is full the later, the later it was told
        self._full_at, self._guessed = now + reset if first else nearer(self._full_at, now + reset), False

    def _spread(self, rate: float) -> None:
        """Windows that end before an answer can tell of them: their rate, evenly, is all that can be kept."""
        self.refill = STEADY * rate
        self._most = self._largest + BURST * self.refill
        self._left = min(self._left, self._most)
        self._follows = False

    def _tell_kind(self, now: float, sent_at: float, remaining: float, reset: float, limit: float | None) -> None:
        mark = self._mark
        if mark is None or now >= mark[0] + mark[2] or remaining > mark[1]:  # a window may have ended since, or more was given
            self._mark = (sent_at, remaining, reset)
            return
        fell, rose = mark[1] - remaining, reset - mark[2]
        tick = 1.0 if reset % 1 == 0 and mark[2] % 1 == 0 else FINE
        if fell < max(1.0, MARKED * self._peak) or abs(rose) < TICKS * tick:
            return
        self._bucket = rose > 0
        if self._bucket and fell < TICKS:  # too little to tell how fast
            return
        self._mark = (sent_at, remaining, reset)
        if self._bucket and limit is not None:
            self.window = near_usual(limit * rose / fell)
        elif self._bucket:
            self.refill = fell / rose


def near_usual(seconds: float) -> float:
    """The usual window that this is near to, or just this.

    Example:
        >>> near_usual(57.0), near_usual(25.0)
        (60.0, 25.0)
    """
    return next((window for window in USUAL if abs(seconds - window) <= NEAR * window), seconds)
