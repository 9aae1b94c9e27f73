"""Concurrency limits: how many requests a source may have in flight. ``FixedLimit`` is configured; ``AdaptiveLimit`` finds the capacity of
the source.

A *reject* is a response that refuses a request because of overload. The scheduler reads ``limit``, and reports sends, answers and rejects
to the limit, which can then adapt. A limit also decides what a reject means. Either the source is unavailable or a rate limit is used up,
and the cooldown of the source starts; or the source is only full. Failures and timeouts do not change a limit; they count against
``health``.

Two measurements change the adaptive limit. *Rejects* show the capacity of the source, which is the number of requests that it serves while
it rejects others. *Elasticity* shows whether more requests in flight increase throughput. It is computed from the time per token, and also
works for a server that queues requests and never rejects one. A *round* ends after as many answers as half of the limit. It counts only
answers to requests that were sent since the round began. Each round is compared with the round before. Rounds grow with the limit, because
a server that queues answers the first requests of a batch soon, however many follow. The lowest latency is not used as a measurement,
because with language models it is the latency of the shortest answer.

W1  Start at 32, and double the limit every round while throughput rises with the limit. A configured limit of at most 64 is used at once.
    If this limit is too high, the first rejects show the capacity within one round trip.
W2  Without rejects, alternate between 15 % above and 15 % below a base. Raise the base if the higher limit increases throughput. Lower the
    base if the lower limit does not reduce throughput. When the base has reached the configured limit, test a lower limit only in every
    eighth round.
W3  A reject sets the limit to the number of requests that are still served, less 3 %, which is left to other clients. A single reject among
    good answers is ignored, unless it carries a hint (``Retry-After``).
W4  When 100 answers have come after a reject, raise the limit by one slot as a try. If the try succeeds, double the step for the next try.
    If the try fails, take the step back; the reject has no other effect. Tries end when elasticity shows that a higher limit does not
    increase throughput. If the reject of a failed try carries a wait (``Retry-After``), the next try comes after twenty times that wait.
W5  If two rejects in a row find no other request in flight, the source is unavailable, not full. Start again as in W1, but with at least
    half of the base under which 100 answers last came without a reject.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from random import Random

DEFAULT_LIMIT = 64
"""Maximum number of requests in flight at an endpoint that has neither a configured nor an adaptive limit."""
PATIENCE = 100
"""Number of answers after which a ``FixedLimit`` that was lowered is raised again; fewer answers if the limit is small. So if the limit is
large, at most about one request in this number is rejected."""


Changes = dict[tuple[str, str], int]
"""Numbers of changes of a limit. The key is a pair: the direction (``up`` or ``down``), and one word for the reason."""


def count_change(changes: Changes, before: int, after: int, reason: str) -> None:
    """Count a change of a limit; equal values are not counted."""
    if after != before:
        key = ("up" if after > before else "down", reason)
        changes[key] = changes.get(key, 0) + 1


class ConcurrencyLimit:
    """A limit on the requests that a source may have in flight.

    This class never changes ``limit``. Subclasses change it and keep the reason in ``reason``. In all methods ``inflight`` and ``others``
    are the number of requests in flight after the event.
    """

    reason = "fixed"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.changes: Changes = {}

    def sent(self, now: float, inflight: int, /) -> None:
        """Record that a request was sent."""

    def ok(self, now: float, sent_at: float, tokens: int | None, inflight: int, /) -> None:
        """Record an answer. ``tokens`` is the number of its output tokens, or None if the source does not report it."""

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int, /) -> bool:  # noqa: ARG002 - for subclasses
        """Record a reject while ``others`` requests are in flight. ``hint`` is the wait in seconds that the source requests, or None.

        Returns:
            True if a cooldown must start, because the source is unavailable or its rate limit is used up; False if the source is only full.
            A hint starts a cooldown in both cases.
        """
        return True

    def returned(self, now: float, inflight: int, /) -> None:
        """Record that the source works again after it was unavailable. Rejects while it was unavailable do not show its capacity."""

    def crowd(self, until: float, /) -> None:
        """Keep the limit from growing before ``until``, because requests wait inside the server."""


class FixedLimit(ConcurrencyLimit):
    """Limits the requests in flight to a configured number, or to ``DEFAULT_LIMIT`` without one. Only rejects lower the limit.

    If the source rejects a request but still serves other requests, the limit falls to the number of requests that the source serves. After
    100 answers (fewer if the limit is small) the limit doubles, but it never exceeds the configured limit. A single reject among good
    answers is ignored.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(DEFAULT_LIMIT if limit is None else limit)
        self._set = self.limit
        self._good = 0  # answers since the last reject
        self._clean = 0  # answers since the limit last changed
        self._closed_at = -inf

    def ok(self, _now: float, _sent_at: float, _tokens: int | None, _inflight: int) -> None:
        self._good += 1
        self._clean += 1
        if self._clean >= min(PATIENCE, 4 * self.limit):
            self._move(2 * self.limit, "answers")

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int) -> bool:
        lone, self._good = self._good >= self._set / 2, 0
        if hint is not None or others == 0:  # unavailable or over a rate limit, so the reject does not show the capacity
            self._closed_at = now
            self._move(self._set, "away")
            return True
        if not lone and sent_at >= self._closed_at:
            self._move(min(self.limit, others), "rejected")
        return False

    def _move(self, limit: int, reason: str) -> None:
        before, self._clean, self.limit = self.limit, 0, min(self._set, limit)
        count_change(self.changes, before, self.limit, reason)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Constants of the adaptive limit.

    In simulations of 23 servers, each constant was varied alone. The mean share of a server's capacity that the limit found changed by at
    most .006.
    """

    start: int = 32  # W1: initial limit
    keep: float = 0.35  # W1: least elasticity at which the limit doubles again
    zig: float = 0.15  # W2: share by which the limit lies above and below the base
    memory: float = 0.8  # W2: each new round multiplies the weight of older rounds by this factor
    low: float = 0.05  # W2: elasticity below which the base is lowered
    high: float = 0.20  # W2: elasticity above which the base is raised
    down: float = 0.85  # W2: factor by which the base is lowered
    up: float = 1.20  # W2: factor by which the base is raised
    spare: float = 0.03  # W3: share left to other clients after a reject
    patience: int = 100  # W4: answers without a reject before a try
    hold: float = 60.0  # W4: seconds without a reject or try after which a try is made even before ``patience`` answers
    settle: float = 1.0  # W4: least seconds between tries; a reject within this time is attributed to the last try
    price: float = 20.0  # W4: after a failed try whose reject carried a wait, the next try comes after this many times that wait
    shortest_round: int = 12  # least number of answers in a round
    trusted: int = 64  # W1: largest configured limit that is used at once
    look: int = 8  # W2: rounds between two tests below the configured limit


TUNING = Tuning()
MOST = 2048
"""Largest value of an adaptive limit, in requests in flight, if no limit is configured."""


class Elasticity:
    """Measures how throughput depends on the concurrency limit.

    The elasticity is 1 if throughput is proportional to the limit, and 0 if throughput does not change with it. It is the change of the
    logarithm of the throughput divided by the change of the logarithm of the limit. Only consecutive rounds are compared, so that slow
    changes of the source itself have no effect.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._xy = self._xx = 0.0

    def add(self, window: int, seconds_per_token: float) -> float | None:
        """Add a round. Returns the elasticity between this round and the one before, or None if they cannot be compared."""
        x, y = log(window), log(max(1e-9, seconds_per_token))
        last, self._last = self._last, (x, y)
        if last is None or abs(x - last[0]) <= 0.05:
            return None
        dx, dy = x - last[0], y - last[1]
        self._xy = TUNING.memory * self._xy + dx * dy
        self._xx = TUNING.memory * self._xx + dx * dx
        return 1 - dy / dx

    def break_off(self) -> None:
        """Mark that the next round cannot be compared with the last one."""
        self._last = None

    @property
    def value(self) -> float:
        """Elasticity over all rounds, with more weight on recent ones; 1 if unknown."""
        return 1 - self._xy / self._xx if self._xx else 1.0


