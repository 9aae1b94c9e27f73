"""The one estimate behind the choice of an endpoint: when would this source have answered this task?

A source that becomes free takes the next task. If several are free, a new task goes to the one with the least ``tries * service``. A retry
goes to the source with the least ``finish``. Copies of requests
and the last items of a batch compare the seconds per token of the latest answers (``SourceService.recent``).

    finish  = wait + tries * service
    service = pace * (overhead + tokens) * (1 + LOAD * inflight / capacity)

``wait``      seconds until the source may be sent the task: its cooldown, its rate limits, and a slot (``Source.finishes_in``). What is
              away is expected to stay away for as long as it has been away.
``tries``     1 / (1 - share of failures), the expected number of sends if failures are independent (geometric distribution). With few
              sends, the share is pulled towards that of all sources of the pool. Each failure of the task itself at the source doubles
              the tries for this task (``Task.burden``).
``pace``      seconds per unit of work without load, a ratio of sums. With few answers it is pulled towards the common pace of the pool's
              sources, as if each source had given ``PRIOR`` answers at the common pace (empirical Bayes, Morris 1983). It forgets with age,
              so an idle source is expected to be like the others again.
``overhead``  work of an answer without tokens, in tokens: the intercept of a regression of the pool's answers, over its slope.
``tokens``    the output tokens of the answer; the pool's mean while they are not known.
``inflight``  load. Far above the capacity of a server, the time of an answer is proportional to the requests in flight (Little's law); far
              below, it hardly changes. The capacity is the concurrency limit, at most ``CAPACITY``.
"""

from __future__ import annotations

from math import inf

from qreward.scheduler.stats import AnswerLengths

PRIOR = 4.0
"""Number of answers at the common pace that each source is assumed to have given. Of two equal servers that are not slowed by load, the
busier one seems faster by as much as it is expected to be slower, so nothing but the prior makes their shares equal. With 2, one in eight
simulated runs divided single calls further than 60 : 40; with 4, none of 60 did."""
MEMORY, LONG_MEMORY = 20.0, 200
"""``MEMORY``: number of latest answers that the pace of a source covers; as many as are in flight together, if that is more.
``LONG_MEMORY``: number of latest answers that the common pace covers."""
HALF_LIFE, FAILURES_HALF_LIFE = 30.0, 5.0
"""Seconds in which the answers of a source, and its failures, lose half of their weight. With 30 s for failures as well, an endpoint of two
that had failed three times got no single call for over two minutes."""
IDLE = 1.0
"""Age in seconds from which observations lose weight by age. More often is not worth the arithmetic."""
CAPACITY, LOAD = 32, 1.25
"""``CAPACITY``: number of requests in flight at which a server is assumed to need twice as long for each. ``LOAD``: factor on the load in a
choice, but not where answers are measured. So the shares of equal servers are drawn together. With 1, single calls to eight equal servers
took 19.1 s, with 1.25 they took 17.8 s (round robin: 17.2 s); calls to servers of unequal speed took the same (simulated, 24 runs)."""
CALM, MOST_FAILURES, FORGOTTEN = 5.0, 0.9, 0.01
"""``CALM``: number of sends that each source is assumed to have made, with the common share of failures. ``MOST_FAILURES``: highest
share of failures. ``FORGOTTEN``: weight of failures below which there are none."""
FIT_EVERY, LEAST_SPREAD, MOST_OVERHEAD, OUTLIER = 16, 0.05, 20.0, 8.0
"""The overhead is computed anew after ``FIT_EVERY`` answers, if the variance of the lengths is at least ``LEAST_SPREAD`` times the square
of their mean. It is at most ``MOST_OVERHEAD`` mean lengths. An answer counts as at most ``OUTLIER`` times the work that was expected."""


TOGETHER, NEW, SOON = 64, 0.02, 0.02
"""Answers are counted together: at most ``TOGETHER``, at most a share ``NEW`` of all before, and none later than the first answer ``SOON``
seconds after the last count. So the arithmetic costs a busy client little, and sources are compared by what is known of all at one time."""

Observation = tuple["SourceService", float, float, int | None, float]
"""The service of the source that answered, the seconds of the answer, those without load, its output tokens (None if unknown), the load."""


