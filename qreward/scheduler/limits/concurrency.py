"""Concurrency limits: how many requests a source may have in flight. ``FixedLimit`` is configured; ``AdaptiveLimit`` finds the capacity.

The scheduler reads only ``limit``, and reports sends, answers and rejects so that a limit can adapt. A limit also classifies rejects:
either the source is unavailable or over a rate (its cooldown starts), or it is only full. Failures and timeouts do not move a limit;
``health`` judges them.

Two signals move the adaptive limit, without prior knowledge. *Rejects* show the capacity of the source: the requests that it still serves.
*Elasticity* shows whether more requests in flight still increase throughput, from the time per token; it also works where a server queues
without ever rejecting. Both are measured against the limit's own earlier rounds, never against a lowest latency, which for language models
is only that of the shortest answer.

W1  Start at a usual size and double every round while throughput keeps up. A small configured limit is used from the start. If that is too
    much, the first rejects show the capacity within a round trip.
W2  Without rejects, alternate a little above and below a base. Move the base up while that increases throughput, and down where less would
    do as well. At the configured limit, test below it only now and then.
W3  A reject sets the limit to the requests that are still served, less a little for other clients. A single reject without a hint among
    good answers is noise.
W4  From there, try one slot more after many clean answers. Each try that succeeds doubles the next; one that fails is taken back, and its
    reject is not counted as new information. Tries end where elasticity shows that more does not increase throughput. If a failed try
    costs a wait, because the source requested one, the next try comes after twenty times that wait.
W5  If no request is still served, twice in a row, the source is unavailable and not full: start again, with half of its former capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from random import Random

DEFAULT_LIMIT = 64
"""Requests in flight at an endpoint whose capacity is unknown."""
PATIENCE = 100
"""Answers after which a lowered limit is raised again. This bounds rejects to about one in so many requests."""


Changes = dict[tuple[str, str], int]
"""How often a limit changed: (``up`` or ``down``, reason in one word) -> count."""


def count_change(changes: Changes, before: int, after: int, reason: str) -> None:
    """Count a change of a limit; equal values are not counted."""
    if after != before:
        key = ("up" if after > before else "down", reason)
        changes[key] = changes.get(key, 0) + 1


class ConcurrencyLimit:
    """How many requests a source may have in flight: a limit that never changes. Subclasses adapt it to the events.

    ``inflight`` and ``others`` are counted after the event. ``reason`` says why ``limit`` has its value.
    """

    reason = "fixed"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.changes: Changes = {}

    def sent(self, now: float, inflight: int, /) -> None:
        """A request was sent."""

    def ok(self, now: float, sent_at: float, tokens: int | None, inflight: int, /) -> None:
        """An answer arrived, of ``tokens`` output tokens, or None if the source does not report them."""

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int, /) -> bool:  # noqa: ARG002 - for subclasses
        """A request was rejected while ``others`` are in flight, with a wait of ``hint`` seconds or None. True if a cooldown must start.

        A hint starts a cooldown in any case. If this returns False, the hint is not treated as a sign of a rate limit.
        """
        return True

    def returned(self, now: float, inflight: int, /) -> None:
        """The source is back after it served nothing. Rejects while it became unavailable said nothing about its capacity."""

    def crowd(self, until: float, /) -> None:
        """Until then requests are known to wait inside the server, and the limit should not grow."""


class FixedLimit(ConcurrencyLimit):
    """A configured limit, or the default.

    A source that rejects requests beyond its own capacity but serves the rest gets no cooldown. The limit falls to the number it still
    serves for a hundred answers (fewer where it is small), and doubles from there. A single reject among good answers is noise.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(DEFAULT_LIMIT if limit is None else limit)
        self._set = self.limit
        self._good = 0  # answers since the last reject
        self._clean = 0  # answers since the limit last changed
        self._closed_at = -inf

    def ok(self, _now: float, _sent_at: float, _tokens: int | None, _inflight: int) -> None:
        self._good += 1
        if self.limit < self._set:
            self._clean += 1
            if self._clean >= min(PATIENCE, 4 * self.limit):
                self._move(2 * self.limit, "answers")

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int) -> bool:
        lone, self._good = self._good >= self._set / 2, 0
        if hint is not None or others == 0:  # unavailable, or over a rate: no evidence of its capacity
            self._closed_at = now
            self._move(self._set, "away")
            return True
        if not lone and sent_at >= self._closed_at:
            self._move(min(self.limit, others), "rejected")
        return False

    def _move(self, limit: int, reason: str) -> None:
        before, self._clean, self.limit = self.limit, 0, max(1, min(self._set, limit))
        count_change(self.changes, before, self.limit, reason)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Constants of the adaptive limit. Swept one at a time over 23 server models, none moved the mean by more than .006."""

    start: int = 32
    keep: float = 0.35  # W1: elasticity that justifies another doubling
    zig: float = 0.15  # W2: how far above and below the base
    memory: float = 0.8  # W2: weight that older differences keep, per round
    low: float = 0.05  # W2: elasticity below which a smaller limit loses nothing
    high: float = 0.20  # W2: elasticity above which a larger limit pays
    down: float = 0.85
    up: float = 1.20
    spare: float = 0.03  # W3: share left to other clients after a reject
    patience: int = 100  # W4: clean answers before a try
    hold: float = 60.0  # W4: or seconds, for slow sources
    settle: float = 1.0  # W4: least seconds between tries, and how long a reject is attributed to the last try
    price: float = 20.0  # W4: after a failed try that costs a wait, seconds without a try per second of that wait
    shortest_round: int = 12
    longest_round: int = 100
    trusted: int = 64  # W1: largest configured limit that is used at once
    look: int = 8  # W2: rounds between two tests below the configured limit


TUNING = Tuning()
MOST = 2048
"""Largest limit of a source without a configured one."""


class Elasticity:
    """How throughput follows the concurrency limit: 1 if in proportion, 0 if not at all.

    It is d ln(throughput) / d ln(limit), from differences of consecutive rounds, so that slow changes of the source itself do not count.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._xy = self._xx = 0.0

    def add(self, window: int, seconds_per_token: float) -> float | None:
        """Add a round. Returns the elasticity between it and the one before, or None if they cannot be compared."""
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
        """Elasticity over all rounds, recent ones weighted most; 1 if unknown."""
        return 1 - self._xy / self._xx if self._xx else 1.0


