"""State of decorated functions.

``Function``: options, keys, durations of successful tries and the hedge budget of one function. ``KeyState``: one key of a function, with
its queue, rate limit and circuit breaker, and when it may be dropped. ``ConcurrencyGroup``: the concurrency limit that the functions of a
pool share, and the order of their keys.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING
from weakref import WeakSet

from qreward.scheduler.functions.call import Adapting, CallOptions, Hedging
from qreward.scheduler.functions.limits import AimdLimit, Breaker, SlidingWindowLimit, kept
from qreward.scheduler.heap import IndexedHeap
from qreward.scheduler.stats import Quantiles

if TYPE_CHECKING:
    from qreward.scheduler.functions.call import Call

ADAPTIVE_START = 32
"""Initial adaptive limit of tries in flight if no limit is configured."""


class ConcurrencyGroup:
    """Concurrency limit over all keys of all functions of a pool.

    Attributes:
        limit: tries that may be in flight now; inf without a limit.
        adaptive: the adaptive limit, or None.
        inflight: tries in flight.
        functions: the functions of the pool.
        ready: keys with a call that waits only for a free slot, by the rank of that call.
    """

    __slots__ = ("_most", "adaptive", "functions", "inflight", "limit", "ready")

    def __init__(self) -> None:
        self.limit: float = inf
        self.adaptive: AimdLimit | None = None
        self.inflight = 0
        self.functions: WeakSet[Function] = WeakSet()
        self.ready: IndexedHeap[KeyState] = IndexedHeap()
        self._most: float = inf

    def follow(self) -> None:
        """Update the limit from the options of its functions: the lowest of several numbers applies."""
        terms = [function.terms for function in self.functions]
        self._most = min((each.most for each in terms if each.most is not None), default=inf)
        adapting = [each.adapting for each in terms if each.rate is None and each.adapting is not None]
        start = ADAPTIVE_START if self._most == inf else self._most
        self.adaptive = kept(self.adaptive, min(adapting, key=_strictness, default=None), start, self._most)
        self.settle()

    def settle(self) -> None:
        """Apply the adaptive limit after it changed."""
        self.limit = self._most if self.adaptive is None else self.adaptive.limit


def _strictness(adapting: Adapting) -> tuple[float, ...]:
    return adapting.most, adapting.least, adapting.errors, inf if adapting.seconds is None else adapting.seconds


MEMORY = 60.0
"""Seconds for which an unused key keeps its failures, its open circuit breaker and its adaptive limit."""


class KeyState:
    """State of one key of a function. It takes the place that an endpoint has for a request.

    Attributes:
        function: the function.
        key: the key.
        line: calls that wait for the rate limit or for a free slot, by rank.
        ration: its rate limit, or None.
        breaker: its circuit breaker, or None.
        adaptive: adapts its rate limit, or None.
        closed_until: cooldown after an overload error that carried a wait.
        calls: number of calls that have not ended.
        inflight: tries in flight.
        used_at: when a try last started or ended.
        resting: it is in the function's list of keys that may be dropped soon.
    """

    __slots__ = (
        "adaptive", "breaker", "calls", "closed_until", "function", "inflight", "key", "line", "ration", "resting", "used_at",
    )  # fmt: skip

    handle: object = None

    def __init__(self, function: Function, key: Hashable) -> None:
        self.function = function
        self.key = key
        self.line: IndexedHeap[Call] = IndexedHeap()
        self.calls = self.inflight = 0
        self.used_at = -inf
        self.resting = False
        self.start_anew()

    def start_anew(self) -> None:
        """Reset all counts and learned values."""
        self.ration: SlidingWindowLimit | None = None
        self.breaker: Breaker | None = None
        self.adaptive: AimdLimit | None = None
        self.closed_until = -inf
        self.follow()

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.function.name}()" + (f" for the key {self.key!r}" if self.function.keyed else "")

    def follow(self) -> None:
        """Update its limits from the function's options."""
        terms = self.function.terms
        rate, breaking = terms.rate, terms.breaking
        if rate is None:
            self.ration = self.adaptive = None
        else:
            self.adaptive = kept(self.adaptive, terms.adapting, rate.size, rate.size)
            if self.ration is None:
                self.ration = SlidingWindowLimit(rate.size, rate.window)
            self.ration.change(rate.size, rate.window)
            self.settle()
        if breaking is None:
            self.breaker = None
        elif self.breaker is None:
            self.breaker = Breaker(breaking)
        else:
            self.breaker.terms = breaking

    def settle(self) -> None:
        """Apply the adaptive limit after it changed."""
        if self.ration is not None and self.adaptive is not None:
            self.ration.size = self.adaptive.limit

    def ready_at(self, call: Call) -> float:
        """Return the earliest time at which it allows a try of a call. A past time means now."""
        at = self.closed_until
        return at if self.ration is None or not call.terms.paced else max(at, self.ration.ready_at)

    @property
    def idle(self) -> bool:
        """It has no call and no try."""
        return not self.calls and not self.inflight

    def clear_at(self) -> float:
        """Return the time from which it can be dropped without losing state; inf while it is in use."""
        if not self.idle:
            return inf
        at = self.closed_until if self.ration is None else max(self.closed_until, self.ration.clear_at)
        breaker = self.breaker
        if breaker is not None and breaker.failures:
            at = max(at, self.used_at + MEMORY, breaker.open_until + MEMORY)
        return at if self.adaptive is None else max(at, self.used_at + MEMORY)


