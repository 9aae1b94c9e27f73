"""The one estimate behind every choice of an endpoint: when would this source have answered this task?

    finish  = wait + tries * service
    service = pace * (overhead + tokens) * (1 + inflight / capacity)

``wait``      seconds until the source may be sent the task: its cooldown, its rate limits, and a slot (``Source.wait``).
``tries``     1 / (1 - share of failures), the expected number of sends if failures are independent (geometric distribution). Each failure
              of the task itself at the source doubles it for this task (``Task.burden``).
``pace``      seconds per unit of work without load, a ratio of sums. With few answers it is pulled towards the common pace of the pool's
              sources, as if each source had given ``PRIOR`` answers at the common pace (empirical Bayes, Morris 1983). It forgets with age,
              so an idle source is expected to be like the others again.
``overhead``  work of an answer without tokens, in tokens: the intercept of a regression of the pool's answers, over its slope.
``tokens``    the output tokens of the answer; the pool's mean while they are not known.
``inflight``  load. Far above the capacity of a server, the time of an answer is proportional to the requests in flight (Little's law); far
              below, it hardly changes. The capacity is the concurrency limit, at most ``CAPACITY``.
"""

from __future__ import annotations

PRIOR = 4.0
"""Number of answers at the common pace that each source is assumed to have given. Of two equal servers that are not slowed by load, the
busier one seems faster by as much as it is expected to be slower, so nothing but the prior makes their shares equal. With 2, one in eight
simulated runs divided single calls further than 60 : 40; with 4, none of 60 did."""
MEMORY, LONG_MEMORY = 20.0, 200
"""``MEMORY``: number of latest answers that the pace of a source covers; as many as are in flight together, if that is more.
``LONG_MEMORY``: number of latest answers that the common pace covers."""
HALF_LIFE = 30.0
"""Seconds in which what is known about a source loses half of its weight."""
IDLE = 1.0
"""Age in seconds from which observations lose weight by age. More often is not worth the arithmetic."""
CAPACITY = 32
"""Number of requests in flight at which a server is assumed to need twice as long for each."""
CALM, MOST_FAILURES, FORGOTTEN = 5.0, 0.9, 0.01
"""``CALM``: number of successful sends that each source is assumed to have made. ``MOST_FAILURES``: highest share of failures.
``FORGOTTEN``: weight of failures below which a source counts as without failures."""
FIT_EVERY, LEAST_SPREAD, MOST_OVERHEAD, OUTLIER = 16, 0.05, 20.0, 8.0
"""The overhead is computed anew after ``FIT_EVERY`` answers, if the variance of the lengths is at least ``LEAST_SPREAD`` times the square
of their mean. It is at most ``MOST_OVERHEAD`` mean lengths. An answer counts as at most ``OUTLIER`` times the work that was expected."""


class CommonService:
    """What the answers of all sources of a pool have in common.

    Attributes:
        overhead: work of an answer without tokens, in tokens.
        typical: mean work of an answer, in tokens; 1 while no source reports tokens.
        pace: seconds per unit of work without load; 0 before the first answer.
        prior_seconds, prior_work: the answers that each source is assumed to have given (see ``PRIOR``).
    """

    __slots__ = (
        "_answers", "_count", "_length", "_seconds", "_sums", "_tokens", "overhead", "pace", "prior_seconds", "prior_work", "typical",
    )  # fmt: skip

    def __init__(self) -> None:
        self.overhead, self.typical, self.pace = 0.0, 1.0, 0.0
        self.prior_seconds, self.prior_work = 0.0, PRIOR
        self._length = 1.0  # mean length of an answer
        self._seconds = self._answers = self._tokens = 0.0  # decayed sums; the work is ``overhead * answers + tokens``
        self._count = 0
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # decayed sums of 1, tokens, tokens^2, work, tokens * work

    def add(self, tokens: int | None, seconds: float, pace: float) -> None:
        """Add an answer. ``seconds`` are those without load; ``pace`` is that of the source before this answer, or 0."""
        length = tokens or self._length
        if not self._count:
            self._length = length
        self._count += 1
        keep = 1.0 - 1.0 / self._count if self._count < LONG_MEMORY else 1.0 - 1.0 / LONG_MEMORY
        self._length += (length - self._length) * (1.0 - keep)
        self._seconds = keep * self._seconds + seconds
        self._answers = keep * self._answers + 1.0
        self._tokens = keep * self._tokens + length
        if tokens:
            done = min(seconds / pace, OUTLIER * (self.overhead + tokens)) if pace else float(tokens)
            n, t, tt, y, ty = self._sums
            self._sums = (0.995 * n + 1, 0.995 * t + tokens, 0.995 * tt + tokens * tokens, 0.995 * y + done, 0.995 * ty + tokens * done)
            if not self._count % FIT_EVERY:
                self._fit()
        self.typical = self.overhead + self._length
        self.pace = self._seconds / (self.overhead * self._answers + self._tokens)
        self.prior_work = PRIOR * self.typical
        self.prior_seconds = self.prior_work * self.pace

    def _fit(self) -> None:
        n, t, tt, y, ty = self._sums
        mean = t / n
        spread = tt / n - mean * mean
        if spread >= LEAST_SPREAD * mean * mean:
            slope = (ty / n - mean * y / n) / spread
            overhead = (y / n - slope * mean) / slope if slope > 0 else MOST_OVERHEAD * mean
            self.overhead = min(max(overhead, 0.0), MOST_OVERHEAD * mean)


