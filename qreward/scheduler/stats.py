"""Measures endpoints in constant memory: latencies, timing of streams, output lengths, and stalls."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from math import exp, inf, log

_GROWTH = 0.1
_SMALLEST = 1e-4
_OFFSET = -int(log(_SMALLEST) / _GROWTH)
_BUCKETS = 256


@cache
def least_failures(share: float, chance: float, most: int) -> list[int]:
    """Return, for each number of requests up to ``most``, the least number of failures that shows a share of failures above ``share``.

    If each request failed with the probability ``share``, so many would fail with a probability of at most ``chance`` (binomial test).
    """
    found = []
    for sent in range(most + 1):
        failed, each = sent + 1, share**sent  # ``each``: probability of exactly ``failed - 1`` failures
        tail = each
        while tail <= chance:
            failed -= 1
            each *= failed / (sent - failed + 1) * (1.0 - share) / share
            tail += each
        found.append(failed)
    return found


class LastFailures:
    """The failures among the last requests, in the order in which the requests were sent.

    Requests in flight count as not failed. So a burst of requests whose failures return before its answers is not a row of failures.
    """

    def __init__(self) -> None:
        self.first = 0  # requests up to this one do not count
        self._failures: list[tuple[int, int]] = []  # (order, key); ``order`` counts the requests that were sent

    def clear(self) -> None:
        self._failures.clear()

    def add(self, order: int, key: int, least: list[int]) -> bool:
        """Record that the ``order``-th request failed. Failures with the same ``key`` count once.

        Returns True if, of the last n requests up to this one, at least ``least[n]`` failed, for any n.
        """
        most = len(least) - 1
        insort(self._failures, (order, key))
        del self._failures[: -4 * most]
        failed: set[int] = set()
        repeated = 0  # failures of keys that were counted already, as if those requests had not been sent
        for place, each in reversed(self._failures):
            if place > order:
                continue
            if place <= max(self.first, order - most - repeated):
                return False
            repeated += each in failed
            failed.add(each)
            if len(failed) >= least[order - place + 1 - repeated]:
                return True
        return False


class Quantiles:
    """Quantiles of positive numbers, exact to about 5 %, from logarithmic buckets as in DDSketch (Masson et al., VLDB 2019).

    All counts are halved each time their sum reaches ``fade_after``, so that old numbers lose weight.
    """

    def __init__(self, fade_after: int | None = None) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self._sums, self._summed = [0], 0  # sums of the counts up to each bucket, when ``count`` was ``_summed``
        self.fade_after = fade_after

    def add(self, value: float) -> None:
        bucket = int(log(value) / _GROWTH + _OFFSET) if value > _SMALLEST else 0  # inlined from ``bucket()``: hot path
        self._counts[bucket if bucket < _BUCKETS else _BUCKETS - 1] += 1
        self.count += 1
        if self.count == self.fade_after:
            self._counts = [count >> 1 for count in self._counts]
            self.count, self._summed = sum(self._counts), 0

    def bucket(self, value: float) -> int:
        return min(_BUCKETS - 1, int(log(value) / _GROWTH + _OFFSET)) if value > _SMALLEST else 0

    def beyond(self, share: float) -> list[float]:
        """Return for each bucket the value that the share ``share`` of all numbers in later buckets exceeds; 0 if there are none."""
        found, rank, above = [0.0] * _BUCKETS, 0, 0.0  # ``above``: values in buckets after ``top``
        top = _BUCKETS - 1
        for bucket in range(_BUCKETS - 1, -1, -1):
            while rank and above + self._counts[top] < share * rank:
                above += self._counts[top]
                top -= 1
            found[bucket] = exp((top - _OFFSET + 0.5) * _GROWTH) if rank else 0.0
            rank += self._counts[bucket]
        return found

    def at(self, quantile: float) -> float | None:
        if not self.count:
            return None
        if self._summed != self.count:
            self._sums, self._summed = list(accumulate(self._counts)), self.count
        bucket = bisect_left(self._sums, max(quantile * self.count, 0.5))
        return exp((bucket - _OFFSET + 0.5) * _GROWTH)


FORGOTTEN = 0.999
"""Factor by which each answer multiplies the longest time of an answer."""


class LatencyStats:
    """Seconds of the answers of one source: mean and quantiles, which are refreshed every 32 answers."""

    def __init__(self) -> None:
        self.mean = 0.0  # plain mean of the first eleven answers, and then a moving average; 0 before the first answer
        self.longest = 0.0  # of an answer or of an attempt that was cut; forgotten slowly
        self.p5 = 0.0  # 0 before 20 answers
        self.p99: float | None = None  # None before 20 answers
        self._answers = 0
        self._quantiles = Quantiles(fade_after=1000)
        self.at = self._quantiles.at

    def add(self, seconds: float) -> None:
        answers = self._answers = self._answers + 1
        self.mean += (seconds - self.mean) * (0.1 if answers > 11 else 1.0 / answers)
        self.longest = max(FORGOTTEN * self.longest, seconds)
        self._quantiles.add(seconds)
        if answers == KNOWN or answers % 32 == 0:
            self.p99 = self._quantiles.at(0.99)
            self.p5 = self._quantiles.at(0.05) or 0.0

    def cut(self, seconds: float) -> None:
        """Add an attempt that exceeded its time limit: its answer would have taken longer than ``seconds``."""
        self.longest = max(self.longest, seconds)


KNOWN = 20
"""Minimum number of values for a quantile to be used."""
FIRST_FACTOR, FIRST_LEAST, FIRST_MOST = 4.0, 5.0, 120.0
GAP_FACTOR, GAP_LEAST, GAP_MOST = 20.0, 5.0, 60.0
MOST_DOUBLINGS = 3


class StreamTiming:
    """Time limits of the streams of one source: for the first token and for the gaps between tokens.

    A limit is a multiple of the 99th percentile, within bounds in seconds. That of a first token doubles for each time limit that the task
    has exceeded before, because the task may just take long.
    """

    def __init__(self) -> None:
        self._first = Quantiles(fade_after=1000)
        self._gaps = Quantiles(fade_after=1000)

    def began(self, seconds: float) -> None:
        self._first.add(seconds)

    def went_on(self, gaps: Iterable[float]) -> None:
        for gap in gaps:
            self._gaps.add(gap)

    def first(self, quantile: float) -> float | None:
        """Return the seconds within which the share ``quantile`` of first tokens arrived, or None before 20 first tokens."""
        return self._first.at(quantile) if self._first.count >= KNOWN else None

    def first_limit(self, overdue: int) -> float | None:
        slow = self.first(0.99)
        if slow is None:
            return None
        return min(FIRST_MOST, max(FIRST_LEAST, FIRST_FACTOR * slow) * 2.0 ** min(overdue, MOST_DOUBLINGS))

    def gap_limit(self) -> float:
        slow = self._gaps.at(0.99) if self._gaps.count >= KNOWN else None
        return GAP_MOST if slow is None else min(GAP_MOST, max(GAP_LEAST, GAP_FACTOR * slow))


ENOUGH, FADE, REFRESH = 100, 4000, 32
"""Numbers of answers: for ``p999`` to be known, after which weights are halved, and after which quantiles are recomputed."""
EXTREME = 4.0
"""Before ``ENOUGH`` answers, ``p999`` is ``EXTREME`` times the longest answer so far. If lengths are lognormal (sigma 1), fewer than one in
a thousand is longer than four times the longest of twenty. Without a value, what hung in a first batch of 24 was given up after 10 s."""
LONG = 0.03
"""Share (0 to 1) of the answers that are longer than a *long* answer. Long answers determine when a batch ends; the mean does not."""
STRETCH = 1.6
"""A long answer is expected to have at least ``STRETCH`` times the length that an answer in progress has reached, even if no earlier answer
was that long."""


class AnswerLengths:
    """Lengths of a pool's answers in tokens, over all of its sources, because the length depends on the request only."""

    def __init__(self) -> None:
        self._sizes = Quantiles(fade_after=FADE)
        self.at = self._sizes.at
        self._beyond: list[float] = []
        self._fresh = 0
        self.p99 = self.p999 = inf  # inf before ``KNOWN`` answers

    def add(self, lengths: list[float]) -> None:
        for length in lengths:
            self._sizes.add(length)
        self._fresh += len(lengths)
        if self._fresh >= REFRESH or (self.p99 == inf and self._sizes.count >= KNOWN):
            self._fresh %= REFRESH
            self._beyond = []
            if self._sizes.count >= KNOWN:
                self.p99 = self._sizes.at(0.99) or inf
                self.p999 = (self._sizes.at(0.999) or inf) if self._sizes.count >= ENOUGH else EXTREME * self.p99

    def long(self, least: float) -> float:
        """Return the length of a long answer (see ``LONG``) among the answers longer than ``least``."""
        if not self._beyond:
            self._beyond = self._sizes.beyond(LONG)
        return max(self._beyond[self._sizes.bucket(least)], STRETCH * least)