class CommonService:
    """What the answers of all sources of a pool have in common.

    Attributes:
        lengths: lengths of the answers.
        overhead: work of an answer without tokens, in tokens.
        typical: mean work of an answer, in tokens; 1 while no source reports tokens.
        pace: seconds per unit of work without load; 0 before the first answer.
        prior_seconds, prior_work: the answers that each source is assumed to have given (see ``PRIOR``).
    """

    __slots__ = (
        "_answers", "_count", "_counted_at", "_expected", "_failures", "_failures_at", "_pending", "_seconds", "_sent", "_sums",
        "_tokens", "length", "lengths", "overhead", "pace", "prior_seconds", "prior_work", "typical",
    )  # fmt: skip

    def __init__(self) -> None:
        self.lengths = AnswerLengths()
        self.overhead, self.typical, self.pace = 0.0, 1.0, 0.0
        self.prior_seconds, self.prior_work = 0.0, PRIOR
        self.length = 1.0  # mean length of an answer
        self._seconds = self._answers = self._tokens = 0.0  # decayed sums; the work is ``overhead * answers + tokens``
        self._count = 0
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # decayed sums of 1, tokens, tokens^2, work, tokens * work
        self._pending: list[Observation] = []
        self._counted_at = -inf
        self._sent = self._failures = self._failures_at = 0.0  # decayed sums of all sources, and the time for which they are right
        self._expected: dict[SourceService, float] = {}  # results of ``expected`` since the last count

    def answered(self, now: float, service: SourceService, seconds: float, tokens: int | None, load: float, capacity: int) -> None:
        """Add an answer to what is known about its source and about all sources.

        Args:
            now: when the answer came.
            service: what its source has shown.
            seconds: the time of the answer.
            tokens: its output tokens, or None if the source does not report them.
            load: mean number of other requests in flight at the same time.
            capacity: number of requests in flight at which the source needs twice as long for each.
        """
        pending = self._pending
        pending.append((service, seconds, seconds / (1.0 + load / capacity), tokens, load))
        if len(pending) > min(TOGETHER, self._count * NEW) or now - self._counted_at >= SOON:
            self.count(now)

    def expected(self, now: float, service: SourceService) -> float:
        """Return the seconds of a typical answer of a source without load, repeated sends included; 1 before the first answer."""
        age = now - self._counted_at
        if age >= IDLE or (age >= SOON and self._pending):
            self.count(now)
        seconds = self._expected.get(service)
        if seconds is None:
            seconds = service.pace(now, self) * self.typical * service.tries(now, self.failure_share) if self.pace else 1.0
            self._expected[service] = seconds
        return seconds

    def failed(self, now: float) -> None:
        """Count a failure of one of the sources."""
        self._age(now)
        self._sent += 1.0
        self._failures += 1.0
        self._expected.clear()

    @property
    def failure_share(self) -> float:
        """Share (0 to 1) of the latest requests that failed, at all sources."""
        return self._failures / (self._sent + CALM)

    def _age(self, now: float) -> None:
        fresh = 0.5 ** ((now - self._failures_at) / FAILURES_HALF_LIFE)
        self._failures = fresh * self._failures if fresh * self._failures > FORGOTTEN else 0.0
        self._sent, self._failures_at = fresh * self._sent, now

    def count(self, now: float) -> None:
        """Count the answers that have come since the last count."""
        self._counted_at = now
        self._expected.clear()
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        if self._failures:
            self._age(now)
            self._sent += len(pending)
        groups: dict[SourceService, list[Observation]] = {}
        for each in pending:
            groups.setdefault(each[0], []).append(each)
        for service, answers in groups.items():
            self._add(now, service, answers)

    def _add(self, now: float, service: SourceService, answers: list[Observation]) -> None:
        pace = service.pace(now, self) if self.pace else 0.0
        overhead, lengths = self.overhead, []
        total = total_alone = length = squares = work = products = known = 0.0
        for _, seconds, alone, tokens, _ in answers:
            total += seconds
            total_alone += alone
            if tokens:
                done = min(alone / pace, OUTLIER * (overhead + tokens)) if pace else float(tokens)
                known += 1.0
                length += tokens
                squares += tokens * tokens
                work += done
                products += tokens * done
            lengths.append(tokens or (alone / pace if pace else self.typical))
        self.lengths.add(lengths)
        more = len(answers)
        unknown = more - known
        if not self._count and known:
            self.length = length / known
        before, self._count = self._count, self._count + more
        keep = before / self._count if self._count < LONG_MEMORY else (1.0 - 1.0 / LONG_MEMORY) ** more
        self._seconds = keep * self._seconds + total_alone
        self._answers = keep * self._answers + more
        self._tokens = keep * self._tokens + length + unknown * self.length
        self.length += (length - known * self.length) / more * (1.0 - keep)
        if known:
            n, t, tt, y, ty = self._sums
            fade = 0.995**known
            self._sums = (fade * n + known, fade * t + length, fade * tt + squares, fade * y + work, fade * ty + products)
            if self._count // FIT_EVERY > before // FIT_EVERY:
                self._fit()
        self.typical = self.overhead + self.length
        self.pace = self._seconds / (self.overhead * self._answers + self._tokens)
        self.prior_work = PRIOR * self.typical
        self.prior_seconds = self.prior_work * self.pace
        usual = self.typical - self.overhead
        service.add(now, more, total_alone, length + unknown * usual, total, length + unknown * self.typical, answers[-1][4])

    def _fit(self) -> None:
        n, t, tt, y, ty = self._sums
        mean = t / n
        spread = tt / n - mean * mean
        if spread >= LEAST_SPREAD * mean * mean:
            slope = (ty / n - mean * y / n) / spread
            overhead = (y / n - slope * mean) / slope if slope > 0 else MOST_OVERHEAD * mean
            self.overhead = min(max(overhead, 0.0), MOST_OVERHEAD * mean)


