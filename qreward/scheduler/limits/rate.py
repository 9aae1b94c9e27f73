"""Rate limits: a configured limit (``MinuteLimit``), a limit that is learned from rejects (``LearnedRate``), a limit that the server
advertises (``HeaderRateLimit``), and even spacing (``Gcra``).

A configured limit of 600 requests a minute allows 600 requests at once, as the token buckets and the windows of most providers do. A
provider that checks shorter times rejects some of them. From then on they are spaced evenly.

``Gcra`` is the generic cell rate algorithm (ITU-T I.371). It needs one float per limit and constant time per request, and its wake times
are exact. A request delays the theoretical arrival time by the cost of the request divided by the rate. The next request is allowed once
the theoretical arrival time is at most ``burst`` seconds ahead. A request whose cost exceeds the burst is allowed too; later requests then
wait until its cost is paid off.

``LearnedRate`` has no limit until rejects that are not stray (``concurrency.RejectShare``) carry a hint (``Retry-After``). The second such
row of rejects counts, because the first lowers the concurrency limit, which may be enough. Then it allows the rate at which requests were
accepted over the last minute, less 2 %, which token buckets and calendar minutes both allow. Without rejects the rate is raised again and
again, by more each time. A reject takes back the last raise. If rejects continue although no raise succeeds, no rate limit causes them, and
the limit ends.

``HeaderRateLimit`` follows the rate limit headers of the server, so that requests slow down before the first reject.
The headers of a response advertise the ``remaining`` amount of a limit, and the seconds (``reset``) until all of it is available again. A
*window* ends at a fixed time, at which the whole limit is available again (``RateLimit-Reset`` of draft-ietf-httpapi-ratelimit-headers-06).
A *bucket* refills continuously, and the time at which it is full moves with each use (OpenAI: "the time until the rate limit resets to its
initial state"). So if ``remaining`` falls and ``reset`` rises, the limit is a bucket, and its rate is the fall divided by the rise; if both
fall, it is a window. Before that is known, a limit is a window, unless the used amount divided by ``reset`` is the limit divided by a usual
window.

The remaining amount is what the response to the latest request advertised, less the cost of requests sent after that request, plus the
refill since then. If less than the largest recent cost of a request remains, requests wait for the refill or for the end of the window.
After a minute without a request, or when the time of a ``Retry-After`` has passed, one request is sent anyway; if it is answered and still
nothing remains, the headers are ignored until they advertise a remaining amount. An answer without the header ends the limit. A configured
limit applies in addition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qreward.scheduler.outcome import Answer, RateLimit
    from qreward.scheduler.task import Attempt

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

    def settle(self, reserved: float, used: float, sent_at: float) -> None:  # noqa: ARG002 - for subclasses
        """Correct the charge of a request that has ended. ``used`` is what it really used; 0 if it was not served."""
        self.give_back(reserved - used)

    def rejected(self, now: float) -> None:
        """Record that a request was rejected because of overload."""


PART, MINUTE = 0.25, 60.5
"""``PART``: requests are counted by this part of a second. ``MINUTE``: seconds after which a part no longer counts: the part itself, and as
long again for requests that reach the server late."""
SPACED = 600.0
"""Seconds after a reject for which requests are spaced evenly. Then it is tried again whether the provider takes them at once."""
FADE, ROOM = 0.998, 0.05
"""``FADE``: factor by which each request multiplies the largest recent cost. ``ROOM``: largest share (0 to 1) of a limit that is kept free
for a request of that cost."""


class MinuteLimit(Gcra):
    """Limits the requests or the tokens in any minute. After a reject they are also spaced evenly."""

    def __init__(self, per_minute: float) -> None:
        super().__init__(per_minute / 60)
        self._taken: dict[int, float] = {}  # part of a second -> cost of the requests sent in it, over the last minute
        self._sum = 0.0
        self._largest = 1.0  # largest recent cost of a request
        self._spaced = per_minute < 1  # requests are spaced evenly
        self._spaced_until = inf if self._spaced else -inf

    @property
    def ready_at(self) -> float:
        at = super().ready_at if self._spaced else -inf
        most = 60 * self.rate
        over = self._sum + min(self._largest, ROOM * most) - most - 1e-6
        if over > 0:
            for part, cost in self._taken.items():
                over -= cost
                if over <= 0:
                    return max(at, part * PART + MINUTE)
        return at

    def take(self, now: float, cost: float = 1.0) -> None:
        taken, part = self._taken, int(now / PART)
        while taken and (first := next(iter(taken))) * PART + MINUTE <= now:
            self._sum -= taken.pop(first)
        taken[part] = taken.get(part, 0.0) + cost
        self._sum += cost
        self._largest = max(cost, FADE * self._largest, 1.0)
        self._spaced = now < self._spaced_until
        if self._spaced:
            super().take(now, cost)

    def settle(self, reserved: float, used: float, sent_at: float) -> None:
        part = int(sent_at / PART)
        if part in self._taken:
            self._taken[part] -= reserved - used
            self._sum -= reserved - used
        if self._spaced:
            self.give_back(reserved - used)

    def rejected(self, now: float) -> None:
        if not self._spaced:
            self._arrival = now
        self._spaced, self._spaced_until = True, now + SPACED


SPAN = 60
"""Seconds over which accepted requests are counted."""
SHARE = 0.98
"""Share (0 to 1) of the rate of accepted requests that becomes the learned rate."""
FIRST_RAISE, LARGEST_RAISE = 0.02, 0.30
"""Shares (0 to 1) by which the first raise increases the rate, and a later one at most. Each raise is twice as large as the last."""
CALM, NEXT, SHORTEST = 20.0, 5.0, 1.0
"""Most seconds without a reject before the first raise (``CALM``) and between two raises (``NEXT``). After a rate was learned, both are the
wait of its reject, at least ``SHORTEST``, because that is what a wrong raise costs. They double each time that a raise is taken back."""
UNRAISED, CUT = 3, 0.9
"""A stray reject that follows no raise multiplies the rate by ``CUT``. After ``UNRAISED`` rejects that follow no raise, stray or not, and
without a raise that succeeded in between, the next one ends the limit. When only stray ones counted, and each raise began the count anew, a
server of 8 slots that also rejected a tenth of its requests at random was held at a tenth of its speed for minutes."""
FORGOTTEN = 10.0
"""Seconds after the end of a limit in which no new one is learned, because little was accepted since. Without them, an endpoint with 3,000
requests a minute was sometimes given 4 a second for ten minutes (simulated)."""
EVIDENCE = 5
"""Least number of accepted requests for a rate to be learned."""


class LearnedRate(Gcra):
    """Limits the requests per second to a rate that is learned from rejects. Until then the rate is infinite."""

    def __init__(self) -> None:
        super().__init__(inf)
        self._accepted: dict[int, int] = {}  # second -> requests sent and not rejected, over the last minute
        self._began: float | None = None  # when the first request was sent
        self._changed = self._cut = -inf  # when the rate was last changed, and when it was last lowered
        self._suspected_until = inf  # until when the first wait of a reject lasts
        self._answered = False  # an answer has come since the rate was last lowered
        self._raised = 0.0  # share by which the rate was last raised; 0 before the first raise
        self._calm = CALM  # seconds without a reject before the first raise
        self._ended = -inf  # when the last limit ended
        self._unraised = 0  # rejects that followed no raise, since a raise succeeded

    def sent(self, now: float) -> None:
        second = int(now)
        if self._began is None:
            self._began = now
        if second not in self._accepted:
            self._accepted = {then: count for then, count in self._accepted.items() if then >= second - SPAN}
        self._accepted[second] = self._accepted.get(second, 0) + 1
        if self.rate != inf:
            self.take(now)

    def ok(self, now: float) -> None:
        self._answered = True
        calm = min(NEXT, self._calm) if self._raised else self._calm
        if self.rate != inf and now - self._changed > calm and self.ready_at >= now:  # a limit that delays nothing is not tested
            if self._raised:  # the last raise was right
                self._unraised = 0
            self._raised = min(LARGEST_RAISE, max(FIRST_RAISE, 2 * self._raised))
            self.rate *= 1 + self._raised
            self._changed = now

    def rejected(self, sent_at: float) -> None:
        if int(sent_at) in self._accepted:
            self._accepted[int(sent_at)] -= 1

    def hinted(self, now: float, hint: float, *, stray: bool = False) -> None:
        """Record a reject that carried a wait of ``hint`` seconds. Rejects within one second count once. ``stray`` ones start no limit."""
        if now - self._cut < 1.0 or now - self._ended < FORGOTTEN or not self._answered or (stray and self.ready_at < now):
            return
        if self.rate == inf and now <= self._suspected_until:
            if self._suspected_until == inf:
                self._suspected_until, self._answered = now + hint, False
            return
        began = now if self._began is None else self._began
        wait = 0.0 if stray else hint - 0.5 * (hint % 1 == 0)  # whole seconds were rounded up
        span = float(SPAN) if now - began >= SPAN else now - began + wait
        recent = sum(count for then, count in self._accepted.items() if then >= now - SPAN - 1)
        if recent < EVIDENCE:
            return
        seen = max(1 / SPAN, SHARE * recent / max(1.0, span))
        if self.rate == inf:
            self.rate, self._accepted, self._began = seen, {}, now + hint
            self._calm = min(CALM, max(SHORTEST, hint))
        elif self._raised:
            self.rate = max(min(seen, self.rate), self.rate / (1 + self._raised))
            self._calm = min(CALM, 2 * self._calm)
        elif self._unraised < UNRAISED:
            self.rate, self._unraised = CUT * self.rate if stray else min(seen, self.rate), self._unraised + 1
        else:
            self.rate, self._arrival, self._unraised = inf, -inf, 0
            self._accepted, self._began, self._ended = {}, now, now
        self._cut = self._changed = now
        self._raised, self._answered = 0.0, False


USUAL_WINDOWS = (60.0, 3600.0, 86400.0)
"""Lengths in seconds of the windows that are recognised from a single response. The first is assumed if nothing is known."""
EXACT = 0.05
"""Relative tolerance (0 to 1) of that recognition."""
MARKED, LEAST, TICKS = 0.25, 3.0, 5.0
"""A bucket is told from a window when ``remaining`` has fallen by this share (0 to 1) and this amount at least, and when ``reset`` has
changed by this number of rounding steps."""
STEADY, EVEN = 0.95, 0.98
"""``STEADY``: share (0 to 1) of the measured rate of a bucket that is used between two responses. ``EVEN``: share of the rate that is used
if windows are shorter than the time from a request to its response."""
LONGEST_WAIT = 60.0
"""Seconds after the last request. When they have passed, one request is sent although nothing remains."""
PLENTY, GLANCE = 0.5, 1.0
"""While more than the share ``PLENTY`` (0 to 1) of a limit remains, headers are read only once in ``GLANCE`` seconds."""
REMEMBERED = 4096
"""Maximum number of send times that are kept. Without it, the number would grow while no response advertises the limit."""


class HeaderRateLimit:
    """Follows a limit on requests or on tokens that a server advertises. It has the interface of a ``Gcra``, and contains one.

    Example:
        >>> limit = HeaderRateLimit()
        >>> limit.update(2.0, 1.0, RateLimit(limit=600, remaining=0, reset=30.0))
        >>> limit.ready_at
        32.0
    """

    def __init__(self, configured: Gcra | None = None) -> None:
        self.configured = configured
        self.refill = 0.0  # amount per second; 0 for a window, which is refilled at once
        self._left, self._at = inf, -inf  # remaining amount (inf while unknown), and the time for which it was computed
        self._most = inf  # remaining amount when nothing is used
        self._used = 0.0  # amount used according to the latest response; at its reset, a bucket has refilled no more than this
        self._full_at = self._began = -inf  # end and start of the window; requests sent before the start belong to the window before
        self._span = 0.0  # length of the window in seconds, as far as shown
        self._lag = 0.0  # longest recent number of seconds from a request to its response
        self._ask_at = self._probe_at = inf  # when one request is sent although nothing remains, and when the last such request was sent
        self._largest = 1.0  # largest recent cost of a request
        self._even = False  # windows are so short that an even rate is used
        self._sends: deque[list[float]] = deque(maxlen=REMEMBERED)  # [time, cost of all requests so far, number] by time of sending
        self._paid = 0.0  # cost of all requests so far
        self._newest = self._advertised_at = -inf  # when the latest request with headers was sent, and when it was answered
        self._replies, self._lowest = 0, 0.0  # responses to requests sent at ``_newest``: number, and lowest ``remaining``
        self._nonsense = False  # requests are answered although nothing remains
        self._bucket: bool | None = None  # whether it is a bucket; None if unknown
        self._mark: tuple[float, float, float] | None = None  # (sent at, remaining, reset) by which the kind is decided

    @property
    def rate(self) -> float:
        return min(inf if self.configured is None else self.configured.rate, self.refill or inf)

    @property
    def ready_at(self) -> float:
        at = -inf if self.configured is None else self.configured.ready_at
        needed = min(self._most, self._largest)
        if self._left >= needed:
            return at
        back_at = self._at + (needed - self._left) / self.refill if self.refill else self._full_at
        return max(at, min(back_at, self._ask_at))

    def take(self, now: float, cost: float = 1.0) -> None:
        if self.configured is not None:
            self.configured.take(now, cost)
        self._largest = max(cost, FADE * self._largest, 1.0)
        if self._left == inf:
            return
        self._advance(now)
        if self._left < min(self._most, self._largest) and now >= self._ask_at:
            self._probe_at = now
        self._ask_at = now + LONGEST_WAIT
        self._left -= cost
        self._paid += cost
        if self._sends and self._sends[-1][0] == now:
            self._sends[-1][1] = self._paid
            self._sends[-1][2] += 1
        else:
            self._sends.append([now, self._paid, 1])

    def rejected(self, now: float) -> None:
        if self.configured is not None:
            self.configured.rejected(now)

    def settle(self, reserved: float, used: float, sent_at: float) -> None:
        """Correct the charge of a request that has ended. The server counts what it served itself."""
        if self.configured is not None:
            self.configured.settle(reserved, used, sent_at)
        self._largest = max(used, self._largest)
        if not used:
            self._left += reserved

    def update(
        self, now: float, sent_at: float, info: RateLimit | None, *, answered: bool = True, others: float = 0.0, hint: float | None = None
    ) -> None:
        """Apply what a response advertises, because a request sent at ``sent_at`` ended or its streamed answer began.

        ``answered`` says that it was served; ``others`` is the cost of the other requests in flight, used only with the first advertised
        limit; ``hint`` is the ``Retry-After`` of a reject in seconds, which takes precedence over computed times.
        """
        if info is not None:
            plenty = PLENTY * self._most
            if info.remaining is None or (info.remaining > plenty and self._left > plenty and now < self._advertised_at + GLANCE):
                return
            if sent_at >= max(self._newest, self._began) and info.limit != 0 and not (info.limit is None and info.reset is None):
                self._apply(now, sent_at, info, info.remaining, answered, others)
            if hint is not None:
                self._ask_at = now + hint
        elif hint is not None:
            self._ask_at = min(self._ask_at, now + hint)
        elif sent_at > self._advertised_at:
            if answered:
                self._left = inf
            else:
                self._ask_at = now

    def _apply(self, now: float, sent_at: float, info: RateLimit, remaining: float, answered: bool, others: float) -> None:
        if remaining >= 1:
            self._nonsense = False
        elif answered and sent_at == self._probe_at:
            self._nonsense, self._left = True, inf
        if self._nonsense:
            return
        self._advance(now)
        self._update_refill(now, sent_at, remaining, info)
        later = sent_at > self._newest
        self._newest, self._advertised_at = sent_at, now
        self._replies, self._lowest = (1, remaining) if later else (self._replies + 1, min(self._lowest, remaining))
        if self._left == inf:
            self._left, self._at, self._ask_at = remaining - others, now, now + LONGEST_WAIT
            self._sends.clear()
            return
        while self._sends and self._sends[0][0] < sent_at:
            self._sends.popleft()
        paid, count = self._sends[0][1:] if self._sends and self._sends[0][0] == sent_at else (self._paid, inf)
        if self._even:
            self._left = min(self._left, self._most)
            return
        left = self._lowest - max(0.0, self._paid - paid - self.refill * (now - sent_at))
        self._left = left if self._replies >= count else min(self._left, left)  # others of the same instant may not be counted yet

    def _advance(self, now: float) -> None:
        if self.refill:
            self._left = max(self._left, min(self._most, self._left + (now - self._at) * self.refill))
        elif now >= self._full_at and self._left < self._most:
            self._left = self._most if self._bucket is False else min(self._most, self._left + self._used)
            self._began, self._full_at = self._full_at, inf  # until a response advertises the next end
        self._at = max(self._at, now)

    def _update_refill(self, now: float, sent_at: float, remaining: float, info: RateLimit) -> None:
        limit, reset, self._even = info.limit, info.reset, False
        if reset is None:
            assert limit is not None
            self.refill, self._most = limit / (info.window or USUAL_WINDOWS[0]), max(limit, remaining)
            return
        mark = self._mark
        if mark is None or remaining > mark[1] or (now >= mark[0] + mark[2] and not self._bucket):  # a window may have ended
            self._mark = (sent_at, remaining, reset)
        else:
            fell, rose = mark[1] - remaining, reset - mark[2]
            if fell >= max(LEAST, MARKED * mark[1]) and abs(rose) >= TICKS * (0.001 if reset % 1 or mark[2] % 1 else 1.0):
                self._bucket = rose > 0
                self.refill = STEADY * min(fell / rose, ((limit or inf) - remaining) / reset if reset else inf)
        if self._bucket is None and limit is not None:
            windows = USUAL_WINDOWS if info.window is None else (info.window,)
            found = next((each for each in windows if abs((limit - remaining) * each / limit - reset) < EXACT * reset), inf)
            self.refill = limit / found
        if self._bucket or (self._bucket is None and self.refill):
            self._most = max(remaining, min(limit or inf, remaining + self.refill / STEADY * reset))
            return
        self.refill, self._most = 0.0, inf if limit is None else max(limit, remaining)
        self._used = self._most - remaining
        # the window ends between ``sent_at + reset`` and ``now + reset``
        self._full_at = now + reset if sent_at + reset > self._full_at else min(self._full_at, now + reset)
        self._lag = max(now - sent_at, FADE * self._lag)
        self._span = info.window or max(self._span, reset)
        if limit is not None and self._began > -inf and self._lag > self._span > 0:  # each window ends before it is known
            self._even, self.refill = True, EVEN * limit / self._span
            self._most = self._largest + BURST * self.refill


FIRST_OUTPUT = 256.0
"""Number of output tokens that an answer is expected to have until the first answer has come."""


class TokenEstimator:
    """Reserves an estimate when a task is sent to a source with a token limit, and corrects it when the task is answered.

    The tokens of the prompt are estimated from its size, scaled by the error of earlier estimates; the tokens of the output are the mean of
    earlier answers.
    """

    def __init__(self, estimate: Callable[[Any], tuple[float, float]] | None) -> None:
        self._estimate = estimate
        self._scale = 1.0  # real prompt tokens divided by estimated prompt tokens, moving average
        self._output: float | None = None  # output tokens of an answer, moving average

    def reserve(self, now: float, attempt: Attempt) -> None:
        limit = attempt.source.tokens
        assert limit is not None
        prompt, most = self._estimate(attempt.task.payload) if self._estimate else (0.0, 0.0)
        expected = FIRST_OUTPUT if self._output is None else self._output
        reserved = attempt.source.reserved and most
        attempt.prompt = prompt
        attempt.cost = prompt * self._scale + (most if reserved else min(expected, most or inf))
        limit.take(now, attempt.cost)

    def settle(self, attempt: Attempt, answer: Answer | None) -> None:
        """Correct the charge of an ended attempt, and the estimates, by the tokens of the answer. Without one, return the whole charge."""
        limit = attempt.source.tokens
        if limit is None or not attempt.cost:  # nothing was charged, because there was no limit when it was sent
            return
        if answer is None:
            limit.settle(attempt.cost, 0.0, attempt.sent_at)
            return
        used_prompt, used_output = answer.prompt_tokens, answer.output_tokens
        if used_prompt is None or used_output is None:
            limit.settle(attempt.cost, attempt.cost, attempt.sent_at)
            return
        self._output = used_output if self._output is None else self._output + 0.1 * (used_output - self._output)
        if attempt.prompt:
            self._scale += 0.1 * (used_prompt / attempt.prompt - self._scale)
        limit.settle(attempt.cost, attempt.cost if attempt.source.reserved else used_prompt + used_output, attempt.sent_at)