class _Round:
    """Answers to requests that were sent under one value of the limit."""

    def __init__(self, limit: int, since: float, peak: int) -> None:
        self.limit, self.since, self.peak = limit, since, peak
        self.answers, self.seconds, self.tokens = 0, 0.0, 0.0


class AdaptiveLimit(ConcurrencyLimit):
    """An adaptive concurrency limit. The module docstring lists its rules.

    Args:
        rng: used for random rounding.
        most: the configured limit, which is never exceeded; None for ``MOST``.
    """

    def __init__(self, rng: Random, most: int | None = None) -> None:
        self._rng = rng
        self.most = MOST if most is None else most
        self._start = most if most is not None and most <= TUNING.trusted else min(TUNING.start, self.most)
        super().__init__(self._start)
        self._held = 0.0  # the last base under which 100 answers came without a reject
        self._rounds = 1
        self.reason = "start"
        self.crowded_until = -inf  # the limit does not grow before this time, because requests wait inside the server
        self._elasticity = Elasticity()
        self._side = 1.0  # whether the limit lies above (1) or below (-1) the base
        self._good = self.most  # answers since the last reject
        self._away = 0  # rejects in a row with no other request in flight
        self._reject_after = 0.0  # seconds until a request is rejected, moving average
        self._clean = 0  # answers since the last try or reject
        self._mark = 0.0  # time of the last try or reject
        self._floor = 0  # the limit before the last try
        self._blame_until = 0.0  # a reject before this time is attributed to the last try
        self._no_try_before = 0.0
        self._round: _Round
        self._begin(0.0, 0)

    def _begin(self, now: float, inflight: int) -> None:
        self._starting, self._capped, self._step = True, False, 0
        self._elasticity.break_off()
        self._set(max(self._start, self._held / 2), now, inflight)

    def sent(self, _now: float, inflight: int) -> None:
        self._round.peak = max(self._round.peak, inflight)

    def ok(self, now: float, sent_at: float, tokens: int | None, inflight: int) -> None:
        self._clean += 1
        self._good += 1
        self._away = 0
        if self._good >= TUNING.patience:
            self._held = self._base
        if self._capped and inflight + 1 >= self.limit:
            self._try_more(now)
        current = self._round
        if sent_at >= current.since:
            current.answers += 1
            current.seconds += now - sent_at
            current.tokens += tokens or 1.0
            if current.answers >= max(TUNING.shortest_round, self.limit / 2):
                self._end_round(now, inflight)

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int) -> bool:
        self._reject_after += 0.2 * (now - sent_at - self._reject_after)
        tried = now < self._blame_until and others >= self._floor
        lone = not tried and hint is None and others > 0 and self._good >= self.limit / 2
        self._good = 0
        if lone:
            return False
        self._away += others == 0
        if self._away > 1:
            self.reason = "nobody was served: starting again"
            self._begin(now, others)
            return True
        if tried and hint is not None:
            self._no_try_before = now + TUNING.price * hint
        self._yield_to(now, others, max(others, self._floor) if tried else others)
        return not tried

    def crowd(self, until: float) -> None:
        self.crowded_until = until

    def returned(self, now: float, inflight: int) -> None:  # W5
        if self.limit < max(self._start, self._held / 2):
            self.reason = "back: starting again"
            self._begin(now, inflight)

    def _yield_to(self, now: float, others: int, survivors: int) -> None:
        base = float(min(self.limit, survivors))
        if self._step or self._clean:  # only for the first of several rejects in a row
            give = base * TUNING.spare
            base -= int(give) + (self._rng.random() < give % 1)
        self._starting, self._capped, self._step = False, True, 0
        self._mark, self._clean = now, 0
        self._elasticity.break_off()
        self.reason = f"rejected while {others} were served"
        self._set(base, now, others)

    def _settle(self) -> float:
        return max(TUNING.settle, 3 * self._reject_after)

    def _try_more(self, now: float) -> None:
        waited = now - self._mark
        due = self._step or self._clean >= TUNING.patience or waited >= TUNING.hold
        barred = now < max(self._no_try_before, self.crowded_until) or waited < self._settle()
        if not due or barred or self.limit >= min(self.most, 1.5 * self._round.limit):
            return
        if self._elasticity.value < TUNING.high:  # a higher limit would not increase throughput
            self._capped = False
            return
        self._floor = self.limit
        self._step = min(2 * self._step or 1, max(1, self.limit // 3))
        self._mark, self._clean, self._blame_until = now, 0, now + self._settle()
        self.limit = min(self.most, self.limit + self._step)
        count_change(self.changes, self._floor, self.limit, "trial")
        self._base = float(self.limit)
        self.reason = f"trying {self.limit - self._floor} more after clean answers"

    def _end_round(self, now: float, inflight: int) -> None:
        current, base = self._round, self._base
        if current.peak < 0.8 * self.limit:  # the limit was hardly reached, so the round says nothing about it
            if not self._starting:  # else the limit would double after each pause
                self._elasticity.break_off()
        else:
            change = self._elasticity.add(self.limit, current.seconds / current.tokens)
            factor = 1.0
            if self._starting:
                factor = self._start_factor(inf if change is None else change)
            elif change is not None and self._side < 0:  # every second round, after one above the base and one below
                factor = self._seek_factor()
            base *= factor if now >= self.crowded_until else min(1.0, factor)
        self._side = -self._side
        self._rounds += 1
        self._set(base, now, inflight)

    def _start_factor(self, elasticity: float) -> float:
        self._starting = elasticity >= TUNING.keep
        self.reason = f"start: elasticity {elasticity:.2f}"
        if self._starting:
            return 2.0
        return 1.0 if elasticity > TUNING.low else 0.5

    def _seek_factor(self) -> float:
        elasticity = self._elasticity.value
        self.reason = f"elasticity {elasticity:.2f}"
        if elasticity > TUNING.high and not self._capped:
            return TUNING.up
        return TUNING.down if elasticity < TUNING.low else 1.0

    def _set(self, base: float, now: float, inflight: int) -> None:
        self._base = max(1.0, min(float(self.most), base))
        if self._base >= self.most:
            self._starting = False
        at_rest = self._capped or self._starting or (self._base >= self.most and self._rounds % TUNING.look != 0)
        swing = 1.0 if at_rest else 1 - TUNING.zig if self._base >= self.most else 1 + TUNING.zig * self._side
        before, self.limit = self.limit, max(1, min(self.most, round(self._base * swing)))
        count_change(self.changes, before, self.limit, self.reason.partition(" ")[0].rstrip(":"))
        self._round = _Round(self.limit, now, inflight)