class SourceService:
    """What one source has shown: its pace, and its share of failures."""

    __slots__ = ("_answers", "_at", "_length", "_seconds", "_sent", "_taken", "_tokens", "failures")

    def __init__(self) -> None:
        self._seconds = self._answers = self._tokens = 0.0  # decayed sums; the work is ``overhead * answers + tokens``
        self._taken = self._length = 0.0
        self._sent = self.failures = 0.0
        self._at = 0.0  # time of the latest observation

    def answered(self, now: float, common: CommonService, seconds: float, tokens: int | None, load: float, capacity: int) -> float:
        """Add an answer to what is known about this source and about all sources.

        Args:
            now: when the answer came.
            common: what the answers of all sources of the pool have in common.
            seconds: the time of the answer.
            tokens: its output tokens, or None if the source does not report them.
            load: mean number of other requests in flight at the same time.
            capacity: number of requests in flight at which the source needs twice as long for each.

        Returns:
            The length of the answer in tokens, as far as it can be told from its time.
        """
        alone = seconds / (1.0 + load / capacity)
        pace = self.pace(now, common) if common.pace else 0.0
        common.add(tokens, alone, pace)
        if now - self._at >= IDLE:
            self._age(now)
        keep = 1.0 - 1.0 / max(MEMORY, load + 1.0)
        length = tokens or common.typical - common.overhead
        self._seconds = keep * self._seconds + alone
        self._answers = keep * self._answers + 1.0
        self._tokens = keep * self._tokens + length
        self._taken = 0.95 * self._taken + seconds
        self._length = 0.95 * self._length + (tokens or common.typical)
        self._sent = 0.95 * self._sent + 1.0
        if self.failures:
            self.failures = 0.95 * self.failures if self.failures > FORGOTTEN else 0.0
        return tokens or (alone / pace if pace else common.typical)

    def outlasted(self, now: float, seconds: float, common: CommonService) -> None:
        """Add a request that was given up after ``seconds`` without an answer, if that is longer than expected.

        Its answer would have taken longer still, so it counts as an answer after that time.
        """
        if common.pace and seconds > self.pace(now, common) * common.typical:
            self._age(now)
            self._seconds += seconds
            self._answers += 1.0
            self._tokens += common.typical - common.overhead

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

    def tries(self, now: float) -> float:
        """Return the expected number of sends of a task until it is answered."""
        if not self.failures:
            return 1.0
        fresh = 1.0 if now - self._at < IDLE else 0.5 ** ((now - self._at) / HALF_LIFE)
        return 1.0 / (1.0 - min(MOST_FAILURES, fresh * self.failures / (fresh * self._sent + CALM)))

    def _age(self, now: float) -> None:
        if now - self._at >= IDLE:
            fresh = 0.5 ** ((now - self._at) / HALF_LIFE)
            self._seconds *= fresh
            self._answers *= fresh
            self._tokens *= fresh
            self._sent *= fresh
            self.failures *= fresh
            self._at = now