HEDGES_AT_ONCE = 10.0
"""Initial hedge budget, before calls have added to it."""
MOST_SAVED = 1e6
"""Largest hedge budget."""
ENOUGH = 20
"""Successful tries needed before a quantile of their times is used."""


class Function:
    """One decorated function.

    Attributes:
        name: its name in messages.
        group: the concurrency group of its pool.
        terms: its present options.
        keyed: it may have more than one key.
        lanes: state of each key.
        quantiles: of the seconds that successful tries took.
        hedges_left: hedge budget, to which each call adds.
        tally: counts of calls and tries.
    """

    __slots__ = ("__weakref__", "_resting", "_rests", "group", "hedges_left", "keyed", "lanes", "name", "quantiles", "tally", "terms")

    def __init__(self, name: str, group: ConcurrencyGroup, terms: CallOptions, *, keyed: bool) -> None:
        self.name = name
        self.group = group
        self.keyed = keyed
        self.terms = terms
        self.lanes: dict[Hashable, KeyState] = {}
        self._rests = 0
        self.start_anew()
        group.functions.add(self)
        group.follow()

    def start_anew(self) -> None:
        """Reset all counts and learned values, and drop unused keys. Calls that wait or are in flight continue."""
        self.quantiles = Quantiles(fade_after=1000)
        self.hedges_left = HEDGES_AT_ONCE
        self.tally = FunctionCounters()
        self._resting: list[tuple[float, int, KeyState]] = []
        self.lanes = {key: lane for key, lane in self.lanes.items() if not lane.idle}
        for lane in self.lanes.values():
            lane.resting = False
            lane.start_anew()

    def lane(self, key: Hashable) -> KeyState:
        """Return the state of a key, created if needed."""
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = KeyState(self, key)
        return lane

    def rest(self, lane: KeyState) -> None:
        """Schedule an idle key for the check whether it can be dropped."""
        if self.keyed and not lane.resting and lane.idle:
            lane.resting = True
            self._rests += 1
            heappush(self._resting, (lane.clear_at(), self._rests, lane))

    def forget(self, now: float, most: float = inf) -> None:
        """Drop keys whose state is not needed any more, checking at most ``most`` of those that are due."""
        resting = self._resting
        while resting and most > 0 and resting[0][0] <= now:
            lane = heappop(resting)[2]
            most -= 1
            lane.resting = False
            if lane.clear_at() <= now:
                del self.lanes[lane.key]
            else:
                self.rest(lane)  # used since

    def earn_hedge(self) -> None:
        """Add a call's share to the hedge budget."""
        hedging = self.terms.hedging
        if hedging is not None:
            self.hedges_left = min(self.hedges_left + hedging.share, MOST_SAVED)

    def hedge_after(self, hedging: Hedging) -> float | None:
        """Return the seconds after which a try is hedged, or None if that is not known yet."""
        if hedging.after is not None:
            return hedging.after
        return self.quantiles.at(hedging.quantile) if self.quantiles.count >= ENOUGH else None


class FunctionCounters:
    """Counts of calls and tries of one function since it was created or reset."""

    __slots__ = ("calls", "failed", "hedges", "hedges_won", "ok", "overloaded", "refused", "retries", "timeouts", "tries")

    def __init__(self) -> None:
        self.calls = self.ok = self.failed = self.refused = self.timeouts = 0
        self.tries = self.retries = self.hedges = self.hedges_won = self.overloaded = 0
