"""What is known of a decorated function: its terms, its keys, what successful tries took, and how many hedges it may make."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from math import inf

from qreward.core.calls.group import Group
from qreward.core.calls.lane import Lane
from qreward.core.calls.terms import CallTerms, Hedging
from qreward.core.latency import Quantiles

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

    def __init__(self, name: str, group: Group, terms: CallTerms, *, keyed: bool) -> None:
        self.name = name
        self.group = group
        self.keyed = keyed
        self.terms = terms
        self.lanes: dict[Hashable, Lane] = {}
        self._rests = 0
        self.start_anew()
        group.functions.add(self)
        group.follow()

    def start_anew(self) -> None:
        """Forget what was counted and learned, and the keys that nobody uses. What is under way or waits stays."""
        self.quantiles = Quantiles(fade_after=1000)
        self.hedges_left = HEDGES_AT_ONCE
        self.tally = Tally()
        self._resting: list[tuple[float, int, Lane]] = []
        self.lanes = {key: lane for key, lane in self.lanes.items() if not lane.idle}
        for lane in self.lanes.values():
            lane.resting = False
            lane.start_anew()

    def lane(self, key: Hashable) -> Lane:
        """The lane of a key, made if there is none."""
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(self, key)
        return lane

    def rest(self, lane: Lane) -> None:
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
