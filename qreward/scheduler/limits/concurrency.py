"""Concurrency limits: how many requests a source may have in flight. Their reasons are in ``docs/design/window.md``.

A limit is told of sends, answers and rejects, and decides what a *reject* (a response that refuses a request because of overload) means:
the source is away, and its cooldown starts, or it is only full. Failures and timeouts do not change a limit. The rules of the adaptive one:

W1  Start at 32 requests. If the first request is a list, start at 32 items, but at no fewer than 4 requests. Double the limit each round
    while throughput rises with it. A configured limit of at most 64 is used at once. A *round* ends after as many answers, to requests
    sent since it began, as half of the limit.
W2  Without rejects, alternate between 15 % above and 15 % below a base. Raise the base if the higher limit increases throughput, and lower
    it if the lower limit does not reduce throughput. At the configured limit, test a lower limit only in every eighth round.
W3  A reject sets the limit to the number of requests that are still served, less 3 %, which is left to other clients. It is *stray* and is
    ignored unless rejects are credibly too many for a source that rejects some requests at random (see ``RejectShare``).
W4  When 100 answers have come after a reject, or four for each slot if that is less, raise the limit by one slot as a try. Double the step
    after each try that succeeds. A reject of a try takes it back, and doubles the number of answers before the next try (up to 100), unless
    as many rejects are usual here.
W5  When a cooldown ends because the source serves requests again, set the limit to the highest value that was used: for a whole round, or
    between two rows of rejects, or what was served at once below it, if the present limit is more than a tenth lower. This is a try as in
    W4: a reject of a request that is sent within a second takes it back. If a reject finds no other request in flight, the source is away,
    not full: start again as in W1, but not below that highest value.
"""

from __future__ import annotations

from enum import Enum
from math import ceil, inf, log
from random import Random

from qreward.scheduler.stats import LastFailures, least_failures

DEFAULT_LIMIT = 64
"""Maximum number of requests in flight at an endpoint that has neither a configured nor an adaptive limit."""
MOST = 2048
"""Largest value of an adaptive limit, in requests in flight, if no limit is configured."""
PATIENCE = 100
"""Most answers without a reject after which a limit that was lowered is raised (W4)."""

# In simulations of 23 servers, each of these was varied alone. The share of the capacity that the limit found changed by at most .006.
START, TRUSTED = 32, 64  # W1: initial limit, and the largest configured limit that is used at once
FEWEST = 4  # W1: least initial limit for requests with many items
KEEP = 0.35  # W1: least elasticity at which the limit doubles again
ZIG, LOOK = 0.15, 8  # W2: share by which the limit lies above and below the base, and rounds between two tests of a lower limit
STRAY, CHANCE = 0.1, 1 / 2000  # W3: share of rejects that may be stray at any source, and probability at which more of them are credible
TRY_STRAY, TRY_CHANCE = 0.001, 1 / 20  # W4: the same for a try
USUAL, MOST_STRAY = 1.5, 0.3  # W3, W4: factor on the usual share of rejects, and largest share that may be stray
LAST = 100  # W3, W4: number of requests that are tested
REMEMBERED = 300  # W3, W4: number of requests over which the usual share of rejects is averaged
GRID = 1.25  # W3, W4: ratio of successive shares that are tested, so that few tables are made
MEMORY = 0.8  # W2: each new round multiplies the weight of older rounds by this factor
LOW, HIGH = 0.05, 0.20  # W2: elasticities below which the base is lowered and above which it is raised
DOWN, UP = 0.85, 1.20  # W2: factors by which the base is lowered and raised
SPARE = 0.03  # W3: share left to other clients after a reject
HOLD, SETTLE = 60.0, 1.0  # W4: seconds after which a try is made before ``PATIENCE`` answers, and least seconds between tries
FEW = 4  # W4: answers for each slot before the first try
FALLEN = 0.9  # W5: share of the highest used limit below which the limit returns to it
SHORTEST_ROUND = 12  # least number of answers in a round

Changes = dict[tuple[str, str], int]
"""Numbers of changes of a limit. The key is a pair: the direction (``up`` or ``down``), and one word for the reason."""