LEAST_SENT, LEAST_ANSWERS, LEAST_SECONDS, LEAST_NEW = 3, 20, 2.5, 10.0
"""What makes a silence a stall at the earliest: unanswered requests, silences that ended before, seconds, and seconds of a source that has
never answered."""
FACTOR, LEAST_DUE = 3.0, 24.0
"""A stall is longer than ``FACTOR`` times the longest silence so far, and ``LEAST_DUE`` answers were due in it. If answers arrive
independently of each other, the probability of such a silence is e^-24."""
_MEMORY = 0.9995  # each silence multiplies the longest earlier silence by this factor, so that it is forgotten slowly


class StallDetector:
    """Detects that a source with requests in flight has answered nothing for far longer than ever before.

    The length of a *silence* (a time without answers) is the number of answers that were due in it: the sum of the seconds for which
    requests were in flight, divided by the mean time of an answer (Little's law). That is about the same at any load. ``spent`` is the sum
    of these seconds up to now, in all methods.
    """

    def __init__(self) -> None:
        self.since = inf  # when the present silence began; inf while too few requests are unanswered
        self.beaten = 0  # requests that were cancelled in the first silence, because another source had answered them
        self._spent = 0.0  # ``spent`` when the silence began
        self._longest = 0.0  # the longest silence, in answers that were due
        self._answers = 0  # silences that a sign of life ended

    def begin(self, now: float, spent: float) -> None:
        """Begin a silence, or begin it anew."""
        self.since, self.beaten, self._spent = now, 0, spent

    def sent(self, now: float, inflight: int, spent: float) -> None:
        if self.since == inf and inflight >= LEAST_SENT:
            self.begin(now, spent)

    def broken(self, now: float, inflight: int, mean: float, spent: float) -> None:
        """Record that a request ended with a sign of life, which ends a silence. ``mean`` is the mean latency in seconds."""
        if self.since != inf and mean > 0:
            self._longest = max(_MEMORY * self._longest, (spent - self._spent) / mean)
            self._answers += 1
        self.since, self.beaten, self._spent = now if inflight >= LEAST_SENT else inf, 0, spent

    def ended(self, inflight: int, *, beaten: bool = False) -> None:
        """Record that a request ended without a sign of life. ``beaten``: another source answered it first. That is evidence against a
        source that has never answered; at others, the requests that are left and copied are the longest ones."""
        self.beaten += beaten and not self._answers
        if not inflight or inflight + self.beaten < LEAST_SENT:
            self.since = inf

    def alarm_at(self, now: float, inflight: int, mean: float, spent: float, *, new: bool = False) -> float:
        """Return the time at which the source counts as stalled if no answer comes before.

        If it is ``new``, it has never answered, and ``mean`` is a high guess from the answers of others.
        """
        if self.since == inf or (self._answers < LEAST_ANSWERS and not (new and mean)):
            return inf
        left = max(FACTOR * self._longest, LEAST_DUE) * mean - (spent - self._spent)
        return max(self.since + (LEAST_NEW if new else LEAST_SECONDS), now + left / inflight)