def _decay(keep: float, answers: int) -> tuple[float, float]:
    """Return the factors on a sum and on what equal answers add to it, if each answer multiplies the sum by ``keep`` before."""
    left = keep**answers
    return left, (1.0 - left) / ((1.0 - keep) * answers)


class SourceService:
    """What one source has shown: its pace, and its share of failures."""

    __slots__ = ("_answers", "_at", "_length", "_seconds", "_sent", "_taken", "_tokens", "failures")

    def __init__(self) -> None:
        self._seconds = self._answers = self._tokens = 0.0  # decayed sums; the work is ``overhead * answers + tokens``
        self._taken = self._length = 0.0
        self._sent = self.failures = 0.0
        self._at = 0.0  # time of the latest observation

    def add(self, now: float, answers: int, alone: float, tokens: float, seconds: float, work: float, load: float) -> None:
        """Add answers: their number, seconds without load, tokens, seconds, tokens or (if unknown) usual work, and the last load."""
        self._age(now)
        keep, weight = _decay(1.0 - 1.0 / max(MEMORY, load + 1.0), answers)
        self._seconds = keep * self._seconds + weight * alone
        self._answers = keep * self._answers + weight * answers
        self._tokens = keep * self._tokens + weight * tokens
        keep, weight = _decay(0.95, answers)
        self._taken = keep * self._taken + weight * seconds
        self._length = keep * self._length + weight * work
        self._sent = keep * self._sent + weight * answers
        if self.failures:
            self.failures = keep * self.failures if self.failures > FORGOTTEN else 0.0

    def outlasted(self, now: float, seconds: float, common: CommonService) -> None:
        """Add a request that was given up after ``seconds`` without an answer, if that is longer than expected.

        Its answer would have taken longer still, so it counts as an answer after that time.
        """
        if common.pace and seconds > self.pace(now, common) * common.typical:
            self._age(now)
            self._seconds += seconds
            self._answers += 1.0
            self._tokens += common.typical - common.overhead
            if not self._length:  # otherwise a source that is always too late would stay unknown
                self._taken, self._length = seconds, common.typical

    def failed(self, now: float) -> None:
        self._age(now)
        self._sent = 0.95 * self._sent + 1.0
        self.failures = 0.95 * self.failures + 1.0

    def pace(self, now: float, common: CommonService) -> float:
        """Return the seconds per unit of work without load; 0 if no source of the pool has answered yet."""
        seconds, work = self._seconds, common.overhead * self._answers + self._tokens
        if now - self._at >= IDLE:
            fresh = 0.5 ** ((now - self._at) / HALF_LIFE)
            seconds, work = fresh * seconds, fresh * work
        return (seconds + common.prior_seconds) / (work + common.prior_work)

    def recent(self) -> float:
        """Return the seconds per token of the latest answers, at the load that they met; 0 before the first answer."""
        return self._taken / self._length if self._length else 0.0

    def tries(self, now: float, share: float = 0.0) -> float:
        """Return the expected number of sends of a task until it is answered. ``share`` is the share of failures at all sources."""
        if not (self.failures or share):
            return 1.0
        fresh = 1.0 if now - self._at < IDLE else 0.5 ** ((now - self._at) / FAILURES_HALF_LIFE)
        return 1.0 / (1.0 - min(MOST_FAILURES, (fresh * self.failures + CALM * share) / (fresh * self._sent + CALM)))

    def _age(self, now: float) -> None:
        if now - self._at >= IDLE:
            fresh = 0.5 ** ((now - self._at) / HALF_LIFE)
            self._seconds *= fresh
            self._answers *= fresh
            self._tokens *= fresh
            fresh = 0.5 ** ((now - self._at) / FAILURES_HALF_LIFE)
            self._sent *= fresh
            self.failures *= fresh
            self._at = now