def count_change(changes: Changes, before: int, after: int, reason: str) -> None:
    if after != before:
        key = ("up" if after > before else "down", reason)
        changes[key] = changes.get(key, 0) + 1


class Reject(Enum):
    """What a reject shows."""

    STRAY = "stray"  # nothing: the source rejects a few of its requests, and serves the others
    FULL = "full"  # the source serves no more requests at once
    AWAY = "away"  # the source serves nothing now, or its rate limit is used up, so that a cooldown starts


class ConcurrencyLimit:
    """The base of the limits, which never changes by itself. ``inflight`` and ``others`` are the numbers of requests in flight after the
    event."""

    reason = "fixed"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.changes: Changes = {}

    def start_with(self, items: int, /) -> None:
        """Record that the first request has several ``items``. Called before ``sent``."""

    def sent(self, now: float, inflight: int, /) -> None:
        """Record that a request was sent."""

    def ok(self, now: float, sent_at: float, tokens: int | None, inflight: int, /) -> None:
        """Record an answer. ``tokens`` is the number of its output tokens, or None if the source does not report it."""

    def rejected(self, now: float, sent_at: float, order: int, hint: float | None, others: int, /) -> Reject:  # noqa: ARG002 - for subclasses
        """Record a reject of the ``order``-th request while ``others`` requests are in flight.

        ``hint`` is the wait in seconds that the source requests, or None.
        """
        return Reject.AWAY

    def cooled(self, now: float, inflight: int, /) -> None:
        """Record that a cooldown has ended, because the source serves again what it is sent."""

    def returned(self, now: float, inflight: int, /) -> None:
        """Record that the source works again. Rejects while it was away do not show its capacity."""

    def crowd(self, until: float, /) -> None:
        """Keep the limit from growing before ``until``, because requests wait inside the server."""


class RejectShare:
    """Tests whether a source rejects more requests than it may reject at random, whatever the limit is.

    What is sent above the capacity is rejected, sent again at once and rejected again, so rejects come in a row. They are too many if they
    are credibly more than a tenth of the last requests, and more than one and a half times the share that is usual at this source.

    If L requests are served for S seconds each, and one more is rejected every d seconds, one of 1 + L d / S requests is rejected. If that
    is less than a tenth, because rejects take long, the limit may be the cause of what is usual. So the usual share does not count then.
    """

    def __init__(self) -> None:
        self._rejects = LastFailures()
        self.usual = 0.0  # share of requests that are rejected, moving average; without those sent in a try
        self.seconds = 0.0  # seconds of an answer, moving average
        self._quick = False  # the last reject outside of a try came so soon that the usual share counts

    def is_stray(self, order: int, seconds: float, others: int) -> bool:
        """Record a reject of the ``order``-th request after ``seconds``. Returns whether it is stray.

        The reject of the only request in flight never is.
        """
        self._quick = others * seconds <= (1.0 / STRAY - 1.0) * self.seconds
        least = self._least(STRAY, CHANCE)
        self.usual += (1.0 - self.usual) / REMEMBERED
        return not self._rejects.add(order, order, least) and others > 0

    def is_usual(self, rejected: int, requests: int) -> bool:
        """Return whether so many rejects of the ``requests`` sent since a try may be stray."""
        return rejected < self._least(TRY_STRAY, TRY_CHANCE)[min(LAST, requests)]

    def _least(self, share: float, chance: float) -> list[int]:
        steps = ceil(log(max(share, USUAL * self.usual if self._quick else 0.0), GRID))
        return least_failures(min(MOST_STRAY, GRID**steps), chance, LAST)