class _Round:
    """Answers to requests that were sent under one value of the limit."""

    def __init__(self, limit: int, since: float, peak: int) -> None:
        self.limit, self.since, self.peak = limit, since, peak
        self.answers, self.seconds, self.tokens = 0, 0.0, 0.0


class AdaptiveLimit(ConcurrencyLimit):
    """An adaptive concurrency limit. The module docstring lists its rules.

    Args:
        rng: for random rounding.
        most: the configured limit, which is never exceeded; None for ``MOST``.
    """

    def __init__(self, rng: Random, most: int | None = None) -> None:
        self._rng = rng
        self.most = MOST if most is None else most
        self._start = most if most is not None and most <= TUNING.trusted else min(TUNING.start, self.most)
        super().__init__(self._start)
        self._held = 0.0  # the base under which it last went many answers without a reject
        self._rounds = 1
        self.reason = "start"
        self.crowded_until = -inf  # until then requests are known to wait inside the server, and the limit does not grow
        self._elasticity = Elasticity()
        self._side = 1.0
        self._good = self.most  # answers since the last reject
        self._away = 0  # rejects in a row with no other request in flight
        self._reject_after = 0.0  # seconds a reject takes, moving average
        self._clean = 0  # answers since the last try or reject
        self._mark = 0.0  # when that was
        self._floor = 0  # the limit before the last try
        self._blame_until = 0.0
        self._no_try_before = 0.0
        self._round = _Round(self.limit, 0.0, 0)
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
            if current.answers >= min(TUNING.longest_round, max(TUNING.shortest_round, self.limit / 2)):
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
        if self._step or self._clean:  # true about once in a burst of rejects
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
        if self._elasticity.value < TUNING.high:  # more would not help: rejects are not the limiting factor
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
        if current.peak < 0.8 * self.limit:  # too little load to learn from
            self._elasticity.break_off()
        else:
            change = self._elasticity.add(self.limit, current.seconds / current.tokens)
            factor = 1.0
            if self._starting:
                factor = self._start_factor(inf if change is None else change)
            elif change is not None and self._side < 0:  # every second round, after one above and one below
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
