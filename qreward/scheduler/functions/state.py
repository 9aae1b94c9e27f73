"""What is known of a decorated function: its terms, its keys, what successful tries took, and how many hedges it may make.

What functions of one pool share: how many tries may be in flight, and whose turn it is.

One key of a function: who waits for it, its rate, its breaker, and when it may be forgotten.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING
from weakref import WeakSet

from qreward.scheduler.functions.call import Adapting, CallOptions, Hedging
from qreward.scheduler.functions.heap import IndexedHeap
from qreward.scheduler.functions.limits import AimdLimit, Breaker, SlidingWindowLimit, kept
from qreward.scheduler.stats.latency import Quantiles

if TYPE_CHECKING:
    from qreward.scheduler.functions.call import Call

ADAPTIVE_START = 32
"""Tries in flight with which an adaptive limit begins where nobody has set one."""


class ConcurrencyGroup:
    """Tries in flight, and how many there may be, over all keys of all functions of a pool.

    Attributes:
        limit: tries that may be in flight now; inf without a limit.
        adaptive: the limit that moves, or None.
        ready: keys with a call that waits for nothing but room, each in the rank of that call.
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
        """Hold what its functions say now: of several numbers the least."""
        terms = [function.terms for function in self.functions]
        self._most = min((each.most for each in terms if each.most is not None), default=inf)
        adapting = [each.adapting for each in terms if each.rate is None and each.adapting is not None]
        start = ADAPTIVE_START if self._most == inf else self._most
        self.adaptive = kept(self.adaptive, min(adapting, key=_strictness, default=None), start, self._most)
        self.settle()

    def settle(self) -> None:
        """The limit that moves has moved."""
        self.limit = self._most if self.adaptive is None else self.adaptive.limit


def _strictness(adapting: Adapting) -> tuple[float, ...]:
    return adapting.most, adapting.least, adapting.errors, inf if adapting.seconds is None else adapting.seconds


MEMORY = 60.0
"""Seconds for which the failures of a key, its breaker's being due, and the limit it was found to have are remembered unused."""


class KeyState:
    """It stands where an endpoint does for a request.

    Attributes:
        line: calls that wait for the rate or for room, the first in rank first.
        adaptive: the limit of its rate, if that moves.
        closed_until: it has asked to be left alone until then.
        calls: that have not ended.
        inflight: tries under way.
        used_at: when a try last began or ended.
        resting: it is among those that may be forgotten soon.
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
        """Forget what was counted and learned."""
        self.ration: SlidingWindowLimit | None = None
        self.breaker: Breaker | None = None
        self.adaptive: AimdLimit | None = None
        self.closed_until = -inf
        self.follow()

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return f"{self.function.name}()" + (f" for the key {self.key!r}" if self.function.keyed else "")

    def follow(self) -> None:
        """Hold what the function says now."""
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
        """The limit that moves has moved."""
        if self.ration is not None and self.adaptive is not None:
            self.ration.size = self.adaptive.limit

    def ready_at(self, call: Call) -> float:
        """The earliest time at which it allows a try of a call; a past time means now."""
        at = self.closed_until
        return at if self.ration is None or not call.terms.paced else max(at, self.ration.ready_at)

    @property
    def idle(self) -> bool:
        """No call and no try needs it."""
        return not self.calls and not self.inflight

    def clear_at(self) -> float:
        """From then on nothing is lost if it is forgotten; inf while it is in use."""
        if not self.idle:
            return inf
        at = self.closed_until if self.ration is None else max(self.closed_until, self.ration.clear_at)
        breaker = self.breaker
        if breaker is not None and breaker.failures:
            at = max(at, self.used_at + MEMORY, breaker.open_until + MEMORY)
        return at if self.adaptive is None else max(at, self.used_at + MEMORY)


HEDGES_AT_ONCE = 10.0
"""Hedges that may be made before the share of calls has paid for them."""
MOST_SAVED = 1e6
"""Hedges that can be saved up."""
ENOUGH = 20
"""Successful tries below which no quantile of them is used."""


class Function:
    """One decorated function.

    Attributes:
        keyed: it has more than one key.
        lanes: by key.
        quantiles: of the seconds that successful tries took.
        hedges_left: that may still be made, paid for by calls.
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
        """Forget what was counted and learned, and the keys that nobody uses. What is under way or waits stays."""
        self.quantiles = Quantiles(fade_after=1000)
        self.hedges_left = HEDGES_AT_ONCE
        self.tally = Tally()
        self._resting: list[tuple[float, int, KeyState]] = []
        self.lanes = {key: lane for key, lane in self.lanes.items() if not lane.idle}
        for lane in self.lanes.values():
            lane.resting = False
            lane.start_anew()

    def lane(self, key: Hashable) -> KeyState:
        """The lane of a key, made if there is none."""
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = KeyState(self, key)
        return lane

    def rest(self, lane: KeyState) -> None:
        """If nobody uses a lane now, it is to be looked at when it may be forgotten."""
        if self.keyed and not lane.resting and lane.idle:
            lane.resting = True
            self._rests += 1
            heappush(self._resting, (lane.clear_at(), self._rests, lane))

    def forget(self, now: float, most: float = inf) -> None:
        """Drop lanes of which nothing need be known any more, looking at so many of those that may be such."""
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
        """A call pays its share of hedges."""
        hedging = self.terms.hedging
        if hedging is not None:
            self.hedges_left = min(self.hedges_left + hedging.share, MOST_SAVED)

    def hedge_after(self, hedging: Hedging) -> float | None:
        """Seconds after which a try is hedged, or None if that is not known yet."""
        if hedging.after is not None:
            return hedging.after
        return self.quantiles.at(hedging.quantile) if self.quantiles.count >= ENOUGH else None


class Tally:
    """Counts of one function since it was made or reset; of calls, and of tries."""

    __slots__ = ("calls", "failed", "hedges", "hedges_won", "ok", "overloaded", "refused", "retries", "timeouts", "tries")

    def __init__(self) -> None:
        self.calls = self.ok = self.failed = self.refused = self.timeouts = 0
        self.tries = self.retries = self.hedges = self.hedges_won = self.overloaded = 0