class ConfiguredLimit(ConcurrencyLimit):
    """A configured limit. It falls to the number of requests that a source still serves when it rejects others, and then doubles again."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(DEFAULT_LIMIT if limit is None else limit)
        self._set = self.limit
        self._rejects = RejectShare()
        self._clean = 0  # answers since the limit last changed
        self._closed_at = -inf

    def ok(self, now: float, sent_at: float, _tokens: int | None, _inflight: int) -> None:
        rejects = self._rejects
        rejects.usual -= rejects.usual / REMEMBERED
        rejects.seconds += (now - sent_at - rejects.seconds) / REMEMBERED
        self._clean += 1
        if self._clean >= min(PATIENCE, FEW * self.limit):
            self._move(2 * self.limit, "answers")

    def rejected(self, now: float, sent_at: float, order: int, hint: float | None, others: int) -> Reject:
        if self._rejects.is_stray(order, now - sent_at, others):
            return Reject.STRAY
        if hint is not None or others == 0:  # unavailable or over a rate limit, so the reject does not show the capacity
            self._closed_at = now
            self._move(self._set, "away")
            return Reject.AWAY
        if sent_at >= self._closed_at:
            self._move(min(self.limit, others), "rejected")
        return Reject.FULL

    def _move(self, limit: int, reason: str) -> None:
        before, self._clean, self.limit = self.limit, 0, min(self._set, limit)
        count_change(self.changes, before, self.limit, reason)


class AdaptiveLimit(ConcurrencyLimit):
    """An adaptive concurrency limit of at most ``most``, by default ``MOST``; ``rng`` is used for random rounding."""

    def __init__(self, rng: Random, most: int | None = None) -> None:
        self._rng = rng
        self.most = MOST if most is None else most
        self._start = most if most is not None and most <= TRUSTED else min(START, self.most)
        super().__init__(self._start)
        self._rounds = 1
        self.reason = "start"
        self.crowded_until = -inf  # the limit does not grow before this time, because requests wait inside the server
        self._round_limit = self._peak = 0
        self._last: tuple[float, float] | None = None  # logarithms of limit and seconds per token of the last round, if comparable
        self._xy = self._xx = 0.0  # decayed sums over the differences of consecutive rounds
        self._side = 1.0  # whether the limit lies above (1) or below (-1) the base
        self._rejects = RejectShare()
        self._clean = 0  # answers since the last try or reject
        self._tried = 0  # rejects since the last try
        self._patience = PATIENCE  # answers before the next try
        self._mark = 0.0  # time of the last try or reject
        self._floor = 0  # the limit before the last try
        self._blame_until = 0.0  # a reject before this time, or of a request sent before it, is attributed to the last try
        self._used = 0.0  # the value of W5
        self._begin(0.0, 0)

    def _begin(self, now: float, inflight: int) -> None:
        self._starting, self._capped, self._step = True, False, 0
        self._last = None
        self._set(max(self._start, self._used), now, inflight)

    def start_with(self, items: int) -> None:
        if self._start == START:
            self._start = max(FEWEST, START // items)
            self._set(self._start, 0.0, 0)

    def sent(self, _now: float, inflight: int) -> None:
        self._peak = max(self._peak, inflight)

    def ok(self, now: float, sent_at: float, tokens: int | None, inflight: int) -> None:
        if now >= self._blame_until:  # not a method of its own: hot path
            rejects = self._rejects
            rejects.usual -= rejects.usual / REMEMBERED
            rejects.seconds += (now - sent_at - rejects.seconds) / REMEMBERED
        self._clean += 1
        if self._capped and inflight + 1 >= self.limit:
            self._try_more(now)
        if sent_at >= self._since:
            self._answers += 1
            self._seconds += now - sent_at
            self._tokens += tokens or 1.0
            if self._answers >= max(SHORTEST_ROUND, self.limit / 2):
                self._end_round(now, inflight)

    def rejected(self, now: float, sent_at: float, order: int, _hint: float | None, others: int) -> Reject:
        tried = (now < self._blame_until or self._mark <= sent_at < self._blame_until) and others >= self._floor
        if tried:
            self._tried += 1
            if self._rejects.is_usual(self._tried, self._tried + self._clean):
                return Reject.FULL
        elif self._rejects.is_stray(order, now - sent_at, others):
            return Reject.STRAY
        if not others:
            self.reason = "nobody was served: starting again"
            self._begin(now, others)
            return Reject.AWAY
        self._patience = min(PATIENCE, 2 * self._patience if tried else FEW * others)
        if tried:
            self._used = 0.0
        elif self._capped and sent_at > self._mark:  # a new row of rejects; so many were served after the last one
            self._used = max(self._used, float(self.limit))
        base = float(min(self.limit, others))
        give = base * SPARE
        if (self._step or self._clean) and (give > 1 or not tried):  # only for the first of several rejects in a row
            base -= int(give) + (self._rng.random() < give % 1)
        self._starting, self._capped, self._step = False, True, 0
        self._mark, self._clean, self._tried = now, 0, 0
        self._last = None
        self.reason = f"rejected while {others} were served"
        self._set(base, now, others)
        return Reject.FULL if tried else Reject.AWAY

    def cooled(self, now: float, inflight: int) -> None:
        if now >= self.crowded_until and self.limit + 1 < FALLEN * self._used:
            self.reason = "serving again"
            self._floor, self._mark, self._clean, self._tried, self._blame_until = self.limit, now, 0, 0, now + SETTLE
            self._set(self._used, now, inflight)

    def crowd(self, until: float) -> None:
        self.crowded_until = until

    def returned(self, now: float, inflight: int) -> None:  # W5
        if self.limit < self._start:
            self.reason = "back: starting again"
            self._begin(now, inflight)

    def _try_more(self, now: float) -> None:
        waited = now - self._mark
        due = self._step or self._clean >= self._patience or waited >= HOLD
        barred = now < self.crowded_until or waited < SETTLE
        if not due or barred or self.limit >= min(self.most, 1.5 * self._round_limit):
            return
        if self._elasticity() < HIGH:  # a higher limit would not increase throughput
            self._capped = False
            return
        self._floor = self.limit
        self._step = min(2 * self._step or 1, max(1, self.limit // 3))
        self._mark, self._clean, self._tried, self._blame_until = now, 0, 0, now + SETTLE
        self.limit = min(self.most, self.limit + self._step)
        count_change(self.changes, self._floor, self.limit, "trial")
        self._base = float(self.limit)
        self.reason = f"trying {self.limit - self._floor} more after clean answers"

    def _elasticity(self) -> float:
        """Return d ln(throughput) / d ln(limit), from the differences of consecutive rounds."""
        return 1.0 - self._xy / self._xx if self._xx else 1.0

    def _end_round(self, now: float, inflight: int) -> None:
        base = self._base
        if self._peak < 0.8 * self.limit:  # the limit was hardly reached, so the round says nothing about it
            if not self._starting:  # else the limit would double after each pause
                self._last = None
            if not self._capped:  # but what was served at once can be served again
                self._used = max(self._used, float(self._peak))
        else:
            here, last = (log(self.limit), log(max(1e-9, self._seconds / self._tokens))), self._last
            self._last = here
            compared = last is not None and abs(here[0] - last[0]) > 0.05
            factor, elasticity = 1.0, inf
            if last is not None and compared:
                dx, dy = here[0] - last[0], here[1] - last[1]
                self._xy, self._xx = MEMORY * self._xy + dx * dy, MEMORY * self._xx + dx * dx
                elasticity = 1.0 - dy / dx
            if self._starting:
                self.reason = f"start: elasticity {elasticity:.2f}"
                self._starting = elasticity >= KEEP
                factor = 2.0 if self._starting else 1.0 if elasticity > LOW else 0.5
            elif compared and self._side < 0:  # every second round, after one above the base and one below
                elasticity = self._elasticity()
                self.reason = f"elasticity {elasticity:.2f}"
                factor = DOWN if elasticity < LOW else UP if elasticity > HIGH and not self._capped else 1.0
            if not self._capped or factor < 1.0 or base > self._used:
                self._used = base
            base *= factor if now >= self.crowded_until else min(1.0, factor)
        self._side = -self._side
        self._rounds += 1
        self._set(base, now, inflight)

    def _set(self, base: float, now: float, inflight: int) -> None:
        self._base = max(1.0, min(float(self.most), base))
        if self._base >= self.most:
            self._starting = False
        at_rest = self._capped or self._starting or (self._base >= self.most and self._rounds % LOOK != 0)
        swing = 1.0 if at_rest else 1 - ZIG if self._base >= self.most else 1 + ZIG * self._side
        before, self.limit = self.limit, max(1, min(self.most, round(self._base * swing)))
        count_change(self.changes, before, self.limit, self.reason.partition(" ")[0].rstrip(":"))
        # answers to requests that were sent under this value of the limit
        self._round_limit, self._since, self._peak = self.limit, now, inflight
        self._answers, self._seconds, self._tokens = 0, 0.0, 0.0
